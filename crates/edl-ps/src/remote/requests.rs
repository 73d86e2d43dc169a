//! What each request says to each replica, and how its answers come together.

use std::ops::Range;
use std::sync::Arc;

use edl_store::{Chunk, ModelSpec, PullMode, TaskAudit, dense_range};

use super::connection::text_of;
use super::{Lane, Remote};
use crate::client::Minibatch;
use crate::dedup::{Plan, TablePlan};
use crate::error::PsError;
use crate::frame::{
    Element, Entry, FLAG_CREATE, FLAG_MORE, FLAG_NOT_YET, FLAG_STEP, FLAG_VECTORS, Kind, Op,
    Outgoing,
};
use crate::half_rows::narrow;
use crate::replicas::{Gradients, Replicas, Vectors};
use crate::service::{joined, round_of};
use crate::synchrony::{Part, Protocol, Round, Step};

fn rows_entry(table: &TablePlan, replica: usize) -> Entry {
    Entry {
        kind: Kind::Rows,
        element: table.element,
        table: table.table,
        width: table.dim as u32,
        count: table.range(replica).len() as u64,
    }
}

fn vector_entry(kind: Kind, len: usize) -> Entry {
    Entry {
        kind,
        element: kind.element(),
        table: 0,
        width: 1,
        count: len as u64,
    }
}

/// Cuts a flat vector, or the place for one, into what each replica holds of it.
fn ranges_of(len: usize, num_replicas: usize) -> impl Fn(usize) -> Range<usize> {
    move |replica| dense_range(len, replica as u32, num_replicas as u32)
}

impl Replicas for Remote {
    fn count(&self) -> usize {
        self.endpoints.len()
    }

