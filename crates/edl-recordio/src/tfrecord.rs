//! TensorFlow's TFRecord files: records one after the other, each with its length and checksums.
//!
//! Layout (`tensorflow/core/lib/io/record_writer.h`): u64 length, u32 masked CRC-32C of the length,
//! the record, u32 masked CRC-32C of the record.

use std::fs::OpenOptions;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::atomic::AtomicFile;
use crate::format::{MAX_RECORD_BYTES, le_u32, le_u64, magic_text};
use crate::side_index::{self, IndexOrigin, Kind, SideIndex};
use crate::source::{Source, WINDOW_BYTES, Window};
use crate::writer::Repair;
use crate::{Batch, RecordError, crc32c};

const HEADER_BYTES: usize = 12;
const FOOTER_BYTES: usize = 4;
const FRAME_BYTES: u64 = (HEADER_BYTES + FOOTER_BYTES) as u64;
const KIND: Kind = Kind {
    format: side_index::TFRECORD,
    flags: 0,
};
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A CRC of data that itself holds CRCs is weak, so TFRecord stores it turned and shifted.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// A TFRecord file opened for reading. Any number of threads may read from it at once.
#[derive(Debug)]
pub struct TfRecordReader {
    source: Source,
    index: SideIndex,
    origin: IndexOrigin,
}

impl TfRecordReader {
    /// Opens a file and finds its index, or makes one by walking over the lengths of the records.
    ///
    /// # Errors
    ///
    /// [`RecordError::Foreign`], [`RecordError::Torn`], [`RecordError::Damaged`] or
    /// [`RecordError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<TfRecordReader, RecordError> {
        let source = Source::open(path.as_ref())?;
        let (index, origin) = side_index::load_or_build(&source, KIND, 0, build_index)?;
        Ok(TfRecordReader {
            source,
            index,
            origin,
        })
    }

    /// How many records there are.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.index.num_records
    }

    /// Size of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.source.len()
    }

    /// Returns the origin of the index.
    #[must_use]
    pub fn index_origin(&self) -> IndexOrigin {
        self.origin
    }

    /// Reads records `[start, end)`; at least one, then no more once `max_bytes` are reached (and
    /// about 1 MiB more).
    ///
    /// # Errors
    ///
    /// [`RecordError::Range`], [`RecordError::Damaged`] or [`RecordError::Io`].
    pub fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Batch, RecordError> {
        if start > end || end > self.num_records() {
            return Err(self.source.range_error(start, end, self.num_records()));
        }
        let mut batch = Batch::default();
        for piece in self.index.pieces(start, end) {
            if !batch.is_empty() && batch.num_bytes() >= max_bytes {
                break;
            }
            let buffer = self.source.read_range(piece.start, piece.end)?;
            let mut records = Vec::new();
            let (mut at, mut number) = (0, piece.first_record);
            while at < buffer.len() && number < end {
                let record = self.record_at(&buffer, at, piece.start, number)?;
                at = record.end + FOOTER_BYTES;
                if number >= start {
                    self.check_record(&buffer, &record, piece.start, number)?;
                    records.push(record);
                }
                number += 1;
            }
            if number < end.min(piece.end_record) {
                let what = format!("the index says that record {number} lies before this");
                return Err(self.source.wrong_index(piece.end, &what));
            }
            if number == piece.end_record && at < buffer.len() {
                let what = format!("the index says that record {number} lies behind this");
                return Err(self.source.wrong_index(piece.start + at as u64, &what));
            }
            batch.push(Arc::new(buffer), records);
        }
        Ok(batch)
    }

    fn record_at(
        &self,
        buffer: &[u8],
        at: usize,
        offset: u64,
        number: u64,
    ) -> Result<Range<usize>, RecordError> {
        let damaged = |what: &str| {
            let what = format!("record {number}: {what}");
            match self.origin {
                IndexOrigin::Loaded if at == 0 => self.source.wrong_index(offset, &what),
                _ => self.source.damaged(offset + at as u64, what),
            }
        };
        let rest = &buffer[at..];
        let length = rest
            .get(..HEADER_BYTES)
            .ok_or_else(|| damaged("its length does not lie where the index says"))
            .and_then(|header| decode_length(header).map_err(|what| damaged(&what)))?;
        let room = rest.len() - HEADER_BYTES;
        match usize::try_from(length) {
            Ok(length) if length.saturating_add(FOOTER_BYTES) <= room => {
                Ok(at + HEADER_BYTES..at + HEADER_BYTES + length)
            }
            _ => Err(damaged("it does not end where the index says")),
        }
    }

    fn check_record(
        &self,
        buffer: &[u8],
        record: &Range<usize>,
        offset: u64,
        number: u64,
    ) -> Result<(), RecordError> {
        if masked_crc(&buffer[record.clone()]) == le_u32(buffer, record.end) {
            return Ok(());
        }
        let start = offset + (record.start - HEADER_BYTES) as u64;
        Err(self.source.damaged(
            start,
            format!("record {number}: its checksum does not match"),
        ))
    }
}

/// Reads the 12 bytes before a record.
fn decode_length(header: &[u8]) -> Result<u64, String> {
    if masked_crc(&header[..8]) == le_u32(header, 8) {
        Ok(le_u64(header, 0))
    } else {
        Err("the checksum of its length does not match".to_owned())
    }
}

