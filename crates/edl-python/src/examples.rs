//! Functions and classes of `edl-recordio` for `tf.train.Example` messages.

use edl_recordio::{
    Batch, Blocks, CountLimits, Decoded, Feature, Kind, NotCounted, RecordError, Values,
    Wanted, WriterOptions,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::recordio::{RecordBlocks, RecordReader, TfRecordReader, codec_of, to_py};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<ExampleCounts>()?;
    module.add_class::<CountedColumn>()?;
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

/// A file whose records are counted.
#[derive(FromPyObject)]
enum RecordFile<'py> {
    RecordIo(Bound<'py, RecordReader>),
    TfRecord(Bound<'py, TfRecordReader>),
}

/// Counts of the values of all features, made by any number of threads.
#[pyclass(frozen, module = "elasticdl._core")]
struct ExampleCounts {
    counts: edl_recordio::ExampleCounts,
}

/// A feature that was found.
#[pyclass(frozen, get_all, module = "elasticdl._core")]
struct CountedColumn {
    name: String,
    kind: &'static str,
    is_list: bool,
    num_records: u64,
    num_values: u64,
    num_distinct: usize,
}

type Numbers<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>);

#[pymethods]
impl ExampleCounts {
    #[new]
    fn new(distinct_limit: usize, bytes_limit: usize) -> ExampleCounts {
        let limits = CountLimits {
            distinct: distinct_limit,
            bytes: bytes_limit,
        };
        ExampleCounts {
            counts: edl_recordio::ExampleCounts::new(limits),
        }
    }

    fn add(&self, py: Python<'_>, file: RecordFile<'_>, start: u64, end: u64) -> PyResult<bool> {
        match &file {
            RecordFile::RecordIo(file) => {
                let reader = &file.get().reader;
                py.detach(|| self.count(start, end, |from| reader.read(from, end, COUNTED_BYTES)))
            }
            RecordFile::TfRecord(file) => {
                let reader = &file.get().reader;
                py.detach(|| self.count(start, end, |from| reader.read(from, end, COUNTED_BYTES)))
            }
        }
        .map_err(to_py)
    }

    fn columns(&self) -> Vec<CountedColumn> {
        let columns = self.counts.columns().into_iter();
        columns
            .map(|column| CountedColumn {
                name: column.name,
                kind: match column.kind {
                    Kind::Int64 => "int64",
                    Kind::Float => "float",
                    Kind::Bytes => "bytes",
                },
                is_list: column.is_list,
                num_records: column.num_records,
                num_values: column.num_values,
                num_distinct: column.num_distinct,
            })
            .collect()
    }

    fn numbers<'py>(&self, py: Python<'py>, column: usize) -> PyResult<Numbers<'py>> {
        if self.kind(column)? == Kind::Float {
            let found = py.detach(|| self.counts.real_numbers(column));
            let (values, counts): (Vec<_>, Vec<_>) = found
                .into_iter()
                .map(|(value, count)| (f64::from(value), count as i64))
                .unzip();
            return Ok((values.into_pyarray(py).into_any(), counts.into_pyarray(py)));
        }
        let found = py.detach(|| self.counts.whole_numbers(column));
        let (values, counts): (Vec<_>, Vec<_>) = found
            .into_iter()
            .map(|(value, count)| (value, count as i64))
            .unzip();
        Ok((values.into_pyarray(py).into_any(), counts.into_pyarray(py)))
    }

    fn most_frequent<'py>(
        &self,
        py: Python<'py>,
        column: usize,
        threshold: u64,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyList>, Vec<u64>)> {
        self.kind(column)?;
        let found = py.detach(|| self.counts.most_frequent(column, threshold, limit));
        let values: Vec<_> = found
            .iter()
            .map(|(value, _)| PyBytes::new(py, value))
            .collect();
        let counts = found.iter().map(|(_, count)| *count).collect();
        Ok((PyList::new(py, values)?, counts))
    }
}

/// So much is decompressed, then counted.
const COUNTED_BYTES: usize = 1 << 20;

impl ExampleCounts {
    /// Counts what `read` gives from each record on; tells whether all could be counted.
    fn count(
        &self,
        start: u64,
        end: u64,
        read: impl Fn(u64) -> Result<Batch, RecordError>,
    ) -> Result<bool, RecordError> {
        let mut next = start;
        while next < end {
            let batch = read(next)?;
            match self.counts.add(batch.iter()) {
                Ok(()) => next += batch.len() as u64,
                Err(NotCounted::Undecoded { .. } | NotCounted::TooMany) => return Ok(false),
            }
        }
        Ok(true)
    }

    fn kind(&self, column: usize) -> PyResult<Kind> {
        let columns = self.counts.columns();
        let found = columns.get(column).map(|column| column.kind);
        found.ok_or_else(|| PyIndexError::new_err(format!("column {column} of {}", columns.len())))
    }
}
