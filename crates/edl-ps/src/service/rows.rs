//! The rows and vectors of an answer.

use std::time::Instant;

use edl_store::{ModelSpec, PullMode, Store, dense_range};

use super::{dim_of, exactly};
use crate::error::PsError;
use crate::frame::{
    Array, Element, FLAG_CREATE, FLAG_VECTORS, Header, Kind, MAX_PAYLOAD_BYTES, Outgoing,
};
use crate::half_rows::{element_of, narrow};

/// A buffer of answers that has grown beyond this is given back when it is much too large.
const KEEP_FLOATS: usize = 4 << 20;

/// What is asked of a pull.
pub(super) struct Asked<'a> {
    tables: Vec<Wanted<'a>>,
    mode: PullMode,
    vectors: bool,
}

struct Wanted<'a> {
    table: u32,
    dim: usize,
    element: Element,
    keys: &'a [u64],
}

impl Wanted<'_> {
    fn len(&self) -> usize {
        self.keys.len() * self.dim
    }

    fn is_half(&self) -> bool {
        matches!(self.element, Element::F16 | Element::Bf16)
    }
}

impl<'a> Asked<'a> {
    /// Reads the keys of a pull; an error if their rows would not fit into a frame.
    pub(super) fn of(
        header: &Header,
        arrays: &[Array<'a>],
        model: &ModelSpec,
    ) -> Result<Self, PsError> {
        let mut bytes = 0u64;
        let mut tables = Vec::with_capacity(arrays.len());
        for array in arrays {
            let [keys] = exactly(std::slice::from_ref(array), [Kind::Keys])?;
            let dim = dim_of(model, keys.entry.table)?;
            bytes = bytes.saturating_add(keys.entry.count.saturating_mul(4 * dim as u64));
            tables.push(Wanted {
                table: keys.entry.table,
                dim,
                element: element_of(model.tables[keys.entry.table as usize].wire_dtype),
                keys: keys.u64s()?,
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
            mode: if header.flags & FLAG_CREATE != 0 {
                PullMode::Create
            } else {
                PullMode::ReadOnly
            },
            vectors: header.flags & FLAG_VECTORS != 0,
        })
    }
}

/// Where answers are put together; used again for each.
#[derive(Default)]
pub(super) struct Answer {
    rows: Vec<f32>,
    /// Those of them that travel as 16-bit floats.
    halves: Vec<u16>,
    dense: Vec<f32>,
    state: Vec<f32>,
}

impl Answer {
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
        fit(&mut self.rows, asked.tables.iter().map(Wanted::len).sum());
        let began = Instant::now();
        // The version is read before the rows: staleness may be overstated, never understated.
        let version = if asked.vectors {
            store.pull_vectors(&mut self.dense, &mut self.state)?
        } else {
            store.version()
        };
        let mut rest = &mut self.rows[..];
        for wanted in &asked.tables {
            let (rows, after) = rest.split_at_mut(wanted.len());
            store.pull_rows(wanted.table, wanted.keys, asked.mode, rows)?;
            rest = after;
        }
        let nanos = nanos_since(began);
        self.halve(&asked.tables);
        Ok((version, nanos))
    }

    fn halve(&mut self, tables: &[Wanted<'_>]) {
        self.halves.clear();
        let mut start = 0;
        for wanted in tables {
            let rows = &self.rows[start..start + wanted.len()];
            start += rows.len();
            if wanted.is_half() {
                let halves = self.halves.len();
                self.halves.resize(halves + rows.len(), 0);
                narrow(wanted.element, rows, &mut self.halves[halves..]);
            }
        }
    }

    /// Adds what was read to a frame.
    pub(super) fn add_to<'a>(&'a self, mut reply: Outgoing<'a>, asked: &Asked<'_>) -> Outgoing<'a> {
        let (mut rest, mut halves) = (&self.rows[..], &self.halves[..]);
        for wanted in &asked.tables {
            let (table, dim) = (wanted.table, wanted.dim as u32);
            let (rows, after) = rest.split_at(wanted.len());
            rest = after;
            if wanted.is_half() {
                let (rows, after) = halves.split_at(wanted.len());
                halves = after;
                reply = reply.half_rows(table, dim, wanted.element, rows);
            } else {
                reply = reply.rows(table, dim, rows);
            }
        }
        if asked.vectors {
            reply = reply.dense(&self.dense).state(&self.state);
        }
        reply
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
