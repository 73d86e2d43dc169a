//! The effect of an update on each variable besides the optimizer: some variables keep their
//! values, and state has a momentum.

use std::ops::Range;

use crate::error::StoreError;
use crate::route::dense_range;
use crate::spec::{ModelSpec, VariableSpec};

/// The treatment of one replica's ranges of the dense and state vectors.
#[derive(Debug, Default)]
pub(crate) struct Treatment {
    /// The parts of the dense range that are not trained.
    frozen: Vec<Range<usize>>,
    /// The parts of the state range whose momentum is not 1, each with its momentum.
    moving: Vec<(Range<usize>, f32)>,
}

/// Values of dense variables that are not trained, and of their slots.
pub(crate) struct Frozen(Vec<(Range<usize>, Vec<f32>)>);

impl Treatment {
    pub(crate) fn of(
        model: &ModelSpec,
        replica: u32,
        num_replicas: u32,
    ) -> Result<Self, StoreError> {
        let dense = dense_range(model.dense_len()?, replica, num_replicas);
        let state = dense_range(model.state_len()?, replica, num_replicas);
        let mut treatment = Self::default();
        for variable in model.dense.iter().filter(|variable| !variable.trainable) {
            treatment.frozen.extend(part(variable, &dense));
        }
        for variable in &model.state {
            let momentum = variable.momentum;
            if !(0.0..=1.0).contains(&momentum) {
                return Err(StoreError::BadModel(format!(
                    "state variable '{}' has momentum {momentum}, expected 0 to 1",
                    variable.name
                )));
            }
            if momentum < 1.0 {
                let part = part(variable, &state);
                treatment
                    .moving
                    .extend(part.map(|part| (part, momentum as f32)));
            }
        }
        Ok(treatment)
    }

    /// Note the values of what is not trained; `slots` are each as long as `dense`.
    pub(crate) fn frozen(&self, dense: &[f32], slots: &[f32]) -> Frozen {
        let len = dense.len();
        let vectors = std::iter::once(dense).chain(slots.chunks(len.max(1)));
        let kept = vectors.enumerate().flat_map(|(number, values)| {
            self.frozen.iter().map(move |part| {
                let place = number * len + part.start..number * len + part.end;
                (place, values[part.clone()].to_vec())
            })
        });
        Frozen(kept.collect())
    }

    /// Combine the state changes of several minibatches, each with its weight, in the order of
    /// their tasks.
    ///
    /// Changes that add up are added. Of replaced values the last one stays. Moving averages become
    /// the weighted mean, as in one minibatch with all records.
    /// `elasticdl/packages/all_reduce/collective/state_rules.py` does the same for workers among themselves.
    pub(crate) fn merge(&self, parts: &[(&[f32], f32)]) -> Vec<f32> {
        let Some(((last, _), before)) = parts.split_last() else {
            return Vec::new();
        };
        let mut merged = last.to_vec();
        for (change, _) in before {
            for (sum, value) in merged.iter_mut().zip(*change) {
                *sum += value;
            }
        }
        for (part, momentum) in &self.moving {
            let merged = &mut merged[part.clone()];
            merged.copy_from_slice(&last[part.clone()]);
            if *momentum == 0.0 {
                continue;
            }
            merged.fill(0.0);
            for (change, weight) in parts {
                for (sum, value) in merged.iter_mut().zip(&change[part.clone()]) {
                    *sum += weight * value;
                }
            }
        }
        merged
    }

    /// Apply `change` to `state`: `momentum * state + change`.
    ///
    /// `weight` is the sum of the weights of the change's minibatches, 1 for a single one: the rest
    /// of a round takes only its share of the old value.
    pub(crate) fn change(&self, state: &mut [f32], change: &[f32], weight: f32) {
        for (part, momentum) in &self.moving {
            if *momentum == 0.0 {
                state[part.clone()].fill(0.0); // also of what is not finite
                continue;
            }
            let kept = 1.0 - (1.0 - momentum) * weight;
            for value in &mut state[part.clone()] {
                *value *= kept;
            }
        }
        for (value, change) in state.iter_mut().zip(change) {
            *value += change;
        }
    }
}

/// The rules that combine the state changes of several minibatches, for processes that hold no
/// state.
#[derive(Debug)]
pub struct StateRules(Treatment);

impl StateRules {
    /// Return the rules of a model.
    ///
    /// # Errors
    /// An impossible model.
    pub fn of(model: &ModelSpec) -> Result<Self, StoreError> {
        Treatment::of(model, 0, 1).map(Self)
    }

    /// Make one change of those of several minibatches, each with its weight, in their order: of
    /// each variable by its own rule.
    pub fn merge(&self, parts: &[(&[f32], f32)]) -> Vec<f32> {
        self.0.merge(parts)
    }
}

