//! The counters of a store, for displays and for the job's summary.

use serde::{Deserialize, Serialize};

use super::{Model, Store};
use crate::tasks::WatermarkTally;

/// Counters of one table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// Staleness of the pushes applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Staleness {
    /// Sum over pushes.
    pub sum: u64,
    /// The largest.
    pub max: u64,
    /// Number of pushes.
    pub count: u64,
    /// Pushes that were 0, 1, 2 to 3, 4 to 7, ... updates late; the last has all the rest.
    pub histogram: [u64; STALENESS_BUCKETS],
}

/// Buckets of a histogram of staleness.
pub const STALENESS_BUCKETS: usize = 16;

/// Counters of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// This replica's number.
    pub replica: u32,
    /// Updates applied.
    pub version: u64,
    /// By table.
    pub tables: Vec<TableStats>,
    /// The lateness of gradients.
    pub staleness: Staleness,
    /// The minibatches that watermarks have kept from being applied again.
    pub watermarks: WatermarkTally,
    /// Bytes held for tables and vectors.
    pub resident_bytes: u64,
}

impl Store {
    /// Return counters.
    pub fn stats(&self) -> Stats {
        let model = self.model.get();
        let tables = model.map_or(&[][..], |model| &model.tables);
        let tables: Vec<_> = tables
            .iter()
            .map(|table| {
                let (rows, bytes) = table.size();
                let tally = table.tally();
                let names = table.names_tally();
                let [pulled, found] = table.pulls();
                let cold = table.cold_tally();
                TableStats {
                    name: table.name().to_owned(),
                    rows,
                    bytes: bytes + tally.bytes,
                    candidates: tally.candidates,
                    dropped: tally.dropped,
                    names: names.names,
                    name_collisions: names.collisions,
                    pulled,
                    found,
                    rows_on_disk: cold.rows,
                    disk_bytes: cold.bytes,
                    disk_reads: cold.read,
                    disk_writes: cold.written,
                }
            })
            .collect();
        let vectors = model.map_or(0, |model| model.vectors.read().bytes() as u64);
        Stats {
            replica: self.replica,
            version: model.map_or(0, Model::version),
            staleness: model.map_or_else(Staleness::default, |model| *model.staleness.lock()),
            watermarks: model.map_or_else(WatermarkTally::default, |model| model.tasks.tally()),
            resident_bytes: vectors + tables.iter().map(|table| table.bytes).sum::<u64>(),
            tables,
        }
    }
}

impl Staleness {
    /// Count an update.
    pub(super) fn add(&mut self, staleness: u64) {
        self.sum = self.sum.saturating_add(staleness);
        self.max = self.max.max(staleness);
        self.count += 1;
        let bucket = (u64::BITS - staleness.leading_zeros()) as usize;
        self.histogram[bucket.min(STALENESS_BUCKETS - 1)] += 1;
    }
}
