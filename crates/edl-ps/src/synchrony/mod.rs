//! When an update may be made: at once, within a bound of staleness, or together with others.
//!
//! [`gate`] and [`rounds`] decide; here are the locks, the waiting and the store around them.
//! `docs/designs/synchrony.md` has the protocol and why nobody waits for ever.

use std::time::Duration;

use edl_store::{Applied, Push, Store};

use self::admission::Admission;
use self::leader::Leader;
use self::staging::Staging;
use crate::error::PsError;
use crate::frame::{halves, joined};

mod admission;
mod gate;
mod gradient;
mod leader;
mod rounds;
mod staging;

/// One minibatch of one lease: what a pull and a push are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// The task that it is of.
    pub task: u64,
    /// The lease under which it is computed.
    pub lease: u32,
    /// Its number in the task, from 0.
    pub index: u32,
}

/// When the replicas of a job apply gradients; the same for all of them.
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
    /// As clients are told.
    pub(crate) fn code(self) -> u64 {
        match self {
            Self::Asynchronous => Protocol::Direct as u64,
            Self::Bounded { .. } => Protocol::Gated as u64,
            Self::Synchronous { .. } => Protocol::Rounds as u64,
        }
    }
}

/// What a client has to do for the synchrony of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Protocol {
    /// Ask all replicas at once.
    Direct = 0,
    /// Pull from replica 0 first, push to it last.
    Gated = 1,
    /// Stage, join a round at replica 0, commit.
    Rounds = 2,
}

impl Protocol {
    pub(crate) fn from_code(code: u64) -> Result<Self, PsError> {
        Ok(match code {
            0 => Self::Direct,
            1 => Self::Gated,
            2 => Self::Rounds,
            _ => return Err(PsError::malformed(format!("unknown synchrony {code}"))),
        })
    }
}

/// A connection, as those who wait on its behalf see it.
pub(crate) trait Peer {
    /// Tells connections apart.
    fn id(&self) -> u64;
    /// False once the other end has gone.
    fn is_there(&self) -> bool;
}

/// A request that cannot be granted for so long is answered "not yet", and asked again.
const PATIENCE: Duration = Duration::from_secs(2);
/// Whoever waits looks this often whether its peer is still there.
const LOOK: Duration = Duration::from_millis(20);

/// A minibatch's part in a round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) step: Step,
    pub(crate) num_records: u32,
    /// What its gradient is multiplied by.
    pub(crate) weight: f32,
}

impl Part {
    /// As it travels.
    pub(crate) fn encode(&self) -> [u64; 4] {
        let Step { task, lease, index } = self.step;
        let (records, weight) = (self.num_records, self.weight.to_bits());
        [task, joined(lease, index), joined(records, weight), 0]
    }

    pub(crate) fn decode(parts: &[u64; 4]) -> Self {
        let (lease, index) = halves(parts[1]);
        let (num_records, weight) = halves(parts[2]);
        Self {
            step: Step {
                task: parts[0],
                lease,
                index,
            },
            num_records,
            weight: f32::from_bits(weight),
        }
    }
}

/// What became of a round at replica 0; the others do the same.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) parts: Vec<Part>,
    pub(crate) learning_rate: f32,
    pub(crate) version: u64,
}

impl Round {
    fn has(&self, step: Step) -> bool {
        self.parts.iter().any(|part| part.step == step)
    }
}

/// What a replica says to a push.
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

/// What a replica does for the synchrony of its job.
pub(crate) enum Coordinator {
    /// Nothing: it applies what comes.
    Free,
    /// Replica 0 of a job with bounded staleness.
    Gate(Admission),
    /// Replica 0 of a synchronous job.
    Lead(Leader),
    /// Another replica of a synchronous job.
    Follow(Staging),
}

impl Coordinator {
    pub(crate) fn new(synchrony: Synchrony, replica: u32) -> Self {
        match (synchrony, replica) {
            (Synchrony::Bounded { max_staleness }, 0) => Self::Gate(Admission::new(max_staleness)),
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
    pub(crate) fn admit(&self, store: &Store, step: Step, peer: &dyn Peer) -> bool {
        match self {
            Self::Gate(admission) => admission.admit(store, step, peer),
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
            Self::Gate(admission) => Ok(Pushed::Applied(admission.push(store, push, peer)?)),
            Self::Lead(leader) => leader.push(store, push, peer),
            Self::Follow(staging) => {
                staging.stage(store, push)?;
                Ok(Pushed::Staged)
            }
        }
    }

    /// Applies a round that replica 0 has applied, unless that was done before.
    pub(crate) fn commit(&self, store: &Store, round: &Round) -> Result<(), PsError> {
        match self {
            Self::Follow(staging) => staging.commit(store, round),
            Self::Free | Self::Gate(_) | Self::Lead(_) => Err(PsError::Invalid(
                "a round is committed at a replica that stages no gradients; do all ps replicas \
                 have the same settings?"
                    .to_owned(),
            )),
        }
    }

    /// A lease has begun, and the store knows it.
    pub(crate) fn begun(&self, store: &Store, task: u64, lease: u32, peer: &dyn Peer) {
        match self {
            Self::Free => {}
            Self::Gate(admission) => admission.ended(task, lease.saturating_sub(1)),
            Self::Lead(leader) => leader.begun(store, task, lease, peer),
            Self::Follow(staging) => staging.ended(task, lease.saturating_sub(1)),
        }
    }

    /// A lease has ended: nothing under way of it will come.
    pub(crate) fn ended(&self, store: &Store, task: u64, lease: u32) {
        match self {
            Self::Free => {}
            Self::Gate(admission) => admission.ended(task, lease),
            Self::Lead(leader) => leader.ended(store, task, lease),
            Self::Follow(staging) => staging.ended(task, lease),
        }
    }

    /// A minibatch was left out for good.
    pub(crate) fn skipped(&self, step: Step) {
        match self {
            Self::Gate(admission) => admission.skipped(step),
            Self::Free | Self::Lead(_) | Self::Follow(_) => {}
        }
    }

    /// A connection is lost.
    pub(crate) fn lost(&self, store: &Store, connection: u64) {
        match self {
            Self::Gate(admission) => admission.lost(connection),
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
