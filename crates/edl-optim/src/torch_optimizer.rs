//! PyTorch's optimizers by name and settings.

use crate::rules::Sgd;
use crate::settings::{BadSetting, Settings};
use crate::step::{FixedRule, Step};
use crate::torch::{
    Adagrad, Adam, AmsGrad, L2, Momentum, RmsProp, RmsPropCentered, RmsPropCenteredMomentum,
    RmsPropMomentum,
};

/// The kinds of this module.
pub(crate) const KINDS: [&str; 5] = [
    "torch_sgd",
    "torch_adagrad",
    "torch_adam",
    "torch_adamw",
    "torch_rmsprop",
];

/// The settings that a kind knows.
pub(crate) fn settings(kind: &str) -> &'static [&'static str] {
    match kind {
        "torch_sgd" => &["momentum", "dampening", "nesterov", "weight_decay"],
        "torch_adagrad" => &["lr_decay", "epsilon", "initial_accumulator", "weight_decay"],
        "torch_adam" | "torch_adamw" => &["beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay"],
        "torch_rmsprop" => &["alpha", "momentum", "epsilon", "centered", "weight_decay"],
        _ => &[],
    }
}

/// A PyTorch optimizer with its settings; a value that is left out has PyTorch's default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct TorchOptimizer {
    weight_decay: f64,
    rule: TorchRule,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum TorchRule {
    Sgd {
        momentum: f64,
        dampening: f64,
        nesterov: bool,
    },
    Adagrad {
        lr_decay: f64,
        epsilon: f64,
        initial_accumulator: f64,
    },
    Adam {
        beta_1: f64,
        beta_2: f64,
        epsilon: f64,
        amsgrad: bool,
        decoupled: bool,
    },
    RmsProp {
        alpha: f64,
        momentum: f64,
        epsilon: f64,
        centered: bool,
    },
}

impl TorchOptimizer {
    pub(crate) fn new(kind: &str, s: &Settings<'_>) -> Result<Self, BadSetting> {
        let decoupled = kind == "torch_adamw";
        let rule = match kind {
            "torch_sgd" => TorchRule::Sgd {
                momentum: s.share("momentum", 0.0)?,
                dampening: s.share("dampening", 0.0)?,
                nesterov: s.flag("nesterov")?,
            },
            "torch_adagrad" => TorchRule::Adagrad {
                lr_decay: s.not_negative("lr_decay", 0.0)?,
                epsilon: s.not_negative("epsilon", 1e-10)?,
                initial_accumulator: s.not_negative("initial_accumulator", 0.0)?,
            },
            "torch_rmsprop" => TorchRule::RmsProp {
                alpha: s.share("alpha", 0.99)?,
                momentum: s.share("momentum", 0.0)?,
                epsilon: s.not_negative("epsilon", 1e-8)?,
                centered: s.flag("centered")?,
            },
            _ => TorchRule::Adam {
                beta_1: s.share("beta_1", 0.9)?,
                beta_2: s.share("beta_2", 0.999)?,
                epsilon: s.not_negative("epsilon", 1e-8)?,
                amsgrad: s.flag("amsgrad")?,
                decoupled,
            },
        };
        Ok(Self {
            weight_decay: s.not_negative("weight_decay", if decoupled { 0.01 } else { 0.0 })?,
            rule,
        })
    }

