//! Python classes of `edl-ps`: they check arrays, release the GIL, and hand over.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use edl_ps::{
    COPY, Credentials, Cursor, Door, FarFiles, GivenRows, Minibatch, NameSite, PS, PsError,
    Receipt, Remote, RemoteOptions, Step, StepGradients, Synchrony, TlsFiles, Wanted, WireService,
};
use edl_store::{PullMode, RoundMember};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use crate::arrays::{Grads, Ids, array, shaped};
use crate::errors::ps_error;
use crate::far;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Progress>()?;
    module.add_class::<Store>()?;
    module.add_class::<PsServer>()?;
    module.add_class::<PsClient>()?;
    module.add_class::<Pulled>()?;
    module.add_function(wrap_pyfunction!(take_hot_keys, module)?)?;
    module.add_function(wrap_pyfunction!(traffic, module)?)
}

/// Table, ids counted, and of the hottest keys (key, count).
type Hot = (String, u64, Vec<(i64, u64)>);

#[pyfunction]
fn take_hot_keys() -> Vec<Hot> {
    let tables = edl_ps::take_hot_keys().into_iter();
    let tables = tables.map(|hot| {
        // Ids are the same 64 bits on both sides; only Python calls them signed.
        let keys = hot.keys.into_iter().map(|(key, count)| (key as i64, count));
        (hot.table, hot.num_ids, keys.collect())
    });
    tables.collect()
}

/// Return the bytes that this process has sent and received.
#[pyfunction]
fn traffic() -> (u64, u64) {
    edl_ps::traffic()
}

#[pyclass(frozen, module = "elasticdl._core")]
struct Progress {
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

#[pyclass(frozen, module = "elasticdl._core")]
struct Store {
    store: Arc<edl_store::Store>,
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (replica = 0, num_replicas = 1))]
    fn new(replica: u32, num_replicas: u32) -> PyResult<Self> {
        check_replica(replica, num_replicas)?;
        Ok(Self {
            store: Arc::new(edl_store::Store::new(replica, num_replicas)),
        })
    }

    #[staticmethod]
    #[pyo3(signature = (
        checkpoint, replica = 0, num_replicas = 1, keep_watermarks = true, progress = None
    ))]
    fn restore(
        py: Python<'_>,
        checkpoint: PathBuf,
        replica: u32,
        num_replicas: u32,
        keep_watermarks: bool,
        progress: Option<Py<Progress>>,
    ) -> PyResult<Self> {
        check_replica(replica, num_replicas)?;
        let pieces = progress.map(|progress| progress.get().pieces.clone());
        let pieces = pieces.unwrap_or_default();
        let count = || {
            pieces.fetch_add(1, Ordering::Relaxed);
        };
        let restored = py.detach(|| {
            edl_store::Store::restore_showing(
                &checkpoint,
                replica,
                num_replicas,
                keep_watermarks,
                &count,
            )
        });
        let store = Arc::new(restored.map_err(|error| ps_error(error.into()))?);
        Ok(Self { store })
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| edl_ps::stats(&self.store)).map_err(ps_error)
    }

    fn modulate_learning_rate(&self) {
        self.store.modulate_learning_rate();
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

/// Who serves: a worker its copy of the parameters, or a ps replica.
fn service_of(is_copy: bool) -> &'static WireService {
    if is_copy { &COPY } else { &PS }
}

/// Authority, certificate, key.
type TlsPaths = (PathBuf, PathBuf, PathBuf);

fn credentials(paths: Option<TlsPaths>) -> Result<Option<Arc<Credentials>>, PsError> {
    let read = |(authority, certificate, key)| {
        Credentials::read(TlsFiles {
            authority,
            certificate,
            key,
        })
    };
    Ok(paths.map(read).transpose()?)
}

/// What was asked, connection, (task, minibatch), begin and end in seconds since 1970.
type Recorded = (String, u64, Option<(u64, u32)>, f64, f64);

#[pyclass(frozen, module = "elasticdl._core")]
struct PsServer {
    server: edl_ps::PsServer,
}

