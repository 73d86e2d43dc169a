//! The formulas, in double precision and element by element, and the settings that they are tried with.

use std::collections::BTreeMap;

use edl_optim::Optimizer;

/// One element's update in double precision: weight, slots, gradient, learning rate, t.
pub type Formula = fn(&Settings, &mut f64, &mut [f64], f64, f64, i32);

pub struct Settings(pub BTreeMap<String, f64>);

impl Settings {
    fn get(&self, name: &str) -> f64 {
        self.0[name]
    }
}

fn sgd(_: &Settings, w: &mut f64, _: &mut [f64], g: f64, lr: f64, _: i32) {
    *w -= lr * g;
}

fn momentum(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    slots[0] = s.get("momentum") * slots[0] - lr * g;
    *w += slots[0];
}

fn nesterov(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    slots[0] = s.get("momentum") * slots[0] - lr * g;
    *w += s.get("momentum") * slots[0] - lr * g;
}

fn adagrad(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    slots[0] += g * g;
    *w -= lr * g / (slots[0] + s.get("epsilon")).sqrt();
}

fn moments(s: &Settings, slots: &mut [f64], g: f64) {
    let (b1, b2) = (s.get("beta_1"), s.get("beta_2"));
    slots[0] = b1 * slots[0] + (1.0 - b1) * g;
    slots[1] = b2 * slots[1] + (1.0 - b2) * g * g;
}

fn alpha(s: &Settings, lr: f64, t: i32) -> f64 {
    lr * (1.0 - s.get("beta_2").powi(t)).sqrt() / (1.0 - s.get("beta_1").powi(t))
}

fn adam(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    moments(s, slots, g);
    *w -= alpha(s, lr, t) * slots[0] / (slots[1].sqrt() + s.get("epsilon"));
}

fn amsgrad(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    moments(s, slots, g);
    slots[2] = slots[2].max(slots[1]);
    *w -= alpha(s, lr, t) * slots[0] / (slots[2].sqrt() + s.get("epsilon"));
}

fn adamw(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    *w -= *w * s.get("weight_decay") * lr;
    adam(s, w, slots, g, lr, t);
}

fn amsgradw(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    *w -= *w * s.get("weight_decay") * lr;
    amsgrad(s, w, slots, g, lr, t);
}

pub fn nadam(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let u = |i: i32| s.get("beta_1") * (1.0 - 0.5 * 0.96_f64.powi(i));
    let product = |t: i32| (1..=t).map(u).product::<f64>();
    moments(s, slots, g);
    let ahead =
        u(t + 1) * slots[0] / (1.0 - product(t + 1)) + (1.0 - u(t)) * g / (1.0 - product(t));
    let second = slots[1] / (1.0 - s.get("beta_2").powi(t));
    *w -= lr * ahead / (second.sqrt() + s.get("epsilon"));
}

fn adamax(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let (b1, b2) = (s.get("beta_1"), s.get("beta_2"));
    slots[0] = b1 * slots[0] + (1.0 - b1) * g;
    slots[1] = (b2 * slots[1]).max(g.abs());
    *w -= lr / (1.0 - b1.powi(t)) * slots[0] / (slots[1] + s.get("epsilon"));
}

fn adadelta(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let (rho, epsilon) = (s.get("rho"), s.get("epsilon"));
    slots[0] = rho * slots[0] + (1.0 - rho) * g * g;
    let step = (slots[1] + epsilon).sqrt() / (slots[0] + epsilon).sqrt() * g;
    slots[1] = rho * slots[1] + (1.0 - rho) * step * step;
    *w -= lr * step;
}

fn lion(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let (b1, b2) = (s.get("beta_1"), s.get("beta_2"));
    *w -= lr * (b1 * slots[0] + (1.0 - b1) * g).signum();
    slots[0] = b2 * slots[0] + (1.0 - b2) * g;
}

fn lionw(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    *w -= *w * s.get("weight_decay") * lr;
    lion(s, w, slots, g, lr, t);
}

