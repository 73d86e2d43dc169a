//! One store in this process: no sockets, no copies but into the caller's arrays.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use edl_store::{Chunk, ModelSpec, Push, Store, StoreError, TableGrads, TaskAudit, unseen};
use edl_wire::op::name;

use crate::dedup::Plan;
use crate::elsewhere::Elsewhere;
use crate::error::PsError;
use crate::life;
use crate::names::{self, Batch};
use crate::replicas::{GivenRows, Gradients, Minibatch, OnePush, Pull, Replicas, Vectors};
use crate::service::stats_json;
use crate::tables::{dim_of, scan_rows};

pub(crate) struct Local {
    store: Arc<Store>,
}

impl Local {
    pub(crate) fn new(store: Arc<Store>) -> Result<Self, PsError> {
        if store.num_replicas() != 1 {
            return Err(PsError::Invalid(format!(
                "this store is replica {} of {}; a client in process needs the whole model: \
                 Store(0, 1)",
                store.replica(),
                store.num_replicas()
            )));
        }
        Ok(Self::part(store))
    }

    /// One of several replicas, of which whoever asks knows the keys.
    pub(crate) fn part(store: Arc<Store>) -> Self {
        Self { store }
    }
}

impl Replicas for Local {
    fn count(&self) -> usize {
        1
    }

    fn declare(
        &self,
        model: &ModelSpec,
        dense: &[f32],
        state: &[f32],
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError> {
        for given in given {
            given.in_pieces(model, 0, 1, |table, dim, keys, rows| {
                Ok(self.store.give(table, dim as usize, keys, rows)?)
            })?;
        }
        Ok(self.store.declare(model.clone(), dense, state)?)
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let undeclared = StoreError::NotDeclared("it is used");
        Ok(self.store.model().ok_or(undeclared)?)
    }

    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        Ok(self.store.begin_task(task, lease)?)
    }

    /// There is one replica, which gets all.
    fn settle_task(&self, _task: u64, _lease: u32) -> Result<(), PsError> {
        Ok(())
    }

    /// A client in process is alone: nobody waits for it.
    fn end_task(&self, _task: u64, _lease: u32) -> Result<(), PsError> {
        Ok(())
    }

    fn pull(&self, pull: Pull<'_>) -> Result<(), PsError> {
        let Pull {
            plan,
            mode,
            rows,
            vectors,
            versions,
            ..
        } = pull;
        // The version is read before the rows: staleness may be overstated, never understated.
        versions[0] = match vectors {
            Some(Vectors { dense, state }) => self.store.pull_vectors(dense, state)?,
            None => self.store.version(),
        };
        for (table, rows) in plan.tables.iter().zip(rows) {
            self.store
                .pull_rows(table.table, table.keys(), mode, rows)?;
        }
        Ok(())
    }

    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<(u64, u64), PsError> {
        let tables: Vec<TableGrads<'_>> = plan
            .tables
            .iter()
            .zip(gradients.rows)
            .map(|(table, grads)| TableGrads {
                table: table.table,
                keys: table.keys(),
                grads,
            })
            .collect();
        let push = Push {
            task: minibatch.task,
            lease: minibatch.lease,
            index: minibatch.index,
            num_records: minibatch.num_records,
            learning_rate: minibatch.learning_rate,
            pulled_version: versions[0],
            tables: &tables,
            dense: gradients.dense,
            state: gradients.state,
        };
        let applied = self.store.apply_several(&push, minibatch.num_minibatches)?;
        Ok((applied.version, applied.staleness))
    }

    fn push_each(&self, pushes: &[OnePush<'_>]) -> Result<Vec<(u64, u64)>, PsError> {
        let pushes = pushes.iter();
        pushes
            .map(|one| self.push(one.plan, &one.gradients, one.minibatch, one.versions))
            .collect()
    }

    fn push_pull(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
        next: Pull<'_>,
    ) -> Result<((u64, u64), bool), PsError> {
        let pushed = self.push(plan, gradients, minibatch, versions)?;
        self.pull(next)?;
        Ok((pushed, true))
    }

    /// There is nothing else to tell it from.
    fn store_time(&self) -> Duration {
        Duration::ZERO
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        Ok(self.store.skip(task, lease, index)?)
    }

    fn scan(&self, _replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError> {
        let dim = dim_of(&*self.model()?, table)?;
        Ok(self.store.scan(table, cursor, scan_rows(dim))?)
    }

    fn audit(&self, first: u64) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        self.store.forget_tasks_before(first);
        Ok(vec![self.store.audit()])
    }

    fn stats(&self) -> Result<Vec<String>, PsError> {
        Ok(vec![stats_json(&self.store)?])
    }

    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        Ok(vec![self.store.checkpoint(Path::new(directory))?])
    }

    fn expire(&self, now: u64) -> Result<Vec<String>, PsError> {
        Ok(vec![life::expire(&self.store, now, &unseen)?])
    }

    fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        Ok(vec![life::export(&self.store, request)?])
    }

    fn name(&self, names: &Batch) -> Result<Vec<name::Response>, PsError> {
        let names = names.iter();
        names
            .map(|names| names::name(&self.store, &names::request(names)))
            .collect()
    }

    fn set_address(&self, _replica: usize, _address: &str) -> Result<(), PsError> {
        Err(PsError::Invalid(
            "a client in process has no replica that could move".to_owned(),
        ))
    }

    fn layout(&self) -> u64 {
        0
    }

    fn of_layout(&self, _there: &Elsewhere) -> Result<Arc<dyn Replicas>, PsError> {
        Err(no_move())
    }

    fn move_step(&self, _replica: usize, _step: &str) -> Result<String, PsError> {
        Err(no_move())
    }
}

fn no_move() -> PsError {
    PsError::Invalid("a model in process is one replica and stays one".to_owned())
}
