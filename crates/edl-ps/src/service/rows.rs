//! The rows and vectors of an answer.

use std::time::Instant;

use edl_store::{ModelSpec, PullMode, Store, dense_range};
use edl_wire::frame::{Element, MAX_PAYLOAD_BYTES};
use edl_wire::half_rows::narrow;
use edl_wire::op::{RowValues, Rows, TableKeys, TableRows, Vectors, Wanted};

use crate::error::PsError;
use crate::tables::{dim_of, element_of};

/// A buffer of answers that has grown beyond this is given back when it is much too large.
const KEEP_FLOATS: usize = 4 << 20;

/// The request of a pull, with the model's tables.
pub(super) struct Asked<'a> {
    tables: Vec<AskedTable<'a>>,
    mode: PullMode,
    vectors: bool,
}

struct AskedTable<'a> {
    table: u32,
    dim: usize,
    element: Element,
    keys: &'a [u64],
}

impl AskedTable<'_> {
    fn len(&self) -> usize {
        self.keys.len() * self.dim
    }

    fn is_half(&self) -> bool {
        matches!(self.element, Element::F16 | Element::Bf16)
    }
}

impl<'a> Asked<'a> {
    /// Looks the tables of a pull up; an error if its rows would not fit into a frame.
    pub(super) fn of(wanted: &Wanted<'a>, model: &ModelSpec) -> Result<Self, PsError> {
        let mut bytes = 0u64;
        let mut tables = Vec::with_capacity(wanted.tables.len());
        for &TableKeys { table, keys } in &wanted.tables {
            let dim = dim_of(model, table)?;
            bytes = bytes.saturating_add((keys.len() as u64).saturating_mul(4 * dim as u64));
            tables.push(AskedTable {
                table,
                dim,
                element: element_of(model.tables[table as usize].wire_dtype),
                keys,
            });
        }
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(PsError::Invalid(format!(
                "the rows asked for take {bytes} bytes, the limit is {MAX_PAYLOAD_BYTES}: use \
                 smaller minibatches or more ps replicas"
            )));
        }
        Ok(Self {
            tables,
            mode: if wanted.create {
                PullMode::Create
            } else {
                PullMode::ReadOnly
            },
            vectors: wanted.vectors,
        })
    }
}

/// The buffers of answers; each answer uses them again.
#[derive(Default)]
pub(crate) struct RowBuffers {
    rows: Vec<f32>,
    /// The values that travel as 16-bit floats.
    halves: Vec<u16>,
    dense: Vec<f32>,
    state: Vec<f32>,
}

impl RowBuffers {
    /// Reads what is asked; returns the version, and the nanoseconds spent in the store.
    pub(super) fn fill(
        &mut self,
        store: &Store,
        model: &ModelSpec,
        asked: &Asked<'_>,
    ) -> Result<(u64, u64), PsError> {
        if asked.vectors {
            let range = |len| dense_range(len, store.replica(), store.num_replicas()).len();
            fit(&mut self.dense, range(model.dense_len()?));
            fit(&mut self.state, range(model.state_len()?));
        }
        let total = asked.tables.iter().map(AskedTable::len).sum();
        fit(&mut self.rows, total);
        let began = Instant::now();
        // The version is read before the rows: staleness may be overstated, never understated.
        let version = if asked.vectors {
            store.pull_vectors(&mut self.dense, &mut self.state)?
        } else {
            store.version()
        };
        let mut rest = &mut self.rows[..];
        for asked_table in &asked.tables {
            let (rows, after) = rest.split_at_mut(asked_table.len());
            store.pull_rows(asked_table.table, asked_table.keys, asked.mode, rows)?;
            rest = after;
        }
        let nanos = nanos_since(began);
        self.halve(&asked.tables);
        Ok((version, nanos))
    }

    fn halve(&mut self, tables: &[AskedTable<'_>]) {
        self.halves.clear();
        let mut start = 0;
        for table in tables {
            let rows = &self.rows[start..start + table.len()];
            start += rows.len();
            if table.is_half() {
                let halves = self.halves.len();
                self.halves.resize(halves + rows.len(), 0);
                narrow(table.element, rows, &mut self.halves[halves..]);
            }
        }
    }

    /// Returns the rows that were read, in the form in which they travel.
    pub(super) fn rows(&self, asked: &Asked<'_>) -> Rows<'_> {
        let (mut rest, mut halves) = (&self.rows[..], &self.halves[..]);
        let tables = asked.tables.iter().map(|asked| {
            let (rows, after) = rest.split_at(asked.len());
            rest = after;
            let mut values = RowValues::Full(rows);
            if asked.is_half() {
                let (rows, after) = halves.split_at(asked.len());
                halves = after;
                values = RowValues::Half(asked.element, rows);
            }
            TableRows {
                table: asked.table,
                dim: asked.dim as u32,
                values,
            }
        });
        Rows {
            tables: tables.collect(),
            vectors: asked.vectors.then_some(Vectors {
                dense: &self.dense,
                state: &self.state,
            }),
        }
    }
}

/// For the worker, who sees the wire and the store as one.
pub(super) fn nanos_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// Gives a buffer the length of the next answer, and gives memory back that it rarely needs.
fn fit(buffer: &mut Vec<f32>, len: usize) {
    if buffer.capacity() > KEEP_FLOATS && len < buffer.capacity() / 8 {
        *buffer = Vec::new();
    }
    buffer.resize(len, 0.0);
}
