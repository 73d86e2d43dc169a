//! One stripe of a table: an index and its rows, under one lock.

use edl_optim::{AHEAD, Row, Step};

use crate::arena::Arena;
use crate::cold::ColdRows;
use crate::error::StoreError;
use crate::features::{Features, NewRow, Updated};
use crate::index::{ENTRY_BYTES, Entry, GROUP, HashRange, Index, NO_ROW};
use crate::route::unhash;
use crate::row::RowSpec;
use crate::stages::{Stage, Watch};

mod cold;
mod removal;
mod snapshot;
#[cfg(test)]
mod tests;

use snapshot::Snapshot;

pub(crate) use removal::Removed;
pub(crate) use snapshot::{SavedRows, Since};

/// Some rows of a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk {
    /// Their keys.
    pub keys: Vec<u64>,
    /// Their weights, `keys.len() * dim` floats.
    pub rows: Vec<f32>,
    /// The cursor to go on from, or `None` at the end.
    pub next: Option<u64>,
}

/// The keys of a batch that fall into one stripe.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Their hashes.
    pub(crate) hashes: &'a [u64],
    /// The position of each key in the batch.
    pub(crate) positions: &'a [u32],
}

/// A row that comes from a checkpoint or another store.
#[derive(Clone, Copy)]
pub(crate) struct GivenRow<'a> {
    pub(crate) hash: u64,
    pub(crate) version: u64,
    /// The numbers that features keep for it.
    pub(crate) words: &'a [u64],
    /// Weights and slots.
    pub(crate) row: &'a [f32],
}

impl<'a> Keys<'a> {
    /// Return the keys of the longest group.
    pub(crate) fn group_len(&self) -> usize {
        self.hashes.len().min(GROUP)
    }

    /// Return groups of hashes, their positions, and the hashes that come after each group.
    #[inline(always)]
    pub(crate) fn groups(&self) -> impl Iterator<Item = (&'a [u64], &'a [u32], &'a [u64])> {
        let Self { hashes, positions } = *self;
        let groups = hashes.chunks(GROUP).zip(positions.chunks(GROUP));
        groups
            .enumerate()
            .map(move |(group, (of_group, positions))| {
                let end = group * GROUP + of_group.len();
                (of_group, positions, &hashes[end..])
            })
    }
}

pub(crate) struct Stripe {
    index: Index,
    /// Rows by their number; where some are on disk, by the place that `cold` has for it.
    arena: Arena,
    /// Floats of a row.
    width: usize,
    /// The cold rows, if rows may be on disk.
    cold: Option<Box<ColdRows>>,
    /// Rows whose keys have gone.
    free: Vec<u32>,
    snapshot: Option<Snapshot>,
    /// The version of the last snapshot, which a later one may be the difference to.
    snapshot_version: Option<u64>,
    /// What is kept beside the rows.
    pub(crate) features: Features,
}

