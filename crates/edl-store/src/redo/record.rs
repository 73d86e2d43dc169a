//! One change of a store, as bytes: little-endian words of 8 bytes, arrays with their length before
//! them and zeros up to the next word.

use std::borrow::Cow;

use crate::error::StoreError;
use crate::gradient::{RoundMember, TableGrads};

/// A change of a store, to be noted or as it was noted.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    /// A segment begins: it goes on from a store of this version.
    Segment { version: u64 },
    /// A lease has begun: older ones of its task are over.
    Begin { task: u64, lease: u32 },
    /// A minibatch was left out.
    Skip { task: u64, lease: u32, index: u32 },
    /// The gradient of minibatches, each of another task, applied as one update.
    Update {
        members: Cow<'a, [RoundMember]>,
        tables: Cow<'a, [TableGrads<'a>]>,
        dense: &'a [f32],
        state: &'a [f32],
        weight: f32,
        learning_rate: f32,
    },
    /// The model was declared.
    Declare {
        model: &'a str,
        dense: &'a [f32],
        state: &'a [f32],
    },
    /// Rows came that a table begins with.
    Give {
        table: &'a str,
        dim: usize,
        keys: &'a [u64],
        rows: &'a [f32],
    },
    /// Keys were named.
    Name {
        table: u32,
        keys: &'a [u64],
        names: Cow<'a, [&'a str]>,
    },
}

const BEGIN: u64 = 1;
const SKIP: u64 = 2;
const UPDATE: u64 = 3;
const DECLARE: u64 = 4;
const GIVE: u64 = 5;
const NAME: u64 = 6;
const SEGMENT: u64 = 7;

const WORD: usize = 8;

/// The bytes of a change, without a copy of its arrays: words of our own with arrays in between.
#[derive(Default)]
pub(crate) struct Encoded<'a> {
    words: Vec<u64>,
    /// An array, and how many of the words come before it.
    arrays: Vec<(usize, &'a [u8])>,
}

/// The filling of an array up to the next word.
const ZEROS: [u8; WORD] = [0; WORD];

impl<'a> Encoded<'a> {
    /// Encode a change.
    pub(crate) fn of(change: &'a Change<'_>) -> Self {
        let mut out = Self::default();
        match change {
            &Change::Segment { version } => out.words(&[SEGMENT, version]),
            &Change::Begin { task, lease } => out.words(&[BEGIN, task, lease.into()]),
            &Change::Skip { task, lease, index } => {
                out.words(&[SKIP, task, lease.into(), index.into()]);
            }
            Change::Update {
                members,
                tables,
                dense,
                state,
                weight,
                learning_rate,
            } => {
                out.words(&[UPDATE, members.len() as u64]);
                for member in members.iter() {
                    out.member(member);
                }
                out.words(&[
                    weight.to_bits().into(),
                    learning_rate.to_bits().into(),
                    tables.len() as u64,
                ]);
                for grads in tables.iter() {
                    out.words(&[grads.table.into()]);
                    out.array(grads.keys);
                    out.array(grads.grads);
                }
                out.array(dense);
                out.array(state);
            }
            Change::Declare {
                model,
                dense,
                state,
            } => {
                out.words(&[DECLARE]);
                out.array(model.as_bytes());
                out.array(dense);
                out.array(state);
            }
            Change::Give {
                table,
                dim,
                keys,
                rows,
            } => {
                out.words(&[GIVE, *dim as u64]);
                out.array(table.as_bytes());
                out.array(keys);
                out.array(rows);
            }
            Change::Name { table, keys, names } => {
                out.words(&[NAME, (*table).into()]);
                out.array(keys);
                for name in names.iter() {
                    out.array(name.as_bytes());
                }
            }
        }
        out
    }

