//! The store of a process, as Python has it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edl_store::{ColdRoom, Parts, RoundMember};
use numpy::PyUntypedArrayMethods;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::timeout_of;
use crate::arrays::{array, array_mut};
use crate::errors::ps_error;

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct Progress {
    pieces: Arc<AtomicU64>,
}

#[pymethods]
impl Progress {
    #[new]
    fn new() -> Self {
        Self {
            pieces: Arc::default(),
        }
    }

    fn note(&self) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
    }

    #[getter]
    fn pieces(&self) -> u64 {
        self.pieces.load(Ordering::Relaxed)
    }
}

/// Return what counts each piece, for whoever looks on.
fn counter(progress: Option<Py<Progress>>) -> impl Fn() + Send + Sync {
    let pieces = progress.map(|progress| progress.get().pieces.clone());
    let pieces = pieces.unwrap_or_default();
    move || {
        pieces.fetch_add(1, Ordering::Relaxed);
    }
}

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct Store {
    pub(super) store: Arc<edl_store::Store>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (replica = 0, num_replicas = 1, disk = None))]
    fn new(replica: u32, num_replicas: u32, disk: Option<Disk>) -> PyResult<Self> {
        check_replica(replica, num_replicas)?;
        let store = match room_of(disk) {
            None => edl_store::Store::new(replica, num_replicas),
            Some(room) => edl_store::Store::on_disk(replica, num_replicas, &room)
                .map_err(|error| ps_error(error.into()))?,
        };
        Ok(Self {
            store: Arc::new(store),
        })
    }

    #[staticmethod]
    #[pyo3(signature = (
        checkpoint, replica = 0, num_replicas = 1, keep_watermarks = true, progress = None,
        disk = None
    ))]
    fn restore(
        py: Python<'_>,
        checkpoint: PathBuf,
        replica: u32,
        num_replicas: u32,
        keep_watermarks: bool,
        progress: Option<Py<Progress>>,
        disk: Option<Disk>,
    ) -> PyResult<Self> {
        check_replica(replica, num_replicas)?;
        let room = room_of(disk);
        let count = counter(progress);
        let restored = py.detach(|| {
            edl_store::Store::restore_showing(
                &checkpoint,
                replica,
                num_replicas,
                keep_watermarks,
                room.as_ref(),
                &count,
            )
        });
        let store = Arc::new(restored.map_err(|error| ps_error(error.into()))?);
        Ok(Self { store })
    }

    #[staticmethod]
    #[pyo3(signature = (
        rows, vectors, replica = 0, num_replicas = 1, progress = None, disk = None
    ))]
    fn restore_parts(
        py: Python<'_>,
        rows: Option<PathBuf>,
        vectors: Option<PathBuf>,
        replica: u32,
        num_replicas: u32,
        progress: Option<Py<Progress>>,
        disk: Option<Disk>,
    ) -> PyResult<Self> {
        check_replica(replica, num_replicas)?;
        let room = room_of(disk);
        let parts = match (&rows, &vectors) {
            (Some(rows), Some(vectors)) => Parts::Both { rows, vectors },
            (Some(rows), None) => Parts::Rows(rows),
            (None, Some(vectors)) => Parts::Vectors(vectors),
            (None, None) => return Err(PyValueError::new_err("expected rows or vectors")),
        };
        let count = counter(progress);
        let restored = py.detach(|| {
            edl_store::Store::restore_parts(parts, replica, num_replicas, room.as_ref(), &count)
        });
        let store = Arc::new(restored.map_err(|error| ps_error(error.into()))?);
        Ok(Self { store })
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| edl_ps::stats(&self.store)).map_err(ps_error)
    }

    #[getter]
    fn lost_rows(&self) -> Option<String> {
        self.store.lost_rows().map(|error| error.to_string())
    }

    fn modulate_learning_rate(&self) {
        self.store.modulate_learning_rate();
    }

    fn refuse_leases_before(&self, first: u32) {
        self.store.refuse_leases_before(first);
    }

    fn export(&self, py: Python<'_>, request: &str) -> PyResult<String> {
        py.detach(|| edl_ps::export(&self.store, request))
            .map_err(ps_error)
    }

    fn begin_with(
        &self,
        py: Python<'_>,
        table: &str,
        source: &str,
        keys: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (keys, rows) = (array::<i64>(keys, "keys")?, array::<f32>(rows, "rows")?);
        let &[num_rows, dim] = rows.shape() else {
            return Err(PyValueError::new_err("rows: expected an array (n, dim)"));
        };
        if keys.shape() != [num_rows] {
            return Err(PyValueError::new_err("keys: expected one of each row"));
        }
        // Ids are the same 64 bits on both sides; only Python calls them signed.
        let (keys, rows) = (bytemuck::cast_slice(keys.as_slice()?), rows.as_slice()?);
        py.detach(|| self.store.begin_with(table, source, dim, keys, rows))
            .map_err(|error| ps_error(error.into()))
    }

    #[pyo3(signature = (num_bytes))]
    fn set_memory_limit(&self, num_bytes: Option<u64>) {
        self.store.set_memory_limit(num_bytes);
    }

    #[pyo3(signature = (directory, wait_seconds = None))]
    fn checkpoint(
        &self,
        py: Python<'_>,
        directory: PathBuf,
        wait_seconds: Option<f64>,
    ) -> PyResult<String> {
        let wait = wait_seconds.map(|seconds| timeout_of("wait_seconds", seconds));
        let wait = wait.transpose()?.unwrap_or(Duration::ZERO);
        py.detach(|| self.store.checkpoint_within(&directory, wait))
            .map_err(|error| ps_error(error.into()))
    }

    #[pyo3(signature = (directory, limit_bytes, progress = None))]
    fn redo(
        &self,
        py: Python<'_>,
        directory: PathBuf,
        limit_bytes: u64,
        progress: Option<Py<Progress>>,
    ) -> PyResult<(u64, u64)> {
        let count = counter(progress);
        py.detach(|| self.store.redo(&directory, limit_bytes, &count))
            .map(|redone| (redone.num_updates, redone.num_minibatches))
            .map_err(|error| ps_error(error.into()))
    }

    fn trim_redo_log(&self, py: Python<'_>) -> Option<(u64, bool, Option<String>)> {
        let state = py.detach(|| self.store.trim_redo_log())?;
        Some((state.num_bytes, state.wants_checkpoint, state.problem))
    }

    fn outline(&self) -> PyResult<String> {
        self.store.outline().map_err(|error| ps_error(error.into()))
    }

    fn take_outline(&self, outline: &str) -> PyResult<()> {
        let taken = self.store.take_outline(outline);
        taken.map_err(|error| ps_error(error.into()))
    }

    #[getter]
    fn num_slots(&self) -> PyResult<usize> {
        let found = self.store.num_slots();
        found.map_err(|error| ps_error(error.into()))
    }

    fn read_part(
        &self,
        py: Python<'_>,
        start: usize,
        end: usize,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut out = array_mut::<f32>(out, "out")?;
        let out = out.as_slice_mut()?;
        py.detach(|| self.store.read_part(start..end, out))
            .map_err(|error| ps_error(error.into()))
    }

    fn write_part(
        &self,
        py: Python<'_>,
        start: usize,
        end: usize,
        values: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let values = array::<f32>(values, "values")?;
        let values = values.as_slice()?;
        py.detach(|| self.store.write_part(start..end, values))
            .map_err(|error| ps_error(error.into()))
    }

    fn apply_round(
        &self,
        py: Python<'_>,
        members: Vec<RoundPart>,
        learning_rate: f32,
        dense_grad: &Bound<'_, PyAny>,
        state_delta: &Bound<'_, PyAny>,
    ) -> PyResult<u64> {
        let (dense, state) = (
            array(dense_grad, "dense_grad")?,
            array(state_delta, "state_delta")?,
        );
        let (dense, state) = (dense.as_slice()?, state.as_slice()?);
        let members = round_of(&members)?;
        py.detach(|| edl_ps::apply_whole(&self.store, members, learning_rate, dense, state))
            .map_err(ps_error)
    }
}

