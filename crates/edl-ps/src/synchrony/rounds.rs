//! Synchronous updates: who waits for whom. Pure; `docs/designs/synchrony.md` has the argument.

use std::collections::{BTreeSet, HashMap};

use super::Step;

/// A gradient that waits for its round to be complete.
#[derive(Debug)]
pub(crate) struct Member<G> {
    /// The connection that it came by.
    pub(crate) client: u64,
    pub(crate) step: Step,
    pub(crate) gradient: G,
}

/// The open round, and the clients that it waits for.
///
/// A client is active while it has an open lease. A round is complete when it has the wanted number
/// of members, or one member of each active client if there are fewer clients.
#[derive(Debug)]
pub(crate) struct Rounds<G> {
    wanted: usize,
    leases: HashMap<u64, BTreeSet<(u64, u32)>>,
    members: Vec<Member<G>>,
}

impl<G> Rounds<G> {
    pub(crate) fn new(wanted: usize) -> Self {
        Self {
            wanted: wanted.max(1),
            leases: HashMap::new(),
            members: Vec::new(),
        }
    }

    /// A client has begun a lease: older ones of the task are over, and what they gave too.
    pub(crate) fn open(&mut self, client: u64, task: u64, lease: u32) {
        self.end_where(|other, number| other == task && number < lease);
        self.leases.entry(client).or_default().insert((task, lease));
    }

    /// A lease has ended.
    pub(crate) fn close(&mut self, task: u64, lease: u32) {
        self.end_where(|other, number| other == task && number <= lease);
    }

    fn end_where(&mut self, is_over: impl Fn(u64, u32) -> bool) {
        for leases in self.leases.values_mut() {
            leases.retain(|&(task, lease)| !is_over(task, lease));
        }
        self.leases.retain(|_, leases| !leases.is_empty());
        self.members
            .retain(|member| !is_over(member.step.task, member.step.lease));
    }

    /// A connection is lost: nobody waits for it, and its gradient is left to the next lease.
    pub(crate) fn lost(&mut self, client: u64) {
        self.leases.remove(&client);
        self.withdraw(client);
    }

    /// Takes a client's gradient out of the open round.
    pub(crate) fn withdraw(&mut self, client: u64) {
        self.members.retain(|member| member.client != client);
    }

    /// Takes all gradients out of the open round.
    pub(crate) fn withdraw_all(&mut self) {
        self.members.clear();
    }

    /// Adds a gradient; one of the same task that waited already is replaced.
    pub(crate) fn join(&mut self, client: u64, step: Step, gradient: G) {
        self.open(client, step.task, step.lease);
        self.members
            .retain(|member| member.client != client && member.step.task != step.task);
        self.members.push(Member {
            client,
            step,
            gradient,
        });
    }

    /// True if a client's gradient waits.
    pub(crate) fn has(&self, client: u64) -> bool {
        self.members.iter().any(|member| member.client == client)
    }

