//! How many bytes the rows of a store take, and how many they may take.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

/// Bytes of rows that are kept aside for a checkpoint at most; updates wait beyond.
const MAX_SAVED: u64 = 256 << 20;

/// Bytes of all rows of a store. Shards note what they take and give back; the limit is kept by
/// whoever is about to create rows, so that what is under way can go beyond it by a batch.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    used: AtomicU64,
    /// 0: none.
    limit: AtomicU64,
    /// Bytes of rows that were kept aside for a checkpoint, and have not been written yet.
    saved: AtomicU64,
    /// Updates wait for `drained` with it, until there is room for more of these.
    waiting: Mutex<()>,
    drained: Condvar,
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

    /// Note that rows are kept aside for a checkpoint.
    #[inline]
    pub(crate) fn note_saved(&self, bytes: usize) {
        if bytes > 0 {
            self.saved.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Note that whoever writes the checkpoint has taken rows that were kept aside.
    pub(crate) fn note_taken(&self, bytes: usize) {
        let before = self.saved.fetch_sub(bytes as u64, Ordering::Relaxed);
        if before > MAX_SAVED {
            let _waiting = self.waiting.lock();
            self.drained.notify_all();
        }
    }

    /// Whether so many rows are kept aside that they should be written first.
    pub(crate) fn saved_is_large(&self) -> bool {
        self.saved.load(Ordering::Relaxed) > MAX_SAVED / 2
    }

    /// Return once there is room for rows that are kept aside. The caller holds no lock of the
    /// store.
    #[inline]
    pub(crate) fn wait_for_saved(&self) {
        if self.saved.load(Ordering::Relaxed) <= MAX_SAVED {
            return;
        }
        let mut waiting = self.waiting.lock();
        while self.saved.load(Ordering::Relaxed) > MAX_SAVED {
            self.drained.wait(&mut waiting);
        }
    }

    /// Whether `bytes` more may be taken.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        self.limit()
            .is_none_or(|limit| self.used().saturating_add(bytes) <= limit)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn updates_wait_until_saved_rows_are_written() {
        let (budget, written) = (Budget::default(), AtomicBool::new(false));
        budget.note_saved(MAX_SAVED as usize);
        budget.wait_for_saved();
        budget.note_saved(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                budget.wait_for_saved();
                assert!(written.load(Ordering::Relaxed));
            });
            written.store(true, Ordering::Relaxed);
            budget.note_taken(1);
        });
    }
}
