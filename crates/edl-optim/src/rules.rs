//! The update of one element by each optimizer, as Keras 3 writes it.
//!
//! Keras multiplies Python floats such as `1 - beta_1` (computed in double precision, then
//! rounded to float32) into float32 tensors; the constants here are made the same way.

use std::cell::Cell;

/// One element's update: weight, slots and gradient in, new weight and slots out.
pub(crate) trait Rule<const SLOTS: usize> {
    /// Return the new weight and the new slots.
    fn apply(&self, weight: f32, slots: [f32; SLOTS], gradient: f32) -> (f32, [f32; SLOTS]);

    /// Do what a rule does to a row as a whole, once all its elements are updated.
    #[inline(always)]
    fn finish(&self, _weights: &[Cell<f32>], _slots: &[Cell<f32>]) {}
}

/// `w -= lr * g`
#[derive(Debug, Clone, Copy)]
pub struct Sgd {
    pub(crate) learning_rate: f32,
}

impl Rule<0> for Sgd {
    #[inline(always)]
    fn apply(&self, w: f32, _: [f32; 0], g: f32) -> (f32, [f32; 0]) {
        (w - g * self.learning_rate, [])
    }
}

/// Keras' SGD with momentum; slot: velocity.
#[derive(Debug, Clone, Copy)]
pub struct Momentum {
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
}

impl Rule<1> for Momentum {
    #[inline(always)]
    fn apply(&self, w: f32, [m]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let m = m * self.momentum - g * self.learning_rate;
        (w + m, [m])
    }
}

/// Keras' SGD with Nesterov momentum; slot: velocity.
#[derive(Debug, Clone, Copy)]
pub struct Nesterov {
    pub(crate) learning_rate: f32,
    pub(crate) momentum: f32,
}

impl Rule<1> for Nesterov {
    #[inline(always)]
    fn apply(&self, w: f32, [m]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let m = m * self.momentum - g * self.learning_rate;
        (w + (m * self.momentum - g * self.learning_rate), [m])
    }
}

/// Adagrad; slot: sum of squares. Duchi et al., 2011.
#[derive(Debug, Clone, Copy)]
pub struct Adagrad {
    pub(crate) learning_rate: f32,
    pub(crate) epsilon: f32,
}

impl Rule<1> for Adagrad {
    #[inline(always)]
    fn apply(&self, w: f32, [a]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let a = a + g * g;
        (w - self.learning_rate * g / (a + self.epsilon).sqrt(), [a])
    }
}

/// RMSprop's settings, shared by its four forms.
#[derive(Debug, Clone, Copy)]
pub struct RmsProp {
    pub(crate) learning_rate: f32,
    pub(crate) rho: f32,
    pub(crate) one_minus_rho: f32,
    pub(crate) epsilon: f32,
    pub(crate) momentum: f32,
}

impl RmsProp {
    #[inline(always)]
    fn velocity(&self, v: f32, g: f32) -> f32 {
        self.rho * v + self.one_minus_rho * (g * g)
    }

    #[inline(always)]
    fn increment(&self, g: f32, denominator: f32) -> f32 {
        self.learning_rate * g / denominator.sqrt()
    }

    #[inline(always)]
    fn centered(&self, v: f32, average: f32, g: f32) -> (f32, f32, f32) {
        let v = self.velocity(v, g);
        let average = self.rho * average + self.one_minus_rho * g;
        let increment = self.increment(g, v - average * average + self.epsilon);
        (v, average, increment)
    }
}

/// Slot: velocity.
impl Rule<1> for RmsProp {
    #[inline(always)]
    fn apply(&self, w: f32, [v]: [f32; 1], g: f32) -> (f32, [f32; 1]) {
        let v = self.velocity(v, g);
        (w - self.increment(g, v + self.epsilon), [v])
    }
}

/// RMSprop with momentum; slots: velocity, momentum.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropMomentum(pub(crate) RmsProp);

