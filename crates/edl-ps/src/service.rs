//! What a ps replica does with one request: read its arrays, ask the store, answer.

use std::path::Path;

use edl_store::{ModelSpec, PullMode, Push, Store, StoreError, TableGrads, dense_range};

use crate::error::PsError;
use crate::frame::{
    Array, Element, FLAG_APPLIED, FLAG_CREATE, FLAG_MORE, FLAG_NOT_YET, FLAG_STEP, FLAG_VECTORS,
    Header, Kind, MAX_PAYLOAD_BYTES, Op, Outgoing, parse,
};
use crate::half_rows::{element_of, narrow, widen};
use crate::life;
use crate::synchrony::{Coordinator, Part, Peer, Pushed, Round, Step};

/// Rows of one scanned chunk, unless rows are so wide that fewer fill a sensible frame.
const SCAN_ROWS: usize = 65_536;
const SCAN_BYTES: usize = 4 << 20;
/// A buffer of answers that has grown beyond this is given back when it is much too large.
const KEEP_FLOATS: usize = 4 << 20;

/// Answers the requests of one connection; the buffers of its answers are used again.
pub(crate) struct Service<'s> {
    store: &'s Store,
    coordinator: &'s Coordinator,
    protocol: u64,
    peer: &'s dyn Peer,
    rows: Vec<f32>,
    /// Those of them that travel as 16-bit floats.
    halves: Vec<u16>,
    dense: Vec<f32>,
    state: Vec<f32>,
}

impl<'s> Service<'s> {
    pub(crate) fn new(
        store: &'s Store,
        coordinator: &'s Coordinator,
        protocol: u64,
        peer: &'s dyn Peer,
    ) -> Self {
        Self {
            store,
            coordinator,
            protocol,
            peer,
            rows: Vec::new(),
            halves: Vec::new(),
            dense: Vec::new(),
            state: Vec::new(),
        }
    }

    /// Does what a frame asks and hands the reply to `send`, once.
    pub(crate) fn answer(
        &mut self,
        header: &Header,
        payload: &[u8],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let arrays = parse(header.num_arrays, payload)?;
        match header.op {
            Op::Model => {
                let protocol = [self.protocol, 0, 0, 0];
                send(
                    Outgoing::new(Op::Model)
                        .args(protocol)
                        .text(&self.model_json()?),
                )
            }
            Op::Declare => {
                self.declare(&arrays)?;
                send(Outgoing::new(Op::Declare).args([self.protocol, 0, 0, 0]))
            }
            Op::BeginTask => {
                let (task, lease) = (header.args[0], operand(header, 1)?);
                let index = self.store.begin_task(task, lease)?;
                self.coordinator.begun(self.store, task, lease, self.peer);
                send(Outgoing::new(Op::BeginTask).args([u64::from(index), 0, 0, 0]))
            }
            Op::Pull => self.pull(header, &arrays, send),
            Op::Push | Op::Stage => self.push(header, &arrays, send),
            Op::Commit => {
                let round = round_of(header, &arrays)?;
                self.coordinator.commit(self.store, &round)?;
                send(Outgoing::new(Op::Commit))
            }
            Op::EndTask => {
                let (task, lease) = (header.args[0], operand(header, 1)?);
                self.coordinator.ended(self.store, task, lease);
                send(Outgoing::new(Op::EndTask))
            }
            Op::Skip => {
                let (lease, index) = (operand(header, 1)?, operand(header, 2)?);
                let task = header.args[0];
                let skipped = self.store.skip(task, lease, index);
                self.coordinator.skipped(Step { task, lease, index });
                skipped?;
                send(Outgoing::new(Op::Skip))
            }
            Op::Scan => self.scan(header, send),
            Op::Audit => {
                let audit = self.store.audit();
                let triples: Vec<[u64; 3]> = audit
                    .iter()
                    .map(|task| [task.task, u64::from(task.next_index), task.num_records])
                    .collect();
                send(Outgoing::new(Op::Audit).audit(&triples))
            }
            Op::Stats => send(Outgoing::new(Op::Stats).text(&stats_json(self.store)?)),
            Op::Checkpoint => {
                let directory = only(&arrays, Kind::Text)?.text()?;
                let entry = self.store.checkpoint(Path::new(directory))?;
                send(Outgoing::new(Op::Checkpoint).text(&entry))
            }
            Op::Expire => {
                let now = only(&arrays, Kind::Text)?.text()?;
                send(Outgoing::new(Op::Expire).text(&life::expire(self.store, now)?))
            }
            Op::Export => {
                let request = only(&arrays, Kind::Text)?.text()?;
                send(Outgoing::new(Op::Export).text(&life::export(self.store, request)?))
            }
            Op::Error => Err(PsError::malformed(
                "an error where a request was expected".into(),
            )),
        }
    }

