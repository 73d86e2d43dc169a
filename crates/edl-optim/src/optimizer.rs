//! Optimizers by name and settings.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::group::GroupFtrl;
use crate::rules::{
    Adagrad, Adam, AmsGrad, Decayed, Ftrl, FtrlSqrt, Momentum, Nesterov, RmsProp, RmsPropCentered,
    RmsPropCenteredMomentum, RmsPropMomentum, Sgd,
};
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

const KINDS: [&str; 8] = [
    "sgd",
    "momentum",
    "adagrad",
    "adam",
    "adamw",
    "rmsprop",
    "ftrl",
    "group_ftrl",
];

fn known() -> Vec<&'static str> {
    [&KINDS[..], &torch_optimizer::KINDS].concat()
}

/// The settings that an optimizer knows.
fn settings(kind: &str) -> &'static [&'static str] {
    match kind {
        "momentum" => &["momentum", "nesterov"],
        "adagrad" => &["epsilon", "initial_accumulator"],
        "adam" => &["beta_1", "beta_2", "epsilon", "amsgrad"],
        "adamw" => &["beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay"],
        "rmsprop" => &["rho", "momentum", "epsilon", "centered"],
        "ftrl" => &[
            "learning_rate_power",
            "initial_accumulator",
            "l1",
            "l2",
            "l2_shrinkage",
            "beta",
        ],
        "group_ftrl" => &[
            "initial_accumulator",
            "l1",
            "l2",
            "l2_shrinkage",
            "beta",
            "l21",
        ],
        _ => torch_optimizer::settings(kind),
    }
}