/// The paper's algorithm with `x` found from `y = (1 - beta_1) z + beta_1 x`.
fn schedule_free(s: &Settings, y: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let (b1, b2) = (s.get("beta_1"), s.get("beta_2"));
    let lr = lr * (f64::from(t) / s.get("warmup_steps").max(1.0)).min(1.0);
    let x = (*y - (1.0 - b1) * slots[0]) / b1;
    slots[1] = b2 * slots[1] + (1.0 - b2) * g * g;
    let second = slots[1] / (1.0 - b2.powi(t));
    slots[0] -= lr * g / (second.sqrt() + s.get("epsilon"));
    let share = 1.0 / f64::from(t);
    *y = (1.0 - b1) * slots[0] + b1 * ((1.0 - share) * x + share * slots[0]);
}

fn mean_square(s: &Settings, v: &mut f64, g: f64) {
    *v = s.get("rho") * *v + (1.0 - s.get("rho")) * g * g;
}

fn rmsprop(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    mean_square(s, &mut slots[0], g);
    *w -= lr * g / (slots[0] + s.get("epsilon")).sqrt();
}

fn rmsprop_momentum(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    mean_square(s, &mut slots[0], g);
    let increment = lr * g / (slots[0] + s.get("epsilon")).sqrt();
    slots[1] = s.get("momentum") * slots[1] + increment;
    *w -= slots[1];
}

fn centered(s: &Settings, v: &mut f64, average: &mut f64, g: f64, lr: f64) -> f64 {
    mean_square(s, v, g);
    *average = s.get("rho") * *average + (1.0 - s.get("rho")) * g;
    lr * g / (*v - *average * *average + s.get("epsilon")).sqrt()
}

fn rmsprop_centered(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let [v, average] = slots else { panic!() };
    *w -= centered(s, v, average, g, lr);
}

fn rmsprop_all(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let [v, m, average] = slots else { panic!() };
    *m = s.get("momentum") * *m + centered(s, v, average, g, lr);
    *w -= *m;
}

pub fn ftrl(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let power = -s.get("learning_rate_power");
    let l1 = s.get("l1");
    let l2 = s.get("l2") + s.get("beta") / (2.0 * lr);
    let shrunk = g + 2.0 * s.get("l2_shrinkage") * *w;
    let grown = slots[0] + g * g;
    slots[1] += shrunk - (grown.powf(power) - slots[0].powf(power)) / lr * *w;
    let quadratic = grown.powf(power) / lr + 2.0 * l2;
    *w = (slots[1].clamp(-l1, l1) - slots[1]) / quadratic;
    slots[0] = grown;
}

// PyTorch's, from the algorithms in the documentation of torch.optim 2.x.

fn l2(s: &Settings, w: f64, g: f64) -> f64 {
    g + s.get("weight_decay") * w
}

fn torch_sgd(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let g = l2(s, *w, g);
    let Some(b) = slots.first_mut() else {
        *w -= lr * g;
        return;
    };
    let momentum = s.get("momentum");
    *b = if t == 1 {
        g
    } else {
        momentum * *b + (1.0 - s.get("dampening")) * g
    };
    *w -= lr
        * if s.get("nesterov") == 1.0 {
            g + momentum * *b
        } else {
            *b
        };
}

fn torch_adagrad(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let g = l2(s, *w, g);
    let lr = lr / (1.0 + f64::from(t - 1) * s.get("lr_decay"));
    slots[0] += g * g;
    *w -= lr * g / (slots[0].sqrt() + s.get("epsilon"));
}

fn torch_adam_step(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    moments(s, slots, g);
    if let [_, v, top] = slots {
        *top = top.max(*v);
    }
    let second = slots[slots.len() - 1] / (1.0 - s.get("beta_2").powi(t));
    let first = slots[0] / (1.0 - s.get("beta_1").powi(t));
    *w -= lr * first / (second.sqrt() + s.get("epsilon"));
}

fn torch_adam(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    let g = l2(s, *w, g);
    torch_adam_step(s, w, slots, g, lr, t);
}

