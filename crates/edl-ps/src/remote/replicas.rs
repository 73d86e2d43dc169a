//! Sends each call to its replicas, and joins their answers.

use std::borrow::Cow;
use std::ops::Range;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edl_store::{Chunk, ModelSpec, TaskAudit};
use edl_wire::op::model::Protocol;
use edl_wire::op::push::Outcome;
use edl_wire::op::{
    Request, Round, Step, Vectors, audit, begin_task, checkpoint, commit, declare, end_task,
    expire, export, give, model, move_step, name, push, scan, skip, stage, stats, take,
};
use edl_wire::{ErrorKind, WireError};

use super::endpoint::Endpoint;
use super::gradients::{Push, ranges_of};
use super::pushed::{Pushed, pushed_each, pushed_of};
use super::questions::{CommitPulling, Pulling, PushPulling, Whole};
use super::{Lane, Remote};
use crate::dedup::Plan;
use crate::elsewhere::Elsewhere;
use crate::error::PsError;
use crate::names::{self, Batch};
use crate::replicas::{GivenRows, Gradients, Minibatch, OnePush, Pull, Replicas};

impl Replicas for Remote {
    fn count(&self) -> usize {
        self.endpoints.len()
    }

    fn declare(
        &self,
        spec: &ModelSpec,
        dense: &[f32],
        state: &[f32],
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError> {
        let model = serde_json::to_string(spec)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        let dense_of = ranges_of(dense.len(), self.count());
        let state_of = ranges_of(state.len(), self.count());
        let request = |replica| declare::Request {
            model: &model,
            vectors: Vectors {
                dense: &dense[dense_of(replica)],
                state: &state[state_of(replica)],
            },
        };
        // One after the other, so that of two workers the same one is first everywhere.
        for replica in self.all() {
            let declared = loop {
                match self.ask_one(Lane::Control, replica, request) {
                    // A replica that was lost after it got the rows comes back without them.
                    Err(error) if error.kind() == ErrorKind::NotDeclared && !given.is_empty() => {
                        self.give(spec, replica, given)?;
                    }
                    declared => break declared?,
                }
            };
            self.learn(declared.protocol);
        }
        Ok(())
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let answer = self.ask_one(Lane::Control, 0, |_| model::Request)?;
        self.learn(answer.protocol);
        Ok(Arc::new(ModelSpec::from_json(&answer.model)?))
    }

    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        // What this worker has pushed before is where the task goes on; an error shows in the answer.
        let _ = self.settle_where(|step| step.task == task);
        let request = |_| begin_task::Request { task, lease };
        let begun = self.ask_whole(Lane::Push, self.all(), request)?;
        let lowest = begun.iter().map(|answer| answer.next_index).min();
        Ok(lowest.unwrap_or(0))
    }

    fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        if self.protocol() == Protocol::Direct {
            (self.owed).forget(|step| (step.task, step.lease) == (task, lease));
            return Ok(());
        }
        let request = |_| end_task::Request { task, lease };
        self.ask_whole(Lane::Push, self.all(), request).map(drop)
    }

    fn settle_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        self.settle_where(|step| (step.task, step.lease) == (task, lease))
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        self.settle_task(task, lease)?;
        let step = Step { task, lease, index };
        self.ask_whole(Lane::Push, self.all(), |_| skip::Request { step })
            .map(drop)
    }

    fn pull(&self, mut pull: Pull<'_>) -> Result<(), PsError> {
        match pull.step.take() {
            Some(step) if self.protocol() == Protocol::Bounded => {
                // The other answers must not be older than the begin of the pull at replica 0.
                while !self.pull_from(0..1, Some(step), &mut pull)? {}
                self.pull_from(1..self.count(), Some(step), &mut pull)
                    .map(drop)
            }
            // No thread waits for this pull; a recording of the replicas' work names it.
            step => self.pull_from(self.all(), step, &mut pull).map(drop),
        }
    }

    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<Pushed, PsError> {
        let push = Push::new(plan, gradients, minibatch, versions);
        let (first, others) = (0..1, 1..self.count());
        match self.protocol() {
            Protocol::Direct => match self.push_sparing(slice::from_ref(&push))? {
                Some(pushed) => Ok(pushed[0]),
                None => pushed_of(&self.push_to(self.all(), &push)?),
            },
            Protocol::Bounded => {
                // Replica 0 lets go of the pull: nothing of it is under way by then.
                let late = self.push_to(others, &push)?;
                let mut outcomes = self.push_to(first, &push)?;
                outcomes.extend(late);
                pushed_of(&outcomes)
            }
            Protocol::Rounds => {
                self.stage(others.clone(), &push)?;
                let (round, staleness) = self.join_round(&push)?;
                self.commit(others, &round)?;
                Ok((round.version, staleness))
            }
        }
    }

    fn push_each(&self, pushes: &[OnePush<'_>]) -> Result<Vec<Pushed>, PsError> {
        let pushes = pushes
            .iter()
            .map(|one| Push::new(one.plan, &one.gradients, one.minibatch, one.versions));
        let pushes: Vec<_> = pushes.collect();
        if let Some(pushed) = self.push_sparing(&pushes)? {
            return Ok(pushed);
        }
        let parts = |replica| pushes.iter().map(|push| push.part(replica)).collect();
        let asked = self.push_each_to(self.all().map(parts).collect())?;
        pushed_each(&asked, pushes.len())
    }

    fn push_pull(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
        mut next: Pull<'_>,
    ) -> Result<(Pushed, bool), PsError> {
        let push = Push::new(plan, gradients, minibatch, versions);
        let (first, others) = (0..1, 1..self.count());
        match self.protocol() {
            Protocol::Direct => {
                next.step = None;
                self.settle_task(minibatch.task, minibatch.lease)?;
                let (outcomes, _) = self.push_pull_at(self.all(), &push, &mut next)?;
                Ok((pushed_of(&outcomes)?, true))
            }
            Protocol::Bounded => {
                // The order in which a push and a pull ask, with the middle two in one.
                let late = self.push_to(others.clone(), &push)?;
                let (mut outcomes, pulled) = self.push_pull_at(first, &push, &mut next)?;
                outcomes.extend(late);
                let pulled = pulled && self.pull_from(others, None, &mut next)?;
                Ok((pushed_of(&outcomes)?, pulled))
            }
            Protocol::Rounds => {
                next.step = None;
                self.stage(others.clone(), &push)?;
                let (round, staleness) = loop {
                    let (outcomes, _) = self.push_pull_at(first.clone(), &push, &mut next)?;
                    if let Some(joined) = joined(outcomes)? {
                        break joined;
                    }
                };
                self.commit_pull(others, &round, &mut next)?;
                Ok(((round.version, staleness), true))
            }
        }
    }

    fn store_time(&self) -> Duration {
        Duration::from_nanos(self.store_nanos.load(Ordering::Relaxed))
    }

    fn scan(&self, replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError> {
        let request = |_| scan::Request { table, cursor };
        let scanned = self.ask_one(Lane::Control, replica, request)?;
        Ok(Chunk {
            keys: scanned.keys,
            rows: scanned.rows,
            next: scanned.next,
        })
    }

    fn audit(&self, first: u64) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        let _ = self.settle_where(|_| true);
        let request = |_| audit::Request { first };
        let audits = self.ask_whole(Lane::Control, self.all(), request)?;
        audits.into_iter().map(audit_of).collect()
    }

    fn stats(&self) -> Result<Vec<String>, PsError> {
        let stats = self.ask_whole(Lane::Control, self.all(), |_| stats::Request)?;
        Ok(stats.into_iter().map(|answer| answer.counters).collect())
    }

    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        let _ = self.settle_where(|_| true);
        let request = |_| checkpoint::Request { directory };
        let written = self.ask_whole(Lane::Control, self.all(), request)?;
        Ok(written.into_iter().map(|answer| answer.entry).collect())
    }

    fn expire(&self, now: u64) -> Result<Vec<String>, PsError> {
        let _ = self.settle_where(|_| true);
        let request = |_| expire::Request { now };
        let expired = self.ask_whole(Lane::Control, self.all(), request)?;
        Ok(expired.into_iter().map(|answer| answer.expired).collect())
    }

    fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        let request = |_| export::Request { request };
        let written = self.ask_whole(Lane::Control, self.all(), request)?;
        Ok(written.into_iter().map(|answer| answer.written).collect())
    }

    fn name(&self, names: &Batch) -> Result<Vec<name::Response>, PsError> {
        let request = |replica: usize| names::request(&names[replica]);
        self.ask_whole(Lane::Push, self.all(), request)
    }

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        let endpoint = self.endpoints.get(replica).ok_or_else(|| {
            PsError::Invalid(format!("ps replica {replica} of {}", self.endpoints.len()))
        })?;
        endpoint.move_to(address);
        Ok(())
    }

    fn layout(&self) -> u64 {
        self.options.layout
    }

    fn of_layout(&self, there: &Elsewhere) -> Result<Arc<dyn Replicas>, PsError> {
        let next = Self::of_layout(self, there);
        self.retired.store(true, Ordering::Release);
        // All have heard of all that was applied: a move begins at such an instant.
        self.owed.close();
        self.endpoints.iter().for_each(Endpoint::end);
        Ok(next.shared())
    }

    fn move_step(&self, replica: usize, step: &str) -> Result<String, PsError> {
        let request = |_| move_step::Request { step };
        Ok(self.ask_one(Lane::Control, replica, request)?.told)
    }
}