impl Stripe {
    /// Make an empty stripe. Stripes with different `phase`, from 0 to 1, take memory at different
    /// numbers of rows: if all took it at once, the batch of that moment would wait for all.
    pub(crate) fn new(range: HashRange, width: usize, phase: f64, features: Features) -> Self {
        Self {
            index: Index::new(range, phase),
            arena: Arena::new(width, phase),
            width,
            cold: None,
            free: Vec::new(),
            snapshot: None,
            snapshot_version: None,
            features,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.num_rows() as usize - self.free.len()
    }

    /// Return how many rows have been numbered.
    pub(crate) fn num_rows(&self) -> u32 {
        let cold = self.cold.as_ref();
        cold.map_or_else(|| self.arena.len(), |cold| cold.num_rows())
    }

    /// Return the bytes that one more row takes at most.
    pub(crate) fn new_row_bytes(&self) -> usize {
        // A row that has no room brings another one to disk.
        let row = match self.cold {
            None => self.arena.row_bytes(),
            Some(_) => ColdRows::row_bytes(),
        };
        row + ENTRY_BYTES + self.features.row_bytes()
    }

    /// Count the keys without a row.
    pub(crate) fn count_missing(&self, keys: Keys<'_>) -> usize {
        let index = self.index.view();
        let mut rows = vec![NO_ROW; keys.group_len()];
        let mut missing = 0;
        for (hashes, _, next) in keys.groups() {
            index.find(hashes, next, &mut rows);
            let found = &rows[..hashes.len()];
            missing += found.iter().filter(|&&row| row == NO_ROW).count();
        }
        missing
    }

    pub(crate) fn bytes(&self) -> usize {
        let free = self.free.capacity() * size_of::<u32>();
        let cold = self.cold.as_ref().map_or(0, |cold| cold.bytes());
        self.index.bytes() + self.arena.used_bytes() + cold + free + self.features.bytes()
    }

    /// Copy the weights of `keys` to their places in `out`; those without a row in memory are
    /// appended to `missing`, as numbers within `keys`. `uses`: the others are used.
    pub(crate) fn pull(
        &self,
        keys: Keys<'_>,
        spec: &RowSpec,
        uses: bool,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        match spec.dim {
            1 => self.pull_rows::<1>(keys, spec, uses, out, missing),
            8 => self.pull_rows::<8>(keys, spec, uses, out, missing),
            16 => self.pull_rows::<16>(keys, spec, uses, out, missing),
            32 => self.pull_rows::<32>(keys, spec, uses, out, missing),
            64 => self.pull_rows::<64>(keys, spec, uses, out, missing),
            _ => self.pull_rows::<0>(keys, spec, uses, out, missing),
        }
    }

    /// Ask for the index lines of the first keys of a batch, which nothing else asks for in time.
    #[inline(always)]
    pub(crate) fn prefetch(&self, keys: Keys<'_>) {
        let index = self.index.view();
        for &hash in keys.hashes.iter().take(AHEAD) {
            index.prefetch(hash);
        }
    }

    /// `DIM` is the number of weights where the compiler shall know it, else 0. The index lines of the first keys
    /// have been asked for.
    fn pull_rows<const DIM: usize>(
        &self,
        keys: Keys<'_>,
        spec: &RowSpec,
        uses: bool,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        let dim = if DIM == 0 { spec.dim } else { DIM };
        let (index, arena) = (self.index.view(), self.arena.view());
        let mut rows = vec![NO_ROW; keys.group_len()];
        let mut first = 0;
        let mut watch = Watch::start();
        for (hashes, positions, next) in keys.groups() {
            index.find(hashes, next, &mut rows);
            if let Some(cold) = &self.cold {
                cold.find(&mut rows[..hashes.len()], uses);
            }
            watch.lap(Stage::Index);
            arena.each(
                rows[..hashes.len()].iter().copied(),
                spec.head::<DIM>(),
                |i, head| match head {
                    Some(head) => spec.read::<DIM>(head, &mut out[positions[i] as usize * dim..]),
                    None => missing.push(first + i as u32),
                },
            );
            watch.lap(Stage::Rows);
            first += hashes.len() as u32;
        }
    }

    /// Copy the weights of a key, creating the row at `version` if need be. It is not on disk.
    pub(crate) fn read_or_create(
        &mut self,
        hash: u64,
        spec: &RowSpec,
        version: u64,
        out: &mut [f32],
    ) {
        let row = self.find_or_create(hash, spec, version);
        spec.read::<0>(self.row_mut(row, spec.head::<0>()), out);
    }

    /// Return the first floats of a row that is in memory.
    fn row_mut(&mut self, row: u32, len: usize) -> &mut [f32] {
        let cold = self.cold.as_ref();
        let place = cold.map_or(row, |cold| cold.place_of(row));
        self.arena.row_mut(place, len)
    }

    fn find_or_create(&mut self, hash: u64, spec: &RowSpec, version: u64) -> u32 {
        match self.index.find(hash) {
            Some(row) => row,
            None => self.create(hash, spec, version),
        }
    }

    fn create(&mut self, hash: u64, spec: &RowSpec, version: u64) -> u32 {
        self.add(hash, spec, version, |weights| {
            spec.generator.fill(unhash(hash), weights);
        })
    }

    /// Create a row with given weights, as if they were its initial values; false if the key has
    /// one already.
    pub(crate) fn begin_with(&mut self, hash: u64, spec: &RowSpec, weights: &[f32]) -> bool {
        if self.index.find(hash).is_some() {
            return false;
        }
        self.add(hash, spec, 0, |row| row.copy_from_slice(weights));
        true
    }

    fn add(
        &mut self,
        hash: u64,
        spec: &RowSpec,
        version: u64,
        fill: impl FnOnce(&mut [f32]),
    ) -> u32 {
        let row = self.take_row(hash, version);
        spec.begin(self.row_mut(row, spec.width), fill);
        self.index.insert(hash, row, version);
        self.created(hash, row, &[]);
        row
    }

    fn created(&mut self, hash: u64, row: u32, words: &[u64]) {
        self.features.created(NewRow {
            hash,
            row,
            words,
            num_rows: self.index.len(),
        });
    }

    /// Update the rows of `keys` by their gradients in `grads`; missing rows are created first.
    ///
    /// # Errors
    /// Rows on disk that cannot be read; some of the others have changed.
    pub(crate) fn push(
        &mut self,
        keys: Keys<'_>,
        grads: &[f32],
        spec: &RowSpec,
        step: &Step,
        version: u64,
    ) -> Result<(), StoreError> {
        let RowSpec { dim, width, .. } = *spec;
        let mut rows = vec![NO_ROW; keys.group_len()];
        let mut versions = vec![0; keys.group_len()];
        let mut watch = Watch::start();
        for (hashes, positions, next) in keys.groups() {
            let index = self.index.cells();
            index.touch(hashes, next, version, &mut rows, &mut versions);
            watch.lap(Stage::Index);
            if rows[..hashes.len()].contains(&NO_ROW) {
                self.create_missing(hashes, spec, version, &mut rows, &mut versions);
            }
            let rows = &mut rows[..hashes.len()];
            if let Some(cold) = &mut self.cold {
                cold.bring(rows, &mut self.arena)?;
            }
            if self.snapshot.is_some() {
                self.save(hashes, rows, &versions, width);
            }
            let group = Updated {
                hashes,
                rows,
                version,
                num_rows: self.index.len(),
            };
            self.features
                .iter_mut()
                .for_each(|part| part.updated(group));
            if let Some(cold) = &mut self.cold {
                cold.find(rows, false);
                cold.change(rows);
            }
            match dim {
                1 => self.update::<1>(rows, positions, grads, spec, step),
                8 => self.update::<8>(rows, positions, grads, spec, step),
                16 => self.update::<16>(rows, positions, grads, spec, step),
                32 => self.update::<32>(rows, positions, grads, spec, step),
                64 => self.update::<64>(rows, positions, grads, spec, step),
                _ => self.update::<0>(rows, positions, grads, spec, step),
            }
            watch.lap(Stage::Rows);
        }
        Ok(())
    }

    /// Create the rows that a group of keys lacks.
    #[cold]
    fn create_missing(
        &mut self,
        hashes: &[u64],
        spec: &RowSpec,
        version: u64,
        rows: &mut [u32],
        versions: &mut [u64],
    ) {
        for (i, &hash) in hashes.iter().enumerate() {
            if rows[i] == NO_ROW {
                // A key that comes twice was created the first time.
                rows[i] = self.find_or_create(hash, spec, version);
                versions[i] = version;
            }
        }
    }

    /// Update a group of rows; `positions` says where each gradient stands in `grads`. `DIM` is
    /// `dim` where the compiler shall know it, else 0.
    fn update<const DIM: usize>(
        &mut self,
        rows: &[u32],
        positions: &[u32],
        grads: &[f32],
        spec: &RowSpec,
        step: &Step,
    ) {
        let dim = if DIM == 0 { spec.dim } else { DIM };
        let arena = self.arena.cells();
        let rows = rows.iter().zip(positions).map(|(&row, &position)| Row {
            values: arena.row(row, spec.width),
            gradient: &grads[position as usize * dim..][..dim],
        });
        spec.update::<DIM>(step, &rows.collect::<Vec<_>>());
    }

    /// Make room for `additional` keys.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.index.reserve(additional);
    }

