//! What each request says to each replica, and how its answers come together.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use edl_store::{Chunk, ModelSpec, Named, TaskAudit};

use super::connection::text_of;
use super::frames::{PushFrames, add_keys, commit_args, ranges_of, step_args};
use super::{Lane, Remote};
use crate::dedup::Plan;
use crate::error::PsError;
use crate::frame::{FLAG_MORE, FLAG_NOT_YET, FLAG_PUSHED, FLAG_STEP, Op, Outgoing};
use crate::names::Batch;
use crate::naming;
use crate::replicas::{Gradients, Minibatch, Pull, Replicas};
use crate::service::{round_from, round_of};
use crate::synchrony::{Part, Protocol, Round, Step};

impl Replicas for Remote {
    fn count(&self) -> usize {
        self.endpoints.len()
    }

    fn declare(&self, model: &ModelSpec, dense: &[f32], state: &[f32]) -> Result<(), PsError> {
        let json = serde_json::to_string(model)
            .map_err(|error| PsError::System(format!("the model cannot be written: {error}")))?;
        let dense_of = ranges_of(dense.len(), self.count());
        let state_of = ranges_of(state.len(), self.count());
        let request = |replica| {
            Outgoing::new(Op::Declare)
                .text(&json)
                .dense(&dense[dense_of(replica)])
                .state(&state[state_of(replica)])
        };
        // One after the other, so that of two workers the same one is first everywhere.
        for replica in self.all() {
            let alone = replica..replica + 1;
            self.call(
                Lane::Control,
                alone,
                Op::Declare,
                request,
                |_, header, connection| {
                    self.learn(header.args[0])?;
                    connection.read_arrays(header, &mut [])
                },
            )?;
        }
        Ok(())
    }

    fn model(&self) -> Result<Arc<ModelSpec>, PsError> {
        let request = |_| Outgoing::new(Op::Model);
        let mut model = None;
        self.call(
            Lane::Control,
            0..1,
            Op::Model,
            request,
            |_, header, connection| {
                self.learn(header.args[0])?;
                model =
                    Some(connection.read_payload(header, |arrays| {
                        Ok(ModelSpec::from_json(text_of(arrays)?)?)
                    })?);
                Ok(())
            },
        )?;
        let unanswered = || PsError::System("the model was not answered".to_owned());
        model.map(Arc::new).ok_or_else(unanswered)
    }

    fn begin_task(&self, task: u64, lease: u32) -> Result<u32, PsError> {
        let request = |_| Outgoing::new(Op::BeginTask).args([task, u64::from(lease), 0, 0]);
        let next = self.operands(self.all(), Op::BeginTask, request)?;
        let lowest = next.iter().map(|args| args[0]).min().unwrap_or(0);
        u32::try_from(lowest)
            .map_err(|_| PsError::malformed(format!("a task goes on at minibatch {lowest}")))
    }

    fn end_task(&self, task: u64, lease: u32) -> Result<(), PsError> {
        if self.protocol() == Protocol::Direct {
            return Ok(());
        }
        let args = [task, u64::from(lease), 0, 0];
        let request = |_| Outgoing::new(Op::EndTask).args(args);
        self.operands(self.all(), Op::EndTask, request).map(|_| ())
    }

    fn pull(&self, mut pull: Pull<'_>) -> Result<(), PsError> {
        match pull.step.take() {
            Some(step) if self.protocol() == Protocol::Gated => {
                // What the others answer must not be older than the admission by replica 0.
                while !self.pull_from(0..1, Some(step), &mut pull)? {}
                self.pull_from(1..self.count(), None, &mut pull).map(|_| ())
            }
            _ => self.pull_from(self.all(), None, &mut pull).map(|_| ()),
        }
    }

