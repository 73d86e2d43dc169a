//! Names and JSON of a checkpoint.

use std::collections::HashMap;
use std::fmt::Display;
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde::{Deserialize, Serialize};

use crate::error::StoreError;
use crate::features::saved::Beside;
use crate::spec::ModelSpec;

/// The version of the format that this code writes.
pub(crate) const FORMAT: u32 = 1;

/// The versions that it reads: 2 is that of manifests in which an entry has a base.
pub(crate) const FORMATS: std::ops::RangeInclusive<u64> = 1..=3;

/// From this version on a manifest has a checksum of itself.
pub(crate) const FORMAT_WITH_CHECKSUM: u64 = 3;

/// In a folder that is to be written into: names the checkpoint that may serve as a base.
pub(crate) const BASE: &str = "base.json";

/// The file that makes a checkpoint valid.
pub(crate) const MANIFEST: &str = "manifest.json";

/// Bytes before a safetensors header: its length.
pub(crate) const PREFIX: usize = 8;

/// `manifest.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// Whether the checkpoint has one replica alone, which handed over its store.
    #[serde(default)]
    pub(crate) is_part: bool,
    pub(crate) replicas: Vec<ReplicaEntry>,
}

/// The entry of one replica.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ReplicaEntry {
    pub(crate) replica: u32,
    pub(crate) num_replicas: u32,
    /// Updates applied.
    pub(crate) version: u64,
    pub(crate) model: ModelSpec,
    pub(crate) files: Vec<FileEntry>,
    /// What features of tables keep beside rows, in files of their own.
    #[serde(flatten)]
    pub(crate) beside: Beside,
    /// The checkpoint that holds the rows that the files lack.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base: Option<Base>,
    /// In how many updates each dense variable rested; none if none did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rests: Vec<u64>,
    /// Tasks before it were done with, and are forgotten; 0 if none are.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) first_task: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// `base.json`, which whoever coordinates the replicas writes.
#[derive(Debug, Deserialize)]
pub(crate) struct Wish {
    pub(crate) base: String,
}

/// A checkpoint in a folder beside, without a base of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Base {
    /// The folder's name.
    pub(crate) folder: String,
    /// This replica's files there, which tell it from another of the same name.
    pub(crate) files: Vec<FileEntry>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileEntry {
    /// A name without directories.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
    /// First and last-but-one hash slot of a file of rows; absent for the vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<[u32; 2]>,
}

/// Return an error about a file or directory of a checkpoint.
pub(crate) fn broken(path: &Path, problem: impl Display) -> StoreError {
    StoreError::Checkpoint {
        path: path.to_owned(),
        problem: problem.to_string(),
    }
}

pub(crate) fn file_name(replica: u32, num_replicas: u32, what: &str) -> String {
    format!("replica-{replica:05}-of-{num_replicas:05}-{what}.safetensors")
}

/// Return the name of a tensor of one table.
pub(crate) fn of_table(table: usize, what: &str) -> String {
    format!("table.{table}.{what}")
}

/// The tensors of a file, one after the other.
#[derive(Default)]
pub(crate) struct Layout {
    tensors: Vec<(String, TensorInfo)>,
    len: usize,
}

impl Layout {
    pub(crate) fn add(&mut self, name: impl Into<String>, dtype: Dtype, shape: Vec<usize>) {
        let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let data_offsets = (self.len, self.len + bytes);
        self.len += bytes;
        let info = TensorInfo {
            dtype,
            shape,
            data_offsets,
        };
        self.tensors.push((name.into(), info));
    }

    /// Return the lengths of the tensors in bytes, in order.
    pub(crate) fn lens(&self) -> Vec<usize> {
        let len = |(_, info): &(String, TensorInfo)| info.data_offsets.1 - info.data_offsets.0;
        self.tensors.iter().map(len).collect()
    }

    /// Return the bytes that begin the file; the tensors follow, aligned to eight bytes.
    pub(crate) fn header(self, notes: HashMap<String, String>) -> Result<Vec<u8>, String> {
        let metadata = Metadata::new(Some(notes), self.tensors).map_err(|e| e.to_string())?;
        let mut header = vec![0; PREFIX];
        serde_json::to_writer(&mut header, &metadata).map_err(|e| e.to_string())?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let len = (header.len() - PREFIX) as u64;
        header[..PREFIX].copy_from_slice(&len.to_le_bytes());
        Ok(header)
    }
}
