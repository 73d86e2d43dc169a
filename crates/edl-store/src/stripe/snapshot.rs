//! The rows of a stripe as they are at one instant, read out while updates go on.

use super::Stripe;
use crate::error::StoreError;
use crate::features::Features;
use crate::index::{Entry, GROUP};
use crate::route::unhash;

/// A row as it was at the instant of a snapshot.
#[derive(Default)]
pub(crate) struct SavedRows {
    pub(crate) keys: Vec<u64>,
    pub(crate) versions: Vec<u64>,
    /// The numbers that features keep for them, row by row.
    pub(crate) words: Vec<u64>,
    /// Weights and slots, without padding.
    pub(crate) rows: Vec<f32>,
}

impl SavedRows {
    /// Append other rows, which are gone there; memory is kept in both.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.keys.append(&mut other.keys);
        self.versions.append(&mut other.versions);
        self.words.append(&mut other.words);
        self.rows.append(&mut other.rows);
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Forget all rows, and keep the memory.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.versions.clear();
        self.words.clear();
        self.rows.clear();
    }

    pub(super) fn push(
        &mut self,
        (hash, row, version): (u64, u32, u64),
        features: &Features,
        values: &[f32],
    ) {
        self.keys.push(unhash(hash));
        self.versions.push(version);
        features.words_of(row, &mut self.words);
        self.rows.extend_from_slice(values);
    }
}

/// The rows of an earlier checkpoint. A row is not in it if its number is `rows` or more, or if its
/// version is later.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since {
    pub(crate) version: u64,
    pub(crate) rows: u32,
}

/// A snapshot that is being copied out.
///
/// Every row below `rows` is written exactly once, as it was at `version`. The reader, which walks
/// in the order of the hash, writes it. If an update comes before the reader, the row comes from
/// `saved`. A row's own version tells whether the row has changed since.
pub(super) struct Snapshot {
    version: u64,
    /// Rows that existed.
    rows: u32,
    /// Only what has changed since is wanted, if given.
    since: Option<Since>,
    /// The hashes of what may be wanted, in their order, if they are known.
    listed: Option<Vec<u64>>,
    /// The reader has passed all hashes below.
    cursor: u64,
    /// The rows that the reader has found in the file of cold rows, one bit for each. The reader
    /// goes through the file in the order of the disk before it goes by hashes.
    pub(super) found: Vec<u64>,
    /// The part of that file that it reads next; none if it does not, or has come to the end.
    pub(super) part: Option<usize>,
    pub(super) saved: SavedRows,
}

impl Snapshot {
    /// Whether a row that is about to change must be saved first.
    #[inline(always)]
    pub(super) fn wants(&self, hash: u64, row: u32, version: u64) -> bool {
        let has_changed = match self.since {
            None => true,
            Some(since) => version > since.version || row >= since.rows,
        };
        row < self.rows
            && version <= self.version
            && hash >= self.cursor
            && has_changed
            && !self.has_found(row)
    }

    fn has_found(&self, row: u32) -> bool {
        let bits = self.found.get(row as usize / 64);
        bits.is_some_and(|bits| bits >> (row % 64) & 1 == 1)
    }
}

impl Stripe {
    /// Keep the rows of a group that a snapshot still wants, before they change.
    #[cold]
    pub(super) fn save(&mut self, hashes: &[u64], rows: &[u32], versions: &[u64], width: usize) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let mut wanted = [0_u16; GROUP];
        let mut len = 0;
        for (i, ((&hash, &row), &version)) in hashes.iter().zip(rows).zip(versions).enumerate() {
            wanted[len] = i as u16;
            len += usize::from(snapshot.wants(hash, row, version));
        }
        let wanted = wanted[..len].iter().map(|&i| usize::from(i));
        let saved = &mut snapshot.saved;
        saved.keys.extend(wanted.clone().map(|i| unhash(hashes[i])));
        saved.versions.extend(wanted.clone().map(|i| versions[i]));
        for i in wanted.clone() {
            self.features.words_of(rows[i], &mut saved.words);
        }
        let place = |row| self.cold.as_ref().map_or(row, |cold| cold.place_of(row));
        let arena = self.arena.view();
        arena.each(wanted.map(|i| place(rows[i])), width, |_, row| {
            saved.rows.extend_from_slice(row.unwrap_or_default());
        });
    }

    /// Begin a snapshot of this instant, of all rows or of those that have changed; return the
    /// number of all.
    pub(crate) fn begin_snapshot(&mut self, version: u64, since: Option<Since>) -> usize {
        let parts = self.features.iter_mut();
        parts.for_each(|part| part.snapshot_begun(version));
        self.snapshot_version = Some(version);
        let rows = self.num_rows();
        // Most changed rows are in memory.
        let by_file = self.cold.is_some() && since.is_none();
        self.snapshot = Some(Snapshot {
            version,
            rows,
            since,
            listed: None,
            cursor: 0,
            found: vec![
                0;
                if by_file {
                    (rows as usize).div_ceil(64)
                } else {
                    0
                }
            ],
            part: by_file.then_some(0),
            saved: SavedRows::default(),
        });
        self.len()
    }

    /// Say which rows may be wanted, if that is known: their hashes in order.
    pub(crate) fn list_snapshot(&mut self, listed: Option<Vec<u64>>) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.listed = listed;
        }
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = None;
        self.features
            .iter_mut()
            .for_each(|part| part.snapshot_ended());
    }

    /// Return how many rows are copied for the snapshot.
    pub(crate) fn num_saved(&self) -> usize {
        let snapshot = self.snapshot.as_ref();
        snapshot.map_or(0, |snapshot| snapshot.saved.len())
    }

    /// Move the rows that were copied to `out`, which is best empty.
    pub(crate) fn take_saved(&mut self, out: &mut SavedRows) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        // The memory changes hands with the rows, so that none is asked of the system.
        if out.len() == 0 {
            std::mem::swap(&mut snapshot.saved, out);
        } else {
            out.append(&mut snapshot.saved);
        }
    }

    /// Append some more rows of the snapshot to `out`, about `max` beside those copied; return
    /// whether there are more.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn read_snapshot(
        &mut self,
        max: usize,
        width: usize,
        out: &mut SavedRows,
    ) -> Result<bool, StoreError> {
        self.take_saved(out);
        if self.read_part(out)? {
            return Ok(true);
        }
        let Some(snapshot) = &mut self.snapshot else {
            return Ok(false);
        };
        let (mut entries, next) = match &snapshot.listed {
            None => self.index.walk(snapshot.cursor, max),
            Some(listed) => self.index.pick(listed, snapshot.cursor, max),
        };
        entries.retain(|e| snapshot.wants(e.hash, e.row(), e.version()));
        out.keys.extend(entries.iter().map(|e| unhash(e.hash)));
        out.versions.extend(entries.iter().map(Entry::version));
        for entry in &entries {
            self.features.words_of(entry.row(), &mut out.words);
        }
        match next {
            Some(next) => snapshot.cursor = next,
            None => self.snapshot = None,
        }
        self.copy_rows(&entries, width, &mut out.rows)?;
        Ok(next.is_some())
    }
}
