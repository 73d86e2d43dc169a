//! Embedding tables and dense vectors: rows, slots, locking, watermarks, snapshots.
//!
//! A [`Store`] is the part of a model that one ps replica holds. Keys go by hash to a replica,
//! there to a [stripe](table) of their table, and there through an [index] to a row in an
//! [arena]. `docs/designs/store.md` tells the whole of it.

#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("checkpoints are little-endian, and are written from memory as it is");

mod arena;
mod budget;
mod checkpoint;
mod cold;
mod counters;
mod error;
mod features;
mod fingerprint;
mod gradient;
mod index;
mod initial;
mod memory;
mod placement;
mod progress;
mod redo;
mod route;
mod row;
mod spec;
mod stages;
mod store;
mod stripe;
mod table;
mod tasks;
mod treatment;
mod vectors;

pub use edl_optim::Statistics;

pub use checkpoint::{Parts, is_sealed, seal};
pub use cold::ColdRoom;
pub use counters::TableStats;
pub use error::StoreError;
pub use features::life::{AdmissionSpec, Expired, ExpirySpec, StatisticSpec};
pub use features::moving::{Remembered, RememberedItem, RememberedKind};
pub use features::names::MAX_NAME_BYTES;
pub use fingerprint::key_of_string;
pub use gradient::{RoundMember, TableGrads};
pub use progress::{Progress, unseen};
pub use redo::RedoLogState;
pub use route::{
    NUM_HASH_SLOTS, dense_range, hash_of_key, hash_of_name, hash_slot_of, hash_slots_of, replica_of,
};
pub use spec::{
    Clip, ConstraintSpec, InitializerSpec, ModelSpec, OptimizerSpec, StatisticsSpec, TableSpec,
    VariableSpec, WireDtype,
};
#[cfg(feature = "stages")]
pub use stages::take_stages;
pub use store::{
    Applied, Cut, MovedMarks, Named, Piece, Push, Redone, RoundGradient, RowsToPut,
    STALENESS_BUCKETS, Staleness, Stats, Store,
};
pub use stripe::Chunk;
pub use table::PullMode;
pub use tasks::{TaskAudit, WatermarkTally};
pub use treatment::StateRules;
