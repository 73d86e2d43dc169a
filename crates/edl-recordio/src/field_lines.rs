//! Converts lines of typed fields, such as Criteo's, to `tf.train.Example` messages in one pass.
//!
//! Only correct text is converted: a text with one line that is no record is refused as a whole.
//! The caller then uses a parser that names the problem and the line.

use std::io;
use std::ops::Range;

use crate::blocks::{Blocks, WriterOptions};
use crate::example::{EXAMPLE_FEATURES, header_of, varint_size};

const CATEGORY_BYTES: usize = 8;
const INTEGER_DIGITS: usize = 18;
const VARINT_BYTES: usize = 10;
/// Headers are copied whole, so that the compiler knows how much it copies.
const HEADER_BYTES: usize = 32;
const MAX_NAME_BYTES: usize = HEADER_BYTES - 12;
/// The most that one field adds to a message.
const MOST_BYTES: usize = HEADER_BYTES + 16;
/// So much of the memory for messages is cleared at once, which is in the cache then.
const ROOM_BYTES: usize = 64 << 10;
const IS_HEXADECIMAL: [bool; 256] = {
    let mut is = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        is[byte] = (byte as u8).is_ascii_hexdigit();
        byte += 1;
    }
    is
};

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// 0 or 1.
    Label,
    /// A whole number of at most 18 digits, or nothing.
    Integer,
    /// 8 hexadecimal digits, or nothing.
    Category,
    /// Anything; it is not converted.
    LeftOut,
}

/// Makes messages of lines whose fields are known.
#[derive(Debug)]
pub struct LineEncoder {
    delimiter: u8,
    fields: Vec<Field>,
    by_name: Vec<usize>, // fields that are converted: features are in the order of their names
}

#[derive(Debug)]
struct Field {
    kind: FieldKind,
    // The headers before a value: for a number of n bytes at n - 1, for a category at 0.
    headers: Vec<Header>,
}

#[derive(Clone, Copy, Debug)]
struct Header {
    bytes: [u8; HEADER_BYTES],
    len: usize,
    is_number: bool,
}

/// A field of a line: `num_bytes` is 0 if it is empty.
#[derive(Clone, Copy, Debug, Default)]
struct Value {
    bits: u64, // the number, or the digits of the category
    num_bytes: usize,
}

/// Messages that lie one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Examples {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl LineEncoder {
    /// Describes the lines: a name and a kind of each field, in their order.
    ///
    /// `None` where fields could not be told apart: the delimiter may not be part of a value, and
    /// names have at most 20 bytes.
    #[must_use]
    pub fn new(fields: &[(String, FieldKind)], delimiter: u8) -> Option<LineEncoder> {
        let is_value = delimiter.is_ascii_hexdigit() || b"-\r\n".contains(&delimiter);
        let too_long = fields.iter().any(|(name, _)| name.len() > MAX_NAME_BYTES);
        if is_value || too_long || fields.is_empty() {
            return None;
        }
        let mut by_name: Vec<usize> = (0..fields.len())
            .filter(|&number| fields[number].1 != FieldKind::LeftOut)
            .collect();
        by_name.sort_by_key(|&number| &fields[number].0);
        Some(LineEncoder {
            delimiter,
            fields: fields
                .iter()
                .map(|(name, kind)| Field::new(name, *kind))
                .collect(),
            by_name,
        })
    }

    /// Makes a message of each line; returns the messages of the lines that are not chosen, and of
    /// those that are.
    ///
    /// `None`: a line is no record, or `is_chosen` has another number of lines.
    #[must_use]
    pub fn encode(&self, text: &[u8], is_chosen: &[bool]) -> Option<[Examples; 2]> {
        let mut out = [Examples::default(), Examples::default()];
        let mut values = vec![Value::default(); self.fields.len()];
        let (mut at, mut line) = (0, 0);
        while at < text.len() {
            at = self.parse(text, at, &mut values)?;
            self.put(&values, &mut out[usize::from(*is_chosen.get(line)?)]);
            line += 1;
        }
        (line == is_chosen.len()).then(|| out.map(Examples::finish))
    }

    /// Parses the line that begins at `at`; returns where the next one begins.
    fn parse(&self, text: &[u8], mut at: usize, values: &mut [Value]) -> Option<usize> {
        let last = self.fields.len() - 1;
        for (number, (field, value)) in self.fields.iter().zip(values).enumerate() {
            (*value, at) = match field.kind {
                FieldKind::Label => label(text, at)?,
                FieldKind::Integer => integer(text, at)?,
                FieldKind::Category => category(text, at),
                FieldKind::LeftOut => (Value::default(), self.end_of_field(text, at)),
            };
            if number < last {
                if text.get(at) != Some(&self.delimiter) {
                    return None;
                }
                at += 1;
            }
        }
        match (text.get(at), text.get(at + 1)) {
            (None, _) => Some(at),
            (Some(b'\n'), _) => Some(at + 1),
            (Some(b'\r'), Some(b'\n')) => Some(at + 2),
            _ => None,
        }
    }

    fn end_of_field(&self, text: &[u8], at: usize) -> usize {
        let ends = |&byte: &u8| byte == self.delimiter || byte == b'\n' || byte == b'\r';
        let rest = &text[at..];
        at + rest.iter().position(ends).unwrap_or(rest.len())
    }

    fn put(&self, values: &[Value], out: &mut Examples) {
        let present = || {
            self.by_name.iter().filter_map(|&number| {
                let value = values[number];
                let header = self.fields[number].header(value)?;
                Some((header, value))
            })
        };
        let size = present()
            .map(|(header, value)| header.len + value.num_bytes)
            .sum::<usize>();
        let mut at = out.ends.last().copied().unwrap_or(0);
        let most = at + 1 + VARINT_BYTES + self.by_name.len() * MOST_BYTES;
        if out.bytes.len() < most {
            out.bytes.resize(most + ROOM_BYTES, 0);
        }
        out.bytes[at] = EXAMPLE_FEATURES;
        at = put_number(&mut out.bytes, at + 1, size as u64);
        for (header, value) in present() {
            out.bytes[at..at + HEADER_BYTES].copy_from_slice(&header.bytes);
            at += header.len;
            if header.is_number {
                at = put_number(&mut out.bytes, at, value.bits);
            } else {
                let end = at + CATEGORY_BYTES;
                out.bytes[at..end].copy_from_slice(&value.bits.to_le_bytes());
                at = end;
            }
        }
        out.ends.push(at);
    }
}

