//! How long whoever writes a checkpoint rests, so that updates keep the processor.

use std::time::{Duration, Instant};

/// Rests are so many times as long as the work between them: it then takes a tenth of the time.
const REST_FACTOR: f64 = 9.0;

/// Rests of one checkpoint together. A large one rests less, and evenly.
const MAX_REST: Duration = Duration::from_secs(10);

/// Updates flow if the last one was seen so long ago at most.
const FLOWING: Duration = Duration::from_millis(500);

/// The progress of one checkpoint, and its time.
#[derive(Debug)]
pub(super) struct Pace {
    version: u64,
    updated: Option<Instant>,
    worked: Duration,
    rested: Duration,
}

impl Pace {
    /// Begin at the version that is written.
    pub(super) fn new(version: u64) -> Self {
        Self {
            version,
            updated: None,
            worked: Duration::ZERO,
            rested: Duration::ZERO,
        }
    }

    /// Return how long to rest at `now` after some work, with a `share` of all done; `version` is
    /// that of the last update.
    pub(super) fn rest(
        &mut self,
        work: Duration,
        share: f64,
        version: u64,
        now: Instant,
    ) -> Duration {
        self.worked += work;
        if version != self.version {
            (self.version, self.updated) = (version, Some(now));
        }
        if self.updated.is_none_or(|at| now - at > FLOWING) {
            return Duration::ZERO;
        }
        let share = share.clamp(0.001, 1.0);
        let to_come = self.worked.as_secs_f64() * (1.0 - share) / share + work.as_secs_f64();
        let left = MAX_REST.saturating_sub(self.rested);
        let factor = (left.as_secs_f64() / to_come.max(1e-9)).min(REST_FACTOR);
        let rest = work.mul_f64(factor).min(left);
        self.rested += rest;
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Write a checkpoint in steps of a hundredth; return the time of all rests.
    fn rests(seconds: f64, updates: impl Fn(u32) -> u64) -> f64 {
        let (mut pace, mut now) = (Pace::new(7), Instant::now());
        let work = Duration::from_secs_f64(seconds / 100.0);
        let mut total = Duration::ZERO;
        for step in 0..100 {
            now += work;
            let rest = pace.rest(work, f64::from(step + 1) / 100.0, updates(step), now);
            now += rest;
            total += rest;
        }
        total.as_secs_f64()
    }

    #[test]
    fn a_small_checkpoint_takes_a_tenth_of_the_time_while_updates_flow() {
        let total = rests(1.0, |step| 8 + u64::from(step));
        assert!((8.9..=9.0).contains(&total), "{total}");
    }

    #[test]
    fn a_large_checkpoint_rests_no_longer_than_the_limit() {
        let total = rests(600.0, |step| 8 + u64::from(step));
        assert!((9.5..=10.0).contains(&total), "{total}");
    }

    #[test]
    fn nothing_rests_without_updates() {
        assert_eq!(rests(1.0, |_| 7), 0.0);
        let once = rests(20.0, |_| 8);
        assert!(once < 1.0, "{once}");
    }
}
