//! The filter of a stripe: whether a key that has no row gets one.

use std::sync::Arc;

use super::candidates::{Candidate, Candidates};
use super::sketch::Sketch;
use super::spec::Admission;
use crate::counters::TableStats;
use crate::features::moving::{Gift, Remembered, RememberedKind, Torn};
use crate::features::{NewRow, RowFeature};
use crate::placement::Placement;
use crate::route::{hash, unhash};

/// Candidates that are looked at under one taking of a stripe's lock.
const WALKED: usize = 4096;

/// One minibatch of a job, as a number: the occurrence of each key in it.
///
/// It is of task and index and nothing else, so a minibatch that comes again after a loss meets
/// the same decisions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Occurrence(u64);

impl Occurrence {
    pub(crate) fn new(task: u64, index: u32) -> Self {
        Self(hash(hash(task) ^ u64::from(index)))
    }
}

enum Memory {
    Count {
        count: u32,
        candidates: Box<Candidates>,
    },
    Sketch {
        count: u8,
        sketch: Sketch,
    },
    Probability {
        threshold: u64,
        seed: u64,
    },
    /// The statistic that decides is in another table.
    Statistic,
}

/// The facts that a stripe remembers of keys without a row.
pub(crate) struct AdmissionFilter {
    memory: Memory,
    dropped: u64,
    snapshot: Marked,
}

impl RowFeature for AdmissionFilter {
    fn created(&mut self, row: NewRow<'_>, _word: Option<u64>) {
        if let Some(candidates) = self.candidates() {
            candidates.remove(row.hash);
        }
    }

    fn count(&self, stats: &mut TableStats) {
        stats.dropped += self.dropped;
        match &self.memory {
            Memory::Count { candidates, .. } => {
                stats.candidates += candidates.len() as u64;
                stats.bytes += candidates.bytes() as u64;
            }
            Memory::Sketch { sketch, .. } => stats.bytes += sketch.bytes() as u64,
            Memory::Probability { .. } | Memory::Statistic => {}
        }
    }

    fn snapshot_begun(&mut self, version: u64) {
        match &mut self.memory {
            Memory::Count { candidates, .. } => {
                candidates.begin_snapshot(version);
                self.snapshot.candidates = candidates.len();
            }
            Memory::Sketch { sketch, .. } => self.snapshot.cells = sketch.cells(),
            Memory::Probability { .. } | Memory::Statistic => {}
        }
    }

    fn snapshot_ended(&mut self) {
        self.snapshot = Marked::default();
        if let Some(candidates) = self.candidates() {
            candidates.end_snapshot();
        }
    }

    fn give(
        &mut self,
        kind: RememberedKind,
        from: u64,
        since: Option<u64>,
        out: &mut Remembered,
    ) -> Option<u64> {
        match (&mut self.memory, kind) {
            (Memory::Count { candidates, .. }, RememberedKind::Counts) => {
                let (found, next) = candidates.walk(from, WALKED);
                let is_new = |c: &&Candidate| since.is_none_or(|since| c.version > since);
                for candidate in found.iter().filter(is_new) {
                    let count = candidate.count.to_le_bytes();
                    out.push(unhash(candidate.hash), candidate.version, &count);
                }
                next
            }
            (Memory::Sketch { sketch, .. }, RememberedKind::Sketches) => {
                sketch.take_changed(since.is_none(), |slot, cells| {
                    // Any key of the slot says where it goes.
                    out.push(unhash(u64::from(slot) << 48), 0, cells);
                });
                None
            }
            _ => None,
        }
    }

    fn take(&mut self, gift: &Gift<'_>) -> Result<(), Torn> {
        match (&mut self.memory, gift.kind) {
            (Memory::Count { candidates, .. }, RememberedKind::Counts) => {
                let candidate = Candidate {
                    hash: gift.hash,
                    version: gift.version,
                    count: u32::from_le_bytes(gift.array()?),
                };
                if !gift.has_row {
                    candidates.put(candidate);
                }
            }
            (Memory::Sketch { sketch, .. }, RememberedKind::Sketches) => {
                let expected = sketch.slot_bytes();
                if gift.bytes.len() != expected {
                    return Err(Torn { expected });
                }
                sketch.put((gift.hash >> 48) as u32, gift.bytes);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The state at the begin of a snapshot.
#[derive(Default)]
struct Marked {
    candidates: usize,
    cells: Arc<Vec<u8>>,
}

impl AdmissionFilter {
    /// Make the filter of a stripe; `seed` is the table's.
    pub(crate) fn of_stripe(
        admission: Admission,
        seed: u64,
        placement: &Placement,
        stripe: usize,
    ) -> Self {
        let range = placement.hashes(stripe);
        let first_hash_slot = placement.first_hash_slot(stripe);
        let num_hash_slots = (placement.first_hash_slot(stripe + 1) - first_hash_slot) as usize;
        let memory = match admission {
            Admission::Count { count } => Memory::Count {
                count,
                candidates: Box::new(Candidates::new(range)),
            },
            Admission::Sketch { count, cells } => Memory::Sketch {
                count,
                sketch: Sketch::new(first_hash_slot, num_hash_slots, cells),
            },
            Admission::Probability { threshold } => Memory::Probability { threshold, seed },
            Admission::Statistic(_) => Memory::Statistic,
        };
        Self {
            memory,
            dropped: 0,
            snapshot: Marked::default(),
        }
    }

    /// Note an occurrence of a key that has no row; return whether it gets one now.
    ///
    /// `has_enough` says whether the statistic that it goes by has reached its limit.
    pub(crate) fn admits(
        &mut self,
        key_hash: u64,
        version: u64,
        occurrence: Occurrence,
        has_enough: impl Fn(u64) -> bool,
    ) -> bool {
        let admitted = match &mut self.memory {
            Memory::Count { count, candidates } => {
                let admitted = candidates.add(key_hash, version) >= *count;
                if admitted {
                    candidates.remove(key_hash);
                }
                admitted
            }
            Memory::Sketch { count, sketch } => sketch.add(key_hash) >= *count,
            Memory::Probability { threshold, seed } => {
                hash(hash(*seed ^ key_hash) ^ occurrence.0) < *threshold
            }
            Memory::Statistic => has_enough(key_hash),
        };
        self.dropped += u64::from(!admitted);
        admitted
    }

    /// The keys with counts of their own, if that is how this filter counts.
    pub(crate) fn candidates(&mut self) -> Option<&mut Candidates> {
        match &mut self.memory {
            Memory::Count { candidates, .. } => Some(candidates),
            Memory::Sketch { .. } | Memory::Probability { .. } | Memory::Statistic => None,
        }
    }

    /// Put back the cells of a slot; those of a filter without a sketch have no length.
    pub(crate) fn restore_sketch(&mut self, slot: u32, cells: &[u8]) {
        if let Memory::Sketch { sketch, .. } = &mut self.memory {
            sketch.restore(slot, cells);
        }
    }

    /// Return how many candidates there were when the snapshot began.
    pub(crate) fn snapshot_len(&self) -> usize {
        self.snapshot.candidates
    }

    /// Return the cells of the snapshot's sketch, by slot; empty without one.
    pub(crate) fn snapshot_cells(&self) -> Arc<Vec<u8>> {
        self.snapshot.cells.clone()
    }
}
