//! The store's public face.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use edl_optim::Optimizer;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::initial::Generator;
use crate::route::{dense_range, hash, replica_of, unhash};
use crate::spec::ModelSpec;

/// Whether a pull creates the rows that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullMode {
    /// Training: missing rows are created.
    Create,
    /// Evaluation: a missing row reads as the initializer's centre.
    ReadOnly,
}

/// Gradients of one table's rows.
#[derive(Debug, Clone, Copy)]
pub struct TableGrads<'a> {
    /// The table's number.
    pub table: u32,
    /// Unique keys.
    pub keys: &'a [u64],
    /// A gradient for each key, `keys.len() * dim` floats.
    pub grads: &'a [f32],
}

/// One minibatch's gradients.
#[derive(Debug, Clone, Copy)]
pub struct Push<'a> {
    /// The task that the minibatch is of.
    pub task: u64,
    /// The lease under which it was computed.
    pub lease: u32,
    /// Which minibatch of the task.
    pub index: u32,
    /// Records in the minibatch.
    pub num_records: u32,
    /// The learning rate of this step.
    pub learning_rate: f32,
    /// The version that this replica's pull reported.
    pub pulled_version: u64,
    /// Gradients by table.
    pub tables: &'a [TableGrads<'a>],
    /// This replica's range of the dense gradient.
    pub dense: &'a [f32],
    /// This replica's range of the state's change.
    pub state: &'a [f32],
}

/// What became of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// False if the minibatch had been applied before.
    pub applied: bool,
    /// The replica's version after it.
    pub version: u64,
    /// Updates between the pull and this push.
    pub staleness: u64,
}

/// Some rows of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Their keys.
    pub keys: Vec<u64>,
    /// Their weights, `keys.len() * dim` floats.
    pub rows: Vec<f32>,
    /// The cursor to go on from, or `None` at the end.
    pub next: Option<u64>,
}

/// What has been applied of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskAudit {
    /// The task.
    pub task: u64,
    /// Minibatches applied or skipped: the next index.
    pub next_index: u32,
    /// Records in those that were applied.
    pub num_records: u64,
}

/// Counters of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStats {
    /// The table's name.
    pub name: String,
    /// Rows created.
    pub rows: u64,
    /// Bytes held for them: rows, slots and index.
    pub bytes: u64,
}

/// Staleness of the pushes applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// Sum over pushes.
    pub sum: u64,
    /// The largest.
    pub max: u64,
    /// Number of pushes.
    pub count: u64,
}

/// Counters of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// This replica's number.
    pub replica: u32,
    /// Updates applied.
    pub version: u64,
    /// By table.
    pub tables: Vec<TableStats>,
    /// How late gradients came.
    pub staleness: Staleness,
    /// Bytes held for tables and vectors.
    pub resident_bytes: u64,
}

#[derive(Default)]
struct Task {
    lease: u32,
    next_index: u32,
    num_records: u64,
}

struct Table {
    dim: usize,
    optimizer: Optimizer,
    generator: Generator,
    rows: BTreeMap<u64, Vec<f32>>,
}

struct Inner {
    model: Arc<ModelSpec>,
    tables: Vec<Table>,
    optimizer: Optimizer,
    dense: Vec<f32>,
    slots: Vec<f32>,
    state: Vec<f32>,
    version: u64,
    staleness: Staleness,
    tasks: HashMap<u64, Task>,
}

/// The part of a model that one ps replica holds; shared by threads.
pub struct Store {
    replica: u32,
    num_replicas: u32,
    inner: Mutex<Option<Inner>>,
}

fn check_len(what: &str, expected: usize, found: usize) -> Result<(), StoreError> {
    if expected == found {
        return Ok(());
    }
    Err(StoreError::WrongLength {
        what: what.to_owned(),
        expected,
        found,
    })
}

impl Table {
    fn row(&mut self, key: u64) -> &mut Vec<f32> {
        let width = self.dim * (1 + self.optimizer.num_slots());
        self.rows.entry(hash(key)).or_insert_with(|| {
            let mut row = vec![0.0; width];
            self.generator.fill(key, &mut row[..self.dim]);
            self.optimizer.fill_slots(&mut row[self.dim..]);
            row
        })
    }
}

impl Inner {
    fn table(&mut self, table: u32) -> Result<&mut Table, StoreError> {
        let num_tables = self.tables.len();
        self.tables
            .get_mut(table as usize)
            .ok_or(StoreError::UnknownTable { table, num_tables })
    }
}

impl Store {
    /// Make an empty store.
    pub fn new(replica: u32, num_replicas: u32) -> Self {
        Self {
            replica,
            num_replicas,
            inner: Mutex::new(None),
        }
    }

    /// Return this replica's number.
    pub fn replica(&self) -> u32 {
        self.replica
    }

    /// Return the number of replicas.
    pub fn num_replicas(&self) -> u32 {
        self.num_replicas
    }

