//! Optimizers by name and settings.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::keras_optimizer::{self, KerasOptimizer};
use crate::settings::{BadSetting, Settings};
use crate::step::Step;
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
}

fn known() -> Vec<&'static str> {
    [&keras_optimizer::KINDS[..], &torch_optimizer::KINDS].concat()
}

/// The settings that an optimizer knows.
fn settings(kind: &str) -> Vec<&'static str> {
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

    /// Return the names of the slots, in the order in which they follow the weights.
    pub fn slots(&self) -> &'static [&'static str] {
        match &self.0 {
            Family::Keras(keras) => keras.slots(),
            Family::Torch(torch) => torch.slots(),
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
        }
    }

    /// Fix the learning rate and the step number `t` (1 for a model's first update).
    pub fn step(&self, learning_rate: f32, t: u64) -> Step {
        match &self.0 {
            Family::Keras(keras) => keras.step(learning_rate, t),
            Family::Torch(torch) => torch.step(learning_rate, t),
        }
    }
}
