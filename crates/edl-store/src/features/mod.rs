//! What tables keep beside their rows: one file or folder for each feature of rows.
//!
//! A stripe has a list with a part of each feature that its table has, under the stripe's lock.
//! Stripe, table and checkpoint know the parts as [`RowFeature`] alone. [`Terms`] are what a model
//! declares for a table; they make the parts.

use std::any::Any;

use edl_optim::Step;

use crate::counters::TableStats;
use crate::placement::Placement;
use crate::spec::TableSpec;

pub(crate) mod changes;
pub(crate) mod life;
pub(crate) mod moving;
pub(crate) mod names;
pub(crate) mod saved;
pub(crate) mod statistics;

use life::{Admission, AdmissionFilter, Births, Expiry};
use moving::{Gift, Remembered, RememberedKind, Torn};
use names::Names;
use statistics::Sums;

/// A row that a key has now.
#[derive(Clone, Copy)]
pub(crate) struct NewRow<'a> {
    pub(crate) hash: u64,
    /// Its number in the stripe.
    pub(crate) row: u32,
    /// The numbers of all columns, from a checkpoint or another store; none if the row is new.
    pub(crate) words: &'a [u64],
    /// Rows of the stripe, with this one.
    pub(crate) num_rows: usize,
}

/// Rows that an update is about to change.
#[derive(Clone, Copy)]
pub(crate) struct Updated<'a> {
    pub(crate) hashes: &'a [u64],
    /// Their numbers in the stripe.
    pub(crate) rows: &'a [u32],
    pub(crate) version: u64,
    /// All rows of the stripe.
    pub(crate) num_rows: usize,
}

/// The part that a stripe has of a feature. A feature implements the methods that concern it.
pub(crate) trait RowFeature: Any + Send + Sync {
    /// A key has a row: a pull or an update has created it, or a checkpoint or another store has
    /// given it.
    fn created(&mut self, _row: NewRow<'_>, _word: Option<u64>) {}

    /// An update is about to change rows.
    fn updated(&mut self, _group: Updated<'_>) {}

    /// The row of a key goes, in a pass of expiry that began at `version`. Returns whether something
    /// goes with it that workers are to tell again.
    fn removed(&mut self, _hash: u64, _version: u64) -> bool {
        false
    }

    /// A pass of expiry has looked at all rows.
    fn passed(&mut self, _version: u64) {}

    /// Returns the bytes that it takes, of those that the memory limit counts.
    fn bytes(&self) -> usize {
        0
    }

    /// Adds what it counts to the counters of its table.
    fn count(&self, _stats: &mut TableStats) {}

    /// Returns the name of its column in files of rows, if it keeps a number for each row.
    fn column(&self) -> Option<&'static str> {
        None
    }

    /// Returns the number that its column has for a row.
    fn word(&self, _row: u32) -> u64 {
        0
    }

    /// A checkpoint or a cut of this version begins.
    fn snapshot_begun(&mut self, _version: u64) {}

    /// Nothing more of that is read.
    fn snapshot_ended(&mut self) {}

    /// Appends what it remembers of keys beside rows, to be moved to another store: all, or what has
    /// changed after the version `since`. It may end early and return the hash to go on from.
    fn give(
        &mut self,
        _kind: RememberedKind,
        _from: u64,
        _since: Option<u64>,
        _out: &mut Remembered,
    ) -> Option<u64> {
        None
    }

    /// Takes what the part of another store has given. Late or repeated facts change nothing.
    fn take(&mut self, _gift: &Gift<'_>) -> Result<(), Torn> {
        Ok(())
    }
}

/// The parts of one stripe. Most tables have none.
#[derive(Default)]
pub(crate) struct Features(Vec<Box<dyn RowFeature>>);

impl Features {
    pub(crate) fn add(&mut self, part: impl RowFeature) {
        self.0.push(Box::new(part));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn RowFeature> {
        self.0.iter().map(|part| &**part)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut dyn RowFeature> {
        self.0.iter_mut().map(|part| &mut **part)
    }

    /// Return the part of a feature, if the stripe has it.
    pub(crate) fn get<F: RowFeature>(&self) -> Option<&F> {
        let mut parts = self.0.iter().map(|part| &**part as &dyn Any);
        parts.find_map(|part| part.downcast_ref())
    }

    /// Return the same, to be changed.
    pub(crate) fn get_mut<F: RowFeature>(&mut self) -> Option<&mut F> {
        let mut parts = self.0.iter_mut().map(|part| &mut **part as &mut dyn Any);
        parts.find_map(|part| part.downcast_mut())
    }

    pub(crate) fn created(&mut self, row: NewRow<'_>) {
        let mut words = row.words.iter().copied();
        for part in &mut self.0 {
            let word = part.column().and_then(|_| words.next());
            part.created(row, word);
        }
    }

    /// Tell all parts that a row goes; return whether one of them has something to be told again.
    pub(crate) fn removed(&mut self, hash: u64, version: u64) -> bool {
        let mut is_told = false;
        for part in &mut self.0 {
            is_told |= part.removed(hash, version);
        }
        is_told
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|part| part.bytes()).sum()
    }

    /// Return the columns of the parts, which have one number each for a row.
    pub(crate) fn columns(&self) -> Vec<&'static str> {
        self.0.iter().filter_map(|part| part.column()).collect()
    }

