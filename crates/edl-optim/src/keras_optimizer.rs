//! Keras' optimizers by name and settings.

use std::sync::LazyLock;

use crate::adam::{Adam, Adamax, AmsGrad, Lion, Nadam, ScheduleFree};
use crate::group::GroupFtrl;
use crate::rules::{
    Adadelta, Adagrad, Ftrl, FtrlSqrt, Momentum, Nesterov, RmsProp, RmsPropCentered,
    RmsPropCenteredMomentum, RmsPropMomentum, Sgd,
};
use crate::settings::{BadSetting, Settings};
use crate::step::{FixedRule, Step};

/// The kinds of this module.
pub(crate) const KINDS: [&str; 13] = [
    "sgd",
    "momentum",
    "adagrad",
    "adadelta",
    "adam",
    "adamw",
    "nadam",
    "adamax",
    "lion",
    "schedule_free_adamw",
    "rmsprop",
    "ftrl",
    "group_ftrl",
];

/// The settings that a kind knows, beside `weight_decay`, which all know.
pub(crate) fn settings(kind: &str) -> &'static [&'static str] {
    match kind {
        "momentum" => &["momentum", "nesterov"],
        "adagrad" => &["epsilon", "initial_accumulator"],
        "adadelta" => &["rho", "epsilon"],
        "adam" | "adamw" => &["beta_1", "beta_2", "epsilon", "amsgrad"],
        "nadam" | "adamax" => &["beta_1", "beta_2", "epsilon"],
        "lion" => &["beta_1", "beta_2"],
        "schedule_free_adamw" => &["beta_1", "beta_2", "epsilon", "warmup_steps"],
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
        _ => &[],
    }
}

