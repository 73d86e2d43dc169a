//! Readers and writers of record files: one program, so that the crate is linked once.

mod decode;
mod example;
mod lines;
mod recordio;
mod tfrecord;
