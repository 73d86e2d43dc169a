//! How long each stage of pulls and pushes takes; for benchmarks. Nothing is measured without the
//! feature `stages`: to read the clock takes a few keys' time, which small batches would feel.

#[cfg(feature = "stages")]
use std::cell::Cell;
#[cfg(feature = "stages")]
use std::time::{Duration, Instant};

/// A part of the work on a block of keys.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    /// Hashing keys and sorting them by stripe.
    Sort,
    /// Finding rows, and setting their versions.
    Index,
    /// Copying or updating rows.
    Rows,
}

#[cfg(feature = "stages")]
thread_local! {
    static TIMES: Cell<[Duration; 3]> = const { Cell::new([Duration::ZERO; 3]) };
}

/// Return what the stages of this thread's pulls and pushes have taken since the last call, by
/// name.
#[cfg(feature = "stages")]
pub fn take_stages() -> [(&'static str, Duration); 3] {
    let [sort, index, rows] = TIMES.take();
    [("sort", sort), ("index", index), ("rows", rows)]
}

/// A watch that runs from one stage to the next.
pub(crate) struct Watch {
    #[cfg(feature = "stages")]
    since: Instant,
}

impl Watch {
    #[inline(always)]
    pub(crate) fn start() -> Self {
        Self {
            #[cfg(feature = "stages")]
            since: Instant::now(),
        }
    }

    /// Note that a stage ends here, and the next begins.
    #[inline(always)]
    pub(crate) fn lap(&mut self, stage: Stage) {
        #[cfg(not(feature = "stages"))]
        let _ = stage;
        #[cfg(feature = "stages")]
        {
            let now = Instant::now();
            let mut times = TIMES.get();
            times[stage as usize] += now - self.since;
            TIMES.set(times);
            self.since = now;
        }
    }
}
