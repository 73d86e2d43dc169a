//! What features keep beside rows in a checkpoint, in files of their own.

use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::life::Times;
use super::{life, names};
use crate::checkpoint::{Checkpoint, FileEntry, PendingFile, Source, parts_of};
use crate::error::StoreError;
use crate::table::Table;

/// The files of one replica.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Beside {
    /// Counts of keys without a row and times of versions, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) life: Option<FileEntry>,
    /// The strings of keys, where a table keeps them: files by slots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) names: Vec<FileEntry>,
}

impl Beside {
    /// Return all of them.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FileEntry> {
        self.life.iter().chain(&self.names)
    }
}

/// Write the files of a replica's checkpoint.
///
/// # Errors
/// A file that cannot be written.
pub(crate) fn write(
    source: &Source<'_>,
    dir: &Path,
    pending: &mut Vec<PendingFile>,
) -> Result<Beside, StoreError> {
    let mut beside = Beside::default();
    for stripes in parts_of(source) {
        if let Some((file, entry)) = names::saved::write(source, dir, stripes, beside.names.len())?
        {
            pending.push(file);
            beside.names.push(entry);
            (source.progress)();
        }
    }
    let (file, entry) = life::saved::write(source, dir)?.unzip();
    pending.extend(file);
    beside.life = entry;
    Ok(beside)
}

/// Read what belongs to `slots` into the tables, which have their rows already; return the times of
/// versions. Args: `bases` hold what the checkpoint lacks.
///
/// # Errors
/// Files that are missing, torn or corrupt.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    bases: &[Checkpoint],
    slots: &Range<u32>,
    tables: &[Table],
) -> Result<Times, StoreError> {
    for part in bases.iter().chain([checkpoint]) {
        names::saved::read(part, slots, tables)?;
    }
    life::saved::read(checkpoint, slots, tables)
}
