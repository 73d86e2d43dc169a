//! Embedding tables and dense vectors: rows, slots, locking, watermarks, snapshots.
