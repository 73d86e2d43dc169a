//! A replica's ranges of the flat dense and state vectors.

use std::sync::Arc;

use edl_optim::Optimizer;

use crate::error::StoreError;

/// The values; a snapshot holds on to them while updates go on in copies.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pub(crate) dense: Arc<Vec<f32>>,
    /// The optimizer's slots, one after the other, each as long as `dense`.
    pub(crate) slots: Arc<Vec<f32>>,
    pub(crate) state: Arc<Vec<f32>>,
}

pub(crate) struct Vectors {
    optimizer: Optimizer,
    values: Values,
}

impl Vectors {
    /// Begin with fresh slots.
    pub(crate) fn new(optimizer: Optimizer, dense: &[f32], state: &[f32]) -> Self {
        let mut slots = vec![0.0; dense.len() * optimizer.num_slots()];
        optimizer.fill_slots(&mut slots);
        let values = Values {
            dense: Arc::new(dense.to_vec()),
            slots: Arc::new(slots),
            state: Arc::new(state.to_vec()),
        };
        Self { optimizer, values }
    }

    /// Go on from a checkpoint's values, whose lengths fit each other.
    pub(crate) fn restored(optimizer: Optimizer, values: Values) -> Self {
        Self { optimizer, values }
    }

    pub(crate) fn values(&self) -> Values {
        self.values.clone()
    }

    pub(crate) fn bytes(&self) -> usize {
        let Values {
            dense,
            slots,
            state,
        } = &self.values;
        4 * (dense.len() + slots.len() + state.len())
    }

    /// Check the lengths of a dense and a state array.
    pub(crate) fn check(&self, dense: usize, state: usize) -> Result<(), StoreError> {
        check_len("the dense vector", self.values.dense.len(), dense)?;
        check_len("the state vector", self.values.state.len(), state)
    }

    /// Copy the values out; the lengths have been checked.
    pub(crate) fn read(&self, dense: &mut [f32], state: &mut [f32]) {
        dense.copy_from_slice(&self.values.dense);
        state.copy_from_slice(&self.values.state);
    }

    /// Update the dense vector by its gradient, as update number `t`, and add to the state.
    pub(crate) fn apply(&mut self, gradient: &[f32], delta: &[f32], learning_rate: f32, t: u64) {
        if !gradient.is_empty() {
            let dense = Arc::make_mut(&mut self.values.dense);
            let slots = Arc::make_mut(&mut self.values.slots);
            let step = self.optimizer.step(learning_rate, t).without_groups();
            step.update(dense, slots, gradient);
        }
        if !delta.is_empty() {
            let state = Arc::make_mut(&mut self.values.state);
            for (value, delta) in state.iter_mut().zip(delta) {
                *value += delta;
            }
        }
    }
}

pub(crate) fn check_len(what: &str, expected: usize, found: usize) -> Result<(), StoreError> {
    if expected == found {
        return Ok(());
    }
    Err(StoreError::WrongLength {
        what: what.to_owned(),
        expected,
        found,
    })
}
