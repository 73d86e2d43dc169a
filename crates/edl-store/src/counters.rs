//! The counters of a table, to which its features add.

use serde::{Deserialize, Serialize};

/// Counters of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableStats {
    /// The table's name.
    pub name: String,
    /// Rows created.
    pub rows: u64,
    /// Bytes held for them and for candidates: rows, slots and index.
    pub bytes: u64,
    /// Keys that are counted one by one and have no row yet.
    #[serde(default)]
    pub candidates: u64,
    /// Gradients dropped because their key had no row, since this process began.
    #[serde(default)]
    pub dropped: u64,
    /// Rows whose key's string is known; 0 in a table that keeps none.
    #[serde(default)]
    pub names: u64,
    /// Strings that came with the key of another one, since this process began.
    #[serde(default)]
    pub name_collisions: u64,
    /// Keys that training pulls asked for, each once a minibatch, since this process began.
    #[serde(default)]
    pub pulled: u64,
    /// The number of them that had a row already.
    #[serde(default)]
    pub found: u64,
    /// Rows that are on disk and not in memory.
    #[serde(default)]
    pub rows_on_disk: u64,
    /// Bytes of the file that they are in.
    #[serde(default)]
    pub disk_bytes: u64,
    /// Rows that were read from it, since this process began.
    #[serde(default)]
    pub disk_reads: u64,
    /// Rows that were written to it, since this process began.
    #[serde(default)]
    pub disk_writes: u64,
}
