//! The update of one element by PyTorch's optimizers, if their formulas differ from Keras'.
//!
//! The formulas are those of the documentation of `torch.optim` 2.x. The differences: epsilon is
//! added outside the root; momentum holds gradients and not steps, and may be damped; Adagrad's sum
//! begins at zero; `weight_decay` is an L2 term of the gradient, except in AdamW.

use crate::rules::Rule;

/// `g + weight_decay * w` in place of the gradient.
#[derive(Debug, Clone, Copy)]
pub struct L2<R> {
    pub(crate) weight_decay: f32,
    pub(crate) rule: R,
}

impl<const SLOTS: usize, R: Rule<SLOTS>> Rule<SLOTS> for L2<R> {
    #[inline(always)]
    fn apply(&self, w: f32, slots: [f32; SLOTS], g: f32) -> (f32, [f32; SLOTS]) {
        self.rule.apply(w, slots, g + self.weight_decay * w)
    }
}

/// SGD with momentum; slot: the buffer, not a number before the first update.
#[derive(Debug, Clone, Copy)]
pub struct Momentum {
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
    pub(crate) one_minus_dampening: f32,
    pub(crate) nesterov: bool,
}

impl Rule<1> for Momentum {
    #[inline(always)]
    fn apply(&self, w: f32, [m]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let kept = self.momentum * m + self.one_minus_dampening * g;
        // The first gradient is taken whole, not damped.
        let m = if m.is_nan() { g } else { kept };
        let step = if self.nesterov {
            g + self.momentum * m
        } else {
            m
        };
        (w - self.learning_rate * step, [m])
    }
}

/// Adagrad; slot: sum of squares.
#[derive(Debug, Clone, Copy)]
pub struct Adagrad {
    /// After its own decay.
    pub(crate) learning_rate: f32,
    pub(crate) epsilon: f32,
}

impl Rule<1> for Adagrad {
    #[inline(always)]
    fn apply(&self, w: f32, [a]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let a = a + g * g;
        (w - self.learning_rate * g / (a.sqrt() + self.epsilon), [a])
    }
}

/// Adam; slots: first and second moment.
#[derive(Debug, Clone, Copy)]
pub struct Adam {
    /// `lr / (1 - beta_1^t)`
    pub(crate) step_size: f32,
    /// `sqrt(1 - beta_2^t)`
    pub(crate) root_correction: f32,
    pub(crate) beta_2: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) one_minus_beta_2: f32,
    pub(crate) epsilon: f32,
}

impl Adam {
    #[inline(always)]
    fn moments(&self, m: f32, v: f32, g: f32) -> (f32, f32) {
        (
            m + (g - m) * self.one_minus_beta_1,
            self.beta_2 * v + self.one_minus_beta_2 * (g * g),
        )
    }

    #[inline(always)]
    fn step(&self, m: f32, v: f32) -> f32 {
        self.step_size * (m / (v.sqrt() / self.root_correction + self.epsilon))
    }
}

impl Rule<2> for Adam {
    #[inline(always)]
    fn apply(&self, w: f32, [m, v]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let (m, v) = self.moments(m, v, g);
        (w - self.step(m, v), [m, v])
    }
}

/// AMSGrad; slots: first moment, second moment, its maximum.
#[derive(Debug, Clone, Copy)]
pub struct AmsGrad(pub(crate) Adam);

impl Rule<3> for AmsGrad {
    #[inline(always)]
    fn apply(&self, w: f32, [m, v, top]: [f32; 3], g: f32) -> (f32, [f32; 3]) {
        let (m, v) = self.0.moments(m, v, g);
        // A maximum that lets a NaN through.
        let top = if top > v { top } else { v };
        (w - self.0.step(m, top), [m, v, top])
    }
}

/// RMSprop's settings, shared by its four forms.
#[derive(Debug, Clone, Copy)]
pub struct RmsProp {
    pub(crate) learning_rate: f32,
    pub(crate) alpha: f32,
    pub(crate) one_minus_alpha: f32,
    pub(crate) epsilon: f32,
    pub(crate) momentum: f32,
}

impl RmsProp {
    #[inline(always)]
    fn velocity(&self, v: f32, g: f32) -> f32 {
        self.alpha * v + self.one_minus_alpha * (g * g)
    }

    #[inline(always)]
    fn share(&self, g: f32, square: f32) -> f32 {
        g / (square.sqrt() + self.epsilon)
    }

    #[inline(always)]
    fn centered(&self, v: f32, average: f32, g: f32) -> (f32, f32, f32) {
        let v = self.velocity(v, g);
        let average = average + (g - average) * self.one_minus_alpha;
        (v, average, self.share(g, v - average * average))
    }
}

/// Slot: velocity.
impl Rule<1> for RmsProp {
    #[inline(always)]
    fn apply(&self, w: f32, [v]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let v = self.velocity(v, g);
        (w - self.learning_rate * self.share(g, v), [v])
    }
}

/// RMSprop with momentum; slots: velocity, momentum.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropMomentum(pub(crate) RmsProp);

impl Rule<2> for RmsPropMomentum {
    #[inline(always)]
    fn apply(&self, w: f32, [v, m]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let v = self.0.velocity(v, g);
        let m = self.0.momentum * m + self.0.share(g, v);
        (w - self.0.learning_rate * m, [v, m])
    }
}

/// Centered RMSprop; slots: velocity, average gradient.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropCentered(pub(crate) RmsProp);

impl Rule<2> for RmsPropCentered {
    #[inline(always)]
    fn apply(&self, w: f32, [v, average]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let (v, average, share) = self.0.centered(v, average, g);
        (w - self.0.learning_rate * share, [v, average])
    }
}

/// Centered RMSprop with momentum; slots: velocity, momentum, average gradient.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropCenteredMomentum(pub(crate) RmsProp);

impl Rule<3> for RmsPropCenteredMomentum {
    #[inline(always)]
    fn apply(&self, w: f32, [v, m, average]: [f32; 3], g: f32) -> (f32, [f32; 3]) {
        let (v, average, share) = self.0.centered(v, average, g);
        let m = self.0.momentum * m + share;
        (w - self.0.learning_rate * m, [v, m, average])
    }
}
