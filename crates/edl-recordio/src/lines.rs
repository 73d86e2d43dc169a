//! Text files whose records are lines, such as CSV.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::side_index::{self, IndexOrigin, Kind, Piece, SideIndex};
use crate::source::{Source, Window};
use crate::{Batch, RecordError};

const FORMAT: u8 = 2;
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Smaller files are counted again each time rather than given an index file.
const LEAST_BYTES: u64 = 16 << 20;

/// The rule by which a line is a record. A line ends with a line feed, with or without a carriage
/// return before it, or with the file. The line feed and the carriage return do not belong to the
/// record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineOptions {
    /// The first line names the columns and is no record.
    pub skip_header: bool,
    /// Lines without any bytes are no records.
    pub skip_blank: bool,
    /// A line feed between double quotes belongs to the record (RFC 4180).
    pub quoted_newlines: bool,
}

/// A text file opened for reading. Any number of threads may read from it at once.
#[derive(Debug)]
pub struct LineReader {
    source: Source,
    index: SideIndex,
    origin: IndexOrigin,
    options: LineOptions,
}

impl LineReader {
    /// Opens a file and finds its index, or makes one by reading it once.
    ///
    /// # Errors
    ///
    /// [`RecordError::Damaged`] where a quote is never closed, or [`RecordError::Io`].
    pub fn open(path: impl AsRef<Path>, options: LineOptions) -> Result<LineReader, RecordError> {
        let source = Source::open(path.as_ref())?;
        let kind = Kind {
            format: FORMAT,
            flags: u8::from(options.quoted_newlines) | u8::from(options.skip_blank) << 1,
        };
        let (index, origin) = side_index::load_or_build(&source, kind, LEAST_BYTES, |source| {
            build_index(source, options)
        })?;
        Ok(LineReader {
            source,
            index,
            origin,
            options,
        })
    }

    /// How many records there are, without the header.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.index.num_records.saturating_sub(self.num_headers())
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

    /// The first line, if it is the header and there is one.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`].
    pub fn header(&self) -> Result<Option<Vec<u8>>, RecordError> {
        if !self.options.skip_header || self.index.num_records == 0 {
            return Ok(None);
        }
        let batch = self.read_lines(0, 1, 0)?;
        Ok(batch.iter().next().map(<[u8]>::to_vec))
    }

    /// Reads records `[start, end)`; at least one, then no more once `max_bytes` are reached (and
    /// about 1 MiB more).
    ///
    /// # Errors
    ///
    /// [`RecordError::Range`], [`RecordError::Damaged`] if the file has changed, or
    /// [`RecordError::Io`].
    pub fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Batch, RecordError> {
        if start > end || end > self.num_records() {
            return Err(self.source.range_error(start, end, self.num_records()));
        }
        let skipped = self.num_headers();
        self.read_lines(start + skipped, end + skipped, max_bytes)
    }

    /// The number of the line in which a record begins, from 1 as editors count.
    ///
    /// # Errors
    ///
    /// As [`LineReader::read`]. All of the file before the record is read.
    pub fn line_of(&self, record: u64) -> Result<u64, RecordError> {
        if record >= self.num_records() {
            return Err(self
                .source
                .range_error(record, record + 1, self.num_records()));
        }
        let wanted = record + self.num_headers();
        let mut number = 1;
        let mut from = 0; // what lies before has been counted
        for piece in self.index.pieces(0, wanted + 1) {
            let buffer = self.source.read_range(from.min(piece.start), piece.end)?;
            let before = (piece.start - from.min(piece.start)) as usize;
            let mut end = buffer.len();
            if wanted < piece.end_record {
                let lines = split(&buffer[before..], self.options);
                let line = lines.get((wanted - piece.first_record) as usize);
                end = line.map_or(end, |line| before + line.start);
            }
            number += buffer[..end].iter().filter(|&&byte| byte == b'\n').count() as u64;
            from = piece.end;
        }
        Ok(number)
    }

    fn num_headers(&self) -> u64 {
        u64::from(self.options.skip_header)
    }

    fn read_lines(&self, start: u64, end: u64, max_bytes: usize) -> Result<Batch, RecordError> {
        let mut batch = Batch::default();
        for piece in self.index.pieces(start, end) {
            if !batch.is_empty() && batch.num_bytes() >= max_bytes {
                break;
            }
            let buffer = self.source.read_range(piece.start, piece.end)?;
            let mut lines = split(&buffer, self.options);
            if lines.len() as u64 != piece.end_record - piece.first_record
                || !self.begins_line(&piece)?
            {
                return Err(self.source.wrong_index(
                    piece.start,
                    "the lines have changed since they were counted",
                ));
            }
            lines.truncate((end - piece.first_record) as usize);
            let skipped = start.saturating_sub(piece.first_record) as usize;
            lines.drain(..skipped.min(lines.len()));
            batch.push(Arc::new(buffer), lines);
        }
        Ok(batch)
    }
}