#[pymethods]
impl PsServer {
    #[new]
    #[pyo3(signature = (
        store, host, port, token, *, max_staleness = None, grads_to_wait = None,
        sync_version_tolerance = 0, tls = None, far = None, is_copy = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn new(
        py: Python<'_>,
        store: &Bound<'_, Store>,
        host: &str,
        port: u16,
        token: &[u8],
        max_staleness: Option<u64>,
        grads_to_wait: Option<u32>,
        sync_version_tolerance: u64,
        tls: Option<TlsPaths>,
        far: Option<Py<PyAny>>,
        is_copy: bool,
    ) -> PyResult<Self> {
        let store = store.get().store.clone();
        let far = far.map(|far| Box::new(far::Sender(far)) as Box<dyn FarFiles>);
        let synchrony = match (grads_to_wait, max_staleness) {
            (None, None) => Synchrony::Asynchronous,
            (None, Some(max_staleness)) => Synchrony::Bounded { max_staleness },
            (Some(grads_to_wait), None) => Synchrony::Synchronous {
                grads_to_wait,
                version_tolerance: sync_version_tolerance,
            },
            (Some(_), Some(_)) => {
                return Err(PyValueError::new_err(
                    "max_staleness and grads_to_wait: expected one of them at most; synchronous \
                     updates have sync_version_tolerance",
                ));
            }
        };
        let server = py.detach(|| {
            let tls = credentials(tls)?;
            let door = Door {
                service: service_of(is_copy),
                host,
                port,
                token,
                tls: tls.as_ref(),
            };
            edl_ps::PsServer::start(store, &door, synchrony, far)
        });
        Ok(Self {
            server: server.map_err(ps_error)?,
        })
    }

    #[getter]
    fn address(&self) -> &str {
        self.server.address()
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.server.stop());
    }

    fn record(&self, most: usize) {
        self.server.record(most);
    }

    fn take_recorded(&self) -> Vec<Recorded> {
        let spans = self.server.take_recorded().into_iter();
        let spans = spans.map(|span| {
            let began = span.began.as_secs_f64();
            let ended = began + span.lasted.as_secs_f64();
            (span.op, span.connection, span.minibatch, began, ended)
        });
        spans.collect()
    }
}

#[pyclass(frozen, module = "elasticdl._core")]
struct Pulled {
    rows: Vec<Py<PyArrayDyn<f32>>>,
    #[pyo3(get)]
    dense: Py<PyArray1<f32>>,
    #[pyo3(get)]
    state: Py<PyArray1<f32>>,
    receipt: Receipt,
}

#[pymethods]
impl Pulled {
    #[getter]
    fn rows(&self, py: Python<'_>) -> Vec<Py<PyArrayDyn<f32>>> {
        self.rows.iter().map(|rows| rows.clone_ref(py)).collect()
    }

    #[getter]
    fn version(&self) -> u64 {
        self.receipt.version()
    }
}

#[pyclass(frozen, module = "elasticdl._core")]
struct PsClient {
    client: Arc<edl_ps::PsClient>,
}

impl PsClient {
    fn over(client: edl_ps::PsClient) -> Self {
        Self {
            client: Arc::new(client),
        }
    }

