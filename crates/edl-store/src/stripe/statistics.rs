//! The statistics of another table that decide about the rows of a stripe.

use edl_optim::Statistics;
use parking_lot::RwLockReadGuard;

use super::{RowSpec, Stripe};
use crate::life::Limit;

/// The statistics of the keys of a stripe.
pub(crate) struct KnownStripe<'t> {
    /// The stripe of the other table; `None` if the rows are statistics themselves.
    pub(crate) stripe: Option<RwLockReadGuard<'t, Stripe>>,
    /// The rows of the statistics.
    pub(crate) spec: &'t RowSpec,
    /// The period that they are decayed to.
    pub(crate) newest: f32,
    /// The limit for the comparison.
    pub(crate) limit: Limit,
}

impl KnownStripe<'_> {
    /// Whether the statistic of a key is below the limit, as it is of a key that has none.
    ///
    /// Args: `own` is the row of the key, where it is asked of a table about itself.
    pub(crate) fn is_below(&self, hash: u64, own: Option<&[f32]>) -> bool {
        match &self.stripe {
            None => self.is_low(own),
            Some(stripe) => self.is_low(stripe.row(hash, self.spec.dim)),
        }
    }

    fn is_low(&self, row: Option<&[f32]>) -> bool {
        let (Some(row), Some(statistics)) = (row, self.spec.statistics) else {
            return true;
        };
        let left = statistics.left_after(self.newest - row[row.len() - 1]);
        row[self.limit.column] * left < self.limit.limit
    }
}

impl Stripe {
    /// Decay all rows to the newest period, which is numbered 0 from now on.
    pub(crate) fn begin_periods(&mut self, statistics: Statistics, newest: f32, dim: usize) {
        let (entries, _) = self.index.walk(0, u32::MAX as usize);
        for entry in entries {
            let row = self.arena.row_mut(entry.row(), dim);
            statistics.decay_to(row, newest);
            row[dim - 1] = 0.0;
        }
    }

    /// Return the first floats of a key's row, which is never on disk where rows are statistics.
    fn row(&self, hash: u64, len: usize) -> Option<&[f32]> {
        let row = self.index.find(hash)?;
        Some(self.arena.view().row(row, len))
    }
}
