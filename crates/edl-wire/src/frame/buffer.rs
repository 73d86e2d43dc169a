//! Reading a payload.

use std::io::{self, Read};

use bytemuck::{Pod, Zeroable};

use super::ALIGNMENT;

/// No more than this is allocated ahead of the bytes that have arrived (or as much again as has).
pub(super) const READ_PIECE_BYTES: usize = 1 << 20;
/// A buffer that has grown beyond this is given back when most of it is no longer used.
pub(super) const KEEP_BYTES: usize = 16 << 20;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// A growing buffer that begins at a multiple of 64 bytes, so that arrays in it are aligned.
#[derive(Default)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
    wanted: usize,
}

impl Buffer {
    /// The bytes read last.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }

    /// Reads `len` bytes, allocating no more than a constant or twice what has arrived.
    ///
    /// The caller has checked `len` against a limit; the peer may still not send as much.
    pub fn read(&mut self, reader: &mut impl Read, len: usize) -> io::Result<()> {
        self.begin(len);
        while !self.is_whole() {
            let room = self.room();
            let count = room.len();
            reader.read_exact(room)?;
            self.advance(count);
        }
        Ok(())
    }

    /// Begins to take `len` bytes, which come in parts.
    pub fn begin(&mut self, len: usize) {
        self.give_back(len);
        (self.len, self.wanted) = (0, len);
    }

    /// Whether all bytes have come.
    pub fn is_whole(&self) -> bool {
        self.len == self.wanted
    }

    /// The place for the next bytes: no more than a constant or as much as has come.
    pub fn room(&mut self) -> &mut [u8] {
        let end = self.wanted.min(self.len + self.len.max(READ_PIECE_BYTES));
        let num_lines = end.div_ceil(ALIGNMENT);
        if self.lines.len() < num_lines {
            self.lines.resize(num_lines, Line([0; ALIGNMENT]));
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
        &mut bytes[self.len..end]
    }

    /// Takes so many bytes as come that are in their place.
    pub fn advance(&mut self, count: usize) {
        self.len = self.wanted.min(self.len + count);
    }

    /// Bytes that are held, used or not.
    pub fn held_bytes(&self) -> usize {
        self.lines.capacity() * ALIGNMENT
    }

    fn give_back(&mut self, needed: usize) {
        let held = self.lines.len() * ALIGNMENT;
        if held > KEEP_BYTES && needed < held / 8 {
            *self = Self::default();
        }
    }
}