    /// Gives the rows of each site the shape of its ids.
    fn arrays_of(&self, py: Python<'_>, ids: &Ids<'_>, pulled: edl_ps::Pulled) -> PyResult<Pulled> {
        let sites = ids.tables.iter().zip(&ids.arrays);
        let rows = pulled.rows.into_iter().zip(sites);
        let rows = rows
            .map(|(rows, (&table, ids))| {
                let dim = self.client.dim(table).map_err(ps_error)?;
                let mut shape = ids.shape().to_vec();
                shape.push(dim);
                shaped(py, rows, &shape)
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Pulled {
            rows,
            dense: pulled.dense.into_pyarray(py).unbind(),
            state: pulled.state.into_pyarray(py).unbind(),
            receipt: pulled.receipt,
        })
    }
}

fn mode_of(training: bool) -> PullMode {
    if training {
        PullMode::Create
    } else {
        PullMode::ReadOnly
    }
}

fn step_of((task, lease, index): (u64, u32, u32)) -> Step {
    Step { task, lease, index }
}

#[pymethods]
impl PsClient {
    #[staticmethod]
    #[pyo3(signature = (
        addresses, token, worker_id, timeout_seconds, connect_seconds = None, *, whole_job = true,
        tls = None, unix_sockets = true, is_copy = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn connect(
        py: Python<'_>,
        addresses: Vec<String>,
        token: &[u8],
        worker_id: i64,
        timeout_seconds: f64,
        connect_seconds: Option<f64>,
        whole_job: bool,
        tls: Option<TlsPaths>,
        unix_sockets: bool,
        is_copy: bool,
    ) -> PyResult<Self> {
        let timeout = timeout_of("timeout_seconds", timeout_seconds)?;
        let connect_timeout = match connect_seconds {
            Some(seconds) => timeout_of("connect_seconds", seconds)?,
            None => timeout,
        };
        let options = RemoteOptions {
            worker_id,
            timeout,
            silence_timeout: edl_ps::SILENCE_TIMEOUT.max(timeout),
            connect_timeout,
            unix_sockets,
            whole_job,
            service: service_of(is_copy),
            tls: py.detach(|| credentials(tls)).map_err(ps_error)?,
        };
        let remote = py.detach(|| Remote::connect(&addresses, token, options));
        Ok(Self::over(edl_ps::PsClient::remote(
            remote.map_err(ps_error)?,
        )))
    }

    #[staticmethod]
    fn in_process(store: &Bound<'_, Store>) -> PyResult<Self> {
        let client = edl_ps::PsClient::in_process(store.get().store.clone());
        Ok(Self::over(client.map_err(ps_error)?))
    }

    #[pyo3(signature = (model, dense, state, given = Vec::new()))]
    fn declare(
        &self,
        py: Python<'_>,
        model: &str,
        dense: &Bound<'_, PyAny>,
        state: &Bound<'_, PyAny>,
        given: Vec<(u32, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let (dense, state) = (array(dense, "dense")?, array(state, "state")?);
        let (dense, state) = (dense.as_slice()?, state.as_slice()?);
        let given = given.iter();
        let given = given.map(|(table, rows)| Ok((*table, array::<f32>(rows, "given")?)));
        let given = given.collect::<PyResult<Vec<_>>>()?;
        let given = given.iter().map(|(table, rows)| {
            Ok(GivenRows {
                table: *table,
                rows: rows.as_slice()?,
            })
        });
        let given = given.collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.client.declare_with(model, dense, state, &given))
            .map_err(ps_error)
    }

    fn begin_task(&self, py: Python<'_>, task_id: u64, lease: u32) -> PyResult<u32> {
        py.detach(|| self.client.begin_task(task_id, lease))
            .map_err(ps_error)
    }

    fn end_task(&self, py: Python<'_>, task_id: u64, lease: u32) -> PyResult<()> {
        py.detach(|| self.client.end_task(task_id, lease))
            .map_err(ps_error)
    }