    /// Put back a row as a checkpoint has it; false if the key is there already.
    pub(crate) fn restore(&mut self, given: &GivenRow<'_>) -> bool {
        let GivenRow {
            hash,
            version,
            words,
            row,
        } = *given;
        if self.index.find(hash).is_some() {
            return false;
        }
        let number = match &mut self.cold {
            None => self.arena.push(),
            Some(cold) => cold.add(hash, None, &mut self.arena),
        };
        self.row_mut(number, row.len()).copy_from_slice(row);
        self.index.insert(hash, number, version);
        self.created(hash, number, words);
        true
    }

    /// Have a row as another store has it, unless a later version of it is here.
    pub(crate) fn put(&mut self, given: &GivenRow<'_>) {
        match self.index.get(given.hash) {
            None => {
                self.restore(given);
            }
            Some((number, here)) if here <= given.version => {
                if let Some(cold) = &mut self.cold {
                    cold.forget(number, &mut self.arena);
                    cold.add(given.hash, Some(number), &mut self.arena);
                }
                self.row_mut(number, given.row.len())
                    .copy_from_slice(given.row);
                self.index.set(given.hash, number, given.version);
                self.created(given.hash, number, given.words);
            }
            Some(_) => {}
        }
    }

    pub(crate) fn has_row(&self, hash: u64) -> bool {
        self.index.find(hash).is_some()
    }

