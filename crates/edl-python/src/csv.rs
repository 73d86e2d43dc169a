//! Fields of lines of CSV and LIBSVM, objects of JSON, and footers of Parquet files, for Python.

use edl_recordio::csv::{Fault, NumberKind, TextColumn, check, not_a_number, split};
use edl_recordio::json;
use edl_recordio::libsvm;
use edl_recordio::numbers::TextKind;
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CsvFields>()?;
    module.add_function(wrap_pyfunction!(check_csv, module)?)?;
    module.add_function(wrap_pyfunction!(parse_libsvm, module)?)?;
    module.add_function(wrap_pyfunction!(json_columns, module)?)?;
    module.add_function(wrap_pyfunction!(check_parquet_pages, module)?)?;
    module.add_function(wrap_pyfunction!(parquet_footer, module)?)
}

type Lines<'py> = Vec<Bound<'py, PyBytes>>;

/// A fault as `ValueError(line, field, what)`.
fn to_py(fault: Fault) -> PyErr {
    PyValueError::new_err((fault.line, fault.field, fault.what))
}

fn kind_named(kind: &str) -> PyResult<NumberKind> {
    match kind {
        "int64" => Ok(NumberKind::Int64),
        "float" => Ok(NumberKind::Float64),
        "float32" => Ok(NumberKind::Float32),
        _ => Err(PyValueError::new_err(format!(
            "no kind of numbers: {kind:?}"
        ))),
    }
}

/// The fields of some lines, by column.
#[pyclass(frozen, module = "elasticdl._core")]
struct CsvFields {
    columns: Vec<TextColumn>,
}

#[pymethods]
impl CsvFields {
    #[new]
    fn new(
        py: Python<'_>,
        lines: Lines<'_>,
        delimiter: u8,
        num_fields: usize,
    ) -> PyResult<CsvFields> {
        // The bytes cannot change, and `lines` keeps them alive.
        let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        let columns = py
            .detach(|| split(bytes.iter().copied(), delimiter, num_fields))
            .map_err(to_py)?;
        Ok(CsvFields { columns })
    }

    fn text<'py>(
        &self,
        py: Python<'py>,
        number: usize,
    ) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyArray1<i64>>)> {
        let column = self.column(number)?;
        let mut offsets = Vec::with_capacity(column.len() + 1);
        offsets.push(0);
        offsets.extend(column.ends().iter().map(|&end| end as i64));
        Ok((PyBytes::new(py, column.data()), offsets.into_pyarray(py)))
    }

    fn kind(
        &self,
        py: Python<'_>,
        number: usize,
        missing: Vec<Vec<u8>>,
    ) -> PyResult<Option<&'static str>> {
        let column = self.column(number)?;
        let kind = py.detach(|| column.kind(&missing));
        Ok(kind.map(|kind| match kind {
            TextKind::Whole => "int64",
            TextKind::LargeWhole => "large",
            TextKind::Real => "float",
            TextKind::Text => "bytes",
        }))
    }

    fn numbers<'py>(
        &self,
        py: Python<'py>,
        number: usize,
        kind: &str,
        missing: Vec<Vec<u8>>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyArray1<bool>>)> {
        let kind = kind_named(kind)?;
        let column = self.column(number)?;
        let found = py.detach(|| column.numbers(kind, &missing));
        let found = found.map_err(|line| {
            let value = column.iter().nth(line).unwrap_or_default();
            let what = not_a_number(kind, value);
            to_py(Fault {
                line,
                field: Some(number),
                what,
            })
        })?;
        let values = match kind {
            NumberKind::Int64 => found.wholes.into_pyarray(py).into_any(),
            NumberKind::Float64 | NumberKind::Float32 => found.reals.into_pyarray(py).into_any(),
        };
        Ok((values, found.present.into_pyarray(py)))
    }
}

impl CsvFields {
    fn column(&self, number: usize) -> PyResult<&TextColumn> {
        self.columns
            .get(number)
            .ok_or_else(|| PyIndexError::new_err(format!("there is no field {number}")))
    }
}

