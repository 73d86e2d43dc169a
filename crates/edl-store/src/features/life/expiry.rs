//! Decides which rows a pass removes.

use serde::{Deserialize, Serialize};

use super::spec::Expiry;
use super::times::Times;

/// The numbers of rows that a pass of expiry has removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Expired {
    /// Rows.
    pub rows: u64,
    /// Keys that were counted, but had no row yet.
    pub candidates: u64,
}

/// The time and version of a pass, fixed at its begin, so that its length has no effect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cut {
    /// The version at which the pass began.
    pub(crate) version: u64,
    /// Rows last updated at this version or before are too old.
    pub(crate) last_version: Option<u64>,
    /// Rows whose squared norm is below this are too small.
    pub(crate) min_square: Option<f64>,
    /// Updates since its first one before a row goes for being small.
    pub(crate) grace: u64,
}

/// The fate of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    Goes,
    /// It goes if its weights are small.
    ByNorm,
}

impl Cut {
    /// Fix what a pass at `version` and the time `now`, in seconds, goes by.
    pub(crate) fn new(expiry: Expiry, version: u64, times: &Times, now: u64) -> Self {
        // A row that was updated `steps` updates ago was left out by all of the last `steps`.
        let by_steps = expiry.steps.and_then(|steps| version.checked_sub(steps));
        let by_time = expiry.seconds.and_then(|seconds| {
            let then = now.checked_sub(seconds)?;
            times.version_at(then)
        });
        Self {
            version,
            last_version: by_steps.max(by_time),
            min_square: expiry.min_square,
            grace: expiry.grace,
        }
    }

    /// Judge a row by its version alone.
    pub(crate) fn judge(&self, version: u64) -> Fate {
        if self.last_version.is_some_and(|last| version <= last) {
            Fate::Goes
        } else if self.min_square.is_some() {
            Fate::ByNorm
        } else {
            Fate::Stays
        }
    }

    /// Whether a row is old enough to be removed for its small norm, by the version of its first
    /// update. A row without an update is as old as its own version.
    pub(crate) fn has_no_grace(&self, birth: Option<u64>, version: u64) -> bool {
        let birth = birth.filter(|&birth| birth > 0).unwrap_or(version);
        birth.saturating_add(self.grace) <= self.version
    }

    /// Whether weights are too small. The sum is of doubles and in order, so that it is the same
    /// on every machine; weights that are not numbers stay, to be seen.
    pub(crate) fn is_small(&self, weights: &[f32]) -> bool {
        let square: f64 = weights.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
        self.min_square.is_some_and(|least| square < least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(expiry: Expiry, version: u64, now: u64) -> Cut {
        let mut times = Times::default();
        times.note(10, 1000, 1);
        times.note(20, 2000, 1);
        Cut::new(expiry, version, &times, now)
    }

    #[test]
    fn a_row_goes_when_it_was_left_out_of_so_many_updates() {
        let expiry = Expiry {
            steps: Some(5),
            seconds: None,
            min_square: None,
            grace: 0,
            statistic: None,
        };
        assert_eq!(cut(expiry, 4, 0).last_version, None);
        let cut = cut(expiry, 30, 0);
        assert_eq!((cut.judge(25), cut.judge(26)), (Fate::Goes, Fate::Stays));
    }

    #[test]
    fn days_go_by_the_versions_that_were_noted_so_long_ago() {
        let expiry = Expiry {
            steps: None,
            seconds: Some(500),
            min_square: None,
            grace: 0,
            statistic: None,
        };
        let last = |now| cut(expiry, 30, now).last_version;
        assert_eq!(last(400), None);
        assert_eq!((last(1499), last(1500)), (None, Some(10)));
        assert_eq!((last(2499), last(2500)), (Some(10), Some(20)));
    }

    #[test]
    fn small_rows_go_and_broken_ones_stay() {
        let expiry = Expiry {
            steps: None,
            seconds: None,
            min_square: Some(0.25),
            grace: 10,
            statistic: None,
        };
        let cut = cut(expiry, 30, 0);
        assert_eq!(cut.judge(0), Fate::ByNorm);
        assert!(cut.has_no_grace(Some(20), 29) && !cut.has_no_grace(Some(21), 29));
        assert!(!cut.has_no_grace(Some(0), 25) && cut.has_no_grace(None, 20));
        assert!(cut.is_small(&[0.3, -0.3]));
        assert!(!cut.is_small(&[0.3, -0.4]));
        assert!(!cut.is_small(&[f32::NAN, 0.0]));
    }
}
