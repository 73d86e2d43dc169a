//! Reads a file of keys and weights, after its checksum.

use std::io::Error;
use std::path::Path;

use bytes::Bytes;
use edl_export::SummedFile;
use parquet::column::reader::ColumnReader;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use sha2::{Digest, Sha256};

use crate::error::ServeError;
use crate::words::Sink;

/// Rows as files have them.
pub(crate) struct Rows {
    pub(crate) keys: Vec<u64>,
    /// The weights: for each key as many as the table's dim.
    pub(crate) weights: Sink,
}

impl Rows {
    /// None yet; their weights go to a file of a folder, or to memory.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self, Error> {
        let (keys, weights) = (Vec::new(), Sink::new(folder)?);
        Ok(Self { keys, weights })
    }
}

/// Read the keys of a file of `folder` that has nothing else.
pub(crate) fn read_keys_alone(folder: &Path, file: &SummedFile) -> Result<Vec<u64>, ServeError> {
    let (keys, weights) = (Vec::new(), Sink::Heap(Vec::new()));
    let mut rows = Rows { keys, weights };
    read(folder, file, 0, &mut rows)?;
    Ok(rows.keys)
}

/// Add the rows of a file of `folder`: keys, each with `dim` weights; 0: keys alone.
pub(crate) fn read(
    folder: &Path,
    file: &SummedFile,
    dim: usize,
    rows: &mut Rows,
) -> Result<(), ServeError> {
    let path = folder.join(&file.path);
    let content = std::fs::read(&path).map_err(|e| ServeError::file(&path, e))?;
    check(&path, file, &content)?;
    let before = (rows.keys.len(), rows.weights.len());
    parse(Bytes::from(content), dim, rows).map_err(|e| ServeError::file(&path, e))?;
    let keys = rows.keys.len() - before.0;
    let weights = rows.weights.len() - before.1;
    if keys as u64 != file.rows || weights != keys * dim {
        return Err(ServeError::file(
            &path,
            format!(
                "expected {} rows of {dim} weights, found {keys} keys and {weights} weights",
                file.rows,
            ),
        ));
    }
    Ok(())
}

fn check(path: &Path, file: &SummedFile, content: &[u8]) -> Result<(), ServeError> {
    if content.len() as u64 != file.bytes {
        let found = content.len();
        let problem = format!("expected {} bytes, found {found}", file.bytes);
        return Err(ServeError::file(path, problem));
    }
    let digest = Sha256::digest(content);
    let found: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    if found != file.sha256 {
        let problem = format!("expected SHA-256 {}, found {found}", file.sha256);
        return Err(ServeError::file(path, problem));
    }
    Ok(())
}

fn parse(content: Bytes, dim: usize, rows: &mut Rows) -> Result<(), ParquetError> {
    let reader = SerializedFileReader::new(content)?;
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number)?;
        let count = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
        read_keys(&*group, count, &mut rows.keys)?;
        if dim > 0 {
            let mut weights = Vec::new();
            read_weights(&*group, count, &mut weights)?;
            let pushed = rows.weights.push(bytemuck::cast_slice(&weights));
            pushed.map_err(|error| ParquetError::External(Box::new(error)))?;
        }
    }
    Ok(())
}

fn read_keys(
    group: &dyn RowGroupReader,
    count: usize,
    keys: &mut Vec<u64>,
) -> Result<(), ParquetError> {
    let ColumnReader::Int64ColumnReader(mut column) = group.get_column_reader(0)? else {
        return Err(other("the first column: expected keys (INT64)"));
    };
    let mut found = Vec::new();
    while found.len() < count && column.read_records(count, None, None, &mut found)?.0 > 0 {}
    keys.extend(found.iter().map(|key| key.cast_unsigned()));
    Ok(())
}

fn read_weights(
    group: &dyn RowGroupReader,
    count: usize,
    weights: &mut Vec<f32>,
) -> Result<(), ParquetError> {
    let last = group.num_columns().saturating_sub(1);
    let ColumnReader::FloatColumnReader(mut column) = group.get_column_reader(last)? else {
        return Err(other("the last column: expected weights (LIST of FLOAT)"));
    };
    let (mut definition, mut repetition) = (Vec::new(), Vec::new());
    let mut records = 0;
    while records < count {
        let left = count - records;
        let levels = (Some(&mut definition), Some(&mut repetition));
        let (more, ..) = column.read_records(left, levels.0, levels.1, weights)?;
        if more == 0 {
            break;
        }
        records += more;
    }
    Ok(())
}

fn other(problem: &str) -> ParquetError {
    ParquetError::General(problem.to_owned())
}
