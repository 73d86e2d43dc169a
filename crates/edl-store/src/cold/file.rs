//! A stripe's part of a file of rows.
//!
//! Records are written one after the other, so the disk writes in order, whatever the order of the
//! rows' use. A part of the file is used again when it has no valid record. When more than half of
//! the written records are not valid, the parts with the fewest valid records are emptied.

use std::os::unix::fs::FileExt;

use bytemuck::{Pod, Zeroable};

use super::DiskFile;
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;

/// Bytes of a part, unless one record has more.
const PART_BYTES: usize = if cfg!(test) { 1 << 10 } else { 256 << 10 };

/// Parts of a stripe that are not counted as waste: the one that is being written, and some.
const SPARE_PARTS: usize = 4;

/// The header of a record before its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordHead {
    /// Of the key.
    pub(crate) hash: u64,
    /// The version of the row's last update.
    pub(crate) version: u64,
    /// The row's number.
    pub(crate) row: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StoredHead {
    hash: u64,
    version: u64,
    row: u32,
    /// The checksum of the header before it, and of the row.
    checksum: u32,
}

const HEAD_BYTES: usize = size_of::<StoredHead>();
const SUMMED_BYTES: usize = HEAD_BYTES - size_of::<u32>();

/// The owner of the records, which knows the valid ones.
pub(super) trait Records {
    fn is_live(&self, record: u32, row: u32) -> bool;

    /// The record of a row has become another one.
    fn moved(&mut self, row: u32, record: u32);
}

/// The records of one stripe: every `NUM_STRIPES`th part of the file.
pub(crate) struct ColdFile {
    file: DiskFile,
    stripe: usize,
    /// Floats of a row.
    width: usize,
    /// Records in a part.
    per_part: usize,
    /// Records of use in each part.
    live: Vec<u32>,
    num_live: usize,
    /// Parts without any.
    free: Vec<u32>,
    /// The part that is being written, and how many records it has.
    open: Option<(u32, usize)>,
    num_written: u64,
}

impl ColdFile {
    pub(crate) fn new(file: DiskFile, stripe: usize, width: usize) -> Self {
        let record_bytes = HEAD_BYTES + width * size_of::<f32>();
        Self {
            file,
            stripe,
            width,
            per_part: (PART_BYTES / record_bytes).max(1),
            live: Vec::new(),
            num_live: 0,
            free: Vec::new(),
            open: None,
            num_written: 0,
        }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    fn record_bytes(&self) -> usize {
        HEAD_BYTES + self.width * size_of::<f32>()
    }

    /// Return the bytes that parts take.
    pub(super) fn bytes(&self) -> u64 {
        (self.live.len() * self.part_bytes()) as u64
    }

    fn part_bytes(&self) -> usize {
        (self.per_part * self.record_bytes()).max(PART_BYTES)
    }

    pub(super) fn num_written(&self) -> u64 {
        self.num_written
    }

    fn offset(&self, record: u32) -> u64 {
        let (part, within) = (
            record as usize / self.per_part,
            record as usize % self.per_part,
        );
        let part = (part * NUM_STRIPES + self.stripe) * self.part_bytes();
        (part + within * self.record_bytes()) as u64
    }

    /// Write rows, and return their records.
    ///
    /// # Errors
    /// The disk takes no more; no record is of use that was not before.
    pub(super) fn append<'a>(
        &mut self,
        rows: impl Iterator<Item = (RecordHead, &'a [f32])>,
        buffer: &mut Vec<u8>,
    ) -> Result<Vec<u32>, StoreError> {
        buffer.clear();
        for (head, values) in rows {
            put(buffer, head, values);
        }
        let record_bytes = self.record_bytes();
        let (mut rest, mut records) = (&buffer[..], Vec::new());
        while !rest.is_empty() {
            let (part, filled) = self.open_part();
            let room = (self.per_part - filled) * record_bytes;
            let (piece, others) = rest.split_at(room.min(rest.len()));
            let first = part * self.per_part as u32 + filled as u32;
            let written = self.file.file.write_all_at(piece, self.offset(first));
            if let Err(error) = written {
                records.iter().for_each(|&record| self.release(record));
                return Err(self.file.full(&error));
            }
            let count = piece.len() / record_bytes;
            self.open = Some((part, filled + count));
            self.live[part as usize] += count as u32;
            self.num_live += count;
            records.extend(first..first + count as u32);
            rest = others;
        }
        self.num_written += records.len() as u64;
        Ok(records)
    }

    /// Return the part to write to, and how many records it has.
    fn open_part(&mut self) -> (u32, usize) {
        if let Some((part, filled)) = self.open {
            if filled < self.per_part {
                return (part, filled);
            }
            if self.live[part as usize] == 0 {
                self.free.push(part);
            }
        }
        let part = self.free.pop().unwrap_or_else(|| {
            self.live.push(0);
            self.live.len() as u32 - 1
        });
        self.open = Some((part, 0));
        (part, 0)
    }

    /// Read the record of a row.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub(super) fn read(
        &self,
        record: u32,
        row: u32,
        out: &mut [f32],
    ) -> Result<RecordHead, StoreError> {
        READ.with_borrow_mut(|bytes| {
            bytes.resize(self.record_bytes(), 0);
            let read = self.file.file.read_exact_at(bytes, self.offset(record));
            read.map_err(|error| self.file.lost(&error))?;
            let head = self.take(bytes, out)?;
            if head.row == row {
                return Ok(head);
            }
            let said = format!("row {} was read for row {row}", head.row);
            Err(self.file.lost(&said))
        })
    }

