//! A file opened for reading at any offset, from any thread.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::RecordError;

/// The bytes of one read, for a file that is read from one end to the other.
pub(crate) const WINDOW_BYTES: usize = 1 << 20;

/// The name of the index beside a file.
#[must_use]
pub fn index_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".idx");
    PathBuf::from(name)
}

#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    path: PathBuf,
    metadata: Metadata,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Source, RecordError> {
        let file = File::open(path).map_err(RecordError::io(path, "open"))?;
        Source::from_file(file, path)
    }

    pub(crate) fn from_file(file: File, path: &Path) -> Result<Source, RecordError> {
        let metadata = file.metadata().map_err(RecordError::io(path, "open"))?;
        if !metadata.is_file() {
            return Err(RecordError::Io {
                path: path.to_path_buf(),
                action: "read",
                source: std::io::Error::other("it is not a regular file"),
            });
        }
        Ok(Source {
            file,
            path: path.to_path_buf(),
            metadata,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file's size when it was opened. Nothing beyond it is looked at.
    pub(crate) fn len(&self) -> u64 {
        self.metadata.len()
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn into_file(self) -> File {
        self.file
    }

    /// Fills `buffer` from `offset`; the caller has checked that the file is long enough.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), RecordError> {
        self.file
            .read_exact_at(buffer, offset)
            .map_err(RecordError::io(&self.path, "read"))
    }

    /// Reads `[start, end)`. The caller has checked both against `len`, which bounds the memory.
    pub(crate) fn read_range(&self, start: u64, end: u64) -> Result<Vec<u8>, RecordError> {
        let mut buffer = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        self.read_exact_at(&mut buffer, start)?;
        Ok(buffer)
    }

    pub(crate) fn damaged(&self, offset: u64, what: impl Into<String>) -> RecordError {
        RecordError::Damaged {
            path: self.path.clone(),
            offset,
            what: what.into(),
        }
    }

    /// The error of an index beside the file that is not that of its contents.
    pub(crate) fn wrong_index(&self, offset: u64, what: &str) -> RecordError {
        let index = index_path(&self.path);
        let name = index.display();
        let what = format!("{what}; if {name} is of an earlier file, remove it: it is made again");
        self.damaged(offset, what)
    }

    pub(crate) fn range_error(&self, start: u64, end: u64, num_records: u64) -> RecordError {
        RecordError::Range {
            path: self.path.clone(),
            start,
            end,
            num_records,
        }
    }
}

/// A part of a file in memory that moves forward over it.
pub(crate) struct Window<'a> {
    source: &'a Source,
    buffer: Vec<u8>,
    start: u64,
}

impl<'a> Window<'a> {
    pub(crate) fn new(source: &'a Source) -> Window<'a> {
        Window {
            source,
            buffer: Vec::new(),
            start: 0,
        }
    }

    /// Returns what is in memory from `offset` on: at least `least` bytes, or all that are left.
    pub(crate) fn at(&mut self, offset: u64, least: usize) -> Result<&[u8], RecordError> {
        let end = self.start + self.buffer.len() as u64;
        let wanted = self.source.len().min(offset.saturating_add(least as u64));
        if offset < self.start || wanted > end {
            let left = self.source.len().saturating_sub(offset);
            let size = left.min(WINDOW_BYTES.max(least) as u64) as usize;
            self.buffer.resize(size, 0);
            self.start = offset;
            self.source.read_exact_at(&mut self.buffer, offset)?;
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        Ok(self.buffer.get(skip..).unwrap_or_default())
    }
}