impl LineReader {
    /// Whether no line that is a record is cut, or left out, where a piece begins.
    fn begins_line(&self, piece: &Piece) -> Result<bool, RecordError> {
        let from = match piece.first_record {
            0 => 0,
            _ => piece.start.saturating_sub(1),
        };
        let before = self.source.read_range(from, piece.start)?;
        if piece.first_record > 0 {
            return Ok(before == b"\n");
        }
        let before = before.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(&before);
        Ok(split(before, self.options).is_empty())
    }
}

/// Finds where lines end, over a file read in parts.
#[derive(Clone, Copy, Debug, Default)]
struct Scanner {
    in_quotes: bool,
    handles_quotes: bool,
}

impl Scanner {
    /// Returns the position behind the next line feed that ends a line.
    fn line_end(&mut self, bytes: &[u8]) -> Option<usize> {
        if !self.handles_quotes {
            return find(bytes, b'\n').map(|position| position + 1);
        }
        for (position, &byte) in bytes.iter().enumerate() {
            match byte {
                b'"' => self.in_quotes = !self.in_quotes, // an escaped quote, "", turns twice
                b'\n' if !self.in_quotes => return Some(position + 1),
                _ => {}
            }
        }
        None
    }
}

/// The first position of `byte`, looking at 16 at a time, which the compiler turns into SIMD.
fn find(bytes: &[u8], byte: u8) -> Option<usize> {
    let (chunks, rest) = bytes.as_chunks::<16>();
    for (number, chunk) in chunks.iter().enumerate() {
        let hits = chunk.iter().fold(false, |hit, &b| hit | (b == byte));
        if hits {
            let position = chunk.iter().position(|&b| b == byte)?;
            return Some(16 * number + position);
        }
    }
    let position = rest.iter().position(|&b| b == byte)?;
    Some(16 * chunks.len() + position)
}

/// The line without its end.
fn content(bytes: &[u8], line: Range<usize>) -> Range<usize> {
    let mut end = line.end;
    if bytes[line.start..end].ends_with(b"\n") {
        end -= 1;
        if bytes[line.start..end].ends_with(b"\r") {
            end -= 1;
        }
    }
    line.start..end
}

/// The records of a piece of a file that begins and ends with lines.
fn split(bytes: &[u8], options: LineOptions) -> Vec<Range<usize>> {
    let mut scanner = Scanner {
        handles_quotes: options.quoted_newlines,
        ..Scanner::default()
    };
    let mut lines = Vec::new();
    let mut start = 0;
    while start < bytes.len() {
        let rest = &bytes[start..];
        let end = start + scanner.line_end(rest).unwrap_or(rest.len());
        let line = content(bytes, start..end);
        if !(options.skip_blank && line.is_empty()) {
            lines.push(line);
        }
        start = end;
    }
    lines
}

fn build_index(source: &Source, options: LineOptions) -> Result<SideIndex, RecordError> {
    let mut index = SideIndex::new();
    let mut window = Window::new(source);
    let mut scanner = Scanner {
        handles_quotes: options.quoted_newlines,
        ..Scanner::default()
    };
    let mark = window
        .at(0, BYTE_ORDER_MARK.len())?
        .starts_with(&BYTE_ORDER_MARK);
    let mut line = if mark {
        BYTE_ORDER_MARK.len() as u64
    } else {
        0
    };
    let mut at = line; // how far the present line has been looked at
    let mut first_byte = 0; // of the present line
    while at < source.len() {
        let bytes = window.at(at, 1)?;
        if at == line {
            first_byte = bytes[0];
        }
        let (looked_at, ended) = match scanner.line_end(bytes) {
            Some(end) => (end, true),
            None => (bytes.len(), false),
        };
        at += looked_at as u64;
        if ended || at == source.len() {
            let is_blank = ended && (at - line == 1 || (at - line == 2 && first_byte == b'\r'));
            if !(options.skip_blank && is_blank) {
                index.add(line);
            }
            if scanner.in_quotes {
                return Err(source.damaged(line, "a quote is opened here and never closed"));
            }
            line = at;
        }
    }
    index.end = source.len();
    Ok(index)
}
