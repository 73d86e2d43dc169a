//! The frame: a fixed header, a directory, and the arrays that the directory names.
//!
//! `docs/designs/wire.md` is the specification. Everything is little-endian; every array begins at
//! a multiple of 64 bytes from the start of the payload, so it is used where it was received.

use std::io::{self, IoSlice, Read, Write};

use bytemuck::{Pod, Zeroable};

use crate::error::PsError;

#[cfg(not(target_endian = "little"))]
compile_error!("frames are used where they lie, which needs a little-endian machine");

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"EDLW";
/// Version of the wire, in every header and in the handshake.
pub const VERSION: u16 = 1;
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

/// No more than this is allocated ahead of the bytes that have arrived (or as much again as has).
const READ_PIECE_BYTES: usize = 1 << 20;
/// A buffer that has grown beyond this is given back when most of it is no longer used.
const KEEP_BYTES: usize = 16 << 20;

/// Request flag of [`Op::Pull`]: create the rows that are missing.
pub const FLAG_CREATE: u32 = 1;
/// Request flag of [`Op::Pull`]: answer the dense and state ranges too.
pub const FLAG_VECTORS: u32 = 2;
/// Reply flag of [`Op::Push`]: the update was applied now, not earlier.
pub const FLAG_APPLIED: u32 = 4;
/// Reply flag of [`Op::Scan`]: there is more, from the cursor in `args[0]`.
pub const FLAG_MORE: u32 = 8;

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

/// What an array of a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Row keys of a table, u64.
    Keys = 1,
    /// Rows or their gradients, f32, one per key.
    Rows = 2,
    /// A range of the flat dense vector or its gradient, f32.
    Dense = 3,
    /// A range of the flat state vector or its change, f32.
    State = 4,
    /// UTF-8 text.
    Text = 5,
    /// Triples (task, next index, records), u64.
    Audit = 6,
}

impl Kind {
    fn from_u16(kind: u16) -> Option<Self> {
        Some(match kind {
            1 => Self::Keys,
            2 => Self::Rows,
            3 => Self::Dense,
            4 => Self::State,
            5 => Self::Text,
            6 => Self::Audit,
            _ => return None,
        })
    }

    /// The only element type of this kind in version 1.
    fn element(self) -> Element {
        match self {
            Self::Keys | Self::Audit => Element::U64,
            Self::Rows | Self::Dense | Self::State => Element::F32,
            Self::Text => Element::U8,
        }
    }
}

/// Type of an array's elements. A later version adds 16-bit floats for rows here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Element {
    /// Bytes.
    U8 = 1,
    /// Unsigned 64-bit integers.
    U64 = 2,
    /// 32-bit floats.
    F32 = 3,
}

impl Element {
    fn from_u16(element: u16) -> Option<Self> {
        Some(match element {
            1 => Self::U8,
            2 => Self::U64,
            3 => Self::F32,
            _ => return None,
        })
    }

    fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U64 => 8,
            Self::F32 => 4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
struct RawEntry {
    kind: u16,
    element: u16,
    table: u32,
    width: u32,
    reserved: u32,
    count: u64,
}

/// One directory entry: `count` items of `width` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What the array is.
    pub kind: Kind,
    /// Table number of keys and rows, 0 otherwise.
    pub table: u32,
    /// Elements of one item: the dim of rows, 3 for audits, 1 otherwise.
    pub width: u32,
    /// Items.
    pub count: u64,
}

impl Entry {
    /// The entry as it travels.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        bytemuck::cast(RawEntry {
            kind: self.kind as u16,
            element: self.kind.element() as u16,
            table: self.table,
            width: self.width,
            reserved: 0,
            count: self.count,
        })
    }

    /// Checks an entry by itself; [`parse`] checks it against the payload.
    pub fn decode(bytes: [u8; ENTRY_BYTES]) -> Result<Self, PsError> {
        let raw: RawEntry = bytemuck::cast(bytes);
        let kind = Kind::from_u16(raw.kind)
            .ok_or_else(|| PsError::malformed(format!("unknown kind of array {}", raw.kind)))?;
        if Element::from_u16(raw.element) != Some(kind.element()) {
            return Err(PsError::malformed(format!(
                "{kind:?} of element type {}, expected {:?}",
                raw.element,
                kind.element()
            )));
        }
        if raw.width == 0 || raw.reserved != 0 {
            return Err(PsError::malformed(format!(
                "{kind:?} of width {} with reserved bits {:#x}",
                raw.width, raw.reserved
            )));
        }
        let entry = Self {
            kind,
            table: raw.table,
            width: raw.width,
            count: raw.count,
        };
        entry.checked_bytes()?;
        Ok(entry)
    }

    /// Bytes of the array without padding; an error if no payload could hold it.
    fn checked_bytes(&self) -> Result<usize, PsError> {
        self.count
            .checked_mul(u64::from(self.width))
            .and_then(|n| n.checked_mul(self.kind.element().bytes()))
            .filter(|&bytes| bytes <= MAX_PAYLOAD_BYTES)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| {
                PsError::malformed(format!(
                    "{:?} of {} x {} elements cannot fit into a payload of {MAX_PAYLOAD_BYTES} \
                     bytes",
                    self.kind, self.count, self.width
                ))
            })
    }
}

