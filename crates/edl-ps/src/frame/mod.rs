//! The frame: a fixed header, a directory, and the arrays that the directory names.
//!
//! `docs/designs/wire.md` is the specification. Everything is little-endian; every array begins at
//! a multiple of 64 bytes from the start of the payload, so it is used where it was received.

use bytemuck::{Pod, Zeroable};

pub use self::array::{Array, Element, Entry, Kind, directory_bytes, padded, parse};
pub use self::buffer::Buffer;
pub use self::outgoing::Outgoing;
use crate::error::PsError;

mod array;
mod buffer;
mod outgoing;
#[cfg(test)]
mod tests;

#[cfg(not(target_endian = "little"))]
compile_error!("frames are used where they lie, which needs a little-endian machine");

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"EDLW";
/// Version of the wire, in every header and in the handshake.
pub const VERSION: u16 = 2;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 64;
/// Bytes of one directory entry.
pub const ENTRY_BYTES: usize = 24;
/// Every array begins at a multiple of this many bytes.
pub const ALIGNMENT: usize = 64;
/// The largest payload that an authenticated peer may send.
pub const MAX_PAYLOAD_BYTES: u64 = 1 << 30;
/// The most arrays that one frame may have.
pub const MAX_ARRAYS: u32 = 8192;

/// Request flag of [`Op::Pull`]: create the rows that are missing.
pub const FLAG_CREATE: u32 = 1;
/// Request flag of [`Op::Pull`]: answer the dense and state ranges too.
pub const FLAG_VECTORS: u32 = 2;
/// Reply flag of [`Op::Push`]: the update was applied now, not earlier.
pub const FLAG_APPLIED: u32 = 4;
/// Reply flag of [`Op::Scan`]: there is more, from the cursor in `args[0]`.
pub const FLAG_MORE: u32 = 8;

/// Request flag of [`Op::Pull`]: it is of a training step, `args` say which.
pub const FLAG_STEP: u32 = 16;
/// Reply flag of [`Op::Pull`] and [`Op::Push`]: not yet, ask again.
pub const FLAG_NOT_YET: u32 = 32;
/// Reply flag of [`Op::PushPull`]: the push is done, also where the pull is not yet.
pub const FLAG_PUSHED: u32 = 64;

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
}

impl Op {
    fn from_u16(op: u16) -> Option<Self> {
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
            _ => return None,
        })
    }
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked or answered.
    pub op: Op,
    /// `FLAG_*`, by operation.
    pub flags: u32,
    /// Entries in the directory.
    pub num_arrays: u32,
    /// Number of the request on its connection, repeated in the answer.
    pub sequence: u64,
    /// Bytes after the header: directory and arrays with their padding.
    pub payload_bytes: u64,
    /// Operands, by operation.
    pub args: [u64; 4],
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 4],
    version: u16,
    op: u16,
    flags: u32,
    num_arrays: u32,
    sequence: u64,
    payload_bytes: u64,
    args: [u64; 4],
}

impl Header {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        bytemuck::cast(RawHeader {
            magic: MAGIC,
            version: VERSION,
            op: self.op as u16,
            flags: self.flags,
            num_arrays: self.num_arrays,
            sequence: self.sequence,
            payload_bytes: self.payload_bytes,
            args: self.args,
        })
    }

    /// Checks everything that can be checked before the payload is read.
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, PsError> {
        let raw: RawHeader = bytemuck::cast(bytes);
        if raw.magic != MAGIC {
            return Err(PsError::malformed(format!(
                "a frame begins with {:02x?}, expected {MAGIC:02x?}",
                raw.magic
            )));
        }
        if raw.version != VERSION {
            return Err(PsError::malformed(format!(
                "a frame of wire version {}, this process speaks {VERSION}; run the same \
                 elasticdl in all processes of a job",
                raw.version
            )));
        }
        let op = Op::from_u16(raw.op)
            .ok_or_else(|| PsError::malformed(format!("unknown operation {}", raw.op)))?;
        if raw.payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(PsError::malformed(format!(
                "a payload of {} bytes, the limit is {MAX_PAYLOAD_BYTES}",
                raw.payload_bytes
            )));
        }
        if raw.num_arrays > MAX_ARRAYS {
            return Err(PsError::malformed(format!(
                "a frame of {} arrays, the limit is {MAX_ARRAYS}",
                raw.num_arrays
            )));
        }
        Ok(Self {
            op,
            flags: raw.flags,
            num_arrays: raw.num_arrays,
            sequence: raw.sequence,
            payload_bytes: raw.payload_bytes,
            args: raw.args,
        })
    }
}

/// Two 32-bit operands in one field: (lower, upper).
pub(crate) fn joined(lower: u32, upper: u32) -> u64 {
    u64::from(lower) | u64::from(upper) << 32
}

/// Two 32-bit operands share one field: (lower, upper).
pub(crate) fn halves(operand: u64) -> (u32, u32) {
    (operand as u32, (operand >> 32) as u32)
}
