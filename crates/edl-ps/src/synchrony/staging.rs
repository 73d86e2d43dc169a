//! The other replicas of a synchronous job: they keep gradients until replica 0 has spoken.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use edl_store::{Push, RoundGradient, RoundMember, Store};

use super::gradient::{kept, merge};
use super::{Round, Step};
use crate::error::PsError;

/// The gradient of at most one minibatch of each task.
#[derive(Default)]
pub(crate) struct Staging {
    staged: Mutex<HashMap<u64, Staged>>,
}

struct Staged {
    lease: u32,
    index: u32,
    num_records: u32,
    pulled_version: u64,
    gradient: RoundGradient,
}

impl Staging {
    /// Nothing panics while it holds the lock half-way through a change.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Staged>> {
        self.staged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stage(&self, store: &Store, push: &Push<'_>) -> Result<(), PsError> {
        store.check_gradient(push)?;
        let mut staged = self.lock();
        if store.judge(push.task, push.lease, push.index)? {
            return Ok(());
        }
        let kept = Staged {
            lease: push.lease,
            index: push.index,
            num_records: push.num_records,
            pulled_version: push.pulled_version,
            gradient: kept(push),
        };
        staged.insert(push.task, kept);
        Ok(())
    }

    /// Every member of a round may ask for this; the first does it.
    ///
    /// A gradient that was computed again under a newer lease takes the place of the lost one.
    pub(super) fn commit(&self, store: &Store, round: &Round) -> Result<(), PsError> {
        let mut staged = self.lock();
        let mut parts: Vec<(RoundMember, &RoundGradient, f32)> = round
            .parts
            .iter()
            .filter_map(|part| {
                let Step { task, lease, index } = part.step();
                let kept = staged.get(&task)?;
                let is_it = kept.index == index && kept.lease >= lease;
                is_it.then(|| (kept.member(task), &kept.gradient, part.weight))
            })
            .collect();
        parts.sort_unstable_by_key(|(member, ..)| member.task);
        parts.dedup_by_key(|(member, ..)| member.task);
        let members: Vec<RoundMember> = parts.iter().map(|(member, ..)| *member).collect();
        store.apply_round(&members, round.learning_rate, |live| {
            let live = parts.iter().zip(live).filter(|(_, live)| **live);
            let live: Vec<_> = live.map(|((_, gradient, w), _)| (*gradient, *w)).collect();
            merge(store, &live)
        })?;
        for member in members {
            staged.remove(&member.task);
        }
        Ok(())
    }

    /// Leases up to this one of a task are over.
    pub(super) fn ended(&self, task: u64, lease: u32) {
        let mut staged = self.lock();
        if staged.get(&task).is_some_and(|kept| kept.lease <= lease) {
            staged.remove(&task);
        }
    }
}

impl Staged {
    fn member(&self, task: u64) -> RoundMember {
        RoundMember {
            num_minibatches: 1,
            task,
            lease: self.lease,
            index: self.index,
            num_records: self.num_records,
            pulled_version: self.pulled_version,
        }
    }
}
