//! The PyO3 extension `elasticdl._core`: it converts, releases the GIL and maps errors, no more.

use pyo3::prelude::*;

mod arrays;
mod csv;
mod errors;
mod examples;
mod far;
mod log_stderr;
mod ps;
mod recordio;
mod ring;
mod serve;
mod strings;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log_stderr::init();
    csv::register(module)?;
    examples::register(module)?;
    ps::register(module)?;
    recordio::register(module)?;
    ring::register(module)?;
    serve::register(module)?;
    strings::register(module)
}
