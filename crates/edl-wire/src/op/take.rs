//! Rows, what is remembered beside them, or a part of the vectors: it moves from one replica to
//! another.

use super::{Op, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// The contents that a replica must hold under the next layout.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The layout.
    pub layout: u64,
    /// What is given.
    pub given: Given<'a>,
}

/// Rows, what is remembered beside them, or a part of the vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Given<'a> {
    /// Rows of one table.
    Rows {
        /// The table's number.
        table: u32,
        /// Keys.
        keys: &'a [u64],
        /// The version of each one's last update.
        versions: &'a [u64],
        /// The version of each one's first update, where it is noted.
        births: &'a [u64],
        /// Weights and slots of each.
        rows: &'a [f32],
    },
    /// The facts that a table remembers of keys without a row.
    Remembered {
        /// The table's number.
        table: u32,
        /// The number of the kind.
        kind: u64,
        /// Keys.
        keys: &'a [u64],
        /// The version at which each was seen last.
        versions: &'a [u64],
        /// The end of each key's bytes.
        ends: &'a [u64],
        /// What is remembered.
        bytes: &'a [u8],
    },
    /// A part of the vectors, counted as the replica that is told does.
    Part {
        /// Its first value.
        first: u64,
        /// Behind its last value.
        end: u64,
        /// Values, then slots.
        values: &'a [f32],
    },
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        let frame = Outgoing::new(Op::Take);
        match self.given {
            Given::Rows {
                table,
                keys,
                versions,
                births,
                rows,
            } => frame
                .args([self.layout, u64::from(table), 0, 0])
                .keys(table, keys)
                .keys(table, versions)
                .keys(table, births)
                .dense(rows),
            Given::Remembered {
                table,
                kind,
                keys,
                versions,
                ends,
                bytes,
            } => frame
                .args([self.layout, u64::from(table), kind, 0])
                .keys(table, keys)
                .keys(table, versions)
                .keys(table, ends)
                .bytes(bytes),
            Given::Part { first, end, values } => {
                frame.args([self.layout, 0, first, end]).dense(values)
            }
        }
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let table = operand(header, 1)?;
        let given = match arrays.last().map(|array| array.entry.kind) {
            Some(Kind::Bytes) => {
                let kinds = [Kind::Keys, Kind::Keys, Kind::Keys, Kind::Bytes];
                let [keys, versions, ends, bytes] = exactly(arrays, kinds)?;
                Given::Remembered {
                    table,
                    kind: header.args[2],
                    keys: keys.u64s()?,
                    versions: versions.u64s()?,
                    ends: ends.u64s()?,
                    bytes: bytes.u8s()?,
                }
            }
            _ if arrays.len() == 1 => {
                let [values] = exactly(arrays, [Kind::Dense])?;
                Given::Part {
                    first: header.args[2],
                    end: header.args[3],
                    values: values.f32s()?,
                }
            }
            _ => {
                let kinds = [Kind::Keys, Kind::Keys, Kind::Keys, Kind::Dense];
                let [keys, versions, births, rows] = exactly(arrays, kinds)?;
                Given::Rows {
                    table,
                    keys: keys.u64s()?,
                    versions: versions.u64s()?,
                    births: births.u64s()?,
                    rows: rows.f32s()?,
                }
            }
        };
        Ok(Self {
            layout: header.args[0],
            given,
        })
    }
}

/// They are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Take;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self)
    }
}
