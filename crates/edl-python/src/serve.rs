//! Exported tables to look rows up in.

use std::path::PathBuf;

use edl_serve::Tables;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::arrays::{array, array_mut};
use crate::errors::serve_error;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ServedTables>()
}

#[pyclass(frozen, module = "elasticdl._core")]
struct ServedTables {
    tables: Tables,
}

#[pymethods]
impl ServedTables {
    #[new]
    #[pyo3(signature = (tables, folder=None))]
    fn new(tables: Vec<(String, usize)>, folder: Option<PathBuf>) -> Self {
        Self {
            tables: Tables::new(tables, folder.as_deref()),
        }
    }

    fn apply(&self, py: Python<'_>, folder: PathBuf, replicas: &str) -> PyResult<Self> {
        let applied = py.detach(|| self.tables.apply(&folder, replicas));
        let tables = applied.map_err(serve_error)?;
        Ok(Self { tables })
    }

    fn look_up(
        &self,
        py: Python<'_>,
        table: usize,
        ids: &Bound<'_, PyAny>,
        unseen: f32,
        out: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (ids, mut out) = (array::<i64>(ids, "ids")?, array_mut::<f32>(out, "out")?);
        // Ids are the same 64 bits on both sides; only Python calls them signed.
        let (ids, out) = (bytemuck::cast_slice(ids.as_slice()?), out.as_slice_mut()?);
        py.detach(|| self.tables.look_up(table, ids, unseen, out))
            .map_err(serve_error)
    }

    fn ids(&self, py: Python<'_>, table: usize) -> PyResult<Py<PyArray1<i64>>> {
        let keys = py.detach(|| self.tables.keys(table)).map_err(serve_error)?;
        let ids: Vec<i64> = keys.into_iter().map(u64::cast_signed).collect();
        Ok(ids.into_pyarray(py).unbind())
    }

    #[getter]
    fn num_layers(&self) -> usize {
        self.tables.num_layers()
    }

    #[getter]
    fn num_bytes(&self) -> usize {
        self.tables.bytes()
    }
}
