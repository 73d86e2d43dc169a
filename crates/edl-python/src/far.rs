//! Sends files by a Python object.

use std::path::{Path, PathBuf};

use edl_ps::FarFiles;
use pyo3::prelude::*;

/// A Python object with `scratch(url) -> str` and `send(scratch, url) -> Iterator[object]`, which
/// yields after each file.
pub(crate) struct Sender(pub(crate) Py<PyAny>);

impl FarFiles for Sender {
    fn scratch(&self, url: &str) -> Result<PathBuf, String> {
        Python::attach(|py| {
            let made = self.0.bind(py).call_method1("scratch", (url,));
            made.and_then(|path| path.extract()).map_err(said(py))
        })
    }

    fn send(&self, scratch: &Path, url: &str, progress: &(dyn Fn() + Sync)) -> Result<(), String> {
        Python::attach(|py| {
            let sent = self.0.bind(py).call_method1("send", (scratch, url));
            let sent = sent.and_then(|sent| sent.try_iter()).map_err(said(py))?;
            for file in sent {
                file.map_err(said(py))?;
                py.detach(progress);
            }
            Ok(())
        })
    }
}

/// Returns the text of an exception.
fn said(py: Python<'_>) -> impl Fn(PyErr) -> String {
    move |error| error.value(py).to_string()
}
