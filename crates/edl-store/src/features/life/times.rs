//! The times of versions, which convert days into versions.

/// Notes of versions and times; times grow, and versions do not fall.
///
/// A note says that every update up to its version had been made by its time. A note may be left
/// out at any time: rows then seem younger than they are, and go a little later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// (version, seconds since 1970)
    notes: Vec<(u64, u64)>,
}

/// Notes that the longest time of a table is divided into.
const NOTES_IN_SPAN: u64 = 1024;

impl Times {
    pub(crate) fn restored(notes: Vec<(u64, u64)>) -> Self {
        Self { notes }
    }

    pub(crate) fn notes(&self) -> &[(u64, u64)] {
        &self.notes
    }

    /// Count versions anew after `earlier`; of the notes before, the last is kept.
    pub(crate) fn counted_after(mut self, earlier: u64) -> Self {
        let num_before = self.notes.partition_point(|&(v, _)| v <= earlier);
        self.notes.drain(..num_before.saturating_sub(1));
        for (version, _) in &mut self.notes {
            *version = version.saturating_sub(earlier);
        }
        self
    }

    /// Note that `version` is there at the time `now`; nothing before `now - span` is asked for.
    pub(crate) fn note(&mut self, version: u64, now: u64, span: u64) {
        let apart = span / NOTES_IN_SPAN;
        match self.notes.last_mut() {
            // Also when the clock was put back: what is there now was there by then.
            Some((last, then)) if now <= *then => *last = version.max(*last),
            Some((last, then)) if version <= *last || now <= then.saturating_add(apart) => {}
            _ => self.notes.push((version, now)),
        }
        // Of the versions that are old enough for "before", the newest is enough.
        let old = |&(_, t): &(u64, u64)| t <= now.saturating_sub(span);
        let num_old = self.notes.partition_point(old);
        self.notes.drain(..num_old.saturating_sub(1));
    }

    /// Return the last version known to have been there at a time.
    pub(crate) fn version_at(&self, seconds: u64) -> Option<u64> {
        let before = self.notes.partition_point(|&(_, t)| t <= seconds);
        Some(self.notes[before.checked_sub(1)?].0)
    }
}

/// Return what the notes of several replicas have in common: at each time that all have noted,
/// the lowest version.
pub(crate) fn common(replicas: &[Times]) -> Times {
    let Some((first, others)) = replicas.split_first() else {
        return Times::default();
    };
    let find = |times: &Times, t: u64| {
        let at = times.notes.binary_search_by_key(&t, |&(_, t)| t).ok()?;
        Some(times.notes[at].0)
    };
    let shared = |&(version, t): &(u64, u64)| {
        let lowest = others
            .iter()
            .try_fold(version, |lowest, other| Some(find(other, t)?.min(lowest)))?;
        Some((lowest, t))
    };
    Times::restored(first.notes.iter().filter_map(shared).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_that_nobody_can_ask_for_are_dropped() {
        let mut times = Times::default();
        for i in 0..100_000 {
            times.note(i, i * 10, 5000);
        }
        assert!(times.notes.len() <= 5000 / 10 + 2);
        assert_eq!(times.version_at(99_999 * 10 - 5000), Some(99_499));
        assert_eq!(times.version_at(0), None);
    }

    #[test]
    fn a_clock_that_was_put_back_breaks_no_order() {
        let mut times = Times::default();
        times.note(1, 1000, 10);
        times.note(5, 900, 10);
        times.note(6, 1000, 10);
        assert_eq!(times.notes, [(6, 1000)]);
    }

    #[test]
    fn notes_are_few_however_long_the_span() {
        let mut times = Times::default();
        for i in 0..100_000 {
            times.note(i, i * 10, 500_000);
        }
        assert!(times.notes.len() <= 1100, "{}", times.notes.len());
    }

    #[test]
    fn replicas_agree_on_the_lowest_version_of_a_time() {
        let a = Times::restored(vec![(5, 100), (9, 200), (12, 300)]);
        let b = Times::restored(vec![(6, 100), (8, 200)]);
        let both = common(&[a.clone(), b]);
        assert_eq!(both.notes, [(5, 100), (8, 200)]);
        assert_eq!(common(std::slice::from_ref(&a)), a);
        assert_eq!(common(&[]), Times::default());
    }
}
