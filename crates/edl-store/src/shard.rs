//! One shard of a table: an index and its rows, under one lock.

use edl_optim::{Optimizer, Step, prefetch};

use crate::arena::Arena;
use crate::index::{HashRange, Index};
use crate::initial::Generator;
use crate::life::Gate;
use crate::route::unhash;

mod life;

pub(crate) use life::Admitted;

/// Keys that are looked up together: enough for their cache misses to overlap, few enough for
/// their rows to stay in the first-level cache.
const GROUP: usize = 32;

/// No row.
const NONE: (u32, u64) = (u32::MAX, u64::MAX);

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

/// A row as it was at the instant of a snapshot.
pub(crate) struct SavedRows {
    pub(crate) keys: Vec<u64>,
    pub(crate) versions: Vec<u64>,
    /// Weights and slots, without padding.
    pub(crate) rows: Vec<f32>,
}

impl SavedRows {
    fn empty() -> Self {
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

/// A snapshot that is being copied out.
///
/// Every row below `rows` is written exactly once as it was at `version`: by the reader that
/// walks in the order of the hash, or, where an update comes before the reader, from `saved`. A
/// row's own version tells whether it has changed since.
struct Snapshot {
    version: u64,
    /// Rows that existed.
    rows: u32,
    /// The reader has passed all hashes below.
    cursor: u64,
    saved: SavedRows,
}

impl Snapshot {
    /// Whether a row that is about to change must be saved first.
    #[inline(always)]
    fn wants(&self, hash: u64, row: u32, version: u64) -> bool {
        row < self.rows && version <= self.version && hash >= self.cursor
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

impl Shard {
    pub(crate) fn new(range: HashRange, width: usize, gate: Option<Gate>) -> Self {
        Self {
            index: Index::new(range),
            arena: Arena::new(width),
            free: Vec::new(),
            gate,
            snapshot: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.arena.len() as usize - self.free.len()
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

    /// `DIM` is `dim` where the compiler shall know it, else 0.
    fn pull_rows<const DIM: usize>(
        &self,
        keys: Keys<'_>,
        dim: usize,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        let dim = if DIM == 0 { dim } else { DIM };
        let (index, arena) = (self.index.view(), self.arena.view());
        let mut rows = [None; GROUP];
        let look_ahead = |first: usize| {
            let ahead = keys.hashes.iter().skip(first).take(GROUP);
            ahead.for_each(|&hash| index.prefetch(hash));
        };
        look_ahead(0);
        for (group, hashes) in keys.hashes.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            look_ahead(first + GROUP);
            let positions = &keys.positions[first..first + hashes.len()];
            for ((row, &hash), &position) in rows.iter_mut().zip(hashes).zip(positions) {
                *row = index.find(hash);
                prefetch(&out[position as usize * dim]);
                if let Some(row) = *row {
                    arena.prefetch(row, dim);
                }
            }
            for (i, (row, &position)) in rows.iter().zip(positions).enumerate() {
                let Some(row) = *row else {
                    missing.push((first + i) as u32);
                    continue;
                };
                let at = position as usize * dim;
                out[at..at + dim].copy_from_slice(arena.row(row, dim));
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
        let mut rows = [NONE; GROUP];
        let index = self.index.view();
        let ahead = keys.hashes.iter().take(GROUP);
        ahead.for_each(|&hash| index.prefetch(hash));
        for (group, hashes) in keys.hashes.chunks(GROUP).enumerate() {
            let first = group * GROUP;
            let next = keys.hashes.iter().skip(first + hashes.len()).take(GROUP);
            let positions = &keys.positions[first..first + hashes.len()];
            for &position in positions {
                prefetch(&grads[position as usize * dim]);
            }
            if self.touch(hashes, next, &mut rows, width, version) > 0 {
                for (row, &hash) in rows.iter_mut().zip(hashes) {
                    if *row == NONE {
                        *row = (self.find_or_create(hash, spec, version), version);
                    }
                }
            }
            if self.snapshot.is_some() {
                self.save(hashes, &rows, width);
            }
            let mut arena = self.arena.view_mut();
            for (&(row, _), &position) in rows.iter().zip(positions) {
                let at = position as usize * dim;
                let (weights, slots) = arena.row_mut(row, width).split_at_mut(dim);
                step.update(weights, slots, &grads[at..at + dim]);
            }
        }
    }

    /// Set the version of a group of keys, note their rows and versions before, and ask for the
    /// rows' cache lines and for those of the `next` keys. Return how many have no row.
    #[inline(always)]
    fn touch<'k>(
        &mut self,
        hashes: &[u64],
        next: impl Iterator<Item = &'k u64>,
        rows: &mut [(u32, u64); GROUP],
        width: usize,
        version: u64,
    ) -> usize {
        let mut index = self.index.view_mut();
        let arena = self.arena.view();
        next.for_each(|&hash| index.prefetch(hash));
        let mut missing = 0;
        for (row, &hash) in rows.iter_mut().zip(hashes) {
            *row = match index.touch(hash, version) {
                Some(found) => {
                    arena.prefetch(found.0, width);
                    found
                }
                None => {
                    missing += 1;
                    NONE
                }
            };
        }
        missing
    }

    /// Keep the rows of a group that a snapshot still wants, before they change.
    #[cold]
    fn save(&mut self, hashes: &[u64], rows: &[(u32, u64)], width: usize) {
        let Some(snapshot) = &mut self.snapshot else {
            return;
        };
        let arena = self.arena.view();
        for (&hash, &(row, version)) in hashes.iter().zip(rows) {
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
                arena.prefetch(entry.row(), dim);
            }
            for entry in group {
                keys.push(unhash(entry.hash));
                rows.extend_from_slice(arena.row(entry.row(), dim));
            }
        }
        next
    }

    /// Begin a snapshot of this instant; return the number of its rows.
    pub(crate) fn begin_snapshot(&mut self, version: u64) -> usize {
        self.begin_gate_snapshot(version);
        self.snapshot = Some(Snapshot {
            version,
            rows: self.arena.len(),
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
                arena.prefetch(entry.row(), width);
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
