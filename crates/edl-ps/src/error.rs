//! What can go wrong between a worker and a ps replica.

use std::io;
use std::time::Duration;

use edl_store::StoreError;
use thiserror::Error;

use crate::socket::timed_out;

/// An error of the server or the client.
#[derive(Debug, Error)]
pub enum PsError {
    /// The store in this process refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store of a replica refused.
    #[error("{message} (said ps replica {replica} at {address})")]
    Remote {
        /// Which refusal it is.
        kind: ErrorKind,
        /// The replica's number.
        replica: usize,
        /// Where it listens.
        address: String,
        /// The store's own words.
        message: String,
    },
    /// An argument that no replica needs to see to refuse it.
    #[error("{0}")]
    Invalid(String),
    /// A peer's bytes are not what the protocol says.
    #[error("{from}{message}", from = peer.as_deref().map(|p| format!("{p}: ")).unwrap_or_default())]
    Malformed {
        /// The peer, where it is known.
        peer: Option<String>,
        /// What was expected and found.
        message: String,
    },
    /// The other end does not know the job's token.
    #[error(
        "{address} refused this job's token, or does not know it itself; does the address belong \
         to this job?"
    )]
    Authentication {
        /// Where it listens.
        address: String,
    },
    /// A replica could not be reached in time.
    #[error(
        "ps replica {replica} at {address} could not be reached within {seconds:.1} s: {cause}; \
         is its process alive?"
    )]
    Unavailable {
        /// The replica's number.
        replica: usize,
        /// Where it was sought last.
        address: String,
        /// The deadline.
        seconds: f64,
        /// The last failure.
        cause: String,
    },
    /// The server cannot listen.
    #[error("cannot listen at {address}: {source}; choose a free port, or 0 for any")]
    Bind {
        /// Where it was to listen.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A gradient of parameters that are too old by now.
    #[error(
        "task {task}, minibatch {index}: its gradient is of version {pulled}, the model is at \
         {version}; at most {limit} updates may lie between: pull again and compute it anew"
    )]
    TooStale {
        /// The task.
        task: u64,
        /// Number of the minibatch.
        index: u32,
        /// The version that it was computed on.
        pulled: u64,
        /// The version now.
        version: u64,
        /// The most that they may differ.
        limit: u64,
    },
    /// The system gave no random numbers, threads or sockets.
    #[error("{0}")]
    System(String),
    /// A connection was lost.
    #[error("connection lost: {}", cause_of(.0))]
    Connection(#[from] io::Error),
}

impl PsError {
    pub(crate) fn malformed(message: String) -> Self {
        Self::Malformed {
            peer: None,
            message,
        }
    }

    /// Names the peer that sent something malformed.
    pub(crate) fn said_by(self, name: &str) -> Self {
        match self {
            Self::Malformed {
                peer: None,
                message,
            } => Self::Malformed {
                peer: Some(name.to_owned()),
                message,
            },
            other => other,
        }
    }

    /// Says after how long a replica was given up.
    pub(crate) fn after(mut self, waited: Duration) -> Self {
        if let Self::Unavailable { seconds, .. } = &mut self {
            *seconds = waited.as_secs_f64();
        }
        self
    }

    /// Which refusal this is, however it came.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => ErrorKind::of(error),
            Self::Remote { kind, .. } => *kind,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Malformed { .. } => ErrorKind::Malformed,
            Self::Authentication { .. } => ErrorKind::Authentication,
            Self::Unavailable { .. } | Self::Connection(_) => ErrorKind::Unavailable,
            Self::Bind { .. } => ErrorKind::Bind,
            Self::System(_) => ErrorKind::System,
            Self::TooStale { .. } => ErrorKind::TooStale,
        }
    }
}

/// The system's words, where they tell anything.
pub(crate) fn cause_of(error: &io::Error) -> String {
    if timed_out(error) {
        "no answer came in time".to_owned()
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        "it was closed at the other end".to_owned()
    } else {
        error.to_string()
    }
}

/// What a caller may want to tell apart; it travels in error frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum ErrorKind {
    /// The store refused, for any reason without a kind of its own.
    Store = 1,
    /// No such table.
    UnknownTable = 2,
    /// The model differs from the one declared.
    ModelMismatch = 3,
    /// The lease has been given to somebody else.
    StaleLease = 4,
    /// A checkpoint cannot be written or read.
    Checkpoint = 5,
    /// An argument of the wrong shape or range.
    Invalid = 6,
    /// Bytes that are not a frame.
    Malformed = 7,
    /// The token is wrong.
    Authentication = 8,
    /// A replica cannot be reached.
    Unavailable = 9,
    /// The operating system refused.
    System = 10,
    /// A server cannot listen.
    Bind = 11,
    /// A minibatch came before the one that precedes it: the replica has lost some.
    Gap = 12,
    /// The replica knows no model.
    NotDeclared = 13,
    /// The parameters of a gradient are too old.
    TooStale = 14,
    /// New rows would take more memory than a replica may.
    MemoryLimit = 15,
}

impl ErrorKind {
    fn of(error: &StoreError) -> Self {
        match error {
            StoreError::UnknownTable { .. } => Self::UnknownTable,
            StoreError::ModelMismatch(_) => Self::ModelMismatch,
            StoreError::StaleLease { .. } => Self::StaleLease,
            StoreError::Checkpoint { .. } => Self::Checkpoint,
            StoreError::MemoryLimit { .. } | StoreError::NamesMemoryLimit { .. } => {
                Self::MemoryLimit
            }
            StoreError::Gap { .. } => Self::Gap,
            StoreError::NotDeclared(_) => Self::NotDeclared,
            StoreError::BadModel(_)
            | StoreError::WrongLength { .. }
            | StoreError::BadNames { .. }
            | StoreError::WrongReplica { .. }
            | StoreError::Full(_)
            | StoreError::BadReplica { .. } => Self::Store,
        }
    }

    /// The kind in an error frame; one that is unknown here is some refusal of the store.
    pub(crate) fn from_code(code: u64) -> Self {
        match code {
            2 => Self::UnknownTable,
            3 => Self::ModelMismatch,
            4 => Self::StaleLease,
            5 => Self::Checkpoint,
            6 => Self::Invalid,
            7 => Self::Malformed,
            8 => Self::Authentication,
            9 => Self::Unavailable,
            10 => Self::System,
            11 => Self::Bind,
            12 => Self::Gap,
            13 => Self::NotDeclared,
            14 => Self::TooStale,
            15 => Self::MemoryLimit,
            _ => Self::Store,
        }
    }
}
