//! The gradients of updates.

/// Gradients of one table's rows.
#[derive(Debug, Clone, Copy)]
pub struct TableGrads<'a> {
    /// The table's number.
    pub table: u32,
    /// Keys, each once.
    pub keys: &'a [u64],
    /// The gradient of each key's row, `keys.len() * dim` floats.
    pub grads: &'a [f32],
}

/// A minibatch of a round, or several of one task that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundMember {
    /// The task that it is of.
    pub task: u64,
    /// The lease under which it was computed.
    pub lease: u32,
    /// Its number in the task; of several the first's.
    pub index: u32,
    /// How many it is.
    pub num_minibatches: u32,
    /// Records in it, or in all.
    pub num_records: u32,
    /// This replica's version when its parameters were pulled.
    pub pulled_version: u64,
}
