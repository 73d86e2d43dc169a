//! Decayed sums of what occurs, kept as rows: `S = a + decay^n S`, where n periods have passed.

use std::cell::Cell;

use crate::around::Around;
use crate::kernel::Row;
use crate::prefetch::{prefetch_floats, work_ahead};

/// The decay of the statistics of a row.
///
/// A row has its sums, and its last float is the period that they are decayed to. An added row has
/// the same form: the amounts, and their period. So a row needs nothing from outside, and a late
/// amount has the same effect as one in time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    decay: f64,
}

impl Statistics {
    /// Statistics of which each period leaves `decay`, above 0 and at most 1; of another there are none.
    pub fn new(decay: f64) -> Option<Self> {
        (decay > 0.0 && decay <= 1.0).then_some(Self { decay })
    }

    /// Return the rest of a sum after some periods.
    ///
    /// It is computed by repeated squaring in double precision, so that each computation gives the
    /// same bits.
    pub fn left_after(&self, periods: f32) -> f32 {
        let (mut left, mut power, mut n) = (1.0, self.decay, periods.max(0.0) as u32);
        while n > 0 {
            if n & 1 == 1 {
                left *= power;
            }
            power *= power;
            n >>= 1;
        }
        left as f32
    }

    /// Decay a row to a period, unless it is of that one or a later one.
    pub fn decay_to(&self, row: &mut [f32], period: f32) {
        let Some((of, sums)) = row.split_last_mut() else {
            return;
        };
        if *of < period {
            let left = self.left_after(period - *of);
            sums.iter_mut().for_each(|sum| *sum *= left);
            *of = period;
        }
    }

    /// Add to a row; both of one length, and each of its own period.
    pub fn add(&self, row: &mut [f32], added: &[f32]) {
        self.add_to(Cell::from_mut(row).as_slice_of_cells(), added);
    }

    #[inline(always)]
    pub(crate) fn run(
        &self,
        _around: &Around,
        row: &[Cell<f32>],
        _slots: &[Cell<f32>],
        added: &[f32],
    ) {
        self.add_to(row, added);
    }

    #[inline(always)]
    fn add_to(&self, row: &[Cell<f32>], added: &[f32]) {
        let (Some((&period, amounts)), Some((of, sums))) =
            (added.split_last(), row[..added.len()].split_last())
        else {
            return;
        };
        let newest = period.max(of.get());
        let kept = self.left_after(newest - of.get());
        let counted = self.left_after(newest - period);
        for (sum, amount) in sums.iter().zip(amounts) {
            sum.set(amount * counted + kept * sum.get());
        }
        of.set(newest);
    }

    #[inline(always)]
    pub(crate) fn run_rows(&self, around: &Around, rows: &[Row<'_>]) {
        let ask = |row: &Row<'_>| {
            prefetch_floats(row.values.as_ptr().cast(), row.gradient.len());
            prefetch_floats(row.gradient.as_ptr(), row.gradient.len());
        };
        work_ahead(rows, ask, |_, row| {
            self.run(around, row.values, &[], row.gradient);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(row: &mut [f32], amounts: &[f32]) {
        let values = Cell::from_mut(row).as_slice_of_cells();
        let row = Row {
            values,
            gradient: amounts,
        };
        let statistics = Statistics::new(0.5).unwrap();
        statistics.run_rows(&Around::default(), &[row]);
    }

    #[test]
    fn sums_decay_by_the_periods_between_and_what_is_late_counts_as_if_in_time() {
        let mut row = [0.0; 3];
        added(&mut row, &[4.0, 2.0, 10.0]);
        assert_eq!(row, [4.0, 2.0, 10.0]);
        added(&mut row, &[1.0, 0.0, 12.0]);
        assert_eq!(row, [2.0, 0.5, 12.0]);
        added(&mut row, &[8.0, 8.0, 9.0]);
        assert_eq!(row, [3.0, 1.5, 12.0]);
        Statistics::new(0.5).unwrap().decay_to(&mut row, 13.0);
        assert_eq!(row, [1.5, 0.75, 13.0]);
    }

    #[test]
    fn a_decay_is_above_0_and_at_most_1() {
        assert!([0.0, -0.5, 1.5, f64::NAN].map(Statistics::new) == [None; 4]);
        let kept = Statistics::new(1.0).unwrap();
        assert_eq!(kept.left_after(1e6), 1.0);
        assert_eq!(
            Statistics::new(0.9).unwrap().left_after(3.0),
            (0.9 * (0.9_f64 * 0.9)) as f32
        );
    }
}
