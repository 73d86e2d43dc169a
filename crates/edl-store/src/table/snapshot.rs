//! The rows of a table as they are at one instant, stripe by stripe.

use super::Table;
use crate::error::StoreError;
use crate::stripe::{SavedRows, Since};

/// Rows of a snapshot that are read under one taking of a stripe's lock: few, since updates wait.
const READ_ROWS: usize = 512;

/// Times that the lock is taken for one return of rows.
const READS: usize = 8;

impl Table {
    /// Begin a snapshot of this instant, of all rows or of those that have changed; return the
    /// number of all in each stripe.
    pub(crate) fn begin_snapshot(&self, version: u64, since: Option<&[Since]>) -> Vec<usize> {
        let stripes = self.stripes.iter().enumerate();
        stripes
            .map(|(number, stripe)| {
                let since = since.map(|since| since[number]);
                stripe.write().begin_snapshot(version, since)
            })
            .collect()
    }

    /// Append some more rows of a stripe's snapshot to `out`; return whether there are more.
    ///
    /// # Errors
    /// Rows on disk that cannot be read.
    pub(crate) fn read_snapshot(
        &self,
        stripe: usize,
        out: &mut SavedRows,
    ) -> Result<bool, StoreError> {
        for _ in 0..READS {
            let mut stripe = self.stripes[stripe].write();
            let saved = stripe.num_saved();
            let more = stripe.read_snapshot(READ_ROWS, self.spec.width, out);
            drop(stripe);
            self.budget.note_taken(saved * self.saved_bytes());
            if !more? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Append the rows that a stripe has copied for its snapshot to `out`, if they are many.
    pub(crate) fn take_saved(&self, stripe: usize, out: &mut SavedRows) {
        let mut stripe = self.stripes[stripe].write();
        let saved = stripe.num_saved();
        if saved >= READ_ROWS {
            stripe.take_saved(out);
            drop(stripe);
            self.budget.note_taken(saved * self.saved_bytes());
        }
    }

    pub(crate) fn end_snapshot(&self) {
        for stripe in &self.stripes {
            let mut stripe = stripe.write();
            let saved = stripe.num_saved();
            stripe.end_snapshot();
            self.budget.note_taken(saved * self.saved_bytes());
        }
    }

    /// Return the bytes of a row that is copied.
    pub(crate) fn saved_bytes(&self) -> usize {
        2 * size_of::<u64>() + self.spec.width * size_of::<f32>()
    }
}