fn torch_adamw(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, t: i32) {
    *w -= lr * s.get("weight_decay") * *w;
    torch_adam_step(s, w, slots, g, lr, t);
}

fn torch_rmsprop(s: &Settings, w: &mut f64, slots: &mut [f64], g: f64, lr: f64, _: i32) {
    let g = l2(s, *w, g);
    let (alpha, momentum) = (s.get("alpha"), s.get("momentum"));
    slots[0] = alpha * slots[0] + (1.0 - alpha) * g * g;
    let mut square = slots[0];
    if s.get("centered") == 1.0 {
        let average = slots.last_mut().unwrap();
        *average = alpha * *average + (1.0 - alpha) * g;
        square -= *average * *average;
    }
    let share = g / (square.sqrt() + s.get("epsilon"));
    if momentum > 0.0 {
        slots[1] = momentum * slots[1] + share;
        *w -= lr * slots[1];
    } else {
        *w -= lr * share;
    }
}

/// The first value of a slot that begins as the weight.
const WEIGHT: f64 = f64::NAN;

/// Name, settings as given, Keras' defaults for the rest, the formula, slots' first values.
pub struct Case {
    pub kind: &'static str,
    pub given: &'static [(&'static str, f64)],
    defaults: &'static [(&'static str, f64)],
    pub formula: Formula,
    pub slots: &'static [f64],
}

pub const ADAM: &[(&str, f64)] = &[("beta_1", 0.9), ("beta_2", 0.999), ("epsilon", 1e-7)];
const ADAMW: &[(&str, f64)] = &[
    ("beta_1", 0.9),
    ("beta_2", 0.999),
    ("epsilon", 1e-7),
    ("weight_decay", 0.004),
];
const ADADELTA: &[(&str, f64)] = &[("rho", 0.95), ("epsilon", 1e-7)];
const LION: &[(&str, f64)] = &[("beta_1", 0.9), ("beta_2", 0.99)];
const SCHEDULE_FREE: &[(&str, f64)] = &[
    ("beta_1", 0.9),
    ("beta_2", 0.999),
    ("epsilon", 1e-8),
    ("warmup_steps", 0.0),
];
const RMSPROP: &[(&str, f64)] = &[("rho", 0.9), ("epsilon", 1e-7)];
const FTRL: &[(&str, f64)] = &[
    ("learning_rate_power", -0.5),
    ("l1", 0.0),
    ("l2", 0.0),
    ("l2_shrinkage", 0.0),
    ("beta", 0.0),
];

const TORCH_SGD: &[(&str, f64)] = &[
    ("momentum", 0.0),
    ("dampening", 0.0),
    ("nesterov", 0.0),
    ("weight_decay", 0.0),
];
const TORCH_ADAGRAD: &[(&str, f64)] =
    &[("lr_decay", 0.0), ("epsilon", 1e-10), ("weight_decay", 0.0)];
const TORCH_ADAM: &[(&str, f64)] = &[
    ("beta_1", 0.9),
    ("beta_2", 0.999),
    ("epsilon", 1e-8),
    ("weight_decay", 0.0),
];
const TORCH_ADAMW: &[(&str, f64)] = &[
    ("beta_1", 0.9),
    ("beta_2", 0.999),
    ("epsilon", 1e-8),
    ("weight_decay", 0.01),
];
const TORCH_RMSPROP: &[(&str, f64)] = &[
    ("alpha", 0.99),
    ("epsilon", 1e-8),
    ("momentum", 0.0),
    ("centered", 0.0),
    ("weight_decay", 0.0),
];

