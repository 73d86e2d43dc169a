//! One replica's part of a version of an export that goes on: what it holds at one instant, or what
//! has changed since an earlier version.

use std::path::Path;

use edl_store::{Cut, Piece, Progress, Store, TableSpec};
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::ExportError;
use crate::file::{Columns, Finished, Rows, TableFile, hex};
use crate::folder::folder_of;

/// Floats that are collected before they are written.
const CHUNK_FLOATS: usize = 1 << 20;

/// The name of a cut, and the earlier cut from which it is a difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CutRequest {
    /// The name; no other cut has it.
    pub name: String,
    /// The cut before, if only what has changed is wanted; a replica that does not know it writes
    /// all.
    #[serde(default)]
    pub since: Option<String>,
}

/// The files that one replica has written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaCut {
    /// Its number.
    pub replica: u32,
    /// How many replicas there are.
    pub num_replicas: u32,
    /// Updates that it had applied.
    pub version: u64,
    /// Whether it has written all its rows.
    pub whole: bool,
    /// First hash slot of its keys, and the one after the last.
    pub slots: [u32; 2],
    /// Its ranges of the dense and the state vector.
    pub vectors: SummedFile,
    /// By table.
    pub tables: Vec<CutTable>,
}

/// A replica's part of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CutTable {
    /// The table's name.
    pub name: String,
    /// Floats in a row.
    pub dim: u32,
    /// The weight of a key without a row: the centre of the initializer.
    pub unseen: f32,
    /// Rows, if there are any.
    pub rows: Option<SummedFile>,
    /// Keys that have gone, if there are any. They go before `rows` come.
    pub gone: Option<SummedFile>,
}

/// A file of a version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SummedFile {
    /// Its path within the version's folder.
    pub path: String,
    /// Rows in it, or floats.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// The SHA-256 of its bytes.
    pub sha256: String,
}

/// Write a replica's part into `directory`, of one instant; updates go on meanwhile.
///
/// # Errors
/// No model has been declared, or a file cannot be written. The next request is answered as if this
/// one had not been made.
pub fn export_cut(
    store: &Store,
    directory: &Path,
    request: &CutRequest,
    progress: Progress<'_>,
) -> Result<ReplicaCut, ExportError> {
    let model = store
        .model()
        .ok_or(edl_store::StoreError::NotDeclared("tables are exported"))?;
    let (replica, count) = (store.replica(), store.num_replicas());
    let of_replica = format!("{replica:05}-of-{count:05}");
    let mut tables: Vec<Part<'_>> = model
        .tables
        .iter()
        .map(|spec| Part::new(spec, directory, &of_replica))
        .collect();
    let since = request.since.as_deref();
    let cut = store.cut(&request.name, since, progress, |piece| match piece {
        Piece::Gone { table, keys } => tables[table].take_gone(keys),
        Piece::Rows {
            table, keys, rows, ..
        } => {
            store.append_weights(table as u32, rows, &mut tables[table].pending.weights)?;
            tables[table].take_keys(keys)
        }
    })?;
    let tables: Vec<CutTable> = tables
        .into_iter()
        .map(Part::finish)
        .collect::<Result<_, _>>()?;
    progress();
    Ok(ReplicaCut {
        replica,
        num_replicas: count,
        version: cut.version,
        whole: cut.since.is_none(),
        slots: [cut.hash_slots.start, cut.hash_slots.end],
        vectors: write_vectors(directory, &of_replica, &cut)?,
        tables,
    })
}

/// A replica's part of a table, as it is being written: files are made when something comes.
struct Part<'a> {
    spec: &'a TableSpec,
    directory: &'a Path,
    of_replica: &'a str,
    rows: Option<TableFile>,
    gone: Option<TableFile>,
    pending: Rows,
}

impl<'a> Part<'a> {
    fn new(spec: &'a TableSpec, directory: &'a Path, of_replica: &'a str) -> Self {
        Self {
            spec,
            directory,
            of_replica,
            rows: None,
            gone: None,
            pending: Rows::default(),
        }
    }

