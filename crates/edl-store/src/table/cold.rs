//! Rows of a table that are on disk.

use parking_lot::RwLock;

use super::{Pulling, Table};
use crate::cold::ColdTally;
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;
use crate::stripe::{Keys, Stripe};

impl Table {
    /// Return how many stripes may bring rows to disk: all of them, or none.
    pub(crate) fn num_cold_stripes(&self) -> usize {
        if self.is_cold { NUM_STRIPES } else { 0 }
    }

    /// Bring some rows of a stripe to disk; return how many, or `None` if there are few left.
    ///
    /// # Errors
    /// A disk that takes no more: all rows are in memory that were. Or one that cannot be read.
    pub(crate) fn evict(
        &self,
        stripe: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Option<usize>, StoreError> {
        self.change(&self.stripes[stripe], |stripe| stripe.evict(buffer))
    }

    pub(crate) fn cold_tally(&self) -> ColdTally {
        let stripes = self.stripes.iter().filter(|_| self.is_cold);
        stripes.fold(ColdTally::default(), |sum, stripe| {
            let of_stripe = stripe.read().cold_tally();
            ColdTally {
                rows: sum.rows + of_stripe.rows,
                bytes: sum.bytes + of_stripe.bytes,
                read: sum.read + of_stripe.read,
                written: sum.written + of_stripe.written,
            }
        })
    }

    /// Go on with a pull of keys whose rows are not in memory, if they have any; return how many
    /// have none.
    pub(super) fn pull_cold(
        &self,
        stripe: &RwLock<Stripe>,
        keys: Keys<'_>,
        missing: &[u32],
        pulling: Pulling,
        out: &mut [f32],
    ) -> Result<usize, StoreError> {
        let hashes = missing.iter().map(|&i| keys.hashes[i as usize]);
        let hashes: Vec<u64> = hashes.collect();
        let dim = self.spec.dim;
        let place = |i: usize| {
            let first = keys.positions[missing[i] as usize] as usize * dim;
            first..first + dim
        };
        if !pulling.uses {
            let centre = self.spec.generator.centre();
            return stripe
                .read()
                .look_up(&hashes, &self.spec, |i, row| match row {
                    Some(weights) => out[place(i)].copy_from_slice(weights),
                    None => out[place(i)].fill(centre),
                });
        }
        self.change(stripe, |stripe| {
            let mut num_missing = 0;
            for (i, (&hash, row)) in hashes.iter().zip(stripe.bring(&hashes)?).enumerate() {
                num_missing += usize::from(row.is_none());
                let out = &mut out[place(i)];
                match (row, pulling.creates) {
                    (Some(_), _) => stripe.read_or_create(hash, &self.spec, 0, out),
                    (None, Some(version)) => {
                        stripe.read_or_create(hash, &self.spec, version, out);
                    }
                    (None, None) => out.fill(self.spec.generator.centre()),
                }
            }
            Ok(num_missing)
        })
    }
}

#[cfg(test)]
impl Table {
    /// Replaces the disk of a stripe by another one.
    pub(crate) fn replace_file(&self, stripe: usize, file: std::fs::File) {
        let mut stripe = self.stripes[stripe].write();
        if let Some(cold) = stripe.cold_mut() {
            cold.file_mut().replace(file);
        }
    }

    /// Return the file of a stripe, which is that of all.
    pub(crate) fn file(&self, stripe: usize) -> std::sync::Arc<std::fs::File> {
        let mut stripe = self.stripes[stripe].write();
        stripe.cold_mut().unwrap().file_mut().file()
    }
}
