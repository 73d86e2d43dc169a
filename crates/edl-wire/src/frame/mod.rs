//! The frame: a fixed header, a directory, and the arrays that the directory names.
//!
//! `docs/designs/wire.md` is the specification. Everything is little-endian; every array begins at
//! a multiple of 64 bytes from the start of the payload, so it is used where it was received.

use bytemuck::{Pod, Zeroable};

pub use self::array::{Array, Element, Entry, Kind, directory_bytes, padded, parse};
pub use self::buffer::Buffer;
pub use self::op::Op;
pub use self::outgoing::Outgoing;
use crate::error::WireError;

mod array;
mod buffer;
mod op;
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

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The operation of the request or answer.
    pub op: Op,
    /// By operation.
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
    pub fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self, WireError> {
        let raw: RawHeader = bytemuck::cast(bytes);
        if raw.magic != MAGIC {
            return Err(WireError::malformed(format!(
                "a frame begins with {:02x?}, expected {MAGIC:02x?}",
                raw.magic
            )));
        }
        if raw.version != VERSION {
            return Err(WireError::malformed(format!(
                "a frame of wire version {}, this process speaks {VERSION}; run the same \
                 elasticdl in all processes of a job",
                raw.version
            )));
        }
        let op = Op::from_u16(raw.op)
            .ok_or_else(|| WireError::malformed(format!("unknown operation {}", raw.op)))?;
        if raw.payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(WireError::malformed(format!(
                "a payload of {} bytes, the limit is {MAX_PAYLOAD_BYTES}",
                raw.payload_bytes
            )));
        }
        if raw.num_arrays > MAX_ARRAYS {
            return Err(WireError::malformed(format!(
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
