//! The changes of a stripe from one cut to another.

use super::{Gone, Since, Stripe};
use crate::route::unhash;

/// Rows whose updates are noted from one cut to the next, as a share of all: for more of them a
/// walk over all is as fast.
const LISTED_SHARE: usize = 8;

/// Fewer than so many are noted in any case.
const MIN_LISTED: usize = 4096;

/// Hashes of the rows that were updated or created since a cut, in that order.
#[derive(Default)]
pub(super) struct Changed {
    hashes: Vec<u64>,
    /// The cut; `None` before the first, and where too many have changed since.
    since: Option<(u64, StripeMark)>,
}

impl Changed {
    pub(super) fn note(&mut self, hashes: &[u64], num_rows: usize) {
        if self.since.is_none() {
            return;
        }
        self.hashes.extend_from_slice(hashes);
        if self.hashes.len() > MIN_LISTED.max(num_rows / LISTED_SHARE) {
            *self = Self::default();
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
    }
}

/// The state of a stripe at a cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StripeMark {
    /// Rows that there were, free ones too.
    rows: u32,
    /// Rows that had gone.
    gone: u64,
}

impl Stripe {
    /// Begin a snapshot of this instant, of all rows or of the changes since a mark. Return the
    /// mark of this instant, and the keys that were removed since; some of them may exist again.
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
        let mark = StripeMark { rows, gone };
        let listed = self.take_changed(since, (version, mark));
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.listed = listed;
        }
        (mark, keys)
    }

    /// Note what changes from each cut to the next from now on.
    pub(crate) fn note_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// Return what has changed since a cut, if that was the last one and it is known; note from now
    /// on what changes after another.
    fn take_changed(
        &mut self,
        since: Option<(u64, StripeMark)>,
        now: (u64, StripeMark),
    ) -> Option<Vec<u64>> {
        let next = Changed {
            hashes: Vec::new(),
            since: Some(now),
        };
        let taken = std::mem::replace(self.changed.as_mut()?, next);
        if since.is_none() || taken.since != since {
            return None;
        }
        let mut hashes = taken.hashes;
        hashes.sort_unstable();
        hashes.dedup();
        Some(hashes)
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