    /// Return the first floats of a key's row, which is in memory.
    pub(crate) fn row(&self, hash: u64, len: usize) -> Option<&[f32]> {
        let row = self.index.find(hash)?;
        Some(self.arena.view().row(row, len))
    }

    /// Change the first floats of all rows, which are in memory.
    pub(crate) fn change_rows(&mut self, len: usize, change: impl Fn(&mut [f32])) {
        let (entries, _) = self.index.walk(0, u32::MAX as usize);
        for entry in entries {
            change(self.arena.row_mut(entry.row(), len));
        }
    }

    /// Return the index, and what may be changed while it is looked at.
    pub(crate) fn index_and_features(&mut self) -> (&Index, &mut Features) {
        (&self.index, &mut self.features)
    }

    /// Append the rows among up to `max` entries from the hash `from` on, in the order of the hash:
    /// all, or those updated after `since`. Return the hash to go on from.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan(
        &self,
        from: u64,
        max: usize,
        since: Option<u64>,
        spec: &RowSpec,
        chunk: &mut Chunk,
    ) -> Result<Option<u64>, StoreError> {
        let (mut entries, next) = self.index.walk(from, max);
        entries.retain(|entry| since.is_none_or(|since| entry.version() > since));
        let keys = entries.iter().map(|entry| unhash(entry.hash));
        chunk.keys.extend(keys);
        let mut heads = Vec::new();
        self.copy_rows(&entries, spec.head::<0>(), &mut heads)?;
        chunk.rows.extend_from_slice(&spec.weights(heads.into()));
        Ok(next)
    }

    /// Append the first floats of rows to `out`, wherever they are.
    fn copy_rows(
        &self,
        entries: &[Entry],
        len: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), StoreError> {
        let rows: Vec<u32> = entries.iter().map(Entry::row).collect();
        self.copy_numbered(&rows, len, out)
    }

    fn copy_numbered(
        &self,
        rows: &[u32],
        len: usize,
        out: &mut Vec<f32>,
    ) -> Result<(), StoreError> {
        if let Some(cold) = &self.cold {
            return cold.copy(rows, len, &self.arena, out);
        }
        let arena = self.arena.view();
        arena.each(rows.iter().copied(), len, |_, row| {
            out.extend_from_slice(row.unwrap_or_default());
        });
        Ok(())
    }
}
