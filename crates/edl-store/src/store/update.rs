//! Updates: the gradients of minibatches, each applied once.

use std::iter;
use std::sync::atomic::Ordering;

use super::{Model, Store};
use crate::error::StoreError;
use crate::features::life::Occurrence;
use crate::gradient::{RoundMember, TableGrads};
use crate::index::MAX_VERSION;
use crate::redo::Change as Noting;
use crate::table::make_room;
use crate::tasks::Verdict;

/// One minibatch's gradients.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    /// The task that the minibatch is of.
    pub task: u64,
    /// The lease under which it was computed.
    pub lease: u32,
    /// The minibatch's number in the task.
    pub index: u32,
    /// Records in the minibatch.
    pub num_records: u32,
    /// The learning rate of this update.
    pub learning_rate: f32,
    /// This replica's version when its parameters were pulled.
    pub pulled_version: u64,
    /// Gradients by table.
    pub tables: &'a [TableGrads<'a>],
    /// This replica's range of the dense gradient.
    pub dense: &'a [f32],
    /// This replica's range of the state's change.
    pub state: &'a [f32],
}

impl<'a> Push<'a> {
    /// Return an update of several minibatches, of which one stands for all where the update is to
    /// have a name.
    pub(super) fn of_round(
        first: Option<&RoundMember>,
        learning_rate: f32,
        tables: &'a [TableGrads<'a>],
        dense: &'a [f32],
        state: &'a [f32],
    ) -> Self {
        Self {
            task: first.map_or(0, |member| member.task),
            lease: 0,
            index: first.map_or(0, |member| member.index),
            num_records: 0,
            learning_rate,
            pulled_version: 0,
            tables,
            dense,
            state,
        }
    }

    /// Return what it says of its minibatches.
    pub(super) fn member(&self, num_minibatches: u32) -> RoundMember {
        RoundMember {
            task: self.task,
            lease: self.lease,
            index: self.index,
            num_minibatches,
            num_records: self.num_records,
            pulled_version: self.pulled_version,
        }
    }
}

/// The outcome of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// False if the minibatch had been dealt with before.
    pub applied: bool,
    /// The replica's version after it.
    pub version: u64,
    /// Updates that came between the pull and this one.
    pub staleness: u64,
}

impl Store {
    /// Apply one minibatch's gradients, unless they have been applied before.
    ///
    /// # Errors
    /// An old lease, a gap in the minibatches, a gradient that is too late, or arrays that do not
    /// fit the model; nothing has changed then.
    pub fn apply(&self, push: &Push<'_>) -> Result<Applied, StoreError> {
        self.apply_several(push, 1)
    }

    /// Apply the gradients of several minibatches of one task that follow each other, as one
    /// update; `push.index` is the first's, and `push.num_records` counts those of all.
    ///
    /// # Errors
    /// The same. A part of them that has been applied before is as a gap.
    pub fn apply_several(
        &self,
        push: &Push<'_>,
        num_minibatches: u32,
    ) -> Result<Applied, StoreError> {
        let model = self.declared("gradients are pushed")?;
        self.let_in(push.task, push.lease)?;
        self.wait_for_checkpoint(model);
        let _updates = self.updates.read();
        model.check(push)?;
        let watermark = model.tasks.get(push.task);
        let mut watermark = watermark.lock();
        let minibatches = (push.index, num_minibatches);
        let verdict =
            (model.tasks).judge_several(&mut watermark, push.task, push.lease, minibatches)?;
        if verdict == Verdict::Done {
            return Ok(Applied {
                applied: false,
                version: model.version(),
                staleness: 0,
            });
        }
        let before = self.begin_update(model, push)?;
        let staleness = before.saturating_sub(push.pulled_version);
        let learning_rate = push.learning_rate * self.modulation(staleness);
        let member = push.member(num_minibatches);
        self.note_update(iter::once(member), push, 1.0, learning_rate);
        let _change = self.change();
        model.change(push, before, 1.0, learning_rate)?;
        model.staleness.lock().add(staleness);
        watermark.advance_by(num_minibatches, push.num_records);
        Ok(Applied {
            applied: true,
            version: before + 1,
            staleness,
        })
    }

    /// Take the next number for an update, unless its gradient is too late for it; return the
    /// number of those before.
    pub(super) fn begin_update(&self, model: &Model, push: &Push<'_>) -> Result<u64, StoreError> {
        let limit = self.max_staleness.load(Ordering::Relaxed);
        let next = |before: u64| {
            let is_late = before.saturating_sub(push.pulled_version) > limit;
            (!is_late).then_some(before + 1)
        };
        let begun = &model.begun;
        let begun = begun.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        begun.map_err(|version| StoreError::TooStale {
            task: push.task,
            index: push.index,
            pulled: push.pulled_version,
            version,
            limit,
        })
    }

    /// Count a minibatch as dealt with, without an update.
    ///
    /// # Errors
    /// An old lease, or a gap in the minibatches.
    pub fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), StoreError> {
        let model = self.declared("minibatches are skipped")?;
        self.let_in(task, lease)?;
        let _updates = self.updates.read();
        let watermark = model.tasks.get(task);
        let mut watermark = watermark.lock();
        if model.tasks.judge(&mut watermark, task, lease, index)? == Verdict::Next {
            self.note(&Noting::Skip { task, lease, index });
            watermark.advance(0);
        }
        Ok(())
    }
}

impl Model {
    /// Check all of a push, so that nothing can fail once the first row has changed.
    pub(super) fn check(&self, push: &Push<'_>) -> Result<(), StoreError> {
        for grads in push.tables {
            let table = self.table(grads.table)?;
            table.check("the gradient", grads.keys, grads.grads.len())?;
            table.check_room(grads.keys)?;
        }
        let vectors = self.vectors.read();
        vectors.check(push.dense.len(), push.state.len())?;
        if self.version() >= MAX_VERSION - u64::from(u16::MAX) {
            return Err(StoreError::Full(format!(
                "this replica has applied {} updates, the most that it can count; nothing was \
                 changed. Start a new job from the last checkpoint (--checkpoint_dir_for_init), \
                 which begins to count anew",
                self.version()
            )));
        }
        Ok(())
    }

    /// Change rows and vectors, after `before` updates that have begun.
    ///
    /// The version grows when the values have changed: a pull that comes between must not count as
    /// newer than what it reads.
    ///
    /// Args: `weight` is the sum of the weights of the minibatches that the push is made of.
    ///
    /// # Errors
    /// Rows on disk cannot be read: the store is half changed, and knows.
    pub(super) fn change(
        &self,
        push: &Push<'_>,
        before: u64,
        weight: f32,
        learning_rate: f32,
    ) -> Result<(), StoreError> {
        let version = before + 1;
        let occurrence = Occurrence::new(push.task, push.index);
        // Statistics first: keys are admitted by what is known with this update.
        let of = |grads: &TableGrads<'_>| &self.tables[grads.table as usize];
        let (statistics, others): (Vec<_>, Vec<_>) =
            (push.tables.iter()).partition(|grads| of(grads).has_statistics());
        for grads in statistics.into_iter().chain(others) {
            of(grads).push(&self.tables, grads, learning_rate, version, occurrence)?;
            make_room(&self.tables);
            #[cfg(test)]
            super::tests::maybe_panic();
        }
        if !(push.dense.is_empty() && push.state.is_empty()) {
            let mut vectors = self.vectors.write();
            vectors.apply(push.dense, push.state, weight, learning_rate, version);
        }
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
