//! A chunk of a table.

use super::{FLAG_MORE, Op, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Asks for the rows from a cursor on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The table's number.
    pub table: u32,
    /// The begin: 0, or the `next` of the last answer.
    pub cursor: u64,
}

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Scan).args([u64::from(self.table), self.cursor, 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            table: operand(header, 0)?,
            cursor: header.args[1],
        })
    }
}

/// Some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The table's number.
    pub table: u32,
    /// Elements of a row.
    pub dim: u32,
    /// Keys.
    pub keys: Vec<u64>,
    /// A row for each key.
    pub rows: Vec<f32>,
    /// The begin of the next chunk; `None` at the end.
    pub next: Option<u64>,
}

impl super::Response for Response {
    const OP: Op = Op::Scan;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
            .args([self.next.unwrap_or(0), 0, 0, 0])
            .flags(if self.next.is_some() { FLAG_MORE } else { 0 })
            .keys(self.table, &self.keys)
            .rows(self.table, self.dim, &self.rows)
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [keys, rows] = exactly(arrays, [Kind::Keys, Kind::Rows])?;
        if keys.entry.count != rows.entry.count {
            return Err(WireError::malformed("a scan without a row for each key"));
        }
        let more = header.flags & FLAG_MORE != 0;
        Ok(Self {
            table: keys.entry.table,
            dim: rows.entry.width,
            keys: keys.u64s()?.to_vec(),
            rows: rows.f32s()?.to_vec(),
            next: more.then_some(header.args[0]),
        })
    }
}
