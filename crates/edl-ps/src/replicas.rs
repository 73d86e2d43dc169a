//! The seam below the client: the same requests, over sockets or in process.

use std::sync::Arc;
use std::time::Duration;

use edl_store::{Chunk, ModelSpec, PullMode, TaskAudit, replica_of};
use edl_wire::op::{Step, name};

use crate::dedup::Plan;
use crate::elsewhere::Elsewhere;
use crate::error::PsError;
use crate::names::Batch;
use crate::tables::scan_rows;

/// The minibatch of a push (or several minibatches of a task that follow each other), and how the
/// push is applied.
#[derive(Clone, Copy, Debug)]
pub struct Minibatch {
    /// The task that it is of.
    pub task: u64,
    /// The lease under which it was computed.
    pub lease: u32,
    /// Its number in the task, from 0; of several the first's.
    pub index: u32,
    /// How many it is.
    pub num_minibatches: u32,
    /// Records in it, or in all.
    pub num_records: u32,
    /// The learning rate of its step.
    pub learning_rate: f32,
}

/// The places in which a pull puts the flat vectors.
pub(crate) struct Vectors<'a> {
    pub(crate) dense: &'a mut [f32],
    pub(crate) state: &'a mut [f32],
}

/// The request of a pull, and the places of its answer.
pub(crate) struct Pull<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) mode: PullMode,
    /// The training step that it is for, which may have to wait for others.
    pub(crate) step: Option<Step>,
    /// For each table of the plan: the rows of its keys.
    pub(crate) rows: &'a mut [Vec<f32>],
    /// If wanted.
    pub(crate) vectors: Option<Vectors<'a>>,
    /// Of each replica.
    pub(crate) versions: &'a mut [u64],
}

/// The rows that a table begins with: one of each key from 0 on.
#[derive(Clone, Copy, Debug)]
pub struct GivenRows<'a> {
    /// The table's number.
    pub table: u32,
    /// The rows, one after the other.
    pub rows: &'a [f32],
}

impl GivenRows<'_> {
    /// Hands the rows of one replica to `give`, in pieces: the table's name, dim, keys and rows.
    pub(crate) fn in_pieces(
        &self,
        model: &ModelSpec,
        replica: usize,
        num_replicas: usize,
        mut give: impl FnMut(&str, u32, &[u64], &[f32]) -> Result<(), PsError>,
    ) -> Result<(), PsError> {
        let spec = &model.tables[self.table as usize];
        let dim = spec.dim as usize;
        let mut keys = (0..(self.rows.len() / dim) as u64)
            .filter(|&key| replica_of(key, num_replicas as u32) as usize == replica);
        loop {
            let piece: Vec<u64> = keys.by_ref().take(scan_rows(dim)).collect();
            if piece.is_empty() {
                return Ok(());
            }
            let rows: Vec<f32> = piece
                .iter()
                .flat_map(|&key| &self.rows[key as usize * dim..][..dim])
                .copied()
                .collect();
            give(&spec.name, spec.dim, &piece, &rows)?;
        }
    }
}

/// Checks that exactly the tables which want rows are given one for each key.
pub(crate) fn check_given(model: &ModelSpec, given: &[GivenRows<'_>]) -> Result<(), PsError> {
    for (number, table) in (0u32..).zip(&model.tables) {
        let rows = given.iter().find(|rows| rows.table == number);
        let found = rows.map_or(0, |rows| rows.rows.len());
        let num_rows = if table.given_rows {
            table.input_dim.unwrap_or(0)
        } else {
            0
        };
        let expected = (num_rows as usize).saturating_mul(table.dim as usize);
        if found != expected {
            return Err(PsError::Invalid(format!(
                "the given rows of table '{}' have {found} numbers, expected {expected}",
                table.name
            )));
        }
    }
    Ok(())
}

/// The gradients of a push for all replicas; each replica gets its ranges.
pub(crate) struct Gradients<'a> {
    /// For each table of the plan: the sum of gradients of each key.
    pub(crate) rows: &'a [Vec<f32>],
    pub(crate) dense: &'a [f32],
    pub(crate) state: &'a [f32],
}

/// One of several pushes that are made together.
pub(crate) struct OnePush<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) gradients: Gradients<'a>,
    pub(crate) minibatch: &'a Minibatch,
    pub(crate) versions: &'a [u64],
}

/// The holders of the model. Every method may be called from several threads.
pub(crate) trait Replicas: Send + Sync {
    fn count(&self) -> usize;

    /// Declares the model, replica 0 first; replicas that have none yet get the given rows before.
    fn declare(
        &self,
        model: &ModelSpec,
        dense: &[f32],
        state: &[f32],
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError>;

    /// The declared model.
    fn model(&self) -> Result<Arc<ModelSpec>, PsError>;

    /// The lowest next index over all replicas.
    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError>;

    /// Has all replicas hear of all minibatches of a lease that were pushed.
    fn settle_task(&self, task: u64, lease: u32) -> Result<(), PsError>;

    /// Nothing of a lease is under way any more.
    fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError>;

    /// Fills what is wanted.
    fn pull(&self, pull: Pull<'_>) -> Result<(), PsError>;

    /// Returns replica 0's version and the largest staleness.
    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<(u64, u64), PsError>;

    /// Pushes several minibatches of a task that follow each other, each as an update of its own;
    /// returns what [`Replicas::push`] does of each. If one is refused, those before it are
    /// applied, here or there.
    fn push_each(&self, pushes: &[OnePush<'_>]) -> Result<Vec<(u64, u64)>, PsError>;

    /// The same as a push, and then pulls, in fewer exchanges of messages than one after the other takes;
    /// false if the pull has to wait and was not made.
    fn push_pull(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
        next: Pull<'_>,
    ) -> Result<((u64, u64), bool), PsError>;

    /// The time that pulls and pushes have spent in the stores so far, for all replicas together.
    fn store_time(&self) -> Duration;

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError>;

    fn scan(&self, replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError>;

    fn audit(&self, first: u64) -> Result<Vec<Vec<TaskAudit>>, PsError>;

    /// One JSON object per replica.
    fn stats(&self) -> Result<Vec<String>, PsError>;

    /// Returns the rows that each replica removed; `now` is in seconds since 1970.
    fn expire(&self, now: u64) -> Result<Vec<String>, PsError>;

    /// Returns the files that each replica wrote for an [`edl_export::ExportRequest`] as JSON.
    fn export(&self, request: &str) -> Result<Vec<String>, PsError>;

    /// One manifest entry per replica.
    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError>;

    /// Says the strings of keys, one list to each replica; asks also those that have none to hear.
    fn name(&self, names: &Batch) -> Result<Vec<name::Response>, PsError>;

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError>;

    /// Returns the layout of these replicas.
    fn layout(&self) -> u64;

    /// Returns the replicas of a later layout; calls that wait for these replicas are told that
    /// their layout is over.
    fn of_layout(&self, there: &Elsewhere) -> Result<Arc<dyn Replicas>, PsError>;

    /// Has one replica do a step of a move; both as JSON.
    fn move_step(&self, replica: usize, step: &str) -> Result<String, PsError>;
}
