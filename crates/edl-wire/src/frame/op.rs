//! The number of an operation in a frame's header.

/// The operation of a frame's request or answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Op {
    /// A request was refused: `args[0]` is the [`crate::ErrorKind`], the text says why.
    Error = 0,
    /// Ask for the declared model.
    Model = 1,
    /// Declare the model, with this replica's dense and state values.
    Declare = 2,
    /// Fence off older leases of a task.
    BeginTask = 3,
    /// Rows, and the dense and state ranges.
    Pull = 4,
    /// One minibatch's gradients.
    Push = 5,
    /// Count a minibatch as dealt with.
    Skip = 6,
    /// A chunk of a table.
    Scan = 7,
    /// Watermarks of every task.
    Audit = 8,
    /// Counters.
    Stats = 9,
    /// Write this replica's checkpoint files.
    Checkpoint = 10,
    /// Keep one minibatch's gradients until their round is committed.
    Stage = 11,
    /// Apply a round as replica 0 has.
    Commit = 12,
    /// A lease is over.
    EndTask = 13,
    /// One minibatch's gradients, then rows and vectors for the next.
    PushPull = 14,
    /// Apply a round as replica 0 has, then rows and vectors.
    CommitPull = 15,
    /// The gradients of several minibatches, each an update of its own.
    PushEach = 16,
    /// Remove the rows that have come to their end.
    Expire = 20,
    /// Write this replica's part of an export.
    Export = 21,
    /// The strings that keys were made of.
    Name = 22,
    /// An answer is being worked on.
    Progress = 23,
    /// Rows that a table begins with.
    Give = 24,
    /// A step of a move to another number of replicas.
    Move = 25,
    /// Rows or parts of the vectors that move.
    Take = 26,
}

impl Op {
    pub(super) fn from_u16(op: u16) -> Option<Self> {
        Some(match op {
            0 => Self::Error,
            1 => Self::Model,
            2 => Self::Declare,
            3 => Self::BeginTask,
            4 => Self::Pull,
            5 => Self::Push,
            6 => Self::Skip,
            7 => Self::Scan,
            8 => Self::Audit,
            9 => Self::Stats,
            10 => Self::Checkpoint,
            11 => Self::Stage,
            12 => Self::Commit,
            13 => Self::EndTask,
            14 => Self::PushPull,
            15 => Self::CommitPull,
            16 => Self::PushEach,
            20 => Self::Expire,
            21 => Self::Export,
            22 => Self::Name,
            23 => Self::Progress,
            24 => Self::Give,
            25 => Self::Move,
            26 => Self::Take,
            _ => return None,
        })
    }
}
