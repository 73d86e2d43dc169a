//! Questions to several replicas at once, and the places of their answers.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use edl_store::PullMode;
use edl_wire::frame::{Header, Outgoing};
use edl_wire::op::push::Outcome;
use edl_wire::op::{
    Op, Request, Response, Round, Step, TableKeys, Wanted, commit, commit_pull, pull, push,
    push_each, push_pull,
};
use edl_wire::{Connection, Place, WireError, answers};

use super::Lane;
use super::gradients::{Push, ranges_of};
use crate::replicas::Pull;

/// One question to several replicas.
pub(super) trait Question {
    /// The operation that it is about.
    const OP: Op;

    /// The lane of the question.
    fn lane(&self) -> Lane;

    /// Whether an answer fits into a socket, as a rule.
    fn has_small_answers(&self) -> bool;

    /// Whether one of the replicas is asked at all.
    fn concerns(&self, _replica: usize) -> bool {
        true
    }

    /// Has the frame for one replica sent; it is the same each time.
    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T;

    /// Takes one replica's answer, again if its connection was lost half-way.
    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError>;
}

/// A question whose answers are taken as a whole.
pub(super) struct Whole<F, R> {
    lane: Lane,
    request: F,
    first: usize,
    /// For each replica, its answer, once it has come.
    answers: Vec<Option<R>>,
}

impl<F, R> Whole<F, R> {
    /// Args: `request` makes that of each replica.
    pub(super) fn new(lane: Lane, replicas: &Range<usize>, request: F) -> Self {
        Self {
            lane,
            request,
            first: replicas.start,
            answers: replicas.clone().map(|_| None).collect(),
        }
    }

    /// All answers; of a call that succeeded none is missing.
    pub(super) fn answers(self) -> Vec<R> {
        self.answers.into_iter().flatten().collect()
    }
}

impl<'a, F, Q> Question for Whole<F, Q::Response>
where
    F: Fn(usize) -> Q,
    Q: Request<'a>,
{
    const OP: Op = Q::Response::OP;

    fn lane(&self) -> Lane {
        self.lane
    }

    fn has_small_answers(&self) -> bool {
        !matches!(self.lane, Lane::Control)
    }

    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T {
        send(&(self.request)(replica).encode())
    }

    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError> {
        self.answers[replica - self.first] = Some(connection.read_response(header)?);
        Ok(())
    }
}

/// A socket takes as much, whatever its peer does.
const SMALL_BYTES: usize = 64 << 10;

impl Pull<'_> {
    fn has_small_answers(&self) -> bool {
        let rows: usize = self.rows.iter().map(|rows| rows.len()).sum();
        let vectors = self.vectors.as_ref();
        let vectors = vectors.map_or(0, |vectors| vectors.dense.len() + vectors.state.len());
        4 * (rows + vectors) <= SMALL_BYTES * self.versions.len()
    }

    /// Returns the expected answer of one replica.
    fn wanted(&self, replica: usize) -> Wanted<'_> {
        let tables = self.plan.tables.iter().map(|table| TableKeys {
            table: table.table,
            keys: &table.keys()[table.range(replica)],
        });
        Wanted {
            tables: tables.collect(),
            create: match self.mode {
                PullMode::Create => true,
                PullMode::ReadOnly => false,
            },
            vectors: self.vectors.is_some(),
        }
    }

    /// Returns the places for the arrays of one replica's answer.
    fn places(&mut self, replica: usize) -> Vec<Place<'_>> {
        let num_replicas = self.versions.len();
        let tables = self.plan.tables.iter().zip(self.rows.iter_mut());
        let mut places: Vec<Place<'_>> = tables
            .map(|(table, rows)| {
                let rows = &mut rows[table.row_range(replica)];
                Place::rows(table.table, table.dim as u32, table.element, rows)
            })
            .collect();
        if let Some(vectors) = &mut self.vectors {
            let dense = ranges_of(vectors.dense.len(), num_replicas)(replica);
            let state = ranges_of(vectors.state.len(), num_replicas)(replica);
            places.push(Place::dense(&mut vectors.dense[dense]));
            places.push(Place::state(&mut vectors.state[state]));
        }
        places
    }
}

