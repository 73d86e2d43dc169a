//! Rings of threads: what is added up, what is said and given, and what becomes of one that ends.

mod all_reduce;
mod bytes;
mod ranks;
