//! The directory of a frame and the arrays that it names.

use bytemuck::{Pod, Zeroable};

use super::{ALIGNMENT, ENTRY_BYTES, MAX_PAYLOAD_BYTES};
use crate::error::WireError;

/// The kind of an array in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// Row keys of a table, u64.
    Keys = 1,
    /// Rows or their gradients, one per key: f32, f16 or bf16, as the table has it.
    Rows = 2,
    /// A range of the flat dense vector or its gradient, f32.
    Dense = 3,
    /// A range of the flat state vector or its change, f32.
    State = 4,
    /// UTF-8 text.
    Text = 5,
    /// Triples (task, next index, records), u64.
    Audit = 6,
    /// Quadruples (task, lease and index, records and weight, 0), u64: the parts of a round.
    Parts = 7,
    /// Bytes of any meaning.
    Bytes = 8,
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
            7 => Self::Parts,
            8 => Self::Bytes,
            _ => return None,
        })
    }

    /// The usual element type of this kind.
    pub fn element(self) -> Element {
        match self {
            Self::Keys | Self::Audit | Self::Parts => Element::U64,
            Self::Rows | Self::Dense | Self::State => Element::F32,
            Self::Text | Self::Bytes => Element::U8,
        }
    }
}

/// Type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Element {
    /// Bytes.
    U8 = 1,
    /// Unsigned 64-bit integers.
    U64 = 2,
    /// 32-bit floats.
    F32 = 3,
    /// IEEE half precision; rows alone.
    F16 = 4,
    /// The upper half of a 32-bit float; rows alone.
    Bf16 = 5,
}

impl Element {
    fn from_u16(element: u16) -> Option<Self> {
        Some(match element {
            1 => Self::U8,
            2 => Self::U64,
            3 => Self::F32,
            4 => Self::F16,
            5 => Self::Bf16,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Self::U8 => 1,
            Self::U64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
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
    /// The kind of the array.
    pub kind: Kind,
    /// Type of its elements; that of the kind, but for rows.
    pub element: Element,
    /// Table number of keys and rows, 0 otherwise.
    pub table: u32,
    /// Elements of one item: the dim of rows, 3 for audits, 4 for parts, 1 otherwise.
    pub width: u32,
    /// Items.
    pub count: u64,
}

impl Entry {
    /// The entry as it travels.
    pub fn encode(&self) -> [u8; ENTRY_BYTES] {
        bytemuck::cast(RawEntry {
            kind: self.kind as u16,
            element: self.element as u16,
            table: self.table,
            width: self.width,
            reserved: 0,
            count: self.count,
        })
    }

    /// Checks an entry by itself; [`parse`] checks it against the payload.
    pub fn decode(bytes: [u8; ENTRY_BYTES]) -> Result<Self, WireError> {
        let raw: RawEntry = bytemuck::cast(bytes);
        let kind = Kind::from_u16(raw.kind)
            .ok_or_else(|| WireError::malformed(format!("unknown kind of array {}", raw.kind)))?;
        let element = Element::from_u16(raw.element).filter(|&element| {
            element == kind.element()
                || kind == Kind::Rows && matches!(element, Element::F16 | Element::Bf16)
        });
        let Some(element) = element else {
            return Err(WireError::malformed(format!(
                "{kind:?} of element type {}, expected {:?}",
                raw.element,
                kind.element()
            )));
        };
        if raw.width == 0 || raw.reserved != 0 {
            return Err(WireError::malformed(format!(
                "{kind:?} of width {} with reserved bits {:#x}",
                raw.width, raw.reserved
            )));
        }
        let entry = Self {
            kind,
            element,
            table: raw.table,
            width: raw.width,
            count: raw.count,
        };
        entry.checked_bytes()?;
        Ok(entry)
    }

    /// Bytes of the array without padding; an error if no payload could hold it.
    fn checked_bytes(&self) -> Result<usize, WireError> {
        self.count
            .checked_mul(u64::from(self.width))
            .and_then(|n| n.checked_mul(self.element.bytes()))
            .filter(|&bytes| bytes <= MAX_PAYLOAD_BYTES)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(|| {
                WireError::malformed(format!(
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
    /// The elements of keys, audits and parts.
    pub fn u64s(&self) -> Result<&'a [u64], WireError> {
        self.elements(Element::U64)
    }

    /// The elements of rows, dense and state.
    pub fn f32s(&self) -> Result<&'a [f32], WireError> {
        self.elements(Element::F32)
    }

    /// The elements of rows that travel as 16-bit floats.
    pub fn u16s(&self) -> Result<&'a [u16], WireError> {
        self.elements(self.entry.element)
    }

    /// The bytes of a text, or of an array of bytes.
    pub fn u8s(&self) -> Result<&'a [u8], WireError> {
        self.elements(Element::U8)
    }

    /// The characters of a text.
    pub fn text(&self) -> Result<&'a str, WireError> {
        std::str::from_utf8(self.u8s()?)
            .map_err(|error| WireError::malformed(format!("a text is not UTF-8: {error}")))
    }

    fn elements<T: Pod>(&self, expected: Element) -> Result<&'a [T], WireError> {
        if self.entry.element != expected || expected.bytes() != size_of::<T>() as u64 {
            return Err(WireError::malformed(format!(
                "{:?} where an array of {expected:?} was expected",
                self.entry.kind
            )));
        }
        bytemuck::try_cast_slice(self.data).map_err(|error| {
            WireError::malformed(format!(
                "{:?} does not lie aligned: {error}",
                self.entry.kind
            ))
        })
    }
}

/// Reads the directory of a payload and finds its arrays.
///
/// The arrays must fill the payload exactly.
pub fn parse(num_arrays: u32, payload: &[u8]) -> Result<Vec<Array<'_>>, WireError> {
    let num_arrays = num_arrays as usize;
    let mut offset = directory_bytes(num_arrays);
    if offset > payload.len() {
        return Err(WireError::malformed(format!(
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
            WireError::malformed(format!(
                "{:?} of {bytes} bytes at {offset} reaches beyond the payload of {} bytes",
                entry.kind,
                payload.len()
            ))
        })?;
        offset += padded(bytes);
        arrays.push(Array { entry, data });
    }
    if offset != payload.len() {
        return Err(WireError::malformed(format!(
            "the arrays take {offset} bytes, the payload has {}",
            payload.len()
        )));
    }
    Ok(arrays)
}
