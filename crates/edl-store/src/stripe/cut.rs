//! What has changed in a stripe from one cut to another.

use super::{Gone, Since, Stripe};
use crate::route::unhash;

/// Where a stripe stood at a cut.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StripeMark {
    /// Rows that there were, free ones too.
    rows: u32,
    /// Rows that had gone.
    gone: u64,
}

impl Stripe {
    /// Begin a snapshot of this instant, of all rows or of those that have changed since a mark
    /// was made; return the mark of this instant, and the keys that have gone since, some perhaps
    /// come again.
    pub(crate) fn begin_cut(
        &mut self,
        version: u64,
        since: Option<(u64, StripeMark)>,
    ) -> (StripeMark, Vec<u64>) {
        let gone = self.gone.get_or_insert_default();
        let keys = match since {
            None => Vec::new(),
            Some((_, mark)) => gone.since(mark.gone).iter().copied().map(unhash).collect(),
        };
        let gone = gone.count();
        let changed = since.map(|(version, mark)| Since {
            version,
            rows: mark.rows,
        });
        let rows = self.num_rows();
        self.begin_snapshot(version, changed);
        (StripeMark { rows, gone }, keys)
    }

    /// Forget the rows that had gone when a mark was made; nobody will ask for them.
    pub(crate) fn forget_gone(&mut self, mark: StripeMark) {
        if let Some(gone) = &mut self.gone {
            gone.forget(mark.gone);
        }
    }
}

impl Gone {
    fn count(&self) -> u64 {
        self.forgotten + self.hashes.len() as u64
    }

    fn since(&self, count: u64) -> &[u64] {
        &self.hashes[count.saturating_sub(self.forgotten) as usize..]
    }

    fn forget(&mut self, count: u64) {
        let old = count.saturating_sub(self.forgotten);
        if old > 0 {
            self.hashes = self.hashes.split_off(old as usize);
            self.forgotten += old;
        }
    }
}