    fn file_name(&self, kind: &str) -> String {
        format!("{kind}-{}.parquet", self.of_replica)
    }

    fn create(&self, kind: &str, dim: usize) -> Result<TableFile, ExportError> {
        let columns = Columns {
            dim,
            has_names: false,
        };
        let notes = [("elasticdl.table", self.spec.name.clone())];
        let folder = self.directory.join(folder_of(&self.spec.name));
        TableFile::create(&folder, &self.file_name(kind), columns, &notes)
    }

    fn take_gone(&mut self, keys: &[u64]) -> Result<(), ExportError> {
        let mut file = match self.gone.take() {
            Some(file) => file,
            None => self.create("gone", 0)?,
        };
        file.write(&Rows {
            keys: keys.iter().map(|key| key.cast_signed()).collect(),
            ..Rows::default()
        })?;
        self.gone = Some(file);
        Ok(())
    }

    /// Take the keys of weights that have been appended.
    fn take_keys(&mut self, keys: &[u64]) -> Result<(), ExportError> {
        let keys = keys.iter().map(|key| key.cast_signed());
        self.pending.keys.extend(keys);
        if self.pending.weights.len() >= CHUNK_FLOATS {
            self.write_pending()?;
        }
        Ok(())
    }

    fn write_pending(&mut self) -> Result<(), ExportError> {
        if self.pending.keys.is_empty() {
            return Ok(());
        }
        let mut file = match self.rows.take() {
            Some(file) => file,
            None => self.create("part", self.spec.dim as usize)?,
        };
        file.write(&self.pending)?;
        self.pending.clear();
        self.rows = Some(file);
        Ok(())
    }

    fn finish(mut self) -> Result<CutTable, ExportError> {
        self.write_pending()?;
        let folder = folder_of(&self.spec.name);
        let summed = |file: Option<TableFile>, name: String| {
            let finished = file.map(TableFile::finish).transpose()?;
            Ok::<_, ExportError>(finished.map(|file| summed(format!("{folder}/{name}"), file)))
        };
        let (rows, gone) = (self.rows.take(), self.gone.take());
        Ok(CutTable {
            name: self.spec.name.clone(),
            dim: self.spec.dim,
            unseen: self.spec.initializer.centre()?,
            rows: summed(rows, self.file_name("part"))?,
            gone: summed(gone, self.file_name("gone"))?,
        })
    }
}

fn summed(path: String, file: Finished) -> SummedFile {
    SummedFile {
        path,
        rows: file.rows,
        bytes: file.bytes,
        sha256: file.sha256,
    }
}

/// Write the ranges of the vectors as safetensors.
fn write_vectors(directory: &Path, of_replica: &str, cut: &Cut) -> Result<SummedFile, ExportError> {
    let name = format!("vectors-{of_replica}.safetensors");
    let path = directory.join(&name);
    let failed = |problem: String| ExportError::File {
        path: path.clone(),
        problem,
    };
    let tensors = [("dense", &cut.dense), ("state", &cut.state)];
    let tensors = tensors.map(|(name, values)| {
        let bytes = bytemuck::cast_slice(values);
        TensorView::new(Dtype::F32, vec![values.len()], bytes).map(|view| (name, view))
    });
    let tensors: Result<Vec<_>, _> = tensors.into_iter().collect();
    let tensors = tensors.map_err(|e| failed(e.to_string()))?;
    let bytes = safetensors::serialize(tensors, None).map_err(|e| failed(e.to_string()))?;
    write_durably(directory, &name, &bytes).map_err(|e| failed(e.to_string()))?;
    Ok(SummedFile {
        path: name,
        rows: (cut.dense.len() + cut.state.len()) as u64,
        bytes: bytes.len() as u64,
        sha256: hex(&Sha256::digest(&bytes)),
    })
}

fn write_durably(directory: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::create_dir_all(directory)?;
    let mut file = std::fs::File::create(directory.join(name))?;
    file.write_all(bytes)?;
    file.sync_all()
}
