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
        // Written here, and not only asked for: a joiner of an all-reduce job makes its first update
        // while others wait for it.
        let num_slots = dense.len() * rule.optimizer.num_slots();
        let mut slots = Vec::with_capacity(num_slots);
        slots.resize(num_slots, 0.0);
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

    /// As [`Treatment::merge`].
    pub(crate) fn merge_state(&self, parts: &[(&[f32], f32)]) -> Vec<f32> {
        self.treatment.merge(parts)
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

    /// How many slots the optimizer has for each dense value.
    pub(crate) fn num_slots(&self) -> usize {
        self.rule.optimizer.num_slots()
    }

    /// Copy a part out, as [`Vectors::write_part`] takes it.
    pub(crate) fn read_part(&self, part: Range<usize>, out: &mut [f32]) -> Result<(), StoreError> {
        let (dense, state) = self.cut(part, out.len())?;
        let mut rest = out;
        for source in self.sources(&dense) {
            let (one, others) = rest.split_at_mut(dense.len());
            one.copy_from_slice(source);
            rest = others;
        }
        rest.copy_from_slice(&self.values.state[state]);
        Ok(())
    }

    /// Replace a part: its range of the dense vector, that of each slot, its range of the state.
    ///
    /// `part` counts the dense values, and after them those of the state.
    pub(crate) fn write_part(
        &mut self,
        part: Range<usize>,
        values: &[f32],
    ) -> Result<(), StoreError> {
        let (dense, state) = self.cut(part, values.len())?;
        let (len, num_slots) = (self.values.dense.len(), self.num_slots());
        let (dense_values, mut rest) = values.split_at(dense.len());
        Arc::make_mut(&mut self.values.dense)[dense.clone()].copy_from_slice(dense_values);
        if !dense.is_empty() {
            let slots = Arc::make_mut(&mut self.values.slots);
            for number in 0..num_slots {
                let (one, others) = rest.split_at(dense.len());
                slots[number * len + dense.start..][..dense.len()].copy_from_slice(one);
                rest = others;
            }
        }
        if !state.is_empty() {
            Arc::make_mut(&mut self.values.state)[state].copy_from_slice(rest);
        }
        Ok(())
    }

    /// The range of the dense vector, then that of each slot.
    fn sources<'a>(&'a self, dense: &'a Range<usize>) -> impl Iterator<Item = &'a [f32]> {
        let len = self.values.dense.len();
        let slots = (0..self.num_slots())
            .map(move |number| &self.values.slots[number * len + dense.start..][..dense.len()]);
        std::iter::once(&self.values.dense[dense.clone()]).chain(slots)
    }

    /// What of the dense vector and of the state is in a part, which has so many values in all.
    fn cut(
        &self,
        part: Range<usize>,
        found: usize,
    ) -> Result<(Range<usize>, Range<usize>), StoreError> {
        let (len, whole) = (
            self.values.dense.len(),
            self.values.dense.len() + self.values.state.len(),
        );
        if part.start > part.end || part.end > whole {
            return Err(StoreError::WrongLength {
                what: format!("the model that a part {}..{} is of", part.start, part.end),
                expected: whole,
                found: part.end,
            });
        }
        let dense = part.start.min(len)..part.end.min(len);
        let state = part.start.max(len) - len..part.end.max(len) - len;
        let expected = dense.len() * (1 + self.num_slots()) + state.len();
        check_len("a part of the parameters", expected, found)?;
        Ok((dense, state))
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
