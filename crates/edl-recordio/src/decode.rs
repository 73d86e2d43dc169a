//! Decodes `tf.train.Example` messages to columns of numbers and bytes: the reverse of
//! [`crate::encode_examples`].
//!
//! Only common messages are decoded. All others are refused by the number of their record: a
//! feature that a record has twice, a feature without a kind, and unknown fields. A caller then
//! uses TensorFlow's own parser, which decides about them.

use std::collections::HashMap;

use crate::protobuf::{Field, Fields, varint};

/// The kind of a feature's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers.
    Int64,
    /// Real numbers.
    Float,
    /// Strings of bytes.
    Bytes,
}

/// The values of one column, all records' one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoded {
    /// Whole numbers.
    Int64(Vec<i64>),
    /// Real numbers.
    Float(Vec<f32>),
    /// Strings of bytes: value `i` is `data[offsets[i]..offsets[i + 1]]`.
    Bytes {
        /// All of them together.
        data: Vec<u8>,
        /// The begin of each value, and the end of the last.
        offsets: Vec<i64>,
    },
}

/// A feature that is asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// The required kind of its values.
    pub kind: Kind,
    /// How many values each record must have; any number without it.
    pub width: Option<usize>,
    /// The values of a record that lacks it; without it, it must be there if `width` is given.
    pub fill: Option<Decoded>,
}

/// A column of all records.
#[derive(Clone, Debug, PartialEq)]
pub struct DecodedColumn {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Decoded,
    /// Record `i` has the values `row_splits[i]..row_splits[i + 1]`.
    pub row_splits: Vec<i64>,
}

/// A record that is not decoded here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record {record}: {what}")]
pub struct Undecoded {
    /// Its number among those given.
    pub record: usize,
    /// Why.
    pub what: String,
}

/// Decodes the features that are wanted, in their order, or all features in the order in which
/// they are found.
///
/// # Errors
///
/// [`Undecoded`] for the first record that is no plain message, or whose values are not those that
/// are wanted.
pub fn decode_examples<'a>(
    records: impl IntoIterator<Item = &'a [u8]>,
    wanted: Option<&[Wanted]>,
) -> Result<Vec<DecodedColumn>, Undecoded> {
    let mut columns = Columns::new(wanted);
    for (record, bytes) in records.into_iter().enumerate() {
        columns
            .add(record, bytes)
            .map_err(|what| Undecoded { record, what })?;
    }
    Ok(columns.columns)
}

struct Columns<'w> {
    columns: Vec<DecodedColumn>,
    wanted: Option<&'w [Wanted]>,
    by_name: HashMap<Vec<u8>, usize>,
    seen: Vec<usize>, // by column: 1 + the last record that has it
}

impl<'w> Columns<'w> {
    fn new(wanted: Option<&'w [Wanted]>) -> Self {
        let mut columns = Columns {
            columns: Vec::new(),
            wanted,
            by_name: HashMap::new(),
            seen: Vec::new(),
        };
        for feature in wanted.unwrap_or_default() {
            columns.push(&feature.name, feature.kind, 0);
        }
        columns
    }

    fn push(&mut self, name: &str, kind: Kind, num_records: usize) -> usize {
        let number = self.columns.len();
        self.columns.push(DecodedColumn {
            name: name.to_owned(),
            values: Decoded::empty(kind),
            row_splits: vec![0; num_records + 1],
        });
        self.by_name.insert(name.as_bytes().to_vec(), number);
        self.seen.push(0);
        number
    }

    fn add(&mut self, record: usize, bytes: &[u8]) -> Result<(), String> {
        // Records mostly have the same features in the same order.
        let mut expected = 0;
        let mut example = Fields(bytes);
        while let Some((tag, features)) = example.next()? {
            let Field::Delimited(features) = features else {
                return Err(format!("field {tag} of the Example is no message"));
            };
            if tag != 1 {
                return Err(format!("the Example has a field {tag}"));
            }
            let mut features = Fields(features);
            while let Some((tag, entry)) = features.next()? {
                match entry {
                    Field::Delimited(entry) if tag == 1 => {
                        self.entry(record, entry, &mut expected)?;
                    }
                    _ => return Err(format!("the Features have a field {tag}")),
                }
            }
        }
        self.finish(record)
    }

    fn entry(&mut self, record: usize, entry: &[u8], expected: &mut usize) -> Result<(), String> {
        let (key, value) = entry_of(entry)?;
        let number = match self.columns.get(*expected) {
            Some(column) if column.name.as_bytes() == key => *expected,
            _ => match self.by_name.get(key) {
                Some(&number) => number,
                None if self.wanted.is_some() => return Ok(()),
                None => {
                    let name = std::str::from_utf8(key)
                        .map_err(|_| "the name of a feature is no UTF-8".to_owned())?;
                    let Some(kind) = kind_of(value)? else {
                        return Ok(()); // without values of any kind
                    };
                    self.push(name, kind, record)
                }
            },
        };
        *expected = number + 1;
        let name = || String::from_utf8_lossy(key).into_owned();
        if std::mem::replace(&mut self.seen[number], record + 1) == record + 1 {
            return Err(format!("feature {:?} is there twice", name()));
        }
        self.columns[number]
            .values
            .read(value)
            .map_err(|what| format!("feature {:?}: {what}", name()))
    }

