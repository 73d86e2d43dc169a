//! Maps each crate's errors to the exceptions of `elasticdl.errors`.

use edl_ps::{ErrorKind, PsError};
use edl_ring::RingError;
use edl_serve::{RequestError, ServeError};
use pyo3::PyErr;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

mod exceptions {
    pyo3::import_exception!(elasticdl.errors, AuthenticationError);
    pyo3::import_exception!(elasticdl.errors, CheckpointError);
    pyo3::import_exception!(elasticdl.errors, DataError);
    pyo3::import_exception!(elasticdl.errors, ExportError);
    pyo3::import_exception!(elasticdl.errors, GapError);
    pyo3::import_exception!(elasticdl.errors, LaunchError);
    pyo3::import_exception!(elasticdl.errors, MemoryLimitError);
    pyo3::import_exception!(elasticdl.errors, ModelMismatchError);
    pyo3::import_exception!(elasticdl.errors, NotDeclaredError);
    pyo3::import_exception!(elasticdl.errors, RequestTooLargeError);
    pyo3::import_exception!(elasticdl.errors, RingError);
    pyo3::import_exception!(elasticdl.errors, StaleLeaseError);
    pyo3::import_exception!(elasticdl.errors, StaleParametersError);
    pyo3::import_exception!(elasticdl.errors, StoreError);
    pyo3::import_exception!(elasticdl.errors, UnavailableError);
    pyo3::import_exception!(elasticdl.errors, UnknownTableError);
}

/// The exception for an error of the store, wherever the store is.
pub(crate) fn ps_error(error: PsError) -> PyErr {
    let message = error.to_string();
    match error.kind() {
        ErrorKind::Store | ErrorKind::Malformed => exceptions::StoreError::new_err(message),
        ErrorKind::UnknownTable => exceptions::UnknownTableError::new_err(message),
        ErrorKind::ModelMismatch => exceptions::ModelMismatchError::new_err(message),
        ErrorKind::MemoryLimit => exceptions::MemoryLimitError::new_err(message),
        ErrorKind::StaleLease => exceptions::StaleLeaseError::new_err(message),
        ErrorKind::Gap => exceptions::GapError::new_err(message),
        ErrorKind::NotDeclared => exceptions::NotDeclaredError::new_err(message),
        ErrorKind::TooStale => exceptions::StaleParametersError::new_err(message),
        ErrorKind::Checkpoint => exceptions::CheckpointError::new_err(message),
        ErrorKind::Authentication => exceptions::AuthenticationError::new_err(message),
        ErrorKind::Unavailable | ErrorKind::Moved => exceptions::UnavailableError::new_err(message),
        ErrorKind::Bind => exceptions::LaunchError::new_err(message),
        ErrorKind::Invalid => PyValueError::new_err(message),
        ErrorKind::System => PyRuntimeError::new_err(message),
    }
}

/// The exception for a version of an export that is refused.
pub(crate) fn serve_error(error: ServeError) -> PyErr {
    match error {
        ServeError::File { .. } | ServeError::Manifest(_) => {
            exceptions::ExportError::new_err(error.to_string())
        }
    }
}

/// The exception for a request that is refused.
pub(crate) fn request_error(error: RequestError) -> PyErr {
    match error {
        RequestError::Wrong(words) => exceptions::DataError::new_err(words),
        RequestError::TooLarge(words) => exceptions::RequestTooLargeError::new_err(words),
    }
}

/// The exception for an error of a ring; it has the rank, where one is named.
pub(crate) fn ring_error(error: RingError) -> PyErr {
    let rank = error.rank();
    match error {
        RingError::Ended { .. } | RingError::NotFormed { .. } => {
            exceptions::RingError::new_err((error.to_string(), rank))
        }
        RingError::Invalid(message) => PyValueError::new_err(message),
        RingError::System(message) => PyRuntimeError::new_err(message),
        RingError::Wire(error) => ps_error(error.into()),
    }
}
