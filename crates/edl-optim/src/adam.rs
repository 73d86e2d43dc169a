//! Adam and the rules that are made of its moments.

use crate::rules::{Rule, maximum};

/// Adam; slots: first and second moment. Kingma and Ba, 2014 ("epsilon hat" form).
#[derive(Debug, Clone, Copy)]
pub struct Adam {
    pub(crate) alpha: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) one_minus_beta_2: f32,
    pub(crate) epsilon: f32,
}

impl Adam {
    #[inline(always)]
    fn moments(&self, m: f32, v: f32, g: f32) -> (f32, f32) {
        (
            m + (g - m) * self.one_minus_beta_1,
            v + (g * g - v) * self.one_minus_beta_2,
        )
    }
}

impl Rule<2> for Adam {
    #[inline(always)]
    fn apply(&self, w: f32, [m, v]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let (m, v) = self.moments(m, v, g);
        (w - m * self.alpha / (v.sqrt() + self.epsilon), [m, v])
    }
}

/// AMSGrad; slots: first moment, second moment, its maximum. Reddi et al., 2018.
#[derive(Debug, Clone, Copy)]
pub struct AmsGrad(pub(crate) Adam);

impl Rule<3> for AmsGrad {
    #[inline(always)]
    fn apply(&self, w: f32, [m, v, top]: [f32; 3], g: f32) -> (f32, [f32; 3]) {
        let (m, v) = self.0.moments(m, v, g);
        let top = maximum(top, v);
        (
            w - m * self.0.alpha / (top.sqrt() + self.0.epsilon),
            [m, v, top],
        )
    }
}

/// Nadam; slots: first and second moment. Dozat, 2016.
#[derive(Debug, Clone, Copy)]
pub struct Nadam {
    pub(crate) learning_rate: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) one_minus_beta_2: f32,
    pub(crate) epsilon: f32,
    /// `u_t+1 / (1 - u_1 ... u_t+1)`, where `u` is the schedule of the momentum.
    pub(crate) of_moment: f32,
    /// `(1 - u_t) / (1 - u_1 ... u_t)`
    pub(crate) of_gradient: f32,
    /// `1 - beta_2^t`
    pub(crate) correction: f32,
}

impl Rule<2> for Nadam {
    #[inline(always)]
    fn apply(&self, w: f32, [m, v]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let m = m + (g - m) * self.one_minus_beta_1;
        let v = v + (g * g - v) * self.one_minus_beta_2;
        let ahead = self.of_moment * m + self.of_gradient * g;
        let root = (v / self.correction).sqrt();
        (
            w - ahead * self.learning_rate / (root + self.epsilon),
            [m, v],
        )
    }
}

/// Adamax; slots: first moment, largest gradient. Kingma and Ba, 2014, section 7.1.
#[derive(Debug, Clone, Copy)]
pub struct Adamax {
    pub(crate) learning_rate: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) beta_2: f32,
    pub(crate) epsilon: f32,
    /// `1 - beta_1^t`
    pub(crate) correction: f32,
}

impl Rule<2> for Adamax {
    #[inline(always)]
    fn apply(&self, w: f32, [m, u]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let m = m + (g - m) * self.one_minus_beta_1;
        let u = maximum(self.beta_2 * u, g.abs());
        (
            w - self.learning_rate * m / (self.correction * (u + self.epsilon)),
            [m, u],
        )
    }
}

/// Lion; slot: the moment. Chen et al., "Symbolic discovery of optimization algorithms", 2023.
#[derive(Debug, Clone, Copy)]
pub struct Lion {
    pub(crate) learning_rate: f32,
    pub(crate) beta_1: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) beta_2: f32,
    pub(crate) one_minus_beta_2: f32,
}

impl Rule<1> for Lion {
    #[inline(always)]
    fn apply(&self, w: f32, [m]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let step = sign(m * self.beta_1 + g * self.one_minus_beta_1);
        (
            w - self.learning_rate * step,
            [m * self.beta_2 + g * self.one_minus_beta_2],
        )
    }
}

/// 1, -1 or, of zero, zero; of a NaN a NaN.
#[inline(always)]
fn sign(x: f32) -> f32 {
    if x > 0.0 {
        1.0
    } else if x < 0.0 {
        -1.0
    } else {
        x
    }
}

/// Schedule-free AdamW; slots: the sequence `z`, second moment. Defazio et al., "The road less
/// scheduled", 2024. The weights are the paper's `y`, at which gradients are taken.
#[derive(Debug, Clone, Copy)]
pub struct ScheduleFree {
    /// Warm-up included.
    pub(crate) learning_rate: f32,
    pub(crate) beta_1: f32,
    pub(crate) one_minus_beta_1: f32,
    pub(crate) one_minus_beta_2: f32,
    pub(crate) epsilon: f32,
    /// `1 - beta_2^t`
    pub(crate) correction: f32,
    /// `1 / t`, the weight of `z` in the average `x`.
    pub(crate) share: f32,
}

impl Rule<2> for ScheduleFree {
    #[inline(always)]
    fn apply(&self, y: f32, [z, v]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let v = v + (g * g - v) * self.one_minus_beta_2;
        let root = (v / self.correction).sqrt() + self.epsilon;
        let x = (y - self.one_minus_beta_1 * z) / self.beta_1;
        let z = z - self.learning_rate * g / root;
        let x = (1.0 - self.share) * x + self.share * z;
        (self.one_minus_beta_1 * z + self.beta_1 * x, [z, v])
    }
}
