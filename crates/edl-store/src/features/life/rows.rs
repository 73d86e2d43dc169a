//! The life cycle of a table's keys, stripe by stripe: which come in, and which rows go.

use std::sync::Arc;

use super::expiry::Fate;
use super::sketch::NUM_ROWS;
use super::{Admission, AdmissionFilter, Births, Candidate, Cut, Expired, Expiry, Occurrence};
use crate::error::StoreError;
use crate::features::RowFeature;
use crate::features::statistics::KnownStripe;
use crate::index::NO_ROW;
use crate::route::hash;
use crate::row::RowSpec;
use crate::stripe::{Keys, Removed, Stripe};
use crate::table::Table;

/// Entries that a pass looks at under one taking of the lock.
const SLICE: usize = 2048;

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

    /// Sort out the keys of a stripe that have a row or get one now; those that come to be created by
    /// the update are among them. The others are counted.
    ///
    /// Occurrences are counted here, where the update is applied once whatever comes again, and
    /// not where a row is asked for.
    pub(crate) fn sort_out(
        &mut self,
        stripe: &mut Stripe,
        keys: Keys<'_>,
        version: u64,
        occurrence: Occurrence,
        known: Option<&KnownStripe<'_>>,
    ) {
        self.hashes.clear();
        self.positions.clear();
        let (index, features) = stripe.index_and_features();
        let Some(filter) = features.get_mut::<AdmissionFilter>() else {
            return;
        };
        let has_enough = |hash| known.is_some_and(|known| !known.is_below(hash, None));
        let index = index.view();
        let mut rows = vec![NO_ROW; keys.group_len()];
        for (hashes, positions, next) in keys.groups() {
            index.find(hashes, next, &mut rows);
            for ((&hash, &position), &row) in hashes.iter().zip(positions).zip(&rows) {
                if row != NO_ROW || filter.admits(hash, version, occurrence, has_enough) {
                    self.hashes.push(hash);
                    self.positions.push(position);
                }
            }
        }
    }
}

impl Table {
    /// Return when rows go, if they ever do.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        self.terms.expiry
    }

    /// Whether there is more than rows to keep: candidates or a sketch.
    pub(super) fn has_memory(&self) -> bool {
        matches!(
            self.terms.admission,
            Some(Admission::Count { .. } | Admission::Sketch { .. })
        )
    }

    /// Return the count at which a candidate gets its row; 0 where there are none.
    pub(super) fn admission_count(&self) -> u32 {
        match self.terms.admission {
            Some(Admission::Count { count }) => count,
            Some(_) | None => 0,
        }
    }

    /// Return the bytes of a slot's sketch.
    pub(super) fn sketch_cells(&self) -> usize {
        match self.terms.admission {
            Some(Admission::Sketch { cells, .. }) => NUM_ROWS * cells as usize,
            Some(_) | None => 0,
        }
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
        mut pass: impl FnMut(&mut dyn FnMut() -> Result<Removed, StoreError>) -> Result<(), StoreError>,
    ) -> Result<Expired, StoreError> {
        let mut expired = Expired::default();
        let statistic = self.terms.expiry.and_then(|expiry| expiry.statistic);
        let known = statistic.map(|limit| self.known(limit, tables));
        for (number, stripe) in self.stripes().iter().enumerate() {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                pass(&mut || {
                    let gone = self.change(stripe, |stripe| {
                        let known = known.map(|known| known.of_stripe(number));
                        expire_rows(stripe, from, cut, self.row_spec(), known.as_ref())
                    })?;
                    expired.rows += gone.rows;
                    cursor = gone.next;
                    Ok(gone)
                })?;
            }
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                pass(&mut || {
                    let (next, rows) = expire_candidates(&mut stripe.write(), from, cut);
                    expired.candidates += rows;
                    cursor = next;
                    Ok(Removed {
                        next,
                        rows,
                        is_told: false,
                    })
                })?;
            }
        }
        Ok(expired)
    }

    /// Return the number of candidates in the snapshot that has begun.
    pub(super) fn snapshot_candidates(&self) -> usize {
        let len = |stripe: &Stripe| {
            let filter = stripe.features.get::<AdmissionFilter>();
            filter.map_or(0, AdmissionFilter::snapshot_len)
        };
        self.stripes()
            .iter()
            .map(|stripe| len(&stripe.read()))
            .sum()
    }

    /// Return some more candidates of a stripe's snapshot, about `max`.
    pub(super) fn read_candidates(&self, stripe: usize, max: usize) -> Option<Vec<Candidate>> {
        let mut stripe = self.stripes()[stripe].write();
        let filter = stripe.features.get_mut::<AdmissionFilter>()?;
        filter.candidates()?.read_snapshot(max)
    }

    /// Return the cells of a stripe's snapshot, by slot.
    pub(super) fn snapshot_cells(&self, stripe: usize) -> Arc<Vec<u8>> {
        let stripe = self.stripes()[stripe].read();
        let filter = stripe.features.get::<AdmissionFilter>();
        filter
            .map(AdmissionFilter::snapshot_cells)
            .unwrap_or_default()
    }

    /// Put back candidates as a checkpoint has them; those of other replicas are left out.
    /// Return the first key that is there twice, or that has a row.
    pub(super) fn restore_candidates(
        &self,
        keys: &[u64],
        versions: &[u64],
        counts: &[u32],
    ) -> Option<u64> {
        let room = self.count_by_stripe(keys);
        for (stripe, additional) in self.stripes().iter().zip(room) {
            let mut stripe = stripe.write();
            let filter = stripe.features.get_mut::<AdmissionFilter>();
            if let Some(candidates) = filter.and_then(AdmissionFilter::candidates) {
                candidates.reserve(additional);
            }
        }
        let entries = keys.iter().zip(versions).zip(counts);
        for ((&key, &version), &count) in entries {
            let hash = hash(key);
            if !self.owns(hash) {
                continue;
            }
            let mut stripe = self.stripe_of(hash).write();
            let has_row = stripe.has_row(hash);
            let filter = stripe.features.get_mut::<AdmissionFilter>();
            let candidates = filter.and_then(AdmissionFilter::candidates);
            let is_new = candidates.is_some_and(|candidates| {
                candidates.restore(Candidate {
                    hash,
                    version,
                    count,
                })
            });
            if has_row || !is_new {
                return Some(key);
            }
        }
        None
    }

    /// Put back the cells of a slot, if it belongs to this replica.
    pub(super) fn restore_sketch(&self, slot: u32, cells: &[u8]) {
        let first = u64::from(slot) << 48;
        if self.owns(first) {
            let mut stripe = self.stripe_of(first).write();
            if let Some(filter) = stripe.features.get_mut::<AdmissionFilter>() {
                filter.restore_sketch(slot, cells);
            }
        }
    }
}

