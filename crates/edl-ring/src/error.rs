//! The errors of a ring.

use edl_wire::WireError;
use thiserror::Error;

use crate::verdict::Verdict;

/// An error of a ring. After any but [`RingError::Invalid`] the ring is of no more use.
#[derive(Debug, Error)]
pub enum RingError {
    /// The ring of a world has come to its end; the gradients of the caller are as they were.
    #[error("ring {world}: {verdict}")]
    Ended {
        /// The world of the ring.
        world: u64,
        /// Why, and by whose doing.
        verdict: Verdict,
    },
    /// A rank did not join.
    #[error("ring {world}: rank {rank} at {address} {why}")]
    NotFormed {
        /// The world of the ring that was to be formed.
        world: u64,
        /// Who is missing.
        rank: u32,
        /// The address of the rank.
        address: String,
        /// The expected and the found value.
        why: String,
    },
    /// An argument of the wrong shape or range.
    #[error("{0}")]
    Invalid(String),
    /// The system gave no socket, thread or memory.
    #[error("{0}")]
    System(String),
    /// The listener, or the certificates.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl RingError {
    /// The rank without which to go on, if one is named.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Self::Ended { verdict, .. } => verdict.culprit,
            Self::NotFormed { rank, .. } => Some(*rank),
            Self::Invalid(_) | Self::System(_) | Self::Wire(_) => None,
        }
    }
}
