//! The steps of a move, as whoever leads it tells them to each replica, and what is answered.

use std::path::PathBuf;

use edl_store::MovedMarks;
use serde::{Deserialize, Serialize};

use super::gate::Update;

/// The steps of a replica in a move. Each step but the first names the layout that the move leads
/// to.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum MoveStep {
    /// Say what is held, and whether it can move.
    Describe {},
    /// Begin to fill a store.
    Begin {
        number: u64,
        replica: u32,
        num_replicas: u32,
        model: String,
        is_restored: bool,
        num_rows: Vec<u64>,
        /// Bytes of rows that the store may hold.
        memory_limit: Option<u64>,
    },
    /// Give those of the next layout their rows: all in the first round, later what has changed
    /// since the round before; in the last one the vectors too.
    Copy {
        number: u64,
        targets: Vec<String>,
        round: u32,
        is_last: bool,
    },
    /// Let nothing in.
    Hold { number: u64, hold: u64 },
    /// Let in what others have applied already, and wait so long for it.
    Settle {
        number: u64,
        hold: u64,
        limits: Vec<Update>,
        wait_ms: u64,
    },
    /// Write a checkpoint of this instant; then let everything in.
    Cut {
        number: u64,
        hold: u64,
        directory: String,
    },
    /// Let everything in.
    Release { number: u64, hold: u64 },
    /// The store that is filled has all; from now on it notes what changes it, if a redo log is
    /// given.
    Ready {
        number: u64,
        marks: MovedMarks,
        redo_log: Option<RedoLog>,
    },
    /// Serve it; or nothing, and leave.
    Switch {
        number: u64,
        leaves: bool,
        addresses: Vec<String>,
    },
    /// Give the move up.
    Abandon { number: u64 },
}

/// The place of a redo log: a folder of this layout alone, since a log has the keys of its replica.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedoLog {
    pub(crate) folder: PathBuf,
    /// Bytes of all its files.
    pub(crate) limit: u64,
}

/// The result of a step.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Told {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) described: Option<Described>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) marks: Option<MovedMarks>,
    /// Rows that were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) num_rows: Option<u64>,
    /// The manifest entry of a checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entry: Option<String>,
}

/// The contents of a replica.
#[derive(Debug, Serialize)]
pub(crate) struct Described {
    pub(crate) model: String,
    pub(crate) is_restored: bool,
    /// By table.
    pub(crate) num_rows: Vec<u64>,
    /// Bytes that they take, all together.
    pub(crate) row_bytes: u64,
}
