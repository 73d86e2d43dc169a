//! Python classes of `edl-ring`: they check arrays, release the GIL, and hand over.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use edl_ring::{Credentials, Options, Request, RingError, TlsFiles, World};
use numpy::PyReadwriteArrayDyn;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrays::{array, array_mut};
use crate::errors::ring_error;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RingListener>()?;
    module.add_class::<Ring>()
}

fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|error| {
        PyValueError::new_err(format!("{name}: {value}, expected seconds ({error})"))
    })
}

#[pyclass(frozen, module = "elasticdl._core")]
struct RingListener {
    listener: Arc<edl_ring::RingListener>,
}

#[pymethods]
impl RingListener {
    #[new]
    #[pyo3(signature = (host, port, token, *, tls = None))]
    fn new(
        py: Python<'_>,
        host: &str,
        port: u16,
        token: &[u8],
        tls: Option<(PathBuf, PathBuf, PathBuf)>,
    ) -> PyResult<Self> {
        let started = py.detach(|| {
            let files = tls.map(|(authority, certificate, key)| TlsFiles {
                authority,
                certificate,
                key,
            });
            let tls = files.map(Credentials::read).transpose()?;
            edl_ring::RingListener::start(host, port, token, tls.as_ref())
        });
        Ok(Self {
            listener: started.map_err(ring_error)?,
        })
    }

    #[getter]
    fn address(&self) -> &str {
        self.listener.address()
    }
}

#[pyclass(frozen, module = "elasticdl._core")]
struct Ring {
    /// `None` once closed. Held by a reduction; others of this process wait.
    ring: Mutex<Option<edl_ring::Ring>>,
    transport: &'static str,
}

impl Ring {
    fn with_ring<T>(
        &self,
        work: impl FnOnce(&mut edl_ring::Ring) -> Result<T, RingError>,
    ) -> Result<T, RingError> {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || RingError::Invalid("the ring is closed; form another one".to_owned());
        work(ring.as_mut().ok_or_else(closed)?)
    }
}

#[pymethods]
impl Ring {
    #[staticmethod]
    #[pyo3(signature = (
        listener, world_id, rank, members, *, timeout_seconds, silence_seconds = 5.0,
        unix_sockets = true, shared_memory = true
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn form(
        py: Python<'_>,
        listener: &Bound<'_, RingListener>,
        world_id: u64,
        rank: u32,
        members: Vec<String>,
        timeout_seconds: f64,
        silence_seconds: f64,
        unix_sockets: bool,
        shared_memory: bool,
    ) -> PyResult<Self> {
        let listener = listener.get().listener.clone();
        let world = World {
            id: world_id,
            rank,
            members,
        };
        let options = Options {
            timeout: seconds(timeout_seconds, "timeout_seconds")?,
            silence: seconds(silence_seconds, "silence_seconds")?,
            unix_sockets,
            shared_memory,
        };
        let ring = py.detach(|| edl_ring::Ring::form(&listener, world, &options));
        let ring = ring.map_err(ring_error)?;
        Ok(Self {
            transport: ring.transport(),
            ring: Mutex::new(Some(ring)),
        })
    }

    #[getter]
    fn transport(&self) -> &str {
        self.transport
    }

    #[pyo3(signature = (
        gradients, out, weight, *, timeout_seconds, mean = true, wire_dtype = "float32"
    ))]
    #[expect(clippy::too_many_arguments, reason = "the signature of _core.pyi")]
    fn all_reduce(
        &self,
        py: Python<'_>,
        gradients: Vec<Bound<'_, PyAny>>,
        out: Vec<Bound<'_, PyAny>>,
        weight: u64,
        timeout_seconds: f64,
        mean: bool,
        wire_dtype: &str,
    ) -> PyResult<u64> {
        let bfloat16 = match wire_dtype {
            "float32" => false,
            "bfloat16" => true,
            other => {
                return Err(PyValueError::new_err(format!(
                    "wire_dtype: '{other}', expected float32 or bfloat16"
                )));
            }
        };
        let request = Request {
            weight,
            mean,
            bfloat16,
            timeout: seconds(timeout_seconds, "timeout_seconds")?,
        };
        let given = gradients.iter().enumerate();
        let given = given
            .map(|(i, numbers)| array::<f32>(numbers, &format!("gradients[{i}]")))
            .collect::<PyResult<Vec<_>>>()?;
        let inputs = given.iter().map(|numbers| Ok(numbers.as_slice()?));
        let inputs = inputs.collect::<PyResult<Vec<&[f32]>>>()?;
        let places = out.iter().enumerate();
        let mut places = places
            .map(|(i, numbers)| array_mut::<f32>(numbers, &format!("out[{i}]")))
            .collect::<PyResult<Vec<PyReadwriteArrayDyn<'_, f32>>>>()?;
        let outputs = places.iter_mut().map(|numbers| Ok(numbers.as_slice_mut()?));
        let mut outputs = outputs.collect::<PyResult<Vec<&mut [f32]>>>()?;
        py.detach(|| self.with_ring(|ring| ring.all_reduce(&inputs, &mut outputs, &request)))
            .map_err(ring_error)
    }

    #[pyo3(signature = (data, *, timeout_seconds))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        data: &[u8],
        timeout_seconds: f64,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let timeout = seconds(timeout_seconds, "timeout_seconds")?;
        let (all, size) = py
            .detach(|| {
                self.with_ring(|ring| {
                    let all = ring.gather(data, timeout)?;
                    Ok((all, ring.world().members.len()))
                })
            })
            .map_err(ring_error)?;
        let said = (0..size).map(|rank| &all[rank * data.len()..][..data.len()]);
        Ok(said.map(|said| PyBytes::new(py, said)).collect())
    }

    #[pyo3(signature = (values, *, timeout_seconds))]
    fn give(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        timeout_seconds: f64,
    ) -> PyResult<()> {
        let timeout = seconds(timeout_seconds, "timeout_seconds")?;
        let values = array::<u8>(values, "values")?;
        let values = values.as_slice()?;
        py.detach(|| self.with_ring(|ring| ring.give(values, timeout)))
            .map_err(ring_error)
    }

    #[pyo3(signature = (out, *, timeout_seconds))]
    fn take(&self, py: Python<'_>, out: &Bound<'_, PyAny>, timeout_seconds: f64) -> PyResult<()> {
        let timeout = seconds(timeout_seconds, "timeout_seconds")?;
        let mut out = array_mut::<u8>(out, "out")?;
        let out = out.as_slice_mut()?;
        py.detach(|| self.with_ring(|ring| ring.take(out, timeout)))
            .map_err(ring_error)
    }

    #[pyo3(signature = (num_bytes, *, timeout_seconds))]
    fn pass_on(&self, py: Python<'_>, num_bytes: usize, timeout_seconds: f64) -> PyResult<()> {
        let timeout = seconds(timeout_seconds, "timeout_seconds")?;
        py.detach(|| self.with_ring(|ring| ring.pass_on(num_bytes, timeout)))
            .map_err(ring_error)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.take();
        });
    }
}
