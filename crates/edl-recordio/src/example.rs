//! Columns of numbers and bytes to `tf.train.Example` messages.
//!
//! The message is `Example { features: Features { map<string, Feature> } }`, where a `Feature` is
//! one of `bytes_list`, `float_list` and `int64_list`
//! (`tensorflow/core/example/{example,feature}.proto`). Numbers are packed.

use crate::RecordError;

const EXAMPLE_FEATURES: u8 = 0x0a; // field 1, length-delimited, in each of the next four
const FEATURES_ENTRY: u8 = 0x0a;
const ENTRY_KEY: u8 = 0x0a;
const LIST_VALUE: u8 = 0x0a;
const ENTRY_VALUE: u8 = 0x12;
const FEATURE_BYTES: u8 = 0x0a;
const FEATURE_FLOAT: u8 = 0x12;
const FEATURE_INT64: u8 = 0x1a;

/// The values of one column, all records' one after the other.
#[derive(Clone, Copy, Debug)]
pub enum Values<'a> {
    /// Whole numbers.
    Int64(&'a [i64]),
    /// Real numbers.
    Float(&'a [f32]),
    /// Strings of bytes: value `i` is `data[offsets[i]..offsets[i + 1]]`.
    Bytes {
        /// All of them together.
        data: &'a [u8],
        /// The begin of each value, and the end of the last.
        offsets: &'a [i64],
    },
}

impl Values<'_> {
    fn len(&self) -> usize {
        match self {
            Values::Int64(values) => values.len(),
            Values::Float(values) => values.len(),
            Values::Bytes { offsets, .. } => offsets.len().saturating_sub(1),
        }
    }
}

/// One column. A record without a value lacks the feature.
#[derive(Clone, Copy, Debug)]
pub struct Feature<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its values.
    pub values: Values<'a>,
    /// Record `i` has the values `row_splits[i]..row_splits[i + 1]`.
    pub row_splits: &'a [i64],
}

/// Encodes one message for each record: all bytes, and where each message ends.
///
/// Features come in the order given, so equal columns give equal bytes.
///
/// # Errors
///
/// [`RecordError::Column`] where splits or offsets do not fit the values.
pub fn encode_examples(
    features: &[Feature<'_>],
    num_records: usize,
) -> Result<(Vec<u8>, Vec<usize>), RecordError> {
    for feature in features {
        feature
            .check(num_records)
            .map_err(|what| RecordError::Column {
                column: feature.name.to_owned(),
                what,
            })?;
    }
    let mut out = Vec::new();
    let mut ends = Vec::with_capacity(num_records);
    let mut sizes = vec![Sizes::default(); features.len()];
    for record in 0..num_records {
        let mut total = 0;
        for (feature, sizes) in features.iter().zip(&mut sizes) {
            *sizes = feature.sizes(record);
            if sizes.entry > 0 {
                total += delimited(sizes.entry);
            }
        }
        out.push(EXAMPLE_FEATURES);
        put_varint(&mut out, total as u64);
        for (feature, sizes) in features.iter().zip(&sizes) {
            if sizes.entry > 0 {
                feature.encode(record, *sizes, &mut out);
            }
        }
        ends.push(out.len());
    }
    Ok((out, ends))
}

/// Sizes of the nested messages of one feature of one record; `entry` is 0 if it has no value.
#[derive(Clone, Copy, Debug, Default)]
struct Sizes {
    packed: usize, // the numbers themselves
    list: usize,
    feature: usize,
    entry: usize,
}

impl Feature<'_> {
    fn check(&self, num_records: usize) -> Result<(), String> {
        if self.row_splits.len() != num_records + 1 {
            return Err(format!(
                "it has {} records, expected {num_records}",
                self.row_splits.len().saturating_sub(1)
            ));
        }
        check_offsets(self.row_splits, self.values.len(), "row splits")?;
        match self.values {
            Values::Bytes { data, offsets } => check_offsets(offsets, data.len(), "offsets"),
            Values::Int64(_) | Values::Float(_) => Ok(()),
        }
    }

    fn range(&self, record: usize) -> std::ops::Range<usize> {
        self.row_splits[record] as usize..self.row_splits[record + 1] as usize
    }

    fn sizes(&self, record: usize) -> Sizes {
        let range = self.range(record);
        if range.is_empty() {
            return Sizes::default();
        }
        let (packed, list) = match self.values {
            Values::Int64(values) => {
                let packed = values[range]
                    .iter()
                    .map(|&v| varint_size(v as u64))
                    .sum::<usize>();
                (packed, delimited(packed))
            }
            Values::Float(_) => (4 * range.len(), delimited(4 * range.len())),
            Values::Bytes { offsets, .. } => {
                let list = offsets[range.start..=range.end]
                    .windows(2)
                    .map(|ends| delimited((ends[1] - ends[0]) as usize))
                    .sum();
                (0, list)
            }
        };
        let feature = delimited(list);
        Sizes {
            packed,
            list,
            feature,
            entry: delimited(self.name.len()) + delimited(feature),
        }
    }

    fn encode(&self, record: usize, sizes: Sizes, out: &mut Vec<u8>) {
        put_tag(out, FEATURES_ENTRY, sizes.entry);
        put_tag(out, ENTRY_KEY, self.name.len());
        out.extend_from_slice(self.name.as_bytes());
        put_tag(out, ENTRY_VALUE, sizes.feature);
        let range = self.range(record);
        match self.values {
            Values::Int64(values) => {
                put_tag(out, FEATURE_INT64, sizes.list);
                put_tag(out, LIST_VALUE, sizes.packed);
                for &value in &values[range] {
                    put_varint(out, value as u64);
                }
            }
            Values::Float(values) => {
                put_tag(out, FEATURE_FLOAT, sizes.list);
                put_tag(out, LIST_VALUE, sizes.packed);
                for value in &values[range] {
                    out.extend_from_slice(&value.to_le_bytes());
                }
            }
            Values::Bytes { data, offsets } => {
                put_tag(out, FEATURE_BYTES, sizes.list);
                for ends in offsets[range.start..=range.end].windows(2) {
                    let value = &data[ends[0] as usize..ends[1] as usize];
                    put_tag(out, LIST_VALUE, value.len());
                    out.extend_from_slice(value);
                }
            }
        }
    }
}

fn check_offsets(offsets: &[i64], end: usize, what: &str) -> Result<(), String> {
    let in_order = offsets.is_sorted() && offsets.first().is_none_or(|&first| first >= 0);
    let fits = offsets.last().is_none_or(|&last| last as u64 <= end as u64);
    if in_order && fits {
        Ok(())
    } else {
        Err(format!("its {what} must not descend, nor pass {end}"))
    }
}

fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Size of a length-delimited field whose tag is one byte.
fn delimited(length: usize) -> usize {
    1 + varint_size(length as u64) + length
}

fn put_tag(out: &mut Vec<u8>, tag: u8, length: usize) {
    out.push(tag);
    put_varint(out, length as u64);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
