//! Operations on travelling numbers: plain loops, which the compiler vectorises.

use edl_wire::frame::Element;
use edl_wire::half_rows;

/// A rank's weight, and whether it has a part in the sum at all.
///
/// A rank without samples gives nothing: what stands in its gradients, even NaN, does not count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight(Option<f32>);

impl Weight {
    pub(crate) fn of(samples: u64) -> Self {
        Self((samples > 0).then_some(samples as f32))
    }

    /// `out = weight * gradients`
    pub(crate) fn scale(self, gradients: &[f32], out: &mut [f32]) {
        match self.0 {
            None => out.fill(-0.0), // adds nothing, also to -0.0
            Some(1.0) => out.copy_from_slice(gradients),
            Some(weight) => {
                for (out, gradient) in out.iter_mut().zip(gradients) {
                    *out = weight * gradient;
                }
            }
        }
    }

    /// `sum += weight * gradients`
    pub(crate) fn add(self, gradients: &[f32], sum: &mut [f32]) {
        let Some(weight) = self.0 else { return };
        for (sum, gradient) in sum.iter_mut().zip(gradients) {
            *sum += weight * gradient;
        }
    }
}

/// The operation on a complete sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Sum,
    /// Divide by the weight of all.
    Mean,
}

impl Finish {
    pub(crate) fn apply(self, total: u64, sum: &mut [f32]) {
        if self == Self::Sum || total <= 1 {
            return;
        }
        let total = total as f32;
        for sum in sum {
            *sum /= total;
        }
    }
}

/// `sum += other`, number by number.
pub(crate) fn add(other: &[f32], sum: &mut [f32]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum += other;
    }
}

pub(crate) fn narrow(numbers: &[f32], out: &mut [u16]) {
    half_rows::narrow(Element::Bf16, numbers, out);
}

pub(crate) fn widen(halves: &[u16], out: &mut [f32]) {
    half_rows::widen(Element::Bf16, halves, out);
}