    #[pyo3(signature = (sites, training, dense = true, *, step = None, vectors_of = None))]
    fn pull(
        &self,
        py: Python<'_>,
        sites: Vec<(u32, Bound<'_, PyAny>)>,
        training: bool,
        dense: bool,
        step: Option<(u64, u32, u32)>,
        vectors_of: Option<&Bound<'_, Pulled>>,
    ) -> PyResult<Pulled> {
        let ids = Ids::of(&sites)?;
        let wanted = Wanted {
            sites: &ids.sites()?,
            mode: mode_of(training),
            vectors: dense && vectors_of.is_none(),
            step: step.map(step_of),
        };
        let pulled = py
            .detach(|| {
                self.client
                    .pull(wanted.sites, wanted.mode, wanted.vectors, wanted.step)
            })
            .map_err(ps_error)?;
        let mut pulled = self.arrays_of(py, &ids, pulled)?;
        if let Some(earlier) = vectors_of.map(|earlier| earlier.get()) {
            pulled.dense = earlier.dense.clone_ref(py);
            pulled.state = earlier.state.clone_ref(py);
            pulled.receipt = pulled.receipt.with_vectors_of(&earlier.receipt);
        }
        Ok(pulled)
    }

    #[pyo3(signature = (
        pulled, row_grads, dense_grad, state_delta, learning_rate, task_id, lease, index,
        num_records
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn push(
        &self,
        py: Python<'_>,
        pulled: &Bound<'_, Pulled>,
        row_grads: Vec<Bound<'_, PyAny>>,
        dense_grad: &Bound<'_, PyAny>,
        state_delta: &Bound<'_, PyAny>,
        learning_rate: f32,
        task_id: u64,
        lease: u32,
        index: u32,
        num_records: u32,
    ) -> PyResult<(u64, u64)> {
        let pulled = pulled.get();
        let grads = Grads::of(py, &pulled.rows, &row_grads, dense_grad, state_delta)?;
        let rows = grads.rows()?;
        let gradients = grads.step(&rows)?;
        let minibatch = Minibatch {
            task: task_id,
            lease,
            index,
            num_records,
            learning_rate,
        };
        let StepGradients { rows, dense, state } = gradients;
        let receipt = &pulled.receipt;
        py.detach(|| self.client.push(receipt, rows, dense, state, &minibatch))
            .map_err(ps_error)
    }

    #[pyo3(signature = (
        pulled, row_grads, dense_grad, state_delta, learning_rate, task_id, lease, index,
        num_records, *, sites, step
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn push_pull(
        &self,
        py: Python<'_>,
        pulled: &Bound<'_, Pulled>,
        row_grads: Vec<Bound<'_, PyAny>>,
        dense_grad: &Bound<'_, PyAny>,
        state_delta: &Bound<'_, PyAny>,
        learning_rate: f32,
        task_id: u64,
        lease: u32,
        index: u32,
        num_records: u32,
        sites: Vec<(u32, Bound<'_, PyAny>)>,
        step: (u64, u32, u32),
    ) -> PyResult<(u64, u64, Option<Pulled>)> {
        let pulled = pulled.get();
        let grads = Grads::of(py, &pulled.rows, &row_grads, dense_grad, state_delta)?;
        let rows = grads.rows()?;
        let gradients = grads.step(&rows)?;
        let minibatch = Minibatch {
            task: task_id,
            lease,
            index,
            num_records,
            learning_rate,
        };
        let ids = Ids::of(&sites)?;
        let next = Wanted {
            sites: &ids.sites()?,
            mode: PullMode::Create,
            vectors: true,
            step: Some(step_of(step)),
        };
        let receipt = &pulled.receipt;
        let both = py.detach(|| {
            self.client
                .push_pull(receipt, &gradients, &minibatch, &next)
        });
        let ((version, staleness), next) = both.map_err(ps_error)?;
        let next = next
            .map(|next| self.arrays_of(py, &ids, next))
            .transpose()?;
        Ok((version, staleness, next))
    }

    fn skip(&self, py: Python<'_>, task_id: u64, lease: u32, index: u32) -> PyResult<()> {
        py.detach(|| self.client.skip(task_id, lease, index))
            .map_err(ps_error)
    }

    fn scan(&self, py: Python<'_>, table: u32) -> PyResult<Scan> {
        py.detach(|| self.client.dim(table)).map_err(ps_error)?;
        Ok(Scan {
            client: self.client.clone(),
            cursor: Cursor::new(table),
        })
    }

    fn audit(&self, py: Python<'_>) -> PyResult<Vec<Py<PyArray2<i64>>>> {
        // There may be a million tasks: objects of Python would be made with its lock held.
        let audits: Vec<Vec<i64>> = py
            .detach(|| {
                Ok(self
                    .client
                    .audit()?
                    .iter()
                    .map(|audit| rows_of(audit))
                    .collect())
            })
            .map_err(ps_error)?;
        let to_array = |rows: Vec<i64>| {
            let count = rows.len() / AUDIT_COLUMNS;
            let array = rows.into_pyarray(py).reshape([count, AUDIT_COLUMNS])?;
            Ok(array.unbind())
        };
        audits.into_iter().map(to_array).collect()
    }

    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| self.client.stats()).map_err(ps_error)?;
        Ok(format!("[{}]", stats.join(", ")))
    }

