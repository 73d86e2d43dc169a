//! Keys that come into a stripe and rows that go.

use std::sync::Arc;

use super::cold::row_of;
use super::{Chunk, Keys, KnownStripe, RowSpec, Stripe};
use crate::error::StoreError;
use crate::index::NO_ROW;
use crate::life::{AdmissionFilter, Candidate, Cut, Fate, Occurrence, Tally};
use crate::route::unhash;

/// Entries that a pass looks at under one taking of the lock.
const SLICE: usize = 2048;

/// The rows that a slice of a pass removed.
pub(crate) struct Expelled {
    /// The hash to go on from.
    pub(crate) next: Option<u64>,
    pub(crate) rows: u64,
    /// Whether one of them had a name.
    pub(crate) named: bool,
}

/// The keys of a batch that are let in.
#[derive(Default)]
pub(crate) struct Admitted {
    hashes: Vec<u64>,
    positions: Vec<u32>,
}

impl Admitted {
    pub(crate) fn keys(&self) -> Keys<'_> {
        Keys {
            hashes: &self.hashes,
            positions: &self.positions,
        }
    }
}

impl Stripe {
    /// Sort out the keys that have a row or get one now; those that come to be created by the
    /// update are among them. The others are counted.
    ///
    /// Occurrences are counted here, where the update is applied once whatever comes again, and
    /// not where a row is asked for.
    pub(crate) fn admit(
        &mut self,
        keys: Keys<'_>,
        version: u64,
        occurrence: Occurrence,
        known: Option<&KnownStripe<'_>>,
        admitted: &mut Admitted,
    ) {
        admitted.hashes.clear();
        admitted.positions.clear();
        let Some(filter) = &mut self.filter else {
            return;
        };
        let has_enough = |hash| known.is_some_and(|known| !known.is_below(hash, None));
        let index = self.index.view();
        let mut rows = vec![NO_ROW; keys.group_len()];
        for (hashes, positions, next) in keys.groups() {
            index.find(hashes, next, &mut rows);
            for ((&hash, &position), &row) in hashes.iter().zip(positions).zip(&rows) {
                if row != NO_ROW || filter.admits(hash, version, occurrence, has_enough) {
                    admitted.hashes.push(hash);
                    admitted.positions.push(position);
                }
            }
        }
    }

    /// Take a row that is free, or a new one.
    ///
    /// While a snapshot is read only new ones are taken: it tells by the number which rows were
    /// there when it began. Nor is a free one taken at the version of the last snapshot: what has
    /// changed since is told by the version, and of equal ones by the number.
    pub(super) fn take_row(&mut self, hash: u64, version: u64) -> u32 {
        let is_told = self.snapshot_version.is_none_or(|last| version > last);
        let free = if self.snapshot.is_none() && is_told {
            self.free.pop()
        } else {
            None
        };
        match &mut self.cold {
            None => free.unwrap_or_else(|| self.arena.push()),
            Some(cold) => cold.add(hash, free, &mut self.arena),
        }
    }