/// An optimizer with its settings; a value that is left out has Keras' default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Plain gradient descent.
    Sgd,
    /// Gradient descent with (Nesterov) momentum.
    Momentum {
        /// Share of the velocity that is kept.
        momentum: f64,
        /// Look one step ahead.
        nesterov: bool,
    },
    /// Adagrad.
    Adagrad {
        /// Added under the root.
        epsilon: f64,
        /// Where the sum of squares starts.
        initial_accumulator: f64,
    },
    /// Adam, AMSGrad, and AdamW where `weight_decay` is given.
    Adam {
        /// Decay of the first moment.
        beta_1: f64,
        /// Decay of the second moment.
        beta_2: f64,
        /// Added to the root.
        epsilon: f64,
        /// Divide by the largest second moment so far.
        amsgrad: bool,
        /// Decoupled weight decay (AdamW).
        weight_decay: Option<f64>,
    },
    /// RMSprop.
    RmsProp {
        /// Decay of the mean square.
        rho: f64,
        /// Share of the momentum that is kept; 0 keeps no momentum slot.
        momentum: f64,
        /// Added under the root.
        epsilon: f64,
        /// Subtract the square of the mean gradient.
        centered: bool,
    },
    /// FTRL-proximal.
    Ftrl {
        /// Keras' power, not above 0; -0.5 is the usual one.
        learning_rate_power: f64,
        /// Where the accumulator starts.
        initial_accumulator: f64,
        /// L1 strength.
        l1: f64,
        /// L2 strength.
        l2: f64,
        /// L2 shrinkage strength.
        l2_shrinkage: f64,
        /// The paper's beta.
        beta: f64,
        /// Group lasso over a row, of `group_ftrl`.
        l21: f64,
    },
    /// One of PyTorch's.
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
        if let Some(name) = params
            .keys()
            .find(|p| !settings(kind).contains(&p.as_str()))
        {
            return Err(OptimError::UnknownSetting {
                kind: kind.to_owned(),
                name: name.clone(),
            });
        }
        let s = Settings { kind, params };
        Ok(match kind {
            "sgd" => Self::Sgd,
            "momentum" => Self::Momentum {
                momentum: s.share("momentum", 0.9)?,
                nesterov: s.flag("nesterov")?,
            },
            "adagrad" => Self::Adagrad {
                epsilon: s.not_negative("epsilon", 1e-7)?,
                initial_accumulator: s.not_negative("initial_accumulator", 0.1)?,
            },
            "rmsprop" => Self::RmsProp {
                rho: s.share("rho", 0.9)?,
                momentum: s.share("momentum", 0.0)?,
                epsilon: s.not_negative("epsilon", 1e-7)?,
                centered: s.flag("centered")?,
            },
            "ftrl" | "group_ftrl" => Self::Ftrl {
                learning_rate_power: s
                    .checked("learning_rate_power", -0.5, "0 or less", |x| x <= 0.0)?,
                initial_accumulator: s.not_negative("initial_accumulator", 0.1)?,
                l1: s.not_negative("l1", 0.0)?,
                l2: s.not_negative("l2", 0.0)?,
                l2_shrinkage: s.not_negative("l2_shrinkage", 0.0)?,
                beta: s.not_negative("beta", 0.0)?,
                l21: s.not_negative("l21", 0.0)?,
            },
            _ if torch_optimizer::KINDS.contains(&kind) => {
                Self::Torch(TorchOptimizer::new(kind, &s)?)
            }
            _ => Self::Adam {
                beta_1: s.share("beta_1", 0.9)?,
                beta_2: s.share("beta_2", 0.999)?,
                epsilon: s.not_negative("epsilon", 1e-7)?,
                amsgrad: s.flag("amsgrad")?,
                weight_decay: match kind {
                    "adamw" => Some(s.not_negative("weight_decay", 0.004)?),
                    _ => None,
                },
            },
        })
    }

    /// Return the names of the slots, in the order in which they follow the weights.
    pub fn slots(&self) -> &'static [&'static str] {
        match *self {
            Self::Sgd => &[],
            Self::Momentum { .. } => &["momentum"],
            Self::Adagrad { .. } => &["accumulator"],
            Self::Adam { amsgrad: false, .. } => &["momentum", "velocity"],
            Self::Adam { amsgrad: true, .. } => &["momentum", "velocity", "velocity_hat"],
            Self::RmsProp {
                momentum, centered, ..
            } => match (momentum > 0.0, centered) {
                (false, false) => &["velocity"],
                (true, false) => &["velocity", "momentum"],
                (false, true) => &["velocity", "average_gradient"],
                (true, true) => &["velocity", "momentum", "average_gradient"],
            },
            Self::Ftrl { .. } => &["accumulator", "linear"],
            Self::Torch(torch) => torch.slots(),
        }
    }

    /// Return how many slots each weight has.
    pub fn num_slots(&self) -> usize {
        self.slots().len()
    }

    /// Fill fresh slots: `num_slots` vectors of one length, one after the other.
    pub fn fill_slots(&self, slots: &mut [f32]) {
        if let Self::Torch(torch) = self {
            slots.fill(torch.first_slot_value());
            return;
        }
        slots.fill(0.0);
        if let Self::Adagrad {
            initial_accumulator,
            ..
        }
        | Self::Ftrl {
            initial_accumulator,
            ..
        } = *self
        {
            let first = slots.len() / self.num_slots();
            slots[..first].fill(initial_accumulator as f32);
        }
    }

    /// Fix the learning rate and the step number `t` (1 for a model's first update).
    pub fn step(&self, learning_rate: f32, t: u64) -> Step {
        match *self {
            Self::Sgd => Step::Sgd(Sgd { learning_rate }),
            Self::Momentum { momentum, nesterov } => {
                let momentum = momentum as f32;
                if momentum != 0.0 && nesterov {
                    Step::Nesterov(Nesterov {
                        learning_rate,
                        momentum,
                    })
                } else {
                    Step::Momentum(Momentum {
                        learning_rate,
                        momentum,
                    })
                }
            }
            Self::Adagrad { epsilon, .. } => Step::Adagrad(Adagrad {
                learning_rate,
                epsilon: epsilon as f32,
            }),
            Self::Adam {
                beta_1,
                beta_2,
                epsilon,
                amsgrad,
                weight_decay,
            } => {
                let adam = Adam {
                    alpha: bias_corrected(learning_rate, beta_1, beta_2, t),
                    one_minus_beta_1: (1.0 - beta_1) as f32,
                    one_minus_beta_2: (1.0 - beta_2) as f32,
                    epsilon: epsilon as f32,
                };
                adam_step(adam, amsgrad, learning_rate, weight_decay)
            }
            Self::RmsProp {
                rho,
                momentum,
                epsilon,
                centered,
            } => {
                let rule = RmsProp {
                    learning_rate,
                    rho: rho as f32,
                    one_minus_rho: (1.0 - rho) as f32,
                    epsilon: epsilon as f32,
                    momentum: momentum as f32,
                };
                match (momentum > 0.0, centered) {
                    (false, false) => Step::RmsProp(rule),
                    (true, false) => Step::RmsPropMomentum(RmsPropMomentum(rule)),
                    (false, true) => Step::RmsPropCentered(RmsPropCentered(rule)),
                    (true, true) => Step::RmsPropCenteredMomentum(RmsPropCenteredMomentum(rule)),
                }
            }
            Self::Ftrl {
                learning_rate_power,
                l1,
                l2,
                l2_shrinkage,
                beta,
                l21,
                ..
            } => {
                let rule = Ftrl {
                    learning_rate,
                    power: -learning_rate_power as f32,
                    l1: l1 as f32,
                    twice_l2: 2.0 * (l2 as f32 + beta as f32 / (2.0 * learning_rate)),
                    twice_shrinkage: (2.0 * l2_shrinkage) as f32,
                };
                if l21 > 0.0 {
                    Step::GroupFtrl(GroupFtrl {
                        rule: FtrlSqrt(rule),
                        l21: l21 as f32,
                    })
                } else if learning_rate_power == -0.5 {
                    Step::FtrlSqrt(FtrlSqrt(rule))
                } else {
                    Step::Ftrl(rule)
                }
            }
            Self::Torch(torch) => torch.step(learning_rate, t),
        }
    }
}

/// Adam's `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)`, rounded to float32 where Keras rounds.
fn bias_corrected(learning_rate: f32, beta_1: f64, beta_2: f64, t: u64) -> f32 {
    let power = |beta: f64| f64::from(beta as f32).powf(f64::from(t as f32)) as f32;
    learning_rate * (1.0 - power(beta_2)).sqrt() / (1.0 - power(beta_1))
}

fn adam_step(adam: Adam, amsgrad: bool, learning_rate: f32, weight_decay: Option<f64>) -> Step {
    match (amsgrad, weight_decay) {
        (false, None) => Step::Adam(adam),
        (true, None) => Step::AmsGrad(AmsGrad(adam)),
        (false, Some(decay)) => Step::AdamW(Decayed {
            learning_rate,
            weight_decay: decay as f32,
            rule: adam,
        }),
        (true, Some(decay)) => Step::AmsGradW(Decayed {
            learning_rate,
            weight_decay: decay as f32,
            rule: AmsGrad(adam),
        }),
    }
}
