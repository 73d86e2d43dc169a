//! One shard of a table: an index and its rows, under one lock.

use edl_optim::{Optimizer, Row, Rows, Step};

use crate::arena::{Arena, ViewMut, prefetch_row};
use crate::index::{ENTRY_BYTES, GROUP, HashRange, Index, NO_ROW};
use crate::initial::Generator;
use crate::life::Gate;
use crate::route::unhash;

mod life;

pub(crate) use life::Admitted;

/// A row's layout: weights, then each optimizer slot, all of length `dim`.
#[derive(Debug, Clone)]
pub(crate) struct RowSpec {
    /// Floats of the weights.
    pub(crate) dim: usize,
    /// Floats of weights and slots.
    pub(crate) width: usize,
    pub(crate) optimizer: Optimizer,
    pub(crate) generator: Generator,
}

/// The keys of a batch that fall into one shard.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    /// Their hashes.
    pub(crate) hashes: &'a [u64],
    /// Where each stands in the batch.
    pub(crate) positions: &'a [u32],
}

impl<'a> Keys<'a> {
    /// Return the hashes and positions of a group; of none, beyond the last.
    #[inline(always)]
    fn group(&self, group: usize) -> (&'a [u64], &'a [u32]) {
        let first = (group * GROUP).min(self.hashes.len());
        let end = (first + GROUP).min(self.hashes.len());
        (&self.hashes[first..end], &self.positions[first..end])
    }
}

/// A row as it was at the instant of a snapshot.
pub(crate) struct SavedRows {
    pub(crate) keys: Vec<u64>,
    pub(crate) versions: Vec<u64>,
    /// Weights and slots, without padding.
    pub(crate) rows: Vec<f32>,
}

impl SavedRows {
    /// Append other rows.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.keys.append(&mut other.keys);
        self.versions.append(&mut other.versions);
        self.rows.append(&mut other.rows);
    }

    pub(crate) fn empty() -> Self {
        Self {
            keys: Vec::new(),
            versions: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn push(&mut self, hash: u64, version: u64, row: &[f32]) {
        self.keys.push(unhash(hash));
        self.versions.push(version);
        self.rows.extend_from_slice(row);
    }
}

/// What is of an earlier checkpoint already: a row is not that is numbered from `rows` on, or has
/// a later version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since {
    pub(crate) version: u64,
    pub(crate) rows: u32,
}

/// A snapshot that is being copied out.
///
/// Every row below `rows` is written exactly once as it was at `version`: by the reader that
/// walks in the order of the hash, or, where an update comes before the reader, from `saved`. A
/// row's own version tells whether it has changed since.
struct Snapshot {
    version: u64,
    /// Rows that existed.
    rows: u32,
    /// Only what has changed since is wanted, if given.
    since: Option<Since>,
    /// The reader has passed all hashes below.
    cursor: u64,
    saved: SavedRows,
}

impl Snapshot {
    /// Whether a row that is about to change must be saved first.
    #[inline(always)]
    fn wants(&self, hash: u64, row: u32, version: u64) -> bool {
        let has_changed = match self.since {
            None => true,
            Some(since) => version > since.version || row >= since.rows,
        };
        row < self.rows && version <= self.version && hash >= self.cursor && has_changed
    }
}

pub(crate) struct Shard {
    index: Index,
    arena: Arena,
    /// Rows of the arena whose keys have gone.
    free: Vec<u32>,
    /// Who gets a row; everybody without one.
    gate: Option<Gate>,
    snapshot: Option<Snapshot>,
}

/// The rows of a group of keys and their gradients.
struct Group<'a> {
    arena: ViewMut<'a>,
    rows: &'a [u32],
    /// Where each gradient stands in `grads`.
    positions: &'a [u32],
    grads: &'a [f32],
    dim: usize,
    width: usize,
}

impl Rows for Group<'_> {
    #[inline(always)]
    fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline(always)]
    fn row(&mut self, i: usize) -> Row<'_> {
        let at = self.positions[i] as usize * self.dim;
        let row = self.arena.row_mut(self.rows[i], self.width);
        let (weights, slots) = row.split_at_mut(self.dim);
        Row {
            weights,
            slots,
            gradient: &self.grads[at..at + self.dim],
        }
    }
}

