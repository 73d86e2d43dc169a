//! Records the work of a replica's threads for requests, for `elasticdl profile`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use edl_wire::frame::Header;
use edl_wire::op::{Op, Step};

/// One request, from when it had been read until its answer was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// What was asked.
    pub op: String,
    /// The connection on which it was asked; its requests are answered one after the other.
    pub connection: u64,
    /// Task and minibatch, if the request is of one.
    pub minibatch: Option<(u64, u32)>,
    /// The begin of the work, since 1970.
    pub began: Duration,
    /// How long it took.
    pub lasted: Duration,
}

/// The requests that are recorded. While none are, it costs a request one load.
#[derive(Default)]
pub(crate) struct Spans {
    /// Set by whoever records; read by each request.
    is_on: AtomicBool,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    most: usize,
    spans: Vec<Span>,
}

/// A request that is recorded.
pub(crate) struct Begun {
    op: Op,
    minibatch: Option<(u64, u32)>,
    at: SystemTime,
    since: Instant,
}

impl Spans {
    /// Records from now on, so many requests at most.
    pub(crate) fn record(&self, most: usize) {
        let spans = Vec::new();
        *self.lock() = Recorded { most, spans };
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends recording, and returns what was recorded.
    pub(crate) fn take(&self) -> Vec<Span> {
        self.is_on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.lock()).spans
    }

    /// A request has been read; `None` if nobody records.
    pub(crate) fn begin(&self, header: &Header) -> Option<Begun> {
        self.is_on.load(Ordering::Relaxed).then(|| Begun {
            op: header.op,
            minibatch: Step::named_by(header).map(|step| (step.task, step.index)),
            at: SystemTime::now(),
            since: Instant::now(),
        })
    }

    /// Its answer has been sent.
    pub(crate) fn end(&self, begun: Option<Begun>, connection: u64) {
        let Some(begun) = begun else { return };
        let lasted = begun.since.elapsed();
        let mut recorded = self.lock();
        if recorded.spans.len() < recorded.most {
            recorded.spans.push(Span {
                op: format!("{:?}", begun.op),
                connection,
                minibatch: begun.minibatch,
                began: begun
                    .at
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default(),
                lasted,
            });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