    /// Return the bytes in their order, in pieces.
    pub(crate) fn pieces(&self) -> Vec<&[u8]> {
        let mut pieces = Vec::with_capacity(3 * self.arrays.len() + 1);
        let mut first = 0;
        for &(end, array) in &self.arrays {
            pieces.push(bytemuck::cast_slice(&self.words[first..end]));
            pieces.push(array);
            pieces.push(&ZEROS[..array.len().next_multiple_of(WORD) - array.len()]);
            first = end;
        }
        pieces.push(bytemuck::cast_slice(&self.words[first..]));
        pieces.retain(|piece| !piece.is_empty());
        pieces
    }

    fn member(&mut self, member: &RoundMember) {
        self.words(&[
            member.task,
            member.lease.into(),
            member.index.into(),
            member.num_minibatches.into(),
            member.num_records.into(),
        ]);
    }

    fn words(&mut self, words: &[u64]) {
        self.words.extend_from_slice(words);
    }

    fn array<T: bytemuck::NoUninit>(&mut self, values: &'a [T]) {
        self.words.push(values.len() as u64);
        self.arrays
            .push((self.words.len(), bytemuck::cast_slice(values)));
    }
}

/// Read the bytes of [`Encoded`].
///
/// # Errors
/// What is wrong with it; bytes of a checked record that are none were written by another version.
pub(crate) fn decode(bytes: &[u8]) -> Result<Change<'_>, StoreError> {
    let mut from = Reader(bytes);
    let noted = match from.word()? {
        SEGMENT => Change::Segment {
            version: from.word()?,
        },
        BEGIN => Change::Begin {
            task: from.word()?,
            lease: from.small()?,
        },
        SKIP => Change::Skip {
            task: from.word()?,
            lease: from.small()?,
            index: from.small()?,
        },
        UPDATE => from.update()?,
        DECLARE => Change::Declare {
            model: from.text()?,
            dense: from.array()?,
            state: from.array()?,
        },
        GIVE => Change::Give {
            dim: from.word()? as usize,
            table: from.text()?,
            keys: from.array()?,
            rows: from.array()?,
        },
        NAME => {
            let table = from.small()?;
            let keys: &[u64] = from.array()?;
            let names = keys.iter().map(|_| from.text());
            let names = names.collect::<Result<Vec<_>, _>>()?.into();
            Change::Name { table, keys, names }
        }
        other => return Err(unreadable(format!("a change of kind {other}"))),
    };
    Ok(noted)
}

/// The rest to be read; it begins at a whole word.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn update(&mut self) -> Result<Change<'a>, StoreError> {
        let num_members = self.word()?;
        let members = (0..num_members).map(|_| self.member());
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let (weight, learning_rate) = (self.float()?, self.float()?);
        let num_tables = self.word()?;
        let tables = (0..num_tables).map(|_| self.grads());
        let tables = tables.collect::<Result<Vec<_>, _>>()?;
        Ok(Change::Update {
            members: members.into(),
            tables: tables.into(),
            dense: self.array()?,
            state: self.array()?,
            weight,
            learning_rate,
        })
    }

    fn member(&mut self) -> Result<RoundMember, StoreError> {
        Ok(RoundMember {
            task: self.word()?,
            lease: self.small()?,
            index: self.small()?,
            num_minibatches: self.small()?,
            num_records: self.small()?,
            pulled_version: 0,
        })
    }

    fn grads(&mut self) -> Result<TableGrads<'a>, StoreError> {
        Ok(TableGrads {
            table: self.small()?,
            keys: self.array()?,
            grads: self.array()?,
        })
    }

    fn word(&mut self) -> Result<u64, StoreError> {
        let (word, rest) = self.0.split_first_chunk().ok_or_else(short)?;
        self.0 = rest;
        Ok(u64::from_le_bytes(*word))
    }

    fn small(&mut self) -> Result<u32, StoreError> {
        let word = self.word()?;
        u32::try_from(word).map_err(|_| unreadable(format!("{word} where 32 bits were expected")))
    }

    fn float(&mut self) -> Result<f32, StoreError> {
        self.small().map(f32::from_bits)
    }

    fn array<T: bytemuck::AnyBitPattern>(&mut self) -> Result<&'a [T], StoreError> {
        let len = usize::try_from(self.word()?).map_err(|_| short())?;
        let num_bytes = len.checked_mul(size_of::<T>()).ok_or_else(short)?;
        let padded = num_bytes.checked_next_multiple_of(WORD).ok_or_else(short)?;
        let (array, rest) = self.0.split_at_checked(padded).ok_or_else(short)?;
        self.0 = rest;
        bytemuck::try_cast_slice(&array[..num_bytes])
            .map_err(|error| unreadable(format!("an array: {error}")))
    }

    fn text(&mut self) -> Result<&'a str, StoreError> {
        std::str::from_utf8(self.array()?).map_err(|error| unreadable(format!("a text: {error}")))
    }
}

