//! Decides when an update may be made: at once, within a bound of staleness, or together with
//! others.
//!
//! [`staleness`] and [`rounds`] decide. This module has the locks, the waiting and the store around
//! them. `docs/designs/synchrony.md` has the protocol, and the reason why no client waits for ever.

use std::time::Duration;

use edl_store::{Applied, Push, Store};
use edl_wire::Client;
use edl_wire::op::model::Protocol;
use edl_wire::op::{Part, Round, Step};

use self::bounded::BoundedPulls;
use self::leader::Leader;
use self::staging::Staging;
use crate::error::PsError;

mod bounded;
mod gradient;
mod leader;
mod rounds;
mod staging;
mod staleness;

/// The rule by which the replicas of a job apply gradients; all of them have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchrony {
    /// Each as it comes.
    #[default]
    Asynchronous,
    /// Each as it comes; pulls wait, so that none comes too late.
    Bounded {
        /// Most updates of anybody between a pull and its push.
        max_staleness: u64,
    },
    /// Averaged over several clients.
    Synchronous {
        /// How many gradients make an update.
        grads_to_wait: u32,
        /// How many updates older the parameters of a gradient may be.
        version_tolerance: u64,
    },
}

impl Synchrony {
    /// Has a store refuse what it must not apply, whoever asks.
    pub(crate) fn bind(self, store: &Store) {
        if let Self::Bounded { max_staleness } = self {
            store.bound_staleness(max_staleness);
        }
    }

    /// Returns the part of the clients in this rule.
    pub(crate) fn protocol(self) -> Protocol {
        match self {
            Self::Asynchronous => Protocol::Direct,
            Self::Bounded { .. } => Protocol::Bounded,
            Self::Synchronous { .. } => Protocol::Rounds,
        }
    }
}

/// A connection, as those who wait on its behalf see it.
pub(crate) trait Peer {
    /// Tells connections apart.
    fn id(&self) -> u64;
    /// False once the other end has gone.
    fn is_there(&self) -> bool;
    /// Returns whether no thread waits for the client: it is told "not yet", and asks again. Its
    /// gradient stays meanwhile.
    fn waits_elsewhere(&self) -> bool {
        false
    }
}

impl Peer for Client<'_> {
    fn id(&self) -> u64 {
        Client::id(self)
    }

    fn is_there(&self) -> bool {
        Client::is_there(self)
    }
}

/// A request that cannot be granted for so long is answered "not yet", and asked again.
const PATIENCE: Duration = Duration::from_secs(2);
/// A waiting thread looks this often whether its peer is still there.
const LOOK: Duration = Duration::from_millis(20);

/// The answer of a replica to a push.
#[derive(Debug)]
pub(crate) enum Pushed {
    /// It is applied, or had been.
    Applied(Applied),
    /// It is kept until its round is committed, or had been applied.
    Staged,
    /// It was part of a round, with a staleness of its own.
    InRound(std::sync::Arc<Round>, u64),
    /// The round is not complete yet.
    NotYet,
}

/// The part of a replica in the synchrony of its job.
pub(crate) enum Coordinator {
    /// Nothing: it applies what comes.
    Free,
    /// Replica 0 of a job with bounded staleness.
    Bound(BoundedPulls),
    /// Replica 0 of a synchronous job.
    Lead(Leader),
    /// Another replica of a synchronous job.
    Follow(Staging),
}

impl Coordinator {
    pub(crate) fn new(synchrony: Synchrony, replica: u32) -> Self {
        match (synchrony, replica) {
            (Synchrony::Bounded { max_staleness }, 0) => {
                Self::Bound(BoundedPulls::new(max_staleness))
            }
            (
                Synchrony::Synchronous {
                    grads_to_wait,
                    version_tolerance,
                },
                0,
            ) => Self::Lead(Leader::new(grads_to_wait as usize, version_tolerance)),
            (Synchrony::Synchronous { .. }, _) => Self::Follow(Staging::default()),
            (Synchrony::Asynchronous | Synchrony::Bounded { .. }, _) => Self::Free,
        }
    }

