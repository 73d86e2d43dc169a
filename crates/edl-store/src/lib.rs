//! Embedding tables and dense vectors: rows, slots, locking, watermarks, snapshots.
//!
//! A [`Store`] is the part of a model that one ps replica holds. See `docs/designs/store.md`.

#![forbid(unsafe_code)]

mod error;
mod initial;
mod route;
mod spec;
mod store;

pub use error::StoreError;
pub use route::{NUM_SLOTS, dense_range, key_of_bytes, replica_of, slot_of, slot_range};
pub use spec::{InitializerSpec, ModelSpec, OptimizerSpec, TableSpec, VariableSpec};
pub use store::{
    Applied, Chunk, PullMode, Push, Staleness, Stats, Store, TableGrads, TableStats, TaskAudit,
};
