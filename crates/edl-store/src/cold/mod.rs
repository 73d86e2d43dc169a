//! Rows that are not in memory, and the choice of the rows that leave memory first.
//!
//! A row keeps its number as long as its key has the row. If a table may move rows to disk, the
//! arena has the rows in memory, in any order. The number of a row leads to its place in the arena,
//! or to a record of a file. The file is a cache of this process: no process reads it again after
//! this process has ended.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::arena::Arena;
use crate::error::StoreError;
use crate::index::NO_ROW;

mod disk;
mod file;

pub use disk::ColdRoom;
use disk::DiskFile;
pub(crate) use disk::{Disk, Hand};
pub(crate) use file::{ColdFile, RecordHead};

/// Marks a row in memory that no record is equal to.
const NO_RECORD: u32 = u32::MAX;

/// Above it, a place is a record.
const RECORD: u32 = 1 << 31;

/// The place of a row that no key has.
const NOWHERE: u32 = u32::MAX;

/// Uses that are counted; each round of the hand takes one away.
const MAX_USES: u8 = 3;

/// A row comes into memory as used once, so that the update which follows finds it there.
const FIRST_USES: u8 = 1;

/// Rows of a stripe that stay in memory whatever the limit is: so many, and one in so many.
const MIN_ROWS: usize = if cfg!(test) { 2 } else { 64 };
const MIN_SHARE: usize = 64;

/// Rows that a look at a stripe takes in: one in so many of those in memory, and so many at least.
const LOOK_SHARE: usize = 256;
const MIN_LOOK: usize = if cfg!(test) { 4 } else { 32 };

/// The places of a stripe's rows, some in memory and some on disk.
pub(crate) struct ColdRows {
    /// For each number of a row: its place in the arena, or `RECORD` and a record.
    places: Vec<u32>,
    /// For each place in the arena: its row, and the hash of the row's key.
    owners: Vec<u32>,
    hashes: Vec<u64>,
    /// For each place in the arena: the record with the same row, if the row has not changed since.
    copies: Vec<u32>,
    /// For each place in the arena: the number of uses, up to `MAX_USES`.
    uses: Vec<AtomicU8>,
    /// The place in the arena that is looked at next.
    hand: usize,
    file: ColdFile,
    fetched: AtomicU64,
}

/// The rows and bytes of a table on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ColdTally {
    /// Rows that are there alone.
    pub(crate) rows: u64,
    /// Bytes of the file.
    pub(crate) bytes: u64,
    /// Rows that were read, since this process began.
    pub(crate) read: u64,
    /// Rows that were written, since this process began.
    pub(crate) written: u64,
}

impl ColdRows {
    pub(crate) fn new(file: ColdFile) -> Self {
        Self {
            places: Vec::new(),
            owners: Vec::new(),
            hashes: Vec::new(),
            copies: Vec::new(),
            uses: Vec::new(),
            hand: 0,
            file,
            fetched: AtomicU64::new(0),
        }
    }

    /// Return how many rows have been numbered.
    pub(crate) fn num_rows(&self) -> u32 {
        self.places.len() as u32
    }

