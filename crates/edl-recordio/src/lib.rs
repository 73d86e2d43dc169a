//! Record files: bytes in numbered records, any range of which is found by seeking.
//!
//! - [`RecordReader`] and [`RecordWriter`]: RecordIO, elasticdl's own format;
//!   `docs/designs/recordio.md` has its byte layout, and [`mod@format`] has its code.
//! - [`TfRecordReader`] and [`TfRecordWriter`]: TensorFlow's TFRecord. It has no index of its own,
//!   so an index is put beside it ([`side_index`]).
//! - [`LineReader`]: lines of text, such as CSV, with the same kind of index. [`csv`]: their
//!   fields. [`numbers`]: the text that is a number. [`json`]: objects of JSON. [`parquet`]: the
//!   contents of a footer.
//! - [`encode_examples`], [`decode_examples`]: columns to `tf.train.Example` messages, and back.
//!
//! Nothing that comes from a file is trusted: lengths are checked against the file's size and
//! against limits before anything is allocated, and every block and record has a checksum.

mod atomic;
mod batch;
mod blocks;
mod codec;
pub mod csv;
mod decode;
mod error;
mod example;
pub mod format;
pub mod json;
pub mod libsvm;
mod lines;
pub mod numbers;
pub mod parquet;
mod protobuf;
mod reader;
mod scan;
pub mod side_index;
mod source;
mod tfrecord;
mod writer;

pub use batch::Batch;
pub use blocks::{Blocks, WriterOptions};
pub use codec::Codec;
pub use decode::{Decoded, DecodedColumn, Kind, Undecoded, Wanted, decode_examples};
pub use error::RecordError;
pub use example::{Feature, Values, encode_examples};
pub use lines::{LineOptions, LineReader};
pub use reader::{BlockInfo, IndexState, RecordReader};
pub use scan::TornTail;
pub use tfrecord::{TfRecordReader, TfRecordWriter, repair_tfrecord};
pub use writer::{RecordWriter, Repair, repair};

/// The CRC-32C (Castagnoli) checksum of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
