//! The store as its users see it: one program, so that the crate is linked once.

mod checkpoint;
mod common;
mod concurrency;
mod held;
mod life;
mod model;
mod moving;
mod names;
mod push;
mod redo;
mod since;
mod statistics;
mod treatment;
mod whole;