    /// Return the model, once it is declared.
    pub fn model(&self) -> Option<Arc<ModelSpec>> {
        self.inner.lock().as_ref().map(|inner| inner.model.clone())
    }

    /// Say what the model is; the first to say it gives the values of this replica's ranges.
    ///
    /// # Errors
    /// A model that cannot be, or that differs from the one declared before.
    pub fn declare(
        &self,
        model: ModelSpec,
        dense: &[f32],
        state: &[f32],
    ) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let range = |len| dense_range(len, self.replica, self.num_replicas).len();
        let dense_len = range(model.dense_len()?);
        check_len("the dense vector", dense_len, dense.len())?;
        check_len("the state vector", range(model.state_len()?), state.len())?;
        if let Some(known) = &*inner {
            return match model.difference(&known.model) {
                None => Ok(()),
                Some(said) => Err(StoreError::ModelMismatch(format!(
                    "{said}; do all workers run the same model?"
                ))),
            };
        }
        let mut tables = Vec::new();
        for spec in &model.tables {
            let kind = spec.initializer.parse().map_err(StoreError::BadModel)?;
            tables.push(Table {
                dim: spec.dim as usize,
                optimizer: spec.optimizer.parse()?,
                generator: Generator::new(model.seed, spec, kind),
                rows: BTreeMap::new(),
            });
        }
        let optimizer = model.optimizer.parse()?;
        let mut slots = vec![0.0; dense.len() * optimizer.num_slots()];
        optimizer.fill_slots(&mut slots);
        *inner = Some(Inner {
            model: Arc::new(model),
            tables,
            optimizer,
            dense: dense.to_vec(),
            slots,
            state: state.to_vec(),
            version: 0,
            staleness: Staleness::default(),
            tasks: HashMap::new(),
        });
        Ok(())
    }

    fn with<T>(
        &self,
        asked: &'static str,
        work: impl FnOnce(&mut Inner) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        match &mut *self.inner.lock() {
            Some(inner) => work(inner),
            None => Err(StoreError::NotDeclared(asked)),
        }
    }

    /// Fence off older leases of a task and return the minibatch to go on from.
    ///
    /// # Errors
    /// [`StoreError::StaleLease`] if a newer lease has begun.
    pub fn begin_task(&self, task: u64, lease: u32) -> Result<u32, StoreError> {
        self.with("a task begins", |inner| {
            let state = inner.tasks.entry(task).or_default();
            fence(task, state, lease)?;
            Ok(state.next_index)
        })
    }

    /// Write the rows of unique `keys` to `out`, `keys.len() * dim` floats.
    ///
    /// # Errors
    /// An unknown table or wrong length.
    pub fn pull_rows(
        &self,
        table: u32,
        keys: &[u64],
        mode: PullMode,
        out: &mut [f32],
    ) -> Result<(), StoreError> {
        self.with("rows are pulled", |inner| {
            let table = inner.table(table)?;
            check_len("the array for rows", keys.len() * table.dim, out.len())?;
            let dim = table.dim;
            for (&key, out) in keys.iter().zip(out.chunks_exact_mut(dim)) {
                self.check_owner(key)?;
                match mode {
                    PullMode::Create => out.copy_from_slice(&table.row(key)[..dim]),
                    PullMode::ReadOnly => match table.rows.get(&hash(key)) {
                        Some(row) => out.copy_from_slice(&row[..dim]),
                        None => out.fill(table.generator.centre()),
                    },
                }
            }
            Ok(())
        })
    }

    fn check_owner(&self, key: u64) -> Result<(), StoreError> {
        let owner = replica_of(key, self.num_replicas);
        if owner == self.replica {
            return Ok(());
        }
        Err(StoreError::WrongReplica {
            key,
            owner,
            replica: self.replica,
            num_replicas: self.num_replicas,
        })
    }

    /// Copy this replica's ranges of the dense and state vectors, and return the version.
    ///
    /// # Errors
    /// Wrong lengths.
    pub fn pull_vectors(&self, dense: &mut [f32], state: &mut [f32]) -> Result<u64, StoreError> {
        self.with("vectors are pulled", |inner| {
            check_len("the array for dense", inner.dense.len(), dense.len())?;
            check_len("the array for state", inner.state.len(), state.len())?;
            dense.copy_from_slice(&inner.dense);
            state.copy_from_slice(&inner.state);
            Ok(inner.version)
        })
    }

    /// Apply one minibatch's gradients, once.
    ///
    /// # Errors
    /// An old lease, a gap in the minibatches, or arrays that do not fit the model.
    pub fn apply(&self, push: &Push<'_>) -> Result<Applied, StoreError> {
        self.with("gradients are pushed", |inner| {
            check_len("the dense gradient", inner.dense.len(), push.dense.len())?;
            check_len("the state's change", inner.state.len(), push.state.len())?;
            for grads in push.tables {
                let dim = inner.table(grads.table)?.dim;
                check_len(
                    "the rows' gradient",
                    grads.keys.len() * dim,
                    grads.grads.len(),
                )?;
                grads.keys.iter().try_for_each(|&k| self.check_owner(k))?;
            }
            let version = inner.version;
            let task = inner.tasks.entry(push.task).or_default();
            fence(push.task, task, push.lease)?;
            if push.index < task.next_index {
                return Ok(Applied {
                    applied: false,
                    version,
                    staleness: 0,
                });
            }
            if push.index > task.next_index {
                return Err(StoreError::Gap {
                    task: push.task,
                    index: push.index,
                    expected: task.next_index,
                });
            }
            task.next_index += 1;
            task.num_records += u64::from(push.num_records);
            inner.version += 1;
            for grads in push.tables {
                let table = inner.table(grads.table)?;
                let dim = table.dim;
                let step = table.optimizer.step(push.learning_rate, version + 1);
                for (&key, grad) in grads.keys.iter().zip(grads.grads.chunks_exact(dim)) {
                    let (weights, slots) = table.row(key).split_at_mut(dim);
                    step.update(weights, slots, grad);
                }
            }
            let step = inner.optimizer.step(push.learning_rate, version + 1);
            step.update(&mut inner.dense, &mut inner.slots, push.dense);
            for (value, delta) in inner.state.iter_mut().zip(push.state) {
                *value += delta;
            }
            let staleness = version.saturating_sub(push.pulled_version);
            inner.staleness.sum += staleness;
            inner.staleness.count += 1;
            inner.staleness.max = inner.staleness.max.max(staleness);
            Ok(Applied {
                applied: true,
                version: version + 1,
                staleness,
            })
        })
    }

    /// Count a minibatch as dealt with, without an update.
    ///
    /// # Errors
    /// An old lease, or a gap in the minibatches.
    pub fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), StoreError> {
        self.with("a minibatch is skipped", |inner| {
            let state = inner.tasks.entry(task).or_default();
            fence(task, state, lease)?;
            if index > state.next_index {
                return Err(StoreError::Gap {
                    task,
                    index,
                    expected: state.next_index,
                });
            }
            state.next_index = state.next_index.max(index + 1);
            Ok(())
        })
    }

    /// Return up to `max_rows` rows of a table from `cursor` on, which starts at 0.
    ///
    /// # Errors
    /// An unknown table.
    pub fn scan(&self, table: u32, cursor: u64, max_rows: usize) -> Result<Chunk, StoreError> {
        self.with("a table is scanned", |inner| {
            let table = inner.table(table)?;
            let mut chunk = Chunk {
                keys: Vec::new(),
                rows: Vec::new(),
                next: None,
            };
            for (&h, row) in table.rows.range(cursor..) {
                if chunk.keys.len() == max_rows.max(1) {
                    chunk.next = Some(h);
                    break;
                }
                chunk.keys.push(unhash(h));
                chunk.rows.extend_from_slice(&row[..table.dim]);
            }
            Ok(chunk)
        })
    }

    /// Return what has been applied, by task.
    pub fn audit(&self) -> Vec<TaskAudit> {
        let inner = self.inner.lock();
        let mut audit: Vec<_> = inner
            .iter()
            .flat_map(|inner| &inner.tasks)
            .map(|(&task, state)| TaskAudit {
                task,
                next_index: state.next_index,
                num_records: state.num_records,
            })
            .collect();
        audit.sort_by_key(|a| a.task);
        audit
    }

    /// Return counters.
    pub fn stats(&self) -> Stats {
        let inner = self.inner.lock();
        let tables = inner
            .iter()
            .flat_map(|i| i.tables.iter().zip(&i.model.tables));
        Stats {
            replica: self.replica,
            version: inner.as_ref().map_or(0, |i| i.version),
            tables: tables
                .map(|(table, spec)| TableStats {
                    name: spec.name.clone(),
                    rows: table.rows.len() as u64,
                    bytes: 0,
                })
                .collect(),
            staleness: inner
                .as_ref()
                .map_or_else(Staleness::default, |i| i.staleness),
            resident_bytes: 0,
        }
    }

    /// Write this replica's files into `dir`; return its manifest entry, JSON.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn checkpoint(&self, dir: &Path) -> Result<String, StoreError> {
        Err(StoreError::Checkpoint {
            path: dir.to_owned(),
            problem: "cannot be written by this build".to_owned(),
        })
    }

    /// Load this replica's part of a checkpoint that any number of replicas wrote.
    ///
    /// # Errors
    /// Files that are missing, torn, foreign or do not fit each other.
    pub fn restore(
        checkpoint: &Path,
        _replica: u32,
        _num_replicas: u32,
        _keep_watermarks: bool,
    ) -> Result<Self, StoreError> {
        Err(StoreError::Checkpoint {
            path: checkpoint.to_owned(),
            problem: "cannot be read by this build".to_owned(),
        })
    }
}

fn fence(task: u64, state: &mut Task, lease: u32) -> Result<(), StoreError> {
    if lease < state.lease {
        return Err(StoreError::StaleLease {
            task,
            lease,
            current: state.lease,
        });
    }
    state.lease = lease;
    Ok(())
}