impl Shard {
    /// Make an empty shard. Those whose `phase`, from 0 to 1, differs take memory at different
    /// numbers of rows: if all did at once, the batch that comes then would wait for all.
    pub(crate) fn new(range: HashRange, width: usize, phase: f64, gate: Option<Gate>) -> Self {
        Self {
            index: Index::new(range, phase),
            arena: Arena::new(width, phase),
            free: Vec::new(),
            gate,
            snapshot: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.arena.len() as usize - self.free.len()
    }

    /// Return the bytes that one more row takes at most.
    pub(crate) fn new_row_bytes(&self) -> usize {
        self.arena.row_bytes() + ENTRY_BYTES
    }

    /// Count the keys without a row.
    pub(crate) fn count_missing(&self, keys: Keys<'_>) -> usize {
        let index = self.index.view();
        let mut rows = [NO_ROW; GROUP];
        let mut missing = 0;
        for hashes in keys.hashes.chunks(GROUP) {
            index.prefetch(hashes);
            index.find(hashes, &mut rows);
            let found = &rows[..hashes.len()];
            missing += found.iter().filter(|&&row| row == NO_ROW).count();
        }
        missing
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.arena.used_bytes() + self.free.capacity() * size_of::<u32>()
    }

    /// Copy the weights of `keys` to their places in `out`; those without a row are appended to
    /// `missing`, as numbers within `keys`.
    pub(crate) fn pull(&self, keys: Keys<'_>, dim: usize, out: &mut [f32], missing: &mut Vec<u32>) {
        match dim {
            1 => self.pull_rows::<1>(keys, dim, out, missing),
            8 => self.pull_rows::<8>(keys, dim, out, missing),
            16 => self.pull_rows::<16>(keys, dim, out, missing),
            32 => self.pull_rows::<32>(keys, dim, out, missing),
            64 => self.pull_rows::<64>(keys, dim, out, missing),
            _ => self.pull_rows::<0>(keys, dim, out, missing),
        }
    }

    /// Ask for the index lines of the first keys of a batch, which nothing else asks for in time.
    #[inline(always)]
    pub(crate) fn prefetch(&self, keys: Keys<'_>) {
        let first = &keys.hashes[..keys.hashes.len().min(GROUP)];
        self.index.view().prefetch(first);
    }

    /// `DIM` is `dim` where the compiler shall know it, else 0. The index lines of the first group
    /// have been asked for.
    fn pull_rows<const DIM: usize>(
        &self,
        keys: Keys<'_>,
        dim: usize,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        let dim = if DIM == 0 { dim } else { DIM };
        let (index, arena) = (self.index.view(), self.arena.view());
        let mut rows = [NO_ROW; GROUP];
        let mut weights: [[&[f32]; GROUP]; 2] = [[&[]; GROUP]; 2];
        let num_groups = keys.hashes.len().div_ceil(GROUP);
        // A group's rows are copied while those of the next one are on their way.
        for group in 0..=num_groups {
            if group < num_groups {
                let (hashes, positions) = keys.group(group);
                let weights = &mut weights[group % 2];
                index.prefetch(keys.group(group + 1).0);
                index.find(hashes, &mut rows);
                for (weights, &row) in weights.iter_mut().zip(&rows[..hashes.len()]) {
                    *weights = if row == NO_ROW {
                        &[]
                    } else {
                        arena.row(row, dim)
                    };
                }
                for weights in &weights[..hashes.len()] {
                    prefetch_row(weights);
                }
                for &position in positions {
                    prefetch_row(&out[position as usize * dim..][..dim]);
                }
            }
            if group > 0 {
                let first = (group - 1) * GROUP;
                let weights = &weights[(group - 1) % 2];
                for (i, &position) in keys.group(group - 1).1.iter().enumerate() {
                    if weights[i].is_empty() {
                        missing.push((first + i) as u32);
                        continue;
                    }
                    let at = position as usize * dim;
                    out[at..at + dim].copy_from_slice(&weights[i][..dim]);
                }
            }
        }
    }

    /// Return the weights of a key, creating the row at `version` if need be.
    pub(crate) fn weights(&mut self, hash: u64, spec: &RowSpec, version: u64) -> &[f32] {
        let row = self.find_or_create(hash, spec, version);
        self.arena.row_mut(row, spec.dim)
    }

    fn find_or_create(&mut self, hash: u64, spec: &RowSpec, version: u64) -> u32 {
        match self.index.find(hash) {
            Some(row) => row,
            None => self.create(hash, spec, version),
        }
    }

    fn create(&mut self, hash: u64, spec: &RowSpec, version: u64) -> u32 {
        let row = self.take_row();
        let (weights, slots) = self.arena.row_mut(row, spec.width).split_at_mut(spec.dim);
        spec.generator.fill(unhash(hash), weights);
        spec.optimizer.fill_slots(slots);
        self.index.insert(hash, row, version);
        row
    }

    /// Update the rows of `keys` by their gradients in `grads`; missing rows are created first.
    pub(crate) fn push(
        &mut self,
        keys: Keys<'_>,
        grads: &[f32],
        spec: &RowSpec,
        step: &Step,
        version: u64,
    ) {
        let RowSpec { dim, width, .. } = *spec;
        let mut rows = [[NO_ROW; GROUP]; 2];
        let mut versions = [0; GROUP];
        let num_groups = keys.hashes.len().div_ceil(GROUP);
        // A group's rows are updated while those of the next one are on their way.
        for group in 0..=num_groups {
            if group < num_groups {
                let (hashes, positions) = keys.group(group);
                let rows = &mut rows[group % 2];
                let mut index = self.index.view_mut();
                index.prefetch(keys.group(group + 1).0);
                index.touch(hashes, version, rows, &mut versions);
                for (i, &hash) in hashes.iter().enumerate() {
                    if rows[i] == NO_ROW {
                        // A key that comes twice was created the first time.
                        rows[i] = self.find_or_create(hash, spec, version);
                        versions[i] = version;
                    }
                }
                let rows = &rows[..hashes.len()];
                self.prefetch_rows(rows, width);
                for &position in positions {
                    prefetch_row(&grads[position as usize * dim..][..dim]);
                }
                if self.snapshot.is_some() {
                    self.save(hashes, rows, &versions, width);
                }
            }
            if group > 0 {
                let (_, positions) = keys.group(group - 1);
                step.update_rows(&mut Group {
                    arena: self.arena.view_mut(),
                    rows: &rows[(group - 1) % 2][..positions.len()],
                    positions,
                    grads,
                    dim,
                    width,
                });
            }
        }
    }

    #[inline(always)]
    fn prefetch_rows(&self, rows: &[u32], width: usize) {
        let arena = self.arena.view();
        let mut slices: [&[f32]; GROUP] = [&[]; GROUP];
        for (slice, &row) in slices.iter_mut().zip(rows) {
            *slice = arena.row(row, width);
        }
        for slice in &slices[..rows.len()] {
            prefetch_row(slice);
        }
    }

    /// Keep the rows of a group that a snapshot still wants, before they change.
    #[cold]
    fn save(&mut self, hashes: &[u64], rows: &[u32], versions: &[u64], width: usize) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let arena = self.arena.view();
        for ((&hash, &row), &version) in hashes.iter().zip(rows).zip(versions) {
            if snapshot.wants(hash, row, version) {
                snapshot.saved.push(hash, version, arena.row(row, width));
            }
        }
    }

