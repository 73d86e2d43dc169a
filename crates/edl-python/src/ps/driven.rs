//! A replica that simulations drive, as Python has it.

use std::collections::HashMap;
use std::sync::Arc;

use edl_ps::{Answer, Change, Driven, Entrance, Step, Synchrony};
use pyo3::prelude::*;

use super::client::PsClient;
use super::store::Store;
use crate::errors::ps_error;

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct Round {
    round: Arc<edl_ps::Round>,
}

#[pymethods]
impl Round {
    #[getter]
    fn version(&self) -> u64 {
        self.round.version
    }

    #[getter]
    fn steps(&self) -> Vec<(u64, u32, u32)> {
        let steps = self.round.parts.iter().map(edl_ps::Part::step);
        steps
            .map(|Step { task, lease, index }| (task, lease, index))
            .collect()
    }
}

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct DrivenReplica {
    driven: Driven,
}

fn step_of((task, lease, index): (u64, u32, u32)) -> Step {
    Step { task, lease, index }
}

#[pymethods]
impl DrivenReplica {
    #[new]
    #[pyo3(signature = (
        store, *, layout = 0, awaits_move = false, max_staleness = None, grads_to_wait = None
    ))]
    fn new(
        store: &Bound<'_, Store>,
        layout: u64,
        awaits_move: bool,
        max_staleness: Option<u64>,
        grads_to_wait: Option<u32>,
    ) -> Self {
        let synchrony = match (grads_to_wait, max_staleness) {
            (Some(grads_to_wait), _) => Synchrony::Synchronous {
                grads_to_wait,
                version_tolerance: 0,
            },
            (None, Some(max_staleness)) => Synchrony::Bounded { max_staleness },
            (None, None) => Synchrony::Asynchronous,
        };
        let store = store.get().store.clone();
        Self {
            driven: Driven::new(store, synchrony, layout, awaits_move),
        }
    }

    #[getter]
    fn store(&self) -> Option<Store> {
        self.driven.store().map(|store| Store { store })
    }

    fn client(&self) -> PyResult<PsClient> {
        Ok(PsClient::over(self.driven.client().map_err(ps_error)?))
    }

    fn entrance(&self, layout: u64, updates: Vec<(u64, u32)>) -> (bool, Option<String>) {
        match self.driven.entrance(layout, &updates) {
            Entrance::Now => (true, None),
            Entrance::Later => (false, None),
            Entrance::Elsewhere(told) => (false, Some(told)),
        }
    }

    fn move_step(
        &self,
        step: &str,
        others: HashMap<String, Py<DrivenReplica>>,
    ) -> PyResult<String> {
        let others = others.into_iter();
        let others = others.map(|(address, of)| (address, of.get().driven.clone()));
        let told = self.driven.move_step(step, others.collect());
        told.map_err(ps_error)
    }

    fn begin_task(&self, connection: u64, task: u64, lease: u32) -> PyResult<u32> {
        let begun = self.driven.begin_task(connection, task, lease);
        begun.map_err(ps_error)
    }

    fn end_task(&self, task: u64, lease: u32) -> PyResult<()> {
        self.driven.end_task(task, lease).map_err(ps_error)
    }

    fn pull(
        &self,
        connection: u64,
        step: Option<(u64, u32, u32)>,
        keys: Vec<u64>,
    ) -> PyResult<Option<u64>> {
        let pulled = self.driven.pull(connection, step.map(step_of), 0, &keys);
        Ok(pulled.map_err(ps_error)?.map(|(version, _)| version))
    }

    fn push(
        &self,
        connection: u64,
        step: (u64, u32, u32),
        keys: Vec<u64>,
        grads: Vec<f32>,
        pulled_version: u64,
        num_records: u32,
    ) -> PyResult<(Option<Round>, u64, Option<u64>)> {
        let change = Change {
            step: step_of(step),
            num_records,
            pulled_version,
            table: 0,
            keys: &keys,
            grads: &grads,
        };
        Ok(
            match self.driven.push(connection, &change).map_err(ps_error)? {
                Answer::Applied(version, staleness) => (None, staleness, Some(version)),
                Answer::InRound(round, staleness) => {
                    let version = round.version;
                    (Some(Round { round }), staleness, Some(version))
                }
                Answer::Staged | Answer::NotYet => (None, 0, None),
            },
        )
    }

    fn commit(&self, round: &Bound<'_, Round>) -> PyResult<()> {
        self.driven.commit(&round.get().round).map_err(ps_error)
    }

    fn lost(&self, connection: u64) {
        self.driven.lost(connection);
    }
}