/// Rows and vectors.
pub(super) struct Pulling<'q, 'p> {
    pub(super) pull: &'q mut Pull<'p>,
    /// The training step whose pull has to wait for others.
    pub(super) step: Option<Step>,
    /// Whether all have answered with rows.
    pub(super) granted: bool,
    pub(super) store_nanos: &'q AtomicU64,
}

impl Question for Pulling<'_, '_> {
    const OP: Op = Op::Pull;

    fn lane(&self) -> Lane {
        Lane::Pull
    }

    fn has_small_answers(&self) -> bool {
        self.pull.has_small_answers()
    }

    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T {
        let request = pull::Request {
            step: self.step,
            wanted: self.pull.wanted(replica),
        };
        send(&request.encode())
    }

    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError> {
        match answers::pull(connection, header, &mut self.pull.places(replica))? {
            pull::Received::NotYet => self.granted = false,
            pull::Received::Pulled {
                version,
                store_nanos,
            } => {
                self.pull.versions[replica] = version;
                self.store_nanos.fetch_add(store_nanos, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Gradients of several minibatches, for some of the replicas.
pub(super) struct PushingEach<'q> {
    pub(super) lane: Lane,
    /// For each replica, its gradients; none: it is not asked.
    pub(super) requests: Vec<Vec<push::Request<'q>>>,
    /// For each replica, its answer.
    pub(super) answers: Vec<Option<push_each::Response>>,
}

impl<'q> PushingEach<'q> {
    pub(super) fn new(lane: Lane, requests: Vec<Vec<push::Request<'q>>>) -> Self {
        Self {
            lane,
            answers: requests.iter().map(|_| None).collect(),
            requests,
        }
    }
}

impl Question for PushingEach<'_> {
    const OP: Op = Op::PushEach;

    fn lane(&self) -> Lane {
        self.lane
    }

    fn has_small_answers(&self) -> bool {
        true
    }

    fn concerns(&self, replica: usize) -> bool {
        !self.requests[replica].is_empty()
    }

    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T {
        let request = push_each::Request::new(&self.requests[replica]);
        send(&request.encode())
    }

    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError> {
        self.answers[replica] = Some(connection.read_response(header)?);
        Ok(())
    }
}

/// Gradients, then rows and vectors.
pub(super) struct PushPulling<'q, 'p> {
    pub(super) push: &'q Push<'q>,
    pub(super) next: &'q mut Pull<'p>,
    /// For each asked replica, the outcome of the gradient.
    pub(super) outcomes: Vec<Outcome>,
    pub(super) first: usize,
    /// Whether all pulls were made.
    pub(super) pulled: bool,
}

impl Question for PushPulling<'_, '_> {
    const OP: Op = Op::PushPull;

    fn lane(&self) -> Lane {
        Lane::Push
    }

    fn has_small_answers(&self) -> bool {
        self.next.has_small_answers()
    }

    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T {
        let push = self.push.part(replica);
        let request = push_pull::Request::new(push, self.next.step, self.next.wanted(replica));
        send(&request.encode())
    }

    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError> {
        let received = answers::push_pull(connection, header, &mut self.next.places(replica))?;
        self.outcomes[replica - self.first] = received.outcome;
        match received.pulled {
            Some(version) => self.next.versions[replica] = version,
            None => self.pulled = false,
        }
        Ok(())
    }
}

/// A round, then rows and vectors.
pub(super) struct CommitPulling<'q, 'p> {
    pub(super) round: &'q Round,
    pub(super) next: &'q mut Pull<'p>,
}

impl Question for CommitPulling<'_, '_> {
    const OP: Op = Op::CommitPull;

    fn lane(&self) -> Lane {
        Lane::Push
    }

    fn has_small_answers(&self) -> bool {
        self.next.has_small_answers()
    }

    fn say<T>(&self, replica: usize, send: impl FnOnce(&Outgoing<'_>) -> T) -> T {
        let request = commit_pull::Request {
            commit: commit::Request {
                round: Cow::Borrowed(self.round),
            },
            wanted: self.next.wanted(replica),
        };
        send(&request.encode())
    }

    fn take(
        &mut self,
        replica: usize,
        header: &Header,
        connection: &mut Connection,
    ) -> Result<(), WireError> {
        let places = &mut self.next.places(replica);
        self.next.versions[replica] = answers::commit_pull(connection, header, places)?;
        Ok(())
    }
}
