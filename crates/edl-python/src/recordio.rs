//! Python classes of `edl-recordio`: files of records.

use std::path::PathBuf;

use edl_recordio::side_index::IndexOrigin;
use edl_recordio::{Batch, Blocks, Codec, IndexState, LineOptions, RecordError, WriterOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

pyo3::import_exception!(elasticdl.errors, DataError);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BlockInfo>()?;
    module.add_class::<RecordReader>()?;
    module.add_class::<RecordWriter>()?;
    module.add_class::<RecordBlocks>()?;
    module.add_class::<TfRecordReader>()?;
    module.add_class::<TfRecordWriter>()?;
    module.add_class::<LineReader>()?;
    module.add_function(wrap_pyfunction!(repair_recordio, module)?)?;
    module.add_function(wrap_pyfunction!(repair_tfrecord, module)?)?;
    module.add_function(wrap_pyfunction!(crc32c, module)?)
}

pub(crate) fn to_py(error: RecordError) -> PyErr {
    match error {
        RecordError::Io { .. }
        | RecordError::Foreign { .. }
        | RecordError::Version { .. }
        | RecordError::Damaged { .. }
        | RecordError::Torn { .. }
        | RecordError::Range { .. }
        | RecordError::TooLarge { .. }
        | RecordError::Locked { .. }
        | RecordError::Failed { .. } => DataError::new_err(error.to_string()),
        RecordError::Column { .. } => PyValueError::new_err(error.to_string()),
    }
}

fn to_list<'py>(py: Python<'py>, batch: &Batch) -> PyResult<Bound<'py, PyList>> {
    let records: Vec<_> = batch
        .iter()
        .map(|record| PyBytes::new(py, record))
        .collect();
    PyList::new(py, records)
}

/// The contents of a block's header.
#[pyclass(frozen, get_all, module = "elasticdl._core")]
struct BlockInfo {
    offset: u64,
    first_record: u64,
    num_records: u32,
    codec: &'static str,
    stored_bytes: u32,
    raw_bytes: u32,
}

/// A RecordIO file opened for reading.
#[pyclass(frozen, module = "elasticdl._core")]
pub(crate) struct RecordReader {
    pub(crate) reader: edl_recordio::RecordReader,
}

#[pymethods]
impl RecordReader {
    #[new]
    #[pyo3(signature = (path, allow_torn = false))]
    fn new(py: Python<'_>, path: PathBuf, allow_torn: bool) -> PyResult<RecordReader> {
        let reader = py.detach(|| match allow_torn {
            true => edl_recordio::RecordReader::open_torn(&path),
            false => edl_recordio::RecordReader::open(&path),
        });
        Ok(RecordReader {
            reader: reader.map_err(to_py)?,
        })
    }

    #[getter]
    fn num_records(&self) -> u64 {
        self.reader.num_records()
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    #[getter]
    fn index_state(&self) -> &'static str {
        match self.reader.index_state() {
            IndexState::Stored => "stored",
            IndexState::Rebuilt => "rebuilt",
        }
    }

    #[getter]
    fn torn(&self) -> Option<(u64, String)> {
        let torn = self.reader.torn()?;
        Some((torn.offset, torn.what.clone()))
    }

    fn blocks(&self, py: Python<'_>) -> PyResult<Vec<BlockInfo>> {
        let blocks: Result<Vec<_>, _> = py.detach(|| {
            (0..self.reader.num_blocks())
                .map(|number| self.reader.block(number))
                .collect()
        });
        let blocks = blocks.map_err(to_py)?.into_iter().map(|block| BlockInfo {
            offset: block.offset,
            first_record: block.first_record,
            num_records: block.num_records,
            codec: block.codec.name(),
            stored_bytes: block.stored_bytes,
            raw_bytes: block.raw_bytes,
        });
        Ok(blocks.collect())
    }

    #[pyo3(signature = (start, end, max_bytes = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: u64,
        max_bytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let limit = max_bytes.unwrap_or(usize::MAX);
        let batch = py.detach(|| self.reader.read(start, end, limit));
        to_list(py, &batch.map_err(to_py)?)
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.reader.verify()).map_err(to_py)
    }
}

/// Writes a RecordIO file. One thread at a time: the class is borrowed while it writes.
#[pyclass(module = "elasticdl._core")]
struct RecordWriter {
    writer: Option<edl_recordio::RecordWriter>,
}

