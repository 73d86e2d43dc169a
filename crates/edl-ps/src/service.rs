//! Serves one request of a ps replica: read it, call the store, answer.

use std::sync::Arc;
use std::time::Instant;

use edl_store::{ModelSpec, Progress, Push, Store, StoreError, TableGrads};
use edl_wire::WireError;
use edl_wire::frame::{Array, Header, Outgoing, parse};
use edl_wire::half_rows::widen;
use edl_wire::op::model::Protocol;
use edl_wire::op::push::{Outcome, TableGradients};
use edl_wire::op::{
    Op, Request, Response, RowValues, Step, Vectors, audit, begin_task, checkpoint, commit,
    commit_pull, declare, end_task, expire, export, give, model, pull, push, push_each, push_pull,
    scan, skip, stage, stats,
};

pub(crate) use self::rows::RowBuffers;
use self::rows::{Asked, nanos_since};
use crate::error::PsError;
use crate::far::{self, FarFiles};
use crate::synchrony::{Coordinator, Peer, Pushed};
use crate::tables::{dim_of, scan_rows};
use crate::{life, names};

mod rows;

/// Answers the requests of one connection; the buffers of its answers are used again.
pub(crate) struct Service<'s> {
    store: &'s Store,
    coordinator: &'s Coordinator,
    protocol: Protocol,
    peer: &'s dyn Peer,
    far: Option<&'s dyn FarFiles>,
    rows: &'s mut RowBuffers,
}

/// One request, as it was received.
struct Received<'f> {
    header: &'f Header,
    arrays: Vec<Array<'f>>,
}

impl<'f> Received<'f> {
    fn read<R: Request<'f>>(&self) -> Result<R, PsError> {
        Ok(R::decode(self.header, &self.arrays)?)
    }
}

impl<'s> Service<'s> {
    pub(crate) fn new(
        store: &'s Store,
        coordinator: &'s Coordinator,
        protocol: Protocol,
        peer: &'s dyn Peer,
        far: Option<&'s dyn FarFiles>,
        rows: &'s mut RowBuffers,
    ) -> Self {
        Self {
            store,
            coordinator,
            protocol,
            peer,
            far,
            rows,
        }
    }

