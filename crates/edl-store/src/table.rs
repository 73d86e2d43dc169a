//! One embedding table: stripes by hash slot, and the way of a batch through them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use edl_optim::Step;
use parking_lot::{RwLock, RwLockWriteGuard};

use crate::budget::Budget;
use crate::cold::ColdFile;
use crate::error::StoreError;
use crate::gradient::TableGrads;
use crate::index::{ENTRY_BYTES, MAX_ROWS};
use crate::initial::Generator;
use crate::life::{Admission, AdmissionFilter, Expiry, Occurrence};
use crate::placement::{NUM_STRIPES, Placement};
use crate::route::hash;
use crate::spec::{MAX_ROW_FLOATS, TableSpec};
use crate::stages::{Stage, Watch};
use crate::stripe::{Admitted, Chunk, Keys, RowSpec, SavedRows, Since, Stripe};

mod cold;
mod cut;
mod life;
mod moving;
mod names;
mod room;
mod statistics;

pub(crate) use names::SavedNames;
pub(crate) use room::make_room;
pub(crate) use statistics::check_statistics;

use self::statistics::Known;

/// Whether a pull creates the rows that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullMode {
    /// Training: missing rows are created.
    Create,
    /// Evaluation: nothing is created; a missing row reads as its initializer's centre.
    ReadOnly,
}

/// The effects of a pull besides copying rows.
#[derive(Clone, Copy)]
struct Pulling {
    /// Rows are used by it: those on disk come into memory.
    uses: bool,
    /// The version as of which missing rows are created, if they are.
    creates: Option<u64>,
}

/// Keys that are sorted by stripe at a time: their hashes and gradients stay in the cache, and those
/// of a stripe, 512 in the mean, are one `GROUP`.
const BLOCK: usize = 1 << 13;

/// Floats of a row, slots included, from which on it may go to disk.
const MIN_COLD_WIDTH: usize = 16;

/// No row takes less, wherever it is: its entry of the index.
const MIN_ROW_BYTES: u64 = 16;

/// Rows of a snapshot that are read under one taking of a stripe's lock: few, since updates wait.
const READ_ROWS: usize = 512;

/// Times that the lock is taken for one return of rows.
const READS: usize = 8;

pub(crate) struct Table {
    name: String,
    spec: RowSpec,
    admission: Option<Admission>,
    expiry: Option<Expiry>,
    keeps_names: bool,
    /// Whether rows may be on disk.
    is_cold: bool,
    placement: Placement,
    stripes: Vec<RwLock<Stripe>>,
    /// Set by whoever declares the model; read by each push.
    trainable: AtomicBool,
    /// The factor of the learning rate: the bits of a float.
    rate: AtomicU32,
    /// For statistics: the newest period that was added to; the bits of a float of 0 or more.
    newest: AtomicU32,
    /// Keys of training pulls, and those of them that had a row; counted by each pull.
    pulls: [AtomicU64; 2],
    /// Shared with the other tables of the store.
    budget: Arc<Budget>,
}

/// A block of keys, sorted by stripe; kept by each thread for the next batch.
struct Sorted {
    /// The hashes of each stripe, from a multiple of `APART` on.
    hashes: Vec<u64>,
    positions: Vec<u32>,
    /// The end of each stripe's keys.
    ends: [usize; NUM_STRIPES],
}

/// Room for one stripe's keys, which may be all keys of a block. Unused room is never touched, and
/// takes no memory. The number is no power of two: otherwise all ends, which advance together,
/// would be in one set of the cache.
const APART: usize = BLOCK + 40;

thread_local! {
    static SORTED: RefCell<Sorted> = RefCell::new(Sorted::new());
    /// Keys without a row, by their number within a stripe's.
    static MISSING: RefCell<Vec<u32>> = RefCell::default();
    /// Keys that are let in.
    static ADMITTED: RefCell<Admitted> = RefCell::default();
}

impl Sorted {
    fn new() -> Self {
        Self {
            hashes: vec![0; NUM_STRIPES * APART],
            positions: vec![0; NUM_STRIPES * APART],
            ends: [0; NUM_STRIPES],
        }
    }

