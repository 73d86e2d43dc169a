//! `tf.train.Example` messages of which each has the same features, to columns of numbers.
//!
//! The message is as `example` writes it; numbers may also be unpacked, and other fields and
//! features are passed over.

use crate::RecordError;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED32: u64 = 5;
const EXAMPLE_FEATURES: u64 = 1;
const FEATURES_ENTRY: u64 = 1;
const ENTRY_KEY: u64 = 1;
const ENTRY_VALUE: u64 = 2;
const FEATURE_FLOAT: u64 = 2;
const FEATURE_INT64: u64 = 3;
const LIST_VALUE: u64 = 1;

/// The numbers of one feature of all records, one record's after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Whole numbers.
    Int64(Vec<i64>),
    /// Real numbers.
    Float(Vec<f32>),
}

/// A feature that each record has.
#[derive(Clone, Copy, Debug)]
pub struct Fixed<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether its numbers are real.
    pub is_float: bool,
    /// How many there are in a record.
    pub width: usize,
}

/// Decodes some features of all records.
///
/// # Errors
///
/// [`RecordError::Example`] where a record is no such message, lacks a feature, or has another
/// number or kind of values.
pub fn decode_examples(
    records: &[&[u8]],
    features: &[Fixed<'_>],
) -> Result<Vec<Numbers>, RecordError> {
    let mut columns: Vec<Numbers> = features
        .iter()
        .map(|feature| {
            let len = feature.width.saturating_mul(records.len());
            if feature.is_float {
                Numbers::Float(Vec::with_capacity(len))
            } else {
                Numbers::Int64(Vec::with_capacity(len))
            }
        })
        .collect();
    let mut found: Vec<Option<&[u8]>> = vec![None; features.len()];
    for (number, record) in records.iter().enumerate() {
        found.fill(None);
        decode(record, features, &mut found, &mut columns).map_err(|what| {
            RecordError::Example {
                record: number,
                num_records: records.len(),
                what,
            }
        })?;
    }
    Ok(columns)
}

/// Decodes one record; `found` is room for where its features are.
fn decode<'r>(
    record: &'r [u8],
    features: &[Fixed<'_>],
    found: &mut [Option<&'r [u8]>],
    columns: &mut [Numbers],
) -> Result<(), String> {
    find(record, features, found).ok_or("no tf.train.Example")?;
    for ((feature, at), column) in features.iter().zip(found).zip(columns) {
        let name = feature.name;
        let value = at.ok_or_else(|| format!("it has no feature {name:?}"))?;
        let before = column.len();
        column
            .take(value)
            .ok_or_else(|| format!("feature {name:?} has no list of {}", column.kind()))?;
        let count = column.len() - before;
        if count != feature.width {
            let expected = feature.width;
            return Err(format!(
                "feature {name:?} has {count} numbers of {}, expected {expected}",
                column.kind()
            ));
        }
    }
    Ok(())
}

/// Finds the `Feature` message of each feature; `None` if the record is damaged.
fn find<'r>(
    record: &'r [u8],
    features: &[Fixed<'_>],
    found: &mut [Option<&'r [u8]>],
) -> Option<()> {
    let mut next = 0; // features mostly come in one order
    for_each(record, EXAMPLE_FEATURES, |message| {
        for_each(message, FEATURES_ENTRY, |entry| {
            let (mut key, mut value) = (&[][..], &[][..]);
            for_each(entry, ENTRY_KEY, |bytes| {
                key = bytes;
                Some(())
            })?;
            for_each(entry, ENTRY_VALUE, |bytes| {
                value = bytes;
                Some(())
            })?;
            let is_it = |place: &usize| features[*place].name.as_bytes() == key;
            let places = (next..features.len()).chain(0..next);
            if let Some(place) = places.into_iter().find(is_it) {
                found[place] = Some(value);
                next = place + 1;
            }
            Some(())
        })
    })
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Numbers::Int64(values) => values.len(),
            Numbers::Float(values) => values.len(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Numbers::Int64(_) => "int64",
            Numbers::Float(_) => "float32",
        }
    }

    /// Append the values of a `Feature` message; `None` if it is damaged.
    fn take(&mut self, feature: &[u8]) -> Option<()> {
        match self {
            Numbers::Int64(values) => for_each(feature, FEATURE_INT64, |list| {
                let mut fields = Fields(list);
                while let Some((field, wire)) = fields.tag()? {
                    match (field, wire) {
                        (LIST_VALUE, VARINT) => values.push(fields.varint()?.cast_signed()),
                        (LIST_VALUE, DELIMITED) => {
                            let mut packed = Fields(fields.delimited()?);
                            while !packed.0.is_empty() {
                                values.push(packed.varint()?.cast_signed());
                            }
                        }
                        _ => fields.skip(wire)?,
                    }
                }
                Some(())
            }),
            Numbers::Float(values) => for_each(feature, FEATURE_FLOAT, |list| {
                let mut fields = Fields(list);
                while let Some((field, wire)) = fields.tag()? {
                    match (field, wire) {
                        (LIST_VALUE, FIXED32) => {
                            values.push(f32::from_le_bytes(*fields.fixed::<4>()?));
                        }
                        (LIST_VALUE, DELIMITED) => {
                            let (packed, rest) = fields.delimited()?.as_chunks::<4>();
                            if !rest.is_empty() {
                                return None;
                            }
                            values.extend(packed.iter().map(|bytes| f32::from_le_bytes(*bytes)));
                        }
                        _ => fields.skip(wire)?,
                    }
                }
                Some(())
            }),
        }
    }
}

/// Calls a function for each delimited field of a number; `None` if the message is damaged.
fn for_each<'r>(
    message: &'r [u8],
    wanted: u64,
    mut call: impl FnMut(&'r [u8]) -> Option<()>,
) -> Option<()> {
    let mut fields = Fields(message);
    while let Some((field, wire)) = fields.tag()? {
        if field == wanted && wire == DELIMITED {
            call(fields.delimited()?)?;
        } else {
            fields.skip(wire)?;
        }
    }
    Some(())
}

/// What is left of a message. Its methods give `None` where it is damaged.
struct Fields<'r>(&'r [u8]);

impl<'r> Fields<'r> {
    /// The number and wire type of the next field; an inner `None` at the end.
    #[expect(
        clippy::option_option,
        reason = "damaged, at the end, and a field are three cases"
    )]
    fn tag(&mut self) -> Option<Option<(u64, u64)>> {
        if self.0.is_empty() {
            return Some(None);
        }
        let tag = self.varint()?;
        Some(Some((tag >> 3, tag & 7)))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn delimited(&mut self) -> Option<&'r [u8]> {
        let len = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Option<&'r [u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(bytes)
    }

    fn skip(&mut self, wire: u64) -> Option<()> {
        match wire {
            VARINT => self.varint().map(drop),
            FIXED64 => self.fixed::<8>().map(drop),
            DELIMITED => self.delimited().map(drop),
            FIXED32 => self.fixed::<4>().map(drop),
            _ => None,
        }
    }
}
