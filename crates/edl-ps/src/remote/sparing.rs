//! Pushes that spare a replica the frame of a minibatch without a key for it.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use edl_wire::WireError;
use edl_wire::op::push::Outcome;
use edl_wire::op::{Step, push, push_each};

use super::endpoint::lock;
use super::gradients::Push;
use super::owed::Mark;
use super::pushed::{Pushed, pushed_each};
use super::questions::PushingEach;
use super::{Lane, Remote};
use crate::error::PsError;

impl Remote {
    /// Pushes to replica 0 and to those that have something of the minibatches; the others hear of
    /// them with a later frame. `None`: each replica is to get a frame of these alone.
    pub(super) fn push_sparing(&self, pushes: &[Push<'_>]) -> Result<Option<Vec<Pushed>>, PsError> {
        let Some(marks) = pushes.iter().map(Push::mark).collect::<Option<Vec<_>>>() else {
            self.settle_where(|_| true)?;
            return Ok(None);
        };
        let is_spared = |replica: usize| {
            let mut all = pushes.iter();
            replica > 0
                && all.all(|push| push.spares(replica))
                && self.owed.has_room(replica, marks.len())
        };
        let spared: Vec<bool> = self.all().map(is_spared).collect();
        let is_of_task =
            |step: &Step| (step.task, step.lease) == (marks[0].step.task, marks[0].step.lease);
        let of_replica = |replica: usize| match spared[replica] {
            true => (Vec::new(), 0),
            false => self.owed.to_send(replica, is_of_task),
        };
        let owed: Vec<_> = self.all().map(of_replica).collect();
        if !spared.contains(&true) && owed.iter().all(|(marks, _)| marks.is_empty()) {
            return Ok(None);
        }
        let request = |replica: usize| {
            let (owed, num_new) = &owed[replica];
            let owed = owed
                .iter()
                .map(|mark| -> push::Request<'_> { mark.request() });
            let own = pushes.iter().filter(|_| !spared[replica]).map(|push| {
                let mut part = push.part(replica);
                // What changed nothing has made its parameters no older.
                part.pulled_version = part.pulled_version.saturating_add(*num_new);
                part
            });
            owed.chain(own).collect()
        };
        let answers = self.push_each_to(self.all().map(request).collect())?;
        for (replica, (sent, _)) in owed.iter().enumerate() {
            self.owed.heard(replica, sent);
            if spared[replica] {
                self.owe(replica, &marks);
            }
        }
        pushed_each(&answers, marks.len()).map(Some)
    }

    /// Pushes to each replica what is for it; nothing to those for whom there is nothing.
    pub(super) fn push_each_to(
        &self,
        requests: Vec<Vec<push::Request<'_>>>,
    ) -> Result<Vec<Vec<Outcome>>, PsError> {
        let counts: Vec<_> = requests.iter().map(Vec::len).filter(|&n| n > 0).collect();
        let mut question = PushingEach::new(Lane::Push, requests);
        self.ask(self.all(), &mut question)?;
        let answers: Vec<_> = question.answers.into_iter().flatten().collect();
        let nanos = answers.iter().map(|answer| answer.store_nanos).sum();
        self.store_nanos.fetch_add(nanos, Ordering::Relaxed);
        let told = answers.iter().map(push_each::Response::outcomes);
        let told: Vec<_> = told.collect();
        if told.iter().map(Vec::len).ne(counts) {
            return Err(WireError::malformed("an answer that is not of all pushes").into());
        }
        Ok(told)
    }

    /// Has replicas hear of what they are owed of some steps.
    pub(super) fn settle_where(&self, is_wanted: impl Fn(&Step) -> bool) -> Result<(), PsError> {
        let owed = self.to_settle(is_wanted);
        if owed.iter().all(Vec::is_empty) {
            return Ok(());
        }
        self.push_each_to(requests_of(&owed))?;
        self.heard(&owed, |_| true);
        Ok(())
    }

    /// Has replicas hear of all that they are owed, on connections for that. One that is lost or
    /// refuses it is told again later, and the next push meets it as well.
    fn settle_late(&self) {
        let owed = self.to_settle(|_| true);
        let mut question = PushingEach::new(Lane::Marks, requests_of(&owed));
        let deadline = Instant::now() + self.options.timeout;
        let mut links = lock(&self.lanes[Lane::Marks as usize]);
        let outcomes = self.ask_once(&mut links, self.all(), &mut question, deadline);
        self.heard(&owed, |replica| outcomes[replica].is_ok());
        self.owed.told();
    }

    /// Returns what each replica is owed of some steps, to be sent now.
    fn to_settle(&self, is_wanted: impl Fn(&Step) -> bool) -> Vec<Vec<Mark>> {
        let to_send = |replica| self.owed.to_send(replica, &is_wanted).0;
        self.all().map(to_send).collect()
    }

    /// Notes what replicas have heard of, those that have.
    fn heard(&self, sent: &[Vec<Mark>], has_heard: impl Fn(usize) -> bool) {
        for (replica, sent) in sent.iter().enumerate().filter(|&(at, _)| has_heard(at)) {
            self.owed.heard(replica, sent);
        }
    }

    /// Notes what a replica is to hear of; a thread tells it after a moment.
    fn owe(&self, replica: usize, marks: &[Mark]) {
        self.owed.add(replica, marks);
        self.tells.call_once(|| {
            let (owed, this) = (self.owed.clone(), self.this.get().cloned());
            let tell = move || {
                while owed.wait_until_late() {
                    let Some(remote) = this.as_ref().and_then(Weak::upgrade) else {
                        return;
                    };
                    remote.settle_late();
                }
            };
            let begun = thread::Builder::new()
                .name("ps marks".to_owned())
                .spawn(tell);
            if let Err(error) = begun {
                // Replicas hear of it with the next push, or at the end of the task.
                log::warn!(
                    "no thread tells ps replicas of minibatches without their keys: {error}"
                );
            }
        });
    }
}

fn requests_of(owed: &[Vec<Mark>]) -> Vec<Vec<push::Request<'static>>> {
    let each = owed.iter();
    each.map(|marks| marks.iter().map(Mark::request).collect())
        .collect()
}
