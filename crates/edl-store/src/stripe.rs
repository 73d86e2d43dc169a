//! One stripe of a table: an index and its rows, under one lock.

use edl_optim::{AHEAD, Constraint, Optimizer, Row, Statistics, Step};

use crate::arena::Arena;
use crate::cold::ColdRows;
use crate::error::StoreError;
use crate::index::{ENTRY_BYTES, Entry, GROUP, HashRange, Index, NO_ROW};
use crate::initial::Generator;
use crate::life::AdmissionFilter;
use crate::names::Names;
use crate::route::unhash;
use crate::stages::{Stage, Watch};

mod births;
mod cold;
mod cut;
mod life;
mod moving;
mod names;
mod statistics;

use births::Births;
use cut::Changed;

pub(crate) use cut::StripeMark;
pub(crate) use life::{Admitted, Expelled};
pub(crate) use statistics::KnownStripe;

/// A row's layout: weights, then each optimizer slot, all of length `dim`.
#[derive(Debug, Clone)]
pub(crate) struct RowSpec {
    /// Floats of the weights.
    pub(crate) dim: usize,
    /// Floats of weights and slots.
    pub(crate) width: usize,
    pub(crate) optimizer: Optimizer,
    /// Rows are held to it from their creation on.
    pub(crate) constraint: Option<Constraint>,
    pub(crate) generator: Generator,
    /// Rows are decayed sums, and no weights.
    pub(crate) statistics: Option<Statistics>,
}

/// Some rows of a table.
#[derive(Debug, Clone, PartialEq)]
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

impl<'a> Keys<'a> {
    /// Return the keys of the longest group.
    pub(crate) fn group_len(&self) -> usize {
        self.hashes.len().min(GROUP)
    }