    /// Does what a frame asks and hands the answer to `send`, once; `progress` is told before, as
    /// long as that takes.
    pub(crate) fn answer(
        &mut self,
        header: &Header,
        payload: &[u8],
        progress: Progress<'_>,
        send: impl FnOnce(Outgoing<'_>) -> Result<(), WireError>,
    ) -> Result<(), PsError> {
        let arrays = parse(header.num_arrays, payload)?;
        let request = Received { header, arrays };
        let sent = match header.op {
            Op::Model => send(self.model_of(request.read()?)?.encode()),
            Op::Declare => send(self.declare(request.read()?, progress)?.encode()),
            Op::Give => send(self.give(request.read()?)?.encode()),
            Op::BeginTask => send(self.begin_task(request.read()?)?.encode()),
            Op::EndTask => send(self.end_task(request.read()?).encode()),
            Op::Skip => send(self.skip(request.read()?)?.encode()),
            Op::Pull => {
                let request = pull::Request::decode(header, &request.arrays)?;
                send(self.pull(&request)?.encode())
            }
            Op::Push => send(self.push(&request.read()?)?.encode()),
            Op::PushEach => send(self.push_each(&request.read()?)?.encode()),
            Op::Stage => send(self.stage(&request.read()?)?.encode()),
            Op::PushPull => {
                let request = push_pull::Request::decode(header, &request.arrays)?;
                send(self.push_pull(&request)?.encode())
            }
            Op::Commit => send(self.commit(&request.read()?)?.encode()),
            Op::CommitPull => {
                let request = commit_pull::Request::decode(header, &request.arrays)?;
                send(self.commit_pull(&request)?.encode())
            }
            Op::Scan => send(self.scan(request.read()?)?.encode()),
            Op::Audit => send(self.audit(request.read()?).encode()),
            Op::Stats => send(self.stats(request.read()?)?.encode()),
            Op::Checkpoint => send(self.checkpoint(request.read()?, progress)?.encode()),
            Op::Expire => send(self.expire(request.read()?, progress)?.encode()),
            Op::Export => send(self.export(request.read()?, progress)?.encode()),
            Op::Name => send(names::name(self.store, &request.read()?)?.encode()),
            // Steps of a move are not of one store.
            Op::Error | Op::Progress | Op::Move | Op::Take => Err(WireError::malformed(
                "an error where a request was expected",
            )),
        };
        Ok(sent?)
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let undeclared = StoreError::NotDeclared("it is used");
        Ok(self.store.model().ok_or(undeclared)?)
    }

    fn model_of(&self, model::Request: model::Request) -> Result<model::Response, PsError> {
        let model = serde_json::to_string(&*self.model()?)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        Ok(model::Response {
            protocol: self.protocol,
            model,
        })
    }

    fn declare(
        &self,
        request: declare::Request<'_>,
        progress: Progress<'_>,
    ) -> Result<declare::Response, PsError> {
        let model = ModelSpec::from_json(request.model)?;
        let Vectors { dense, state } = request.vectors;
        self.store.declare_showing(model, dense, state, progress)?;
        Ok(declare::Response {
            protocol: self.protocol,
        })
    }

    fn give(&self, request: give::Request<'_>) -> Result<give::Response, PsError> {
        let give::Request {
            table,
            dim,
            keys,
            rows,
        } = request;
        self.store.give(table, dim as usize, keys, rows)?;
        Ok(give::Response)
    }

    fn begin_task(&self, request: begin_task::Request) -> Result<begin_task::Response, PsError> {
        let begin_task::Request { task, lease } = request;
        let next_index = self.store.begin_task(task, lease)?;
        self.coordinator.begun(self.store, task, lease, self.peer);
        Ok(begin_task::Response { next_index })
    }

    fn end_task(&self, request: end_task::Request) -> end_task::Response {
        let end_task::Request { task, lease } = request;
        self.coordinator.ended(self.store, task, lease);
        end_task::Response
    }

    fn skip(&self, request: skip::Request) -> Result<skip::Response, PsError> {
        let Step { task, lease, index } = request.step;
        let skipped = self.store.skip(task, lease, index);
        self.coordinator.skipped(request.step);
        skipped?;
        Ok(skip::Response)
    }

    fn pull(&mut self, request: &pull::Request<'_>) -> Result<pull::Response<'_>, PsError> {
        let model = self.model()?;
        if !self.may_pull(request.step) {
            return Ok(pull::Response::NotYet);
        }
        let asked = Asked::of(&request.wanted, &model)?;
        let (version, store_nanos) = self.rows.fill(self.store, &model, &asked)?;
        Ok(pull::Response::Pulled {
            version,
            store_nanos,
            rows: self.rows.rows(&asked),
        })
    }

    /// Whether a pull may begin now; the step of one that need not wait is not given.
    fn may_pull(&self, step: Option<Step>) -> bool {
        step.is_none_or(|step| self.coordinator.begin_pull(self.store, step, self.peer))
    }

    fn push(&self, request: &push::Request<'_>) -> Result<push::Response, PsError> {
        let began = Instant::now();
        let outcome = outcome_of(self.apply(request)?)?;
        Ok(push::Response {
            outcome,
            store_nanos: nanos_since(began),
        })
    }

    /// Applies the gradients of several minibatches, in their order and each as an update.
    fn push_each(&self, request: &push_each::Request<'_>) -> Result<push_each::Response, PsError> {
        let began = Instant::now();
        if self.protocol != Protocol::Direct {
            return Err(PsError::Invalid(
                "gradients of several minibatches at a replica that bounds staleness or makes \
                 rounds, expected those of one; do all processes have the same settings?"
                    .to_owned(),
            ));
        }
        let pushes = request.pushes().iter();
        let outcomes = pushes.map(|push| outcome_of(self.apply(push)?));
        let outcomes = outcomes.collect::<Result<Vec<_>, PsError>>()?;
        Ok(push_each::Response::new(&outcomes, nanos_since(began)))
    }

    fn stage(&self, request: &stage::Request<'_>) -> Result<stage::Response, PsError> {
        self.apply(&request.0)?;
        Ok(stage::Response)
    }

    /// Applies a push, then answers what the next step needs of the parameters.
    ///
    /// A pull that is refused refuses all: the client repeats the push by itself, which changes
    /// nothing, and is told what became of it.
    fn push_pull(
        &mut self,
        request: &push_pull::Request<'_>,
    ) -> Result<push_pull::Response<'_>, PsError> {
        let model = self.model()?;
        let asked = Asked::of(&request.wanted, &model)?;
        let outcome = outcome_of(self.apply(&request.push)?)?;
        if outcome == Outcome::NotYet || !self.may_pull(request.next()) {
            return Ok(push_pull::Response {
                outcome,
                pulled: None,
            });
        }
        let (version, _) = self.rows.fill(self.store, &model, &asked)?;
        Ok(push_pull::Response {
            outcome,
            pulled: Some((version, self.rows.rows(&asked))),
        })
    }

    fn commit(&self, request: &commit::Request<'_>) -> Result<commit::Response, PsError> {
        self.coordinator.commit(self.store, &request.round)?;
        Ok(commit::Response)
    }

    fn commit_pull(
        &mut self,
        request: &commit_pull::Request<'_>,
    ) -> Result<commit_pull::Response<'_>, PsError> {
        let model = self.model()?;
        let asked = Asked::of(&request.wanted, &model)?;
        self.commit(&request.commit)?;
        let (version, _) = self.rows.fill(self.store, &model, &asked)?;
        Ok(commit_pull::Response {
            version,
            rows: self.rows.rows(&asked),
        })
    }

