//! Writes the tables of a store as Parquet, for serving.
//!
//! Each replica writes its own files, so all replicas write at the same time. A table is a folder,
//! and a replica's part of it is a file. The file has the columns `key` (INT64), `name` (STRING, if
//! the table keeps names) and `weights` (LIST of FLOAT, as many as the table's dim). It has plain
//! encoding and no compression, so any reader of Parquet can read it. The process that asked the
//! replicas writes the manifest and `_SUCCESS` when all have answered.
//! `docs/designs/sparse-life-cycle.md` has the whole design.

mod cut;
mod error;
mod file;
mod folder;
mod request;

pub use cut::{CutRequest, CutTable, ReplicaCut, SummedFile, export_cut};
pub use error::ExportError;
pub use folder::folder_of;
pub use request::{ExportRequest, FileEntry, ReplicaExport, TableEntry, export};
