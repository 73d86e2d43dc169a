//! What a thread of a server reads into.

use crate::error::WireError;
use crate::frame::{Buffer, Header};

/// Small frames are read by one system call.
const SCRATCH_BYTES: usize = 64 << 10;

/// What a thread reads small frames into. Each begins at its begin, so that its arrays are aligned.
#[derive(Default)]
pub(super) struct Scratch(pub(super) Buffer);

impl Scratch {
    /// Begins with bytes that came before.
    pub(super) fn begin(&mut self, before: &mut Vec<u8>) {
        self.0.begin(SCRATCH_BYTES);
        self.0.room()[..before.len()].copy_from_slice(before);
        self.0.advance(before.len());
        before.clear();
    }

    /// The header, if it has come, and whether all of its frame has.
    pub(super) fn header(&self) -> Result<Option<(Header, bool)>, WireError> {
        let Some((head, after)) = self.0.bytes().split_first_chunk() else {
            return Ok(None);
        };
        let header = Header::decode(*head)?;
        Ok(Some((header, after.len() as u64 >= header.payload_bytes)))
    }
}
