//! Optimizers by name and settings.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::keras_optimizer::{self, KerasOptimizer};
use crate::own_rule::OwnRule;
use crate::program::{BadProgram, Program, ProgramSpec};
use crate::settings::{BadSetting, Settings};
use crate::step::{FixedRule, Step};
use crate::torch_optimizer::{self, TorchOptimizer};

/// Why an optimizer cannot be made.
#[derive(Debug, Error, Clone, PartialEq)]
pub enum OptimError {
    /// No optimizer of that name.
    #[error("unknown optimizer '{0}'; known are {known}", known = known().join(", "))]
    UnknownKind(String),
    /// The optimizer has no such setting.
    #[error("optimizer '{kind}' has no setting '{name}'; it has {}", settings(.kind).join(", "))]
    UnknownSetting {
        /// The optimizer's name.
        kind: String,
        /// The setting given.
        name: String,
    },
    /// A setting is outside its range.
    #[error(transparent)]
    BadSetting(#[from] BadSetting),
    /// A rule of the user's own that is none.
    #[error(transparent)]
    BadProgram(#[from] BadProgram),
}

fn known() -> Vec<&'static str> {
    [&keras_optimizer::KINDS[..], &torch_optimizer::KINDS].concat()
}

/// The settings that an optimizer knows.
fn settings(kind: &str) -> Vec<&'static str> {
    if kind == "own" {
        return vec!["weight_decay"];
    }
    if torch_optimizer::KINDS.contains(&kind) {
        return torch_optimizer::settings(kind).to_vec();
    }
    [keras_optimizer::settings(kind), &["weight_decay"]].concat()
}

/// An optimizer with its settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimizer(Family);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Family {
    Keras(KerasOptimizer),
    Torch(TorchOptimizer),
    Own {
        program: &'static Program,
        weight_decay: f64,
    },
}

impl Optimizer {
    /// Make the optimizer `kind` with `params` (flags are 0 or 1).
    ///
    /// # Errors
    /// An unknown kind or setting, or a value outside its range.
    pub fn new(kind: &str, params: &BTreeMap<String, f64>) -> Result<Self, OptimError> {
        if !known().contains(&kind) {
            return Err(OptimError::UnknownKind(kind.to_owned()));
        }
        let known = settings(kind);
        if let Some(name) = params.keys().find(|p| !known.contains(&p.as_str())) {
            return Err(OptimError::UnknownSetting {
                kind: kind.to_owned(),
                name: name.clone(),
            });
        }
        let s = Settings { kind, params };
        Ok(Self(if torch_optimizer::KINDS.contains(&kind) {
            Family::Torch(TorchOptimizer::new(kind, &s)?)
        } else {
            Family::Keras(KerasOptimizer::new(kind, &s)?)
        }))
    }

    /// Make the optimizer of a rule of the user's own; `params` may have a weight decay.
    ///
    /// # Errors
    /// The rule is no program, or there is another setting.
    pub fn own(program: &ProgramSpec, params: &BTreeMap<String, f64>) -> Result<Self, OptimError> {
        let kind = "own";
        if let Some(name) = params.keys().find(|name| *name != "weight_decay") {
            return Err(OptimError::UnknownSetting {
                kind: kind.to_owned(),
                name: name.clone(),
            });
        }
        let settings = Settings { kind, params };
        Ok(Self(Family::Own {
            program: Program::of(program)?,
            weight_decay: settings.not_negative("weight_decay", 0.0)?,
        }))
    }

    /// Return the names of the slots, in the order in which they follow the weights.
    pub fn slots(&self) -> &'static [&'static str] {
        match &self.0 {
            Family::Keras(keras) => keras.slots(),
            Family::Torch(torch) => torch.slots(),
            Family::Own { program, .. } => &program.slot_names,
        }
    }

    /// Return how many slots each weight has.
    pub fn num_slots(&self) -> usize {
        self.slots().len()
    }

    /// Fill the fresh slots of `weights`: `num_slots` vectors as long, one after the other.
    pub fn fill_slots(&self, weights: &[f32], slots: &mut [f32]) {
        match &self.0 {
            Family::Keras(keras) => keras.fill_slots(weights, slots),
            Family::Torch(torch) => slots.fill(torch.first_slot_value()),
            Family::Own { program, .. } => {
                let firsts = program.first_values.iter();
                for (slot, &first) in slots.chunks_mut(weights.len().max(1)).zip(firsts) {
                    slot.fill(first);
                }
            }
        }
    }

    /// Fix the learning rate and the step number `t` (1 for a model's first update).
    pub fn step(&self, learning_rate: f32, t: u64) -> Step {
        match &self.0 {
            Family::Keras(keras) => keras.step(learning_rate, t),
            Family::Torch(torch) => torch.step(learning_rate, t),
            Family::Own {
                program,
                weight_decay,
            } => {
                let numbers = program.numbers(learning_rate, t);
                Step::from(FixedRule::Own(OwnRule { program, numbers }))
                    .with_decay(*weight_decay, learning_rate)
            }
        }
    }
}
