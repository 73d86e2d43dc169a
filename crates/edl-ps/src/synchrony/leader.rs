//! Replica 0 of a synchronous job: it alone says which gradients make a round.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use edl_store::{Applied, Push, RoundGradient, RoundMember, Store, StoreError};
use edl_wire::give_way;

use super::gradient::{kept, merge};
use super::rounds::{Member, Rounds};
use super::{LOOK, PATIENCE, Part, Peer, Pushed, Round, Step, step_of};
use crate::error::PsError;

pub(crate) struct Leader {
    tolerance: u64,
    state: Mutex<State>,
    /// A round has ended, or somebody has left.
    changed: Condvar,
}

struct State {
    rounds: Rounds<Waiting>,
    /// The last round of each task, for answers that were lost and for minibatches that another
    /// replica still lacks; until the task's lease ends.
    last: HashMap<u64, Arc<Round>>,
    /// Why the round of a client could not be applied.
    failed: HashMap<u64, String>,
    /// A move holds the replica: nobody waits here, so that no round is made.
    is_held: bool,
}

/// A gradient in the open round.
#[derive(Debug)]
struct Waiting {
    gradient: RoundGradient,
    num_records: u32,
    learning_rate: f32,
    pulled_version: u64,
}

impl Leader {
    pub(super) fn new(grads_to_wait: usize, tolerance: u64) -> Self {
        Self {
            tolerance,
            state: Mutex::new(State {
                rounds: Rounds::new(grads_to_wait),
                last: HashMap::new(),
                failed: HashMap::new(),
                is_held: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Nothing panics while it holds the lock half-way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(
        &self,
        store: &Store,
        push: &Push<'_>,
        peer: &dyn Peer,
    ) -> Result<Pushed, PsError> {
        let step = step_of(push);
        store.check_gradient(push)?;
        let mut state = self.lock();
        if store.judge(push.task, push.lease, push.index)? {
            return Ok(state.done_before(store, push));
        }
        let version = store.version();
        if version.saturating_sub(push.pulled_version) > self.tolerance {
            let too_stale = StoreError::TooStale {
                task: push.task,
                index: push.index,
                pulled: push.pulled_version,
                version,
                limit: self.tolerance,
            };
            return Err(too_stale.into());
        }
        let waiting = Waiting {
            gradient: kept(push),
            num_records: push.num_records,
            learning_rate: push.learning_rate,
            pulled_version: push.pulled_version,
        };
        state.rounds.join(peer.id(), step, waiting);
        self.settle(&mut state, store);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(round) = state.last.get(&step.task).filter(|round| round.has(step)) {
                let late = (round.version - 1).saturating_sub(push.pulled_version);
                return Ok(Pushed::InRound(round.clone(), late));
            }
            if let Some(why) = state.failed.remove(&peer.id()) {
                return Err(PsError::Invalid(why));
            }
            if state.is_held {
                state.rounds.withdraw(peer.id());
                return Ok(Pushed::NotYet);
            }
            if !state.rounds.has(peer.id()) {
                store.judge(push.task, push.lease, push.index)?;
                return Err(StoreError::StaleLease {
                    task: push.task,
                    lease: push.lease,
                    current: push.lease,
                }
                .into());
            }
            if peer.waits_elsewhere() {
                return Ok(Pushed::NotYet);
            }
            if Instant::now() >= deadline || !peer.is_there() {
                state.rounds.withdraw(peer.id());
                return Ok(Pushed::NotYet);
            }
            give_way();
            let waited = self.changed.wait_timeout(state, LOOK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes in that a move holds the replica, or releases it. A waiting client is told "not yet",
    /// and asks again. Meanwhile the loss of a client must not complete a round.
    pub(super) fn hold(&self, is_held: bool) {
        let mut state = self.lock();
        if is_held && !state.is_held {
            state.rounds.withdraw_all();
        }
        state.is_held = is_held;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn begun(&self, store: &Store, task: u64, lease: u32, peer: &dyn Peer) {
        let mut state = self.lock();
        state.rounds.open(peer.id(), task, lease);
        self.settle(&mut state, store);
    }

    pub(super) fn ended(&self, store: &Store, task: u64, lease: u32) {
        let mut state = self.lock();
        state.rounds.close(task, lease);
        // The next lease of a task may still need what was a round of the one before: an end of an
        // old lease that comes late changes nothing.
        if store.lease_of(task) <= lease {
            state.last.remove(&task);
        }
        self.settle(&mut state, store);
    }

    pub(super) fn lost(&self, store: &Store, connection: u64) {
        let mut state = self.lock();
        state.rounds.lost(connection);
        state.failed.remove(&connection);
        self.settle(&mut state, store);
    }

    /// Applies the round if it is complete; wakes those who wait.
    fn settle(&self, state: &mut State, store: &Store) {
        while let Some(members) = state.rounds.take_complete() {
            match apply(store, &members) {
                Ok(round) => {
                    let round = Arc::new(round);
                    for part in &round.parts {
                        state.last.insert(part.step().task, round.clone());
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    let told = members.iter().map(|member| (member.client, why.clone()));
                    state.failed.extend(told);
                }
            }
        }
        self.changed.notify_all();
    }
}

impl State {
    /// Returns the answer to a client whose minibatch was applied before.
    fn done_before(&self, store: &Store, push: &Push<'_>) -> Pushed {
        let is_of = |part: &Part| part.step().task == push.task && part.step().index == push.index;
        match self.last.get(&push.task) {
            Some(round) if round.parts.iter().any(is_of) => Pushed::InRound(round.clone(), 0),
            // So long ago that its round is forgotten: whoever lacks it applies it alone.
            _ => Pushed::InRound(
                Arc::new(Round {
                    parts: vec![Part::new(step_of(push), push.num_records, 1.0)],
                    learning_rate: push.learning_rate,
                    version: store.version(),
                }),
                0,
            ),
        }
    }
}

/// Averages by records and applies; parts of leases that are over by now are not in the round.
fn apply(store: &Store, members: &[Member<Waiting>]) -> Result<Round, StoreError> {
    let version = store.version();
    let total: f64 = members
        .iter()
        .map(|member| f64::from(member.gradient.num_records))
        .sum();
    let weight = |waiting: &Waiting| {
        let late = version.saturating_sub(waiting.pulled_version);
        (f64::from(waiting.num_records) / total.max(1.0)) as f32 * store.modulation(late)
    };
    let newest = members.iter().max_by_key(|m| m.gradient.pulled_version);
    let learning_rate = newest.map_or(0.0, |member| member.gradient.learning_rate);
    let round: Vec<RoundMember> = members.iter().map(round_member).collect();
    let (live, Applied { version, .. }) = store.apply_round(&round, learning_rate, |live| {
        let live = members.iter().zip(live).filter(|(_, live)| **live);
        let parts: Vec<_> = live
            .map(|(member, _)| (&member.gradient.gradient, weight(&member.gradient)))
            .collect();
        merge(store, &parts)
    })?;
    let live = members.iter().zip(&live).filter(|(_, live)| **live);
    Ok(Round {
        parts: live
            .map(|(member, _)| {
                let gradient = &member.gradient;
                Part::new(member.step, gradient.num_records, weight(gradient))
            })
            .collect(),
        learning_rate,
        version,
    })
}

fn round_member(member: &Member<Waiting>) -> RoundMember {
    let Step { task, lease, index } = member.step;
    RoundMember {
        task,
        lease,
        index,
        num_minibatches: 1,
        num_records: member.gradient.num_records,
        pulled_version: member.gradient.pulled_version,
    }
}
