//! One embedding table: stripes by hash slot, and the way of a batch through them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use edl_optim::Step;
use parking_lot::RwLock;

use crate::budget::Budget;
use crate::cold::ColdFile;
use crate::counters::TableStats;
use crate::error::StoreError;
use crate::features::Terms;
use crate::features::life::{Admission, Admitted, Occurrence};
use crate::features::statistics::Known;
use crate::gradient::TableGrads;
use crate::placement::{NUM_STRIPES, Placement};
use crate::route::hash;
use crate::row::RowSpec;
use crate::spec::{ModelSpec, TableSpec};
use crate::stripe::{Chunk, Stripe};

mod cold;
mod given;
mod limits;
mod room;
mod snapshot;
mod sorted;

pub(crate) use room::make_room;

use self::sorted::{BLOCK, SORTED, Sorted};

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

/// Floats of a row, slots included, from which on it may go to disk.
const MIN_COLD_WIDTH: usize = 16;

pub(crate) struct Table {
    name: String,
    spec: RowSpec,
    pub(crate) terms: Terms,
    /// The columns that features keep beside rows.
    columns: Vec<&'static str>,
    /// Whether rows may be on disk.
    is_cold: bool,
    placement: Placement,
    stripes: Vec<RwLock<Stripe>>,
    /// Set by whoever declares the model; read by each push.
    trainable: AtomicBool,
    /// The factor of the learning rate: the bits of a float.
    rate: AtomicU32,
    /// Keys of training pulls, and those of them that had a row; counted by each pull.
    pulls: [AtomicU64; 2],
    /// Shared with the other tables of the store.
    budget: Arc<Budget>,
}

thread_local! {
    /// Keys without a row, by their number within a stripe's.
    static MISSING: RefCell<Vec<u32>> = RefCell::default();
    /// Keys that are let in.
    static ADMITTED: RefCell<Admitted> = RefCell::default();
}

impl Table {
    /// Make the tables of a model.
    pub(crate) fn all_of(
        model: &ModelSpec,
        placement: Placement,
        budget: &Arc<Budget>,
    ) -> Result<Vec<Self>, StoreError> {
        let tables = model.tables.iter();
        tables
            .map(|table| Self::new(table, model.seed, placement, budget.clone()))
            .collect()
    }

