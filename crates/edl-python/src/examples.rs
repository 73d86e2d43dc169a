//! Functions and classes of `edl-recordio` for `tf.train.Example` messages.

use edl_recordio::{Blocks, Decoded, Feature, Kind, Values, Wanted, WriterOptions};
use numpy::{IntoPyArray, PyReadonlyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::recordio::{RecordBlocks, codec_of, to_py};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_examples, module)?)?;
    module.add_function(wrap_pyfunction!(pack_examples, module)?)?;
    module.add_function(wrap_pyfunction!(decode_examples, module)?)
}

/// One column as Python gives it.
#[derive(FromPyObject)]
enum Column<'py> {
    Int64(PyReadonlyArray1<'py, i64>),
    Float(PyReadonlyArray1<'py, f32>),
    Bytes(Bound<'py, PyBytes>, PyReadonlyArray1<'py, i64>),
}

type Columns<'py> = Vec<(String, Column<'py>, PyReadonlyArray1<'py, i64>)>;

fn features<'a>(columns: &'a Columns<'_>) -> PyResult<Vec<Feature<'a>>> {
    columns
        .iter()
        .map(|(name, column, row_splits)| {
            let values = match column {
                Column::Int64(values) => Values::Int64(values.as_slice()?),
                Column::Float(values) => Values::Float(values.as_slice()?),
                Column::Bytes(data, offsets) => Values::Bytes {
                    data: data.as_bytes(),
                    offsets: offsets.as_slice()?,
                },
            };
            Ok(Feature {
                name,
                values,
                row_splits: row_splits.as_slice()?,
            })
        })
        .collect()
}

/// Encodes columns as `tf.train.Example` messages.
#[pyfunction]
fn encode_examples<'py>(
    py: Python<'py>,
    columns: Columns<'py>,
    num_records: usize,
) -> PyResult<Bound<'py, PyList>> {
    let features = features(&columns)?;
    let (bytes, ends) = py
        .detach(|| edl_recordio::encode_examples(&features, num_records))
        .map_err(to_py)?;
    let mut start = 0;
    let records: Vec<_> = ends
        .into_iter()
        .map(|end| PyBytes::new(py, &bytes[std::mem::replace(&mut start, end)..end]))
        .collect();
    PyList::new(py, records)
}

/// Encodes columns as `tf.train.Example` messages, and packs these into blocks.
#[pyfunction]
fn pack_examples(
    py: Python<'_>,
    columns: Columns<'_>,
    num_records: usize,
    codec: &str,
) -> PyResult<RecordBlocks> {
    let features = features(&columns)?;
    let options = WriterOptions {
        codec: codec_of(codec)?,
        ..WriterOptions::default()
    };
    let blocks = py.detach(|| {
        let (bytes, ends) = edl_recordio::encode_examples(&features, num_records).map_err(to_py)?;
        Blocks::pack(&bytes, &ends, options)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    })?;
    Ok(RecordBlocks { blocks })
}

/// A feature that Python asks for: name, kind, number of values, and what stands for it.
type Asked<'py> = (String, String, Option<usize>, Option<Column<'py>>);
/// A column as Python is given it: name, values, row splits.
type Found<'py> = (String, Bound<'py, PyAny>, Bound<'py, PyAny>);

fn wanted(asked: Asked<'_>) -> PyResult<Wanted> {
    let (name, kind, width, fill) = asked;
    let kind = match kind.as_str() {
        "int64" => Kind::Int64,
        "float" => Kind::Float,
        "bytes" => Kind::Bytes,
        _ => {
            return Err(PyValueError::new_err(format!(
                "no kind of values: {kind:?}"
            )));
        }
    };
    let fill = match fill {
        None => None,
        Some(Column::Int64(values)) => Some(Decoded::Int64(values.as_slice()?.to_vec())),
        Some(Column::Float(values)) => Some(Decoded::Float(values.as_slice()?.to_vec())),
        Some(Column::Bytes(data, offsets)) => Some(Decoded::Bytes {
            data: data.as_bytes().to_vec(),
            offsets: offsets.as_slice()?.to_vec(),
        }),
    };
    let is_of_kind = match &fill {
        None => true,
        Some(Decoded::Int64(_)) => kind == Kind::Int64,
        Some(Decoded::Float(_)) => kind == Kind::Float,
        Some(Decoded::Bytes { .. }) => kind == Kind::Bytes,
    };
    if !is_of_kind {
        let message = format!("feature {name:?}: what stands for it is of another kind");
        return Err(PyValueError::new_err(message));
    }
    Ok(Wanted {
        name,
        kind,
        width,
        fill,
    })
}

/// Decodes `tf.train.Example` messages to columns.
#[pyfunction]
#[pyo3(signature = (records, wanted = None))]
fn decode_examples<'py>(
    py: Python<'py>,
    records: Vec<Bound<'py, PyBytes>>,
    wanted: Option<Vec<Asked<'py>>>,
) -> PyResult<Vec<Found<'py>>> {
    let wanted = wanted
        .map(|asked| {
            asked
                .into_iter()
                .map(self::wanted)
                .collect::<PyResult<Vec<_>>>()
        })
        .transpose()?;
    // The bytes cannot change, and `records` keeps them alive.
    let bytes: Vec<&[u8]> = records.iter().map(|record| record.as_bytes()).collect();
    let columns = py
        .detach(|| edl_recordio::decode_examples(bytes.iter().copied(), wanted.as_deref()))
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    columns
        .into_iter()
        .map(|column| {
            let values = match column.values {
                Decoded::Int64(values) => values.into_pyarray(py).into_any(),
                Decoded::Float(values) => values.into_pyarray(py).into_any(),
                Decoded::Bytes { data, offsets } => {
                    (PyBytes::new(py, &data), offsets.into_pyarray(py))
                        .into_pyobject(py)?
                        .into_any()
                }
            };
            Ok((
                column.name,
                values,
                column.row_splits.into_pyarray(py).into_any(),
            ))
        })
        .collect()
}
