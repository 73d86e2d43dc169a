//! A replica's ranges of the flat dense and state vectors.

use std::ops::Range;
use std::sync::Arc;

use edl_optim::{Constraint, Optimizer};

use crate::error::StoreError;
use crate::spec::{ModelSpec, VariableSpec};
use crate::treatment::{Treatment, part};

/// The values; a snapshot holds on to them while updates go on in copies.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pub(crate) dense: Arc<Vec<f32>>,
    /// The optimizer's slots, one after the other, each as long as `dense`.
    pub(crate) slots: Arc<Vec<f32>>,
    pub(crate) state: Arc<Vec<f32>>,
    /// In how many updates each variable rested; none as long as none did.
    pub(crate) rests: Arc<Vec<u64>>,
}

/// The update of the dense vector.
#[derive(Debug)]
pub(crate) struct DenseRule {
    /// The most slots that an optimizer has; others use the first ones.
    num_slots: usize,
    /// The model's, and those of variables that have their own.
    optimizers: Vec<(Optimizer, f32)>,
    /// The part of each variable in this replica's range; it may be empty.
    variables: Vec<Held>,
    /// The parts of the range that must not be negative.
    not_negative: Vec<Range<usize>>,
}

/// A variable, as far as it is in a replica's range.
#[derive(Debug)]
struct Held {
    place: Range<usize>,
    /// The optimizer, and the factor of the learning rate.
    optimizer: usize,
    /// Whether it decays, where the optimizer has a weight decay.
    decays: bool,
    may_rest: bool,
}

/// Variables beside each other that are updated together.
struct Run {
    place: Range<usize>,
    optimizer: usize,
    /// Updates in which they rested.
    rests: u64,
}

impl DenseRule {
    /// Returns the update of the range `held` of a model's dense vector.
    pub(crate) fn of(model: &ModelSpec, held: Range<usize>) -> Result<Self, StoreError> {
        let mut optimizers = vec![(model.optimizer.parse()?, 1.0)];
        let mut variables = Vec::with_capacity(model.dense.len());
        for variable in &model.dense {
            if let Some(constraint) = &variable.constraint {
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
            let own = variable.optimizer.as_ref().unwrap_or(&model.optimizer);
            let rule = (own.parse()?, variable.rate as f32);
            let known = optimizers.iter().position(|known| *known == rule);
            let optimizer = known.unwrap_or_else(|| {
                optimizers.push(rule);
                optimizers.len() - 1
            });
            variables.push(Held {
                place: part(variable, &held).unwrap_or(0..0),
                optimizer,
                decays: variable.decays,
                may_rest: variable.may_rest,
            });
        }
        let num_slots = optimizers.iter().map(|(o, _)| o.num_slots()).max();
        Ok(Self {
            num_slots: num_slots.unwrap_or(0),
            optimizers,
            variables,
            not_negative: parts(&model.dense, &held, |v| v.constraint.is_some()),
        })
    }

    /// How many slots there are for each dense value.
    pub(crate) fn num_slots(&self) -> usize {
        self.num_slots
    }

    /// Put variables together that are updated alike, and count the rest of those without gradient.
    fn runs(&self, gradient: &[f32], rests: &mut Arc<Vec<u64>>) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (number, variable) in self.variables.iter().enumerate() {
            let place = variable.place.clone();
            if place.is_empty() {
                continue;
            }
            if variable.may_rest && is_none(&gradient[place.clone()]) {
                let rests = Arc::make_mut(rests);
                rests.resize(self.variables.len(), 0);
                rests[number] += 1;
                continue;
            }
            let rests = rests.get(number).copied().unwrap_or(0);
            match runs.last_mut() {
                Some(run)
                    if run.place.end == place.start
                        && run.optimizer == variable.optimizer
                        && run.rests == rests =>
                {
                    run.place.end = place.end;
                }
                _ => runs.push(Run {
                    place,
                    optimizer: variable.optimizer,
                    rests,
                }),
            }
        }
        runs
    }

