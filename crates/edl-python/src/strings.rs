//! Ids of strings, and checksums of manifests.

use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(keys_of_strings, module)?)?;
    module.add_function(wrap_pyfunction!(seal_manifest, module)?)?;
    module.add_function(wrap_pyfunction!(is_sealed_manifest, module)?)
}

/// Return a manifest with a checksum of itself.
#[pyfunction]
fn seal_manifest(manifest: &str) -> PyResult<String> {
    edl_store::seal(manifest).map_err(PyValueError::new_err)
}

/// Return whether a manifest has a checksum of itself, which has to be right.
#[pyfunction]
fn is_sealed_manifest(manifest: &[u8]) -> PyResult<bool> {
    edl_store::is_sealed(manifest).map_err(PyValueError::new_err)
}

#[derive(FromPyObject)]
enum StringOrBytes {
    String(PyBackedStr),
    Bytes(PyBackedBytes),
}

/// Return the ids of strings.
#[pyfunction]
fn keys_of_strings(py: Python<'_>, strings: Vec<StringOrBytes>) -> Py<PyArray1<i64>> {
    let bytes = strings.iter().map(|string| match string {
        StringOrBytes::String(string) => string.as_bytes(),
        StringOrBytes::Bytes(bytes) => bytes,
    });
    // Below 2^63.
    let keys: Vec<i64> = bytes
        .map(|bytes| edl_store::key_of_string(bytes).cast_signed())
        .collect();
    keys.into_pyarray(py).unbind()
}
