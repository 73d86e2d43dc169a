//! The changes of a table from one cut to another.

use super::Table;
use crate::stripe::StripeMark;

impl Table {
    /// Begin a snapshot of this instant; return the mark of each stripe, and the keys that have
    /// gone since the earlier marks, if there are any.
    pub(crate) fn begin_cut(
        &self,
        version: u64,
        since: Option<(u64, &[StripeMark])>,
    ) -> (Vec<StripeMark>, Vec<u64>) {
        let (mut marks, mut gone) = (Vec::new(), Vec::new());
        for (number, stripe) in self.stripes.iter().enumerate() {
            let since = since.map(|(version, marks)| (version, marks[number]));
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            let (mark, keys) = stripe.begin_cut(version, since);
            self.budget.note(before, stripe.bytes());
            marks.push(mark);
            gone.extend(keys);
        }
        (marks, gone)
    }

    /// Note what changes from each cut to the next from now on, so that few changes take little time.
    pub(crate) fn note_changes(&self) {
        for stripe in &self.stripes {
            stripe.write().note_changes();
        }
    }

    /// Forget the rows that had gone when marks were made.
    pub(crate) fn forget_gone(&self, marks: &[StripeMark]) {
        for (stripe, &mark) in self.stripes.iter().zip(marks) {
            let mut stripe = stripe.write();
            let before = stripe.bytes();
            stripe.forget_gone(mark);
            self.budget.note(before, stripe.bytes());
        }
    }
}