    pub(crate) fn slots(&self) -> &'static [&'static str] {
        match self.rule {
            TorchRule::Sgd { momentum, .. } if momentum > 0.0 => &["momentum_buffer"],
            TorchRule::Sgd { .. } => &[],
            TorchRule::Adagrad { .. } => &["sum"],
            TorchRule::Adam { amsgrad: false, .. } => &["exp_avg", "exp_avg_sq"],
            TorchRule::Adam { amsgrad: true, .. } => &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"],
            TorchRule::RmsProp {
                momentum, centered, ..
            } => match (momentum > 0.0, centered) {
                (false, false) => &["square_avg"],
                (true, false) => &["square_avg", "momentum_buffer"],
                (false, true) => &["square_avg", "grad_avg"],
                (true, true) => &["square_avg", "momentum_buffer", "grad_avg"],
            },
        }
    }

    /// Return what all slots begin with.
    pub(crate) fn first_slot_value(&self) -> f32 {
        match self.rule {
            TorchRule::Sgd { .. } => f32::NAN,
            TorchRule::Adagrad {
                initial_accumulator,
                ..
            } => initial_accumulator as f32,
            TorchRule::Adam { .. } | TorchRule::RmsProp { .. } => 0.0,
        }
    }

    pub(crate) fn step(&self, learning_rate: f32, t: u64) -> Step {
        let step = Step::from(self.fixed(learning_rate, t));
        match self.rule {
            TorchRule::Adam {
                decoupled: true, ..
            } => step.with_decay(self.weight_decay, learning_rate),
            _ => step,
        }
    }

    fn fixed(&self, learning_rate: f32, t: u64) -> FixedRule {
        let weight_decay = self.weight_decay as f32;
        match self.rule {
            TorchRule::Sgd {
                momentum,
                dampening,
                nesterov,
            } => {
                let rule = Momentum {
                    learning_rate,
                    momentum: momentum as f32,
                    one_minus_dampening: (1.0 - dampening) as f32,
                    nesterov,
                };
                sgd_step(rule, weight_decay)
            }
            TorchRule::Adagrad {
                lr_decay, epsilon, ..
            } => FixedRule::TorchAdagrad(L2 {
                weight_decay,
                rule: Adagrad {
                    learning_rate: decayed(learning_rate, lr_decay, t),
                    epsilon: epsilon as f32,
                },
            }),
            TorchRule::Adam {
                amsgrad, decoupled, ..
            } => adam_step(
                self.adam(learning_rate, t),
                amsgrad,
                decoupled,
                weight_decay,
            ),
            TorchRule::RmsProp {
                alpha,
                momentum,
                epsilon,
                centered,
            } => {
                let rule = RmsProp {
                    learning_rate,
                    alpha: alpha as f32,
                    one_minus_alpha: (1.0 - alpha) as f32,
                    epsilon: epsilon as f32,
                    momentum: momentum as f32,
                };
                rmsprop_step(rule, momentum > 0.0, centered, weight_decay)
            }
        }
    }

    fn adam(&self, learning_rate: f32, t: u64) -> Adam {
        let TorchRule::Adam {
            beta_1,
            beta_2,
            epsilon,
            ..
        } = self.rule
        else {
            unreachable!("asked for Adam alone");
        };
        // PyTorch computes both in Python's doubles.
        let correction = |beta: f64| 1.0 - beta.powf(t as f64);
        Adam {
            step_size: (f64::from(learning_rate) / correction(beta_1)) as f32,
            root_correction: correction(beta_2).sqrt() as f32,
            beta_2: beta_2 as f32,
            one_minus_beta_1: (1.0 - beta_1) as f32,
            one_minus_beta_2: (1.0 - beta_2) as f32,
            epsilon: epsilon as f32,
        }
    }
}

fn sgd_step(rule: Momentum, weight_decay: f32) -> FixedRule {
    if rule.momentum == 0.0 {
        let learning_rate = rule.learning_rate;
        let rule = Sgd { learning_rate };
        return FixedRule::TorchSgd(L2 { weight_decay, rule });
    }
    FixedRule::TorchMomentum(L2 { weight_decay, rule })
}

fn decayed(learning_rate: f32, lr_decay: f64, t: u64) -> f32 {
    (f64::from(learning_rate) / (1.0 + (t.max(1) - 1) as f64 * lr_decay)) as f32
}

fn adam_step(rule: Adam, amsgrad: bool, decoupled: bool, weight_decay: f32) -> FixedRule {
    match (amsgrad, decoupled) {
        (false, false) => FixedRule::TorchAdam(L2 { weight_decay, rule }),
        (true, false) => FixedRule::TorchAmsGrad(L2 {
            weight_decay,
            rule: AmsGrad(rule),
        }),
        (false, true) => FixedRule::TorchAdamW(rule),
        (true, true) => FixedRule::TorchAmsGradW(AmsGrad(rule)),
    }
}

fn rmsprop_step(rule: RmsProp, momentum: bool, centered: bool, weight_decay: f32) -> FixedRule {
    match (momentum, centered) {
        (false, false) => FixedRule::TorchRmsProp(L2 { weight_decay, rule }),
        (true, false) => FixedRule::TorchRmsPropMomentum(L2 {
            weight_decay,
            rule: RmsPropMomentum(rule),
        }),
        (false, true) => FixedRule::TorchRmsPropCentered(L2 {
            weight_decay,
            rule: RmsPropCentered(rule),
        }),
        (true, true) => FixedRule::TorchRmsPropCenteredMomentum(L2 {
            weight_decay,
            rule: RmsPropCenteredMomentum(rule),
        }),
    }
}
