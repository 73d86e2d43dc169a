//! One update of an optimizer, and the way of rows and vectors through the kernels.

use std::cell::Cell;

use crate::adam::{Adam, Adamax, AmsGrad, Lion, Nadam, ScheduleFree};
use crate::around::{Around, Constraint, Decay};
use crate::group::GroupFtrl;
use crate::kernel::{LANES, Row, run, run_rows};
use crate::own_rule::OwnRule;
use crate::rules::{
    Adadelta, Adagrad, Ftrl, FtrlSqrt, Momentum, Nesterov, RmsProp, RmsPropCentered,
    RmsPropCenteredMomentum, RmsPropMomentum, Sgd,
};
use crate::statistics::Statistics;
use crate::torch;

/// A rule with its learning rate and step number fixed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FixedRule {
    Sgd(Sgd),
    Momentum(Momentum),
    Nesterov(Nesterov),
    Adagrad(Adagrad),
    Adadelta(Adadelta),
    Adam(Adam),
    AmsGrad(AmsGrad),
    Nadam(Nadam),
    Adamax(Adamax),
    Lion(Lion),
    ScheduleFree(ScheduleFree),
    RmsProp(RmsProp),
    RmsPropMomentum(RmsPropMomentum),
    RmsPropCentered(RmsPropCentered),
    RmsPropCenteredMomentum(RmsPropCenteredMomentum),
    Ftrl(Ftrl),
    FtrlSqrt(FtrlSqrt),
    GroupFtrl(GroupFtrl),
    TorchSgd(torch::L2<Sgd>),
    TorchMomentum(torch::L2<torch::Momentum>),
    TorchAdagrad(torch::L2<torch::Adagrad>),
    TorchAdam(torch::L2<torch::Adam>),
    TorchAmsGrad(torch::L2<torch::AmsGrad>),
    TorchAdamW(torch::Adam),
    TorchAmsGradW(torch::AmsGrad),
    TorchRmsProp(torch::L2<torch::RmsProp>),
    TorchRmsPropMomentum(torch::L2<torch::RmsPropMomentum>),
    TorchRmsPropCentered(torch::L2<torch::RmsPropCentered>),
    TorchRmsPropCenteredMomentum(torch::L2<torch::RmsPropCenteredMomentum>),
    Own(OwnRule),
    Statistics(Statistics),
}

/// Call a generic function with the rule of a step. The rule may also be one that needs more than
/// single elements: a rule of the user, or the rule of statistics.
macro_rules! each_rule {
    ($step:expr, $rule:ident => $call:expr, own => $own_call:expr) => {
        match &$step.rule {
            FixedRule::Sgd($rule) => $call,
            FixedRule::Momentum($rule) => $call,
            FixedRule::Nesterov($rule) => $call,
            FixedRule::Adagrad($rule) => $call,
            FixedRule::Adadelta($rule) => $call,
            FixedRule::Adam($rule) => $call,
            FixedRule::AmsGrad($rule) => $call,
            FixedRule::Nadam($rule) => $call,
            FixedRule::Adamax($rule) => $call,
            FixedRule::Lion($rule) => $call,
            FixedRule::ScheduleFree($rule) => $call,
            FixedRule::RmsProp($rule) => $call,
            FixedRule::RmsPropMomentum($rule) => $call,
            FixedRule::RmsPropCentered($rule) => $call,
            FixedRule::RmsPropCenteredMomentum($rule) => $call,
            FixedRule::Ftrl($rule) => $call,
            FixedRule::FtrlSqrt($rule) => $call,
            FixedRule::GroupFtrl($rule) => $call,
            FixedRule::TorchSgd($rule) => $call,
            FixedRule::TorchMomentum($rule) => $call,
            FixedRule::TorchAdagrad($rule) => $call,
            FixedRule::TorchAdam($rule) => $call,
            FixedRule::TorchAmsGrad($rule) => $call,
            FixedRule::TorchAdamW($rule) => $call,
            FixedRule::TorchAmsGradW($rule) => $call,
            FixedRule::TorchRmsProp($rule) => $call,
            FixedRule::TorchRmsPropMomentum($rule) => $call,
            FixedRule::TorchRmsPropCentered($rule) => $call,
            FixedRule::TorchRmsPropCenteredMomentum($rule) => $call,
            FixedRule::Own($rule) => $own_call,
            FixedRule::Statistics($rule) => $own_call,
        }
    };
}

/// One update of an optimizer, with its learning rate and step number fixed.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    pub(crate) rule: FixedRule,
    around: Around,
}

impl From<FixedRule> for Step {
    fn from(rule: FixedRule) -> Self {
        let around = Around::default();
        Self { rule, around }
    }
}

impl From<Statistics> for Step {
    /// The update of rows of statistics by what is added to them.
    fn from(statistics: Statistics) -> Self {
        Self::from(FixedRule::Statistics(statistics))
    }
}

fn cells(floats: &mut [f32]) -> &[Cell<f32>] {
    Cell::from_mut(floats).as_slice_of_cells()
}

impl Step {
    /// Decay the weights before the update.
    pub(crate) fn with_decay(mut self, weight_decay: f64, learning_rate: f32) -> Self {
        self.around.decay = (weight_decay > 0.0).then_some(Decay {
            learning_rate,
            weight_decay: weight_decay as f32,
        });
        self
    }

    /// Hold the weights to a constraint after the update.
    pub fn with_constraint(mut self, constraint: Option<Constraint>) -> Self {
        self.around.constraint = constraint;
        self
    }

    /// Separate the element-wise decay, and leave out the operations on a row as a whole: a flat
    /// vector of dense variables is no row, and only a part of it may decay.
    pub fn of_a_flat_vector(mut self) -> (Option<Decay>, Self) {
        if let FixedRule::GroupFtrl(group) = self.rule {
            self.rule = FixedRule::FtrlSqrt(group.rule);
        }
        let decay = std::mem::take(&mut self.around).decay;
        (decay, self)
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
        each_rule!(
            self, rule => run::<LANES, _>(rule, &self.around, weights, slots, gradients),
            own => rule.run(&self.around, weights, slots, gradients)
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn update_avx2(&self, weights: &mut [f32], slots: &mut [f32], gradients: &[f32]) {
        let (weights, slots) = (cells(weights), cells(slots));
        each_rule!(
            self, rule => run::<LANES, _>(rule, &self.around, weights, slots, gradients),
            own => rule.run(&self.around, weights, slots, gradients)
        );
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
        each_rule!(
            self, rule => run_rows::<LANES, DIM, _>(rule, &self.around, rows),
            own => rule.run_rows(&self.around, rows)
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn update_rows_avx512<const DIM: usize>(&self, rows: &[Row<'_>]) {
        each_rule!(
            self, rule => run_rows::<{ 2 * LANES }, DIM, _>(rule, &self.around, rows),
            own => rule.run_rows(&self.around, rows)
        );
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn update_rows_avx2<const DIM: usize>(&self, rows: &[Row<'_>]) {
        each_rule!(
            self, rule => run_rows::<LANES, DIM, _>(rule, &self.around, rows),
            own => rule.run_rows(&self.around, rows)
        );
    }
}