    /// Ends the round if it is complete; its members, by task.
    pub(crate) fn take_complete(&mut self) -> Option<Vec<Member<G>>> {
        let needed = self.wanted.min(self.leases.len()).max(1);
        if self.members.len() < needed {
            return None;
        }
        let mut members = std::mem::take(&mut self.members);
        members.sort_unstable_by_key(|member| member.step);
        Some(members)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn step(task: u64, lease: u32, index: u32) -> Step {
        Step { task, lease, index }
    }

    fn tasks<G>(members: Option<Vec<Member<G>>>) -> Option<Vec<u64>> {
        members.map(|members| members.iter().map(|member| member.step.task).collect())
    }

    #[test]
    fn a_round_waits_for_every_active_client_up_to_the_number_wanted() {
        let mut rounds = Rounds::new(2);
        for client in 1..=3 {
            rounds.open(client, client, 1);
        }
        rounds.join(3, step(3, 1, 0), ());
        assert_eq!(tasks(rounds.take_complete()), None);
        rounds.join(1, step(1, 1, 0), ());
        assert_eq!(tasks(rounds.take_complete()), Some(vec![1, 3]));
    }

    #[test]
    fn a_client_alone_does_not_wait() {
        let mut rounds = Rounds::new(4);
        rounds.join(1, step(1, 1, 0), ());
        assert_eq!(tasks(rounds.take_complete()), Some(vec![1]));
    }

    #[test]
    fn the_end_of_a_clients_last_lease_completes_the_round_of_the_others() {
        let mut rounds = Rounds::new(2);
        rounds.open(1, 10, 1);
        rounds.open(1, 11, 1);
        rounds.join(2, step(20, 1, 0), ());
        rounds.close(10, 1);
        assert_eq!(tasks(rounds.take_complete()), None);
        rounds.close(11, 1);
        assert_eq!(tasks(rounds.take_complete()), Some(vec![20]));
    }

    #[test]
    fn a_lost_client_takes_its_gradient_with_it() {
        let mut rounds = Rounds::new(3);
        rounds.open(1, 1, 1);
        rounds.open(2, 2, 1);
        rounds.open(3, 3, 1);
        rounds.join(1, step(1, 1, 0), ());
        rounds.join(2, step(2, 1, 0), ());
        rounds.lost(2);
        assert_eq!(tasks(rounds.take_complete()), None);
        rounds.lost(3);
        assert_eq!(tasks(rounds.take_complete()), Some(vec![1]));
    }

    #[test]
    fn a_newer_lease_drops_the_gradient_of_the_older_and_nobody_waits_for_its_client() {
        let mut rounds = Rounds::new(2);
        rounds.join(1, step(1, 1, 4), ());
        rounds.open(2, 1, 2);
        assert!(!rounds.has(1));
        rounds.join(2, step(1, 2, 4), ());
        assert_eq!(tasks(rounds.take_complete()), Some(vec![1]));
    }

    #[test]
    fn a_repeated_request_counts_once() {
        let mut rounds = Rounds::new(2);
        rounds.open(2, 2, 1);
        rounds.join(1, step(1, 1, 0), ());
        rounds.join(1, step(1, 1, 0), ());
        assert_eq!(tasks(rounds.take_complete()), None);
    }

    /// The next action of a client of the model.
    #[derive(Clone, Debug)]
    enum Event {
        Join(u64),
        Begin(u64),
        Die(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let client = 0u64..4;
        proptest::collection::vec(
            prop_oneof![
                6 => client.clone().prop_map(Event::Join),
                2 => client.clone().prop_map(Event::Begin),
                1 => client.prop_map(Event::Die),
            ],
            0..400,
        )
    }

    const TASKS: u64 = 6;
    const MINIBATCHES: u32 = 3;

    /// Leases, clients and replicas around the machine. The task of a lost client is leased again
    /// from the lowest watermark. If a replica lacks a part of a round, a member commits it, or the
    /// next lease computes it again.
    #[derive(Default)]
    struct Job {
        holders: BTreeMap<u64, (u64, u32)>,
        leases: BTreeMap<u64, u32>,
        applied: [BTreeMap<(u64, u32), u32>; 2],
        marks: [BTreeMap<u64, u32>; 2],
        incarnations: BTreeMap<u64, u64>,
    }

    impl Job {
        fn id(&self, client: u64) -> u64 {
            client + 10 * self.incarnations.get(&client).copied().unwrap_or(0)
        }

        fn mark(&self, replica: usize, task: u64) -> u32 {
            self.marks[replica].get(&task).copied().unwrap_or(0)
        }

        fn next(&self, task: u64) -> u32 {
            self.mark(0, task).min(self.mark(1, task))
        }

        fn free_task(&self) -> Option<u64> {
            (0..TASKS).find(|task| {
                self.next(*task) < MINIBATCHES
                    && !self.holders.values().any(|(held, _)| held == task)
            })
        }

        fn apply(&mut self, replica: usize, step: Step) {
            if self.mark(replica, step.task) == step.index
                && self.leases.get(&step.task) == Some(&step.lease)
            {
                *self.applied[replica]
                    .entry((step.task, step.index))
                    .or_default() += 1;
                self.marks[replica].insert(step.task, step.index + 1);
            }
        }

        /// Replica 0 has applied a round; `commits` says whether a member lives to tell the other.
        fn settle(&mut self, rounds: &mut Rounds<()>, members: Vec<Member<()>>, commits: bool) {
            for member in &members {
                self.apply(0, member.step);
            }
            for member in &members {
                if commits {
                    self.apply(1, member.step);
                } else {
                    self.die(rounds, member.client % 10);
                }
            }
            for member in members {
                self.end_if_done(rounds, member.client % 10);
            }
        }

        fn end_if_done(&mut self, rounds: &mut Rounds<()>, client: u64) {
            if let Some(&(task, lease)) = self.holders.get(&client)
                && self.next(task) == MINIBATCHES
            {
                rounds.close(task, lease);
                self.holders.remove(&client);
            }
        }

        fn die(&mut self, rounds: &mut Rounds<()>, client: u64) {
            rounds.lost(self.id(client));
            *self.incarnations.entry(client).or_default() += 1;
            self.holders.remove(&client);
        }

        fn begin(&mut self, rounds: &mut Rounds<()>, client: u64) {
            if self.holders.contains_key(&client) {
                return;
            }
            if let Some(task) = self.free_task() {
                let lease = self.leases.entry(task).or_default();
                *lease += 1;
                let lease = *lease;
                self.holders.insert(client, (task, lease));
                rounds.open(self.id(client), task, lease);
            }
        }

        fn join(&mut self, rounds: &mut Rounds<()>, client: u64) {
            let Some(&(task, lease)) = self.holders.get(&client) else {
                return;
            };
            let step = step(task, lease, self.next(task));
            if self.mark(0, task) > step.index {
                // Applied at replica 0 under an older lease: the redone part is committed alone.
                self.apply(1, step);
                self.end_if_done(rounds, client);
            } else if !rounds.has(self.id(client)) {
                rounds.join(self.id(client), step, ());
            }
        }
    }

    proptest! {
        #[test]
        fn every_minibatch_is_applied_once_everywhere_whoever_dies_when(
            wanted in 1usize..6,
            events in events(),
            silent in proptest::collection::vec(any::<bool>(), 400),
        ) {
            let mut rounds = Rounds::new(wanted);
            let mut job = Job::default();
            let mut silent = silent.into_iter();
            for event in events {
                match event {
                    Event::Begin(client) => job.begin(&mut rounds, client),
                    Event::Die(client) => job.die(&mut rounds, client),
                    Event::Join(client) => job.join(&mut rounds, client),
                }
                while let Some(members) = rounds.take_complete() {
                    let commits = !silent.next().unwrap_or(false);
                    job.settle(&mut rounds, members, commits);
                }
            }
            // The living clients go on without a delay.
            let mut moves = 0;
            while (0..TASKS).any(|task| job.next(task) < MINIBATCHES) {
                for client in 0..4 {
                    job.begin(&mut rounds, client);
                    job.join(&mut rounds, client);
                    while let Some(members) = rounds.take_complete() {
                        job.settle(&mut rounds, members, true);
                    }
                }
                moves += 1;
                prop_assert!(moves < 1000, "the clients wait for each other");
            }
            for replica in &job.applied {
                prop_assert_eq!(replica.len(), (TASKS * u64::from(MINIBATCHES)) as usize);
                prop_assert!(replica.values().all(|&times| times == 1));
            }
        }
    }
}
