//! The life cycle of a table's keys, stripe by stripe.

use std::sync::Arc;

use super::Table;
use crate::error::StoreError;
use crate::life::{Admission, Candidate, Cut, Expired, Expiry, SKETCH_ROWS, Tally};
use crate::placement::NUM_STRIPES;
use crate::route::hash;
use crate::stripe::{Chunk, Expelled};

impl Table {
    /// Return when rows go, if they ever do.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        self.expiry
    }

    /// Whether it is noted when rows were first updated: where new ones have a time of grace.
    pub(crate) fn has_births(&self) -> bool {
        self.expiry.is_some_and(|expiry| expiry.grace > 0)
    }

    pub(super) fn begin_births(&self) {
        for stripe in &self.stripes {
            stripe.write().note_births();
        }
    }

    /// Whether there is more than rows to keep: candidates or a sketch.
    pub(crate) fn has_memory(&self) -> bool {
        matches!(
            self.admission,
            Some(Admission::Count { .. } | Admission::Sketch { .. })
        )
    }

    /// Return the count at which a candidate gets its row; 0 where there are none.
    pub(crate) fn admission_count(&self) -> u32 {
        match self.admission {
            Some(Admission::Count { count }) => count,
            Some(_) | None => 0,
        }
    }

    /// Return the bytes of a slot's sketch.
    pub(crate) fn sketch_cells(&self) -> usize {
        match self.admission {
            Some(Admission::Sketch { cells, .. }) => SKETCH_ROWS * cells as usize,
            Some(_) | None => 0,
        }
    }

    /// Return what the filters of all stripes have done.
    pub(crate) fn tally(&self) -> Tally {
        self.stripes.iter().fold(Tally::default(), |sum, stripe| {
            let tally = stripe.read().tally();
            Tally {
                candidates: sum.candidates + tally.candidates,
                dropped: sum.dropped + tally.dropped,
                bytes: sum.bytes + tally.bytes,
            }
        })
    }

    /// Remove what a pass asks to go, a slice at a time; `pass` is called around each slice, which
    /// returns what it has removed. Args: `tables` are all of the model.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn expire(
        &self,
        cut: &Cut,
        tables: &[Self],
        mut pass: impl FnMut(&mut dyn FnMut() -> Result<Expelled, StoreError>) -> Result<(), StoreError>,
    ) -> Result<Expired, StoreError> {
        let mut expired = Expired::default();
        let statistic = self.expiry.and_then(|expiry| expiry.statistic);
        let known = statistic.map(|limit| self.known(limit, tables));
        for (number, stripe) in self.stripes.iter().enumerate() {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                pass(&mut || {
                    let mut stripe = stripe.write();
                    let (saved, before) = (stripe.num_saved(), stripe.bytes());
                    let known = known.map(|known| known.of_stripe(number));
                    let gone = stripe.expire_rows(from, cut, &self.spec, known.as_ref());
                    self.note_saved(&stripe, saved);
                    self.budget.note(before, stripe.bytes());
                    let gone = gone?;
                    expired.rows += gone.rows;
                    cursor = gone.next;
                    Ok(gone)
                })?;
            }
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                pass(&mut || {
                    let (next, removed) = stripe.write().expire_candidates(from, cut);
                    expired.candidates += removed;
                    cursor = next;
                    Ok(Expelled {
                        next,
                        rows: removed,
                        named: false,
                    })
                })?;
            }
        }
        Ok(expired)
    }

    /// Return the rows updated after `since` among some entries from the hash `cursor` on, which
    /// may be none before the end.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan_since(
        &self,
        cursor: u64,
        max_rows: usize,
        since: u64,
    ) -> Result<Chunk, StoreError> {
        let mut chunk = Chunk {
            keys: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        let cursor = cursor.max(self.placement.hashes(0).first);
        if !self.placement.owns(cursor) {
            return Ok(chunk);
        }
        let number = self.placement.stripe(cursor);
        let stripe = self.stripes[number].read();
        let next = stripe.scan_since(cursor, max_rows.max(1), since, self.spec.dim, &mut chunk)?;
        self.decay_to_newest(&mut chunk.rows);
        chunk.next = next.or_else(|| {
            let following = number + 1;
            (following < NUM_STRIPES).then(|| self.placement.hashes(following).first)
        });
        Ok(chunk)
    }

    /// Return the number of candidates in the snapshot that has begun.
    pub(crate) fn snapshot_candidates(&self) -> usize {
        let stripes = self.stripes.iter();
        stripes
            .map(|stripe| stripe.read().snapshot_candidates())
            .sum()
    }

    /// Return some more candidates of a stripe's snapshot, about `max`.
    pub(crate) fn read_candidates(&self, stripe: usize, max: usize) -> Option<Vec<Candidate>> {
        self.stripes[stripe].write().read_candidates(max)
    }

    /// Return the cells of a stripe's snapshot, by slot.
    pub(crate) fn snapshot_cells(&self, stripe: usize) -> Arc<Vec<u8>> {
        self.stripes[stripe].read().snapshot_cells()
    }

    /// Put back candidates as a checkpoint has them; those of other replicas are left out.
    /// Return the first key that is there twice, or that has a row.
    pub(crate) fn restore_candidates(
        &self,
        keys: &[u64],
        versions: &[u64],
        counts: &[u32],
    ) -> Option<u64> {
        let mut room = [0; NUM_STRIPES];
        for hash in keys.iter().map(|&key| hash(key)) {
            if self.placement.owns(hash) {
                room[self.placement.stripe(hash)] += 1;
            }
        }
        for (stripe, additional) in self.stripes.iter().zip(room) {
            stripe.write().reserve_candidates(additional);
        }
        let entries = keys.iter().zip(versions).zip(counts);
        for ((&key, &version), &count) in entries {
            let hash = hash(key);
            if !self.placement.owns(hash) {
                continue;
            }
            let mut stripe = self.stripes[self.placement.stripe(hash)].write();
            let candidate = Candidate {
                hash,
                version,
                count,
            };
            if stripe.has_row(hash) || !stripe.restore_candidate(candidate) {
                return Some(key);
            }
        }
        None
    }

    /// Put back the cells of a slot, if it belongs to this replica.
    pub(crate) fn restore_sketch(&self, slot: u32, cells: &[u8]) {
        let first = u64::from(slot) << 48;
        if self.placement.owns(first) {
            let mut stripe = self.stripes[self.placement.stripe(first)].write();
            stripe.restore_sketch(slot, cells);
        }
    }
}