/// Remove some of the rows that a pass asks to go, from the hash `from` on.
///
/// Args: `known` has the statistics that they go by as well, if they do.
///
/// # Errors
/// Rows on disk that cannot be read.
fn expire_rows(
    stripe: &mut Stripe,
    from: u64,
    cut: &Cut,
    spec: &RowSpec,
    known: Option<&KnownStripe<'_>>,
) -> Result<Removed, StoreError> {
    stripe.remove_where(from, SLICE, cut.version, |row| {
        let goes = match cut.judge(row.version()) {
            Fate::Stays => false,
            Fate::Goes => true,
            Fate::ByNorm => {
                let births = row.features.get::<Births>();
                let birth = births.map(|births| births.word(row.number()));
                cut.has_no_grace(birth, row.version())
                    && cut.is_small(&spec.weights(row.values(spec.head::<0>())?))
            }
        };
        match known {
            Some(known) if !goes && known.is_own() => {
                Ok(known.is_below(row.hash(), Some(&row.values(spec.dim)?)))
            }
            Some(known) if !goes => Ok(known.is_below(row.hash(), None)),
            _ => Ok(goes),
        }
    })
}

/// Forget some candidates that are too old; return the hash to go on from, and how many went.
fn expire_candidates(stripe: &mut Stripe, from: u64, cut: &Cut) -> (Option<u64>, u64) {
    let filter = stripe.features.get_mut::<AdmissionFilter>();
    let candidates = filter.and_then(AdmissionFilter::candidates);
    let (Some(candidates), Some(last)) = (candidates, cut.last_version) else {
        return (None, 0);
    };
    let (next, removed) = candidates.expire(from, SLICE, last);
    (next, removed as u64)
}

/// Check that tables go by statistics that there are.
pub(crate) fn check_statistics(tables: &[Table]) -> Result<(), StoreError> {
    for table in tables {
        let of_admission = match table.terms.admission {
            Some(Admission::Statistic(limit)) => Some(limit),
            _ => None,
        };
        let of_expiry = table.terms.expiry.and_then(|expiry| expiry.statistic);
        for limit in of_admission.into_iter().chain(of_expiry) {
            let found = tables.get(limit.table).filter(|t| t.has_statistics());
            // An id without a row has no statistics of its own that could admit it.
            let is_own = limit.table < tables.len() && std::ptr::eq(&tables[limit.table], table);
            let admits_itself = is_own && of_admission == Some(limit);
            if admits_itself || found.is_none_or(|t| limit.column + 1 >= t.dim()) {
                return Err(StoreError::BadModel(format!(
                    "table '{}' goes by statistic {} of table {}, which has none such",
                    table.name(),
                    limit.column,
                    limit.table
                )));
            }
        }
    }
    Ok(())
}