    fn new(
        spec: &TableSpec,
        seed: u64,
        placement: Placement,
        budget: Arc<Budget>,
    ) -> Result<Self, StoreError> {
        let bad =
            |problem: String| StoreError::BadModel(format!("table '{}': {problem}", spec.name));
        let row = RowSpec::parse(spec, seed).map_err(bad)?;
        let terms = Terms::parse(spec).map_err(bad)?;
        let (width, seed) = (row.width, row.generator.seed());
        let stripe = |stripe| {
            let phase = stripe as f64 / NUM_STRIPES as f64;
            let parts = terms.parts(seed, &placement, stripe);
            Stripe::new(placement.hashes(stripe), width, phase, parts)
        };
        let columns = terms.parts(seed, &placement, 0).columns();
        let stripes = (0..NUM_STRIPES).map(|i| RwLock::new(stripe(i))).collect();
        // Narrow rows stay in memory, since what tells where a row is takes as much.
        let goes = width >= MIN_COLD_WIDTH && terms.may_be_cold();
        let disk = budget.disk().filter(|_| goes);
        let file = disk.map(|disk| disk.file()).transpose()?;
        let table = Self {
            is_cold: file.is_some(),
            budget,
            name: spec.name.clone(),
            spec: row,
            terms,
            columns,
            placement,
            stripes,
            trainable: AtomicBool::new(spec.trainable),
            rate: AtomicU32::new((spec.rate as f32).to_bits()),
            pulls: Default::default(),
        };
        if let Some(file) = file {
            for (number, stripe) in table.stripes.iter().enumerate() {
                let file = ColdFile::new(file.clone(), number, width);
                stripe.write().keep_cold(file);
            }
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

    pub(crate) fn row_spec(&self) -> &RowSpec {
        &self.spec
    }

    /// Return the number of a row's weights.
    pub(crate) fn dim(&self) -> usize {
        self.spec.dim
    }

    /// Return the floats of a row's weights and slots.
    pub(crate) fn width(&self) -> usize {
        self.spec.width
    }

    pub(crate) fn stripes(&self) -> &[RwLock<Stripe>] {
        &self.stripes
    }

    /// Return the columns that features keep beside rows, a number in each for a row.
    pub(crate) fn columns(&self) -> &[&'static str] {
        &self.columns
    }

    /// Whether a hash belongs to this replica.
    pub(crate) fn owns(&self, hash: u64) -> bool {
        self.placement.owns(hash)
    }

    /// Return the stripe of a hash that belongs to this replica.
    pub(crate) fn stripe_of(&self, hash: u64) -> &RwLock<Stripe> {
        &self.stripes[self.placement.stripe(hash)]
    }

    /// Change a stripe; what it takes then, and what it copies for a snapshot, is counted.
    pub(crate) fn change<T>(
        &self,
        stripe: &RwLock<Stripe>,
        change: impl FnOnce(&mut Stripe) -> T,
    ) -> T {
        let mut stripe = stripe.write();
        let (bytes, saved) = (stripe.bytes(), stripe.num_saved());
        let changed = change(&mut stripe);
        self.budget.note(bytes, stripe.bytes());
        let saved = stripe.num_saved() - saved;
        self.budget.note_saved(saved * self.saved_bytes());
        changed
    }

    /// Return how many of some keys belong to each stripe.
    pub(crate) fn count_by_stripe(&self, keys: &[u64]) -> [usize; NUM_STRIPES] {
        let mut counts = [0; NUM_STRIPES];
        for hash in keys.iter().map(|&key| hash(key)) {
            if self.placement.owns(hash) {
                counts[self.placement.stripe(hash)] += 1;
            }
        }
        counts
    }

    /// Return the counters.
    pub(crate) fn stats(&self) -> TableStats {
        let (rows, bytes) = self.size();
        let [pulled, found] = self.pulls();
        let cold = self.cold_tally();
        let mut stats = TableStats {
            name: self.name.clone(),
            rows,
            bytes,
            pulled,
            found,
            rows_on_disk: cold.rows,
            disk_bytes: cold.bytes,
            disk_reads: cold.read,
            disk_writes: cold.written,
            ..TableStats::default()
        };
        for stripe in &self.stripes {
            let stripe = stripe.read();
            stripe
                .features
                .iter()
                .for_each(|part| part.count(&mut stats));
        }
        stats
    }

    /// Return the number of rows and the bytes held for them.
    pub(crate) fn size(&self) -> (u64, u64) {
        self.stripes.iter().fold((0, 0), |(rows, bytes), stripe| {
            let stripe = stripe.read();
            (rows + stripe.len() as u64, bytes + stripe.bytes() as u64)
        })
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
        let creates = is_counted && self.terms.pull_creates();
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
            self.terms.rows_leave(out);
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
            stripe
                .read()
                .pull(keys, &self.spec, pulling.uses, out, missing);
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
                Some(version) => self.change(stripe, |stripe| {
                    for (hash, at) in missing {
                        stripe.read_or_create(hash, &self.spec, version, &mut out[at]);
                    }
                }),
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
        self.terms.rows_come(grads);
        let known = match self.terms.admission {
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
        self.terms.step().unwrap_or_else(|| {
            let rate = f32::from_bits(self.rate.load(Ordering::Relaxed));
            self.spec.step(learning_rate * rate, version)
        })
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
            self.change(stripe, |stripe| {
                if self.terms.admission.is_some() {
                    let known = known.map(|known| known.of_stripe(number));
                    admitted.sort_out(stripe, keys, version, occurrence, known.as_ref());
                    keys = admitted.keys();
                }
                stripe.push(keys, grads, &self.spec, step, version)
            })?;
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
        let mut chunk = Chunk::default();
        for (number, stripe) in self.stripes.iter().enumerate().skip(first) {
            let room = max_rows.max(1) - chunk.keys.len();
            if room == 0 {
                chunk.next = Some(self.placement.hashes(number).first);
                break;
            }
            let stripe = stripe.read();
            chunk.next = stripe.scan(cursor, room, None, &self.spec, &mut chunk)?;
            if chunk.next.is_some() {
                break;
            }
        }
        self.terms.rows_leave(&mut chunk.rows);
        Ok(chunk)
    }

    /// Return the rows updated after `since` among some entries from the hash `cursor` on, which
    /// may be none before the end.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan_since(
        &self,
        cursor: u64,
        max_rows: usize,
        since: u64,
    ) -> Result<Chunk, StoreError> {
        let mut chunk = Chunk::default();
        let cursor = cursor.max(self.placement.hashes(0).first);
        if !self.placement.owns(cursor) {
            return Ok(chunk);
        }
        let number = self.placement.stripe(cursor);
        let stripe = self.stripes[number].read();
        let max_rows = max_rows.max(1);
        let next = stripe.scan(cursor, max_rows, Some(since), &self.spec, &mut chunk)?;
        self.terms.rows_leave(&mut chunk.rows);
        chunk.next = next.or_else(|| {
            let following = number + 1;
            (following < NUM_STRIPES).then(|| self.placement.hashes(following).first)
        });
        Ok(chunk)
    }
}
