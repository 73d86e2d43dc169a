//! Minibatches that replicas without a key of them have not heard of yet.
//!
//! A replica applies the minibatches of a task in their order, so it has to hear of each. It may
//! hear of one that changes nothing there with a later frame: with the next gradients for it, after
//! a moment without any, or before the task is reported. `docs/designs/wire.md` says why that is
//! enough.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use edl_wire::op::{Step, Vectors, push};

use super::endpoint::lock;

/// The minibatches that a replica is owed at most: so many are computed again if this worker is lost.
const MOST: usize = 16;
/// A replica hears of a minibatch after so long, if it gets no gradients before.
const LATE: Duration = Duration::from_millis(50);

/// A minibatch that a replica has no key of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mark {
    pub(super) step: Step,
    pub(super) num_records: u32,
}

impl Mark {
    /// A push without gradients, which no update can make stale.
    pub(super) fn request(&self) -> push::Request<'static> {
        push::Request {
            step: self.step,
            num_minibatches: 1,
            num_records: self.num_records,
            learning_rate: 0.0,
            pulled_version: u64::MAX,
            tables: Vec::new(),
            vectors: Vectors {
                dense: &[],
                state: &[],
            },
        }
    }
}

/// What one replica is owed.
#[derive(Clone, Default)]
struct Debt {
    /// In the order of their pushes.
    marks: Vec<Mark>,
    /// How many of them were in a frame whose answer has not come.
    num_sent: usize,
    /// Since when there are any.
    since: Option<Instant>,
}

impl Debt {
    fn keep(&mut self, is_kept: impl Fn(&Mark) -> bool) {
        let sent = self.marks.iter().take(self.num_sent);
        self.num_sent = sent.filter(|mark| is_kept(mark)).count();
        self.marks.retain(is_kept);
        self.since = (!self.marks.is_empty()).then(Instant::now);
    }
}

/// What all replicas are owed.
pub(super) struct Owed {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    debts: Vec<Debt>,
    /// Somebody waits until there are any.
    is_awaited: bool,
    is_closed: bool,
}

impl Owed {
    pub(super) fn new(num_replicas: usize) -> Self {
        Self {
            state: Mutex::new(State {
                debts: vec![Debt::default(); num_replicas],
                is_awaited: false,
                is_closed: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Whether a replica may be owed so many more.
    pub(super) fn has_room(&self, replica: usize, more: usize) -> bool {
        lock(&self.state).debts[replica].marks.len() + more <= MOST
    }

    pub(super) fn add(&self, replica: usize, marks: &[Mark]) {
        let mut state = lock(&self.state);
        if !state.is_closed {
            let debt = &mut state.debts[replica];
            debt.marks.extend_from_slice(marks);
            debt.since.get_or_insert_with(Instant::now);
            // A thread is not woken for each minibatch.
            if std::mem::take(&mut state.is_awaited) {
                self.changed.notify_all();
            }
        }
    }

    /// What a replica is owed of some steps, to be sent now, and how many of it were not sent before.
    pub(super) fn to_send(
        &self,
        replica: usize,
        is_wanted: impl Fn(&Step) -> bool,
    ) -> (Vec<Mark>, u64) {
        let debt = &mut lock(&self.state).debts[replica];
        let wanted = |(at, mark): (usize, &Mark)| is_wanted(&mark.step).then_some((at, *mark));
        let (places, marks): (Vec<_>, Vec<_>) =
            debt.marks.iter().enumerate().filter_map(wanted).unzip();
        let new = places.iter().filter(|&&at| at >= debt.num_sent).count();
        debt.num_sent = debt.num_sent.max(places.last().map_or(0, |last| last + 1));
        (marks, new as u64)
    }

    /// A replica has heard of these.
    pub(super) fn heard(&self, replica: usize, marks: &[Mark]) {
        if !marks.is_empty() {
            lock(&self.state).debts[replica].keep(|mark| !marks.contains(mark));
        }
    }

    /// Nobody need hear of these steps any more: their lease is over.
    pub(super) fn forget(&self, is_over: impl Fn(&Step) -> bool) {
        for debt in &mut lock(&self.state).debts {
            debt.keep(|mark| !is_over(&mark.step));
        }
    }

    /// No replica need hear of anything any more.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.is_closed = true;
        state.debts.fill(Debt::default());
        self.changed.notify_all();
    }

    /// Waits until a replica has not been told for a moment; false: there is nothing more to tell.
    pub(super) fn wait_until_late(&self) -> bool {
        let mut state = lock(&self.state);
        while !state.is_closed {
            let since = state.debts.iter().filter_map(|debt| debt.since).min();
            state.is_awaited = since.is_none();
            state = match since {
                None => (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner),
                Some(since) => match LATE.checked_sub(since.elapsed()) {
                    None => return true,
                    Some(left) => {
                        let waited = self.changed.wait_timeout(state, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                },
            };
        }
        false
    }

    /// Replicas that were told are told again after a moment if they have not heard.
    pub(super) fn told(&self) {
        for debt in &mut lock(&self.state).debts {
            debt.since = debt.since.map(|_| Instant::now());
        }
    }
}
