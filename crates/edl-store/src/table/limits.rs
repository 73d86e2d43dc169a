//! What is checked of a batch before anything is changed.

use parking_lot::RwLock;

use super::{BLOCK, SORTED, Table};
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;
use crate::stripe::Stripe;

/// No row takes less, wherever it is: its entry of the index.
const MIN_ROW_BYTES: u64 = 16;

impl Table {
    /// Check a batch of keys and an array of a row for each, before anything is changed.
    pub(crate) fn check(&self, what: &str, keys: &[u64], floats: usize) -> Result<(), StoreError> {
        let expected = keys.len().saturating_mul(self.spec.dim);
        if floats != expected {
            return Err(StoreError::WrongLength {
                what: format!("{what} of table '{}'", self.name),
                expected,
                found: floats,
            });
        }
        self.placement.check(keys)
    }

    /// Check that rows for those of `keys` that have none may be created.
    pub(crate) fn check_room(&self, keys: &[u64]) -> Result<(), StoreError> {
        if let Some(full) = self.budget.disk().and_then(|disk| disk.full()) {
            return Err(full);
        }
        self.check_numbers(keys)?;
        let row_bytes = self.stripes[0].read().new_row_bytes() as u64;
        if self.budget.has_room(keys.len() as u64 * row_bytes) {
            return Ok(());
        }
        // Close to the limit it matters how many rows there are already.
        let new_rows: usize = keys
            .chunks(BLOCK)
            .map(|keys| self.count_missing(keys))
            .sum();
        if new_rows == 0 || self.budget.has_room(new_rows as u64 * row_bytes) {
            return Ok(());
        }
        let (table, rows) = (self.name.clone(), self.size().0);
        let (used, limit) = (self.budget.used(), self.budget.limit().unwrap_or(0));
        Err(if self.budget.disk().is_some() {
            StoreError::IndexLimit {
                table,
                rows,
                new_rows,
                used,
                limit,
            }
        } else {
            StoreError::MemoryLimit {
                table,
                rows,
                new_rows,
                used,
                limit,
            }
        })
    }

    /// Check that keys belong to this replica.
    pub(crate) fn check_keys(&self, keys: &[u64]) -> Result<(), StoreError> {
        self.placement.check(keys)
    }

    fn count_missing(&self, keys: &[u64]) -> usize {
        SORTED.with_borrow_mut(|sorted| {
            sorted.sort(keys, &self.placement);
            let stripes = self.stripes.iter().enumerate();
            stripes
                .map(|(number, stripe)| stripe.read().count_missing(sorted.keys(number)))
                .sum()
        })
    }

    /// Check that rows for those of `keys` that have none can be numbered.
    fn check_numbers(&self, keys: &[u64]) -> Result<(), StoreError> {
        let limit = self.budget.stripe_rows();
        // Mostly all rows there are would fit into one stripe: then none is asked.
        let most_rows = self.budget.used() / MIN_ROW_BYTES;
        if most_rows.saturating_add(keys.len() as u64) <= limit as u64 {
            return Ok(());
        }
        let may_be_full = |stripe: &RwLock<Stripe>| stripe.read().len() + keys.len() > limit;
        if !self.stripes.iter().any(may_be_full) {
            return Ok(());
        }
        let mut lens: Vec<usize> = self.stripes.iter().map(|s| s.read().len()).collect();
        for keys in keys.chunks(BLOCK) {
            SORTED.with_borrow_mut(|sorted| {
                sorted.sort(keys, &self.placement);
                for (number, stripe) in self.stripes.iter().enumerate() {
                    lens[number] += stripe.read().count_missing(sorted.keys(number));
                }
            });
        }
        let has_new = |(len, stripe): (&usize, &RwLock<Stripe>)| *len > stripe.read().len();
        let is_too_long = |(len, _): &(&usize, &RwLock<Stripe>)| **len > limit;
        if lens
            .iter()
            .zip(&self.stripes)
            .filter(is_too_long)
            .any(has_new)
        {
            return Err(self.too_many_rows(limit));
        }
        Ok(())
    }

    pub(super) fn too_many_rows(&self, limit: usize) -> StoreError {
        StoreError::Full(format!(
            "table '{}' cannot take new rows: one of the {NUM_STRIPES} stripes that it has in this \
             ps replica has {limit} rows, the most that can be numbered; nothing was created or \
             changed. Start the job again from its last checkpoint with more replicas \
             (--checkpoint_dir_for_init, --num_ps_pods)",
            self.name
        ))
    }
}
