//! Bounded staleness at replica 0: pulls begin in the order in which they asked.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use edl_store::{Applied, Push, Store, StoreError};

use super::staleness::PullsUnderWay;
use super::{LOOK, PATIENCE, Peer, Step, step_of};
use crate::error::PsError;

pub(crate) struct BoundedPulls {
    bound: u64,
    state: Mutex<State>,
    /// A pull was let go, or the queue has moved.
    changed: Condvar,
}

struct State {
    under_way: PullsUnderWay,
    queue: VecDeque<u64>,
    next_ticket: u64,
}

impl BoundedPulls {
    pub(super) fn new(bound: u64) -> Self {
        Self {
            bound,
            state: Mutex::new(State {
                under_way: PullsUnderWay::new(bound),
                queue: VecDeque::new(),
                next_ticket: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// Nothing panics while it holds the lock half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, store: &Store, step: Step, peer: &dyn Peer) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.lock();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(ticket);
        loop {
            // The version is read under the lock, and pushes let go of their pull after they are
            // applied: what is counted is never less than what is so.
            let began = state.queue.front() == Some(&ticket)
                && state.under_way.begin(step, peer.id(), store.version());
            let is_told = began || peer.waits_elsewhere();
            if is_told || Instant::now() >= deadline || !peer.is_there() {
                state.queue.retain(|&other| other != ticket);
                self.changed.notify_all();
                return began;
            }
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    pub(super) fn push(
        &self,
        store: &Store,
        push: &Push<'_>,
        peer: &dyn Peer,
    ) -> Result<Applied, PsError> {
        let step = step_of(push);
        let applied = match store.judge(push.task, push.lease, push.index) {
            Ok(false) => self
                .confirm(store, push, peer)
                .and_then(|()| Ok(store.apply(push)?)),
            // The store says again what it is, or acknowledges what it has done.
            Ok(true) | Err(_) => store.apply(push).map_err(PsError::from),
        };
        let is_applied = matches!(&applied, Ok(applied) if applied.applied);
        self.lock().under_way.pushed(step, is_applied);
        self.changed.notify_all();
        applied
    }

    fn confirm(&self, store: &Store, push: &Push<'_>, peer: &dyn Peer) -> Result<(), PsError> {
        let version = store.version();
        let pulled = push.pulled_version;
        let held = self
            .lock()
            .under_way
            .confirm(step_of(push), peer.id(), version, pulled);
        if held {
            return Ok(());
        }
        let too_stale = StoreError::TooStale {
            task: push.task,
            index: push.index,
            pulled,
            version,
            limit: self.bound,
        };
        Err(too_stale.into())
    }

    pub(super) fn skipped(&self, step: Step) {
        self.lock().under_way.skipped(step);
        self.changed.notify_all();
    }

    pub(super) fn ended(&self, task: u64, lease: u32) {
        self.lock().under_way.release_lease(task, lease);
        self.changed.notify_all();
    }

    pub(super) fn lost(&self, connection: u64) {
        self.lock().under_way.release_holder(connection);
        self.changed.notify_all();
    }
}
