//! The rows that change and that go from one cut to another.

use super::{NewRow, RowFeature, Updated};
use crate::route::unhash;
use crate::stripe::{Since, Stripe};
use crate::table::Table;

/// Rows whose updates are noted from one cut to the next, as a share of all: for more of them a
/// walk over all is as fast.
const LISTED_SHARE: usize = 8;

/// Fewer than so many are noted in any case.
const MIN_LISTED: usize = 4096;

/// Hashes of the rows that were updated or created since a cut, in that order.
#[derive(Default)]
struct Changed {
    hashes: Vec<u64>,
    /// The cut; `None` before the first, and where too many have changed since.
    since: Option<(u64, StripeMark)>,
}

impl Changed {
    fn note(&mut self, hashes: &[u64], num_rows: usize) {
        if self.since.is_none() {
            return;
        }
        self.hashes.extend_from_slice(hashes);
        if self.hashes.len() > MIN_LISTED.max(num_rows / LISTED_SHARE) {
            *self = Self::default();
        }
    }

    /// Return what has changed since a cut, if that was the last one and it is known; note from now
    /// on what changes after another.
    fn take(
        &mut self,
        since: Option<(u64, StripeMark)>,
        now: (u64, StripeMark),
    ) -> Option<Vec<u64>> {
        let next = Self {
            hashes: Vec::new(),
            since: Some(now),
        };
        let taken = std::mem::replace(self, next);
        if since.is_none() || taken.since != since {
            return None;
        }
        let mut hashes = taken.hashes;
        hashes.sort_unstable();
        hashes.dedup();
        Some(hashes)
    }
}

impl RowFeature for Changed {
    fn created(&mut self, row: NewRow<'_>, _word: Option<u64>) {
        self.note(&[row.hash], row.num_rows);
    }

    fn updated(&mut self, group: Updated<'_>) {
        self.note(group.hashes, group.num_rows);
    }

    fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
    }
}

/// Rows that went, in that order, from the first cut on.
#[derive(Default)]
struct Gone {
    hashes: Vec<u64>,
    /// How many came before and are forgotten.
    forgotten: u64,
}

impl RowFeature for Gone {
    fn removed(&mut self, hash: u64, _version: u64) -> bool {
        self.hashes.push(hash);
        false
    }

    fn bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
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

/// The state of a stripe at a cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct StripeMark {
    /// Rows that there were, free ones too.
    rows: u32,
    /// Rows that had gone.
    gone: u64,
}

/// Begin a snapshot of this instant, of all rows or of the changes since a mark. Return the mark of
/// this instant, and the keys that were removed since; some of them may exist again.
fn begin_cut(
    stripe: &mut Stripe,
    version: u64,
    since: Option<(u64, StripeMark)>,
) -> (StripeMark, Vec<u64>) {
    let rows = stripe.num_rows();
    let mut mark = StripeMark { rows, gone: 0 };
    let mut keys = Vec::new();
    match stripe.features.get::<Gone>() {
        None => stripe.features.add(Gone::default()),
        Some(gone) => {
            mark.gone = gone.count();
            if let Some((_, then)) = since {
                keys.extend(gone.since(then.gone).iter().copied().map(unhash));
            }
        }
    }
    let changed = since.map(|(version, then)| Since {
        version,
        rows: then.rows,
    });
    stripe.begin_snapshot(version, changed);
    let noted = stripe.features.get_mut::<Changed>();
    let listed = noted.and_then(|changed| changed.take(since, (version, mark)));
    stripe.list_snapshot(listed);
    (mark, keys)
}

impl Table {
    /// Begin a snapshot of this instant; return the mark of each stripe, and the keys that have
    /// gone since the earlier marks, if there are any.
    pub(crate) fn begin_cut(
        &self,
        version: u64,
        since: Option<(u64, &[StripeMark])>,
    ) -> (Vec<StripeMark>, Vec<u64>) {
        let (mut marks, mut gone) = (Vec::new(), Vec::new());
        for (number, stripe) in self.stripes().iter().enumerate() {
            let since = since.map(|(version, marks)| (version, marks[number]));
            let (mark, keys) = self.change(stripe, |stripe| begin_cut(stripe, version, since));
            marks.push(mark);
            gone.extend(keys);
        }
        (marks, gone)
    }

    /// Note what changes from each cut to the next from now on, so that few changes take little time.
    pub(crate) fn note_changes(&self) {
        for stripe in self.stripes() {
            let mut stripe = stripe.write();
            if stripe.features.get::<Changed>().is_none() {
                stripe.features.add(Changed::default());
            }
        }
    }

    /// Forget the rows that had gone when marks were made.
    pub(crate) fn forget_gone(&self, marks: &[StripeMark]) {
        for (stripe, mark) in self.stripes().iter().zip(marks) {
            self.change(stripe, |stripe| {
                if let Some(gone) = stripe.features.get_mut::<Gone>() {
                    gone.forget(mark.gone);
                }
            });
        }
    }
}