    /// Remove some of the rows that a pass asks to go, from the hash `from` on; return the hash
    /// to go on from, and what went.
    ///
    /// Args: `known` has the statistics that they go by as well, if they do.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn expire_rows(
        &mut self,
        from: u64,
        cut: &Cut,
        spec: &RowSpec,
        known: Option<&KnownStripe<'_>>,
    ) -> Result<Expelled, StoreError> {
        let (entries, next) = self.index.walk(from, SLICE);
        let mut going = Vec::new();
        let (arena, cold) = (self.arena.view(), self.cold.as_deref());
        for entry in entries {
            let (row, version) = (entry.row(), entry.version());
            let goes = match cut.judge(version) {
                Fate::Stays => false,
                Fate::Goes => true,
                Fate::ByNorm => {
                    let birth = self.births.as_ref().map(|births| births.of(row));
                    cut.has_no_grace(birth, version)
                        && cut.is_small(&row_of(cold, &arena, &entry, spec.dim)?)
                }
            };
            // A row's own statistics are never on disk; those of another table are with that.
            let own = cold.is_none().then(|| arena.row(row, spec.dim));
            let is_below = |known: &KnownStripe<'_>| known.is_below(entry.hash, own);
            if !goes && !known.is_some_and(is_below) {
                continue;
            }
            if let Some(snapshot) = &mut self.snapshot
                && snapshot.wants(entry.hash, row, version)
            {
                let saved = row_of(cold, &arena, &entry, spec.width)?;
                let birth = self.births.as_ref().map(|births| births.of(row));
                snapshot.saved.push(entry.hash, version, birth, &saved);
            }
            going.push(entry);
        }
        drop(arena);
        let (removed, mut named) = (going.len() as u64, false);
        for entry in going {
            self.index.remove(entry.hash);
            if let Some(cold) = &mut self.cold {
                cold.forget(entry.row(), &mut self.arena);
            }
            self.free.push(entry.row());
            if let Some(gone) = &mut self.gone {
                gone.hashes.push(entry.hash);
            }
            if let Some(names) = &mut self.names {
                named |= names.row_went(entry.hash, cut.version);
            }
        }
        if let Some(names) = self.names.as_mut().filter(|_| next.is_none()) {
            names.sweep(cut.version);
        }
        Ok(Expelled {
            next,
            rows: removed,
            named,
        })
    }

    /// Forget some candidates that are too old; like `expire_rows`.
    pub(crate) fn expire_candidates(&mut self, from: u64, cut: &Cut) -> (Option<u64>, u64) {
        let candidates = self.filter.as_mut().and_then(AdmissionFilter::candidates);
        let (Some(candidates), Some(last)) = (candidates, cut.last_version) else {
            return (None, 0);
        };
        let (next, removed) = candidates.expire(from, SLICE, last);
        (next, removed as u64)
    }

    /// Append the rows updated after `since` among up to `max` entries from the hash `from` on;
    /// return the hash to go on from.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn scan_since(
        &self,
        from: u64,
        max: usize,
        since: u64,
        dim: usize,
        chunk: &mut Chunk,
    ) -> Result<Option<u64>, StoreError> {
        let (mut entries, next) = self.index.walk(from, max);
        entries.retain(|entry| entry.version() > since);
        chunk
            .keys
            .extend(entries.iter().map(|entry| unhash(entry.hash)));
        self.copy_rows(&entries, dim, &mut chunk.rows)?;
        Ok(next)
    }

    pub(crate) fn tally(&self) -> Tally {
        self.filter
            .as_ref()
            .map(AdmissionFilter::tally)
            .unwrap_or_default()
    }

    pub(crate) fn has_row(&self, hash: u64) -> bool {
        self.index.find(hash).is_some()
    }

    /// Make room for `additional` candidates.
    pub(crate) fn reserve_candidates(&mut self, additional: usize) {
        if let Some(candidates) = self.filter.as_mut().and_then(AdmissionFilter::candidates) {
            candidates.reserve(additional);
        }
    }

    /// Put back a candidate; false if it is there already.
    pub(crate) fn restore_candidate(&mut self, candidate: Candidate) -> bool {
        let candidates = self.filter.as_mut().and_then(AdmissionFilter::candidates);
        candidates.is_some_and(|candidates| candidates.restore(candidate))
    }

    /// Put back the cells of a slot's sketch.
    pub(crate) fn restore_sketch(&mut self, slot: u32, cells: &[u8]) {
        if let Some(filter) = &mut self.filter {
            filter.restore_sketch(slot, cells);
        }
    }

    pub(super) fn begin_filter_snapshot(&mut self, version: u64) {
        if let Some(filter) = &mut self.filter {
            filter.begin_snapshot(version);
        }
    }

    pub(super) fn end_filter_snapshot(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.end_snapshot();
        }
    }

    /// Return some more candidates of the snapshot; `None` when all have been returned.
    pub(crate) fn read_candidates(&mut self, max: usize) -> Option<Vec<Candidate>> {
        self.filter.as_mut()?.read_snapshot(max)
    }

    /// Return how many candidates there were when the snapshot began.
    pub(crate) fn snapshot_candidates(&self) -> usize {
        self.filter
            .as_ref()
            .map_or(0, AdmissionFilter::snapshot_len)
    }

    /// Return the cells of the snapshot's sketch.
    pub(crate) fn snapshot_cells(&self) -> Arc<Vec<u8>> {
        let filter = self.filter.as_ref();
        filter
            .map(AdmissionFilter::snapshot_cells)
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use edl_optim::Optimizer;

    use super::*;
    use crate::index::HashRange;
    use crate::initial::Generator;
    use crate::life::{Expiry, Times};
    use crate::route::hash;
    use crate::spec::{InitializerSpec, ModelSpec};
    use crate::stripe::SavedRows;

    const ALL: HashRange = HashRange {
        first: 0,
        width: 1 << 64,
    };

    fn sgd() -> Optimizer {
        Optimizer::new("sgd", &BTreeMap::new()).unwrap()
    }

    fn spec() -> RowSpec {
        let model = ModelSpec::from_json(
            r#"{"tables": [{"name": "t", "dim": 1, "initializer": {"kind": "constant",
            "params": {"value": 1.0}}, "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
            "optimizer": {"kind": "sgd"}, "seed": 0}"#,
        );
        let table = &model.unwrap().tables[0];
        let kind = InitializerSpec::parse(&table.initializer).unwrap();
        RowSpec {
            dim: 1,
            width: 1,
            optimizer: sgd(),
            constraint: None,
            generator: Generator::new(0, table, kind),
            statistics: None,
        }
    }

    fn push(stripe: &mut Stripe, keys: std::ops::Range<u64>, version: u64) {
        let hashes: Vec<u64> = keys.map(hash).collect();
        let positions: Vec<u32> = (0..hashes.len() as u32).collect();
        let keys = Keys {
            hashes: &hashes,
            positions: &positions,
        };
        let grads = vec![-1.0; hashes.len()];
        let step = sgd().step(1.0, version);
        let pushed = stripe.push(keys, &grads, &spec(), &step, version);
        pushed.unwrap();
    }

    fn expire_up_to(stripe: &mut Stripe, last: u64) -> u64 {
        let expiry = Expiry {
            steps: Some(0),
            seconds: None,
            min_square: None,
            grace: 0,
            statistic: None,
        };
        let cut = Cut::new(expiry, last, &Times::default(), 0);
        let (mut cursor, mut total) = (Some(0), 0);
        while let Some(from) = cursor {
            let gone = stripe.expire_rows(from, &cut, &spec(), None).unwrap();
            (cursor, total) = (gone.next, total + gone.rows);
        }
        total
    }

    #[test]
    fn rows_that_go_make_room_for_new_ones() {
        let mut stripe = Stripe::new(ALL, 1, 0.0, None);
        push(&mut stripe, 0..10_000, 1);
        let bytes = stripe.bytes();
        for version in 2..20 {
            assert_eq!(expire_up_to(&mut stripe, version - 1), 10_000);
            assert_eq!(stripe.len(), 0);
            let first = version * 10_000;
            push(&mut stripe, first..first + 10_000, version);
        }
        assert_eq!(stripe.len(), 10_000);
        // The list of free rows has grown, by four bytes a row and the overhead of a list.
        assert!(stripe.bytes() <= bytes + 8 * 10_000, "{}", stripe.bytes());
    }

    #[test]
    fn a_snapshot_has_the_rows_that_go_while_it_is_read_and_none_that_come() {
        let mut stripe = Stripe::new(ALL, 1, 0.0, None);
        push(&mut stripe, 0..6000, 1);
        push(&mut stripe, 0..3000, 2);
        assert_eq!(stripe.begin_snapshot(2, None), 6000);
        let mut found = Vec::new();
        let mut read = |stripe: &mut Stripe| {
            let mut rows = SavedRows::empty();
            let more = stripe.read_snapshot(1000, 1, &mut rows).unwrap();
            let values = rows.versions.iter().zip(&rows.rows);
            let values = values.map(|(&version, &weight)| (version, weight));
            found.extend(rows.keys.iter().copied().zip(values));
            more
        };
        assert!(read(&mut stripe));
        assert_eq!(expire_up_to(&mut stripe, 1), 3000);
        // The same keys again and others: in rows of other numbers, as version 2 or later.
        for key in 2000..4000 {
            stripe.weights(hash(key), &spec(), 2);
        }
        push(&mut stripe, 3500..8000, 3);
        while read(&mut stripe) {}
        found.sort_unstable_by_key(|&(key, _)| key);
        let as_it_was = |key| (key, if key < 3000 { (2, 3.0) } else { (1, 2.0) });
        assert_eq!(found, (0..6000).map(as_it_was).collect::<Vec<_>>());
    }
}
