//! The place of a hash: its replica, and its stripe there.

use crate::error::StoreError;
use crate::index::HashRange;
use crate::route::{NUM_HASH_SLOTS, hash, hash_slots_of, replica_of};

/// Stripes of a table, each under its own lock.
pub(crate) const NUM_STRIPES: usize = 16;

/// The hashes of a replica, and of each of its stripes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    replica: u32,
    num_replicas: u32,
    first_hash_slot: u32,
    num_hash_slots: u32,
    /// `NUM_STRIPES * 2^32 / num_hash_slots`
    factor: u64,
}

impl Placement {
    pub(crate) fn new(replica: u32, num_replicas: u32) -> Result<Self, StoreError> {
        if !(1..=NUM_HASH_SLOTS).contains(&num_replicas) || replica >= num_replicas {
            return Err(StoreError::BadReplica {
                replica,
                num_replicas,
            });
        }
        let slots = hash_slots_of(replica, num_replicas);
        let num_hash_slots = slots.end - slots.start;
        Ok(Self {
            replica,
            num_replicas,
            first_hash_slot: slots.start,
            num_hash_slots,
            factor: ((NUM_STRIPES as u64) << 32) / u64::from(num_hash_slots),
        })
    }

    /// Return the slot of a hash, counted from this replica's first; wraps if it is not ours.
    #[inline(always)]
    fn local_hash_slot(&self, hash: u64) -> u32 {
        ((hash >> 48) as u32).wrapping_sub(self.first_hash_slot)
    }

    #[inline(always)]
    pub(crate) fn owns(&self, hash: u64) -> bool {
        self.local_hash_slot(hash) < self.num_hash_slots
    }

    /// Return the stripe of a hash that this replica owns.
    #[inline(always)]
    pub(crate) fn stripe(&self, hash: u64) -> usize {
        ((u64::from(self.local_hash_slot(hash)) * self.factor) >> 32) as usize
    }

    /// Return the first slot of a stripe; that of stripe `NUM_STRIPES` is the end.
    pub(crate) fn first_hash_slot(&self, stripe: usize) -> u32 {
        let local = ((stripe as u64) << 32).div_ceil(self.factor);
        self.first_hash_slot + (local as u32).min(self.num_hash_slots)
    }

    /// Return the hashes of a stripe.
    pub(crate) fn hashes(&self, stripe: usize) -> HashRange {
        let (first, end) = (
            self.first_hash_slot(stripe),
            self.first_hash_slot(stripe + 1),
        );
        HashRange {
            first: u64::from(first) << 48,
            // A stripe without slots has no hash; it must have some width all the same.
            width: u128::from((end - first).max(1)) << 48,
        }
    }

    /// Check that all keys belong to this replica.
    pub(crate) fn check(&self, keys: &[u64]) -> Result<(), StoreError> {
        if self.num_replicas == 1 {
            return Ok(());
        }
        match keys.iter().find(|&&key| !self.owns(hash(key))) {
            None => Ok(()),
            Some(&key) => Err(StoreError::WrongReplica {
                key,
                owner: replica_of(key, self.num_replicas),
                replica: self.replica,
                num_replicas: self.num_replicas,
            }),
        }
    }
}