    fn checkpoint(&self, py: Python<'_>, directory: &str) -> PyResult<Vec<String>> {
        py.detach(|| self.client.checkpoint(directory))
            .map_err(ps_error)
    }

    fn expire(&self, py: Python<'_>, now_seconds: u64) -> PyResult<String> {
        let expired = py.detach(|| self.client.expire(now_seconds));
        Ok(format!("[{}]", expired.map_err(ps_error)?.join(", ")))
    }

    fn export(&self, py: Python<'_>, request: &str) -> PyResult<Vec<String>> {
        py.detach(|| self.client.export(request)).map_err(ps_error)
    }

    fn name_keys(
        &self,
        py: Python<'_>,
        sites: Vec<(u32, Bound<'_, PyAny>, Vec<PyBackedStr>)>,
    ) -> PyResult<()> {
        let arrays = sites
            .iter()
            .enumerate()
            .map(|(site, (_, ids, _))| array::<i64>(ids, &format!("ids of site {site}")))
            .collect::<PyResult<Vec<_>>>()?;
        let names: Vec<Vec<&str>> = sites
            .iter()
            .map(|(_, _, names)| names.iter().map(|name| &**name).collect())
            .collect();
        let named = sites.iter().zip(&arrays).zip(&names);
        let named = named
            .map(|(((table, _, _), ids), names)| {
                Ok(NameSite {
                    table: *table,
                    ids: bytemuck::cast_slice(ids.as_slice()?),
                    names,
                })
            })
            .collect::<PyResult<Vec<_>>>()?;
        py.detach(|| self.client.name_keys(&named))
            .map_err(ps_error)
    }

    fn set_address(&self, py: Python<'_>, replica: usize, address: &str) -> PyResult<()> {
        py.detach(|| self.client.set_address(replica, address))
            .map_err(ps_error)
    }
}

/// The iterator that `scan` returns.
#[pyclass(module = "elasticdl._core")]
struct Scan {
    client: Arc<edl_ps::PsClient>,
    cursor: Cursor,
}

type Chunk = (Py<PyArray1<i64>>, Py<PyArrayDyn<f32>>);

#[pymethods]
impl Scan {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Chunk>> {
        let Self { client, cursor } = self;
        let Some(chunk) = py.detach(|| client.scan(cursor)).map_err(ps_error)? else {
            return Ok(None);
        };
        let num_rows = chunk.keys.len();
        let keys: Vec<i64> = bytemuck::allocation::cast_vec(chunk.keys);
        let dim = chunk.rows.len() / num_rows.max(1);
        let rows = shaped(py, chunk.rows, &[num_rows, dim])?;
        Ok(Some((keys.into_pyarray(py).unbind(), rows)))
    }
}

/// A year; longer ones do not fit the clocks of all systems.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 86_400);

/// Checks a time that a call may take.
fn timeout_of(name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|timeout| !timeout.is_zero() && *timeout <= MAX_TIMEOUT)
        .ok_or_else(|| {
            PyValueError::new_err(format!(
                "{name} is {seconds}, expected more than 0 and at most {}",
                MAX_TIMEOUT.as_secs()
            ))
        })
}

const AUDIT_COLUMNS: usize = 3;

/// Task, minibatches applied and records of each task, one after the other. All are below 2^63.
fn rows_of(audit: &[edl_store::TaskAudit]) -> Vec<i64> {
    let row = |task: &edl_store::TaskAudit| -> [i64; AUDIT_COLUMNS] {
        [
            task.task.cast_signed(),
            i64::from(task.next_index),
            task.num_records.cast_signed(),
        ]
    };
    audit.iter().flat_map(row).collect()
}
