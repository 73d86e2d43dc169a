//! Writes the tables of a store as Parquet, for those who serve.
//!
//! Each replica writes its own files, so all write at the same time. A table is a folder, and
//! a replica's part of it a file with the columns `key` (INT64), `name` (STRING, where the table
//! keeps those) and `weights` (LIST of FLOAT, as many as the table's dim), in plain encoding and without compression: any reader of Parquet
//! reads it. Whoever asked the replicas writes the manifest and `_SUCCESS` when all have
//! answered. `docs/designs/sparse-life-cycle.md` tells the whole of it.

mod cut;
mod error;
mod file;
mod folder;
mod request;

pub use cut::{CutRequest, CutTable, ReplicaCut, SummedFile, export_cut};
pub use error::ExportError;
pub use folder::folder_of;
pub use request::{ExportRequest, FileEntry, ReplicaExport, TableEntry, export};