fn build_index(source: &Source) -> Result<SideIndex, RecordError> {
    let mut index = SideIndex::new();
    let mut window = Window::new(source);
    let (mut offset, len) = (0, source.len());
    while offset < len {
        let torn = |what: String| RecordError::Torn {
            path: source.path().to_path_buf(),
            offset,
            what,
            whole_records: index.num_records,
        };
        let bytes = window.at(offset, HEADER_BYTES)?;
        let Some(header) = bytes.get(..HEADER_BYTES) else {
            return Err(if offset == 0 {
                foreign(source, bytes)
            } else {
                torn(format!(
                    "a record's length has {HEADER_BYTES} bytes, only {} are there",
                    bytes.len()
                ))
            });
        };
        let length = match decode_length(header) {
            Ok(length) => length,
            Err(_) if offset == 0 => return Err(foreign(source, header)),
            Err(what) => {
                let what = format!("record {}: {what}", index.num_records);
                return Err(source.damaged(offset, what));
            }
        };
        match length.checked_add(FRAME_BYTES) {
            Some(frame) if frame <= len - offset => {
                index.add(offset);
                offset += frame;
            }
            _ => {
                return Err(torn(format!(
                    "a record of {length} bytes begins, {} are there with its frame",
                    len - offset
                )));
            }
        }
    }
    index.end = len;
    Ok(index)
}

/// Cuts off the torn tail of a TFRecord file. With `dry_run` the file is not changed.
///
/// The lengths of all records are checked, but not their contents.
///
/// # Errors
///
/// Those of [`TfRecordReader::open`], without `Torn`.
pub fn repair_tfrecord(path: impl AsRef<Path>, dry_run: bool) -> Result<Repair, RecordError> {
    let path = path.as_ref();
    let file = OpenOptions::new()
        .read(true)
        .write(!dry_run)
        .open(path)
        .map_err(RecordError::io(path, "repair"))?;
    let source = Source::from_file(file, path)?;
    let (num_records, end) = match build_index(&source) {
        Ok(index) => (index.num_records, source.len()),
        Err(RecordError::Torn {
            offset,
            whole_records,
            ..
        }) => (whole_records, offset),
        Err(error) => return Err(error),
    };
    let cut_bytes = source.len() - end;
    if !dry_run && cut_bytes > 0 {
        let file = source.into_file();
        file.set_len(end)
            .and_then(|()| file.sync_all())
            .map_err(RecordError::io(path, "repair"))?;
    }
    Ok(Repair {
        num_records,
        cut_bytes,
        is_needed: cut_bytes > 0,
    })
}

fn foreign(source: &Source, bytes: &[u8]) -> RecordError {
    let start = &bytes[..bytes.len().min(HEADER_BYTES)];
    let found = if start.starts_with(&GZIP_MAGIC) {
        "it is compressed by gzip: unpack it first".to_owned()
    } else {
        magic_text(start)
    };
    RecordError::Foreign {
        path: source.path().to_path_buf(),
        format: "TFRecord",
        found,
        expected: "a length of 8 bytes and its checksum".to_owned(),
    }
}

/// Writes a TFRecord file, which appears under its name when it is closed.
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    file: AtomicFile,
    buffer: Vec<u8>,
    num_records: u64,
    failed: bool,
}

impl TfRecordWriter {
    /// Starts a new file; one that has this name already is replaced at the end.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`].
    pub fn create(path: impl AsRef<Path>) -> Result<TfRecordWriter, RecordError> {
        Ok(TfRecordWriter {
            path: path.as_ref().to_path_buf(),
            file: AtomicFile::create(path.as_ref())?,
            buffer: Vec::new(),
            num_records: 0,
            failed: false,
        })
    }

    /// How many records were written.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// [`RecordError::TooLarge`], or [`RecordError::Io`] as when the disk is full.
    pub fn write(&mut self, record: &[u8]) -> Result<(), RecordError> {
        if record.len() > MAX_RECORD_BYTES {
            return Err(RecordError::TooLarge {
                path: self.path.clone(),
                record: self.num_records,
                bytes: record.len(),
                limit: MAX_RECORD_BYTES,
            });
        }
        let length = (record.len() as u64).to_le_bytes();
        self.buffer.extend_from_slice(&length);
        self.buffer
            .extend_from_slice(&masked_crc(&length).to_le_bytes());
        self.buffer.extend_from_slice(record);
        self.buffer
            .extend_from_slice(&masked_crc(record).to_le_bytes());
        self.num_records += 1;
        if self.buffer.len() >= WINDOW_BYTES {
            self.write_buffer()?;
        }
        Ok(())
    }

    fn write_buffer(&mut self) -> Result<(), RecordError> {
        if self.failed {
            return Err(RecordError::Failed {
                path: self.path.clone(),
            });
        }
        let result = self.file.write_all(&self.buffer);
        self.failed = result.is_err();
        self.buffer.clear();
        result
    }

    /// Completes the file; returns how many records it has.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`]; no file appears then.
    pub fn close(mut self) -> Result<u64, RecordError> {
        self.write_buffer()?;
        self.file.commit()?;
        Ok(self.num_records)
    }
}