/// `bytes` rounded up to the alignment of arrays.
pub fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Bytes of a directory of `num_arrays` entries, with its padding.
pub fn directory_bytes(num_arrays: usize) -> usize {
    padded(num_arrays * ENTRY_BYTES)
}

/// One array of a received frame, in the payload's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    /// Its directory entry.
    pub entry: Entry,
    data: &'a [u8],
}

impl<'a> Array<'a> {
    /// The elements of keys and audits.
    pub fn u64s(&self) -> Result<&'a [u64], PsError> {
        self.elements(Element::U64)
    }

    /// The elements of rows, dense and state.
    pub fn f32s(&self) -> Result<&'a [f32], PsError> {
        self.elements(Element::F32)
    }

    /// The characters of a text.
    pub fn text(&self) -> Result<&'a str, PsError> {
        let bytes: &[u8] = self.elements(Element::U8)?;
        std::str::from_utf8(bytes)
            .map_err(|error| PsError::malformed(format!("a text is not UTF-8: {error}")))
    }

    fn elements<T: Pod>(&self, expected: Element) -> Result<&'a [T], PsError> {
        if self.entry.kind.element() != expected {
            return Err(PsError::malformed(format!(
                "{:?} where an array of {expected:?} was expected",
                self.entry.kind
            )));
        }
        bytemuck::try_cast_slice(self.data).map_err(|error| {
            PsError::malformed(format!(
                "{:?} does not lie aligned: {error}",
                self.entry.kind
            ))
        })
    }
}