    /// Take a record apart, if it is what was written.
    fn take(&self, bytes: &[u8], out: &mut [f32]) -> Result<RecordHead, StoreError> {
        let (of_head, values) = bytes.split_at(HEAD_BYTES);
        let head: StoredHead = bytemuck::pod_read_unaligned(of_head);
        if checksum(&of_head[..SUMMED_BYTES], values) != head.checksum {
            let said = "what is read is not what was written: its checksum is another one";
            return Err(self.file.lost(&said));
        }
        bytemuck::cast_slice_mut(out).copy_from_slice(values);
        Ok(RecordHead {
            hash: head.hash,
            version: head.version,
            row: head.row,
        })
    }

    /// A record is of no use any more.
    pub(super) fn release(&mut self, record: u32) {
        let part = record / self.per_part as u32;
        let live = &mut self.live[part as usize];
        *live -= 1;
        self.num_live -= 1;
        let is_open = self.open.is_some_and(|(open, _)| open == part);
        if *live == 0 && !is_open {
            self.free.push(part);
        }
    }

    /// Visit the records in a part for which `is_wanted` a record and its row; return false if there
    /// is no such part.
    ///
    /// # Errors
    /// It cannot be read, or is not what was written.
    pub(super) fn visit(
        &self,
        part: usize,
        is_wanted: impl Fn(u32, u32) -> bool,
        mut visit: impl FnMut(RecordHead, &[f32]),
    ) -> Result<bool, StoreError> {
        if part >= self.live.len() {
            return Ok(false);
        }
        if self.live[part] == 0 {
            return Ok(true);
        }
        let filled = match self.open {
            Some((open, filled)) if open as usize == part => filled,
            _ => self.per_part,
        };
        let record_bytes = self.record_bytes();
        let first = (part * self.per_part) as u32;
        let mut bytes = vec![0; filled * record_bytes];
        let read = self.file.file.read_exact_at(&mut bytes, self.offset(first));
        read.map_err(|error| self.file.lost(&error))?;
        let mut values = vec![0.0; self.width];
        for (record, bytes) in (first..).zip(bytes.chunks_exact(record_bytes)) {
            let head: StoredHead = bytemuck::pod_read_unaligned(&bytes[..HEAD_BYTES]);
            // A row's number that is not what was written shows below, or is that of no row here.
            if is_wanted(record, head.row) {
                let head = self.take(bytes, &mut values)?;
                visit(head, &values);
            }
        }
        Ok(true)
    }

    /// Empty parts that have little of use while more than half of all is of no use.
    ///
    /// # Errors
    /// As those of `append` and `visit`.
    pub(super) fn clean(&mut self, records: &mut impl Records) -> Result<(), StoreError> {
        loop {
            let used = (self.live.len() - self.free.len()).saturating_sub(SPARE_PARTS);
            if used * self.per_part <= 2 * self.num_live {
                return Ok(());
            }
            let open = self.open.map(|(part, _)| part as usize);
            let parts = self.live.iter().enumerate();
            let emptiest = parts
                .filter(|&(part, &live)| live > 0 && Some(part) != open)
                .min_by_key(|&(_, &live)| live);
            let Some((part, _)) = emptiest else {
                return Ok(());
            };
            self.empty(part, records)?;
        }
    }

    fn empty(&mut self, part: usize, records: &mut impl Records) -> Result<(), StoreError> {
        let mut buffer = Vec::new();
        let (mut heads, mut values) = (Vec::new(), Vec::new());
        let is_live = |record, row| records.is_live(record, row);
        let expected = self.live[part] as usize;
        self.visit(part, is_live, |head, row| {
            heads.push(head);
            values.extend_from_slice(row);
        })?;
        if heads.len() != expected {
            let said = format!(
                "{} rows are found where {expected} were written",
                heads.len()
            );
            return Err(self.file.lost(&said));
        }
        let rows = heads.iter().copied().zip(values.chunks_exact(self.width));
        let moved = self.append(rows, &mut buffer)?;
        for (head, record) in heads.iter().zip(moved) {
            records.moved(head.row, record);
        }
        self.num_live -= expected;
        self.live[part] = 0;
        self.free.push(part as u32);
        Ok(())
    }

    /// Replaces the disk by another one.
    #[cfg(test)]
    pub(crate) fn replace(&mut self, file: std::fs::File) {
        self.file.file = std::sync::Arc::new(file);
    }

    #[cfg(test)]
    pub(crate) fn file(&self) -> std::sync::Arc<std::fs::File> {
        self.file.file.clone()
    }
}

thread_local! {
    /// Room for one record.
    static READ: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::default();
}

fn put(buffer: &mut Vec<u8>, head: RecordHead, values: &[f32]) {
    let mut stored = StoredHead {
        hash: head.hash,
        version: head.version,
        row: head.row,
        checksum: 0,
    };
    let values: &[u8] = bytemuck::cast_slice(values);
    stored.checksum = checksum(&bytemuck::bytes_of(&stored)[..SUMMED_BYTES], values);
    buffer.extend_from_slice(bytemuck::bytes_of(&stored));
    buffer.extend_from_slice(values);
}

fn checksum(head: &[u8], values: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), values)
}
