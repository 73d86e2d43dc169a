//! A replica's ranges of the flat dense and state vectors.

use std::ops::Range;
use std::sync::Arc;

use edl_optim::{Constraint, Optimizer};

use crate::error::StoreError;
use crate::spec::{ModelSpec, VariableSpec};
use crate::treatment::Treatment;

/// The values; a snapshot holds on to them while updates go on in copies.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pub(crate) dense: Arc<Vec<f32>>,
    /// The optimizer's slots, one after the other, each as long as `dense`.
    pub(crate) slots: Arc<Vec<f32>>,
    pub(crate) state: Arc<Vec<f32>>,
}

/// How the dense vector is updated.
#[derive(Debug)]
pub(crate) struct DenseRule {
    optimizer: Optimizer,
    /// What of this replica's range decays, where the optimizer has a weight decay.
    decaying: Vec<Range<usize>>,
    /// What of it is held to be not negative.
    not_negative: Vec<Range<usize>>,
}

impl DenseRule {
    /// Of the range `held` of a model's dense vector.
    pub(crate) fn of(model: &ModelSpec, held: Range<usize>) -> Result<Self, StoreError> {
        for variable in &model.dense {
            let Some(constraint) = &variable.constraint else {
                continue;
            };
            let bad = |problem| {
                StoreError::BadModel(format!("dense variable '{}': {problem}", variable.name))
            };
            if constraint.parse().map_err(bad)? != Constraint::NonNegative {
                return Err(bad(format!(
                    "constraint '{}' needs the whole variable, which may be split; expected \
                     non_neg",
                    constraint.kind
                )));
            }
        }
        Ok(Self {
            optimizer: model.optimizer.parse()?,
            decaying: parts(&model.dense, &held, |v| v.decays),
            not_negative: parts(&model.dense, &held, |v| v.constraint.is_some()),
        })
    }
}

/// Where chosen variables lie in a range of the dense vector; neighbours are put together.
fn parts(
    variables: &[VariableSpec],
    held: &Range<usize>,
    chosen: impl Fn(&VariableSpec) -> bool,
) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    for variable in variables.iter().filter(|v| chosen(v)) {
        let first = variable.offset as usize;
        let end = first + variable.shape.iter().product::<u64>() as usize;
        let (first, end) = (first.max(held.start), end.min(held.end));
        if first >= end {
            continue;
        }
        let part = first - held.start..end - held.start;
        match parts.last_mut() {
            Some(last) if last.end == part.start => last.end = part.end,
            _ => parts.push(part),
        }
    }
    parts
}

pub(crate) struct Vectors {
    rule: DenseRule,
    treatment: Treatment,
    values: Values,
}

impl Vectors {
    /// Begin with fresh slots.
    pub(crate) fn new(rule: DenseRule, dense: &[f32], state: &[f32]) -> Self {
        let mut slots = vec![0.0; dense.len() * rule.optimizer.num_slots()];
        rule.optimizer.fill_slots(dense, &mut slots);
        let values = Values {
            dense: Arc::new(dense.to_vec()),
            slots: Arc::new(slots),
            state: Arc::new(state.to_vec()),
        };
        Self {
            rule,
            treatment: Treatment::default(),
            values,
        }
    }

    /// Go on from a checkpoint's values, whose lengths fit each other.
    pub(crate) fn restored(rule: DenseRule, values: Values) -> Self {
        Self {
            rule,
            treatment: Treatment::default(),
            values,
        }
    }

    /// From now on, do to each variable what the model says.
    pub(crate) fn treat(&mut self, treatment: Treatment) {
        self.treatment = treatment;
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

    /// Update the dense vector by its gradient, as update number `t`, and the state by its change.
    ///
    /// Args: `weight` as in [`Treatment::change`].
    pub(crate) fn apply(
        &mut self,
        gradient: &[f32],
        change: &[f32],
        weight: f32,
        learning_rate: f32,
        t: u64,
    ) {
        if !gradient.is_empty() {
            let dense = Arc::make_mut(&mut self.values.dense);
            let slots = Arc::make_mut(&mut self.values.slots);
            let frozen = self.treatment.frozen(dense, slots);
            let step = self.rule.optimizer.step(learning_rate, t);
            let (decay, step) = step.of_a_flat_vector();
            if let Some(decay) = decay {
                for part in &self.rule.decaying {
                    decay.apply(&mut dense[part.clone()]);
                }
            }
            step.update(dense, slots, gradient);
            for part in &self.rule.not_negative {
                Constraint::NonNegative.apply(&mut dense[part.clone()]);
            }
            frozen.put_back(dense, slots);
        }
        if !change.is_empty() {
            let state = Arc::make_mut(&mut self.values.state);
            self.treatment.change(state, change, weight);
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