/// Checks lines of CSV: their number of fields, their quotes, and which of them are numbers.
#[pyfunction]
fn check_csv(
    py: Python<'_>,
    lines: Lines<'_>,
    delimiter: u8,
    num_fields: usize,
    numbers: Vec<Option<String>>,
    missing: Vec<Vec<u8>>,
    required: Vec<usize>,
) -> PyResult<()> {
    let numbers = numbers
        .iter()
        .map(|kind| kind.as_deref().map(kind_named).transpose())
        .collect::<PyResult<Vec<_>>>()?;
    let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    py.detach(|| {
        check(
            bytes.iter().copied(),
            delimiter,
            num_fields,
            &numbers,
            &missing,
            &required,
        )
    })
    .map_err(to_py)
}

type LibsvmArrays<'py> = (
    Bound<'py, PyArray1<f32>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<i64>>,
    Bound<'py, PyArray1<f32>>,
);

/// Reads lines of LIBSVM: their labels, where the pairs of each end, and the pairs.
#[pyfunction]
fn parse_libsvm<'py>(py: Python<'py>, lines: Lines<'py>) -> PyResult<LibsvmArrays<'py>> {
    let bytes: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
    let found = py.detach(|| libsvm::parse(bytes.iter().copied()));
    let found = found.map_err(to_py)?;
    Ok((
        found.labels.into_pyarray(py),
        found.ends.into_pyarray(py),
        found.ids.into_pyarray(py),
        found.values.into_pyarray(py),
    ))
}

/// Reads columns of objects of JSON: arrays of numbers, lists of text. None: see `json::columns`.
#[pyfunction]
fn json_columns<'py>(
    py: Python<'py>,
    objects: Lines<'py>,
    names: Vec<String>,
    kinds: Vec<String>,
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let mut wanted = Vec::with_capacity(names.len());
    for (name, kind) in names.into_iter().zip(&kinds) {
        let kind = match kind.as_str() {
            "int64" => json::Kind::Int64,
            "float" => json::Kind::Float64,
            "bytes" => json::Kind::Text,
            _ => return Err(PyValueError::new_err(format!("no kind: {kind:?}"))),
        };
        wanted.push((name, kind));
    }
    let bytes: Vec<&[u8]> = objects.iter().map(|object| object.as_bytes()).collect();
    let Some(found) = py.detach(|| json::columns(bytes.iter().copied(), &wanted)) else {
        return Ok(None);
    };
    let columns = found.into_iter().map(|column| match column {
        json::Column::Int64(values) => Ok(values.into_pyarray(py).into_any()),
        json::Column::Float64(values) => Ok(values.into_pyarray(py).into_any()),
        json::Column::Text { data, ends } => texts(py, &data, &ends),
    });
    columns.collect::<PyResult<_>>().map(Some)
}

fn texts<'py>(py: Python<'py>, data: &str, ends: &[usize]) -> PyResult<Bound<'py, PyAny>> {
    let starts = std::iter::once(&0).chain(ends);
    let words = starts
        .zip(ends)
        .map(|(&start, &end)| PyString::new(py, &data[start..end]));
    Ok(PyList::new(py, words.collect::<Vec<_>>())?.into_any())
}

/// Reads the footer of a Parquet file: the paths of its columns, and which may have nulls.
#[pyfunction]
fn parquet_footer(py: Python<'_>, footer: &[u8]) -> PyResult<Vec<(String, bool)>> {
    let leaves = py.detach(|| edl_recordio::parquet::read_footer(footer));
    let leaves = leaves.map_err(PyValueError::new_err)?;
    Ok(leaves
        .into_iter()
        .map(|leaf| (leaf.path, leaf.may_be_null))
        .collect())
}

/// Checks the pages of a column of a row group of a Parquet file.
#[pyfunction]
fn check_parquet_pages(py: Python<'_>, chunk: &[u8], num_values: i64) -> PyResult<()> {
    py.detach(|| edl_recordio::parquet::check_pages(chunk, num_values))
        .map_err(PyValueError::new_err)
}
