//! The server of a store, as Python starts and ends it.

use edl_ps::{Door, FarFiles, Synchrony};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::store::Store;
use super::{TlsPaths, credentials, service_of};
use crate::errors::ps_error;
use crate::far;

/// A request: its operation, connection, (task, minibatch), begin and end in seconds since 1970.
type Recorded = (String, u64, Option<(u64, u32)>, f64, f64);

#[pyclass(frozen, module = "elasticdl._core")]
pub(super) struct PsServer {
    server: edl_ps::PsServer,
}

#[pymethods]
impl PsServer {
    #[new]
    #[pyo3(signature = (
        store, host, port, token, *, max_staleness = None, grads_to_wait = None,
        sync_version_tolerance = 0, tls = None, far = None, is_copy = false, layout = 0,
        awaits_move = false
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
        layout: u64,
        awaits_move: bool,
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
            edl_ps::PsServer::start_in(store, &door, synchrony, far, layout, awaits_move)
        });
        Ok(Self {
            server: server.map_err(ps_error)?,
        })
    }

    #[getter]
    fn address(&self) -> &str {
        self.server.address()
    }

    /// The store that is served now.
    #[getter]
    fn store(&self) -> Option<Store> {
        let store = self.server.store()?;
        Some(Store { store })
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