    /// Sort at most `BLOCK` keys, all of which belong to this replica.
    fn sort(&mut self, keys: &[u64], placement: &Placement) {
        let mut watch = Watch::start();
        let mut ends = std::array::from_fn(|stripe| stripe * APART);
        let (hashes, positions) = (&mut self.hashes[..], &mut self.positions[..]);
        for (position, &key) in keys.iter().enumerate() {
            let hash = hash(key);
            let end = &mut ends[placement.stripe(hash)];
            hashes[*end] = hash;
            positions[*end] = position as u32;
            *end += 1;
        }
        self.ends = ends;
        watch.lap(Stage::Sort);
    }

    /// Return the keys of one stripe.
    fn keys(&self, stripe: usize) -> Keys<'_> {
        let range = stripe * APART..self.ends[stripe];
        Keys {
            hashes: &self.hashes[range.clone()],
            positions: &self.positions[range],
        }
    }
}

impl Table {
    pub(crate) fn new(
        spec: &TableSpec,
        seed: u64,
        placement: Placement,
        budget: Arc<Budget>,
    ) -> Result<Self, StoreError> {
        let bad =
            |problem: String| StoreError::BadModel(format!("table '{}': {problem}", spec.name));
        let optimizer = spec.optimizer.parse().map_err(|e| bad(e.to_string()))?;
        let kind = spec.initializer.parse().map_err(bad)?;
        let constraint = spec.constraint.as_ref().map(|c| c.parse()).transpose();
        let width = spec.dim as usize * (1 + optimizer.num_slots());
        if spec.dim == 0 || width > MAX_ROW_FLOATS {
            return Err(bad(format!(
                "dim is {} and a row has {width} floats with its optimizer slots, expected dim \
                 of at least 1 and at most {MAX_ROW_FLOATS} floats",
                spec.dim
            )));
        }
        let admission = spec.admission.as_ref().map(|a| a.parse()).transpose();
        let admission = admission.map_err(bad)?;
        let expiry = spec.expiry.as_ref().map(|e| e.parse()).transpose();
        let statistics = spec.statistics.map(|s| s.parse()).transpose();
        let statistics = statistics.map_err(bad)?;
        if statistics.is_some() && spec.dim < 2 {
            return Err(bad(
                "statistics have a sum and a period, expected dim of 2 or more".into(),
            ));
        }
        let generator = Generator::new(seed, spec, kind);
        let filter = |stripe| {
            let slots = placement.first_hash_slot(stripe)..placement.first_hash_slot(stripe + 1);
            let hashes = placement.hashes(stripe);
            let (first, count) = (slots.start, slots.len());
            Some(AdmissionFilter::new(
                admission?,
                generator.seed(),
                hashes,
                first,
                count,
            ))
        };
        let stripe = |stripe| {
            let phase = stripe as f64 / NUM_STRIPES as f64;
            Stripe::new(placement.hashes(stripe), width, phase, filter(stripe))
        };
        let stripes = (0..NUM_STRIPES).map(|i| RwLock::new(stripe(i))).collect();
        // Narrow rows stay in memory, since what tells where a row is takes as much; so do statistics,
        // for which others ask under their own locks.
        let goes = width >= MIN_COLD_WIDTH && statistics.is_none();
        let disk = budget.disk().filter(|_| goes);
        let file = disk.map(|disk| disk.file()).transpose()?;
        let table = Self {
            is_cold: file.is_some(),
            budget,
            name: spec.name.clone(),
            spec: RowSpec {
                dim: spec.dim as usize,
                width,
                optimizer,
                constraint: constraint.map_err(bad)?,
                generator,
                statistics,
            },
            admission,
            expiry: expiry.map_err(bad)?,
            keeps_names: spec.keep_names,
            placement,
            stripes,
            trainable: AtomicBool::new(spec.trainable),
            rate: AtomicU32::new((spec.rate as f32).to_bits()),
            newest: AtomicU32::new(0),
            pulls: Default::default(),
        };
        if let Some(file) = file {
            for (number, stripe) in table.stripes.iter().enumerate() {
                let file = ColdFile::new(file.clone(), number, width);
                stripe.write().keep_cold(file);
            }
        }
        if table.has_births() {
            table.begin_births();
        }
        if table.keeps_names {
            table.begin_names();
        }
        Ok(table)
    }

