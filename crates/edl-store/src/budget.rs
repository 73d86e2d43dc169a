//! How many bytes the rows of a store take, and how many they may take.

mod backlog;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use backlog::Backlog;

use crate::cold::Disk;
use crate::index::MAX_ROWS;

/// Bytes of rows that are copied for a checkpoint and not written yet, at most; updates wait beyond.
const MAX_SAVED: u64 = 256 << 20;

/// A disk that takes nothing for so long hangs.
const DISK_PATIENCE: Duration = Duration::from_secs(60);

/// Rows below what an index can hold at which a stripe takes no more: room for the batches in flight.
const HEADROOM: u64 = 1 << 25;

/// The bytes of all rows of a store. Stripes note the bytes that they take and give back. A thread
/// that is about to create rows checks the limit, so running threads can exceed it by a batch.
#[derive(Debug)]
pub(crate) struct Budget {
    used: AtomicU64,
    /// 0: none.
    limit: AtomicU64,
    /// Rows that a stripe may have.
    stripe_rows: AtomicU64,
    /// The disk for rows that have no room in memory.
    disk: OnceLock<Arc<Disk>>,
    /// Nearly all rows have gone there, and what is left takes all that it may.
    cramped: AtomicBool,
    backlog: Backlog,
    /// Updates did not wait any longer for what is being written.
    given_up: AtomicBool,
    /// In milliseconds, how long updates wait for a disk that takes nothing.
    patience: AtomicU64,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            used: AtomicU64::new(0),
            limit: AtomicU64::new(0),
            stripe_rows: AtomicU64::new(MAX_ROWS as u64 - HEADROOM),
            disk: OnceLock::new(),
            cramped: AtomicBool::new(false),
            backlog: Backlog::new(MAX_SAVED),
            given_up: AtomicBool::new(false),
            patience: AtomicU64::new(DISK_PATIENCE.as_millis() as u64),
        }
    }
}

impl Budget {
    pub(crate) fn set_limit(&self, bytes: Option<u64>) {
        self.limit.store(bytes.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|&limit| limit > 0)
    }

    /// From now on, tables that are made bring rows to disk that have no room in memory.
    pub(crate) fn set_disk(&self, disk: Arc<Disk>) {
        // The first stays: tables have files in it.
        let _ = self.disk.set(disk);
    }

    pub(crate) fn disk(&self) -> Option<&Arc<Disk>> {
        self.disk.get()
    }

    /// Say whether as many rows as can are on disk, and there is no room all the same.
    pub(crate) fn set_cramped(&self, cramped: bool) {
        self.cramped.store(cramped, Ordering::Relaxed);
    }

    /// Return how many rows a stripe may have.
    pub(crate) fn stripe_rows(&self) -> usize {
        self.stripe_rows.load(Ordering::Relaxed) as usize
    }

    /// Pretends that an index holds less, since no test could fill it.
    #[cfg(test)]
    pub(crate) fn set_stripe_rows(&self, rows: u64) {
        self.stripe_rows.store(rows, Ordering::Relaxed);
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

    /// Note that rows were copied for a checkpoint.
    #[inline]
    pub(crate) fn note_saved(&self, bytes: usize) {
        self.backlog.add(bytes as u64);
    }

    /// Note that whoever writes the checkpoint has taken rows that were copied.
    pub(crate) fn note_taken(&self, bytes: usize) {
        self.backlog.take(bytes as u64);
    }

    /// Whether so many copied rows wait that they should be written first.
    pub(crate) fn saved_is_large(&self) -> bool {
        self.backlog.is_large()
    }

    /// Return once there is room for copied rows: true. Or false if the disk hangs: then the caller
    /// ends the snapshot. It holds no lock of the store.
    #[inline]
    pub(crate) fn wait_for_saved(&self) -> bool {
        let patience = Duration::from_millis(self.patience.load(Ordering::Relaxed));
        let has_room = self.backlog.wait(patience);
        if !has_room {
            self.given_up.store(true, Ordering::Release);
        }
        has_room
    }

    /// Whether the snapshot of this checkpoint ended before its time.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// A checkpoint begins, and none is being written.
    pub(crate) fn begin_snapshot(&self) {
        self.given_up.store(false, Ordering::Release);
    }

    /// Pretends that there is room for fewer copied rows, and that a disk hangs sooner.
    #[cfg(test)]
    pub(crate) fn set_impatient(&mut self, most: u64, patience: Duration) {
        self.backlog = Backlog::new(most);
        self.patience
            .store(patience.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether `bytes` more may be taken. With a disk, other rows make room for them.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        if self.disk.get().is_some() && !self.cramped.load(Ordering::Relaxed) {
            return true;
        }
        self.limit()
            .is_none_or(|limit| self.used().saturating_add(bytes) <= limit)
    }
}
