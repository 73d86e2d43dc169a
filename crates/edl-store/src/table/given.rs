//! Rows that come into a table as a whole: from a checkpoint, another store, or a file of first rows.

use parking_lot::{RwLock, RwLockWriteGuard};

use super::Table;
use crate::error::StoreError;
use crate::index::{ENTRY_BYTES, MAX_ROWS};
use crate::placement::NUM_STRIPES;
use crate::route::hash;
use crate::stripe::{GivenRow, Stripe};

/// Rows of a checkpoint or another store: keys, versions, the numbers of all columns row by row, and
/// the rows.
pub(crate) type GivenRows<'a> = (&'a [u64], &'a [u64], &'a [u64], &'a [f32]);

impl Table {
    /// Create rows of this replica with given weights, before any other; return the first key that
    /// has a row already.
    pub(crate) fn begin_with(&self, keys: &[u64], rows: &[f32]) -> Result<Option<u64>, StoreError> {
        self.check_room(keys)?;
        for (&key, weights) in keys.iter().zip(rows.chunks_exact(self.spec.dim)) {
            let hash = hash(key);
            let begin = |stripe: &mut Stripe| stripe.begin_with(hash, &self.spec, weights);
            if !self.change(self.stripe_of(hash), begin) {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// Make room for those of `keys` that belong to this replica.
    pub(crate) fn reserve(&self, keys: &[u64]) -> Result<(), StoreError> {
        let counts = self.count_by_stripe(keys);
        let is_too_many =
            |(stripe, count): (&RwLock<Stripe>, usize)| stripe.read().len() + count > MAX_ROWS;
        if self.stripes.iter().zip(counts).any(is_too_many) {
            return Err(self.too_many_rows(MAX_ROWS));
        }
        for (stripe, count) in self.stripes.iter().zip(counts) {
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            stripe.reserve(count);
            // The bytes of a checkpoint's rows are counted before the rows are put back, unless
            // most of them go to disk.
            let row_bytes = if self.is_cold {
                0
            } else {
                stripe.new_row_bytes() - ENTRY_BYTES
            };
            let rows = count * row_bytes;
            self.budget.note(before, stripe.bytes() + rows);
        }
        Ok(())
    }

    /// Make room for so many rows in all, as evenly as hashes fall.
    pub(crate) fn reserve_rows(&self, num_rows: u64) {
        let of_stripe = (num_rows as usize).div_ceil(NUM_STRIPES);
        for stripe in &self.stripes {
            self.change(stripe, |stripe| stripe.reserve(of_stripe + of_stripe / 64));
        }
    }

    /// Put back rows as a checkpoint has them, weights and slots; those of other replicas are
    /// left out. Return the first key that is there twice, unless a base is put under a later
    /// checkpoint: `is_base`.
    pub(crate) fn restore(&self, given: GivenRows<'_>, is_base: bool) -> Option<u64> {
        self.each_given(given, |stripe, row| {
            let before = stripe.bytes();
            let is_new = stripe.restore(row);
            if self.is_cold {
                self.budget.note(before, stripe.bytes());
            }
            is_new || is_base
        })
    }

    /// Have rows as another store has them, unless later versions are here.
    pub(crate) fn put_given(&self, given: GivenRows<'_>) {
        self.each_given(given, |stripe, row| {
            let before = stripe.bytes();
            stripe.put(row);
            self.budget.note(before, stripe.bytes());
            true
        });
    }

    /// Give `take` each row with its stripe, but for those of other replicas; return the key of the
    /// first that it refuses.
    fn each_given(
        &self,
        (keys, versions, words, rows): GivenRows<'_>,
        mut take: impl FnMut(&mut Stripe, &GivenRow<'_>) -> bool,
    ) -> Option<u64> {
        self.terms.rows_come(rows);
        let num_words = self.columns.len();
        let mut rows =
            (keys.iter().zip(versions).enumerate()).zip(rows.chunks_exact(self.spec.width));
        // Keys of one stripe follow each other, so that its lock is taken once for many.
        let mut locked: Option<(usize, RwLockWriteGuard<'_, Stripe>)> = None;
        let refused = rows.find(|&((i, (&key, &version)), row)| {
            let hash = hash(key);
            if !self.placement.owns(hash) {
                return false;
            }
            let number = self.placement.stripe(hash);
            let stripe = match &mut locked {
                Some((held, stripe)) if *held == number => stripe,
                other => {
                    // The last one is let go before the next is taken.
                    *other = None;
                    &mut other.insert((number, self.stripes[number].write())).1
                }
            };
            let given = GivenRow {
                hash,
                version,
                words: &words[i * num_words..][..num_words],
                row,
            };
            !take(stripe, &given)
        });
        refused.map(|((_, (&key, _)), _)| key)
    }
}
