//! Keys that have been seen, but have no row yet, each with its own count.

use crate::index::{HashRange, Index};

/// A key that waits for its admission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) hash: u64,
    /// The version of the last update that had it.
    pub(crate) version: u64,
    pub(crate) count: u32,
}

/// A snapshot that is being copied out; see that of a stripe's rows.
struct Snapshot {
    version: u64,
    cursor: u64,
    saved: Vec<Candidate>,
}

impl Snapshot {
    fn save(&mut self, candidate: Candidate) {
        if candidate.version <= self.version && candidate.hash >= self.cursor {
            self.saved.push(candidate);
        }
    }
}

/// The candidates of one stripe. An entry of the index holds the count where it has a row's
/// number otherwise.
pub(crate) struct Candidates {
    index: Index,
    snapshot: Option<Snapshot>,
}

impl Candidates {
    pub(crate) fn new(range: HashRange) -> Self {
        Self {
            index: Index::new(range, 0.0),
            snapshot: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Count one more occurrence of a key; return how many there were, this one included.
    pub(crate) fn add(&mut self, hash: u64, version: u64) -> u32 {
        let Some((count, seen)) = self.index.get(hash) else {
            self.index.insert(hash, 1, version);
            return 1;
        };
        self.save(hash, count, seen);
        self.index.set(hash, count + 1, version);
        count + 1
    }

    /// Forget a key.
    pub(crate) fn remove(&mut self, hash: u64) {
        if let Some((count, version)) = self.index.remove(hash) {
            self.save(hash, count, version);
        }
    }

    fn save(&mut self, hash: u64, count: u32, version: u64) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.save(Candidate {
                hash,
                version,
                count,
            });
        }
    }

    /// Forget some keys from `from` on, about `max`, that were last seen at `last_version` or
    /// before; return the hash to go on from, and how many went.
    pub(crate) fn expire(
        &mut self,
        from: u64,
        max: usize,
        last_version: u64,
    ) -> (Option<u64>, usize) {
        let (entries, next) = self.index.walk(from, max);
        let old = entries.iter().filter(|e| e.version() <= last_version);
        let mut removed = 0;
        for hash in old.map(|entry| entry.hash) {
            self.remove(hash);
            removed += 1;
        }
        (next, removed)
    }

    /// Put back a candidate; false if it is there already.
    pub(crate) fn restore(&mut self, candidate: Candidate) -> bool {
        if self.index.find(candidate.hash).is_some() {
            return false;
        }
        let Candidate {
            hash,
            version,
            count,
        } = candidate;
        self.index.insert(hash, count, version);
        true
    }

    /// Have a candidate as another store has it, unless it was seen later here.
    pub(crate) fn put(&mut self, candidate: Candidate) {
        let Candidate {
            hash,
            version,
            count,
        } = candidate;
        match self.index.get(hash) {
            None => self.index.insert(hash, count, version),
            Some((_, here)) if here <= version => self.index.set(hash, count, version),
            Some(_) => {}
        }
    }

    /// Return some candidates from a hash on, about `max`, and the hash to go on from.
    pub(crate) fn walk(&self, from: u64, max: usize) -> (Vec<Candidate>, Option<u64>) {
        let (entries, next) = self.index.walk(from, max);
        let found = entries.iter().map(|entry| Candidate {
            hash: entry.hash,
            version: entry.version(),
            count: entry.row(),
        });
        (found.collect(), next)
    }

    pub(crate) fn reserve(&mut self, additional: usize) {
        self.index.reserve(additional);
    }

    /// Begin a snapshot of this instant, of `len` candidates.
    pub(crate) fn begin_snapshot(&mut self, version: u64) {
        self.snapshot = Some(Snapshot {
            version,
            cursor: 0,
            saved: Vec::new(),
        });
    }

    pub(crate) fn end_snapshot(&mut self) {
        self.snapshot = None;
    }

    /// Return some more of the snapshot, about `max`; `None` when all have been returned.
    pub(crate) fn read_snapshot(&mut self, max: usize) -> Option<Vec<Candidate>> {
        let snapshot = self.snapshot.as_mut()?;
        let (entries, next) = self.index.walk(snapshot.cursor, max);
        for entry in entries {
            snapshot.save(Candidate {
                hash: entry.hash,
                version: entry.version(),
                count: entry.row(),
            });
        }
        let found = std::mem::take(&mut snapshot.saved);
        match next {
            Some(next) => snapshot.cursor = next,
            None => self.snapshot = None,
        }
        Some(found)
    }
}