impl Frozen {
    /// Put the values back where they were.
    pub(crate) fn put_back(self, dense: &mut [f32], slots: &mut [f32]) {
        let len = dense.len();
        for (place, values) in self.0 {
            if place.end <= len {
                dense[place].copy_from_slice(&values);
            } else {
                slots[place.start - len..place.end - len].copy_from_slice(&values);
            }
        }
    }
}

/// The part of a variable in a range of its vector, counted from the range's start.
pub(crate) fn part(variable: &VariableSpec, held: &Range<usize>) -> Option<Range<usize>> {
    let first = variable.offset as usize;
    let end = first + variable.shape.iter().product::<u64>() as usize;
    let (first, end) = (first.max(held.start), end.min(held.end));
    (first < end).then(|| first - held.start..end - held.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelSpec {
        ModelSpec::from_json(
            r#"{"tables": [], "optimizer": {"kind": "sgd", "params": {}}, "seed": 0,
                "dense": [{"name": "a", "shape": [3], "offset": 0},
                          {"name": "b", "shape": [2, 2], "offset": 3, "trainable": false}],
                "state": [{"name": "mean", "shape": [3], "offset": 0, "momentum": 0.75},
                          {"name": "count", "shape": [], "offset": 3},
                          {"name": "last", "shape": [2], "offset": 4, "momentum": 0.0}]}"#,
        )
        .unwrap()
    }

    #[test]
    fn each_variable_of_the_state_has_its_own_momentum_wherever_the_vector_is_cut() {
        for num_replicas in 1..7 {
            let mut state = vec![];
            for replica in 0..num_replicas {
                let range = dense_range(6, replica, num_replicas);
                let mut part = vec![4.0; range.len()];
                let treatment = Treatment::of(&model(), replica, num_replicas).unwrap();
                treatment.change(&mut part, &vec![2.0; range.len()], 1.0);
                state.extend(part);
            }
            assert_eq!(state, [5.0, 5.0, 5.0, 6.0, 2.0, 2.0]);
        }
    }

    #[test]
    fn parts_of_a_round_leave_together_what_the_whole_round_leaves() {
        let treatment = Treatment::of(&model(), 0, 1).unwrap();
        let mut whole = vec![1.0; 6];
        treatment.change(&mut whole, &[0.25; 6], 1.0);
        assert_eq!(whole, [1.0, 1.0, 1.0, 1.25, 0.25, 0.25]);
        // A statistic that is at rest stays there, also if a round is applied in two parts.
        let mut parts = vec![1.0; 6];
        treatment.change(&mut parts, &[0.0625; 6], 0.25);
        treatment.change(&mut parts, &[0.1875; 6], 0.75);
        assert_eq!(parts, [1.0, 1.0, 1.0, 1.25, 0.1875, 0.1875]);
    }

    #[test]
    fn changes_of_a_round_are_averaged_added_up_or_the_last_by_their_rule() {
        let treatment = Treatment::of(&model(), 0, 1).unwrap();
        let (one, two) = ([4.0, 4.0, 4.0, 32.0, 7.0, f32::NAN], [8.0; 6]);
        let merged = treatment.merge(&[(&one, 0.25), (&two, 0.75)]);
        assert_eq!(merged, [7.0, 7.0, 7.0, 40.0, 8.0, 8.0]);
        assert_eq!(treatment.merge(&[]), [0.0; 0]);
        // A value that was replaced by something not finite is replaced again.
        let mut state = [f32::NAN; 6];
        treatment.change(&mut state, &merged, 1.0);
        assert_eq!(&state[4..], [8.0, 8.0]);
    }

    #[test]
    fn what_is_not_trained_keeps_its_values_and_slots() {
        let treatment = Treatment::of(&model(), 0, 1).unwrap();
        let (mut dense, mut slots) = (vec![1.0; 7], vec![2.0; 14]);
        let frozen = treatment.frozen(&dense, &slots);
        dense.fill(5.0);
        slots.fill(6.0);
        frozen.put_back(&mut dense, &mut slots);
        assert_eq!(dense, [5.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0]);
        let one = [6.0, 6.0, 6.0, 2.0, 2.0, 2.0, 2.0];
        assert_eq!(slots, [one, one].concat());
    }

    #[test]
    fn a_momentum_that_is_no_average_is_refused() {
        let mut model = model();
        model.state[0].momentum = 1.5;
        let error = Treatment::of(&model, 0, 1).unwrap_err().to_string();
        assert!(error.contains("'mean' has momentum 1.5, expected 0 to 1"));
    }
}