impl Remote {
    /// Gives the one replica what it is to hold under the next layout.
    pub(crate) fn give_moved(&self, request: take::Request<'_>) -> Result<(), PsError> {
        self.ask_one(Lane::Control, 0, |_| request).map(drop)
    }

    /// The same replicas, for several threads.
    pub(crate) fn shared(self) -> Arc<Self> {
        let shared = Arc::new(self);
        let _ = shared.this.set(Arc::downgrade(&shared));
        shared
    }

    pub(super) fn all(&self) -> Range<usize> {
        0..self.endpoints.len()
    }

    /// Gives a replica its part of the rows that tables begin with.
    fn give(
        &self,
        model: &ModelSpec,
        replica: usize,
        given: &[GivenRows<'_>],
    ) -> Result<(), PsError> {
        for given in given {
            given.in_pieces(model, replica, self.count(), |table, dim, keys, rows| {
                let request = |_| give::Request {
                    table,
                    dim,
                    keys,
                    rows,
                };
                self.ask_one(Lane::Control, replica, request).map(drop)
            })?;
        }
        Ok(())
    }

    /// All replicas say the same, and what a relaunched one says is what it said before.
    fn learn(&self, protocol: Protocol) {
        let _ = self.protocol.set(protocol);
    }

    fn protocol(&self) -> Protocol {
        self.protocol.get().copied().unwrap_or(Protocol::Direct)
    }

    /// Asks replicas something whose answers are taken as a whole; one answer of each.
    fn ask_whole<'a, Q: Request<'a>>(
        &self,
        lane: Lane,
        replicas: Range<usize>,
        request: impl Fn(usize) -> Q,
    ) -> Result<Vec<Q::Response>, PsError> {
        let mut question = Whole::new(lane, &replicas, request);
        self.ask(replicas, &mut question)?;
        Ok(question.answers())
    }

    /// The same, of one replica.
    fn ask_one<'a, Q: Request<'a>>(
        &self,
        lane: Lane,
        replica: usize,
        request: impl Fn(usize) -> Q,
    ) -> Result<Q::Response, PsError> {
        let answers = self.ask_whole(lane, replica..replica + 1, request)?;
        let unanswered = || PsError::System(format!("ps replica {replica} did not answer"));
        answers.into_iter().next().ok_or_else(unanswered)
    }

    /// Pulls from some of the replicas; false if one says "not yet".
    fn pull_from(
        &self,
        replicas: Range<usize>,
        step: Option<Step>,
        pull: &mut Pull<'_>,
    ) -> Result<bool, PsError> {
        let mut question = Pulling {
            pull,
            step,
            granted: true,
            store_nanos: &self.store_nanos,
        };
        self.ask(replicas, &mut question)?;
        Ok(question.granted)
    }

    /// Pushes to some of the replicas.
    fn push_to(&self, replicas: Range<usize>, push: &Push<'_>) -> Result<Vec<Outcome>, PsError> {
        let request = |replica| push.part(replica);
        let answers = self.ask_whole(Lane::Push, replicas, request)?;
        let outcomes = answers.into_iter().map(
            |push::Response {
                 outcome,
                 store_nanos,
             }| {
                self.store_nanos.fetch_add(store_nanos, Ordering::Relaxed);
                outcome
            },
        );
        Ok(outcomes.collect())
    }

    /// Pushes to some replicas and pulls from them in one exchange; whether all pulls were made.
    fn push_pull_at(
        &self,
        replicas: Range<usize>,
        push: &Push<'_>,
        next: &mut Pull<'_>,
    ) -> Result<(Vec<Outcome>, bool), PsError> {
        let mut question = PushPulling {
            push,
            next,
            outcomes: vec![Outcome::NotYet; replicas.len()],
            first: replicas.start,
            pulled: true,
        };
        self.ask(replicas, &mut question)?;
        Ok((question.outcomes, question.pulled))
    }

    /// Has replicas keep a gradient until its round is committed.
    fn stage(&self, replicas: Range<usize>, push: &Push<'_>) -> Result<(), PsError> {
        let request = |replica| stage::Request(push.part(replica));
        self.ask_whole(Lane::Push, replicas, request).map(drop)
    }

    /// Hands replica 0 its part of a gradient and waits for its round; the staleness beside it.
    fn join_round(&self, push: &Push<'_>) -> Result<(Arc<Round>, u64), PsError> {
        loop {
            if let Some(joined) = joined(self.push_to(0..1, push)?)? {
                return Ok(joined);
            }
        }
    }

    /// Has the other replicas do what replica 0 has done.
    fn commit(&self, replicas: Range<usize>, round: &Round) -> Result<(), PsError> {
        let request = |_| commit::Request {
            round: Cow::Borrowed(round),
        };
        self.ask_whole(Lane::Push, replicas, request).map(drop)
    }

    /// The same, and pulls from them.
    fn commit_pull(
        &self,
        replicas: Range<usize>,
        round: &Round,
        next: &mut Pull<'_>,
    ) -> Result<(), PsError> {
        self.ask(replicas, &mut CommitPulling { round, next })
    }
}

/// The round that replica 0 has made a gradient part of, and its staleness; `None` if it waits.
fn joined(outcomes: Vec<Outcome>) -> Result<Option<(Arc<Round>, u64)>, PsError> {
    match outcomes.into_iter().next() {
        Some(Outcome::InRound { round, staleness }) => Ok(Some((round, staleness))),
        Some(Outcome::NotYet) => Ok(None),
        Some(Outcome::Applied { .. }) | None => {
            Err(WireError::malformed("a round without its parts").into())
        }
    }
}

fn audit_of(audit: audit::Response) -> Result<Vec<TaskAudit>, PsError> {
    let tasks = audit.tasks.into_iter().map(|audited| {
        let audit::AuditedTask {
            task,
            next_index,
            num_records,
        } = audited;
        let too_many =
            |_| WireError::malformed(format!("task {task} with {next_index} minibatches"));
        Ok(TaskAudit {
            task,
            next_index: u32::try_from(next_index).map_err(too_many)?,
            num_records,
        })
    });
    tasks.collect()
}