/// Reads the directory of a payload and finds its arrays.
///
/// The arrays must fill the payload exactly.
pub fn parse(num_arrays: u32, payload: &[u8]) -> Result<Vec<Array<'_>>, PsError> {
    let num_arrays = num_arrays as usize;
    let mut offset = directory_bytes(num_arrays);
    if offset > payload.len() {
        return Err(PsError::malformed(format!(
            "a payload of {} bytes is too short for a directory of {num_arrays} arrays",
            payload.len()
        )));
    }
    let (entries, _) = payload.as_chunks::<ENTRY_BYTES>();
    let mut arrays = Vec::with_capacity(num_arrays);
    for entry in &entries[..num_arrays] {
        let entry = Entry::decode(*entry)?;
        let bytes = entry.checked_bytes()?;
        let data = payload.get(offset..offset + bytes).ok_or_else(|| {
            PsError::malformed(format!(
                "{:?} of {bytes} bytes at {offset} reaches beyond the payload of {} bytes",
                entry.kind,
                payload.len()
            ))
        })?;
        offset += padded(bytes);
        arrays.push(Array { entry, data });
    }
    if offset != payload.len() {
        return Err(PsError::malformed(format!(
            "the arrays take {offset} bytes, the payload has {}",
            payload.len()
        )));
    }
    Ok(arrays)
}

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

    /// Adds audit triples.
    pub fn audit(self, triples: &'a [[u64; 3]]) -> Self {
        self.array(Kind::Audit, 0, 3, bytemuck::cast_slice(triples))
    }

    fn array(mut self, kind: Kind, table: u32, width: u32, data: &'a [u8]) -> Self {
        let item_bytes = kind.element().bytes() * u64::from(width.max(1));
        let count = data.len() as u64 / item_bytes;
        debug_assert_eq!(count * item_bytes, data.len() as u64, "whole items");
        let entry = Entry {
            kind,
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
    pub fn check_size(&self) -> Result<(), PsError> {
        let bytes = self.payload_bytes();
        if bytes > MAX_PAYLOAD_BYTES || self.arrays.len() > MAX_ARRAYS as usize {
            return Err(PsError::Invalid(format!(
                "a frame of {bytes} bytes in {} arrays; the limits are {MAX_PAYLOAD_BYTES} bytes \
                 and {MAX_ARRAYS} arrays: use smaller minibatches or more ps replicas",
                self.arrays.len()
            )));
        }
        Ok(())
    }

    /// Writes the frame with as few system calls as it takes.
    pub fn write_to(&self, sequence: u64, writer: &mut impl Write) -> io::Result<()> {
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
        write_all_vectored(writer, &mut slices)
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

fn write_all_vectored(writer: &mut impl Write, mut slices: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !slices.is_empty() {
        match writer.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// A growing buffer that begins at a multiple of 64 bytes, so that arrays in it are aligned.
#[derive(Default)]
pub struct Buffer {
    lines: Vec<Line>,
    len: usize,
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
        self.give_back(len);
        self.len = 0;
        while self.len < len {
            let end = len.min(self.len + self.len.max(READ_PIECE_BYTES));
            let num_lines = end.div_ceil(ALIGNMENT);
            if self.lines.len() < num_lines {
                self.lines.resize(num_lines, Line([0; ALIGNMENT]));
            }
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
            reader.read_exact(&mut bytes[self.len..end])?;
            self.len = end;
        }
        Ok(())
    }

    fn give_back(&mut self, needed: usize) {
        let held = self.lines.len() * ALIGNMENT;
        if held > KEEP_BYTES && needed < held / 8 {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(frame: &Outgoing<'_>) -> (Header, Vec<u8>) {
        let mut bytes = Vec::new();
        frame.write_to(7, &mut bytes).unwrap();
        let payload = bytes.split_off(HEADER_BYTES);
        (Header::decode(bytes.try_into().unwrap()).unwrap(), payload)
    }

    fn received(payload: &[u8]) -> Buffer {
        let mut buffer = Buffer::default();
        buffer.read(&mut &payload[..], payload.len()).unwrap();
        buffer
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let frame = Outgoing::new(Op::Push)
            .flags(FLAG_APPLIED)
            .args([1, 2, 3, 4])
            .keys(5, &[10, 20, 30])
            .rows(5, 2, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
            .dense(&[])
            .state(&[9.0])
            .text("hello")
            .audit(&[[1, 2, 3]]);

        let (header, payload) = sent(&frame);
        let buffer = received(&payload);
        let arrays = parse(header.num_arrays, buffer.bytes()).unwrap();

        assert_eq!(
            (header.op, header.flags, header.sequence),
            (Op::Push, FLAG_APPLIED, 7)
        );
        assert_eq!(header.args, [1, 2, 3, 4]);
        assert_eq!(header.payload_bytes, payload.len() as u64);
        assert_eq!(arrays[0].u64s().unwrap(), [10, 20, 30]);
        assert_eq!(arrays[1].f32s().unwrap(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!((arrays[1].entry.table, arrays[1].entry.width), (5, 2));
        assert!(arrays[2].f32s().unwrap().is_empty());
        assert_eq!(arrays[3].f32s().unwrap(), [9.0]);
        assert_eq!(arrays[4].text().unwrap(), "hello");
        assert_eq!(arrays[5].u64s().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn an_oversize_length_is_refused_in_the_header() {
        let mut bytes = Header {
            op: Op::Push,
            flags: 0,
            num_arrays: 0,
            sequence: 0,
            payload_bytes: 0,
            args: [0; 4],
        }
        .encode();
        bytes[24..32].copy_from_slice(&(MAX_PAYLOAD_BYTES + 1).to_le_bytes());
        let error = Header::decode(bytes).unwrap_err();
        assert!(error.to_string().contains("the limit is"), "{error}");
    }

    #[test]
    fn a_promised_length_is_not_allocated_before_it_arrives() {
        let mut buffer = Buffer::default();
        let error = buffer
            .read(&mut &[0u8; 100][..], MAX_PAYLOAD_BYTES as usize)
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(buffer.lines.capacity() * ALIGNMENT <= 2 * READ_PIECE_BYTES);
    }

    #[test]
    fn a_large_payload_is_read_whole_and_its_buffer_given_back() {
        let payload: Vec<u8> = (0..KEEP_BYTES + 12345).map(|i| i as u8).collect();
        let mut buffer = received(&payload);
        assert!(buffer.bytes() == payload);
        buffer.read(&mut &payload[..10], 10).unwrap();
        assert!(buffer.lines.capacity() * ALIGNMENT <= 2 * READ_PIECE_BYTES);
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_answers_and_never_panics(
            header in proptest::array::uniform32(any::<u8>()),
            num_arrays in 0u32..200,
            payload in proptest::collection::vec(any::<u8>(), 0..2000),
        ) {
            let mut bytes = [0u8; HEADER_BYTES];
            bytes[..32].copy_from_slice(&header);
            bytes[..8].copy_from_slice(b"EDLW\x01\0\x04\0");
            let _ = Header::decode(bytes);
            let _ = parse(num_arrays, received(&payload).bytes()).map(|arrays| {
                arrays.iter().for_each(|a| { let _ = (a.u64s(), a.f32s(), a.text()); });
            });
        }

        #[test]
        fn a_mutated_frame_is_read_or_refused(
            keys in proptest::collection::vec(any::<u64>(), 0..50),
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
            cut in any::<prop::sample::Index>(),
        ) {
            let rows = vec![1.0; keys.len() * 3];
            let frame = Outgoing::new(Op::Pull).keys(1, &keys).rows(1, 3, &rows).text("x");
            let (header, mut payload) = sent(&frame);
            let at = at.index(payload.len());
            payload[at] = byte;
            let _ = parse(header.num_arrays, received(&payload).bytes());
            payload.truncate(cut.index(payload.len()));
            prop_assert!(parse(header.num_arrays, received(&payload).bytes()).is_err());
        }
    }
}
