//! Writing a frame.

use std::io::{self, IoSlice, Write};

use super::{
    ALIGNMENT, Element, Entry, HEADER_BYTES, Header, Kind, MAX_ARRAYS, MAX_PAYLOAD_BYTES, Op,
    directory_bytes, padded,
};
use crate::error::WireError;

/// A frame to be sent: it borrows its arrays and is written without copying them.
#[derive(Debug)]
pub struct Outgoing<'a> {
    op: Op,
    flags: u32,
    args: [u64; 4],
    arrays: Vec<(Entry, &'a [u8])>,
}

impl<'a> Outgoing<'a> {
    /// A frame without arrays.
    pub fn new(op: Op) -> Self {
        Self {
            op,
            flags: 0,
            args: [0; 4],
            arrays: Vec::new(),
        }
    }

    /// Sets flags.
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags |= flags;
        self
    }

    /// Sets the operands.
    pub fn args(mut self, args: [u64; 4]) -> Self {
        self.args = args;
        self
    }

    /// Adds row keys.
    pub fn keys(self, table: u32, keys: &'a [u64]) -> Self {
        self.array(Kind::Keys, table, 1, bytemuck::cast_slice(keys))
    }

    /// Adds rows or gradients of rows; `dim` elements each.
    pub fn rows(self, table: u32, dim: u32, rows: &'a [f32]) -> Self {
        self.array(Kind::Rows, table, dim, bytemuck::cast_slice(rows))
    }

    /// Adds rows or gradients as 16-bit floats of a type.
    pub fn half_rows(self, table: u32, dim: u32, element: Element, rows: &'a [u16]) -> Self {
        self.elements(Kind::Rows, element, table, dim, bytemuck::cast_slice(rows))
    }

    /// Adds a range of the dense vector.
    pub fn dense(self, values: &'a [f32]) -> Self {
        self.array(Kind::Dense, 0, 1, bytemuck::cast_slice(values))
    }

    /// Adds a range of the state vector.
    pub fn state(self, values: &'a [f32]) -> Self {
        self.array(Kind::State, 0, 1, bytemuck::cast_slice(values))
    }

    /// Adds a text.
    pub fn text(self, text: &'a str) -> Self {
        self.array(Kind::Text, 0, 1, text.as_bytes())
    }

    /// Adds what was applied of tasks, three numbers each.
    pub fn audit(self, tasks: &'a [[u64; 3]]) -> Self {
        self.array(Kind::Audit, 0, 3, bytemuck::cast_slice(tasks))
    }

    /// Adds the parts of a round, four numbers each.
    pub fn parts(self, parts: &'a [[u64; 4]]) -> Self {
        self.array(Kind::Parts, 0, 4, bytemuck::cast_slice(parts))
    }

    /// Adds bytes.
    pub fn bytes(self, bytes: &'a [u8]) -> Self {
        self.array(Kind::Bytes, 0, 1, bytes)
    }

    fn array(self, kind: Kind, table: u32, width: u32, data: &'a [u8]) -> Self {
        self.elements(kind, kind.element(), table, width, data)
    }

    fn elements(
        mut self,
        kind: Kind,
        element: Element,
        table: u32,
        width: u32,
        data: &'a [u8],
    ) -> Self {
        let item_bytes = element.bytes() * u64::from(width.max(1));
        let count = data.len() as u64 / item_bytes;
        debug_assert_eq!(count * item_bytes, data.len() as u64, "whole items");
        let entry = Entry {
            kind,
            element,
            table,
            width: width.max(1),
            count,
        };
        self.arrays.push((entry, data));
        self
    }

    /// Bytes after the header.
    pub fn payload_bytes(&self) -> u64 {
        let arrays: usize = self.arrays.iter().map(|(_, data)| padded(data.len())).sum();
        (directory_bytes(self.arrays.len()) + arrays) as u64
    }

    /// Refuses a frame that its receiver would refuse.
    pub fn check_size(&self) -> Result<(), WireError> {
        let bytes = self.payload_bytes();
        if bytes > MAX_PAYLOAD_BYTES || self.arrays.len() > MAX_ARRAYS as usize {
            return Err(WireError::Invalid(format!(
                "a frame of {bytes} bytes in {} arrays; the limits are {MAX_PAYLOAD_BYTES} bytes \
                 and {MAX_ARRAYS} arrays: use smaller minibatches or more ps replicas",
                self.arrays.len()
            )));
        }
        Ok(())
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        HEADER_BYTES + self.payload_bytes() as usize
    }

    /// Writes the frame with as few system calls as it takes.
    pub fn write_to(&self, sequence: u64, writer: &mut impl Write) -> io::Result<()> {
        let written = self.write_from(0, sequence, |slices| writer.write_vectored(slices))?;
        if written < self.frame_bytes() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    /// Writes the frame from a byte on until `write` takes nothing; returns where the rest begins.
    pub(crate) fn write_from(
        &self,
        start: usize,
        sequence: u64,
        mut write: impl FnMut(&[IoSlice<'_>]) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let header = Header {
            op: self.op,
            flags: self.flags,
            num_arrays: self.arrays.len() as u32,
            sequence,
            payload_bytes: self.payload_bytes(),
            args: self.args,
        };
        let head = self.head(&header);
        let mut slices = Vec::with_capacity(1 + 2 * self.arrays.len());
        slices.push(IoSlice::new(&head));
        for (_, data) in &self.arrays {
            if !data.is_empty() {
                slices.push(IoSlice::new(data));
            }
            let padding = padded(data.len()) - data.len();
            if padding > 0 {
                slices.push(IoSlice::new(&PADDING[..padding]));
            }
        }
        let mut written = start;
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, start);
        while !rest.is_empty() {
            match write(rest) {
                Ok(0) => break,
                Ok(count) => {
                    written += count;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    fn head(&self, header: &Header) -> Vec<u8> {
        let size = HEADER_BYTES + directory_bytes(self.arrays.len());
        let mut head = Vec::with_capacity(size);
        head.extend_from_slice(&header.encode());
        for (entry, _) in &self.arrays {
            head.extend_from_slice(&entry.encode());
        }
        head.resize(size, 0);
        head
    }
}

static PADDING: [u8; ALIGNMENT] = [0; ALIGNMENT];
