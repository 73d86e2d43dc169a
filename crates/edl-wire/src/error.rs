//! The errors of a connection, and the refusals of a server.

use std::io;

use thiserror::Error;

use crate::deadline::timed_out;

/// An error of a connection.
#[derive(Debug, Error)]
pub enum WireError {
    /// A peer's bytes are not what the protocol says.
    #[error("{from}{message}", from = peer.as_deref().map(|p| format!("{p}: ")).unwrap_or_default())]
    Malformed {
        /// The peer, where it is known.
        peer: Option<String>,
        /// The expected and the found value.
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
    /// The ends of a TLS session do not accept each other.
    #[error("{from}{message}", from = peer.as_deref().map(|p| format!("{p}: ")).unwrap_or_default())]
    Tls {
        /// The peer, where it is known.
        peer: Option<String>,
        /// The certificate, and its problem.
        message: String,
    },
    /// The server refused a request.
    #[error("{message}")]
    Refused {
        /// The kind of the refusal.
        kind: ErrorKind,
        /// The server's words.
        message: String,
    },
    /// A frame that its receiver would refuse, or an address that is none.
    #[error("{0}")]
    Invalid(String),
    /// A server cannot listen.
    #[error("cannot listen at {address}: {source}; choose a free port, or 0 for any")]
    Bind {
        /// The address at which the server should listen.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The system gave no random numbers, threads or sockets.
    #[error("{0}")]
    System(String),
    /// A connection was lost.
    #[error("connection lost: {}", cause_of(.0))]
    Connection(#[from] io::Error),
}

impl WireError {
    /// Bytes that are not what the protocol says, of a peer that is not known here.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed {
            peer: None,
            message: message.into(),
        }
    }

    /// A TLS session that cannot be, with a peer that is not known here.
    pub(crate) fn tls(message: impl Into<String>) -> Self {
        Self::Tls {
            peer: None,
            message: message.into(),
        }
    }

    /// Names the peer that sent something malformed, or is not trusted.
    pub fn said_by(self, name: &str) -> Self {
        match self {
            Self::Malformed {
                peer: None,
                message,
            } => Self::Malformed {
                peer: Some(name.to_owned()),
                message,
            },
            Self::Tls {
                peer: None,
                message,
            } => Self::Tls {
                peer: Some(name.to_owned()),
                message,
            },
            other => other,
        }
    }

    /// Returns the kind for callers and error frames.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } => *kind,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Malformed { .. } => ErrorKind::Malformed,
            Self::Authentication { .. } | Self::Tls { .. } => ErrorKind::Authentication,
            Self::Connection(_) => ErrorKind::Unavailable,
            Self::Bind { .. } => ErrorKind::Bind,
            Self::System(_) => ErrorKind::System,
        }
    }
}

/// The system's words, where they tell anything.
pub fn cause_of(error: &io::Error) -> String {
    if error.get_ref().is_some() {
        error.to_string()
    } else if timed_out(error) {
        "no answer came in time".to_owned()
    } else if error.kind() == io::ErrorKind::UnexpectedEof {
        "it was closed at the other end".to_owned()
    } else {
        error.to_string()
    }
}

/// The kinds of errors that a caller may want to tell apart; error frames carry them.
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
    /// Other replicas have the requested part now; the message has their addresses.
    Moved = 16,
}

impl ErrorKind {
    /// The kind in an error frame; one that is unknown here is some refusal of the store.
    pub fn from_code(code: u64) -> Self {
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
            16 => Self::Moved,
            _ => Self::Store,
        }
    }
}