    /// Return the bytes that this takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        let of_place = size_of::<u64>() + 2 * size_of::<u32>() + size_of::<AtomicU8>();
        self.places.capacity() * size_of::<u32>() + self.owners.len() * of_place
    }

    /// Return the bytes that one more row takes that is not in memory.
    pub(crate) fn row_bytes() -> usize {
        2 * size_of::<u32>()
    }

    /// Args: `rows` are on disk alone.
    pub(crate) fn tally(&self, rows: usize) -> ColdTally {
        ColdTally {
            rows: rows as u64,
            bytes: self.file.bytes(),
            read: self.fetched.load(Ordering::Relaxed),
            written: self.file.num_written(),
        }
    }

    /// Number a row for a key, or take the number of one that has gone; it is in memory.
    pub(crate) fn add(&mut self, hash: u64, free: Option<u32>, arena: &mut Arena) -> u32 {
        let row = free.unwrap_or_else(|| {
            self.places.push(NOWHERE);
            self.places.len() as u32 - 1
        });
        self.place(row, hash, NO_RECORD, arena);
        row
    }

    /// Give a row a place in the arena.
    fn place(&mut self, row: u32, hash: u64, copy: u32, arena: &mut Arena) -> u32 {
        let place = arena.push();
        self.places[row as usize] = place;
        self.owners.push(row);
        self.hashes.push(hash);
        self.copies.push(copy);
        self.uses.push(AtomicU8::new(FIRST_USES));
        place
    }

    /// Return the place in the arena of a row that is in memory; `NO_ROW` of another.
    #[inline]
    pub(crate) fn place_of(&self, row: u32) -> u32 {
        match self.places.get(row as usize) {
            Some(&place) if place < RECORD => place,
            _ => NO_ROW,
        }
    }

    /// Replace rows by their places in the arena, `NO_ROW` for those that are not there; `uses`
    /// counts this as a use of each.
    pub(crate) fn find(&self, rows: &mut [u32], uses: bool) {
        for row in rows {
            *row = self.place_of(*row);
            if uses && *row != NO_ROW {
                let count = &self.uses[*row as usize];
                let before = count.load(Ordering::Relaxed);
                if before < MAX_USES {
                    // One of two that come at once may be lost.
                    count.store(before + 1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Read those of some rows that are on disk alone into the arena.
    ///
    /// # Errors
    /// A file that cannot be read; rows are lost then.
    pub(crate) fn bring(&mut self, rows: &[u32], arena: &mut Arena) -> Result<(), StoreError> {
        let records = rows.iter().map(|&row| (self.record_of(row), row));
        let mut wanted: Vec<_> = records.filter(|&(record, _)| record != NO_RECORD).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut values = vec![0.0; self.file.width()];
        for (record, row) in wanted {
            let head = self.read(record, row, &mut values)?;
            let place = self.place(row, head.hash, record, arena);
            arena.row_mut(place, values.len()).copy_from_slice(&values);
        }
        Ok(())
    }

    /// Return the record of a row that is on disk alone.
    fn record_of(&self, row: u32) -> u32 {
        match self.places.get(row as usize) {
            Some(&place) if is_record(place) => place & !RECORD,
            _ => NO_RECORD,
        }
    }

    fn read(&self, record: u32, row: u32, out: &mut [f32]) -> Result<RecordHead, StoreError> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        self.file.read(record, row, out)
    }

    /// Return a row that is on disk alone; it stays there.
    ///
    /// # Errors
    /// A file that cannot be read; rows are lost then.
    pub(crate) fn fetch(&self, row: u32) -> Result<Vec<f32>, StoreError> {
        let mut values = vec![0.0; self.file.width()];
        self.read(self.record_of(row), row, &mut values)?;
        Ok(values)
    }

    /// Append rows to `out`, the first `len` floats of each, wherever they are; they stay there.
    ///
    /// # Errors
    /// A file that cannot be read; rows are lost then.
    pub(crate) fn copy(
        &self,
        rows: &[u32],
        len: usize,
        arena: &Arena,
        out: &mut Vec<f32>,
    ) -> Result<(), StoreError> {
        let first = out.len();
        out.resize(first + rows.len() * len, 0.0);
        let out = &mut out[first..];
        let (view, mut wanted) = (arena.view(), Vec::new());
        for (i, (&row, out)) in rows.iter().zip(out.chunks_exact_mut(len)).enumerate() {
            match self.place_of(row) {
                NO_ROW => wanted.push((self.record_of(row), row, i)),
                place => out.copy_from_slice(view.row(place, len)),
            }
        }
        wanted.sort_unstable();
        let mut whole = vec![0.0; self.file.width()];
        for (record, row, i) in wanted {
            self.read(record, row, &mut whole)?;
            out[i * len..][..len].copy_from_slice(&whole[..len]);
        }
        Ok(())
    }

    /// Note that the rows at some places in the arena are about to change.
    pub(crate) fn change(&mut self, places: &[u32]) {
        for &place in places {
            let copy = std::mem::replace(&mut self.copies[place as usize], NO_RECORD);
            if copy != NO_RECORD {
                self.file.release(copy);
            }
        }
    }

    /// Forget what a row held; no key has it any more.
    pub(crate) fn forget(&mut self, row: u32, arena: &mut Arena) {
        match self.place_of(row) {
            NO_ROW => self.file.release(self.record_of(row)),
            place => {
                self.change(&[place]);
                self.vacate(place, arena);
            }
        }
        self.places[row as usize] = NOWHERE;
    }

    /// Put the last row of the arena in the place of another, which has gone.
    fn vacate(&mut self, place: u32, arena: &mut Arena) {
        let (at, last) = (place as usize, arena.len() - 1);
        if place != last {
            arena.copy_row(last, place, self.file.width());
            self.places[self.owners[last as usize] as usize] = place;
        }
        arena.pop();
        self.owners.swap_remove(at);
        self.hashes.swap_remove(at);
        self.copies.swap_remove(at);
        self.uses.swap_remove(at);
    }

    /// Look at some rows in memory, and bring those to disk that were not used for long; return
    /// how many went, or `None` if there are few left.
    ///
    /// Args: `version_of` a key's row, by its hash. `buffer` is room for records.
    ///
    /// # Errors
    /// A file that takes no more: all rows are where they were. Or one that cannot be read.
    pub(crate) fn evict(
        &mut self,
        arena: &mut Arena,
        version_of: impl Fn(u64) -> u64,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<usize>, StoreError> {
        let num_hot = arena.len() as usize;
        let most = num_hot.saturating_sub(MIN_ROWS.max(self.places.len() / MIN_SHARE));
        if most == 0 {
            return Ok(None);
        }
        let mut victims = self.look((num_hot / LOOK_SHARE).max(MIN_LOOK).min(num_hot), most);
        self.write(&victims, arena, version_of, buffer)?;
        // From the last place on, so that those before stay where they are.
        victims.sort_unstable_by(|a, b| b.cmp(a));
        for &place in &victims {
            let row = self.owners[place as usize] as usize;
            self.places[row] = RECORD | self.copies[place as usize];
            self.vacate(place, arena);
        }
        self.file.clean(&mut Liveness {
            places: &mut self.places,
            copies: &mut self.copies,
        })?;
        Ok(Some(victims.len()))
    }

    /// Move the hand on; return the places, `most` at most, that were not used since it came last.
    fn look(&mut self, count: usize, most: usize) -> Vec<u32> {
        let mut victims = Vec::new();
        for _ in 0..count {
            if victims.len() == most {
                break;
            }
            if self.hand >= self.owners.len() {
                self.hand = 0;
            }
            let uses = self.uses[self.hand].get_mut();
            if *uses == 0 {
                victims.push(self.hand as u32);
            } else {
                *uses -= 1;
            }
            self.hand += 1;
        }
        victims.sort_unstable();
        victims.dedup(); // where the hand came round
        victims
    }

    /// Write the rows at places in the arena that no record has.
    fn write(
        &mut self,
        places: &[u32],
        arena: &Arena,
        version_of: impl Fn(u64) -> u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let changed = |&place: &u32| self.copies[place as usize] == NO_RECORD;
        let changed: Vec<u32> = places.iter().copied().filter(changed).collect();
        let (view, width) = (arena.view(), self.file.width());
        let rows = changed.iter().map(|&place| {
            let hash = self.hashes[place as usize];
            let head = RecordHead {
                hash,
                version: version_of(hash),
                row: self.owners[place as usize],
            };
            (head, view.row(place, width))
        });
        let records = self.file.append(rows, buffer)?;
        for (&place, record) in changed.iter().zip(records) {
            self.copies[place as usize] = record;
        }
        Ok(())
    }

    /// Visit the rows that are on disk alone and lie in a part of the file; return false if the
    /// file has no such part.
    ///
    /// # Errors
    /// A file that cannot be read; rows are lost then.
    pub(crate) fn visit_part(
        &self,
        part: usize,
        mut visit: impl FnMut(RecordHead, &[f32]),
    ) -> Result<bool, StoreError> {
        let is_here = |record, row| self.record_of(row) == record;
        self.file.visit(part, is_here, |head, values| {
            self.fetched.fetch_add(1, Ordering::Relaxed);
            visit(head, values);
        })
    }

    #[cfg(test)]
    pub(crate) fn file_mut(&mut self) -> &mut ColdFile {
        &mut self.file
    }
}

fn is_record(place: u32) -> bool {
    place >= RECORD && place != NOWHERE
}

/// Knows the valid records, and notes their new places.
struct Liveness<'a> {
    places: &'a mut [u32],
    copies: &'a mut [u32],
}

impl file::Records for Liveness<'_> {
    fn is_live(&self, record: u32, row: u32) -> bool {
        match self.places.get(row as usize) {
            Some(&place) if place < RECORD => self.copies[place as usize] == record,
            Some(&place) => place == RECORD | record,
            None => false,
        }
    }

    fn moved(&mut self, row: u32, record: u32) {
        match self.places[row as usize] {
            place if place < RECORD => self.copies[place as usize] = record,
            _ => self.places[row as usize] = RECORD | record,
        }
    }
}