#[rustfmt::skip]
pub const CASES: &[Case] = &[
    Case { kind: "sgd", given: &[], defaults: &[], formula: sgd, slots: &[] },
    Case { kind: "momentum", given: &[], defaults: &[("momentum", 0.9)], formula: momentum,
           slots: &[0.0] },
    Case { kind: "momentum", given: &[("momentum", 0.0)], defaults: &[], formula: momentum,
           slots: &[0.0] },
    Case { kind: "momentum", given: &[("momentum", 0.8), ("nesterov", 1.0)], defaults: &[],
           formula: nesterov, slots: &[0.0] },
    Case { kind: "adagrad", given: &[], defaults: &[("epsilon", 1e-7)], formula: adagrad,
           slots: &[0.1] },
    Case { kind: "adagrad", given: &[("initial_accumulator", 0.0), ("epsilon", 1e-3)],
           defaults: &[], formula: adagrad, slots: &[0.0] },
    Case { kind: "adam", given: &[], defaults: ADAM, formula: adam, slots: &[0.0, 0.0] },
    Case { kind: "adam", given: &[("amsgrad", 1.0), ("beta_2", 0.8)], defaults: ADAM,
           formula: amsgrad, slots: &[0.0, 0.0, 0.0] },
    Case { kind: "adamw", given: &[], defaults: ADAMW, formula: adamw, slots: &[0.0, 0.0] },
    Case { kind: "adamw", given: &[("amsgrad", 1.0), ("weight_decay", 0.1)], defaults: ADAMW,
           formula: amsgradw, slots: &[0.0, 0.0, 0.0] },
    Case { kind: "adam", given: &[("weight_decay", 0.1)], defaults: ADAM, formula: adamw,
           slots: &[0.0, 0.0] },
    Case { kind: "nadam", given: &[], defaults: ADAM, formula: nadam, slots: &[0.0, 0.0] },
    Case { kind: "nadam", given: &[("beta_1", 0.99), ("epsilon", 1e-3)], defaults: ADAM,
           formula: nadam, slots: &[0.0, 0.0] },
    Case { kind: "adamax", given: &[], defaults: ADAM, formula: adamax, slots: &[0.0, 0.0] },
    Case { kind: "adamax", given: &[("beta_2", 0.9)], defaults: ADAM, formula: adamax,
           slots: &[0.0, 0.0] },
    Case { kind: "adadelta", given: &[], defaults: ADADELTA, formula: adadelta,
           slots: &[0.0, 0.0] },
    Case { kind: "adadelta", given: &[("rho", 0.5), ("epsilon", 1e-2)], defaults: ADADELTA,
           formula: adadelta, slots: &[0.0, 0.0] },
    Case { kind: "lion", given: &[], defaults: LION, formula: lion, slots: &[0.0] },
    Case { kind: "lion", given: &[("beta_1", 0.5), ("weight_decay", 0.1)], defaults: LION,
           formula: lionw, slots: &[0.0] },
    Case { kind: "schedule_free_adamw", given: &[], defaults: SCHEDULE_FREE,
           formula: schedule_free, slots: &[WEIGHT, 0.0] },
    Case { kind: "schedule_free_adamw", given: &[("beta_1", 0.5), ("warmup_steps", 30.0)],
           defaults: SCHEDULE_FREE, formula: schedule_free, slots: &[WEIGHT, 0.0] },
    Case { kind: "rmsprop", given: &[], defaults: RMSPROP, formula: rmsprop, slots: &[0.0] },
    Case { kind: "rmsprop", given: &[("momentum", 0.7)], defaults: RMSPROP,
           formula: rmsprop_momentum, slots: &[0.0, 0.0] },
    Case { kind: "rmsprop", given: &[("centered", 1.0)], defaults: RMSPROP,
           formula: rmsprop_centered, slots: &[0.0, 0.0] },
    Case { kind: "rmsprop", given: &[("centered", 1.0), ("momentum", 0.7)], defaults: RMSPROP,
           formula: rmsprop_all, slots: &[0.0, 0.0, 0.0] },
    Case { kind: "ftrl", given: &[], defaults: FTRL, formula: ftrl, slots: &[0.1, 0.0] },
    Case { kind: "ftrl", given: &[("l1", 0.05), ("l2", 0.1), ("l2_shrinkage", 0.01),
           ("beta", 0.5)], defaults: FTRL, formula: ftrl, slots: &[0.1, 0.0] },
    Case { kind: "ftrl", given: &[("learning_rate_power", -0.3), ("initial_accumulator", 0.2)],
           defaults: FTRL, formula: ftrl, slots: &[0.2, 0.0] },
    Case { kind: "torch_sgd", given: &[("weight_decay", 0.1)], defaults: TORCH_SGD,
           formula: torch_sgd, slots: &[] },
    Case { kind: "torch_sgd", given: &[("momentum", 0.9), ("weight_decay", 0.01)],
           defaults: TORCH_SGD, formula: torch_sgd, slots: &[0.0] },
    Case { kind: "torch_sgd", given: &[("momentum", 0.9), ("nesterov", 1.0)],
           defaults: TORCH_SGD, formula: torch_sgd, slots: &[0.0] },
    Case { kind: "torch_sgd", given: &[("momentum", 0.8), ("dampening", 0.5)],
           defaults: TORCH_SGD, formula: torch_sgd, slots: &[0.0] },
    Case { kind: "torch_adagrad", given: &[], defaults: TORCH_ADAGRAD, formula: torch_adagrad,
           slots: &[0.0] },
    Case { kind: "torch_adagrad", given: &[("lr_decay", 0.1), ("initial_accumulator", 0.5),
           ("weight_decay", 0.1)], defaults: TORCH_ADAGRAD, formula: torch_adagrad,
           slots: &[0.5] },
    Case { kind: "torch_adam", given: &[], defaults: TORCH_ADAM, formula: torch_adam,
           slots: &[0.0, 0.0] },
    Case { kind: "torch_adam", given: &[("amsgrad", 1.0), ("beta_2", 0.8), ("epsilon", 1e-2),
           ("weight_decay", 0.1)], defaults: TORCH_ADAM, formula: torch_adam,
           slots: &[0.0, 0.0, 0.0] },
    Case { kind: "torch_adamw", given: &[], defaults: TORCH_ADAMW, formula: torch_adamw,
           slots: &[0.0, 0.0] },
    Case { kind: "torch_adamw", given: &[("amsgrad", 1.0), ("weight_decay", 0.2)],
           defaults: TORCH_ADAMW, formula: torch_adamw, slots: &[0.0, 0.0, 0.0] },
    Case { kind: "torch_rmsprop", given: &[("weight_decay", 0.1)], defaults: TORCH_RMSPROP,
           formula: torch_rmsprop, slots: &[0.0] },
    Case { kind: "torch_rmsprop", given: &[("momentum", 0.7)], defaults: TORCH_RMSPROP,
           formula: torch_rmsprop, slots: &[0.0, 0.0] },
    Case { kind: "torch_rmsprop", given: &[("centered", 1.0), ("alpha", 0.9), ("epsilon", 1e-3)],
           defaults: TORCH_RMSPROP, formula: torch_rmsprop, slots: &[0.0, 0.0] },
    Case { kind: "torch_rmsprop", given: &[("centered", 1.0), ("alpha", 0.9), ("epsilon", 1e-3),
           ("momentum", 0.5)], defaults: TORCH_RMSPROP, formula: torch_rmsprop,
           slots: &[0.0, 0.0, 0.0] },
    Case { kind: "group_ftrl", given: &[("l1", 0.05), ("beta", 0.5)], defaults: FTRL,
           formula: ftrl, slots: &[0.1, 0.0] },
];

impl Case {
    pub fn optimizer(&self) -> Optimizer {
        let params = self.given.iter().map(|&(k, v)| (k.to_owned(), v));
        Optimizer::new(self.kind, &params.collect()).unwrap()
    }

    pub fn first_slots(&self, weight: f32) -> Vec<f64> {
        let first = |&slot: &f64| if slot.is_nan() { weight.into() } else { slot };
        self.slots.iter().map(first).collect()
    }

    pub fn settings(&self) -> Settings {
        let all = self.defaults.iter().chain(self.given);
        Settings(all.map(|&(k, v)| (k.to_owned(), v)).collect())
    }
}
