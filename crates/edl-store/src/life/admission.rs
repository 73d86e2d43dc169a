//! The filter of a stripe: whether a key that has no row gets one.

use std::sync::Arc;

use crate::index::HashRange;
use crate::life::candidates::{Candidate, Candidates};
use crate::life::sketch::Sketch;
use crate::life::spec::Admission;
use crate::route::hash;

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

/// How many keys the filter holds back, and how often it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Keys with a count of their own.
    pub(crate) candidates: u64,
    /// Gradients dropped because their key had no row.
    pub(crate) dropped: u64,
    pub(crate) bytes: u64,
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

/// The state at the begin of a snapshot.
#[derive(Default)]
struct Marked {
    candidates: usize,
    cells: Arc<Vec<u8>>,
}

impl AdmissionFilter {
    /// Make the filter of a stripe.
    ///
    /// `seed` is the table's; `first_hash_slot` and `num_hash_slots` are the stripe's, as is `range`.
    pub(crate) fn new(
        admission: Admission,
        seed: u64,
        range: HashRange,
        first_hash_slot: u32,
        num_hash_slots: usize,
    ) -> Self {
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

    pub(crate) fn tally(&self) -> Tally {
        let (candidates, bytes) = match &self.memory {
            Memory::Count { candidates, .. } => (candidates.len(), candidates.bytes()),
            Memory::Sketch { sketch, .. } => (0, sketch.bytes()),
            Memory::Probability { .. } | Memory::Statistic => (0, 0),
        };
        Tally {
            candidates: candidates as u64,
            dropped: self.dropped,
            bytes: bytes as u64,
        }
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

    /// Return some candidates from a hash on, about `max`, and the hash to go on from; `None` if
    /// that is not how this filter counts.
    pub(crate) fn walk_candidates(
        &self,
        from: u64,
        max: usize,
    ) -> Option<(Vec<Candidate>, Option<u64>)> {
        match &self.memory {
            Memory::Count { candidates, .. } => Some(candidates.walk(from, max)),
            Memory::Sketch { .. } | Memory::Probability { .. } | Memory::Statistic => None,
        }
    }

    /// Give the cells of each slot that has changed since the last time, or of all.
    pub(crate) fn take_sketches(&mut self, all: bool, take: impl FnMut(u32, &[u8])) {
        if let Memory::Sketch { sketch, .. } = &mut self.memory {
            sketch.take_changed(all, take);
        }
    }

    /// Have at least the counts of another sketch in a slot.
    pub(crate) fn put_sketch(&mut self, slot: u32, cells: &[u8]) {
        if let Memory::Sketch { sketch, .. } = &mut self.memory {
            sketch.put(slot, cells);
        }
    }

    pub(crate) fn begin_snapshot(&mut self, version: u64) {
        match &mut self.memory {
            Memory::Count { candidates, .. } => {
                candidates.begin_snapshot(version);
                self.snapshot.candidates = candidates.len();
            }
            Memory::Sketch { sketch, .. } => self.snapshot.cells = sketch.cells(),
            Memory::Probability { .. } | Memory::Statistic => {}
        }
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = Marked::default();
        if let Some(candidates) = self.candidates() {
            candidates.end_snapshot();
        }
    }

    /// Return how many candidates there were when the snapshot began.
    pub(crate) fn snapshot_len(&self) -> usize {
        self.snapshot.candidates
    }

    /// Return some more candidates of the snapshot; `None` when all have been returned.
    pub(crate) fn read_snapshot(&mut self, max: usize) -> Option<Vec<Candidate>> {
        self.candidates()?.read_snapshot(max)
    }

    /// Return the cells of the snapshot's sketch, by slot; empty without one.
    pub(crate) fn snapshot_cells(&self) -> Arc<Vec<u8>> {
        self.snapshot.cells.clone()
    }
}
