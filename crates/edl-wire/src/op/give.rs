//! Give rows that a table begins with, before the model is declared.

use super::{Op, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Some rows of the replica that is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// The table's name: its number is not known yet.
    pub table: &'a str,
    /// Floats in a row.
    pub dim: u32,
    /// Keys.
    pub keys: &'a [u64],
    /// The row of each key.
    pub rows: &'a [f32],
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Give)
            .args([u64::from(self.dim), 0, 0, 0])
            .text(self.table)
            .keys(0, self.keys)
            .dense(self.rows)
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [table, keys, rows] = exactly(arrays, [Kind::Text, Kind::Keys, Kind::Dense])?;
        Ok(Self {
            table: table.text()?,
            dim: operand(header, 0)?,
            keys: keys.u64s()?,
            rows: rows.f32s()?,
        })
    }
}

/// They are kept, or the replica has a model, and with it its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Give;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self)
    }
}