    /// Make room for `additional` keys.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.index.reserve(additional);
    }

    /// Put back a row as a checkpoint has it; false if the key is there already.
    pub(crate) fn restore(&mut self, hash: u64, version: u64, row: &[f32]) -> bool {
        if self.index.find(hash).is_some() {
            return false;
        }
        let number = self.arena.push();
        self.arena.row_mut(number, row.len()).copy_from_slice(row);
        self.index.insert(hash, number, version);
        true
    }

    /// Append up to `max` keys and weights from the hash `from` on, in the order of the hash;
    /// return the hash to go on from.
    pub(crate) fn scan(
        &self,
        from: u64,
        max: usize,
        dim: usize,
        keys: &mut Vec<u64>,
        rows: &mut Vec<f32>,
    ) -> Option<u64> {
        let (entries, next) = self.index.walk(from, max);
        let arena = self.arena.view();
        for group in entries.chunks(GROUP) {
            for entry in group {
                prefetch_row(arena.row(entry.row(), dim));
            }
            for entry in group {
                keys.push(unhash(entry.hash));
                rows.extend_from_slice(arena.row(entry.row(), dim));
            }
        }
        next
    }

    /// Begin a snapshot of this instant, of all rows or of those that have changed; return the
    /// number of all.
    pub(crate) fn begin_snapshot(&mut self, version: u64, since: Option<Since>) -> usize {
        self.begin_gate_snapshot(version);
        self.snapshot = Some(Snapshot {
            version,
            rows: self.arena.len(),
            since,
            cursor: 0,
            saved: SavedRows::empty(),
        });
        self.len()
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = None;
        self.end_gate_snapshot();
    }

    /// Return some more rows of the snapshot, about `max`; `None` when all have been returned.
    pub(crate) fn read_snapshot(&mut self, max: usize, width: usize) -> Option<SavedRows> {
        let snapshot = self.snapshot.as_mut()?;
        let mut out = std::mem::replace(&mut snapshot.saved, SavedRows::empty());
        let (entries, next) = self.index.walk(snapshot.cursor, max);
        let arena = self.arena.view();
        for group in entries.chunks(GROUP) {
            for entry in group {
                prefetch_row(arena.row(entry.row(), width));
            }
            for entry in group {
                let version = entry.version();
                if snapshot.wants(entry.hash, entry.row(), version) {
                    out.push(entry.hash, version, arena.row(entry.row(), width));
                }
            }
        }
        match next {
            Some(next) => snapshot.cursor = next,
            None => self.snapshot = None,
        }
        Some(out)
    }
}