    /// Hands a gradient to those who decide when it counts.
    fn apply(&self, request: &push::Request<'_>) -> Result<Pushed, PsError> {
        let widened: Vec<_> = request.tables.iter().map(widened).collect();
        let tables = request.tables.iter().zip(&widened);
        let tables: Vec<_> = tables
            .map(|(table, widened)| TableGrads {
                table: table.rows.table,
                keys: table.keys,
                grads: match table.rows.values {
                    RowValues::Full(grads) => grads,
                    RowValues::Half(..) => widened,
                },
            })
            .collect();
        let Step { task, lease, index } = request.step;
        let push = Push {
            task,
            lease,
            index,
            num_records: request.num_records,
            learning_rate: request.learning_rate,
            pulled_version: request.pulled_version,
            tables: &tables,
            dense: request.vectors.dense,
            state: request.vectors.state,
        };
        match request.num_minibatches {
            1 => self.coordinator.push(self.store, &push, self.peer),
            several => self.coordinator.push_several(self.store, &push, several),
        }
    }

    fn scan(&self, request: scan::Request) -> Result<scan::Response, PsError> {
        let scan::Request { table, cursor } = request;
        let dim = dim_of(&*self.model()?, table)?;
        let chunk = self.store.scan(table, cursor, scan_rows(dim))?;
        Ok(scan::Response {
            table,
            dim: dim as u32,
            keys: chunk.keys,
            rows: chunk.rows,
            next: chunk.next,
        })
    }

    fn audit(&self, audit::Request { first }: audit::Request) -> audit::Response {
        self.store.forget_tasks_before(first);
        let tasks = self.store.audit().into_iter();
        let tasks = tasks.map(|task| audit::AuditedTask {
            task: task.task,
            next_index: u64::from(task.next_index),
            num_records: task.num_records,
        });
        audit::Response {
            tasks: tasks.collect(),
        }
    }

    fn stats(&self, stats::Request: stats::Request) -> Result<stats::Response, PsError> {
        Ok(stats::Response {
            counters: stats_json(self.store)?,
        })
    }

    fn checkpoint(
        &self,
        request: checkpoint::Request<'_>,
        progress: Progress<'_>,
    ) -> Result<checkpoint::Response, PsError> {
        Ok(checkpoint::Response {
            entry: far::checkpoint(self.store, request.directory, self.far, progress)?,
        })
    }

    fn expire(
        &self,
        request: expire::Request,
        progress: Progress<'_>,
    ) -> Result<expire::Response, PsError> {
        Ok(expire::Response {
            expired: life::expire(self.store, request.now, progress)?,
        })
    }

    fn export(
        &self,
        request: export::Request<'_>,
        progress: Progress<'_>,
    ) -> Result<export::Response, PsError> {
        Ok(export::Response {
            written: far::export(self.store, request.request, self.far, progress)?,
        })
    }
}

/// Returns the answer to a push that was not staged.
fn outcome_of(pushed: Pushed) -> Result<Outcome, PsError> {
    match pushed {
        Pushed::Applied(applied) => Ok(Outcome::Applied {
            version: applied.version,
            staleness: applied.staleness,
            now: applied.applied,
        }),
        Pushed::InRound(round, staleness) => Ok(Outcome::InRound { round, staleness }),
        Pushed::NotYet => Ok(Outcome::NotYet),
        Pushed::Staged => Err(PsError::Invalid(
            "a push of a gradient that is only staged; do all ps replicas have the same settings?"
                .to_owned(),
        )),
    }
}

/// Counters of a store, as JSON.
///
/// # Errors
/// None that are known.
pub fn stats_json(store: &Store) -> Result<String, PsError> {
    serde_json::to_string(&store.stats())
        .map_err(|error| PsError::System(format!("counters cannot be written: {error}")))
}

/// Gradients that travelled as 16-bit floats; empty for others.
fn widened(table: &TableGradients<'_>) -> Vec<f32> {
    match table.rows.values {
        RowValues::Full(_) => Vec::new(),
        RowValues::Half(element, halves) => {
            let mut rows = vec![0.0; halves.len()];
            widen(element, halves, &mut rows);
            rows
        }
    }
}