    /// Waits until a training pull may begin; false if it may not yet.
    pub(crate) fn begin_pull(&self, store: &Store, step: Step, peer: &dyn Peer) -> bool {
        match self {
            Self::Bound(pulls) => pulls.begin(store, step, peer),
            Self::Free | Self::Lead(_) | Self::Follow(_) => true,
        }
    }

    pub(crate) fn push(
        &self,
        store: &Store,
        push: &Push<'_>,
        peer: &dyn Peer,
    ) -> Result<Pushed, PsError> {
        match self {
            Self::Free => Ok(Pushed::Applied(store.apply(push)?)),
            Self::Bound(pulls) => Ok(Pushed::Applied(pulls.push(store, push, peer)?)),
            Self::Lead(leader) => leader.push(store, push, peer),
            Self::Follow(staging) => {
                staging.stage(store, push)?;
                Ok(Pushed::Staged)
            }
        }
    }

    /// Applies several minibatches of a task as one update.
    pub(crate) fn push_several(
        &self,
        store: &Store,
        push: &Push<'_>,
        num_minibatches: u32,
    ) -> Result<Pushed, PsError> {
        match self {
            Self::Free => Ok(Pushed::Applied(store.apply_several(push, num_minibatches)?)),
            Self::Bound(_) | Self::Lead(_) | Self::Follow(_) => Err(PsError::Invalid(format!(
                "a push of {num_minibatches} minibatches at a replica that bounds staleness or \
                 makes rounds, expected one; do all processes have the same settings?"
            ))),
        }
    }

    /// Applies a round that replica 0 has applied, unless that was done before.
    pub(crate) fn commit(&self, store: &Store, round: &Round) -> Result<(), PsError> {
        match self {
            Self::Follow(staging) => staging.commit(store, round),
            Self::Free | Self::Bound(_) | Self::Lead(_) => Err(PsError::Invalid(
                "a round is committed at a replica that stages no gradients; do all ps replicas \
                 have the same settings?"
                    .to_owned(),
            )),
        }
    }

    /// A move holds the replica, or lets it go: nobody waits here meanwhile.
    pub(crate) fn hold(&self, is_held: bool) {
        match self {
            Self::Bound(pulls) => pulls.hold(is_held),
            Self::Lead(leader) => leader.hold(is_held),
            Self::Free | Self::Follow(_) => {}
        }
    }

    /// A lease has begun, and the store knows it.
    pub(crate) fn begun(&self, store: &Store, task: u64, lease: u32, peer: &dyn Peer) {
        match self {
            Self::Free => {}
            Self::Bound(pulls) => pulls.ended(task, lease.saturating_sub(1)),
            Self::Lead(leader) => leader.begun(store, task, lease, peer),
            Self::Follow(staging) => staging.ended(task, lease.saturating_sub(1)),
        }
    }

    /// A lease has ended: nothing under way of it will come.
    pub(crate) fn ended(&self, store: &Store, task: u64, lease: u32) {
        match self {
            Self::Free => {}
            Self::Bound(pulls) => pulls.ended(task, lease),
            Self::Lead(leader) => leader.ended(store, task, lease),
            Self::Follow(staging) => staging.ended(task, lease),
        }
    }

    /// A minibatch was left out for good.
    pub(crate) fn skipped(&self, step: Step) {
        match self {
            Self::Bound(pulls) => pulls.skipped(step),
            Self::Free | Self::Lead(_) | Self::Follow(_) => {}
        }
    }

    /// A connection is lost.
    pub(crate) fn lost(&self, store: &Store, connection: u64) {
        match self {
            Self::Bound(pulls) => pulls.lost(connection),
            Self::Lead(leader) => leader.lost(store, connection),
            Self::Free | Self::Follow(_) => {}
        }
    }
}

fn step_of(push: &Push<'_>) -> Step {
    Step {
        task: push.task,
        lease: push.lease,
        index: push.index,
    }
}