/// A Keras optimizer with its settings; a value that is left out has Keras' default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct KerasOptimizer {
    /// Decoupled from the gradient; 0 for none.
    weight_decay: f64,
    rule: KerasRule,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum KerasRule {
    Sgd,
    Momentum {
        momentum: f64,
        nesterov: bool,
    },
    Adagrad {
        epsilon: f64,
        initial_accumulator: f64,
    },
    Adadelta {
        rho: f64,
        epsilon: f64,
    },
    Adam {
        moments: Moments,
        amsgrad: bool,
    },
    Nadam(Moments),
    Adamax(Moments),
    Lion {
        beta_1: f64,
        beta_2: f64,
    },
    ScheduleFree {
        moments: Moments,
        warmup_steps: f64,
    },
    RmsProp {
        rho: f64,
        momentum: f64,
        epsilon: f64,
        centered: bool,
    },
    Ftrl(FtrlSettings),
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Moments {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct FtrlSettings {
    learning_rate_power: f64,
    initial_accumulator: f64,
    l1: f64,
    l2: f64,
    l2_shrinkage: f64,
    beta: f64,
    /// Group lasso over a row, of `group_ftrl`.
    l21: f64,
}

impl KerasOptimizer {
    pub(crate) fn new(kind: &str, s: &Settings<'_>) -> Result<Self, BadSetting> {
        let moments = |beta_1: f64, epsilon: f64| {
            Ok(Moments {
                beta_1,
                beta_2: s.share("beta_2", 0.999)?,
                epsilon: s.not_negative("epsilon", epsilon)?,
            })
        };
        let usual = || moments(s.share("beta_1", 0.9)?, 1e-7);
        let rule = match kind {
            "sgd" => KerasRule::Sgd,
            "momentum" => KerasRule::Momentum {
                momentum: s.share("momentum", 0.9)?,
                nesterov: s.flag("nesterov")?,
            },
            "adagrad" => KerasRule::Adagrad {
                epsilon: s.not_negative("epsilon", 1e-7)?,
                initial_accumulator: s.not_negative("initial_accumulator", 0.1)?,
            },
            "adadelta" => KerasRule::Adadelta {
                rho: s.share("rho", 0.95)?,
                epsilon: s.not_negative("epsilon", 1e-7)?,
            },
            "nadam" => KerasRule::Nadam(usual()?),
            "adamax" => KerasRule::Adamax(usual()?),
            "lion" => KerasRule::Lion {
                beta_1: s.share("beta_1", 0.9)?,
                beta_2: s.share("beta_2", 0.99)?,
            },
            "schedule_free_adamw" => KerasRule::ScheduleFree {
                // The average is found by a division by it.
                moments: moments(
                    s.checked("beta_1", 0.9, "above 0 and at most 1", |x| {
                        x > 0.0 && x <= 1.0
                    })?,
                    1e-8,
                )?,
                warmup_steps: s.not_negative("warmup_steps", 0.0)?,
            },
            "rmsprop" => KerasRule::RmsProp {
                rho: s.share("rho", 0.9)?,
                momentum: s.share("momentum", 0.0)?,
                epsilon: s.not_negative("epsilon", 1e-7)?,
                centered: s.flag("centered")?,
            },
            "ftrl" | "group_ftrl" => KerasRule::Ftrl(FtrlSettings {
                learning_rate_power: s
                    .checked("learning_rate_power", -0.5, "0 or less", |x| x <= 0.0)?,
                initial_accumulator: s.not_negative("initial_accumulator", 0.1)?,
                l1: s.not_negative("l1", 0.0)?,
                l2: s.not_negative("l2", 0.0)?,
                l2_shrinkage: s.not_negative("l2_shrinkage", 0.0)?,
                beta: s.not_negative("beta", 0.0)?,
                l21: s.not_negative("l21", 0.0)?,
            }),
            _ => KerasRule::Adam {
                moments: usual()?,
                amsgrad: s.flag("amsgrad")?,
            },
        };
        let default = if kind == "adamw" { 0.004 } else { 0.0 };
        Ok(Self {
            weight_decay: s.not_negative("weight_decay", default)?,
            rule,
        })
    }

    pub(crate) fn slots(&self) -> &'static [&'static str] {
        match self.rule {
            KerasRule::Sgd => &[],
            KerasRule::Momentum { .. } | KerasRule::Lion { .. } => &["momentum"],
            KerasRule::Adagrad { .. } => &["accumulator"],
            KerasRule::Adadelta { .. } => &["accumulated_grad", "accumulated_delta_var"],
            KerasRule::Adam { amsgrad: true, .. } => &["momentum", "velocity", "velocity_hat"],
            KerasRule::Adam { .. } | KerasRule::Nadam(_) | KerasRule::ScheduleFree { .. } => {
                &["momentum", "velocity"]
            }
            KerasRule::Adamax(_) => &["momentum", "norm"],
            KerasRule::RmsProp {
                momentum, centered, ..
            } => match (momentum > 0.0, centered) {
                (false, false) => &["velocity"],
                (true, false) => &["velocity", "momentum"],
                (false, true) => &["velocity", "average_gradient"],
                (true, true) => &["velocity", "momentum", "average_gradient"],
            },
            KerasRule::Ftrl(_) => &["accumulator", "linear"],
        }
    }

    pub(crate) fn fill_slots(&self, weights: &[f32], slots: &mut [f32]) {
        slots.fill(0.0);
        match self.rule {
            KerasRule::Adagrad {
                initial_accumulator,
                ..
            }
            | KerasRule::Ftrl(FtrlSettings {
                initial_accumulator,
                ..
            }) => slots[..weights.len()].fill(initial_accumulator as f32),
            KerasRule::ScheduleFree { .. } => slots[..weights.len()].copy_from_slice(weights),
            _ => {}
        }
    }

    pub(crate) fn step(&self, learning_rate: f32, t: u64) -> Step {
        Step::from(self.rule.fixed(learning_rate, t)).with_decay(self.weight_decay, learning_rate)
    }
}

impl KerasRule {
    fn fixed(&self, learning_rate: f32, t: u64) -> FixedRule {
        match *self {
            Self::Sgd => FixedRule::Sgd(Sgd { learning_rate }),
            Self::Momentum { momentum, nesterov } => {
                let momentum = momentum as f32;
                if momentum != 0.0 && nesterov {
                    FixedRule::Nesterov(Nesterov {
                        learning_rate,
                        momentum,
                    })
                } else {
                    FixedRule::Momentum(Momentum {
                        learning_rate,
                        momentum,
                    })
                }
            }
            Self::Adagrad { epsilon, .. } => FixedRule::Adagrad(Adagrad {
                learning_rate,
                epsilon: epsilon as f32,
            }),
            Self::Adadelta { rho, epsilon } => FixedRule::Adadelta(Adadelta {
                learning_rate,
                rho: rho as f32,
                one_minus_rho: (1.0 - rho) as f32,
                epsilon: epsilon as f32,
            }),
            Self::Adam { moments, amsgrad } => {
                let adam = moments.adam(learning_rate, t);
                if amsgrad {
                    FixedRule::AmsGrad(AmsGrad(adam))
                } else {
                    FixedRule::Adam(adam)
                }
            }
            Self::Nadam(moments) => FixedRule::Nadam(moments.nadam(learning_rate, t)),
            Self::Adamax(moments) => FixedRule::Adamax(Adamax {
                learning_rate,
                one_minus_beta_1: (1.0 - moments.beta_1) as f32,
                beta_2: moments.beta_2 as f32,
                epsilon: moments.epsilon as f32,
                correction: 1.0 - power(moments.beta_1, t),
            }),
            Self::Lion { beta_1, beta_2 } => FixedRule::Lion(Lion {
                learning_rate,
                beta_1: beta_1 as f32,
                one_minus_beta_1: 1.0 - beta_1 as f32,
                beta_2: beta_2 as f32,
                one_minus_beta_2: 1.0 - beta_2 as f32,
            }),
            Self::ScheduleFree {
                moments,
                warmup_steps,
            } => FixedRule::ScheduleFree(moments.schedule_free(learning_rate, warmup_steps, t)),
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
                    (false, false) => FixedRule::RmsProp(rule),
                    (true, false) => FixedRule::RmsPropMomentum(RmsPropMomentum(rule)),
                    (false, true) => FixedRule::RmsPropCentered(RmsPropCentered(rule)),
                    (true, true) => {
                        FixedRule::RmsPropCenteredMomentum(RmsPropCenteredMomentum(rule))
                    }
                }
            }
            Self::Ftrl(settings) => settings.fixed(learning_rate),
        }
    }
}

