//! Notes the changes of this store for a successor, and repeats the changes of a predecessor.

use std::path::Path;
use std::sync::atomic::Ordering;

use super::{Model, Push, Store};
use crate::error::StoreError;
use crate::gradient::RoundMember;
use crate::progress::Progress;
use crate::redo::log::read_and_seal;
use crate::redo::record::decode;
use crate::redo::{Change, Log, RedoLogState};
use crate::spec::ModelSpec;
use crate::tasks::Verdict;

/// The result of a predecessor's redo log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redone {
    /// Updates that were made again.
    pub num_updates: u64,
    /// Minibatches in them.
    pub num_minibatches: u64,
}

impl Store {
    /// Make the changes that a predecessor has noted in `folder` and that this store lacks; from
    /// now on, note there what changes it, in files of `limit` bytes in all.
    ///
    /// A change counts if it is the next of its task, as it did the first time. Whatever is missing
    /// in the log is missing in the watermarks as well. A log that has reached its limit, or that a
    /// disk does not take, goes on with the next checkpoint; updates do not wait for it. Without
    /// that checkpoint, updates are missing before those of the next segment. Then nothing of this
    /// segment counts, also for later processes: an update of a partition that keeps its order may
    /// come after a missing one.
    ///
    /// # Errors
    /// Files that cannot be read or made; the store is that of some part of the log then.
    pub fn redo(
        &self,
        folder: &Path,
        limit: u64,
        progress: Progress<'_>,
    ) -> Result<Redone, StoreError> {
        let failed = |error: std::io::Error| StoreError::Checkpoint {
            path: folder.to_owned(),
            problem: format!("a redo log cannot be kept in it: {error}"),
        };
        let mut redone = Redone::default();
        read_and_seal(folder, |record| {
            let mut counts = true;
            // A change that does not fit is left out here, and is not in the watermarks.
            let made = decode(record).and_then(|change| match change {
                Change::Segment { version } => {
                    counts = version <= self.version();
                    Ok(0)
                }
                change => self.make_again(&change),
            });
            if let Ok(num_minibatches) = made {
                redone.num_minibatches += num_minibatches;
                redone.num_updates += u64::from(num_minibatches > 0);
            }
            progress();
            counts
        })
        .map_err(failed)?;
        let log = Log::open(folder, limit, self.version()).map_err(failed)?;
        // No other thread has the store yet; a second call changes nothing.
        let _ = self.redo_log.set(log);
        Ok(redone)
    }

    /// Remove what lies before a checkpoint that is whole from the redo log, and return what it
    /// takes; `None` if there is none.
    pub fn trim_redo_log(&self) -> Option<RedoLogState> {
        let log = self.redo_log.get()?;
        log.trim();
        Some(log.state())
    }

    pub(super) fn note(&self, change: &Change<'_>) {
        if let Some(log) = self.redo_log.get() {
            log.append(change);
        }
    }

    pub(super) fn note_declared(&self, spec: &ModelSpec, dense: &[f32], state: &[f32]) {
        if let Some(log) = self.redo_log.get() {
            // A model that was read from JSON can be written as such.
            if let Ok(model) = serde_json::to_string(spec) {
                log.append(&Change::Declare {
                    model: &model,
                    dense,
                    state,
                });
            }
        }
    }

    /// Note an update of minibatches that are the next of their tasks. Their watermarks are held, so
    /// the changes of a task are noted in their order.
    pub(super) fn note_update(
        &self,
        members: impl Iterator<Item = RoundMember>,
        push: &Push<'_>,
        weight: f32,
        learning_rate: f32,
    ) {
        if let Some(log) = self.redo_log.get() {
            log.append(&Change::Update {
                members: members.collect(),
                tables: push.tables.into(),
                dense: push.dense,
                state: push.state,
                weight,
                learning_rate,
            });
        }
    }

    /// Make a change again if it is the next; return how many minibatches were applied.
    fn make_again(&self, change: &Change<'_>) -> Result<u64, StoreError> {
        match change {
            Change::Segment { .. } => {}
            Change::Declare {
                model,
                dense,
                state,
            } => self.declare(ModelSpec::from_json(model)?, dense, state)?,
            Change::Give {
                table,
                dim,
                keys,
                rows,
            } => self.give(table, *dim, keys, rows)?,
            Change::Name { table, keys, names } => {
                self.name_keys(*table, keys, names)?;
            }
            &Change::Begin { task, lease } => {
                self.begin_task(task, lease)?;
            }
            &Change::Skip { task, lease, index } => self.skip(task, lease, index)?,
            Change::Update {
                members,
                tables,
                dense,
                state,
                weight,
                learning_rate,
            } => {
                let push = Push::of_round(members.first(), *learning_rate, tables, dense, state);
                return self.update_again(members, &push, *weight);
            }
        }
        Ok(0)
    }

    /// Apply an update if each of its minibatches is the next of its task.
    fn update_again(
        &self,
        members: &[RoundMember],
        push: &Push<'_>,
        weight: f32,
    ) -> Result<u64, StoreError> {
        let model = self.declared("updates are made again")?;
        let _updates = self.updates.read();
        for member in members {
            if judge(model, member)? == Verdict::Done {
                return Ok(0);
            }
        }
        model.check(push)?;
        let _change = self.change();
        let before = model.begun.fetch_add(1, Ordering::AcqRel);
        model.change(push, before, weight, push.learning_rate)?;
        for member in members {
            let mark = model.tasks.get(member.task);
            let mut mark = mark.lock();
            mark.advance_by(member.num_minibatches, member.num_records);
        }
        Ok(members.iter().map(|m| u64::from(m.num_minibatches)).sum())
    }
}

fn judge(model: &Model, member: &RoundMember) -> Result<Verdict, StoreError> {
    let mark = model.tasks.get(member.task);
    let mut mark = mark.lock();
    mark.fence(member.task, member.lease)?;
    mark.judge(member.task, member.index)
}
