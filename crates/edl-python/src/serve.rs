//! Exported tables to look rows up in, and requests.

use std::path::PathBuf;

use edl_serve::Tables;
use edl_serve::request::{Feature, Kind, Request, Values};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::arrays::{array, array_mut};
use crate::errors::{request_error, serve_error};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ServedTables>()?;
    module.add_function(wrap_pyfunction!(parse_request, module)?)
}

type Column<'py> = (Bound<'py, PyAny>, Vec<usize>);

/// The columns of a request in JSON, each flat with its shape, and whether it is a single record.
#[pyfunction]
fn parse_request<'py>(
    py: Python<'py>,
    content: &[u8],
    features: Vec<(String, String, Vec<Option<usize>>)>,
    most_records: usize,
) -> PyResult<(Vec<Column<'py>>, bool)> {
    let features: Vec<Feature> = features.into_iter().map(feature).collect();
    let found = py
        .detach(|| Request::parse(content, &features, most_records))
        .map_err(request_error)?;
    let columns = found.columns.into_iter().map(|column| {
        let values = match column.values {
            Values::Whole(values) => values.into_pyarray(py).into_any(),
            Values::Unsigned(values) => values.into_pyarray(py).into_any(),
            Values::Real(values) => values.into_pyarray(py).into_any(),
            Values::Text { data, ends } => {
                let starts = std::iter::once(0).chain(ends.iter().copied());
                let texts = starts.zip(&ends).map(|(start, &end)| &data[start..end]);
                PyList::new(py, texts.collect::<Vec<_>>())?.into_any()
            }
        };
        Ok((values, column.shape))
    });
    Ok((columns.collect::<PyResult<_>>()?, found.is_single))
}

fn feature((name, dtype, shape): (String, String, Vec<Option<usize>>)) -> Feature {
    let kind = match &*dtype {
        "str" => Kind::Text,
        "bool" => Kind::Truth,
        _ if dtype.starts_with("int") => Kind::Whole,
        _ if dtype.starts_with("uint") => Kind::Unsigned,
        _ => Kind::Real,
    };
    Feature {
        name,
        dtype,
        kind,
        shape,
    }
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