    fn push(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
    ) -> Result<(u64, u64), PsError> {
        let push = PushFrames::new(plan, gradients, minibatch, versions);
        let (first, others) = (0..1, 1..self.count());
        let request = |replica| push.frame(Op::Push, replica);
        let answers = match self.protocol() {
            Protocol::Direct => self.operands(self.all(), Op::Push, request)?,
            Protocol::Gated => {
                // Replica 0 lets go of the pull: nothing of it is under way by then.
                let late = self.operands(others, Op::Push, request)?;
                let mut answers = self.operands(first, Op::Push, request)?;
                answers.extend(late);
                answers
            }
            Protocol::Rounds => {
                self.operands(others.clone(), Op::Stage, |r| push.frame(Op::Stage, r))?;
                let (round, staleness) = self.join_round(|| request(0))?;
                self.commit(others, &round)?;
                return Ok((round.version, staleness));
            }
        };
        Ok(pushed_of(&answers))
    }

    fn push_pull(
        &self,
        plan: &Plan,
        gradients: &Gradients<'_>,
        minibatch: &Minibatch,
        versions: &[u64],
        mut next: Pull<'_>,
    ) -> Result<((u64, u64), bool), PsError> {
        let push = PushFrames::new(plan, gradients, minibatch, versions);
        let (first, others) = (0..1, 1..self.count());
        match self.protocol() {
            Protocol::Direct => {
                next.step = None;
                let answers = self.push_pull_at(self.all(), &push, &mut next)?;
                Ok((pushed_of(&answers.args), true))
            }
            Protocol::Gated => {
                // The order in which a push and a pull ask, with the middle two in one.
                let mut args =
                    self.operands(others.clone(), Op::Push, |r| push.frame(Op::Push, r))?;
                let answer = self.push_pull_at(first, &push, &mut next)?;
                args.splice(..0, answer.args);
                let pulled = answer.pulled && self.pull_from(others, None, &mut next)?;
                Ok((pushed_of(&args), pulled))
            }
            Protocol::Rounds => {
                next.step = None;
                self.operands(others.clone(), Op::Stage, |r| push.frame(Op::Stage, r))?;
                let answer = loop {
                    let answer = self.push_pull_at(first.clone(), &push, &mut next)?;
                    if let Some(round) = answer.round {
                        break (round, answer.args[0][1]);
                    }
                };
                let (round, staleness) = answer;
                self.commit_pull(others, &round, &mut next)?;
                Ok(((round.version, staleness), true))
            }
        }
    }

    fn store_time(&self) -> Duration {
        Duration::from_nanos(self.store_nanos.load(Ordering::Relaxed))
    }

    fn skip(&self, task: u64, lease: u32, index: u32) -> Result<(), PsError> {
        let args = [task, u64::from(lease), u64::from(index), 0];
        self.operands(self.all(), Op::Skip, |_| Outgoing::new(Op::Skip).args(args))
            .map(|_| ())
    }

