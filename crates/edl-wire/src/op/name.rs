//! The strings that keys were made of.

use super::{Op, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Strings of keys of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableNames<'a> {
    /// The table's number.
    pub table: u32,
    /// Keys.
    pub keys: &'a [u64],
    /// The end of each key's string in `text`.
    pub ends: &'a [u64],
    /// The strings, one after the other.
    pub text: &'a str,
}

/// Says the strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// By table.
    pub tables: Vec<TableNames<'a>>,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        let tables = self.tables.iter();
        tables.fold(Outgoing::new(Op::Name), |frame, names| {
            frame
                .keys(names.table, names.keys)
                .keys(names.table, names.ends)
                .text(names.text)
        })
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let torn =
            || WireError::malformed("names that are not keys, ends and a text of each table");
        let (tables, rest) = arrays.as_chunks::<3>();
        if !rest.is_empty() {
            return Err(torn());
        }
        let tables = tables.iter().map(|arrays| {
            let kinds = [Kind::Keys, Kind::Keys, Kind::Text];
            let [keys, ends, text] = exactly(arrays, kinds).map_err(|_| torn())?;
            Ok(TableNames {
                table: keys.entry.table,
                keys: keys.u64s()?,
                ends: ends.u64s()?,
                text: text.text()?,
            })
        });
        Ok(Self {
            tables: tables.collect::<Result<_, WireError>>()?,
        })
    }
}

/// They are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Another number than before says that the replica may have lost names.
    pub generation: u64,
    /// Keys that have no row: their names wait with the client.
    pub waiting: Vec<u64>,
}

impl super::Response for Response {
    const OP: Op = Op::Name;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
            .args([self.generation, 0, 0, 0])
            .keys(0, &self.waiting)
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [waiting] = exactly(arrays, [Kind::Keys])?;
        Ok(Self {
            generation: header.args[0],
            waiting: waiting.u64s()?.to_vec(),
        })
    }
}
