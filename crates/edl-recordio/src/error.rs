//! The errors of a record file.

use std::io;
use std::path::PathBuf;

/// An error of this crate. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The operating system refused a call.
    #[error("{}: cannot {action}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action: "open", "read", ...
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },

    /// The file is of another format.
    #[error("{}: not a {format} file ({found}, expected {expected})", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The format that was expected.
        format: &'static str,
        /// The first bytes of the file.
        found: String,
        /// The expected first bytes.
        expected: String,
    },

    /// The file was written by a later release.
    #[error(
        "{}: RecordIO version {found}, but this release reads version {known}; \
         read it with the release that wrote it, or a newer one",
        .path.display()
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u16,
        /// The version that is known here.
        known: u16,
    },

    /// Bytes in the middle of the file are not what was written.
    #[error("{}: damaged at offset {offset}: {what}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The begin of the damaged part.
        offset: u64,
        /// The problem there.
        what: String,
    },

    /// The end of the file is missing, as after the death of its writer.
    #[error(
        "{}: torn tail at offset {offset} ({what}); {whole_records} whole records precede it, \
         and `elasticdl data repair` keeps them",
        .path.display()
    )]
    Torn {
        /// The file.
        path: PathBuf,
        /// The end of the last whole record or block.
        offset: u64,
        /// The incomplete part there.
        what: String,
        /// How many records can still be read.
        whole_records: u64,
    },

    /// Records were asked for that the file does not have.
    #[error(
        "{}: records [{start}, {end}) were asked for, but it has {num_records}; \
         has the file changed since its records were counted?",
        .path.display()
    )]
    Range {
        /// The file.
        path: PathBuf,
        /// First record asked for.
        start: u64,
        /// One past the last record asked for.
        end: u64,
        /// How many there are.
        num_records: u64,
    },

    /// A record is larger than the format allows.
    #[error(
        "{}: record {record} has {bytes} bytes, the limit is {limit}; split it",
        .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The number of the record.
        record: u64,
        /// Its size.
        bytes: usize,
        /// The largest size.
        limit: usize,
    },

    /// Another writer is appending.
    #[error("{}: another writer is appending to it; wait until it has closed it", .path.display())]
    Locked {
        /// The file.
        path: PathBuf,
    },

    /// The writer failed before, and what it wrote was taken back.
    #[error("{}: the writer failed earlier and its records were discarded", .path.display())]
    Failed {
        /// The file.
        path: PathBuf,
    },

    /// Columns that do not make up records.
    #[error("column {column:?}: {what}")]
    Column {
        /// Its name.
        column: String,
        /// The problem of the record.
        what: String,
    },
}

impl RecordError {
    /// Wraps an operating system error; for `map_err`.
    pub(crate) fn io(
        path: &std::path::Path,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> RecordError {
        let path = path.to_path_buf();
        move |source| RecordError::Io {
            path,
            action,
            source,
        }
    }
}