    fn model(&self) -> Result<std::sync::Arc<ModelSpec>, PsError> {
        Ok(self
            .store
            .model()
            .ok_or(StoreError::NotDeclared("it is used"))?)
    }

    fn model_json(&self) -> Result<String, PsError> {
        serde_json::to_string(&*self.model()?)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))
    }

    fn declare(&self, arrays: &[Array<'_>]) -> Result<(), PsError> {
        let [model, dense, state] = exactly(arrays, [Kind::Text, Kind::Dense, Kind::State])?;
        let model = ModelSpec::from_json(model.text()?)?;
        Ok(self.store.declare(model, dense.f32s()?, state.f32s()?)?)
    }

    fn pull(
        &mut self,
        header: &Header,
        arrays: &[Array<'_>],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let model = self.model()?;
        if header.flags & FLAG_STEP != 0 {
            let (lease, index) = halves(header.args[1]);
            let task = header.args[0];
            let step = Step { task, lease, index };
            if !self.coordinator.admit(self.store, step, self.peer) {
                return send(Outgoing::new(Op::Pull).flags(FLAG_NOT_YET));
            }
        }
        // The version is read before the rows: staleness may be overstated, never understated.
        let vectors = header.flags & FLAG_VECTORS != 0;
        let version = if vectors {
            let range =
                |len| dense_range(len, self.store.replica(), self.store.num_replicas()).len();
            fit(&mut self.dense, range(model.dense_len()?));
            fit(&mut self.state, range(model.state_len()?));
            self.store.pull_vectors(&mut self.dense, &mut self.state)?
        } else {
            self.store.version()
        };
        let wanted = wanted_rows(arrays, &model)?;
        let total: usize = wanted.iter().map(|w| w.keys.len() * w.dim).sum();
        fit(&mut self.rows, total);
        let mode = if header.flags & FLAG_CREATE != 0 {
            PullMode::Create
        } else {
            PullMode::ReadOnly
        };
        let mut rest = &mut self.rows[..];
        for wanted in &wanted {
            let (rows, after) = rest.split_at_mut(wanted.keys.len() * wanted.dim);
            self.store
                .pull_rows(wanted.table, wanted.keys, mode, rows)?;
            rest = after;
        }

        let mut reply = Outgoing::new(Op::Pull).args([version, 0, 0, 0]);
        self.halves.clear();
        let mut start = 0;
        for wanted in wanted.iter() {
            let rows = &self.rows[start..start + wanted.len()];
            start += rows.len();
            if wanted.is_half() {
                let halves = self.halves.len();
                self.halves.resize(halves + rows.len(), 0);
                narrow(wanted.element, rows, &mut self.halves[halves..]);
            }
        }
        let (mut rest, mut halves) = (&self.rows[..], &self.halves[..]);
        for wanted in &wanted {
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
        if vectors {
            reply = reply.dense(&self.dense).state(&self.state);
        }
        send(reply)
    }

    fn push(
        &self,
        header: &Header,
        arrays: &[Array<'_>],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let too_short = || PsError::malformed("a push without dense and state".to_owned());
        let (pairs, vectors) = arrays.split_at(arrays.len().checked_sub(2).ok_or_else(too_short)?);
        let [dense, state] = exactly(vectors, [Kind::Dense, Kind::State])?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(PsError::malformed("keys without gradients".to_owned()));
        }
        let widened = pairs.iter().map(|[_, grads]| widened(grads));
        let widened = widened.collect::<Result<Vec<_>, _>>()?;
        let tables = pairs
            .iter()
            .zip(&widened)
            .map(|(pair, widened)| {
                let [keys, grads] = exactly(pair, [Kind::Keys, Kind::Rows])?;
                if keys.entry.table != grads.entry.table || keys.entry.count != grads.entry.count {
                    return Err(PsError::malformed(format!(
                        "{} keys of table {} with {} gradients of table {}",
                        keys.entry.count, keys.entry.table, grads.entry.count, grads.entry.table
                    )));
                }
                Ok(TableGrads {
                    table: keys.entry.table,
                    keys: keys.u64s()?,
                    grads: match widened {
                        Some(widened) => widened,
                        None => grads.f32s()?,
                    },
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let (lease, index) = halves(header.args[1]);
        let (num_records, learning_rate) = halves(header.args[2]);
        let push = Push {
            task: header.args[0],
            lease,
            index,
            num_records,
            learning_rate: f32::from_bits(learning_rate),
            pulled_version: header.args[3],
            tables: &tables,
            dense: dense.f32s()?,
            state: state.f32s()?,
        };
        let reply = Outgoing::new(header.op);
        match self.coordinator.push(self.store, &push, self.peer)? {
            Pushed::Applied(applied) => {
                let flags = if applied.applied { FLAG_APPLIED } else { 0 };
                send(
                    reply
                        .args([applied.version, applied.staleness, 0, 0])
                        .flags(flags),
                )
            }
            Pushed::Staged => send(reply),
            Pushed::NotYet => send(reply.flags(FLAG_NOT_YET)),
            Pushed::InRound(round, staleness) => {
                let learning_rate = u64::from(round.learning_rate.to_bits());
                let parts: Vec<[u64; 4]> = round.parts.iter().map(Part::encode).collect();
                send(
                    reply
                        .args([round.version, staleness, learning_rate, 0])
                        .flags(FLAG_APPLIED)
                        .parts(&parts),
                )
            }
        }
    }

    fn scan(
        &self,
        header: &Header,
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let model = self.model()?;
        let table: u32 = operand(header, 0)?;
        let dim = dim_of(&model, table)?;
        let chunk = self.store.scan(table, header.args[1], scan_rows(dim))?;
        let reply = Outgoing::new(Op::Scan)
            .args([chunk.next.unwrap_or(0), 0, 0, 0])
            .flags(if chunk.next.is_some() { FLAG_MORE } else { 0 });
        send(
            reply
                .keys(table, &chunk.keys)
                .rows(table, dim as u32, &chunk.rows),
        )
    }
}

/// The round that a commit, or the answer to a push, speaks of.
pub(crate) fn round_of(header: &Header, arrays: &[Array<'_>]) -> Result<Round, PsError> {
    let parts = only(arrays, Kind::Parts)?.u64s()?.as_chunks::<4>().0;
    let (learning_rate, _) = halves(header.args[2]);
    Ok(Round {
        parts: parts.iter().map(Part::decode).collect(),
        learning_rate: f32::from_bits(learning_rate),
        version: header.args[0],
    })
}

/// Gives a buffer the length of the next answer, and gives memory back that it rarely needs.
fn fit(buffer: &mut Vec<f32>, len: usize) {
    if buffer.capacity() > KEEP_FLOATS && len < buffer.capacity() / 8 {
        *buffer = Vec::new();
    }
    buffer.resize(len, 0.0);
}

/// Rows of one chunk of a scan.
pub(crate) fn scan_rows(dim: usize) -> usize {
    (SCAN_BYTES / (4 * dim.max(1))).clamp(1, SCAN_ROWS)
}

/// Counters as JSON.
pub(crate) fn stats_json(store: &Store) -> Result<String, PsError> {
    serde_json::to_string(&store.stats())
        .map_err(|error| PsError::System(format!("counters cannot be written: {error}")))
}

pub(crate) fn dim_of(model: &ModelSpec, table: u32) -> Result<usize, PsError> {
    let num_tables = model.tables.len();
    let spec = model.tables.get(table as usize);
    let spec = spec.ok_or(StoreError::UnknownTable { table, num_tables })?;
    Ok(spec.dim as usize)
}

/// Gradients that travelled as 16-bit floats; `None` for others.
fn widened(grads: &Array<'_>) -> Result<Option<Vec<f32>>, PsError> {
    match grads.entry.element {
        Element::F16 | Element::Bf16 => {
            let halves = grads.u16s()?;
            let mut rows = vec![0.0; halves.len()];
            widen(grads.entry.element, halves, &mut rows);
            Ok(Some(rows))
        }
        Element::U8 | Element::U64 | Element::F32 => Ok(None),
    }
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

/// The keys of a pull; an error if their rows would not fit into a frame.
fn wanted_rows<'a>(arrays: &[Array<'a>], model: &ModelSpec) -> Result<Vec<Wanted<'a>>, PsError> {
    let mut bytes = 0u64;
    let mut wanted = Vec::with_capacity(arrays.len());
    for array in arrays {
        let [keys] = exactly(std::slice::from_ref(array), [Kind::Keys])?;
        let dim = dim_of(model, keys.entry.table)?;
        bytes = bytes.saturating_add(keys.entry.count.saturating_mul(4 * dim as u64));
        wanted.push(Wanted {
            table: keys.entry.table,
            dim,
            element: element_of(model.tables[keys.entry.table as usize].wire_dtype),
            keys: keys.u64s()?,
        });
    }
    if bytes > MAX_PAYLOAD_BYTES {
        return Err(PsError::Invalid(format!(
            "the rows asked for take {bytes} bytes, the limit is {MAX_PAYLOAD_BYTES}: use smaller \
             minibatches or more ps replicas"
        )));
    }
    Ok(wanted)
}

/// The arrays, if they are of exactly these kinds.
fn exactly<'a, const N: usize>(
    arrays: &[Array<'a>],
    kinds: [Kind; N],
) -> Result<[Array<'a>; N], PsError> {
    let found: Vec<Kind> = arrays.iter().map(|array| array.entry.kind).collect();
    match <[Array<'a>; N]>::try_from(arrays) {
        Ok(arrays) if found == kinds => Ok(arrays),
        _ => Err(PsError::malformed(format!(
            "arrays {found:?}, expected {kinds:?}"
        ))),
    }
}

fn only<'a>(arrays: &[Array<'a>], kind: Kind) -> Result<Array<'a>, PsError> {
    exactly(arrays, [kind]).map(|[array]| array)
}

/// Two 32-bit operands in one field: (lower, upper).
pub(crate) fn joined(lower: u32, upper: u32) -> u64 {
    u64::from(lower) | u64::from(upper) << 32
}

/// Two 32-bit operands share one field: (lower, upper).
pub(crate) fn halves(operand: u64) -> (u32, u32) {
    (operand as u32, (operand >> 32) as u32)
}

/// A 32-bit operand that has a field to itself.
fn operand(header: &Header, index: usize) -> Result<u32, PsError> {
    let value = header.args[index];
    u32::try_from(value).map_err(|_| {
        PsError::malformed(format!(
            "operand {index} of {:?} is {value}, expected 32 bits",
            header.op
        ))
    })
}