    fn scan(&self, replica: usize, table: u32, cursor: u64) -> Result<Chunk, PsError> {
        let request = |_| Outgoing::new(Op::Scan).args([u64::from(table), cursor, 0, 0]);
        let mut chunk = Chunk {
            keys: Vec::new(),
            rows: Vec::new(),
            next: None,
        };
        let alone = replica..replica + 1;
        self.call(
            Lane::Control,
            alone,
            Op::Scan,
            request,
            |_, header, connection| {
                let more = header.flags & FLAG_MORE != 0;
                chunk = connection.read_payload(header, |arrays| match arrays {
                    [keys, rows] if keys.entry.count == rows.entry.count => Ok(Chunk {
                        keys: keys.u64s()?.to_vec(),
                        rows: rows.f32s()?.to_vec(),
                        next: more.then_some(header.args[0]),
                    }),
                    _ => Err(PsError::malformed(
                        "a scan without a row for each key".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(chunk)
    }

    fn audit(&self) -> Result<Vec<Vec<TaskAudit>>, PsError> {
        let mut audits = vec![Vec::new(); self.count()];
        let request = |_| Outgoing::new(Op::Audit);
        let all = self.all();
        self.call(
            Lane::Control,
            all,
            Op::Audit,
            request,
            |replica, header, connection| {
                audits[replica] = connection.read_payload(header, |arrays| match arrays {
                    [triples] => audit_of(triples.u64s()?),
                    _ => Err(PsError::malformed(
                        "an audit without its triples".to_owned(),
                    )),
                })?;
                Ok(())
            },
        )?;
        Ok(audits)
    }

    fn stats(&self) -> Result<Vec<String>, PsError> {
        self.texts(Op::Stats, "")
    }

    fn checkpoint(&self, directory: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Checkpoint, directory)
    }

    fn expire(&self, now: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Expire, now)
    }

    fn export(&self, request: &str) -> Result<Vec<String>, PsError> {
        self.texts(Op::Export, request)
    }

    fn name(&self, names: &Batch) -> Result<Vec<Named>, PsError> {
        let mut named = vec![None; self.count()];
        self.call(
            Lane::Push,
            self.all(),
            Op::Name,
            |replica| naming::request(&names[replica]),
            |replica, header, connection| {
                let answer =
                    connection.read_payload(header, |arrays| naming::answer_of(header, arrays))?;
                named[replica] = Some(answer);
                Ok(())
            },
        )?;
        let unanswered = || PsError::System("names were not answered".to_owned());
        named
            .into_iter()
            .collect::<Option<_>>()
            .ok_or_else(unanswered)
    }

    fn set_address(&self, replica: usize, address: &str) -> Result<(), PsError> {
        let endpoint = self.endpoints.get(replica).ok_or_else(|| {
            PsError::Invalid(format!("ps replica {replica} of {}", self.endpoints.len()))
        })?;
        endpoint.move_to(address);
        Ok(())
    }
}

impl Remote {
    fn learn(&self, protocol: u64) -> Result<(), PsError> {
        let protocol = Protocol::from_code(protocol)?;
        // All replicas say the same, and what a relaunched one says is what it said before.
        let _ = self.protocol.set(protocol);
        Ok(())
    }

    /// Pulls from some of the replicas; false if one says "not yet".
    fn pull_from(
        &self,
        replicas: Range<usize>,
        step: Option<Step>,
        pull: &mut Pull<'_>,
    ) -> Result<bool, PsError> {
        let args = step.map_or([0; 4], step_args);
        let step_flag = if step.is_some() { FLAG_STEP } else { 0 };
        let flags = pull.flags() | step_flag;
        let plan = pull.plan;
        let request = |replica| {
            add_keys(
                Outgoing::new(Op::Pull).flags(flags).args(args),
                plan,
                replica,
            )
        };
        let mut granted = true;
        let count = self.count();
        self.call(
            Lane::Pull,
            replicas,
            Op::Pull,
            request,
            |replica, header, connection| {
                if header.flags & FLAG_NOT_YET != 0 {
                    granted = false;
                    return connection.read_arrays(header, &mut []);
                }
                connection.read_arrays(header, &mut pull.places(replica, count))?;
                pull.versions[replica] = header.args[0];
                Ok(())
            },
        )?;
        Ok(granted)
    }

    /// Pushes to some replicas and pulls from them in one exchange.
    fn push_pull_at(
        &self,
        replicas: Range<usize>,
        push: &PushFrames<'_>,
        next: &mut Pull<'_>,
    ) -> Result<Answered, PsError> {
        let step_flag = if next.step.is_some() { FLAG_STEP } else { 0 };
        let flags = next.flags() | step_flag;
        let step = [next.step.map_or([0; 4], step_args)];
        let plan = next.plan;
        let request = |replica| {
            let frame = push.frame(Op::PushPull, replica).flags(flags);
            add_keys(frame.parts(&step), plan, replica)
        };
        let first = replicas.start;
        let mut answered = Answered {
            args: vec![[0; 4]; replicas.len()],
            round: None,
            pulled: true,
        };
        let count = self.count();
        self.call(
            Lane::Push,
            replicas,
            Op::PushPull,
            request,
            |replica, header, connection| {
                answered.args[replica - first] = header.args;
                if header.flags & FLAG_PUSHED == 0 {
                    answered.pulled = false;
                    return connection.read_arrays(header, &mut []);
                }
                let pulled = header.flags & FLAG_NOT_YET == 0;
                let mut places = if pulled {
                    next.places(replica, count)
                } else {
                    Vec::new()
                };
                let parts = connection.read_parts_and_arrays(header, &mut places)?;
                answered.round = Some(round_from(header, &parts));
                answered.pulled = pulled;
                next.versions[replica] = header.args[3];
                Ok(())
            },
        )?;
        Ok(answered)
    }

    /// Has the other replicas do what replica 0 has done, and pulls from them.
    fn commit_pull(
        &self,
        replicas: Range<usize>,
        round: &Round,
        next: &mut Pull<'_>,
    ) -> Result<(), PsError> {
        let parts: Vec<[u64; 4]> = round.parts.iter().map(Part::encode).collect();
        let (args, flags, plan) = (commit_args(round), next.flags(), next.plan);
        let request = |replica| {
            let frame = Outgoing::new(Op::CommitPull).flags(flags).args(args);
            add_keys(frame.parts(&parts), plan, replica)
        };
        let count = self.count();
        self.call(
            Lane::Push,
            replicas,
            Op::CommitPull,
            request,
            |replica, header, connection| {
                connection.read_arrays(header, &mut next.places(replica, count))?;
                next.versions[replica] = header.args[0];
                Ok(())
            },
        )
    }

    /// Hands replica 0 its part of a gradient and waits for its round; the staleness beside it.
    fn join_round<'a>(&self, request: impl Fn() -> Outgoing<'a>) -> Result<(Round, u64), PsError> {
        loop {
            let mut answer = None;
            self.call(
                Lane::Push,
                0..1,
                Op::Push,
                |_| request(),
                |_, header, connection| {
                    if header.flags & FLAG_NOT_YET != 0 {
                        return connection.read_arrays(header, &mut []);
                    }
                    let round = connection.read_payload(header, |arrays| match arrays {
                        [parts] => round_of(header, *parts),
                        _ => Err(PsError::malformed("a round without its parts".to_owned())),
                    })?;
                    answer = Some((round, header.args[1]));
                    Ok(())
                },
            )?;
            if let Some(answer) = answer {
                return Ok(answer);
            }
        }
    }

    /// Has the other replicas do what replica 0 has done.
    fn commit(&self, replicas: Range<usize>, round: &Round) -> Result<(), PsError> {
        let parts: Vec<[u64; 4]> = round.parts.iter().map(Part::encode).collect();
        let args = commit_args(round);
        let request = |_| Outgoing::new(Op::Commit).args(args).parts(&parts);
        self.operands(replicas, Op::Commit, request).map(|_| ())
    }
}

/// What replicas said to a push and pull.
struct Answered {
    args: Vec<[u64; 4]>,
    /// The round that the gradient became part of; none while that is open.
    round: Option<Round>,
    /// Whether the pull was made.
    pulled: bool,
}

/// Replica 0's version and the largest staleness.
fn pushed_of(answers: &[[u64; 4]]) -> (u64, u64) {
    let version = answers.first().map_or(0, |args| args[0]);
    let staleness = answers.iter().map(|args| args[1]).max();
    (version, staleness.unwrap_or(0))
}

fn audit_of(triples: &[u64]) -> Result<Vec<TaskAudit>, PsError> {
    let tasks = triples.as_chunks::<3>().0.iter();
    tasks
        .map(|&[task, next_index, num_records]| {
            let next_index = u32::try_from(next_index).map_err(|_| {
                PsError::malformed(format!("task {task} with {next_index} minibatches"))
            })?;
            Ok(TaskAudit {
                task,
                next_index,
                num_records,
            })
        })
        .collect()
}
