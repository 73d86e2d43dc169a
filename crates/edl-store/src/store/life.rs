//! Passes of expiry.

use std::sync::atomic::Ordering;

use super::{Chunk, Model, Store};
use crate::error::StoreError;
use crate::features::life::{Cut, Expired};
use crate::progress::{Progress, unseen};

impl Store {
    /// Remove the rows that have come to their end, by each table's own terms; updates go on
    /// meanwhile, and what they touch stays if they come before the pass does.
    ///
    /// A row's age is counted in this replica's updates, of which every replica gets all. `now`
    /// is the time in seconds since 1970: it is noted beside the version, and expiry by days
    /// goes by these notes alone. Returns what was removed, by table.
    ///
    /// # Errors
    /// No model has been declared, or rows on disk cannot be read.
    pub fn expire(&self, now: u64) -> Result<Vec<Expired>, StoreError> {
        self.expire_showing(now, &unseen)
    }

    /// The same, telling of progress.
    ///
    /// # Errors
    /// No model has been declared, or rows on disk cannot be read.
    pub fn expire_showing(
        &self,
        now: u64,
        progress: Progress<'_>,
    ) -> Result<Vec<Expired>, StoreError> {
        let model = self.declared("rows expire")?;
        let (version, times) = {
            let mut times = model.times.lock();
            let version = model.version();
            times.note(version, now, model.longest_seconds());
            (version, times.clone())
        };
        let tables = model.tables.iter();
        let expired = tables.map(|table| {
            // If no row is updated, a used row cannot be told from an unused one.
            let Some(expiry) = table.expiry().filter(|_| table.is_trainable()) else {
                return Ok(Expired::default());
            };
            let cut = Cut::new(expiry, version, &times, now);
            // A slice, like an update, comes before a checkpoint's instant or after it.
            table.expire(&cut, &model.tables, |slice| {
                progress();
                let _updates = self.updates.read();
                let _change = self.change();
                // A list of changed rows cannot say which are gone.
                let gone = slice()?;
                self.removals.fetch_add(gone.rows, Ordering::Relaxed);
                if gone.is_told {
                    self.naming.fetch_add(1, Ordering::AcqRel);
                }
                Ok(())
            })
        });
        expired.collect()
    }
}

impl Store {
    /// Does the same as [`Store::scan`] for the rows that were updated after `since`; without it,
    /// for all rows.
    ///
    /// # Errors
    /// An unknown table.
    pub fn scan_since(
        &self,
        table: u32,
        cursor: u64,
        max_rows: usize,
        since: Option<u64>,
    ) -> Result<Chunk, StoreError> {
        let table = self.declared("a table is scanned")?.table(table)?;
        match since {
            None => table.scan(cursor, max_rows),
            Some(since) => table.scan_since(cursor, max_rows, since),
        }
    }
}

impl Model {
    /// Return the longest time that a table asks back for.
    fn longest_seconds(&self) -> u64 {
        let seconds = |table: &super::Table| table.expiry()?.seconds;
        self.tables.iter().filter_map(seconds).max().unwrap_or(0)
    }
}
