//! The contents of a store at one instant, or the changes since an earlier instant.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::checkpoint::Snapshot;
use super::{Model, Store};
use crate::error::StoreError;
use crate::features::changes::StripeMark;
use crate::placement::NUM_STRIPES;
use crate::progress::Progress;
use crate::route::hash_slots_of;
use crate::stripe::SavedRows;
use crate::table::Table;

/// The number of cuts that a later cut may be compared with. A caller repeats a failed cut, and
/// continues from the cut before it.
const MAX_MARKS: usize = 4;

/// How long a cut waits for a checkpoint that is being written.
const WAIT: Duration = Duration::from_secs(60);

/// The marks of this store's last cuts, the newest last.
#[derive(Default)]
pub(super) struct Marks(Vec<Mark>);

struct Mark {
    name: String,
    version: u64,
    /// How many rows and counts of keys had gone.
    removals: u64,
    /// By table.
    stripes: Vec<Vec<StripeMark>>,
}

/// A store at one instant, but for its rows.
#[derive(Debug)]
pub struct Cut {
    /// Updates that it had applied.
    pub version: u64,
    /// The version of the earlier cut, if the pieces were what had changed since, and not all.
    pub since: Option<u64>,
    /// Whether rows or counts of keys have gone since then.
    pub has_removals: bool,
    /// The hash slots of its keys.
    pub hash_slots: Range<u32>,
    /// Its range of the dense vector.
    pub dense: Arc<Vec<f32>>,
    /// Its range of the state vector.
    pub state: Arc<Vec<f32>>,
}

/// Some of the rows.
#[derive(Debug)]
pub enum Piece<'a> {
    /// Keys that have gone; of some of them a row may have come again, which is in another piece.
    Gone {
        /// The table's number.
        table: usize,
        /// The keys.
        keys: &'a [u64],
    },
    /// Rows; no key comes twice.
    Rows {
        /// The table's number.
        table: usize,
        /// The keys.
        keys: &'a [u64],
        /// The version of each one's last update.
        versions: &'a [u64],
        /// The numbers that features keep of each, row by row.
        words: &'a [u64],
        /// A row of each: its weights, then the optimizer's slots.
        rows: &'a [f32],
        /// Floats in a row.
        width: usize,
    },
}