    /// From now on, rows are updated, or not.
    pub(crate) fn set_trainable(&self, trainable: bool) {
        self.trainable.store(trainable, Ordering::Relaxed);
    }

    pub(crate) fn set_rate(&self, rate: f32) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn is_trainable(&self) -> bool {
        self.trainable.load(Ordering::Relaxed)
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Return the floats of a row's weights.
    pub(crate) fn dim(&self) -> usize {
        self.spec.dim
    }

    /// Return the floats of a row's weights and slots.
    pub(crate) fn width(&self) -> usize {
        self.spec.width
    }

    /// Return the number of rows and the bytes held for them.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.stripes.iter().fold((0, 0), |(rows, bytes), stripe| {
            let stripe = stripe.read();
            (rows + stripe.len() as u64, bytes + stripe.bytes() as u64)
        })
    }

    /// Check a batch of keys and an array of a row for each, before anything is changed.
    pub(crate) fn check(&self, what: &str, keys: &[u64], floats: usize) -> Result<(), StoreError> {
        let expected = keys.len().saturating_mul(self.spec.dim);
        if floats != expected {
            return Err(StoreError::WrongLength {
                what: format!("{what} of table '{}'", self.name),
                expected,
                found: floats,
            });
        }
        self.placement.check(keys)
    }

    /// Check that rows for those of `keys` that have none may be created.
    pub(crate) fn check_room(&self, keys: &[u64]) -> Result<(), StoreError> {
        if let Some(full) = self.budget.disk().and_then(|disk| disk.full()) {
            return Err(full);
        }
        self.check_numbers(keys)?;
        let row_bytes = self.stripes[0].read().new_row_bytes() as u64;
        if self.budget.has_room(keys.len() as u64 * row_bytes) {
            return Ok(());
        }
        // Close to the limit it matters how many rows there are already.
        let new_rows: usize = keys
            .chunks(BLOCK)
            .map(|keys| self.count_missing(keys))
            .sum();
        if new_rows == 0 || self.budget.has_room(new_rows as u64 * row_bytes) {
            return Ok(());
        }
        let (table, rows) = (self.name.clone(), self.size().0);
        let (used, limit) = (self.budget.used(), self.budget.limit().unwrap_or(0));
        Err(if self.budget.disk().is_some() {
            StoreError::IndexLimit {
                table,
                rows,
                new_rows,
                used,
                limit,
            }
        } else {
            StoreError::MemoryLimit {
                table,
                rows,
                new_rows,
                used,
                limit,
            }
        })
    }

    fn count_missing(&self, keys: &[u64]) -> usize {
        SORTED.with_borrow_mut(|sorted| {
            sorted.sort(keys, &self.placement);
            let stripes = self.stripes.iter().enumerate();
            stripes
                .map(|(number, stripe)| stripe.read().count_missing(sorted.keys(number)))
                .sum()
        })
    }

    /// Check that rows for those of `keys` that have none can be numbered.
    fn check_numbers(&self, keys: &[u64]) -> Result<(), StoreError> {
        let limit = self.budget.stripe_rows();
        // Mostly all rows there are would fit into one stripe: then none is asked.
        let most_rows = self.budget.used() / MIN_ROW_BYTES;
        if most_rows.saturating_add(keys.len() as u64) <= limit as u64 {
            return Ok(());
        }
        let may_be_full = |stripe: &RwLock<Stripe>| stripe.read().len() + keys.len() > limit;
        if !self.stripes.iter().any(may_be_full) {
            return Ok(());
        }
        let mut lens: Vec<usize> = self.stripes.iter().map(|s| s.read().len()).collect();
        for keys in keys.chunks(BLOCK) {
            SORTED.with_borrow_mut(|sorted| {
                sorted.sort(keys, &self.placement);
                for (number, stripe) in self.stripes.iter().enumerate() {
                    lens[number] += stripe.read().count_missing(sorted.keys(number));
                }
            });
        }
        let has_new = |(len, stripe): (&usize, &RwLock<Stripe>)| *len > stripe.read().len();
        let is_too_long = |(len, _): &(&usize, &RwLock<Stripe>)| **len > limit;
        if lens
            .iter()
            .zip(&self.stripes)
            .filter(is_too_long)
            .any(has_new)
        {
            return Err(self.too_many_rows(limit));
        }
        Ok(())
    }

    fn too_many_rows(&self, limit: usize) -> StoreError {
        StoreError::Full(format!(
            "table '{}' cannot take new rows: one of the {NUM_STRIPES} stripes that it has in this \
             ps replica has {limit} rows, the most that can be numbered; nothing was created or \
             changed. Start the job again from its last checkpoint with more replicas \
             (--checkpoint_dir_for_init, --num_ps_pods)",
            self.name
        ))
    }

    /// Copy rows to `out`. The batch has been checked.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn pull(
        &self,
        keys: &[u64],
        mode: PullMode,
        version: u64,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        let is_counted = mode == PullMode::Create;
        let mut num_missing = 0;
        // In tables with admission, and in statistics, an update creates the rows.
        let creates = is_counted && self.admission.is_none() && !self.has_statistics();
        let pulling = Pulling {
            uses: is_counted,
            creates: creates.then_some(version),
        };
        let blocks = out.chunks_mut(BLOCK * self.spec.dim);
        for (keys, out) in keys.chunks(BLOCK).zip(blocks) {
            SORTED.with_borrow_mut(|sorted| {
                sorted.sort(keys, &self.placement);
                MISSING.with_borrow_mut(|missing| {
                    num_missing += self.pull_block(sorted, missing, pulling, out)?;
                    Ok(())
                })
            })?;
            self.decay_to_newest(out);
        }
        if is_counted {
            for (sum, count) in (self.pulls.iter()).zip([keys.len(), keys.len() - num_missing]) {
                sum.fetch_add(count as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Return the keys that training pulls asked for, and how many of them had a row.
    pub(crate) fn pulls(&self) -> [u64; 2] {
        self.pulls.each_ref().map(|sum| sum.load(Ordering::Relaxed))
    }

    /// Ask for what a batch needs first of a stripe, unless it is being changed.
    #[inline(always)]
    fn prefetch(&self, sorted: &Sorted, stripe: usize) {
        if let Some(next) = self.stripes.get(stripe).and_then(RwLock::try_read) {
            next.prefetch(sorted.keys(stripe));
        }
    }

    /// Return how many keys had no row.
    fn pull_block(
        &self,
        sorted: &Sorted,
        missing: &mut Vec<u32>,
        pulling: Pulling,
        out: &mut [f32],
    ) -> Result<usize, StoreError> {
        let dim = self.spec.dim;
        let mut num_missing = 0;
        for (number, stripe) in self.stripes.iter().enumerate() {
            let keys = sorted.keys(number);
            if keys.hashes.is_empty() {
                continue;
            }
            self.prefetch(sorted, number + 1);
            missing.clear();
            stripe.read().pull(keys, dim, pulling.uses, out, missing);
            if missing.is_empty() {
                continue;
            }
            if self.is_cold {
                num_missing += self.pull_cold(stripe, keys, missing, pulling, out)?;
                continue;
            }
            num_missing += missing.len();
            let missing = missing.iter().map(|&i| {
                let (i, at) = (i as usize, keys.positions[i as usize] as usize * dim);
                (keys.hashes[i], at..at + dim)
            });
            match pulling.creates {
                None => {
                    let centre = self.spec.generator.centre();
                    missing.for_each(|(_, at)| out[at].fill(centre));
                }
                Some(version) => {
                    let mut stripe = stripe.write();
                    let before = stripe.bytes();
                    for (hash, at) in missing {
                        out[at].copy_from_slice(stripe.weights(hash, &self.spec, version));
                    }
                    self.budget.note(before, stripe.bytes());
                }
            }
        }
        Ok(num_missing)
    }

    /// Update rows by their gradients. The batch has been checked. Args: `tables` are all of the
    /// model.
    ///
    /// # Errors
    /// Rows on disk that cannot be read; some of the others have changed.
    pub(crate) fn push(
        &self,
        tables: &[Self],
        grads: &TableGrads<'_>,
        learning_rate: f32,
        version: u64,
        occurrence: Occurrence,
    ) -> Result<(), StoreError> {
        if !self.is_trainable() {
            return Ok(());
        }
        let (keys, grads) = (grads.keys, grads.grads);
        let step = self.step(learning_rate, version);
        self.note_periods(grads);
        let known = match self.admission {
            Some(Admission::Statistic(limit)) => Some(self.known(limit, tables)),
            _ => None,
        };
        let blocks = grads.chunks(BLOCK * self.spec.dim);
        for (keys, grads) in keys.chunks(BLOCK).zip(blocks) {
            SORTED.with_borrow_mut(|sorted| {
                sorted.sort(keys, &self.placement);
                ADMITTED.with_borrow_mut(|admitted| {
                    self.push_block(sorted, admitted, grads, known, &step, version, occurrence)
                })
            })?;
        }
        Ok(())
    }

    /// Return what an update does to rows.
    fn step(&self, learning_rate: f32, version: u64) -> Step {
        if let Some(statistics) = self.spec.statistics {
            return Step::from(statistics);
        }
        let rate = f32::from_bits(self.rate.load(Ordering::Relaxed));
        let step = self.spec.optimizer.step(learning_rate * rate, version);
        step.with_constraint(self.spec.constraint)
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "a block of a push, and all that a push has"
    )]
    fn push_block(
        &self,
        sorted: &Sorted,
        admitted: &mut Admitted,
        grads: &[f32],
        known: Option<Known<'_>>,
        step: &Step,
        version: u64,
        occurrence: Occurrence,
    ) -> Result<(), StoreError> {
        for (number, stripe) in self.stripes.iter().enumerate() {
            let mut keys = sorted.keys(number);
            if keys.hashes.is_empty() {
                continue;
            }
            self.prefetch(sorted, number + 1);
            let mut stripe = stripe.write();
            let (before, saved) = (stripe.bytes(), stripe.num_saved());
            if self.admission.is_some() {
                let known = known.map(|known| known.of_stripe(number));
                stripe.admit(keys, version, occurrence, known.as_ref(), admitted);
                keys = admitted.keys();
            }
            let pushed = stripe.push(keys, grads, &self.spec, step, version);
            self.budget.note(before, stripe.bytes());
            self.note_saved(&stripe, saved);
            pushed?;
        }
        Ok(())
    }

    /// Return up to `max_rows` rows from the hash `cursor` on, in the order of the hash.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan(&self, cursor: u64, max_rows: usize) -> Result<Chunk, StoreError> {
        let first = if self.placement.owns(cursor) {
            self.placement.stripe(cursor)
        } else if cursor >> 48 < u64::from(self.placement.first_hash_slot(0)) {
            0
        } else {
            NUM_STRIPES
        };
        let mut chunk = Chunk {
            keys: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        for (number, stripe) in self.stripes.iter().enumerate().skip(first) {
            let room = max_rows.max(1) - chunk.keys.len();
            if room == 0 {
                chunk.next = Some(self.placement.hashes(number).first);
                break;
            }
            let stripe = stripe.read();
            let (keys, rows) = (&mut chunk.keys, &mut chunk.rows);
            chunk.next = stripe.scan(cursor, room, self.spec.dim, keys, rows)?;
            if chunk.next.is_some() {
                break;
            }
        }
        self.decay_to_newest(&mut chunk.rows);
        Ok(chunk)
    }

    /// Create rows of this replica with given weights, before any other; return the first key that
    /// has a row already.
    pub(crate) fn begin_with(&self, keys: &[u64], rows: &[f32]) -> Result<Option<u64>, StoreError> {
        self.check_room(keys)?;
        for (&key, weights) in keys.iter().zip(rows.chunks_exact(self.spec.dim)) {
            let hash = hash(key);
            let mut stripe = self.stripes[self.placement.stripe(hash)].write();
            let before = stripe.bytes();
            if !stripe.begin_with(hash, &self.spec, weights) {
                return Ok(Some(key));
            }
            self.budget.note(before, stripe.bytes());
        }
        Ok(None)
    }

    /// Make room for those of `keys` that belong to this replica.
    pub(crate) fn reserve(&self, keys: &[u64]) -> Result<(), StoreError> {
        let mut counts = [0; NUM_STRIPES];
        for hash in keys.iter().map(|&key| hash(key)) {
            if self.placement.owns(hash) {
                counts[self.placement.stripe(hash)] += 1;
            }
        }
        let is_too_many =
            |(stripe, count): (&RwLock<Stripe>, usize)| stripe.read().len() + count > MAX_ROWS;
        if self.stripes.iter().zip(counts).any(is_too_many) {
            return Err(self.too_many_rows(MAX_ROWS));
        }
        for (stripe, count) in self.stripes.iter().zip(counts) {
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            stripe.reserve(count);
            // The bytes of a checkpoint's rows are counted before the rows are put back, unless
            // most of them go to disk.
            let row_bytes = if self.is_cold {
                0
            } else {
                stripe.new_row_bytes() - ENTRY_BYTES
            };
            let rows = count * row_bytes;
            self.budget.note(before, stripe.bytes() + rows);
        }
        Ok(())
    }

    /// Put back rows as a checkpoint has them, weights and slots; those of other replicas are
    /// left out. Return the first key that is there twice, unless a base is put under a later
    /// checkpoint: `is_base`.
    pub(crate) fn restore(
        &self,
        keys: &[u64],
        versions: &[u64],
        births: &[u64],
        rows: &[f32],
        is_base: bool,
    ) -> Option<u64> {
        self.note_periods(rows);
        // If first updates are not noted, there are no births.
        let births = births.iter().copied().chain(std::iter::repeat(0));
        let mut rows = keys
            .iter()
            .zip(versions.iter().copied().zip(births))
            .zip(rows.chunks_exact(self.spec.width));
        // Keys of one stripe follow each other, so that its lock is taken once for many.
        let mut locked: Option<(usize, RwLockWriteGuard<'_, Stripe>)> = None;
        let twice = rows.find(|&((&key, (version, birth)), row)| {
            let hash = hash(key);
            if !self.placement.owns(hash) {
                return false;
            }
            let number = self.placement.stripe(hash);
            let stripe = match &mut locked {
                Some((held, stripe)) if *held == number => stripe,
                other => {
                    // The last one is let go before the next is taken.
                    *other = None;
                    &mut other.insert((number, self.stripes[number].write())).1
                }
            };
            if !self.is_cold {
                return !stripe.restore(hash, version, birth, row) && !is_base;
            }
            let before = stripe.bytes();
            let is_new = stripe.restore(hash, version, birth, row);
            self.budget.note(before, stripe.bytes());
            !is_new && !is_base
        });
        twice.map(|((&key, _), _)| key)
    }

    /// Begin a snapshot of this instant, of all rows or of those that have changed; return the
    /// number of all in each stripe.
    pub(crate) fn begin_snapshot(&self, version: u64, since: Option<&[Since]>) -> Vec<usize> {
        let stripes = self.stripes.iter().enumerate();
        stripes
            .map(|(number, stripe)| {
                let since = since.map(|since| since[number]);
                stripe.write().begin_snapshot(version, since)
            })
            .collect()
    }

    /// Append some more rows of a stripe's snapshot to `out`; return whether there are more.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn read_snapshot(
        &self,
        stripe: usize,
        out: &mut SavedRows,
    ) -> Result<bool, StoreError> {
        for _ in 0..READS {
            let mut stripe = self.stripes[stripe].write();
            let saved = stripe.num_saved();
            let more = stripe.read_snapshot(READ_ROWS, self.spec.width, out);
            drop(stripe);
            self.budget.note_taken(saved * self.saved_bytes());
            if !more? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Append the rows that a stripe has copied for its snapshot to `out`, if they are many.
    pub(crate) fn take_saved(&self, stripe: usize, out: &mut SavedRows) {
        let mut stripe = self.stripes[stripe].write();
        let saved = stripe.num_saved();
        if saved >= READ_ROWS {
            stripe.take_saved(out);
            drop(stripe);
            self.budget.note_taken(saved * self.saved_bytes());
        }
    }

    pub(crate) fn end_snapshot(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let saved = stripe.num_saved();
            stripe.end_snapshot();
            self.budget.note_taken(saved * self.saved_bytes());
        }
    }

    /// Note what a stripe that is being changed has copied beyond `before` rows.
    fn note_saved(&self, stripe: &Stripe, before: usize) {
        let saved = stripe.num_saved() - before;
        self.budget.note_saved(saved * self.saved_bytes());
    }

    /// Return the bytes of a row that is copied.
    pub(crate) fn saved_bytes(&self) -> usize {
        2 * size_of::<u64>() + self.spec.width * size_of::<f32>()
    }
}
