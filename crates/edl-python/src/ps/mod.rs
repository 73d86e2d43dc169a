//! Python classes of `edl-ps`: they check arrays, release the GIL, and hand over.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use edl_ps::{COPY, Credentials, PS, PsError, TlsFiles, WireService};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

mod client;
mod driven;
mod server;
mod store;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<store::Progress>()?;
    module.add_class::<store::Store>()?;
    module.add_class::<server::PsServer>()?;
    module.add_class::<driven::DrivenReplica>()?;
    module.add_class::<driven::Round>()?;
    module.add_class::<client::PsClient>()?;
    module.add_class::<client::Pulled>()?;
    module.add_function(wrap_pyfunction!(client::take_hot_keys, module)?)?;
    module.add_function(wrap_pyfunction!(traffic, module)?)
}

/// Return the bytes that this process has sent and received.
#[pyfunction]
fn traffic() -> (u64, u64) {
    edl_ps::traffic()
}

/// Returns the service: a worker's copy of the parameters, or a ps replica.
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
