//! The ranks of a ring, and the settings with which a ring is formed.

use std::time::Duration;

use crate::error::RingError;

/// More would have segments so small that a ring is the wrong way.
const MAX_SIZE: usize = 4096;

/// A numbered agreement on who the ranks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct World {
    /// Tells one agreement from the next: it grows.
    pub id: u64,
    /// The rank of this process among the members.
    pub rank: u32,
    /// The address of each rank's [`RingListener`].
    pub members: Vec<String>,
}

/// The settings with which a ring is formed.
#[derive(Clone, Debug)]
pub struct Options {
    /// All ranks are reached within this time, and have joined within as much again; else it is an
    /// error.
    pub timeout: Duration,
    /// A neighbour that gives no sign of life for so long is given up.
    pub silence: Duration,
    /// Use Unix sockets between ranks on one host.
    pub unix_sockets: bool,
    /// Use shared memory if all ranks are on one host (it is found out by their Unix sockets).
    pub shared_memory: bool,
}

/// Refuses what no ring can be formed of.
pub(crate) fn check(world: &World, options: &Options) -> Result<(), RingError> {
    let World { id, rank, members } = world;
    if *rank as usize >= members.len() {
        return Err(RingError::Invalid(format!(
            "ring {id}: rank {rank} of {} members; ranks are numbered from 0",
            members.len()
        )));
    }
    if members.len() > MAX_SIZE {
        return Err(RingError::Invalid(format!(
            "ring {id}: {} members, {MAX_SIZE} at most",
            members.len()
        )));
    }
    if options.silence < Duration::from_millis(10) {
        return Err(RingError::Invalid(format!(
            "ring {id}: a silence of {:?} is allowed, expected 10 ms at least",
            options.silence
        )));
    }
    Ok(())
}