impl Moments {
    /// With Adam's `lr * sqrt(1 - beta_2^t) / (1 - beta_1^t)`.
    fn adam(&self, learning_rate: f32, t: u64) -> Adam {
        let corrected =
            learning_rate * (1.0 - power(self.beta_2, t)).sqrt() / (1.0 - power(self.beta_1, t));
        Adam {
            alpha: corrected,
            one_minus_beta_1: (1.0 - self.beta_1) as f32,
            one_minus_beta_2: (1.0 - self.beta_2) as f32,
            epsilon: self.epsilon as f32,
        }
    }

    /// Returns the factors of a step, from the schedule of the momentum `u_t = beta_1 (1 - 0.96^t /
    /// 2)` and its products.
    fn nadam(&self, learning_rate: f32, t: u64) -> Nadam {
        let [before, now, next] = [t.max(1) - 1, t, t + 1].map(damped);
        let product = |t: u64, damped: f64| self.beta_1.powf(t as f64) * damped;
        let (u, u_next) = (self.beta_1 * now / before, self.beta_1 * next / now);
        Nadam {
            learning_rate,
            one_minus_beta_1: (1.0 - self.beta_1) as f32,
            one_minus_beta_2: (1.0 - self.beta_2) as f32,
            epsilon: self.epsilon as f32,
            of_moment: (u_next / (1.0 - product(t + 1, next))) as f32,
            of_gradient: ((1.0 - u) / (1.0 - product(t, now))) as f32,
            correction: 1.0 - power(self.beta_2, t),
        }
    }

    fn schedule_free(&self, learning_rate: f32, warmup_steps: f64, t: u64) -> ScheduleFree {
        let warm = (t as f64 / warmup_steps.max(1.0)).min(1.0) as f32;
        let beta_1 = self.beta_1 as f32;
        ScheduleFree {
            learning_rate: learning_rate * warm,
            beta_1,
            one_minus_beta_1: 1.0 - beta_1,
            one_minus_beta_2: 1.0 - self.beta_2 as f32,
            epsilon: self.epsilon as f32,
            correction: 1.0 - power(self.beta_2, t),
            share: 1.0 / t as f32,
        }
    }
}

impl FtrlSettings {
    fn fixed(&self, learning_rate: f32) -> FixedRule {
        let rule = Ftrl {
            learning_rate,
            power: -self.learning_rate_power as f32,
            l1: self.l1 as f32,
            twice_l2: 2.0 * (self.l2 as f32 + self.beta as f32 / (2.0 * learning_rate)),
            twice_shrinkage: (2.0 * self.l2_shrinkage) as f32,
        };
        if self.l21 > 0.0 {
            FixedRule::GroupFtrl(GroupFtrl {
                rule: FtrlSqrt(rule),
                l21: self.l21 as f32,
            })
        } else if self.learning_rate_power == -0.5 {
            FixedRule::FtrlSqrt(FtrlSqrt(rule))
        } else {
            FixedRule::Ftrl(rule)
        }
    }
}

/// `beta^t`, rounded to float32 where Keras rounds.
fn power(beta: f64, t: u64) -> f32 {
    f64::from(beta as f32).powf(f64::from(t as f32)) as f32
}

/// The product of `1 - 0.96^i / 2` for `i` from 1 to `t`. Beyond a thousand the factors are 1.
fn damped(t: u64) -> f64 {
    static PRODUCTS: LazyLock<Vec<f64>> = LazyLock::new(|| {
        let factor = |i: i32| 1.0 - 0.5 * 0.96_f64.powi(i);
        let products = (1..=1000).scan(1.0, |product, i| {
            *product *= factor(i);
            Some(*product)
        });
        std::iter::once(1.0).chain(products).collect()
    });
    PRODUCTS[PRODUCTS.len().min(t as usize + 1) - 1]
}
