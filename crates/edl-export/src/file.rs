//! A Parquet file of keys and weights, which appears whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::data_type::{ByteArray, ByteArrayType, DataType, FloatType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

use sha2::{Digest, Sha256};

use crate::error::ExportError;

/// A list of required elements in a required column, as the format's own document has it.
const WEIGHTS: &str = "required group weights (LIST) {
        repeated group list {
            required float element;
        }
    }";

/// Between key and weights, in a table that keeps the strings of keys.
const NAME: &str = "optional binary name (STRING);";

/// The columns of a file beside the keys.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns {
    /// Floats of the weights; 0: there are none.
    pub(crate) dim: usize,
    pub(crate) has_names: bool,
}

/// The facts of a finished file.
pub(crate) struct Finished {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
}

/// A file, and the SHA-256 of what was written to it.
struct Summed {
    file: File,
    sum: Sha256,
}

impl Write for Summed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Return a digest in hexadecimal digits.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Some rows: of a table that keeps no names, without any.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) keys: Vec<i64>,
    pub(crate) names: Vec<Option<String>>,
    pub(crate) weights: Vec<f32>,
}

impl Rows {
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
        self.names.clear();
        self.weights.clear();
    }
}

/// A file that is being written under a temporary name; removed when dropped unfinished.
pub(crate) struct TableFile {
    writer: Option<SerializedFileWriter<Summed>>,
    temporary: PathBuf,
    path: PathBuf,
    columns: Columns,
    rows: u64,
    /// Whether each weight of a chunk begins a list (0) or goes on with one (1).
    repetition: Vec<i16>,
    definition: Vec<i16>,
}

impl TableFile {
    pub(crate) fn create(
        dir: &Path,
        name: &str,
        columns: Columns,
        notes: &[(&str, String)],
    ) -> Result<Self, ExportError> {
        let failed = |problem: String| ExportError::File {
            path: dir.join(name),
            problem,
        };
        fs::create_dir_all(dir).map_err(|e| failed(e.to_string()))?;
        // Readers leave out what begins with a dot.
        let temporary = dir.join(format!(".{name}.{}.tmp", std::process::id()));
        let file = File::create(&temporary).map_err(|e| failed(e.to_string()))?;
        let schema = parse_message_type(&schema_of(columns)).map_err(|e| failed(e.to_string()))?;
        let note = |(key, value): &(&str, String)| KeyValue::new((*key).to_owned(), value.clone());
        let properties = WriterProperties::builder()
            .set_created_by("elasticdl".to_owned())
            .set_dictionary_enabled(false)
            .set_key_value_metadata(Some(notes.iter().map(note).collect()))
            .build();
        let file = Summed {
            file,
            sum: Sha256::new(),
        };
        let writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties));
        Ok(Self {
            writer: Some(writer.map_err(|e| failed(e.to_string()))?),
            path: dir.join(name),
            temporary,
            columns,
            rows: 0,
            repetition: Vec::new(),
            definition: Vec::new(),
        })
    }

    fn failed(&self, problem: impl std::fmt::Display) -> ExportError {
        ExportError::File {
            path: self.path.clone(),
            problem: problem.to_string(),
        }
    }

    /// Append rows, as a group of their own.
    pub(crate) fn write(&mut self, rows: &Rows) -> Result<(), ExportError> {
        if rows.keys.is_empty() {
            return Ok(());
        }
        let weights = &rows.weights;
        let Columns { dim, has_names } = self.columns;
        let names = has_names.then_some(&rows.names[..]);
        self.definition.resize(weights.len(), 1);
        let known = self.repetition.len();
        self.repetition
            .extend((known..weights.len()).map(|i| i16::from(!i.is_multiple_of(dim.max(1)))));
        let levels = (
            &self.definition[..weights.len()],
            &self.repetition[..weights.len()],
        );
        let weights = (dim > 0).then_some((&weights[..], levels));
        let Some(writer) = &mut self.writer else {
            return Ok(());
        };
        let written = write_group(writer, &rows.keys, names, weights);
        written.map_err(|e| self.failed(e))?;
        self.rows += rows.keys.len() as u64;
        Ok(())
    }

    /// Bring the file to the disk and give it its name.
    pub(crate) fn finish(mut self) -> Result<Finished, ExportError> {
        let Some(writer) = self.writer.take() else {
            return Err(self.failed("is finished already"));
        };
        let Summed { file, sum } = writer.into_inner().map_err(|e| self.failed(e))?;
        let bytes = file.sync_all().and_then(|()| file.metadata());
        let bytes = bytes.map_err(|e| self.failed(e))?.len();
        fs::rename(&self.temporary, &self.path).map_err(|e| self.failed(e))?;
        Ok(Finished {
            rows: self.rows,
            bytes,
            sha256: hex(&sum.finalize()),
        })
    }
}

impl Drop for TableFile {
    fn drop(&mut self) {
        // Once finished there is nothing under this name.
        let _ = fs::remove_file(&self.temporary);
    }
}

fn schema_of(columns: Columns) -> String {
    let name = if columns.has_names { NAME } else { "" };
    let weights = if columns.dim > 0 { WEIGHTS } else { "" };
    format!("message table {{ required int64 key; {name} {weights} }}")
}

/// The levels of definition and of repetition.
type Levels<'a> = (&'a [i16], &'a [i16]);

fn write_group(
    writer: &mut SerializedFileWriter<Summed>,
    keys: &[i64],
    names: Option<&[Option<String>]>,
    weights: Option<(&[f32], Levels<'_>)>,
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    write_column::<Int64Type>(&mut group, keys, None, None)?;
    if let Some(names) = names {
        let known: Vec<i16> = names.iter().map(|name| i16::from(name.is_some())).collect();
        let texts = names.iter().flatten();
        let texts: Vec<ByteArray> = texts.map(|text| text.as_str().into()).collect();
        write_column::<ByteArrayType>(&mut group, &texts, Some(&known), None)?;
    }
    if let Some((weights, (definition, repetition))) = weights {
        write_column::<FloatType>(&mut group, weights, Some(definition), Some(repetition))?;
    }
    group.close()?;
    Ok(())
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Summed>,
    values: &[T::T],
    definition: Option<&[i16]>,
    repetition: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else {
        return Err(ParquetError::General("a column is missing".to_owned()));
    };
    let written = column
        .typed::<T>()
        .write_batch(values, definition, repetition);
    written?;
    column.close()
}