    /// Update a run's weights and slots, as update `t` of the model.
    fn update(
        &self,
        run: &Run,
        dense: &mut [f32],
        slots: &mut [f32],
        gradient: &[f32],
        learning_rate: f32,
        t: u64,
    ) {
        let (optimizer, rate) = &self.optimizers[run.optimizer];
        let t = t.saturating_sub(run.rests).max(1);
        let (decay, step) = optimizer.step(learning_rate * rate, t).of_a_flat_vector();
        if let Some(decay) = decay {
            let inside =
                |v: &&Held| run.place.start <= v.place.start && v.place.end <= run.place.end;
            for variable in self.variables.iter().filter(inside).filter(|v| v.decays) {
                decay.apply(&mut dense[variable.place.clone()]);
            }
        }
        let (place, len) = (run.place.clone(), dense.len());
        let (weights, gradient) = (&mut dense[place.clone()], &gradient[place.clone()]);
        if place.len() == len {
            step.update(weights, slots, gradient);
            return;
        }
        let mut own = gathered(slots, len, &place, optimizer.num_slots());
        step.update(weights, &mut own, gradient);
        scatter(&own, slots, len, &place);
    }
}

/// Whether a gradient says that there is none.
fn is_none(gradient: &[f32]) -> bool {
    const NONE: u32 = (-0.0f32).to_bits();
    gradient.iter().all(|value| value.to_bits() == NONE)
}

/// Copy a place of the first slots, each `len` long.
fn gathered(slots: &[f32], len: usize, place: &Range<usize>, num_slots: usize) -> Vec<f32> {
    let slots = slots.chunks(len).take(num_slots);
    slots
        .flat_map(|slot| &slot[place.clone()])
        .copied()
        .collect()
}

/// Copy back what [`gathered`] gave.
fn scatter(own: &[f32], slots: &mut [f32], len: usize, place: &Range<usize>) {
    for (slot, own) in slots.chunks_mut(len).zip(own.chunks(place.len())) {
        slot[place.clone()].copy_from_slice(own);
    }
}

/// Returns the places of chosen variables in a range of the dense vector; neighbours are joined.
fn parts(
    variables: &[VariableSpec],
    held: &Range<usize>,
    chosen: impl Fn(&VariableSpec) -> bool,
) -> Vec<Range<usize>> {
    let mut parts: Vec<Range<usize>> = Vec::new();
    let chosen = variables.iter().filter(|v| chosen(v));
    for part in chosen.filter_map(|v| part(v, held)) {
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
        let num_values = dense.len() * rule.num_slots();
        let mut slots = Vec::with_capacity(num_values);
        slots.resize(num_values, 0.0);
        for run in rule.runs(&vec![0.0; dense.len()], &mut Arc::default()) {
            let optimizer = &rule.optimizers[run.optimizer].0;
            let mut own = gathered(&slots, dense.len(), &run.place, optimizer.num_slots());
            optimizer.fill_slots(&dense[run.place.clone()], &mut own);
            scatter(&own, &mut slots, dense.len(), &run.place);
        }
        let values = Values {
            dense: Arc::new(dense.to_vec()),
            slots: Arc::new(slots),
            state: Arc::new(state.to_vec()),
            rests: Arc::default(),
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

    /// From now on, do to each variable what the model says; its optimizers have the same slots.
    pub(crate) fn treat(&mut self, rule: DenseRule, treatment: Treatment) {
        (self.rule, self.treatment) = (rule, treatment);
    }

    /// In how many updates each variable rested.
    pub(crate) fn rests(&self) -> &[u64] {
        &self.values.rests
    }

    /// Take over from another store in how many updates each variable rested.
    pub(crate) fn take_rests(&mut self, rests: Vec<u64>) {
        self.values.rests = Arc::new(rests);
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
            rests: _,
        } = &self.values;
        4 * (dense.len() + slots.len() + state.len())
    }

    /// How many slots the optimizer has for each dense value.
    pub(crate) fn num_slots(&self) -> usize {
        self.rule.num_slots()
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

    /// Returns the ranges of the dense vector and of the state in a part of so many values.
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
            for run in self.rule.runs(gradient, &mut self.values.rests) {
                let rule = &self.rule;
                rule.update(&run, dense, slots, gradient, learning_rate, t);
            }
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
