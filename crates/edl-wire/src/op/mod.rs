//! The operations: a file each, with the request, the response, and how both travel.
//!
//! A new operation is a file here and a number in [`Op`]; what it does is its server's. Operands and
//! flags that are not named in an operation's file are 0.

use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

pub use self::round::{Part, Round, Step};
pub use self::rows::{RowValues, Rows, TableKeys, TableRows, Vectors, Wanted};

pub mod audit;
pub mod begin_task;
pub mod checkpoint;
pub mod commit;
pub mod commit_pull;
pub mod declare;
pub mod end_task;
pub mod error;
pub mod expire;
pub mod export;
pub mod give;
pub mod model;
pub mod name;
pub mod progress;
pub mod pull;
pub mod push;
pub mod push_pull;
pub mod scan;
pub mod skip;
pub mod stage;
pub mod stats;

mod round;
mod rows;

/// What a client asks.
pub trait Request<'a>: Sized {
    /// What is answered.
    type Response: Response;

    /// The frame that says it.
    fn encode(&self) -> Outgoing<'_>;

    /// Reads a frame of this operation.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for operands or arrays that are not of this operation.
    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError>;
}

/// What a server answers, where the client takes it as a whole.
pub trait Response: Sized {
    /// The operation that it answers.
    const OP: Op;

    /// The frame that says it.
    fn encode(&self) -> Outgoing<'_>;

    /// Reads a frame that answers this operation.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for operands or arrays that are not of this operation.
    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError>;
}

/// What a frame asks for, or answers.
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
}

impl Op {
    pub(crate) fn from_u16(op: u16) -> Option<Self> {
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
            20 => Self::Expire,
            21 => Self::Export,
            22 => Self::Name,
            23 => Self::Progress,
            24 => Self::Give,
            _ => return None,
        })
    }
}

/// Rows in requests: create those that are missing.
const FLAG_CREATE: u32 = 1;
/// Rows in requests: answer the dense and state ranges too.
const FLAG_VECTORS: u32 = 2;
/// Answers to pushes: the update was applied now, not earlier.
const FLAG_APPLIED: u32 = 4;
/// Answers to scans: there is more.
const FLAG_MORE: u32 = 8;
/// Pulls in requests: it is of a training step, and waits as its synchrony demands.
const FLAG_STEP: u32 = 16;
/// Answers: not yet, ask again.
const FLAG_NOT_YET: u32 = 32;
/// Answers to a push and pull: the push is done, also where the pull is not yet.
const FLAG_PUSHED: u32 = 64;

/// Two 32-bit operands in one field: (lower, upper).
fn joined(lower: u32, upper: u32) -> u64 {
    u64::from(lower) | u64::from(upper) << 32
}

/// Two 32-bit operands share one field: (lower, upper).
fn halves(operand: u64) -> (u32, u32) {
    (operand as u32, (operand >> 32) as u32)
}

/// A 32-bit operand that has a field to itself.
fn operand(header: &Header, index: usize) -> Result<u32, WireError> {
    let value = header.args[index];
    u32::try_from(value).map_err(|_| {
        WireError::malformed(format!(
            "operand {index} of {:?} is {value}, expected 32 bits",
            header.op
        ))
    })
}

/// The arrays, if they are of exactly these kinds.
fn exactly<'a, const N: usize>(
    arrays: &[Array<'a>],
    kinds: [Kind; N],
) -> Result<[Array<'a>; N], WireError> {
    let found: Vec<Kind> = arrays.iter().map(|array| array.entry.kind).collect();
    match <[Array<'a>; N]>::try_from(arrays) {
        Ok(arrays) if found == kinds => Ok(arrays),
        _ => Err(WireError::malformed(format!(
            "arrays {found:?}, expected {kinds:?}"
        ))),
    }
}

/// The text of a frame that has one text and nothing else.
fn only_text<'a>(arrays: &[Array<'a>]) -> Result<&'a str, WireError> {
    let [text] = exactly(arrays, [Kind::Text])?;
    text.text()
}
