//! Operations on weights before and after any rule.

use std::cell::Cell;

/// Weight decay decoupled from the gradient, before the rule. Loshchilov and Hutter, 2019.
#[derive(Debug, Clone, Copy)]
pub struct Decay {
    pub(crate) learning_rate: f32,
    pub(crate) weight_decay: f32,
}

impl Decay {
    /// Decay weights, in place.
    pub fn apply(&self, weights: &mut [f32]) {
        self.decay(Cell::from_mut(weights).as_slice_of_cells());
    }

    #[inline(always)]
    pub(crate) fn decay(&self, weights: &[Cell<f32>]) {
        for weight in weights {
            let w = weight.get();
            weight.set(w - w * self.weight_decay * self.learning_rate);
        }
    }
}

/// The constraint of weights after the rule: one of Keras' constraints of a vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Constraint {
    /// Negative weights become zero.
    NonNegative,
    /// The L2 norm of the vector is between two bounds.
    Norm {
        /// The lower bound.
        min: f64,
        /// The upper bound; the unit norm has the same for both.
        max: f64,
        /// The part of the way to the bounds that one step goes, from 0 to 1.
        rate: f64,
        /// Added to the norm that is divided by.
        epsilon: f64,
    },
}

impl Constraint {
    /// Hold a vector to the constraint, in place.
    pub fn apply(&self, weights: &mut [f32]) {
        self.hold(Cell::from_mut(weights).as_slice_of_cells());
    }

    #[inline(always)]
    pub(crate) fn hold(&self, weights: &[Cell<f32>]) {
        match *self {
            Self::NonNegative => {
                for weight in weights {
                    // A NaN passes, to be seen.
                    let w = weight.get();
                    weight.set(if w < 0.0 { 0.0 } else { w });
                }
            }
            Self::Norm {
                min,
                max,
                rate,
                epsilon,
            } => {
                // In order and in double precision: the same bits on every machine.
                let squares = weights.iter().map(|w| f64::from(w.get()).powi(2));
                let norm = squares.sum::<f64>().sqrt();
                let desired = rate * norm.clamp(min, max) + (1.0 - rate) * norm;
                let factor = (desired / (epsilon + norm)) as f32;
                for weight in weights {
                    weight.set(weight.get() * factor);
                }
            }
        }
    }
}

/// The operations around a rule.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Around {
    pub(crate) decay: Option<Decay>,
    pub(crate) constraint: Option<Constraint>,
}