impl Rule<2> for RmsPropMomentum {
    #[inline(always)]
    fn apply(&self, w: f32, [v, m]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let v = self.0.velocity(v, g);
        let m = self.0.momentum * m + self.0.increment(g, v + self.0.epsilon);
        (w - m, [v, m])
    }
}

/// Centered RMSprop; slots: velocity, average gradient.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropCentered(pub(crate) RmsProp);

impl Rule<2> for RmsPropCentered {
    #[inline(always)]
    fn apply(&self, w: f32, [v, average]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let (v, average, increment) = self.0.centered(v, average, g);
        (w - increment, [v, average])
    }
}

/// Centered RMSprop with momentum; slots: velocity, momentum, average gradient.
#[derive(Debug, Clone, Copy)]
pub struct RmsPropCenteredMomentum(pub(crate) RmsProp);

impl Rule<3> for RmsPropCenteredMomentum {
    #[inline(always)]
    fn apply(&self, w: f32, [v, m, average]: [f32; 3], g: f32) -> (f32, [f32; 3]) {
        let (v, average, increment) = self.0.centered(v, average, g);
        let m = self.0.momentum * m + increment;
        (w - m, [v, m, average])
    }
}

/// Adadelta; slots: mean squares of gradients and of steps. Zeiler, 2012.
#[derive(Debug, Clone, Copy)]
pub struct Adadelta {
    pub(crate) learning_rate: f32,
    pub(crate) rho: f32,
    pub(crate) one_minus_rho: f32,
    pub(crate) epsilon: f32,
}

impl Rule<2> for Adadelta {
    #[inline(always)]
    fn apply(&self, w: f32, [a, d]: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        let rms = |x: f32| (x + self.epsilon).sqrt();
        let a = self.rho * a + self.one_minus_rho * (g * g);
        let step = -(rms(d) * g / rms(a));
        let d = self.rho * d + self.one_minus_rho * (step * step);
        (w + self.learning_rate * step, [a, d])
    }
}

/// FTRL-proximal with any power; slots: accumulator, linear. McMahan et al., 2013.
#[derive(Debug, Clone, Copy)]
pub struct Ftrl {
    pub(crate) learning_rate: f32,
    /// Minus Keras' `learning_rate_power`.
    pub(crate) power: f32,
    pub(crate) l1: f32,
    /// `2 * (l2 + beta / (2 * lr))`
    pub(crate) twice_l2: f32,
    pub(crate) twice_shrinkage: f32,
}

impl Ftrl {
    #[inline(always)]
    fn update(
        &self,
        w: f32,
        [a, z]: [f32; 2],
        g: f32,
        raise: impl Fn(f32) -> f32,
    ) -> (f32, [f32; 2]) {
        let shrunk = g + self.twice_shrinkage * w;
        let grown = a + g * g;
        let (new_power, old_power) = (raise(grown), raise(a));
        let z = z + (shrunk - (new_power - old_power) / self.learning_rate * w);
        let quadratic = new_power / self.learning_rate + self.twice_l2;
        let clipped = minimum(maximum(z, -self.l1), self.l1);
        ((clipped - z) / quadratic, [grown, z])
    }
}

impl Rule<2> for Ftrl {
    #[inline(always)]
    fn apply(&self, w: f32, slots: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        self.update(w, slots, g, |x| x.powf(self.power))
    }
}

/// FTRL-proximal with the usual power of one half, where the power is a square root.
#[derive(Debug, Clone, Copy)]
pub struct FtrlSqrt(pub(crate) Ftrl);

impl Rule<2> for FtrlSqrt {
    #[inline(always)]
    fn apply(&self, w: f32, slots: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        self.0.update(w, slots, g, f32::sqrt)
    }
}

/// The larger; a NaN on the right passes through, so that it is seen and not hidden.
#[inline(always)]
pub(crate) fn maximum(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[inline(always)]
fn minimum(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}
