//! FTRL-proximal with sparse group lasso: whole rows become zero.

use std::cell::Cell;

use crate::rules::{Ftrl, FtrlSqrt, Rule};

/// FTRL-proximal in which the weights of a row are a group.
///
/// The method is Group Adagrad from "Adaptive Optimizers with Sparse Group Lasso for Neural
/// Networks in CTR Prediction" (Yue et al., ECML PKDD 2021). With `s = clip(z, -l1, l1) - z` of
/// FTRL-proximal, the new weights are `max(0, 1 - l21 sqrt(dim) / |s|) s / quadratic`, where `|s|`
/// is the L2 norm over the row. If `l21` is 0, it is FTRL-proximal.
#[derive(Debug, Clone, Copy)]
pub struct GroupFtrl {
    pub(crate) rule: FtrlSqrt,
    pub(crate) l21: f32,
}

impl GroupFtrl {
    pub(crate) fn l1(&self) -> f32 {
        let FtrlSqrt(Ftrl { l1, .. }) = self.rule;
        l1
    }
}

impl Rule<2> for GroupFtrl {
    #[inline(always)]
    fn apply(&self, w: f32, slots: [f32; 2], g: f32) -> (f32, [f32; 2]) {
        self.rule.apply(w, slots, g)
    }

    #[inline(always)]
    fn finish(&self, weights: &[Cell<f32>], slots: &[Cell<f32>]) {
        let l1 = self.l1();
        // In order and in double precision: the same bits on every machine.
        let square = |z: f32| f64::from(z.clamp(-l1, l1) - z).powi(2);
        let norm = slots[weights.len()..]
            .iter()
            .map(|z| square(z.get()))
            .sum::<f64>()
            .sqrt();
        let bound = f64::from(self.l21) * (weights.len() as f64).sqrt();
        // A norm that is no number goes on into the weights, to be seen.
        let share = if norm <= bound {
            0.0
        } else {
            1.0 - bound / norm
        };
        for weight in weights {
            weight.set(weight.get() * share as f32);
        }
    }
}
