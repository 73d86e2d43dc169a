//! The errors between a worker and a ps replica.

use std::time::Duration;

use edl_store::StoreError;
pub use edl_wire::ErrorKind;
use edl_wire::WireError;
use thiserror::Error;

/// An error of the server or the client.
#[derive(Debug, Error)]
pub enum PsError {
    /// The store in this process refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store of a replica refused.
    #[error("{message} (said ps replica {replica} at {address})")]
    Remote {
        /// The kind of the refusal.
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
    /// A replica could not be reached in time.
    #[error(
        "ps replica {replica} at {address} could not be reached within {seconds:.1} s: {cause}; \
         is its process alive?"
    )]
    Unavailable {
        /// The replica's number.
        replica: usize,
        /// The last address at which the replica was sought.
        address: String,
        /// The deadline.
        seconds: f64,
        /// The last failure.
        cause: String,
    },
    /// Other replicas have the model now; the text is their layout as JSON.
    #[error("the model is with other ps replicas now: {0}")]
    Moved(String),
    /// The system gave no threads, or an answer cannot be written.
    #[error("{0}")]
    System(String),
    /// A connection did not work.
    #[error(transparent)]
    Wire(#[from] WireError),
}

impl PsError {
    /// Says after how long a replica was given up.
    pub(crate) fn after(mut self, waited: Duration) -> Self {
        if let Self::Unavailable { seconds, .. } = &mut self {
            *seconds = waited.as_secs_f64();
        }
        self
    }

    /// The kind of this refusal, local or remote.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => kind_of(error),
            Self::Remote { kind, .. } => *kind,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Moved(_) => ErrorKind::Moved,
            Self::Unavailable { .. } => ErrorKind::Unavailable,
            Self::System(_) => ErrorKind::System,
            Self::Wire(error) => error.kind(),
        }
    }
}

fn kind_of(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::UnknownTable { .. } => ErrorKind::UnknownTable,
        StoreError::ModelMismatch(_) => ErrorKind::ModelMismatch,
        StoreError::StaleLease { .. } => ErrorKind::StaleLease,
        StoreError::Checkpoint { .. } => ErrorKind::Checkpoint,
        StoreError::MemoryLimit { .. }
        | StoreError::NamesMemoryLimit { .. }
        | StoreError::IndexLimit { .. }
        | StoreError::DiskFull { .. } => ErrorKind::MemoryLimit,
        // Its process is about to end.
        StoreError::HalfChanged { .. } | StoreError::DiskLost { .. } => ErrorKind::Unavailable,
        StoreError::Gap { .. } | StoreError::EarlierLease { .. } => ErrorKind::Gap,
        StoreError::TooStale { .. } => ErrorKind::TooStale,
        StoreError::NotDeclared(_) | StoreError::RowsAwaited { .. } => ErrorKind::NotDeclared,
        StoreError::BadModel(_)
        | StoreError::WrongLength { .. }
        | StoreError::BadNames { .. }
        | StoreError::WrongReplica { .. }
        | StoreError::Full(_)
        | StoreError::DiskUnusable { .. }
        | StoreError::BadReplica { .. } => ErrorKind::Store,
    }
}
