//! The Python class of a client of stores, in this process or behind servers.

use std::ops::Range;
use std::sync::Arc;

use edl_ps::{
    ComputedStep, Cursor, GivenRows, Minibatch, NameSite, PsError, Receipt, Remote, RemoteOptions,
    Step, StepGradients, Wanted,
};
use edl_store::PullMode;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayDyn, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;

use super::store::Store;
use super::{TlsPaths, credentials, service_of, timeout_of};
use crate::arrays::{Grads, Ids, array, shaped};
use crate::errors::ps_error;

/// Table, ids counted, and of the hottest keys (key, count).
type Hot = (String, u64, Vec<(i64, u64)>);

/// A minibatch of several: its pull, its gradients (of rows, dense, change of the state), records.
type Computed<'py> = (
    Bound<'py, Pulled>,
    Vec<Bound<'py, PyAny>>,
    Bound<'py, PyAny>,
    Bound<'py, PyAny>,
    u32,
);

#[pyfunction]
pub(super) fn take_hot_keys() -> Vec<Hot> {
    let tables = edl_ps::take_hot_keys().into_iter();
    let tables = tables.map(|hot| {
        // Ids are the same 64 bits on both sides; only Python calls them signed.
        let keys = hot.keys.into_iter().map(|(key, count)| (key as i64, count));
        (hot.table, hot.num_ids, keys.collect())
    });
    tables.collect()
}

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct Pulled {
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
pub(super) struct PsClient {
    client: Arc<edl_ps::PsClient>,
}

impl PsClient {
    pub(super) fn over(client: edl_ps::PsClient) -> Self {
        Self {
            client: Arc::new(client),
        }
    }

    /// Gives the rows of each site the shape of its ids.
    fn arrays_of(&self, py: Python<'_>, ids: &Ids<'_>, pulled: edl_ps::Pulled) -> PyResult<Pulled> {
        Ok(Pulled {
            rows: self.shaped_rows(py, ids, 0..ids.tables.len(), pulled.rows)?,
            dense: pulled.dense.into_pyarray(py).unbind(),
            state: pulled.state.into_pyarray(py).unbind(),
            receipt: pulled.receipt,
        })
    }

    fn shaped_rows(
        &self,
        py: Python<'_>,
        ids: &Ids<'_>,
        sites: Range<usize>,
        rows: Vec<Vec<f32>>,
    ) -> PyResult<Vec<Py<PyArrayDyn<f32>>>> {
        let ids = ids.tables[sites.clone()].iter().zip(&ids.arrays[sites]);
        let rows = rows.into_iter().zip(ids);
        rows.map(|(rows, (&table, ids))| {
            let dim = self.client.dim(table).map_err(ps_error)?;
            let mut shape = ids.shape().to_vec();
            shape.push(dim);
            shaped(py, rows, &shape)
        })
        .collect()
    }
}

/// Calls without the lock of Python what pushes the gradients of several minibatches.
fn with_computed<T: Send>(
    py: Python<'_>,
    steps: &[Computed<'_>],
    push: impl FnOnce(&[ComputedStep<'_>]) -> Result<T, PsError> + Send,
) -> PyResult<T> {
    let grads = steps.iter().map(|(pulled, row_grads, dense, state, _)| {
        Grads::of(py, &pulled.get().rows, row_grads, dense, state)
    });
    let grads = grads.collect::<PyResult<Vec<_>>>()?;
    let rows = grads.iter().map(Grads::rows);
    let rows = rows.collect::<PyResult<Vec<_>>>()?;
    let computed = steps.iter().zip(&grads).zip(&rows);
    let computed = computed
        .map(|(((pulled, .., num_records), grads), rows)| {
            Ok(ComputedStep {
                receipt: &pulled.get().receipt,
                gradients: grads.step(rows)?,
                num_records: *num_records,
            })
        })
        .collect::<PyResult<Vec<_>>>()?;
    py.detach(|| push(&computed)).map_err(ps_error)
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
        tls = None, unix_sockets = true, is_copy = false, layout = 0
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
        layout: u64,
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
            layout,
            service: service_of(is_copy),
            tls: py.detach(|| credentials(tls)).map_err(ps_error)?,
        };
        let remote = py.detach(|| Remote::connect(&addresses, token, options));
        Ok(Self::over(edl_ps::PsClient::remote(
            remote.map_err(ps_error)?,
        )))
    }

    fn move_step(&self, py: Python<'_>, replica: usize, step: &str) -> PyResult<String> {
        py.detach(|| self.client.move_step(replica, step))
            .map_err(ps_error)
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

    fn settle_task(&self, py: Python<'_>, task_id: u64, lease: u32) -> PyResult<()> {
        py.detach(|| self.client.settle_task(task_id, lease))
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

    fn with_sites(
        &self,
        py: Python<'_>,
        pulled: &Bound<'_, Pulled>,
        sites: Vec<(u32, Bound<'_, PyAny>)>,
    ) -> PyResult<Pulled> {
        let ids = Ids::of(&sites)?;
        let receipt = self.client.planned(&ids.sites()?, &pulled.get().receipt);
        let receipt = receipt.map_err(ps_error)?;
        let rows = ids.tables.iter().zip(&ids.arrays);
        let rows = rows
            .map(|(&table, ids)| {
                let mut shape = ids.shape().to_vec();
                shape.push(self.client.dim(table).map_err(ps_error)?);
                Ok(PyArrayDyn::<f32>::zeros(py, shape, false).unbind())
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Pulled {
            rows,
            dense: pulled.get().dense.clone_ref(py),
            state: pulled.get().state.clone_ref(py),
            receipt,
        })
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
            num_minibatches: 1,
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
            num_minibatches: 1,
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

    #[pyo3(signature = (sites, num_minibatches, *, step = None, vectors_of = None))]
    fn pull_several(
        &self,
        py: Python<'_>,
        sites: Vec<(u32, Bound<'_, PyAny>)>,
        num_minibatches: usize,
        step: Option<(u64, u32, u32)>,
        vectors_of: Option<&Bound<'_, Pulled>>,
    ) -> PyResult<Vec<Pulled>> {
        let ids = Ids::of(&sites)?;
        let (sites, step) = (ids.sites()?, step.map(step_of));
        let vectors = vectors_of.is_none();
        let mut pulled = py
            .detach(|| self.client.pull(&sites, PullMode::Create, vectors, step))
            .map_err(ps_error)?;
        let parts = py.detach(|| pulled.split(num_minibatches));
        let whole = self.arrays_of(py, &Ids::of(&[])?, pulled)?;
        let each = ids.tables.len() / num_minibatches.max(1);
        let vectors = vectors_of.map_or(&whole, |earlier| earlier.get());
        let parts = parts.into_iter().enumerate();
        let parts = parts.map(|(number, (rows, receipt))| {
            let range = number * each..(number + 1) * each;
            Ok(Pulled {
                rows: self.shaped_rows(py, &ids, range, rows)?,
                dense: vectors.dense.clone_ref(py),
                state: vectors.state.clone_ref(py),
                receipt: receipt.with_vectors_of(&vectors.receipt),
            })
        });
        parts.collect()
    }

    fn push_several(
        &self,
        py: Python<'_>,
        steps: Vec<Computed<'_>>,
        learning_rate: f32,
        task_id: u64,
        lease: u32,
        index: u32,
    ) -> PyResult<(u64, u64)> {
        let first = Minibatch {
            task: task_id,
            lease,
            index,
            num_minibatches: 1,
            num_records: 0,
            learning_rate,
        };
        with_computed(py, &steps, |computed| {
            self.client.push_several(computed, &first)
        })
    }

    fn push_each(
        &self,
        py: Python<'_>,
        steps: Vec<Computed<'_>>,
        learning_rates: Vec<f32>,
        task_id: u64,
        lease: u32,
        index: u32,
    ) -> PyResult<Vec<(u64, u64)>> {
        let minibatches = steps.iter().zip(&learning_rates).zip(index..);
        let minibatches = minibatches.map(|((step, &learning_rate), index)| Minibatch {
            task: task_id,
            lease,
            index,
            num_minibatches: 1,
            num_records: step.4,
            learning_rate,
        });
        let minibatches: Vec<_> = minibatches.collect();
        with_computed(py, &steps, |computed| {
            self.client.push_each(computed, &minibatches)
        })
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

    #[pyo3(signature = (first = 0))]
    fn audit(&self, py: Python<'_>, first: u64) -> PyResult<Vec<Py<PyArray2<i64>>>> {
        // There may be a million tasks: objects of Python would be made with its lock held.
        let audits: Vec<Vec<i64>> = py
            .detach(|| {
                Ok(self
                    .client
                    .audit_from(first)?
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

    fn set_addresses(&self, py: Python<'_>, layout: u64, addresses: Vec<String>) -> PyResult<()> {
        py.detach(|| self.client.set_addresses(layout, &addresses))
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
