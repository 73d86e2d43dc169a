//! Statistics of keys: tables of decayed sums, and what other tables ask of them.

use std::sync::atomic::Ordering;

use super::Table;
use crate::error::StoreError;
use crate::life::{Admission, Limit};
use crate::stripe::KnownStripe;

/// The place of a table's limit.
#[derive(Clone, Copy)]
pub(super) struct Known<'t> {
    /// The table of statistics; `None` if it is the one that asks.
    table: Option<&'t Table>,
    whose: &'t Table,
    limit: Limit,
}

impl<'t> Known<'t> {
    /// Return the statistics of the keys of a stripe, under its lock if it is of another table.
    ///
    /// Stripes of statistics are locked after those that ask, and ask for none.
    pub(super) fn of_stripe(self, number: usize) -> KnownStripe<'t> {
        let table = self.table.unwrap_or(self.whose);
        KnownStripe {
            stripe: self.table.map(|table| table.stripes[number].read()),
            spec: &table.spec,
            newest: table.newest(),
            limit: self.limit,
        }
    }
}

impl Table {
    /// Whether rows are statistics.
    pub(crate) fn has_statistics(&self) -> bool {
        self.spec.statistics.is_some()
    }

    /// Return where a limit is looked up. Args: `tables` are all of the model.
    pub(super) fn known<'t>(&'t self, limit: Limit, tables: &'t [Self]) -> Known<'t> {
        let table = &tables[limit.table];
        Known {
            table: (!std::ptr::eq(table, self)).then_some(table),
            whose: self,
            limit,
        }
    }

    /// Take note of the periods of rows, or of what is added to them.
    pub(super) fn note_periods(&self, rows: &[f32]) {
        if self.has_statistics() {
            let last = rows
                .chunks_exact(self.spec.dim)
                .map(|row| row[row.len() - 1]);
            // The bits of such floats are in the order of their values.
            let newest = last.fold(0.0, f32::max);
            self.newest.fetch_max(newest.to_bits(), Ordering::AcqRel);
        }
    }

    /// Count periods from 0 on, as a new job does: the sums are as they are in the newest one.
    pub(crate) fn begin_periods(&self) {
        if let Some(statistics) = self.spec.statistics {
            let newest = self.newest();
            for stripe in &self.stripes {
                stripe
                    .write()
                    .begin_periods(statistics, newest, self.spec.dim);
            }
            self.newest.store(0, Ordering::Release);
        }
    }

    pub(super) fn newest(&self) -> f32 {
        f32::from_bits(self.newest.load(Ordering::Acquire))
    }

    /// Decay copies of rows to the newest period, if they are statistics.
    pub(super) fn decay_to_newest(&self, rows: &mut [f32]) {
        if let Some(statistics) = self.spec.statistics {
            let newest = self.newest();
            for row in rows.chunks_exact_mut(self.spec.dim) {
                statistics.decay_to(row, newest);
            }
        }
    }
}

/// Check that tables go by statistics that there are.
pub(crate) fn check_statistics(tables: &[Table]) -> Result<(), StoreError> {
    for table in tables {
        let of_admission = match table.admission {
            Some(Admission::Statistic(limit)) => Some(limit),
            _ => None,
        };
        let of_expiry = table.expiry.and_then(|expiry| expiry.statistic);
        for limit in of_admission.into_iter().chain(of_expiry) {
            let found = tables.get(limit.table).filter(|t| t.has_statistics());
            // An id without a row has no statistics of its own that could admit it.
            let is_own = limit.table < tables.len() && std::ptr::eq(&tables[limit.table], table);
            let admits_itself = is_own && of_admission == Some(limit);
            if admits_itself || found.is_none_or(|t| limit.column + 1 >= t.spec.dim) {
                return Err(StoreError::BadModel(format!(
                    "table '{}' goes by statistic {} of table {}, which has none such",
                    table.name, limit.column, limit.table
                )));
            }
        }
    }
    Ok(())
}