/// A folder, and the bytes that rows may take in memory.
type Disk = (PathBuf, u64);

fn room_of(disk: Option<Disk>) -> Option<ColdRoom> {
    disk.map(|(folder, memory_limit)| ColdRoom {
        folder,
        memory_limit,
    })
}

/// Task, lease, first minibatch, how many, records.
type RoundPart = (u64, u32, u32, u32, u32);

/// The minibatches of a round in the order of their tasks, each of another one.
fn round_of(members: &[RoundPart]) -> PyResult<Vec<RoundMember>> {
    let mut round: Vec<_> = members
        .iter()
        .map(
            |&(task, lease, index, num_minibatches, num_records)| RoundMember {
                task,
                lease,
                index,
                num_minibatches,
                num_records,
                pulled_version: 0,
            },
        )
        .collect();
    round.sort_unstable_by_key(|member| member.task);
    match round.windows(2).find(|pair| pair[0].task == pair[1].task) {
        None => Ok(round),
        Some(pair) => Err(PyValueError::new_err(format!(
            "members: task {} is there twice, expected each task once",
            pair[0].task
        ))),
    }
}

fn check_replica(replica: u32, num_replicas: u32) -> PyResult<()> {
    if replica < num_replicas && num_replicas <= edl_store::NUM_HASH_SLOTS {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "replica {replica} of {num_replicas}: there may be 1 to {} replicas, numbered from 0",
        edl_store::NUM_HASH_SLOTS
    )))
}