    /// Return the bytes that one more row takes in the columns.
    pub(crate) fn row_bytes(&self) -> usize {
        self.columns().len() * size_of::<u64>()
    }

    /// Append the numbers that the columns have for a row.
    pub(crate) fn words_of(&self, row: u32, out: &mut Vec<u64>) {
        let parts = self.0.iter().filter(|part| part.column().is_some());
        out.extend(parts.map(|part| part.word(row)));
    }

    /// Append some of what the parts remember; see [`RowFeature::give`]. One part has each kind.
    pub(crate) fn give(
        &mut self,
        kind: RememberedKind,
        from: u64,
        since: Option<u64>,
        out: &mut Remembered,
    ) -> Option<u64> {
        let parts = self.0.iter_mut();
        parts.fold(None, |next, part| {
            part.give(kind, from, since, out).or(next)
        })
    }
}

/// The features of one table, as its model declares them.
pub(crate) struct Terms {
    /// Which keys get a row; without it all do.
    pub(crate) admission: Option<Admission>,
    /// Which rows go; without it none do.
    pub(crate) expiry: Option<Expiry>,
    /// Whether the strings of keys are kept.
    pub(crate) keeps_names: bool,
    /// Rows are decayed sums, and no weights.
    pub(crate) sums: Option<Sums>,
}

impl Terms {
    /// Check what a model declares for a table.
    ///
    /// # Errors
    /// The words to be shown.
    pub(crate) fn parse(spec: &TableSpec) -> Result<Self, String> {
        Ok(Self {
            admission: spec.admission.as_ref().map(|a| a.parse()).transpose()?,
            expiry: spec.expiry.as_ref().map(|e| e.parse()).transpose()?,
            keeps_names: spec.keep_names,
            sums: Sums::parse(spec)?,
        })
    }

    /// Make the parts of a stripe. Args: `seed` is the table's.
    pub(crate) fn parts(&self, seed: u64, placement: &Placement, stripe: usize) -> Features {
        let mut parts = Features::default();
        if let Some(admission) = self.admission {
            parts.add(AdmissionFilter::of_stripe(
                admission, seed, placement, stripe,
            ));
        }
        if self.expiry.is_some_and(|expiry| expiry.grace > 0) {
            parts.add(Births::default());
        }
        if self.keeps_names {
            parts.add(Names::default());
        }
        parts
    }

    /// Whether a training pull creates the rows that are missing. Where it does not, an update does.
    pub(crate) fn pull_creates(&self) -> bool {
        self.admission.is_none() && self.sums.is_none()
    }

    /// Whether rows may be on disk. Other tables ask for statistics under their own locks.
    pub(crate) fn may_be_cold(&self) -> bool {
        self.sums.is_none()
    }

    /// Return what an update does to rows, where it is not what the optimizer does.
    pub(crate) fn step(&self) -> Option<Step> {
        self.sums.as_ref().map(Sums::step)
    }

    /// Rows, or what is added to them, come into the table.
    pub(crate) fn rows_come(&self, rows: &[f32]) {
        if let Some(sums) = &self.sums {
            sums.note_periods(rows);
        }
    }

    /// Copies of weights leave the table: they may be changed.
    pub(crate) fn rows_leave(&self, rows: &mut [f32]) {
        if let Some(sums) = &self.sums {
            sums.decay_to_newest(rows);
        }
    }
}
