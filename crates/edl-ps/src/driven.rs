//! A replica without a server, for simulations, in which no thread waits.
//!
//! A request that would wait is answered "not yet" at once, and is sent again. Meanwhile a gradient
//! stays in its round, as if its thread still waited there. A caller first asks whether it may use
//! a layout ([`Driven::entrance`]).

use std::collections::HashMap;
use std::sync::Arc;

use edl_store::{PullMode, Push, Store, StoreError, TableGrads, unseen};
use edl_wire::op::{Round, Step};

use crate::client::PsClient;
use crate::error::PsError;
use crate::moving::{Entrance, Host, Hosted, Layout, Near, Served, Update};
use crate::synchrony::{Coordinator, Peer, Pushed, Synchrony};
use crate::tables::dim_of;

/// The served store, and the coordinator that decides when its updates are made.
#[derive(Clone)]
pub struct Driven {
    hosted: Arc<Hosted>,
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

/// The result of a push.
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

/// The caller: the number of a connection.
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
    /// A replica that serves a store; one that `awaits_move` serves nothing until that is over.
    pub fn new(store: Arc<Store>, synchrony: Synchrony, layout: u64, awaits_move: bool) -> Self {
        synchrony.bind(&store);
        let coordinator = Coordinator::new(synchrony, store.replica());
        let layout = Layout {
            number: layout,
            replica: store.replica(),
            num_replicas: store.num_replicas(),
        };
        let how = (synchrony, false, store.first_lease());
        let host = Host::new((!awaits_move).then_some(store), layout);
        let hosted = Hosted::new(host, coordinator, how, &[], None);
        Self {
            hosted: Arc::new(hosted),
        }
    }

    /// The store that is served now, if any is.
    pub fn store(&self) -> Option<Arc<Store>> {
        self.hosted.store()
    }

    /// A client of that store alone; whoever asks it for keys knows that they are there.
    ///
    /// # Errors
    /// None is served.
    pub fn client(&self) -> Result<PsClient, PsError> {
        Ok(PsClient::of_part(self.served()?.store))
    }

    /// Whether a request of a layout may be done now; `updates` are (task, minibatch) of those that
    /// it would make.
    pub fn entrance(&self, layout: u64, updates: &[Update]) -> Entrance {
        self.hosted.entrance(layout, updates)
    }

    /// Does a step of a move. `others` are all that can be reached, by address.
    ///
    /// # Errors
    /// As a replica's.
    pub fn move_step(&self, step: &str, others: HashMap<String, Self>) -> Result<String, PsError> {
        let others = others.into_iter();
        let near: Near = others.map(|(address, of)| (address, of.hosted)).collect();
        self.hosted.step(step, None, Some(&near), &unseen)
    }

    fn served(&self) -> Result<Served, PsError> {
        let nothing = || StoreError::NotDeclared("this replica has no part of the model");
        Ok(self.hosted.served(0, || false).ok_or_else(nothing)?)
    }

    /// Begins a lease; returns the minibatch that is next.
    ///
    /// # Errors
    /// As those of [`Store::begin_task`].
    pub fn begin_task(&self, connection: u64, task: u64, lease: u32) -> Result<u32, PsError> {
        let served = self.served()?;
        let next = served.store.begin_task(task, lease)?;
        let peer = Caller(connection);
        served.coordinator.begun(&served.store, task, lease, &peer);
        Ok(next)
    }