fn short() -> StoreError {
    unreadable("a change that ends too early".to_owned())
}

fn unreadable(found: String) -> StoreError {
    StoreError::BadModel(format!(
        "a redo log has {found}; was it written by this version of elasticdl?"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aligned(bytes: &[u8]) -> Vec<u64> {
        let mut words = vec![0; bytes.len() / WORD];
        bytemuck::cast_slice_mut(&mut words).copy_from_slice(bytes);
        words
    }

    #[test]
    fn each_kind_of_change_comes_back_and_its_beginning_is_refused() {
        let members = [RoundMember {
            task: 1 << 40,
            lease: 2,
            index: 3,
            num_minibatches: 4,
            num_records: 5,
            pulled_version: 0,
        }];
        let tables = [TableGrads {
            table: 7,
            keys: &[u64::MAX],
            grads: &[1.0, -0.0, f32::NAN],
        }];
        let changes = [
            Change::Segment { version: 11 },
            Change::Begin { task: 9, lease: 8 },
            Change::Skip {
                task: 9,
                lease: 8,
                index: 7,
            },
            Change::Update {
                members: members[..].into(),
                tables: tables[..].into(),
                dense: &[0.5],
                state: &[],
                weight: 1.5,
                learning_rate: 0.25,
            },
            Change::Declare {
                model: "{}",
                dense: &[1.0, 2.0, 3.0],
                state: &[4.0],
            },
            Change::Give {
                table: "t",
                dim: 2,
                keys: &[1],
                rows: &[1.0, 2.0],
            },
            Change::Name {
                table: 0,
                keys: &[5, 6],
                names: ["a", "ü"][..].into(),
            },
        ];
        for change in changes {
            let bytes = Encoded::of(&change).pieces().concat();
            let words = aligned(&bytes);
            let read = decode(bytemuck::cast_slice(&words)).unwrap();
            // NaN differs from itself, so what is shown is compared.
            let shown = format!("{read:?}");
            assert_eq!(shown, format!("{change:?}"));
            match change {
                Change::Update { .. } => {
                    let grads = "keys: [18446744073709551615], grads: [1.0, -0.0, NaN]";
                    assert!(shown.contains(&format!("table: 7, {grads}")));
                    assert!(shown.contains("weight: 1.5, learning_rate: 0.25"));
                }
                Change::Name { .. } => assert!(shown.contains(r#"["a", "ü"]"#)),
                Change::Declare { .. } => assert!(shown.contains("[1.0, 2.0, 3.0]")),
                Change::Give { .. } => assert!(shown.contains("[1.0, 2.0]")),
                Change::Segment { .. } => assert_eq!(shown, "Segment { version: 11 }"),
                Change::Begin { .. } => assert_eq!(shown, "Begin { task: 9, lease: 8 }"),
                Change::Skip { .. } => assert!(shown.contains("index: 7")),
            }
            for end in (0..bytes.len()).step_by(WORD) {
                assert!(
                    decode(&bytemuck::cast_slice(&words)[..end]).is_err(),
                    "{end}"
                );
            }
        }
    }
}
