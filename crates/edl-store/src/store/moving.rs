//! What moves when the number of replicas changes: rows, parts of the vectors, watermarks.
//!
//! A store is of one number of replicas. So whoever is to hold another part of the model fills a
//! second store beside it, from what others and the first one give: rows by [`Store::cut`], the
//! vectors by [`Store::read_part`]. `docs/designs/resharding.md` tells when that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::{Model, Store};
use crate::error::StoreError;
use crate::life::Times;
use crate::placement::Placement;
use crate::route::dense_range;
use crate::spec::ModelSpec;
use crate::table::Table;
use crate::tasks::{Tasks, Watermark};
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
}

impl Store {
    /// Check that nothing of this store is beyond what can move.
    ///
    /// # Errors
    /// No model has been declared, a table with a life cycle, statistics or names.
    pub fn check_movable(&self) -> Result<(), StoreError> {
        let model = self.declared("its rows move")?;
        match model.tables.iter().find(|table| !table.is_movable()) {
            None => Ok(()),
            Some(table) => Err(StoreError::BadModel(format!(
                "rows of table '{}' cannot move, since it has admission, expiry, statistics or \
                 keep_names; expected a table without them",
                table.name()
            ))),
        }
    }

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
        let tables = spec.tables.iter();
        let tables =
            tables.map(|table| Table::new(table, spec.seed, placement, store.budget.clone()));
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        for (table, &num_rows) in tables.iter().zip(num_rows) {
            table.reserve_rows(num_rows);
        }
        let vectors = Vectors::new(rule, &vec![0.0; held.len()], &vec![0.0; state.len()]);
        let spec = Arc::new(spec);
        let model = Model {
            restored: AtomicBool::new(is_restored),
            placement,
            tables,
            vectors: RwLock::new(vectors),
            begun: AtomicU64::new(0),
            version: AtomicU64::new(0),
            tasks: Tasks::default(),
            staleness: Mutex::default(),
            times: Mutex::new(Times::default()),
            spec: RwLock::new(spec.clone()),
        };
        model.treat(&spec, &store)?;
        // Nobody else has the store yet.
        let _ = store.model.set(model);
        Ok(store)
    }

    /// Have rows as another store has them, weights and slots, unless later versions are here: what
    /// comes late, or again, changes nothing.
    ///
    /// # Errors
    /// An unknown table, arrays that do not fit, keys of another replica, or no memory for them.
    pub fn put_moved(
        &self,
        table: u32,
        keys: &[u64],
        versions: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        let model = self.declared("rows move to it")?;
        model.table(table)?.put(keys, versions, rows)
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
        model.begun.store(marks.version, Ordering::Release);
        model.version.store(marks.version, Ordering::Release);
        Ok(())
    }
}
