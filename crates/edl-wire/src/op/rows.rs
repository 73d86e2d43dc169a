//! Rows and vectors: what a pull wants, and what it gets.

use super::{FLAG_CREATE, FLAG_VECTORS, exactly};
use crate::error::WireError;
use crate::frame::{Array, Element, Kind, Outgoing};

/// Keys of one table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableKeys<'a> {
    /// The table's number.
    pub table: u32,
    /// Keys, each once.
    pub keys: &'a [u64],
}

/// The wanted rows and vectors of a pull.
#[derive(Clone, Debug, PartialEq)]
pub struct Wanted<'a> {
    /// The keys whose rows are wanted.
    pub tables: Vec<TableKeys<'a>>,
    /// Create the rows that are missing.
    pub create: bool,
    /// The dense and state ranges too.
    pub vectors: bool,
}

impl<'a> Wanted<'a> {
    /// Adds keys and flags.
    pub(super) fn add_to<'f>(&self, frame: Outgoing<'f>) -> Outgoing<'f>
    where
        'a: 'f,
    {
        let create = if self.create { FLAG_CREATE } else { 0 };
        let vectors = if self.vectors { FLAG_VECTORS } else { 0 };
        self.tables
            .iter()
            .fold(frame.flags(create | vectors), |frame, table| {
                frame.keys(table.table, table.keys)
            })
    }

    pub(super) fn of(flags: u32, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let tables = arrays.iter().map(|array| {
            let [keys] = exactly(std::slice::from_ref(array), [Kind::Keys])?;
            Ok(TableKeys {
                table: keys.entry.table,
                keys: keys.u64s()?,
            })
        });
        Ok(Self {
            tables: tables.collect::<Result<_, WireError>>()?,
            create: flags & FLAG_CREATE != 0,
            vectors: flags & FLAG_VECTORS != 0,
        })
    }
}

/// Rows, or gradients of rows, as they travel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowValues<'a> {
    /// As they are.
    Full(&'a [f32]),
    /// The rows as 16-bit floats of one of the two types.
    Half(Element, &'a [u16]),
}

/// Rows of one table, or their gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableRows<'a> {
    /// The table's number.
    pub table: u32,
    /// Elements of a row.
    pub dim: u32,
    /// Row after row.
    pub values: RowValues<'a>,
}

impl<'a> TableRows<'a> {
    pub(super) fn add_to<'f>(&self, frame: Outgoing<'f>) -> Outgoing<'f>
    where
        'a: 'f,
    {
        match self.values {
            RowValues::Full(rows) => frame.rows(self.table, self.dim, rows),
            RowValues::Half(element, rows) => frame.half_rows(self.table, self.dim, element, rows),
        }
    }

    pub(super) fn of(rows: &Array<'a>) -> Result<Self, WireError> {
        let element = rows.entry.element;
        Ok(Self {
            table: rows.entry.table,
            dim: rows.entry.width,
            values: match element {
                Element::F16 | Element::Bf16 => RowValues::Half(element, rows.u16s()?),
                Element::U8 | Element::U64 | Element::F32 => RowValues::Full(rows.f32s()?),
            },
        })
    }
}

/// A replica's ranges of the flat vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Vectors<'a> {
    /// The values of the dense vector.
    pub dense: &'a [f32],
    /// The values of the state vector.
    pub state: &'a [f32],
}

/// The answer of a pull. A client reads it straight into [`crate::Place`]s instead.
#[derive(Clone, Debug, PartialEq)]
pub struct Rows<'a> {
    /// In the order in which they were asked for.
    pub tables: Vec<TableRows<'a>>,
    /// If they were asked for.
    pub vectors: Option<Vectors<'a>>,
}

impl<'a> Rows<'a> {
    pub(super) fn add_to<'f>(&self, frame: Outgoing<'f>) -> Outgoing<'f>
    where
        'a: 'f,
    {
        let tables = self.tables.iter();
        let frame = tables.fold(frame, |frame, table| table.add_to(frame));
        match self.vectors {
            Some(Vectors { dense, state }) => frame.dense(dense).state(state),
            None => frame,
        }
    }
}
