//! The PyO3 extension `elasticdl._core`: it converts, releases the GIL and maps errors, no more.

use pyo3::prelude::*;

mod errors;
mod ps;
mod recordio;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    ps::register(module)?;
    recordio::register(module)
}