impl Store {
    /// Give `take` the contents of this store at one instant, between two updates. Updates go on
    /// meanwhile, and are not part of the cut.
    ///
    /// If `since` names one of the last cuts of this very store, only the changes between that cut
    /// and this one are given: rows that were updated or created, and keys that were removed.
    /// Otherwise all rows are given.
    ///
    /// # Errors
    /// No model has been declared, a checkpoint takes too long, or an error of `take`.
    pub fn cut<E: From<StoreError>>(
        &self,
        name: &str,
        since: Option<&str>,
        progress: Progress<'_>,
        mut take: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<Cut, E> {
        let model = self.declared("a cut is made")?;
        let checkpointing = self.checkpointing.try_lock_for(WAIT);
        let _checkpointing = checkpointing.ok_or_else(|| {
            not_made("this replica still writes a checkpoint; does the disk of that one answer?")
        })?;
        let mut marks = self.marks.lock();
        marks.keep_for(since, model);
        let since = marks.0.iter().find(|mark| Some(&*mark.name) == since);
        let snapshot = Snapshot { model };
        let (mark, cut, gone) = self.mark_cut(&snapshot, name, since)?;
        for (table, keys) in gone.iter().enumerate() {
            if !keys.is_empty() {
                take(Piece::Gone { table, keys })?;
            }
        }
        self.read_cut(model, progress, &mut take)?;
        drop(snapshot);
        marks.0.retain(|other| other.name != name);
        marks.0.push(mark);
        Ok(cut)
    }

    /// Append the weights of whole rows of a table to `out`, as a [`Piece`] has them.
    ///
    /// # Errors
    /// An unknown table.
    pub fn append_weights(
        &self,
        table: u32,
        rows: &[f32],
        out: &mut Vec<f32>,
    ) -> Result<(), StoreError> {
        let row = self.declared("a cut is made")?.table(table)?.row_spec();
        for row_of in rows.chunks_exact(row.width) {
            out.extend_from_slice(&row.weights(row_of[..row.head::<0>()].into()));
        }
        Ok(())
    }

    /// From now on, note which rows change from each cut to the next: then a cut of few changes takes
    /// a time of these alone, and not of all rows.
    ///
    /// # Errors
    /// No model has been declared.
    pub fn note_changes(&self) -> Result<(), StoreError> {
        let model = self.declared("a cut is made")?;
        model.tables.iter().for_each(Table::note_changes);
        Ok(())
    }

    /// Mark one instant; return also the keys that have gone, by table.
    fn mark_cut(
        &self,
        snapshot: &Snapshot<'_>,
        name: &str,
        since: Option<&Mark>,
    ) -> Result<(Mark, Cut, Vec<Vec<u64>>), StoreError> {
        let model = snapshot.model;
        let _updates = self.updates.write();
        self.check_whole()?;
        self.budget.begin_snapshot();
        let version = model.version();
        let removals = self.removals.load(Ordering::Acquire);
        let (mut stripes, mut gone) = (Vec::new(), Vec::new());
        for (number, table) in model.tables.iter().enumerate() {
            let since = since.map(|mark| (mark.version, &mark.stripes[number][..]));
            let (marks, keys) = table.begin_cut(version, since);
            stripes.push(marks);
            gone.push(keys);
        }
        let values = model.vectors.read().values();
        let mark = Mark {
            name: name.to_owned(),
            version,
            removals,
            stripes,
        };
        let cut = Cut {
            version,
            since: since.map(|mark| mark.version),
            has_removals: since.is_some_and(|mark| mark.removals != removals),
            hash_slots: hash_slots_of(self.replica, self.num_replicas),
            dense: values.dense,
            state: values.state,
        };
        Ok((mark, cut, gone))
    }

    fn read_cut<E: From<StoreError>>(
        &self,
        model: &Model,
        progress: Progress<'_>,
        take: &mut impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut saved = SavedRows::default();
        let mut give = |table: usize, saved: &mut SavedRows| {
            if saved.len() > 0 {
                let width = model.tables[table].width();
                let (keys, rows) = (&saved.keys[..], &saved.rows[..]);
                take(Piece::Rows {
                    table,
                    keys,
                    versions: &saved.versions,
                    words: &saved.words,
                    rows,
                    width,
                })?;
                saved.clear();
            }
            progress();
            Ok::<(), E>(())
        };
        let mut copied = 0;
        for stripe in 0..NUM_STRIPES {
            for number in 0..model.tables.len() {
                let mut more = true;
                while more {
                    more = model.tables[number].read_snapshot(stripe, &mut saved)?;
                    give(number, &mut saved)?;
                    // The copies that updates make must stay few.
                    copied = (copied + 1) % NUM_STRIPES;
                    for (number, table) in model.tables.iter().enumerate() {
                        table.take_saved(copied, &mut saved);
                        give(number, &mut saved)?;
                    }
                }
            }
        }
        if self.budget.is_given_up() {
            let problem = "its files have not been taken by the disk for too long while updates \
                           waited; training goes on without it";
            return Err(not_made(problem).into());
        }
        Ok(())
    }
}

impl Marks {
    /// Forget the cuts that are older than `since`, which whoever asks has, and the oldest of many.
    fn keep_for(&mut self, since: Option<&str>, model: &Model) {
        let known = self.0.iter().position(|mark| Some(&*mark.name) == since);
        let many = (self.0.len() + 1).saturating_sub(MAX_MARKS);
        self.0.drain(..known.unwrap_or(many));
        if let Some(oldest) = self.0.first() {
            for (table, marks) in model.tables.iter().zip(&oldest.stripes) {
                table.forget_gone(marks);
            }
        }
    }
}

fn not_made(problem: &str) -> StoreError {
    StoreError::Checkpoint {
        path: Path::new("an export").to_owned(),
        problem: problem.to_owned(),
    }
}
