//! Statistics of keys: tables of decayed sums, and what other tables ask of them.

use std::sync::atomic::{AtomicU32, Ordering};

use edl_optim::{Statistics, Step};
use parking_lot::RwLockReadGuard;

use crate::spec::TableSpec;
use crate::stripe::Stripe;
use crate::table::Table;

/// What a statistic of an id must reach.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limit {
    pub(crate) table: usize,
    pub(crate) column: usize,
    pub(crate) limit: f32,
}

/// The rule of a table whose rows are decayed sums, each with its period as the last float.
pub(crate) struct Sums {
    rule: Statistics,
    dim: usize,
    /// The newest period that was added to; the bits of a float of 0 or more.
    newest: AtomicU32,
}

impl Sums {
    /// Check the statistics of a table, if its rows are some.
    ///
    /// # Errors
    /// What is wrong with them, in words.
    pub(crate) fn parse(spec: &TableSpec) -> Result<Option<Self>, String> {
        let Some(rule) = spec.statistics.map(|s| s.parse()).transpose()? else {
            return Ok(None);
        };
        if spec.dim < 2 {
            return Err("statistics have a sum and a period, expected dim of 2 or more".into());
        }
        Ok(Some(Self {
            rule,
            dim: spec.dim as usize,
            newest: AtomicU32::new(0),
        }))
    }

    /// Return what an update does to rows.
    pub(crate) fn step(&self) -> Step {
        Step::from(self.rule)
    }

    fn newest(&self) -> f32 {
        f32::from_bits(self.newest.load(Ordering::Acquire))
    }

    /// Take note of the periods of rows, or of what is added to them.
    pub(crate) fn note_periods(&self, rows: &[f32]) {
        let last = rows.chunks_exact(self.dim).map(|row| row[row.len() - 1]);
        // The bits of such floats are in the order of their values.
        let newest = last.fold(0.0, f32::max);
        self.newest.fetch_max(newest.to_bits(), Ordering::AcqRel);
    }

    /// Decay copies of rows to the newest period.
    pub(crate) fn decay_to_newest(&self, rows: &mut [f32]) {
        let newest = self.newest();
        for row in rows.chunks_exact_mut(self.dim) {
            self.rule.decay_to(row, newest);
        }
    }
}

/// The place of a table's limit.
#[derive(Clone, Copy)]
pub(crate) struct Known<'t> {
    /// The table of statistics; `None` if it is the one that asks.
    table: Option<&'t Table>,
    sums: Option<&'t Sums>,
    limit: Limit,
}

impl<'t> Known<'t> {
    /// Return the statistics of the keys of a stripe, under its lock if it is of another table.
    ///
    /// Stripes of statistics are locked after those that ask, and ask for none.
    pub(crate) fn of_stripe(self, number: usize) -> KnownStripe<'t> {
        KnownStripe {
            stripe: self.table.map(|table| table.stripes()[number].read()),
            sums: self.sums,
            newest: self.sums.map_or(0.0, Sums::newest),
            limit: self.limit,
        }
    }
}

/// The statistics of the keys of a stripe.
pub(crate) struct KnownStripe<'t> {
    /// The stripe of the other table; `None` if the rows are statistics themselves.
    stripe: Option<RwLockReadGuard<'t, Stripe>>,
    sums: Option<&'t Sums>,
    /// The period that they are decayed to.
    newest: f32,
    limit: Limit,
}

impl KnownStripe<'_> {
    /// Whether the rows that ask are the statistics themselves.
    pub(crate) fn is_own(&self) -> bool {
        self.stripe.is_none()
    }

    /// Whether the statistic of a key is below the limit, as it is of a key that has none.
    ///
    /// Args: `own` is the row of the key, where it is asked of a table about itself.
    pub(crate) fn is_below(&self, hash: u64, own: Option<&[f32]>) -> bool {
        let Some(sums) = self.sums else {
            return true;
        };
        let there = |stripe: &RwLockReadGuard<'_, Stripe>| {
            stripe.row(hash, sums.dim).map(|row| self.is_low(sums, row))
        };
        let is_low = match &self.stripe {
            None => own.map(|row| self.is_low(sums, row)),
            Some(stripe) => there(stripe),
        };
        is_low.unwrap_or(true)
    }

    fn is_low(&self, sums: &Sums, row: &[f32]) -> bool {
        let left = sums.rule.left_after(self.newest - row[row.len() - 1]);
        row[self.limit.column] * left < self.limit.limit
    }
}

impl Table {
    /// Whether rows are statistics.
    pub(crate) fn has_statistics(&self) -> bool {
        self.terms.sums.is_some()
    }

    /// Return where a limit is looked up. Args: `tables` are all of the model.
    pub(crate) fn known<'t>(&'t self, limit: Limit, tables: &'t [Self]) -> Known<'t> {
        let table = &tables[limit.table];
        Known {
            table: (!std::ptr::eq(table, self)).then_some(table),
            sums: table.terms.sums.as_ref(),
            limit,
        }
    }

    /// Count periods from 0 on, as a new job does: the sums are as they are in the newest one.
    pub(crate) fn begin_periods(&self) {
        if let Some(sums) = &self.terms.sums {
            let newest = sums.newest();
            for stripe in self.stripes() {
                stripe.write().change_rows(sums.dim, |row| {
                    sums.rule.decay_to(row, newest);
                    row[row.len() - 1] = 0.0;
                });
            }
            sums.newest.store(0, Ordering::Release);
        }
    }

    /// Return the bits of the newest period that was added to; 0 where rows are no statistics.
    pub(crate) fn newest_period(&self) -> u32 {
        let sums = self.terms.sums.as_ref();
        sums.map_or(0, |sums| sums.newest.load(Ordering::Acquire))
    }

    /// Know of a period that others have added to.
    pub(crate) fn note_newest_period(&self, bits: u32) {
        if let Some(sums) = &self.terms.sums {
            sums.newest.fetch_max(bits, Ordering::AcqRel);
        }
    }
}
