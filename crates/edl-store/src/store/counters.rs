//! The counters of a store, for displays and for the job's summary.

use serde::{Deserialize, Serialize};

use super::{Model, Store};
use crate::counters::TableStats;
use crate::table::Table;
use crate::tasks::WatermarkTally;

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
        let tables: Vec<_> = tables.iter().map(Table::stats).collect();
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
