//! The parts that move when the number of replicas changes: rows, parts of the vectors, watermarks.
//!
//! A store belongs to one number of replicas. So a replica that will hold another part of the model
//! fills a second store beside the first, from the first store and from others. The rows come by
//! [`Store::cut`], the facts beside them by [`Store::give_remembered`], and the vectors by
//! [`Store::read_part`]. `docs/designs/resharding.md` tells when the second store becomes valid.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::{Model, Store};
use crate::error::StoreError;
use crate::features::life::Times;
use crate::features::moving::Remembered;
use crate::placement::Placement;
use crate::route::dense_range;
use crate::spec::ModelSpec;
use crate::table::Table;
use crate::tasks::Watermark;
use crate::vectors::{DenseRule, Vectors};

/// All that a store holds beside rows and vectors.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovedMarks {
    /// Updates that it had applied.
    pub version: u64,
    /// Tasks before it are done with.
    pub first_task: u64,
    /// Task, lease, next minibatch, records; by task.
    pub watermarks: Vec<(u64, u32, u32, u64)>,
    /// In how many updates each dense variable rested; none as long as none did.
    pub rests: Vec<u64>,
    /// Versions, and the times in seconds since 1970 at which they were there; rising.
    #[serde(default)]
    pub times: Vec<(u64, u64)>,
    /// For each table, the newest period that was added to, as the bits of a float; 0 if its rows
    /// are no statistics.
    #[serde(default)]
    pub periods: Vec<u32>,
}

/// Rows of one table that move.
#[derive(Debug, Clone, Copy)]
pub struct RowsToPut<'a> {
    /// Keys.
    pub keys: &'a [u64],
    /// The version of each one's last update.
    pub versions: &'a [u64],
    /// The numbers that features keep of each, row by row.
    pub words: &'a [u64],
    /// Weights and slots of each.
    pub rows: &'a [f32],
}

impl Store {
    /// Return the model, and whether it is a checkpoint's that nobody has declared since.
    ///
    /// # Errors
    /// No model has been declared.
    pub fn model_to_move(&self) -> Result<(Arc<ModelSpec>, bool), StoreError> {
        let model = self.declared("its rows move")?;
        let restored = model.restored.load(Ordering::Acquire);
        Ok((model.spec.read().clone(), restored))
    }

    /// Make a store that is to be filled with what others have, and is not to be used before.
    ///
    /// Args: `is_restored` as [`Store::model_to_move`] says; `num_rows` by table, as far as known.
    ///
    /// # Errors
    /// A model that cannot be stored.
    pub fn to_be_filled(
        spec: ModelSpec,
        is_restored: bool,
        replica: u32,
        num_replicas: u32,
        num_rows: &[u64],
    ) -> Result<Self, StoreError> {
        let store = Self::new(replica, num_replicas);
        let placement = Placement::new(replica, num_replicas)?;
        let held = dense_range(spec.dense_len()?, replica, num_replicas);
        let state = dense_range(spec.state_len()?, replica, num_replicas);
        let rule = DenseRule::of(&spec, held.clone())?;
        let tables = Table::all_of(&spec, placement, &store.budget)?;
        for (table, &num_rows) in tables.iter().zip(num_rows) {
            table.reserve_rows(num_rows);
        }
        let vectors = Vectors::new(rule, &vec![0.0; held.len()], &vec![0.0; state.len()]);
        let spec = Arc::new(spec);
        let model = Model {
            restored: AtomicBool::new(is_restored),
            ..Model::new(spec.clone(), placement, tables, vectors)
        };
        model.treat(&spec, &store)?;
        // No other thread has the store yet.
        let _ = store.model.set(model);
        Ok(store)
    }

    /// Have rows as another store has them, weights and slots, unless later versions are here: what
    /// comes late, or again, changes nothing.
    ///
    /// # Errors
    /// An unknown table, arrays that do not fit, keys of another replica, or no memory for them.
    pub fn put_moved(&self, table: u32, given: &RowsToPut<'_>) -> Result<(), StoreError> {
        let model = self.declared("rows move to it")?;
        let RowsToPut {
            keys,
            versions,
            words,
            rows,
        } = *given;
        model.table(table)?.put(keys, versions, words, rows)
    }

    /// Give `take` the facts that are remembered of keys beside rows, with the number of each
    /// table: all of them, or the changes after the version of an earlier cut. Updates may go on
    /// meanwhile, and may be part of it. A receiver is complete with the facts of one version, and
    /// the changes after it while nothing was updated.
    ///
    /// # Errors
    /// No model has been declared, or an error of `take`.
    pub fn give_remembered<E: From<StoreError>>(
        &self,
        since: Option<u64>,
        mut take: impl FnMut(u32, &Remembered) -> Result<(), E>,
    ) -> Result<(), E> {
        let model = self.declared("what is remembered moves")?;
        for (number, table) in (0..).zip(&model.tables) {
            table.give_remembered(since, &mut |found| take(number, found))?;
        }
        Ok(())
    }

    /// Remember the facts of another store about keys of this store. Late or repeated facts change
    /// nothing, if the rows of those keys are here.
    ///
    /// # Errors
    /// An unknown table, arrays that do not fit, or keys of another replica.
    pub fn put_remembered(&self, table: u32, given: &Remembered) -> Result<(), StoreError> {
        let model = self.declared("what is remembered moves to it")?;
        model.table(table)?.put_remembered(given)
    }

    /// Return what this store holds beside rows and vectors, at one instant.
    ///
    /// # Errors
    /// No model has been declared.
    pub fn marks_to_move(&self) -> Result<MovedMarks, StoreError> {
        let model = self.declared("its watermarks move")?;
        let _updates = self.updates.write();
        self.check_whole()?;
        let watermarks = model.tasks.all().into_iter();
        Ok(MovedMarks {
            version: model.version(),
            first_task: model.tasks.first(),
            watermarks: watermarks
                .map(|(task, mark)| (task, mark.lease, mark.next_index, mark.num_records))
                .collect(),
            rests: model.vectors.read().rests().to_vec(),
            times: model.times.lock().notes().to_vec(),
            periods: model.tables.iter().map(Table::newest_period).collect(),
        })
    }

    /// Hold that in place of what this store held beside rows and vectors.
    ///
    /// # Errors
    /// No model has been declared.
    pub fn take_moved_marks(&self, marks: &MovedMarks) -> Result<(), StoreError> {
        let model = self.declared("watermarks move to it")?;
        let _updates = self.updates.write();
        let watermarks = marks.watermarks.iter();
        model
            .tasks
            .replace(watermarks.map(|&(task, lease, next_index, num_records)| {
                let mark = Watermark {
                    lease,
                    next_index,
                    num_records,
                };
                (task, mark)
            }));
        model.tasks.forget_before(marks.first_task);
        model.vectors.write().take_rests(marks.rests.clone());
        *model.times.lock() = Times::restored(marks.times.clone());
        for (table, &period) in model.tables.iter().zip(&marks.periods) {
            table.note_newest_period(period);
        }
        model.begun.store(marks.version, Ordering::Release);
        model.version.store(marks.version, Ordering::Release);
        Ok(())
    }
}
