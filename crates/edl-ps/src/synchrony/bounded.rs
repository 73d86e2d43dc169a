//! Bounded staleness at replica 0: pulls begin in the order in which they asked.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use edl_store::{Applied, Push, Store, StoreError};
use edl_wire::give_way;

use super::staleness::PullsUnderWay;
use super::{LOOK, PATIENCE, Peer, Step, step_of};
use crate::error::PsError;

pub(crate) struct BoundedPulls {
    bound: u64,
    state: Mutex<State>,
}

struct State {
    under_way: PullsUnderWay,
    queue: VecDeque<Waiter>,
    next_ticket: u64,
    /// A move holds the replica: nobody waits here.
    is_held: bool,
}

/// A pull that has not begun.
struct Waiter {
    ticket: u64,
    /// It is at the head of the queue, or at its head and a pull was let go.
    turn: Arc<Condvar>,
}

impl State {
    /// Wakes the head of the queue, since only the head can go on. To wake all would cost one
    /// wake-up a worker for each push.
    fn wake_head(&self) {
        if let Some(head) = self.queue.front() {
            head.turn.notify_one();
        }
    }

    fn is_head(&self, ticket: u64) -> bool {
        self.queue.front().is_some_and(|head| head.ticket == ticket)
    }
}

impl BoundedPulls {
    pub(super) fn new(bound: u64) -> Self {
        Self {
            bound,
            state: Mutex::new(State {
                under_way: PullsUnderWay::new(bound),
                queue: VecDeque::new(),
                next_ticket: 0,
                is_held: false,
            }),
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
        let turn = Arc::new(Condvar::new());
        state.queue.push_back(Waiter {
            ticket,
            turn: turn.clone(),
        });
        loop {
            // The version is read under the lock, and a push releases its pull after it is applied.
            // So the count is never too small.
            let is_head = state.is_head(ticket);
            let began = is_head && state.under_way.begin(step, peer.id(), store.version());
            let is_told = began || state.is_held || peer.waits_elsewhere();
            if is_told || Instant::now() >= deadline || !peer.is_there() {
                state.queue.retain(|other| other.ticket != ticket);
                state.wake_head();
                return began;
            }
            // A peer that is gone holds up the others only at the head.
            let longest = if is_head { LOOK } else { PATIENCE };
            give_way();
            let waited = turn.wait_timeout(state, longest);
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
            // The store repeats its error, or acknowledges what it has done.
            Ok(true) | Err(_) => store.apply(push).map_err(PsError::from),
        };
        let is_applied = matches!(&applied, Ok(applied) if applied.applied);
        self.let_go(|pulls| pulls.pushed(step, is_applied));
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

    fn let_go(&self, change: impl FnOnce(&mut PullsUnderWay)) {
        let mut state = self.lock();
        change(&mut state.under_way);
        state.wake_head();
    }

    /// A move holds the replica, or lets it go: who waits is told "not yet", and asks again.
    pub(super) fn hold(&self, is_held: bool) {
        let mut state = self.lock();
        state.is_held = is_held;
        for waiter in &state.queue {
            waiter.turn.notify_one();
        }
    }

    pub(super) fn skipped(&self, step: Step) {
        self.let_go(|pulls| pulls.skipped(step));
    }

    pub(super) fn ended(&self, task: u64, lease: u32) {
        self.let_go(|pulls| pulls.release_lease(task, lease));
    }

    pub(super) fn lost(&self, connection: u64) {
        self.let_go(|pulls| pulls.release_holder(connection));
    }
}