impl Field {
    fn new(name: &str, kind: FieldKind) -> Field {
        let sizes = match kind {
            FieldKind::Label | FieldKind::Integer => 1..VARINT_BYTES + 1,
            FieldKind::Category => CATEGORY_BYTES..CATEGORY_BYTES + 1,
            FieldKind::LeftOut => 0..0,
        };
        let is_number = kind != FieldKind::Category;
        let headers = sizes
            .map(|num_bytes| {
                let header = header_of(name, is_number, num_bytes);
                let mut bytes = [0; HEADER_BYTES];
                bytes[..header.len()].copy_from_slice(&header);
                Header {
                    bytes,
                    len: header.len(),
                    is_number,
                }
            })
            .collect();
        Field { kind, headers }
    }

    /// Returns the header before the value, if there is a value.
    fn header(&self, value: Value) -> Option<&Header> {
        let number = value.num_bytes.checked_sub(1)?;
        match self.kind {
            FieldKind::Category => self.headers.first(),
            FieldKind::Label | FieldKind::Integer | FieldKind::LeftOut => self.headers.get(number),
        }
    }
}

impl Value {
    fn number(number: i64) -> Value {
        Value {
            bits: number as u64,
            num_bytes: varint_size(number as u64),
        }
    }
}

fn label(text: &[u8], at: usize) -> Option<(Value, usize)> {
    match text.get(at) {
        Some(b'0') => Some((Value::number(0), at + 1)),
        Some(b'1') => Some((Value::number(1), at + 1)),
        _ => None,
    }
}

fn integer(text: &[u8], at: usize) -> Option<(Value, usize)> {
    let is_negative = text.get(at) == Some(&b'-');
    let start = at + usize::from(is_negative);
    let (mut end, mut number) = (start, 0_i64);
    while let Some(byte) = text.get(end).filter(|byte| byte.is_ascii_digit()) {
        if end - start == INTEGER_DIGITS {
            return None;
        }
        number = 10 * number + i64::from(byte - b'0');
        end += 1;
    }
    match (end - start, is_negative) {
        (0, true) => None,
        (0, false) => Some((Value::default(), at)),
        (_, true) => Some((Value::number(-number), end)),
        (_, false) => Some((Value::number(number), end)),
    }
}

/// Anything else than a category is left where it is: no delimiter is found there then.
fn category(text: &[u8], at: usize) -> (Value, usize) {
    let digits = text.get(at..).and_then(<[u8]>::first_chunk);
    match digits {
        Some(digits) if is_hexadecimal(digits) => {
            let value = Value {
                bits: u64::from_le_bytes(*digits),
                num_bytes: CATEGORY_BYTES,
            };
            (value, at + CATEGORY_BYTES)
        }
        _ => (Value::default(), at),
    }
}

fn is_hexadecimal(digits: &[u8; CATEGORY_BYTES]) -> bool {
    digits
        .iter()
        .fold(true, |all, &byte| all & IS_HEXADECIMAL[usize::from(byte)])
}

/// Writes a varint; returns where it ends.
fn put_number(out: &mut [u8], mut at: usize, mut value: u64) -> usize {
    while value >= 0x80 {
        out[at] = value as u8 | 0x80;
        value >>= 7;
        at += 1;
    }
    out[at] = value as u8;
    at + 1
}

impl Examples {
    fn finish(mut self) -> Examples {
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self
    }

    /// How many messages there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The messages of these numbers; all of them must be there.
    pub fn iter(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        range.map(|number| &self.bytes[self.start(number)..self.ends[number]])
    }

    /// Packs the messages of these numbers, all of which must be there, as [`Blocks::pack`] does.
    ///
    /// # Errors
    ///
    /// As [`Blocks::pack`].
    pub fn pack(&self, range: Range<usize>, options: WriterOptions) -> io::Result<Blocks> {
        let start = self.start(range.start);
        let ends: Vec<usize> = self.ends[range].iter().map(|end| end - start).collect();
        let end = ends.last().copied().unwrap_or(0);
        Blocks::pack(&self.bytes[start..start + end], &ends, options)
    }

    fn start(&self, number: usize) -> usize {
        number.checked_sub(1).map_or(0, |before| self.ends[before])
    }
}