    /// Ends a lease.
    ///
    /// # Errors
    /// Nothing is served.
    pub fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        let served = self.served()?;
        served.coordinator.ended(&served.store, task, lease);
        Ok(())
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
        let Served {
            store, coordinator, ..
        } = self.served()?;
        let undeclared = StoreError::NotDeclared("it is used");
        let model = store.model().ok_or(undeclared)?;
        let begins = |step| coordinator.begin_pull(&store, step, &Caller(connection));
        if !step.is_none_or(begins) {
            return Ok(None);
        }
        let version = store.version();
        let mut rows = vec![0.0; keys.len() * dim_of(&model, table)?];
        store.pull_rows(table, keys, PullMode::Create, &mut rows)?;
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
        let served = self.served()?;
        let peer = Caller(connection);
        let pushed = served.coordinator.push(&served.store, &push, &peer)?;
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
        let served = self.served()?;
        served.coordinator.commit(&served.store, round)
    }

    /// A connection is lost.
    pub fn lost(&self, connection: u64) {
        self.hosted.lost(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: &str = r#"{"tables": [{"name": "t", "dim": 1,
        "initializer": {"kind": "constant", "params": {"value": 0.0}},
        "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 0}"#;

    fn replica_that_makes_rounds_of_two() -> Driven {
        let store = Arc::new(Store::new(0, 1));
        let model = edl_store::ModelSpec::from_json(MODEL).unwrap();
        store.declare(model, &[], &[]).unwrap();
        let synchrony = Synchrony::Synchronous {
            grads_to_wait: 2,
            version_tolerance: 0,
        };
        let replica = Driven::new(store, synchrony, 0, false);
        for task in [1, 2] {
            replica.begin_task(task, task, 1).unwrap();
        }
        replica
    }

    fn push(replica: &Driven, task: u64) -> Answer {
        let change = Change {
            step: Step {
                task,
                lease: 1,
                index: 0,
            },
            num_records: 1,
            pulled_version: 0,
            table: 0,
            keys: &[task],
            grads: &[-1.0],
        };
        replica.push(task, &change).unwrap()
    }

    #[test]
    fn a_gradient_waits_in_its_round_until_the_other_has_come() {
        let replica = replica_that_makes_rounds_of_two();
        assert!(matches!(push(&replica, 1), Answer::NotYet));
        assert!(matches!(push(&replica, 1), Answer::NotYet));
        assert!(matches!(push(&replica, 2), Answer::InRound(..)));
        assert!(matches!(push(&replica, 1), Answer::InRound(..)));
        let (version, rows) = replica.pull(1, None, 0, &[1, 2]).unwrap().unwrap();
        assert_eq!((version, rows), (1, vec![0.5, 0.5]));
    }

    #[test]
    fn no_round_is_made_while_a_move_holds_the_replica() {
        let replica = replica_that_makes_rounds_of_two();
        let step = |step: &str| {
            let wanted = format!(r#"{{"{step}": {{"number": 1, "hold": 1}}}}"#);
            replica.move_step(&wanted, HashMap::new()).unwrap()
        };
        assert!(matches!(push(&replica, 1), Answer::NotYet));
        step("hold");
        replica.lost(2); // who is left would make a round of its own
        assert_eq!(replica.store().unwrap().version(), 0);
        step("release");
        assert!(matches!(push(&replica, 1), Answer::InRound(..)));
    }

    #[test]
    fn no_update_after_a_move_is_made_again_by_a_successor_that_lacks_one_of_the_move() {
        let declared = || {
            let store = Store::new(0, 1);
            let model = edl_store::ModelSpec::from_json(MODEL).unwrap();
            store.declare(model, &[], &[]).unwrap();
            store
        };
        let redo_dir = tempfile::tempdir().unwrap();
        let replica = Driven::new(Arc::new(declared()), Synchrony::Asynchronous, 0, false);
        let step = |step: serde_json::Value| {
            let told = replica.move_step(&step.to_string(), HashMap::new());
            told.unwrap()
        };
        step(
            serde_json::json!({"begin": {"number": 1, "replica": 0, "num_replicas": 1,
            "model": MODEL, "is_restored": false, "num_rows": [0], "memory_limit": null}}),
        );
        step(
            serde_json::json!({"ready": {"number": 1, "marks": {"version": 1, "first_task": 0,
            "watermarks": [[1, 1, 1, 1]], "rests": [], "times": [], "periods": [0]},
            "redo_log": {"folder": redo_dir.path(), "limit": 1 << 20}}}),
        );
        step(serde_json::json!({"switch": {"number": 1, "leaves": false, "addresses": []}}));
        replica.begin_task(2, 2, 1).unwrap();
        push(&replica, 2);
        // The checkpoint of the move has not the update of task 1, which came while rows were given.
        let successor = declared();
        let redone = successor.redo(redo_dir.path(), 1 << 20, &unseen).unwrap();
        assert_eq!((redone.num_updates, successor.version()), (0, 0));
    }
}
