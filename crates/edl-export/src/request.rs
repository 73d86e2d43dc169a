//! One replica's part of an export.

use std::path::PathBuf;

use edl_store::{Progress, Store, TableSpec};
use serde::{Deserialize, Serialize};

use crate::cut::CutRequest;
use crate::error::ExportError;
use crate::file::{Columns, Rows, TableFile};
use crate::folder::folder_of;

/// Floats that are scanned at a time.
const CHUNK_FLOATS: usize = 1 << 20;

/// What to export.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportRequest {
    /// The folder to write into, which all replicas reach.
    pub directory: PathBuf,
    /// Rows with a weight of which the size is above this; 0 leaves out rows of zeros. All rows
    /// without it.
    #[serde(default)]
    pub threshold: Option<f32>,
    /// Rows updated after this version; all without it.
    #[serde(default)]
    pub since_version: Option<u64>,
    /// The contents of the store at one instant, or the changes since another. Without it, rows are
    /// written one after the other, each with its present weights.
    #[serde(default)]
    pub cut: Option<CutRequest>,
}

/// The files that one replica has written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaExport {
    /// Its number.
    pub replica: u32,
    /// Updates that it had applied when it began.
    pub version: u64,
    /// By table.
    pub tables: Vec<TableEntry>,
}

/// A replica's part of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TableEntry {
    /// The table's name.
    pub name: String,
    /// Floats in a row.
    pub dim: u32,
    /// Whether there is a column of names.
    #[serde(default)]
    pub has_names: bool,
    /// Strings that came with the key of another one, whose name the key has.
    #[serde(default)]
    pub name_collisions: u64,
    /// Its file.
    pub file: FileEntry,
}

/// A file of rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its path within the export.
    pub path: String,
    /// Rows in it.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
}

impl ExportRequest {
    /// Read a request's JSON.
    ///
    /// # Errors
    /// It does not parse, or its threshold is not a size.
    pub fn from_json(json: &str) -> Result<Self, ExportError> {
        let request: Self = serde_json::from_str(json)
            .map_err(|e| ExportError::BadRequest(format!("the export does not parse: {e}")))?;
        match request.threshold {
            Some(t) if !(t.is_finite() && t >= 0.0) => Err(ExportError::BadRequest(format!(
                "the threshold of an export must be 0 or more, found {t}"
            ))),
            _ => Ok(request),
        }
    }

    fn wants(&self, weights: &[f32]) -> bool {
        // Weights that are not numbers are exported, to be seen.
        let small = |t: f32| weights.iter().all(|w| w.abs() <= t);
        self.threshold.is_none_or(|t| !small(t))
    }
}

/// Write a replica's part of every table.
///
/// Updates may go on meanwhile; each row is written as it is when it is read. `progress` is told of
/// each piece.
///
/// # Errors
/// No model has been declared, or a file cannot be written.
pub fn export(
    store: &Store,
    request: &ExportRequest,
    progress: Progress<'_>,
) -> Result<ReplicaExport, ExportError> {
    let model = store
        .model()
        .ok_or(edl_store::StoreError::NotDeclared("tables are exported"))?;
    let version = store.version();
    let mut tables = Vec::new();
    for (number, spec) in model.tables.iter().enumerate() {
        tables.push(export_table(
            store,
            number as u32,
            spec,
            request,
            version,
            progress,
        )?);
    }
    Ok(ReplicaExport {
        replica: store.replica(),
        version,
        tables,
    })
}

fn export_table(
    store: &Store,
    table: u32,
    spec: &TableSpec,
    request: &ExportRequest,
    version: u64,
    progress: Progress<'_>,
) -> Result<TableEntry, ExportError> {
    let (replica, count) = (store.replica(), store.num_replicas());
    let folder = folder_of(&spec.name);
    let name = format!("part-{replica:05}-of-{count:05}.parquet");
    let dim = spec.dim as usize;
    let notes = [
        ("elasticdl.table", spec.name.clone()),
        ("elasticdl.dim", dim.to_string()),
        ("elasticdl.version", version.to_string()),
    ];
    let mut file = TableFile::create(
        &request.directory.join(&folder),
        &name,
        Columns {
            dim,
            has_names: spec.keep_names,
        },
        &notes,
    )?;
    let since = request.since_version;
    let max_rows = (CHUNK_FLOATS / dim).max(1);
    let mut rows = Rows::default();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let chunk = store.scan_since(table, from, max_rows, since)?;
        let names = if spec.keep_names {
            store.names_of(table, &chunk.keys)?
        } else {
            Vec::new()
        };
        let mut names = names.into_iter();
        for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(dim)) {
            let name = names.next();
            if request.wants(row) {
                rows.keys.push(key.cast_signed());
                rows.weights.extend_from_slice(row);
                rows.names.extend(name);
            }
        }
        cursor = chunk.next;
        progress();
        if rows.weights.len() >= CHUNK_FLOATS || cursor.is_none() {
            file.write(&rows)?;
            rows.clear();
        }
    }
    let written = file.finish()?;
    Ok(TableEntry {
        name: spec.name.clone(),
        dim: spec.dim,
        has_names: spec.keep_names,
        name_collisions: store.stats().tables[table as usize].name_collisions,
        file: FileEntry {
            path: format!("{folder}/{name}"),
            rows: written.rows,
            bytes: written.bytes,
        },
    })
}