    /// Return groups of hashes, their positions, and the hashes that come after each group.
    #[inline(always)]
    fn groups(&self) -> impl Iterator<Item = (&'a [u64], &'a [u32], &'a [u64])> {
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

/// A row as it was at the instant of a snapshot.
pub(crate) struct SavedRows {
    pub(crate) keys: Vec<u64>,
    pub(crate) versions: Vec<u64>,
    /// Versions of first updates, where they are kept; see [`Births`].
    pub(crate) births: Vec<u64>,
    /// Weights and slots, without padding.
    pub(crate) rows: Vec<f32>,
}

impl SavedRows {
    /// Append other rows, which are gone there; memory is kept in both.
    pub(crate) fn append(&mut self, other: &mut Self) {
        self.keys.append(&mut other.keys);
        self.versions.append(&mut other.versions);
        self.births.append(&mut other.births);
        self.rows.append(&mut other.rows);
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    /// Forget all rows, and keep the memory.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.versions.clear();
        self.births.clear();
        self.rows.clear();
    }

    pub(crate) fn empty() -> Self {
        Self {
            keys: Vec::new(),
            versions: Vec::new(),
            births: Vec::new(),
            rows: Vec::new(),
        }
    }

    fn push(&mut self, hash: u64, version: u64, birth: Option<u64>, row: &[f32]) {
        self.keys.push(unhash(hash));
        self.versions.push(version);
        self.births.extend(birth);
        self.rows.extend_from_slice(row);
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
struct Snapshot {
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
    found: Vec<u64>,
    /// The part of that file that it reads next; none if it does not, or has come to the end.
    part: Option<usize>,
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

pub(crate) struct Stripe {
    index: Index,
    /// Rows by their number; where some are on disk, by the place that `cold` has for it.
    arena: Arena,
    /// The cold rows, if rows may be on disk.
    cold: Option<Box<ColdRows>>,
    /// Rows whose keys have gone.
    free: Vec<u32>,
    /// The filter of keys that get a row; without it every key gets one.
    filter: Option<AdmissionFilter>,
    /// The first updates, if new rows have a time of grace.
    births: Option<Births>,
    /// The strings that keys were made of, where they are kept.
    names: Option<Box<Names>>,
    snapshot: Option<Snapshot>,
    /// The version of the last snapshot, which a later one may be the difference to.
    snapshot_version: Option<u64>,
    /// Hashes of the rows that went, in that order, from the first cut on.
    gone: Option<Gone>,
    /// Rows that change from one cut to the next, where that is wanted.
    changed: Option<Changed>,
}

/// Rows that went.
#[derive(Default)]
struct Gone {
    hashes: Vec<u64>,
    /// How many came before and are forgotten.
    forgotten: u64,
}

impl Stripe {
    /// Make an empty stripe. Stripes with different `phase`, from 0 to 1, take memory at different
    /// numbers of rows: if all took it at once, the batch of that moment would wait for all.
    pub(crate) fn new(
        range: HashRange,
        width: usize,
        phase: f64,
        filter: Option<AdmissionFilter>,
    ) -> Self {
        Self {
            index: Index::new(range, phase),
            arena: Arena::new(width, phase),
            cold: None,
            free: Vec::new(),
            filter,
            births: None,
            names: None,
            snapshot: None,
            snapshot_version: None,
            gone: None,
            changed: None,
        }
    }

    /// Note from now on when rows were first updated; a new stripe does not.
    pub(crate) fn note_births(&mut self) {
        self.births = Some(Births::default());
    }

    pub(crate) fn len(&self) -> usize {
        self.num_rows() as usize - self.free.len()
    }

    /// Return how many rows have been numbered.
    fn num_rows(&self) -> u32 {
        let cold = self.cold.as_ref();
        cold.map_or_else(|| self.arena.len(), |cold| cold.num_rows())
    }

    /// Return the bytes that one more row takes at most.
    pub(crate) fn new_row_bytes(&self) -> usize {
        let birth = self.births.as_ref().map_or(0, |_| size_of::<u64>());
        // A row that has no room brings another one to disk.
        let row = match self.cold {
            None => self.arena.row_bytes(),
            Some(_) => ColdRows::row_bytes(),
        };
        row + ENTRY_BYTES + birth
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
        let names = self.names.as_ref().map_or(0, |names| names.bytes());
        let free = self.free.capacity() * size_of::<u32>();
        let births = self.births.as_ref().map_or(0, Births::bytes);
        let gone = self.gone.as_ref().map_or(0, |gone| gone.hashes.capacity());
        let gone = gone * size_of::<u64>() + self.changed.as_ref().map_or(0, Changed::bytes);
        let cold = self.cold.as_ref().map_or(0, |cold| cold.bytes());
        self.index.bytes() + self.arena.used_bytes() + cold + free + births + names + gone
    }

    /// Copy the weights of `keys` to their places in `out`; those without a row in memory are
    /// appended to `missing`, as numbers within `keys`. `uses`: the others are used.
    pub(crate) fn pull(
        &self,
        keys: Keys<'_>,
        dim: usize,
        uses: bool,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        match dim {
            1 => self.pull_rows::<1>(keys, dim, uses, out, missing),
            8 => self.pull_rows::<8>(keys, dim, uses, out, missing),
            16 => self.pull_rows::<16>(keys, dim, uses, out, missing),
            32 => self.pull_rows::<32>(keys, dim, uses, out, missing),
            64 => self.pull_rows::<64>(keys, dim, uses, out, missing),
            _ => self.pull_rows::<0>(keys, dim, uses, out, missing),
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

    /// `DIM` is `dim` where the compiler shall know it, else 0. The index lines of the first keys
    /// have been asked for.
    fn pull_rows<const DIM: usize>(
        &self,
        keys: Keys<'_>,
        dim: usize,
        uses: bool,
        out: &mut [f32],
        missing: &mut Vec<u32>,
    ) {
        let dim = if DIM == 0 { dim } else { DIM };
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
                dim,
                |i, weights| match weights {
                    Some(weights) => {
                        out[positions[i] as usize * dim..][..dim].copy_from_slice(&weights[..dim]);
                    }
                    None => missing.push(first + i as u32),
                },
            );
            watch.lap(Stage::Rows);
            first += hashes.len() as u32;
        }
    }

    /// Return the weights of a key, creating the row at `version` if need be. It is not on disk.
    pub(crate) fn weights(&mut self, hash: u64, spec: &RowSpec, version: u64) -> &[f32] {
        let row = self.find_or_create(hash, spec, version);
        self.row_mut(row, spec.dim)
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
        let (weights, slots) = self.row_mut(row, spec.width).split_at_mut(spec.dim);
        fill(weights);
        if let Some(constraint) = &spec.constraint {
            constraint.apply(weights);
        }
        spec.optimizer.fill_slots(weights, slots);
        self.index.insert(hash, row, version);
        if let Some(births) = &mut self.births {
            births.set(row, 0);
        }
        if let Some(names) = &mut self.names {
            names.row_came(hash);
        }
        if let Some(changed) = &mut self.changed {
            changed.note(&[hash], self.index.len());
        }
        row
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
            if let Some(births) = &mut self.births {
                births.updated(rows, version);
            }
            if let Some(cold) = &mut self.cold {
                cold.find(rows, false);
                cold.change(rows);
            }
            if let Some(changed) = &mut self.changed {
                changed.note(hashes, self.index.len());
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
        step.update_rows::<DIM>(&rows.collect::<Vec<_>>());
    }

    /// Keep the rows of a group that a snapshot still wants, before they change.
    #[cold]
    fn save(&mut self, hashes: &[u64], rows: &[u32], versions: &[u64], width: usize) {
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
        if let Some(births) = &self.births {
            let of_wanted = wanted.clone().map(|i| births.of(rows[i]));
            saved.births.extend(of_wanted);
        }
        let place = |row| self.cold.as_ref().map_or(row, |cold| cold.place_of(row));
        let arena = self.arena.view();
        arena.each(wanted.map(|i| place(rows[i])), width, |_, row| {
            saved.rows.extend_from_slice(row.unwrap_or_default());
        });
    }

    /// Make room for `additional` keys.
    pub(crate) fn reserve(&mut self, additional: usize) {
        self.index.reserve(additional);
    }

    /// Put back a row as a checkpoint has it; false if the key is there already.
    pub(crate) fn restore(&mut self, hash: u64, version: u64, birth: u64, row: &[f32]) -> bool {
        if self.index.find(hash).is_some() {
            return false;
        }
        let number = match &mut self.cold {
            None => self.arena.push(),
            Some(cold) => cold.add(hash, None, &mut self.arena),
        };
        self.row_mut(number, row.len()).copy_from_slice(row);
        self.index.insert(hash, number, version);
        if let Some(births) = &mut self.births {
            births.set(number, birth);
        }
        true
    }

    /// Append up to `max` keys and weights from the hash `from` on, in the order of the hash;
    /// return the hash to go on from.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan(
        &self,
        from: u64,
        max: usize,
        dim: usize,
        keys: &mut Vec<u64>,
        rows: &mut Vec<f32>,
    ) -> Result<Option<u64>, StoreError> {
        let (entries, next) = self.index.walk(from, max);
        keys.extend(entries.iter().map(|entry| unhash(entry.hash)));
        self.copy_rows(&entries, dim, rows)?;
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

    /// Begin a snapshot of this instant, of all rows or of those that have changed; return the
    /// number of all.
    pub(crate) fn begin_snapshot(&mut self, version: u64, since: Option<Since>) -> usize {
        self.begin_filter_snapshot(version);
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
            saved: SavedRows::empty(),
        });
        self.len()
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = None;
        self.end_filter_snapshot();
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
        if let Some(births) = &self.births {
            let of_entries = entries.iter().map(|e| births.of(e.row()));
            out.births.extend(of_entries);
        }
        match next {
            Some(next) => snapshot.cursor = next,
            None => self.snapshot = None,
        }
        self.copy_rows(&entries, width, &mut out.rows)?;
        Ok(next.is_some())
    }
}
