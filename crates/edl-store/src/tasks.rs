//! Watermarks: what has been applied of each task, and under which lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;

/// The applied minibatches of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAudit {
    /// The task.
    pub task: u64,
    /// Minibatches applied or skipped; the index of the next.
    pub next_index: u32,
    /// Records in those that were applied.
    pub num_records: u64,
}

/// The minibatches that watermarks have kept from being applied again, since this process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatermarkTally {
    /// Minibatches that came again, and were acknowledged.
    pub duplicates: u64,
    /// Requests under a lease that was over, refused.
    pub stale_leases: u64,
    /// Minibatches before which others were missing, refused.
    pub gaps: u64,
}

/// A task's watermark.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watermark {
    /// The newest lease known; an older one is refused.
    pub(crate) lease: u32,
    pub(crate) next_index: u32,
    pub(crate) num_records: u64,
}

/// Watermarks by task.
pub(crate) type Watermarks = Vec<(u64, Watermark)>;

/// The decision about a minibatch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is the next.
    Next,
    /// It has been dealt with before.
    Done,
}

impl Watermark {
    /// Let `lease` in, and with it refuse all older ones.
    pub(crate) fn fence(&mut self, task: u64, lease: u32) -> Result<(), StoreError> {
        if lease < self.lease {
            return Err(StoreError::StaleLease {
                task,
                lease,
                current: self.lease,
            });
        }
        self.lease = lease;
        Ok(())
    }

    pub(crate) fn judge(&self, task: u64, index: u32) -> Result<Verdict, StoreError> {
        self.judge_several(task, index, 1)
    }

    /// Say the same of several that follow each other: all of them are next, or all are done.
    pub(crate) fn judge_several(
        &self,
        task: u64,
        index: u32,
        num_minibatches: u32,
    ) -> Result<Verdict, StoreError> {
        let end = index.saturating_add(num_minibatches);
        let is_in_part_done = index < self.next_index && self.next_index < end;
        if index > self.next_index || is_in_part_done {
            return Err(StoreError::Gap {
                task,
                index,
                expected: self.next_index,
            });
        }
        Ok(if index == self.next_index {
            Verdict::Next
        } else {
            Verdict::Done
        })
    }

    /// Count the next minibatch as dealt with.
    pub(crate) fn advance(&mut self, num_records: u32) {
        self.advance_by(1, num_records);
    }

    /// Count several minibatches as dealt with.
    pub(crate) fn advance_by(&mut self, num_minibatches: u32, num_records: u32) {
        self.next_index = self.next_index.saturating_add(num_minibatches);
        self.num_records = self.num_records.saturating_add(u64::from(num_records));
    }
}

/// The watermarks of all tasks.
///
/// A task's own lock is held while one of its minibatches is applied, so that of two equal
/// pushes the second finds it done.
#[derive(Default)]
pub(crate) struct Tasks {
    tasks: Mutex<HashMap<u64, Arc<Mutex<Watermark>>>>,
    /// Tasks before this one are done with, and have no watermark. It rises only.
    first: AtomicU64,
    tally: Mutex<WatermarkTally>,
}

impl Tasks {
    pub(crate) fn new(watermarks: impl IntoIterator<Item = (u64, Watermark)>) -> Self {
        let tasks = watermarks
            .into_iter()
            .map(|(task, watermark)| (task, Arc::new(Mutex::new(watermark))))
            .collect();
        Self {
            tasks: Mutex::new(tasks),
            first: AtomicU64::new(0),
            tally: Mutex::default(),
        }
    }

    /// Forget all tasks before one: no lease of theirs is let in any more.
    pub(crate) fn forget_before(&self, first: u64) {
        let mut tasks = self.tasks.lock();
        if first > self.first.load(Ordering::Acquire) {
            self.first.store(first, Ordering::Release);
            tasks.retain(|&task, _| task >= first);
            tasks.shrink_to_fit();
        }
    }

    /// Return the first task that is not forgotten.
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::Acquire)
    }

    /// Have these watermarks and no others.
    pub(crate) fn replace(&self, watermarks: impl IntoIterator<Item = (u64, Watermark)>) {
        *self.tasks.lock() = Self::new(watermarks).tasks.into_inner();
    }

    /// Let a lease of a task in, and count it if it is refused.
    pub(crate) fn fence(
        &self,
        watermark: &mut Watermark,
        task: u64,
        lease: u32,
    ) -> Result<(), StoreError> {
        watermark
            .fence(task, lease)
            .inspect_err(|_| self.tally.lock().stale_leases += 1)
    }

    /// Look where a minibatch stands in its task, and count it if it is not the next.
    pub(crate) fn judge(
        &self,
        watermark: &mut Watermark,
        task: u64,
        lease: u32,
        index: u32,
    ) -> Result<Verdict, StoreError> {
        self.judge_several(watermark, task, lease, (index, 1))
    }

    /// Say the same of several, `(the first's index, how many)`.
    pub(crate) fn judge_several(
        &self,
        watermark: &mut Watermark,
        task: u64,
        lease: u32,
        (index, num_minibatches): (u32, u32),
    ) -> Result<Verdict, StoreError> {
        self.fence(watermark, task, lease)?;
        let verdict = watermark.judge_several(task, index, num_minibatches);
        match verdict {
            Ok(Verdict::Next) => {}
            Ok(Verdict::Done) => self.tally.lock().duplicates += 1,
            Err(_) => self.tally.lock().gaps += 1,
        }
        verdict
    }

    /// Return what was counted.
    pub(crate) fn tally(&self) -> WatermarkTally {
        *self.tally.lock()
    }

    /// Return a task's watermark, at zero for a new task.
    ///
    /// The watermark of a forgotten task admits no lease.
    pub(crate) fn get(&self, task: u64) -> Arc<Mutex<Watermark>> {
        let mut tasks = self.tasks.lock();
        if task < self.first.load(Ordering::Acquire) {
            return Arc::new(Mutex::new(Watermark {
                lease: u32::MAX,
                ..Watermark::default()
            }));
        }
        tasks.entry(task).or_default().clone()
    }

    /// Return all watermarks by task number.
    pub(crate) fn all(&self) -> Watermarks {
        let tasks: Vec<_> = {
            let tasks = self.tasks.lock();
            tasks.iter().map(|(&id, w)| (id, w.clone())).collect()
        };
        let mut all: Vec<_> = tasks.into_iter().map(|(id, w)| (id, *w.lock())).collect();
        all.sort_unstable_by_key(|&(id, _)| id);
        all
    }
}
