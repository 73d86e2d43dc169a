//! One update of an optimizer, and the way of rows and vectors through the kernels.

use std::cell::Cell;

use crate::group::GroupFtrl;
use crate::kernel::{LANES, Row, run, run_rows};
use crate::rules::{
    Adagrad, Adam, AmsGrad, Decayed, Ftrl, FtrlSqrt, Momentum, Nesterov, RmsProp, RmsPropCentered,
    RmsPropCenteredMomentum, RmsPropMomentum, Sgd,
};
use crate::torch;

/// One update of an optimizer, with its learning rate and step number fixed.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Step {
    #[doc(hidden)]
    Sgd(Sgd),
    #[doc(hidden)]
    Momentum(Momentum),
    #[doc(hidden)]
    Nesterov(Nesterov),
    #[doc(hidden)]
    Adagrad(Adagrad),
    #[doc(hidden)]
    Adam(Adam),
    #[doc(hidden)]
    AmsGrad(AmsGrad),
    #[doc(hidden)]
    AdamW(Decayed<Adam>),
    #[doc(hidden)]
    AmsGradW(Decayed<AmsGrad>),
    #[doc(hidden)]
    RmsProp(RmsProp),
    #[doc(hidden)]
    RmsPropMomentum(RmsPropMomentum),
    #[doc(hidden)]
    RmsPropCentered(RmsPropCentered),
    #[doc(hidden)]
    RmsPropCenteredMomentum(RmsPropCenteredMomentum),
    #[doc(hidden)]
    Ftrl(Ftrl),
    #[doc(hidden)]
    FtrlSqrt(FtrlSqrt),
    #[doc(hidden)]
    GroupFtrl(GroupFtrl),
    #[doc(hidden)]
    TorchSgd(torch::L2<Sgd>),
    #[doc(hidden)]
    TorchMomentum(torch::L2<torch::Momentum>),
    #[doc(hidden)]
    TorchAdagrad(torch::L2<torch::Adagrad>),
    #[doc(hidden)]
    TorchAdam(torch::L2<torch::Adam>),
    #[doc(hidden)]
    TorchAmsGrad(torch::L2<torch::AmsGrad>),
    #[doc(hidden)]
    TorchAdamW(Decayed<torch::Adam>),
    #[doc(hidden)]
    TorchAmsGradW(Decayed<torch::AmsGrad>),
    #[doc(hidden)]
    TorchRmsProp(torch::L2<torch::RmsProp>),
    #[doc(hidden)]
    TorchRmsPropMomentum(torch::L2<torch::RmsPropMomentum>),
    #[doc(hidden)]
    TorchRmsPropCentered(torch::L2<torch::RmsPropCentered>),
    #[doc(hidden)]
    TorchRmsPropCenteredMomentum(torch::L2<torch::RmsPropCenteredMomentum>),
}

/// Call a function that is generic in the rule with the rule of a step.
macro_rules! each_rule {
    ($step:expr, $rule:ident => $call:expr) => {
        match $step {
            Step::Sgd($rule) => $call,
            Step::Momentum($rule) => $call,
            Step::Nesterov($rule) => $call,
            Step::Adagrad($rule) => $call,
            Step::Adam($rule) => $call,
            Step::AmsGrad($rule) => $call,
            Step::AdamW($rule) => $call,
            Step::AmsGradW($rule) => $call,
            Step::RmsProp($rule) => $call,
            Step::RmsPropMomentum($rule) => $call,
            Step::RmsPropCentered($rule) => $call,
            Step::RmsPropCenteredMomentum($rule) => $call,
            Step::Ftrl($rule) => $call,
            Step::FtrlSqrt($rule) => $call,
            Step::GroupFtrl($rule) => $call,
            Step::TorchSgd($rule) => $call,
            Step::TorchMomentum($rule) => $call,
            Step::TorchAdagrad($rule) => $call,
            Step::TorchAdam($rule) => $call,
            Step::TorchAmsGrad($rule) => $call,
            Step::TorchAdamW($rule) => $call,
            Step::TorchAmsGradW($rule) => $call,
            Step::TorchRmsProp($rule) => $call,
            Step::TorchRmsPropMomentum($rule) => $call,
            Step::TorchRmsPropCentered($rule) => $call,
            Step::TorchRmsPropCenteredMomentum($rule) => $call,
        }
    };
}

fn cells(floats: &mut [f32]) -> &[Cell<f32>] {
    Cell::from_mut(floats).as_slice_of_cells()
}

impl Step {
    /// Leave out what a rule does to a row as a whole: a flat dense vector is no row.
    pub fn without_groups(self) -> Self {
        match self {
            Self::GroupFtrl(group) => Self::FtrlSqrt(group.rule),
            step => step,
        }
    }

    /// Update `weights` and its slots, in place.
    ///
    /// `slots` holds `num_slots` vectors, each as long as `gradients`, one after the other.
    ///
    /// # Panics
    /// If `weights` or `slots` is shorter than `gradients` asks for.
    #[inline]
    pub fn update(&self, weights: &mut [f32], slots: &mut [f32], gradients: &[f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: this processor has AVX2, which is all that the function asks for.
            unsafe { self.update_avx2(weights, slots, gradients) };
            return;
        }
        self.update_scalar(weights, slots, gradients);
    }

    /// [`Step::update`] compiled for the baseline processor; gives the same bits.
    pub fn update_scalar(&self, weights: &mut [f32], slots: &mut [f32], gradients: &[f32]) {
        let (weights, slots) = (cells(weights), cells(slots));
        each_rule!(self, rule => run::<LANES, _>(rule, weights, slots, gradients));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn update_avx2(&self, weights: &mut [f32], slots: &mut [f32], gradients: &[f32]) {
        let (weights, slots) = (cells(weights), cells(slots));
        each_rule!(self, rule => run::<LANES, _>(rule, weights, slots, gradients));
    }

    /// Update rows, one after the other; `DIM` is the length of their gradients, or 0 if the
    /// compiler shall not know it.
    ///
    /// # Panics
    /// If a row has fewer values than its gradient asks for, or a gradient is shorter than `DIM`.
    #[inline]
    pub fn update_rows<const DIM: usize>(&self, rows: &[Row<'_>]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512vl")
        {
            // SAFETY: this processor has both, which is all that the function asks for.
            unsafe { self.update_rows_avx512::<DIM>(rows) };
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: this processor has AVX2, which is all that the function asks for.
            unsafe { self.update_rows_avx2::<DIM>(rows) };
            return;
        }
        each_rule!(self, rule => run_rows::<LANES, DIM, _>(rule, rows));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn update_rows_avx512<const DIM: usize>(&self, rows: &[Row<'_>]) {
        each_rule!(self, rule => run_rows::<{ 2 * LANES }, DIM, _>(rule, rows));
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn update_rows_avx2<const DIM: usize>(&self, rows: &[Row<'_>]) {
        each_rule!(self, rule => run_rows::<LANES, DIM, _>(rule, rows));
    }
}