    fn declare(&self, model: &ModelSpec, dense: &[f32], state: &[f32]) -> Result<(), PsError> {
        let json = serde_json::to_string(model)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        let dense_of = ranges_of(dense.len(), self.count());
        let state_of = ranges_of(state.len(), self.count());
        let request = |replica| {
            Outgoing::new(Op::Declare)
                .text(&json)
                .dense(&dense[dense_of(replica)])
                .state(&state[state_of(replica)])
        };
        // One after the other, so that of two workers the same one is first everywhere.
        for replica in self.all() {
            let alone = replica..replica + 1;
            self.call(
                Lane::Control,
                alone,
                Op::Declare,
                request,
                |_, header, connection| {
                    self.learn(header.args[0])?;
                    connection.read_arrays(header, &mut [])
                },
            )?;
        }
        Ok(())
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let request = |_| Outgoing::new(Op::Model);
        let mut model = None;
        self.call(
            Lane::Control,
            0..1,
            Op::Model,
            request,
            |_, header, connection| {
                self.learn(header.args[0])?;
                model =
                    Some(connection.read_payload(header, |arrays| {
                        Ok(ModelSpec::from_json(text_of(arrays)?)?)
                    })?);
                Ok(())
            },
        )?;
        let unanswered = || PsError::System("the model was not answered".to_owned());
        model.map(Arc::new).ok_or_else(unanswered)
    }

    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        let request = |_| Outgoing::new(Op::BeginTask).args([task, u64::from(lease), 0, 0]);
        let next = self.operands(self.all(), Op::BeginTask, request)?;
        let lowest = next.iter().map(|args| args[0]).min().unwrap_or(0);
        u32::try_from(lowest)
            .map_err(|_| PsError::malformed(format!("a task goes on at minibatch {lowest}")))
    }

    fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        if self.protocol() == Protocol::Direct {
            return Ok(());
        }
        let args = [task, u64::from(lease), 0, 0];
        let request = |_| Outgoing::new(Op::EndTask).args(args);
        self.operands(self.all(), Op::EndTask, request).map(|_| ())
    }

    fn pull(
        &self,
        plan: &Plan,
        mode: PullMode,
        step: Option<Step>,
        rows: &mut [Vec<f32>],
        vectors: Option<Vectors<'_>>,
        versions: &mut [u64],
    ) -> Result<(), PsError> {
        let mut pull = Pull {
            plan,
            mode,
            step,
            rows,
            vectors,
            versions,
        };
        match step {
            Some(_) if self.protocol() == Protocol::Gated => {
                // What the others answer must not be older than the admission by replica 0.
                while !self.pull_from(0..1, &mut pull)? {}
                pull.step = None;
                self.pull_from(1..self.count(), &mut pull).map(|_| ())
            }
            _ => {
                pull.step = None;
                self.pull_from(self.all(), &mut pull).map(|_| ())
            }
        }
    }

    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<(u64, u64), PsError> {
        let dense_of = ranges_of(gradients.dense.len(), self.count());
        let state_of = ranges_of(gradients.state.len(), self.count());
        let halves = halves_of(plan, gradients.rows);
        let request = |op: Op, replica: usize| {
            let request = Outgoing::new(op).args([
                minibatch.task,
                joined(minibatch.lease, minibatch.index),
                joined(minibatch.num_records, minibatch.learning_rate.to_bits()),
                versions[replica],
            ]);
            let tables = plan.tables.iter().zip(gradients.rows).zip(&halves);
            tables
                .fold(request, |request, ((table, grads), halves)| {
                    let request = request.keys(table.table, &table.keys()[table.range(replica)]);
                    let (number, dim) = (table.table, table.dim as u32);
                    let range = table.row_range(replica);
                    match table.element {
                        Element::F16 | Element::Bf16 => {
                            request.half_rows(number, dim, table.element, &halves[range])
                        }
                        Element::U8 | Element::U64 | Element::F32 => {
                            request.rows(number, dim, &grads[range])
                        }
                    }
                })
                .dense(&gradients.dense[dense_of(replica)])
                .state(&gradients.state[state_of(replica)])
        };
        let push = |replica| request(Op::Push, replica);
        let (first, others) = (0..1, 1..self.count());
        let answers = match self.protocol() {
            Protocol::Direct => self.operands(self.all(), Op::Push, push)?,
            Protocol::Gated => {
                // Replica 0 lets go of the pull: nothing of it is under way by then.
                let late = self.operands(others, Op::Push, push)?;
                let mut answers = self.operands(first, Op::Push, push)?;
                answers.extend(late);
                answers
            }
            Protocol::Rounds => {
                self.operands(others.clone(), Op::Stage, |replica| {
                    request(Op::Stage, replica)
                })?;
                let (round, staleness) = self.join_round(|| push(0))?;
                self.commit(others, &round)?;
                return Ok((round.version, staleness));
            }
        };
        let version = answers.first().map_or(0, |args| args[0]);
        Ok((
            version,
            answers.iter().map(|args| args[1]).max().unwrap_or(0),
        ))
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        let args = [task, u64::from(lease), u64::from(index), 0];
        self.operands(self.all(), Op::Skip, |_| Outgoing::new(Op::Skip).args(args))
            .map(|_| ())
    }

    fn scan(&self, replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError> {
        let request = |_| Outgoing::new(Op::Scan).args([u64::from(table), cursor, 0, 0]);
        let mut chunk = Chunk {
            keys: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        let alone = replica..replica + 1;
        self.call(
            Lane::Control,
            alone,
            Op::Scan,
            request,
            |_, header, connection| {
                let more = header.flags & FLAG_MORE != 0;
                chunk = connection.read_payload(header, |arrays| match arrays {
                    [keys, rows] if keys.entry.count == rows.entry.count => Ok(Chunk {
                        keys: keys.u64s()?.to_vec(),
                        rows: rows.f32s()?.to_vec(),
                        next: more.then_some(header.args[0]),
                    }),
                    _ => Err(PsError::malformed(
                        "a scan without a row for each key".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(chunk)
    }

    fn audit(&self) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        let mut audits = vec![Vec::new(); self.count()];
        let request = |_| Outgoing::new(Op::Audit);
        let all = self.all();
        self.call(
            Lane::Control,
            all,
            Op::Audit,
            request,
            |replica, header, connection| {
                audits[replica] = connection.read_payload(header, |arrays| match arrays {
                    [triples] => audit_of(triples.u64s()?),
                    _ => Err(PsError::malformed(
                        "an audit without its triples".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(audits)
    }

    fn stats(&self) -> Result<Vec<String>, PsError> {
        self.texts(Op::Stats, "")
    }

    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Checkpoint, directory)
    }

    fn expire(&self, now: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Expire, now)
    }

    fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Export, request)
    }

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        let endpoint = self.endpoints.get(replica).ok_or_else(|| {
            PsError::Invalid(format!("ps replica {replica} of {}", self.endpoints.len()))
        })?;
        endpoint.move_to(address);
        Ok(())
    }
}

/// The gradients of those tables whose rows travel as 16-bit floats.
fn halves_of(plan: &Plan, rows: &[Vec<f32>]) -> Vec<Vec<u16>> {
    let tables = plan.tables.iter().zip(rows);
    let halves = tables.map(|(table, rows)| match table.element {
        Element::F16 | Element::Bf16 => {
            let mut halves = vec![0; rows.len()];
            narrow(table.element, rows, &mut halves);
            halves
        }
        Element::U8 | Element::U64 | Element::F32 => Vec::new(),
    });
    halves.collect()
}

/// A pull, and where its answers go.
struct Pull<'a> {
    plan: &'a Plan,
    mode: PullMode,
    step: Option<Step>,
    rows: &'a mut [Vec<f32>],
    vectors: Option<Vectors<'a>>,
    versions: &'a mut [u64],
}

impl Remote {
    fn learn(&self, protocol: u64) -> Result<(), PsError> {
        let protocol = Protocol::from_code(protocol)?;
        // All replicas say the same, and what a relaunched one says is what it said before.
        let _ = self.protocol.set(protocol);
        Ok(())
    }

    /// Pulls from some of the replicas; false if one says "not yet".
    fn pull_from(&self, replicas: Range<usize>, pull: &mut Pull<'_>) -> Result<bool, PsError> {
        let mut flags = 0;
        let mut args = [0; 4];
        if pull.mode == PullMode::Create {
            flags |= FLAG_CREATE;
        }
        if pull.vectors.is_some() {
            flags |= FLAG_VECTORS;
        }
        if let Some(Step { task, lease, index }) = pull.step {
            flags |= FLAG_STEP;
            args = [task, joined(lease, index), 0, 0];
        }
        let plan = pull.plan;
        let request = |replica: usize| {
            let request = Outgoing::new(Op::Pull).flags(flags).args(args);
            plan.tables.iter().fold(request, |request, table| {
                request.keys(table.table, &table.keys()[table.range(replica)])
            })
        };
        let lens = pull
            .vectors
            .as_ref()
            .map_or((0, 0), |v| (v.dense.len(), v.state.len()));
        let dense_of = ranges_of(lens.0, self.count());
        let state_of = ranges_of(lens.1, self.count());
        let mut granted = true;
        self.call(
            Lane::Pull,
            replicas,
            Op::Pull,
            request,
            |replica, header, connection| {
                if header.flags & FLAG_NOT_YET != 0 {
                    granted = false;
                    return connection.read_arrays(header, &mut []);
                }
                let tables = plan.tables.iter().zip(pull.rows.iter_mut());
                let mut places: Vec<(Entry, &mut [f32])> = tables
                    .map(|(table, rows)| {
                        let place = &mut rows[table.row_range(replica)];
                        (rows_entry(table, replica), place)
                    })
                    .collect();
                if let Some(vectors) = &mut pull.vectors {
                    let dense = &mut vectors.dense[dense_of(replica)];
                    let state = &mut vectors.state[state_of(replica)];
                    places.push((vector_entry(Kind::Dense, dense.len()), dense));
                    places.push((vector_entry(Kind::State, state.len()), state));
                }
                connection.read_arrays(header, &mut places)?;
                pull.versions[replica] = header.args[0];
                Ok(())
            },
        )?;
        Ok(granted)
    }

    /// Hands replica 0 its part of a gradient and waits for its round; the staleness beside it.
    fn join_round<'a>(&self, request: impl Fn() -> Outgoing<'a>) -> Result<(Round, u64), PsError> {
        loop {
            let mut answer = None;
            self.call(
                Lane::Push,
                0..1,
                Op::Push,
                |_| request(),
                |_, header, connection| {
                    if header.flags & FLAG_NOT_YET != 0 {
                        return connection.read_arrays(header, &mut []);
                    }
                    let round =
                        connection.read_payload(header, |arrays| round_of(header, arrays))?;
                    answer = Some((round, header.args[1]));
                    Ok(())
                },
            )?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    /// Has the other replicas do what replica 0 has done.
    fn commit(&self, replicas: Range<usize>, round: &Round) -> Result<(), PsError> {
        let parts: Vec<[u64; 4]> = round.parts.iter().map(Part::encode).collect();
        let learning_rate = u64::from(round.learning_rate.to_bits());
        let args = [round.version, 0, learning_rate, 0];
        let request = |_| Outgoing::new(Op::Commit).args(args).parts(&parts);
        self.operands(replicas, Op::Commit, request).map(|_| ())
    }
}

fn audit_of(triples: &[u64]) -> Result<Vec<TaskAudit>, PsError> {
    let tasks = triples.as_chunks::<3>().0.iter();
    tasks
        .map(|&[task, next_index, num_records]| {
            let next_index = u32::try_from(next_index).map_err(|_| {
                PsError::malformed(format!("task {task} with {next_index} minibatches"))
            })?;
            Ok(TaskAudit {
                task,
                next_index,
                num_records,
            })
        })
        .collect()
}
