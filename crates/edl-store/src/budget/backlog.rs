//! Counts the bytes that are copied for a checkpoint and not written yet, and lets threads wait for
//! fewer.
//!
//! The common case, without a wait, takes no lock. `make test-only WHAT=loom` checks that no thread
//! sleeps for ever. It runs the threads of the model below in every order that the memory model
//! allows, except orders with many interruptions.

#[cfg(edl_loom)]
use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU64};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
#[cfg(not(edl_loom))]
use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicU64};
use std::time::Duration;

/// Bytes of rows that were copied for a checkpoint and have not been written yet.
#[derive(Debug)]
pub(super) struct Backlog {
    bytes: AtomicU64,
    /// All that were ever taken: whether whoever takes them goes on.
    taken: AtomicU64,
    most: u64,
    waiting: Mutex<()>,
    less: Condvar,
}

impl Backlog {
    /// `most`: bytes beyond which those who add wait.
    pub(super) fn new(most: u64) -> Self {
        Self {
            bytes: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            most,
            waiting: Mutex::new(()),
            less: Condvar::new(),
        }
    }

    /// Note that some were copied.
    #[inline]
    pub(super) fn add(&self, bytes: u64) {
        if bytes > 0 {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Note that some bytes were taken, and wake the waiting threads.
    ///
    /// A waiting thread reads the bytes with the lock held, and releases the lock as it falls
    /// asleep. So there are two cases. If it took the lock after this call, it sees the new number.
    /// Otherwise it sleeps when this call has the lock, and is woken.
    pub(super) fn take(&self, bytes: u64) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        if before > self.most {
            let _lock = self.lock();
            self.less.notify_all();
        }
    }

    /// Whether there is half as much as there may be.
    pub(super) fn is_large(&self) -> bool {
        self.is_above(self.most / 2)
    }

    /// Return true once there is no more than there may be, or false if nothing was taken for as long
    /// as `patience`. The caller holds no lock of the store.
    #[inline]
    pub(super) fn wait(&self, patience: Duration) -> bool {
        !self.is_above(self.most) || self.sleep(patience)
    }

    #[cold]
    fn sleep(&self, patience: Duration) -> bool {
        let mut lock = self.lock();
        while self.is_above(self.most) {
            let taken = self.taken.load(Ordering::Relaxed);
            let woken = self.less.wait_timeout(lock, patience);
            let (relocked, wait) = woken.unwrap_or_else(PoisonError::into_inner);
            lock = relocked;
            if wait.timed_out() && self.taken.load(Ordering::Relaxed) == taken {
                return false;
            }
        }
        true
    }

    fn is_above(&self, bytes: u64) -> bool {
        self.bytes.load(Ordering::Relaxed) > bytes
    }

    /// It guards no value, so none can be half-way through a change.
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
const LONG: Duration = Duration::from_secs(60);

#[cfg(all(test, not(edl_loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn who_adds_too_much_waits_until_some_is_taken() {
        let (backlog, written) = (Backlog::new(100), AtomicBool::new(false));
        backlog.add(100);
        assert!(backlog.wait(LONG));
        backlog.add(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert!(backlog.wait(LONG));
                assert!(written.load(Ordering::Relaxed));
            });
            written.store(true, Ordering::Relaxed);
            backlog.take(1);
        });
    }
}

#[cfg(all(test, edl_loom))]
mod models {
    /// A thread is interrupted where it need not be so many times at most; bugs need few, and each
    /// more takes ten times as long.
    const PREEMPTIONS: usize = 2;

    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Two who update, one of whom adds more, and one who writes: whatever the order of their
    /// steps, all come to an end.
    #[test]
    fn nobody_sleeps_for_ever() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTIONS);
        model.check(|| {
            let backlog = Arc::new(Backlog::new(1));
            backlog.add(2);
            let updates: Vec<_> = (0..2)
                .map(|bytes| {
                    let backlog = backlog.clone();
                    thread::spawn(move || {
                        backlog.add(bytes);
                        assert!(backlog.wait(LONG));
                    })
                })
                .collect();
            backlog.take(1);
            backlog.take(1);
            for update in updates {
                update.join().unwrap();
            }
            assert!(backlog.is_above(0) && !backlog.is_above(1));
        });
    }
}
