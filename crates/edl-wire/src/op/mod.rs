//! The operations: a file each, with the request, the response, and how both travel.
//!
//! A new operation is a file here and a number in [`Op`]; what it does is its server's. Operands and
//! flags that are not named in an operation's file are 0.

use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

pub use self::round::{Part, Round, Step};
pub use self::rows::{RowValues, Rows, TableKeys, TableRows, Vectors, Wanted};
pub use crate::frame::Op;

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
pub mod move_step;
pub mod name;
pub mod progress;
pub mod pull;
pub mod push;
pub mod push_each;
pub mod push_pull;
pub mod scan;
pub mod skip;
pub mod stage;
pub mod stats;
pub mod take;

mod round;
mod rows;

/// A request of a client.
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

/// An answer of a server that the client reads as a whole.
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
pub(crate) const FLAG_NOT_YET: u32 = 32;
/// Answers to a push and pull: the push is done, also where the pull is not yet.
pub(crate) const FLAG_PUSHED: u32 = 64;

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
    let found = arrays.iter().map(|array| array.entry.kind);
    match <[Array<'a>; N]>::try_from(arrays) {
        Ok(arrays) if found.clone().eq(kinds) => Ok(arrays),
        _ => Err(WireError::malformed(format!(
            "arrays {:?}, expected {kinds:?}",
            found.collect::<Vec<_>>()
        ))),
    }
}

/// The text of a frame that has one text and nothing else.
fn only_text<'a>(arrays: &[Array<'a>]) -> Result<&'a str, WireError> {
    let [text] = exactly(arrays, [Kind::Text])?;
    text.text()
}
