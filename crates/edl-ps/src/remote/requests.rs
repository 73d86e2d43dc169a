//! What each request says to each replica, and how its answers come together.

use std::ops::Range;
use std::sync::Arc;

use edl_store::{Chunk, ModelSpec, PullMode, TaskAudit, dense_range};

use super::connection::text_of;
use super::{Lane, Remote};
use crate::client::Minibatch;
use crate::dedup::{Plan, TablePlan};
use crate::error::PsError;
use crate::frame::{Entry, FLAG_CREATE, FLAG_MORE, FLAG_VECTORS, Kind, Op, Outgoing};
use crate::replicas::{Gradients, Replicas, Vectors};

/// Two 32-bit operands in one field: (lower, upper).
fn joined(lower: u32, upper: u32) -> u64 {
    u64::from(lower) | u64::from(upper) << 32
}

fn rows_entry(table: &TablePlan, replica: usize) -> Entry {
    Entry {
        kind: Kind::Rows,
        table: table.table,
        width: table.dim as u32,
        count: table.range(replica).len() as u64,
    }
}

fn vector_entry(kind: Kind, len: usize) -> Entry {
    Entry {
        kind,
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
                |_, header, connection| connection.read_arrays(header, &mut []),
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
        let next = self.operands(Op::BeginTask, request)?;
        let lowest = next.iter().map(|args| args[0]).min().unwrap_or(0);
        u32::try_from(lowest)
            .map_err(|_| PsError::malformed(format!("a task goes on at minibatch {lowest}")))
    }

    fn pull(
        &self,
        plan: &Plan,
        mode: PullMode,
        rows: &mut [Vec<f32>],
        mut vectors: Option<Vectors<'_>>,
        versions: &mut [u64],
    ) -> Result<(), PsError> {
        let create = if mode == PullMode::Create {
            FLAG_CREATE
        } else {
            0
        };
        let flags = create | if vectors.is_some() { FLAG_VECTORS } else { 0 };
        let request = |replica: usize| {
            let request = Outgoing::new(Op::Pull).flags(flags);
            plan.tables.iter().fold(request, |request, table| {
                request.keys(table.table, &table.keys()[table.range(replica)])
            })
        };
        let lens = vectors
            .as_ref()
            .map_or((0, 0), |v| (v.dense.len(), v.state.len()));
        let dense_of = ranges_of(lens.0, self.count());
        let state_of = ranges_of(lens.1, self.count());
        self.call(
            Lane::Pull,
            self.all(),
            Op::Pull,
            request,
            |replica, header, connection| {
                let mut places: Vec<(Entry, &mut [f32])> = plan
                    .tables
                    .iter()
                    .zip(rows.iter_mut())
                    .map(|(table, rows)| {
                        (
                            rows_entry(table, replica),
                            &mut rows[table.row_range(replica)],
                        )
                    })
                    .collect();
                if let Some(vectors) = &mut vectors {
                    let dense = &mut vectors.dense[dense_of(replica)];
                    let state = &mut vectors.state[state_of(replica)];
                    places.push((vector_entry(Kind::Dense, dense.len()), dense));
                    places.push((vector_entry(Kind::State, state.len()), state));
                }
                connection.read_arrays(header, &mut places)?;
                versions[replica] = header.args[0];
                Ok(())
            },
        )
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
        let request = |replica: usize| {
            let request = Outgoing::new(Op::Push).args([
                minibatch.task,
                joined(minibatch.lease, minibatch.index),
                joined(minibatch.num_records, minibatch.learning_rate.to_bits()),
                versions[replica],
            ]);
            let tables = plan.tables.iter().zip(gradients.rows);
            tables
                .fold(request, |request, (table, grads)| {
                    request
                        .keys(table.table, &table.keys()[table.range(replica)])
                        .rows(
                            table.table,
                            table.dim as u32,
                            &grads[table.row_range(replica)],
                        )
                })
                .dense(&gradients.dense[dense_of(replica)])
                .state(&gradients.state[state_of(replica)])
        };
        let answers = self.operands(Op::Push, request)?;
        let version = answers.first().map_or(0, |args| args[0]);
        Ok((
            version,
            answers.iter().map(|args| args[1]).max().unwrap_or(0),
        ))
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        let args = [task, u64::from(lease), u64::from(index), 0];
        self.operands(Op::Skip, |_| Outgoing::new(Op::Skip).args(args))
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

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        let endpoint = self.endpoints.get(replica).ok_or_else(|| {
            PsError::Invalid(format!("ps replica {replica} of {}", self.endpoints.len()))
        })?;
        endpoint.move_to(address);
        Ok(())
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