fn closed() -> PyErr {
    PyValueError::new_err("the writer is closed")
}

#[pymethods]
impl RecordWriter {
    #[new]
    #[pyo3(signature = (path, codec = "none", append = false, block_bytes = None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        codec: &str,
        append: bool,
        block_bytes: Option<usize>,
    ) -> PyResult<RecordWriter> {
        let codec = codec_of(codec)?;
        let default = WriterOptions::default();
        let options = WriterOptions {
            codec,
            block_bytes: block_bytes.unwrap_or(default.block_bytes),
        };
        let writer = py.detach(|| match append {
            true => edl_recordio::RecordWriter::append(&path, options),
            false => edl_recordio::RecordWriter::create(&path, options),
        });
        Ok(RecordWriter {
            writer: Some(writer.map_err(to_py)?),
        })
    }

    #[getter]
    fn num_records(&self) -> PyResult<u64> {
        Ok(self.writer.as_ref().ok_or_else(closed)?.num_records())
    }

    fn write(&mut self, py: Python<'_>, record: &[u8]) -> PyResult<()> {
        let writer = self.writer.as_mut().ok_or_else(closed)?;
        if writer.push(record).map_err(to_py)? {
            py.detach(|| writer.write_block()).map_err(to_py)?;
        }
        Ok(())
    }

    fn write_many(&mut self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<()> {
        for record in records.try_iter()? {
            self.write(py, record?.cast::<PyBytes>()?.as_bytes())?;
        }
        Ok(())
    }

    fn write_blocks(&mut self, py: Python<'_>, blocks: &RecordBlocks) -> PyResult<()> {
        let writer = self.writer.as_mut().ok_or_else(closed)?;
        py.detach(|| writer.write_blocks(&blocks.blocks))
            .map_err(to_py)
    }

    fn flush(&mut self, py: Python<'_>) -> PyResult<()> {
        let writer = self.writer.as_mut().ok_or_else(closed)?;
        py.detach(|| writer.flush()).map_err(to_py)
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        match self.writer.take() {
            Some(writer) => py.detach(|| writer.close()).map(drop).map_err(to_py),
            None => Ok(()),
        }
    }

    fn discard(&mut self, py: Python<'_>) {
        let writer = self.writer.take();
        py.detach(|| drop(writer));
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &mut self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.discard(py);
            return Ok(());
        }
        self.close(py)
    }
}

/// Records in blocks that are compressed and have no place yet.
#[pyclass(frozen, module = "elasticdl._core")]
pub(crate) struct RecordBlocks {
    pub(crate) blocks: Blocks,
}

#[pymethods]
impl RecordBlocks {
    #[getter]
    fn num_records(&self) -> u64 {
        self.blocks.num_records()
    }
}

pub(crate) fn codec_of(name: &str) -> PyResult<Codec> {
    Codec::from_name(name).ok_or_else(|| {
        let names = Codec::ALL.map(Codec::name).join(", ");
        PyValueError::new_err(format!("codec {name:?}: expected one of {names}"))
    })
}

fn origin_name(origin: IndexOrigin) -> &'static str {
    match origin {
        IndexOrigin::Loaded => "loaded",
        IndexOrigin::Written => "written",
        IndexOrigin::InMemory => "in memory",
        IndexOrigin::PassedOver => "passed over",
    }
}

/// A TFRecord file opened for reading.
#[pyclass(frozen, name = "TFRecordReader", module = "elasticdl._core")]
pub(crate) struct TfRecordReader {
    pub(crate) reader: edl_recordio::TfRecordReader,
}

#[pymethods]
impl TfRecordReader {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<TfRecordReader> {
        let reader = py.detach(|| edl_recordio::TfRecordReader::open(&path));
        Ok(TfRecordReader {
            reader: reader.map_err(to_py)?,
        })
    }

    #[getter]
    fn num_records(&self) -> u64 {
        self.reader.num_records()
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    #[getter]
    fn index_state(&self) -> &'static str {
        origin_name(self.reader.index_origin())
    }

    #[pyo3(signature = (start, end, max_bytes = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: u64,
        max_bytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let limit = max_bytes.unwrap_or(usize::MAX);
        let batch = py.detach(|| self.reader.read(start, end, limit));
        to_list(py, &batch.map_err(to_py)?)
    }
}

