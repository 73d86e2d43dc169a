//! What a ps replica does with one request: read its arrays, ask the store, answer.

use std::path::Path;
use std::time::Instant;

use edl_store::{ModelSpec, Push, Store, StoreError, TableGrads};

use self::rows::{Answer, Asked, nanos_since};

use crate::error::PsError;
use crate::frame::{
    Array, Element, FLAG_APPLIED, FLAG_MORE, FLAG_NOT_YET, FLAG_PUSHED, FLAG_STEP, Header, Kind,
    Op, Outgoing, halves, parse,
};
use crate::half_rows::widen;
use crate::life;
use crate::naming;
use crate::synchrony::{Coordinator, Part, Peer, Pushed, Round, Step};

mod rows;

/// Rows of one scanned chunk, unless rows are so wide that fewer fill a sensible frame.
const SCAN_ROWS: usize = 65_536;
const SCAN_BYTES: usize = 4 << 20;

/// Answers the requests of one connection; the buffers of its answers are used again.
pub(crate) struct Service<'s> {
    store: &'s Store,
    coordinator: &'s Coordinator,
    protocol: u64,
    peer: &'s dyn Peer,
    rows: Answer,
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
            rows: Answer::default(),
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
            Op::PushPull => self.push_pull(header, &arrays, send),
            Op::Commit => {
                let round = round_of(header, only(&arrays, Kind::Parts)?)?;
                self.coordinator.commit(self.store, &round)?;
                send(Outgoing::new(Op::Commit))
            }
            Op::CommitPull => self.commit_pull(header, &arrays, send),
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
            Op::Name => naming::answer(self.store, &arrays, send),
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
        let step = (header.flags & FLAG_STEP != 0).then(|| step_of(header.args[0], header.args[1]));
        if !self.is_admitted(step) {
            return send(Outgoing::new(Op::Pull).flags(FLAG_NOT_YET));
        }
        let asked = Asked::of(header, arrays, &model)?;
        let (version, nanos) = self.rows.fill(self.store, &model, &asked)?;
        let reply = Outgoing::new(Op::Pull).args([version, 0, 0, nanos]);
        send(self.rows.add_to(reply, &asked))
    }

    /// Whether a pull may begin now; the step of one that need not wait is not given.
    fn is_admitted(&self, step: Option<Step>) -> bool {
        step.is_none_or(|step| self.coordinator.admit(self.store, step, self.peer))
    }

    fn push(
        &self,
        header: &Header,
        arrays: &[Array<'_>],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let began = Instant::now();
        let told = Told::of(&self.apply(header, arrays)?);
        let [version, staleness, learning_rate] = told.args;
        let reply = Outgoing::new(header.op)
            .args([version, staleness, learning_rate, nanos_since(began)])
            .flags(told.flags);
        send(match &told.parts[..] {
            [] => reply,
            parts => reply.parts(parts),
        })
    }

    /// Applies a push, then answers what the next step needs of the parameters.
    ///
    /// A pull that is refused refuses all: the client repeats the push by itself, which changes
    /// nothing, and is told what became of it.
    fn push_pull(
        &mut self,
        header: &Header,
        arrays: &[Array<'_>],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let model = self.model()?;
        let parts = arrays.iter().position(|a| a.entry.kind == Kind::Parts);
        let no_step = || PsError::malformed("a push and pull without the step to pull".to_owned());
        let (push, pull) = arrays.split_at(parts.ok_or_else(no_step)?);
        let (next, pull) = pull.split_first().ok_or_else(no_step)?;
        let &[task, lease_and_index, ..] = next.u64s()? else {
            return Err(no_step());
        };
        let asked = Asked::of(header, pull, &model)?;

        let reply = Outgoing::new(Op::PushPull);
        let pushed = self.apply(header, push)?;
        let told = Told::of(&pushed);
        match pushed {
            Pushed::Applied(_) | Pushed::InRound(..) => {}
            Pushed::NotYet => return send(reply.flags(told.flags)),
            Pushed::Staged => {
                return Err(PsError::Invalid(
                    "a push and pull of a gradient that is only staged".to_owned(),
                ));
            }
        }
        let [before, staleness, learning_rate] = told.args;
        let reply = reply.flags(FLAG_PUSHED | told.flags).parts(&told.parts);
        let step = step_of(task, lease_and_index);
        if !self.is_admitted((header.flags & FLAG_STEP != 0).then_some(step)) {
            let args = [before, staleness, learning_rate, 0];
            return send(reply.args(args).flags(FLAG_NOT_YET));
        }
        let (version, _) = self.rows.fill(self.store, &model, &asked)?;
        let reply = reply.args([before, staleness, learning_rate, version]);
        send(self.rows.add_to(reply, &asked))
    }

    fn commit_pull(
        &mut self,
        header: &Header,
        arrays: &[Array<'_>],
        send: impl FnOnce(Outgoing<'_>) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let model = self.model()?;
        let no_parts = || PsError::malformed("a commit without the parts of a round".to_owned());
        let (round, pull) = arrays.split_first().ok_or_else(no_parts)?;
        let [round] = exactly(std::slice::from_ref(round), [Kind::Parts])?;
        let asked = Asked::of(header, pull, &model)?;
        self.coordinator
            .commit(self.store, &round_of(header, round)?)?;
        let (version, _) = self.rows.fill(self.store, &model, &asked)?;
        let reply = Outgoing::new(Op::CommitPull).args([version, 0, 0, 0]);
        send(self.rows.add_to(reply, &asked))
    }

    /// Hands a gradient to those who decide when it counts.
    fn apply(&self, header: &Header, arrays: &[Array<'_>]) -> Result<Pushed, PsError> {
        let too_short = || PsError::malformed("a push without dense and state".to_owned());
        let (pairs, vectors) = arrays.split_at(arrays.len().checked_sub(2).ok_or_else(too_short)?);
        let [dense, state] = exactly(vectors, [Kind::Dense, Kind::State])?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(PsError::malformed("keys without gradients".to_owned()));
        }
        let widened = pairs.iter().map(|[_, grads]| widened(grads));
        let widened = widened.collect::<Result<Vec<_>, _>>()?;
        let tables = pairs.iter().zip(&widened);
        let tables = tables
            .map(|([keys, grads], widened)| table_grads(keys, grads, widened.as_deref()))
            .collect::<Result<Vec<_>, _>>()?;
        let (num_records, learning_rate) = halves(header.args[2]);
        let Step { task, lease, index } = step_of(header.args[0], header.args[1]);
        let push = Push {
            task,
            lease,
            index,
            num_records,
            learning_rate: f32::from_bits(learning_rate),
            pulled_version: header.args[3],
            tables: &tables,
            dense: dense.f32s()?,
            state: state.f32s()?,
        };
        self.coordinator.push(self.store, &push, self.peer)
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
pub(crate) fn round_of(header: &Header, parts: Array<'_>) -> Result<Round, PsError> {
    let parts = parts.u64s()?.as_chunks::<4>().0;
    Ok(round_from(header, parts))
}

/// The same, of parts that were read.
pub(crate) fn round_from(header: &Header, parts: &[[u64; 4]]) -> Round {
    let (learning_rate, _) = halves(header.args[2]);
    Round {
        parts: parts.iter().map(Part::decode).collect(),
        learning_rate: f32::from_bits(learning_rate),
        version: header.args[0],
    }
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

/// The gradients of one table's rows.
fn table_grads<'a>(
    keys: &Array<'a>,
    grads: &Array<'a>,
    widened: Option<&'a [f32]>,
) -> Result<TableGrads<'a>, PsError> {
    let [keys, grads] = exactly(&[*keys, *grads], [Kind::Keys, Kind::Rows])?;
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
}

/// What a reply says of a push.
struct Told {
    /// Version, staleness, and the learning rate of a round.
    args: [u64; 3],
    flags: u32,
    /// Those of a round; none without one.
    parts: Vec<[u64; 4]>,
}

impl Told {
    fn of(pushed: &Pushed) -> Self {
        let (args, flags, parts) = match pushed {
            Pushed::Applied(applied) => {
                let flags = if applied.applied { FLAG_APPLIED } else { 0 };
                ([applied.version, applied.staleness, 0], flags, Vec::new())
            }
            Pushed::InRound(round, staleness) => {
                let learning_rate = u64::from(round.learning_rate.to_bits());
                let parts = round.parts.iter().map(Part::encode).collect();
                let args = [round.version, *staleness, learning_rate];
                (args, FLAG_APPLIED, parts)
            }
            Pushed::Staged => ([0; 3], 0, Vec::new()),
            Pushed::NotYet => ([0; 3], FLAG_NOT_YET, Vec::new()),
        };
        Self { args, flags, parts }
    }
}

/// The step that two operands name.
fn step_of(task: u64, lease_and_index: u64) -> Step {
    let (lease, index) = halves(lease_and_index);
    Step { task, lease, index }
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
