//! Rows that come from the store of another replica.

use parking_lot::RwLockWriteGuard;

use super::Table;
use crate::error::StoreError;
use crate::placement::NUM_STRIPES;
use crate::route::hash;
use crate::stripe::Stripe;

impl Table {
    /// Whether its rows have nothing beside them that would have to move as well.
    pub(crate) fn is_movable(&self) -> bool {
        let has_life = self.admission.is_some() || self.expiry.is_some();
        !has_life && !self.keeps_names && !self.has_statistics()
    }

    /// Make room for so many rows in all, as evenly as hashes fall.
    pub(crate) fn reserve_rows(&self, num_rows: u64) {
        let of_stripe = (num_rows as usize).div_ceil(NUM_STRIPES);
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            stripe.reserve(of_stripe + of_stripe / 64);
            self.budget.note(before, stripe.bytes());
        }
    }

    /// Have rows, weights and slots, as another store has them, unless later versions are here.
    pub(crate) fn put(
        &self,
        keys: &[u64],
        versions: &[u64],
        rows: &[f32],
    ) -> Result<(), StoreError> {
        let expected = keys.len().saturating_mul(self.spec.width);
        if rows.len() != expected || versions.len() != keys.len() {
            return Err(StoreError::WrongLength {
                what: format!("the moved rows of table '{}'", self.name),
                expected,
                found: rows.len(),
            });
        }
        self.placement.check(keys)?;
        self.check_room(keys)?;
        self.note_periods(rows);
        // They come in the order of their hashes, so a lock is taken once for many.
        let mut locked: Option<(usize, RwLockWriteGuard<'_, Stripe>)> = None;
        let rows = rows.chunks_exact(self.spec.width);
        for ((&key, &version), row) in keys.iter().zip(versions).zip(rows) {
            let hash = hash(key);
            let number = self.placement.stripe(hash);
            let stripe = match &mut locked {
                Some((held, stripe)) if *held == number => stripe,
                other => {
                    *other = None;
                    &mut other.insert((number, self.stripes[number].write())).1
                }
            };
            let (before, len) = (stripe.bytes(), stripe.len());
            stripe.put(hash, version, row);
            if stripe.len() > len {
                self.budget.note(before, stripe.bytes());
            }
        }
        Ok(())
    }
}
