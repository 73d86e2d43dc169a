//! What a training step asks for, gets, and hands in.

use edl_store::PullMode;
use edl_wire::op::Step;

use crate::dedup::{Plan, Site};

/// The result of one pull.
#[derive(Debug)]
pub struct Pulled {
    /// For each site: a row per id.
    pub rows: Vec<Vec<f32>>,
    /// The whole dense vector, or empty if it was not asked for.
    pub dense: Vec<f32>,
    /// The whole state vector, or empty if it was not asked for.
    pub state: Vec<f32>,
    /// The receipt that the push needs.
    pub receipt: Receipt,
}

impl Pulled {
    /// Splits a pull that was made for several minibatches; each has as many sites. The vectors are
    /// those of all, and stay here.
    pub fn split(&mut self, num_minibatches: usize) -> Vec<(Vec<Vec<f32>>, Receipt)> {
        let each = self.rows.len() / num_minibatches.max(1);
        let mut rows = std::mem::take(&mut self.rows).into_iter();
        let parts = (0..num_minibatches).map(|minibatch| {
            let receipt = Receipt {
                plan: self
                    .receipt
                    .plan
                    .part(minibatch * each..(minibatch + 1) * each),
                versions: self.receipt.versions.clone(),
            };
            (rows.by_ref().take(each).collect(), receipt)
        });
        parts.collect()
    }
}

/// The facts of a pull that its push needs. Any number of pulls may be made before it is used.
#[derive(Debug)]
pub struct Receipt {
    pub(crate) plan: Plan,
    pub(crate) versions: Vec<u64>,
}

impl Receipt {
    /// Updates that replica 0 had applied.
    pub fn version(&self) -> u64 {
        self.versions.first().copied().unwrap_or(0)
    }

    /// Says that vectors of an earlier pull are used: staleness counts from that one.
    pub fn with_vectors_of(mut self, earlier: &Self) -> Self {
        for (version, earlier) in self.versions.iter_mut().zip(&earlier.versions) {
            *version = (*version).min(*earlier);
        }
        self
    }
}

/// The request of a pull.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The ids of every site.
    pub sites: &'a [Site<'a>],
    /// Whether rows are made that are missing.
    pub mode: PullMode,
    /// Whether the dense and state vectors are wanted too.
    pub vectors: bool,
    /// The step of a pull whose gradient will be pushed. With bounded staleness the pull waits
    /// until that gradient cannot come too late.
    pub step: Option<Step>,
}

/// The results of a minibatch's backward pass.
#[derive(Clone, Copy, Debug)]
pub struct StepGradients<'a> {
    /// For each site of the pull, a gradient for each id.
    pub rows: &'a [&'a [f32]],
    /// The gradient of the dense vector.
    pub dense: &'a [f32],
    /// The change of the state vector.
    pub state: &'a [f32],
}

/// A minibatch that has been computed, one of several that are pushed together.
#[derive(Clone, Copy, Debug)]
pub struct ComputedStep<'a> {
    /// Of its pull.
    pub receipt: &'a Receipt,
    /// The results of the backward pass.
    pub gradients: StepGradients<'a>,
    /// Records in it.
    pub num_records: u32,
}
