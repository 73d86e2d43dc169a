//! A replica without a server, for simulations: nobody waits in a thread.
//!
//! What would wait is answered "not yet" at once, and is asked again; meanwhile a gradient stays in
//! its round, as if its thread still waited there.

use std::sync::Arc;

use edl_store::{PullMode, Push, Store, TableGrads};
use edl_wire::op::{Round, Step};

use crate::error::PsError;
use crate::synchrony::{Coordinator, Peer, Pushed, Synchrony};
use crate::tables::dim_of;

/// A store, and who says when its updates are made.
pub struct Driven {
    store: Arc<Store>,
    coordinator: Coordinator,
}

/// The rows of one table that a minibatch changes.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    /// Of the minibatch.
    pub step: Step,
    /// Records in it.
    pub num_records: u32,
    /// This replica's version when they were pulled.
    pub pulled_version: u64,
    /// Number of the table.
    pub table: u32,
    /// Each once.
    pub keys: &'a [u64],
    /// A row for each key.
    pub grads: &'a [f32],
}

/// What became of a push.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is applied, or had been: the version, and the gradient's staleness.
    Applied(u64, u64),
    /// It is kept until its round is committed.
    Staged,
    /// It was part of a round, with a staleness of its own.
    InRound(Arc<Round>, u64),
    /// It waits; the same is to be pushed again.
    NotYet,
}

/// Who asks: the number of a connection.
struct Caller(u64);

impl Peer for Caller {
    fn id(&self) -> u64 {
        self.0
    }

    fn is_there(&self) -> bool {
        true
    }

    fn waits_elsewhere(&self) -> bool {
        true
    }
}

impl Driven {
    /// Replica `replica` of a job; each has a store of its own.
    pub fn new(store: Arc<Store>, synchrony: Synchrony, replica: u32) -> Self {
        synchrony.bind(&store);
        Self {
            store,
            coordinator: Coordinator::new(synchrony, replica),
        }
    }

    /// Begins a lease; returns the minibatch that is next.
    ///
    /// # Errors
    /// As those of [`Store::begin_task`].
    pub fn begin_task(&self, connection: u64, task: u64, lease: u32) -> Result<u32, PsError> {
        let next = self.store.begin_task(task, lease)?;
        let peer = Caller(connection);
        self.coordinator.begun(&self.store, task, lease, &peer);
        Ok(next)
    }

    /// Ends a lease.
    pub fn end_task(&self, task: u64, lease: u32) {
        self.coordinator.ended(&self.store, task, lease);
    }

    /// The version and rows; `None` if a training pull has to wait. The step of one that need not
    /// is not given.
    ///
    /// # Errors
    /// The model is not declared.
    pub fn pull(
        &self,
        connection: u64,
        step: Option<Step>,
        table: u32,
        keys: &[u64],
    ) -> Result<Option<(u64, Vec<f32>)>, PsError> {
        let undeclared = edl_store::StoreError::NotDeclared("it is used");
        let model = self.store.model().ok_or(undeclared)?;
        let begins = |step| {
            let peer = Caller(connection);
            self.coordinator.begin_pull(&self.store, step, &peer)
        };
        if !step.is_none_or(begins) {
            return Ok(None);
        }
        let version = self.store.version();
        let mut rows = vec![0.0; keys.len() * dim_of(&model, table)?];
        self.store
            .pull_rows(table, keys, PullMode::Create, &mut rows)?;
        Ok(Some((version, rows)))
    }

    /// Hands in a gradient.
    ///
    /// # Errors
    /// As a replica's.
    pub fn push(&self, connection: u64, change: &Change<'_>) -> Result<Answer, PsError> {
        let tables = [TableGrads {
            table: change.table,
            keys: change.keys,
            grads: change.grads,
        }];
        let Step { task, lease, index } = change.step;
        let push = Push {
            task,
            lease,
            index,
            num_records: change.num_records,
            learning_rate: 1.0,
            pulled_version: change.pulled_version,
            tables: &tables,
            dense: &[],
            state: &[],
        };
        let peer = Caller(connection);
        let pushed = self.coordinator.push(&self.store, &push, &peer)?;
        Ok(match pushed {
            Pushed::Applied(applied) => Answer::Applied(applied.version, applied.staleness),
            Pushed::Staged => Answer::Staged,
            Pushed::InRound(round, staleness) => Answer::InRound(round, staleness),
            Pushed::NotYet => Answer::NotYet,
        })
    }

    /// Does what replica 0 has done.
    ///
    /// # Errors
    /// As a replica's.
    pub fn commit(&self, round: &Round) -> Result<(), PsError> {
        self.coordinator.commit(&self.store, round)
    }

    /// A connection is lost.
    pub fn lost(&self, connection: u64) {
        self.coordinator.lost(&self.store, connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"{"tables": [{"name": "t", "dim": 1,
        "initializer": {"kind": "constant", "params": {"value": 0.0}},
        "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 0}"#;

    #[test]
    fn a_gradient_waits_in_its_round_until_the_other_has_come() {
        let store = Arc::new(Store::new(0, 1));
        let model = edl_store::ModelSpec::from_json(MODEL).unwrap();
        store.declare(model, &[], &[]).unwrap();
        let synchrony = Synchrony::Synchronous {
            grads_to_wait: 2,
            version_tolerance: 0,
        };
        let replica = Driven::new(store, synchrony, 0);
        let push = |task: u64| {
            let step = Step {
                task,
                lease: 1,
                index: 0,
            };
            let change = Change {
                step,
                num_records: 1,
                pulled_version: 0,
                table: 0,
                keys: &[task],
                grads: &[-1.0],
            };
            replica.push(task, &change).unwrap()
        };
        for task in [1, 2] {
            replica.begin_task(task, task, 1).unwrap();
        }
        assert!(matches!(push(1), Answer::NotYet));
        assert!(matches!(push(1), Answer::NotYet));
        assert!(matches!(push(2), Answer::InRound(..)));
        assert!(matches!(push(1), Answer::InRound(..)));
        let (version, rows) = replica.pull(1, None, 0, &[1, 2]).unwrap().unwrap();
        assert_eq!((version, rows), (1, vec![0.5, 0.5]));
    }
}
