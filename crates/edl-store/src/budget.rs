//! How many bytes the rows of a store take, and how many they may take.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of all rows of a store. Shards note what they take and give back; the limit is kept by
/// whoever is about to create rows, so that what is under way can go beyond it by a batch.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    used: AtomicU64,
    /// 0: none.
    limit: AtomicU64,
}

impl Budget {
    pub(crate) fn set_limit(&self, bytes: Option<u64>) {
        self.limit.store(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit > 0)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Note that what took `before` bytes takes `after` now.
    #[inline]
    pub(crate) fn note(&self, before: usize, after: usize) {
        if before != after {
            let change = (after as u64).wrapping_sub(before as u64);
            self.used.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// Whether `bytes` more may be taken.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.limit()
            .is_none_or(|limit| self.used().saturating_add(bytes) <= limit)
    }
}