/// Writes a TFRecord file. One thread at a time: the class is borrowed while it writes.
#[pyclass(name = "TFRecordWriter", module = "elasticdl._core")]
struct TfRecordWriter {
    writer: Option<edl_recordio::TfRecordWriter>,
}

#[pymethods]
impl TfRecordWriter {
    #[new]
    fn new(path: PathBuf) -> PyResult<TfRecordWriter> {
        let writer = edl_recordio::TfRecordWriter::create(&path).map_err(to_py)?;
        Ok(TfRecordWriter {
            writer: Some(writer),
        })
    }

    #[getter]
    fn num_records(&self) -> PyResult<u64> {
        Ok(self.writer.as_ref().ok_or_else(closed)?.num_records())
    }

    fn write(&mut self, record: &[u8]) -> PyResult<()> {
        let writer = self.writer.as_mut().ok_or_else(closed)?;
        writer.write(record).map_err(to_py)
    }

    fn write_many(&mut self, records: &Bound<'_, PyAny>) -> PyResult<()> {
        for record in records.try_iter()? {
            self.write(record?.cast::<PyBytes>()?.as_bytes())?;
        }
        Ok(())
    }

    fn close(&mut self, py: Python<'_>) -> PyResult<()> {
        match self.writer.take() {
            Some(writer) => py.detach(|| writer.close()).map(drop).map_err(to_py),
            None => Ok(()),
        }
    }

    fn discard(&mut self) {
        self.writer = None;
    }

    fn __enter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __exit__(
        &mut self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _value: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if kind.is_some() {
            self.discard();
            return Ok(());
        }
        self.close(py)
    }
}

/// A text file opened for reading by lines.
#[pyclass(frozen, module = "elasticdl._core")]
struct LineReader {
    reader: edl_recordio::LineReader,
}

#[pymethods]
impl LineReader {
    #[new]
    #[pyo3(signature = (path, skip_header = false, skip_blank = false, quoted_newlines = false))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        skip_header: bool,
        skip_blank: bool,
        quoted_newlines: bool,
    ) -> PyResult<LineReader> {
        let options = LineOptions {
            skip_header,
            skip_blank,
            quoted_newlines,
        };
        let reader = py.detach(|| edl_recordio::LineReader::open(&path, options));
        Ok(LineReader {
            reader: reader.map_err(to_py)?,
        })
    }

    #[getter]
    fn num_records(&self) -> u64 {
        self.reader.num_records()
    }

    #[getter]
    fn file_bytes(&self) -> u64 {
        self.reader.file_bytes()
    }

    #[getter]
    fn index_state(&self) -> &'static str {
        origin_name(self.reader.index_origin())
    }

    #[getter]
    fn header<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let header = self.reader.header().map_err(to_py)?;
        Ok(header.map(|header| PyBytes::new(py, &header)))
    }

    fn line_of(&self, py: Python<'_>, record: u64) -> PyResult<u64> {
        py.detach(|| self.reader.line_of(record)).map_err(to_py)
    }

    #[pyo3(signature = (start, end, max_bytes = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        start: u64,
        end: u64,
        max_bytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyList>> {
        let limit = max_bytes.unwrap_or(usize::MAX);
        let batch = py.detach(|| self.reader.read(start, end, limit));
        to_list(py, &batch.map_err(to_py)?)
    }
}

/// Checks a RecordIO file, cuts off a torn tail and gives it an index.
#[pyfunction]
#[pyo3(signature = (path, dry_run = false))]
fn repair_recordio(py: Python<'_>, path: PathBuf, dry_run: bool) -> PyResult<(u64, u64, bool)> {
    let repair = py.detach(|| edl_recordio::repair(&path, dry_run));
    let repair = repair.map_err(to_py)?;
    Ok((repair.num_records, repair.cut_bytes, repair.is_needed))
}

/// Cuts off the torn tail of a TFRecord file.
#[pyfunction]
#[pyo3(signature = (path, dry_run = false))]
fn repair_tfrecord(py: Python<'_>, path: PathBuf, dry_run: bool) -> PyResult<(u64, u64, bool)> {
    let repair = py.detach(|| edl_recordio::repair_tfrecord(&path, dry_run));
    let repair = repair.map_err(to_py)?;
    Ok((repair.num_records, repair.cut_bytes, repair.is_needed))
}

/// The CRC-32C (Castagnoli) checksum of bytes.
#[pyfunction]
fn crc32c(data: &[u8]) -> u32 {
    edl_recordio::crc32c(data)
}