    /// Ends a record: checks how many values each column got, and fills in what it lacks.
    fn finish(&mut self, record: usize) -> Result<(), String> {
        for (number, column) in self.columns.iter_mut().enumerate() {
            let before = *column.row_splits.last().unwrap_or(&0);
            if let Some(wanted) = self.wanted.map(|wanted| &wanted[number]) {
                if self.seen[number] != record + 1 {
                    match &wanted.fill {
                        Some(fill) => column.values.extend(fill),
                        None if wanted.width.is_some() => {
                            return Err(format!("feature {:?} is missing", column.name));
                        }
                        None => {}
                    }
                }
                let found = column.values.len() - before as usize;
                if let Some(width) = wanted.width.filter(|&width| width != found) {
                    return Err(format!(
                        "feature {:?} has {found} values, expected {width}",
                        column.name
                    ));
                }
            }
            column.row_splits.push(column.values.len() as i64);
        }
        Ok(())
    }
}

impl Decoded {
    fn kind(&self) -> Kind {
        match self {
            Decoded::Int64(_) => Kind::Int64,
            Decoded::Float(_) => Kind::Float,
            Decoded::Bytes { .. } => Kind::Bytes,
        }
    }

    fn empty(kind: Kind) -> Decoded {
        match kind {
            Kind::Int64 => Decoded::Int64(Vec::new()),
            Kind::Float => Decoded::Float(Vec::new()),
            Kind::Bytes => Decoded::Bytes {
                data: Vec::new(),
                offsets: vec![0],
            },
        }
    }

    /// How many values there are.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Decoded::Int64(values) => values.len(),
            Decoded::Float(values) => values.len(),
            Decoded::Bytes { offsets, .. } => offsets.len() - 1,
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn extend(&mut self, other: &Decoded) {
        match (self, other) {
            (Decoded::Int64(values), Decoded::Int64(more)) => values.extend_from_slice(more),
            (Decoded::Float(values), Decoded::Float(more)) => values.extend_from_slice(more),
            (
                Decoded::Bytes { data, offsets },
                Decoded::Bytes {
                    data: more,
                    offsets: ends,
                },
            ) => {
                let start = data.len() as i64;
                data.extend_from_slice(more);
                offsets.extend(ends.iter().skip(1).map(|end| start + end));
            }
            _ => unreachable!("a column is filled with values of its kind"),
        }
    }

    /// Reads a Feature message to the end of the values.
    fn read(&mut self, feature: &[u8]) -> Result<(), String> {
        let (found, list) = list_of(feature)?;
        let expected = self.kind();
        if expected != found {
            let (expected, found) = (expected.name(), found.name());
            return Err(format!("expected {expected}, found {found}"));
        }
        let mut values = Fields(list);
        while let Some((tag, value)) = values.next()? {
            if tag != 1 {
                return Err(format!("its list has a field {tag}"));
            }
            self.read_value(value)?;
        }
        Ok(())
    }

    fn read_value(&mut self, value: Field<'_>) -> Result<(), String> {
        match (self, value) {
            (Decoded::Int64(values), Field::Delimited(packed)) => {
                let mut rest = packed;
                while !rest.is_empty() {
                    values.push(varint(&mut rest)? as i64);
                }
            }
            (Decoded::Int64(values), Field::Varint(value)) => values.push(value as i64),
            (Decoded::Float(values), Field::Delimited(packed)) => {
                let (whole, rest) = packed.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err("its packed numbers are cut off".to_owned());
                }
                values.extend(whole.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            (Decoded::Float(values), Field::Fixed32(bytes)) => {
                values.push(f32::from_le_bytes(bytes));
            }
            (Decoded::Bytes { data, offsets }, Field::Delimited(bytes)) => {
                data.extend_from_slice(bytes);
                offsets.push(data.len() as i64);
            }
            _ => return Err("has a value of another type".to_owned()),
        }
        Ok(())
    }
}

/// The key and the value of an entry of the Features.
pub(crate) fn entry_of(entry: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (mut key, mut value) = (None, None);
    let mut fields = Fields(entry);
    while let Some((tag, field)) = fields.next()? {
        match (tag, field) {
            (1, Field::Delimited(bytes)) if key.is_none() => key = Some(bytes),
            (2, Field::Delimited(bytes)) if value.is_none() => value = Some(bytes),
            _ => return Err("an entry of the Features is no key with one value".to_owned()),
        }
    }
    match (key, value) {
        (Some(key), Some(value)) => Ok((key, value)),
        _ => Err("an entry of the Features lacks its key or value".to_owned()),
    }
}

/// The kind of a Feature message that has one, and the list of its values.
pub(crate) fn list_of(feature: &[u8]) -> Result<(Kind, &[u8]), String> {
    let mut fields = Fields(feature);
    let Some((tag, Field::Delimited(list))) = fields.next()? else {
        return Err("has no values of a kind".to_owned());
    };
    let kind = Kind::of(tag)?;
    if !fields.0.is_empty() {
        return Err("has values more than once".to_owned());
    }
    Ok((kind, list))
}

/// The kind of a Feature message, if it has one.
pub(crate) fn kind_of(feature: &[u8]) -> Result<Option<Kind>, String> {
    Fields(feature)
        .next()?
        .map(|(tag, _)| Kind::of(tag))
        .transpose()
}

impl Kind {
    /// The kind of a field of a Feature message.
    fn of(tag: u64) -> Result<Kind, String> {
        match tag {
            1 => Ok(Kind::Bytes),
            2 => Ok(Kind::Float),
            3 => Ok(Kind::Int64),
            _ => Err(format!("a Feature has a field {tag}")),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Bytes => "bytes",
            Kind::Float => "float",
            Kind::Int64 => "int64",
        }
    }
}
