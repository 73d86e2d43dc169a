//! Several minibatches as one update: what synchronous training applies.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::{Applied, Push, Store};
use crate::error::StoreError;
use crate::gradient::{RoundMember, TableGrads};
use crate::tasks::{Verdict, Watermark};

/// The gradient of a round, merged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundGradient {
    /// For each table: its number, its keys (each once), and their gradients.
    pub tables: Vec<(u32, Vec<u64>, Vec<f32>)>,
    /// This replica's range of the dense gradient.
    pub dense: Vec<f32>,
    /// This replica's range of the state's change.
    pub state: Vec<f32>,
    /// Sum of the weights of the gradients that it is merged from.
    pub weight: f32,
}

impl Store {
    /// Refuse an old lease or a gap; return true if the minibatch has been dealt with before.
    ///
    /// # Errors
    /// As those of [`Store::apply`] that do not look at gradients.
    pub fn judge(&self, task: u64, lease: u32, index: u32) -> Result<bool, StoreError> {
        let tasks = &self.declared("gradients are pushed")?.tasks;
        self.let_in(task, lease)?;
        let watermark = tasks.get(task);
        let mut watermark = watermark.lock();
        Ok(tasks.judge(&mut watermark, task, lease, index)? == Verdict::Done)
    }

    /// Return the newest lease of a task; 0 if none has begun.
    pub fn lease_of(&self, task: u64) -> u32 {
        let model = self.model.get();
        model.map_or(0, |model| model.tasks.get(task).lock().lease)
    }

    /// Check that a gradient fits the model, so that it can be merged with others.
    ///
    /// # Errors
    /// Arrays of other lengths, keys of another replica, a full table.
    pub fn check_gradient(&self, push: &Push<'_>) -> Result<(), StoreError> {
        self.declared("gradients are pushed")?.check(push)
    }

    /// Make one change of the state of those of several minibatches that fit the model, each with
    /// its weight: every variable by its own rule.
    pub fn merge_state(&self, parts: &[(&[f32], f32)]) -> Vec<f32> {
        let model = self.model.get();
        model.map_or_else(Vec::new, |model| model.vectors.read().merge_state(parts))
    }

    /// Apply several minibatches, each from another task, as one update.
    ///
    /// `members` are in the order of their tasks. `merge` is told which of them are next in their
    /// task under a valid lease, and returns their gradient. Those members are counted as applied,
    /// and the same flags are returned. If there are none, nothing happens.
    ///
    /// # Errors
    /// A gradient that does not fit the model; nothing has changed then.
    pub fn apply_round(
        &self,
        members: &[RoundMember],
        learning_rate: f32,
        merge: impl FnOnce(&[bool]) -> RoundGradient,
    ) -> Result<(Vec<bool>, Applied), StoreError> {
        let model = self.declared("gradients are pushed")?;
        self.wait_for_checkpoint(model);
        let _updates = self.updates.read();
        let tasks: Vec<_> = members.iter().map(|m| model.tasks.get(m.task)).collect();
        // In the order of tasks, so that two rounds never wait for each other.
        let mut marks: Vec<MutexGuard<'_, Watermark>> = tasks.iter().map(|t| t.lock()).collect();
        let is_next = |(member, mark): (&RoundMember, &mut MutexGuard<'_, Watermark>)| {
            mark.fence(member.task, member.lease).is_ok() && mark.next_index == member.index
        };
        let live: Vec<bool> = members.iter().zip(&mut marks).map(is_next).collect();
        let mut applied = Applied {
            applied: false,
            version: model.version(),
            staleness: 0,
        };
        if !live.contains(&true) {
            return Ok((live, applied));
        }
        let gradient = merge(&live);
        let tables: Vec<_> = gradient.tables.iter().map(table_grads).collect();
        let counted = members.iter().zip(&live).filter(|(_, live)| **live);
        let counted = counted.map(|(member, _)| member);
        let first = counted.clone().next();
        let (dense, state) = (&gradient.dense, &gradient.state);
        let push = Push::of_round(first, learning_rate, &tables, dense, state);
        model.check(&push)?;
        self.note_update(counted.copied(), &push, gradient.weight, learning_rate);
        let _change = self.change();
        let before = model.begun.fetch_add(1, Ordering::AcqRel);
        model.change(&push, before, gradient.weight, learning_rate)?;
        (applied.applied, applied.version) = (true, before + 1);
        let mut staleness = model.staleness.lock();
        for ((member, mark), _) in members.iter().zip(&mut marks).zip(&live).filter(|x| *x.1) {
            mark.advance_by(member.num_minibatches, member.num_records);
            let late = before.saturating_sub(member.pulled_version);
            staleness.add(late);
            applied.staleness = applied.staleness.max(late);
        }
        Ok((live, applied))
    }
}

fn table_grads((table, keys, grads): &(u32, Vec<u64>, Vec<f32>)) -> TableGrads<'_> {
    TableGrads {
        table: *table,
        keys,
        grads,
    }
}
