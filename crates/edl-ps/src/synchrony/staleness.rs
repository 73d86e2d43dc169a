//! Bounded staleness: which training pulls may be under way. Pure; `docs/designs/synchrony.md` has
//! the proof.

use super::Step;

/// A training pull that has begun and whose gradient has not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    step: Step,
    /// The connection that pulled.
    holder: u64,
    /// The time at which it began.
    time: u64,
}

/// Lets pulls begin so that no gradient comes later than the bound, at any replica.
///
/// The time of this rule grows with each update that another replica may have made. So it grows
/// with the version of this replica. It also grows with each pull that ended without an update
/// here, since its gradient may have been applied elsewhere. For example, the gradient had been
/// applied here before another replica was restored, or its worker died between two replicas.
///
/// Invariant, with V the time and n the number of pulls held: V - p + n - 1 <= bound for the time p
/// of each pull held. V may be read before a push whose pull is still held: V + n counts that push
/// once either way.
#[derive(Debug)]
pub(crate) struct PullsUnderWay {
    bound: u64,
    held: Vec<Held>,
    /// Pulls that ended without an update here, which others may have made.
    elsewhere: u64,
}

impl PullsUnderWay {
    pub(crate) fn new(bound: u64) -> Self {
        Self {
            bound,
            held: Vec::new(),
            elsewhere: 0,
        }
    }

    /// Lets a pull begin at a version, or says that it must wait.
    ///
    /// The same step again is a repeated request: its first pull is forgotten.
    pub(crate) fn begin(&mut self, step: Step, holder: u64, version: u64) -> bool {
        self.enter(step, holder, version, version)
    }

    /// True if a gradient may be applied at `version`: its pull is held, or may be as if it had
    /// never been let go (its connection was lost meanwhile).
    pub(crate) fn confirm(&mut self, step: Step, holder: u64, version: u64, pulled: u64) -> bool {
        self.held.iter().any(|held| held.step == step)
            || self.enter(step, holder, version, pulled.min(version))
    }

    fn enter(&mut self, step: Step, holder: u64, version: u64, pulled: u64) -> bool {
        self.held.retain(|held| held.step != step);
        let (now, pulled) = (version + self.elsewhere, pulled + self.elsewhere);
        let others = self.held.len() as u64;
        let oldest = self.held.iter().map(|held| held.time).min();
        let oldest = oldest.map_or(pulled, |oldest| oldest.min(pulled));
        if now.saturating_sub(oldest) + others > self.bound {
            return false;
        }
        self.held.push(Held {
            step,
            holder,
            time: pulled,
        });
        true
    }

    /// A gradient came; `is_applied` if it made an update here, which the version counts.
    pub(crate) fn pushed(&mut self, step: Step, is_applied: bool) {
        let num_ended = self.end_where(|held| held.step == step);
        if !is_applied {
            self.elsewhere += num_ended;
        }
    }

    /// No gradient comes, nor came anywhere.
    pub(crate) fn skipped(&mut self, step: Step) {
        self.end_where(|held| held.step == step);
    }

    /// A lease has ended, or a newer one has begun: pulls of leases up to this one are over.
    pub(crate) fn release_lease(&mut self, task: u64, lease: u32) {
        self.elsewhere += self.end_where(|held| held.step.task == task && held.step.lease <= lease);
    }

    /// A connection is lost.
    pub(crate) fn release_holder(&mut self, holder: u64) {
        self.elsewhere += self.end_where(|held| held.holder == holder);
    }

    fn end_where(&mut self, is_over: impl Fn(&Held) -> bool) -> u64 {
        let before = self.held.len();
        self.held.retain(|held| !is_over(held));
        (before - self.held.len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn step(task: u64, lease: u32, index: u32) -> Step {
        Step { task, lease, index }
    }

    #[test]
    fn a_bound_of_zero_lets_one_pull_begin_at_a_time() {
        let mut pulls = PullsUnderWay::new(0);
        assert!(pulls.begin(step(1, 1, 0), 1, 5));
        assert!(!pulls.begin(step(2, 1, 0), 2, 5));
        pulls.pushed(step(1, 1, 0), true);
        assert!(pulls.begin(step(2, 1, 0), 2, 6));
    }

    #[test]
    fn one_more_pull_than_the_bound_is_held_at_one_version() {
        let mut pulls = PullsUnderWay::new(2);
        let begun = (0..5).filter(|&i| pulls.begin(step(i, 1, 0), i, 0)).count();
        assert_eq!(begun, 3);
    }

    #[test]
    fn a_slow_worker_stops_the_others_at_the_bound_and_its_death_frees_them() {
        let mut pulls = PullsUnderWay::new(3);
        assert!(pulls.begin(step(0, 1, 0), 7, 0));
        let mut version = 0;
        while pulls.begin(step(1, 1, version as u32), 8, version) {
            pulls.pushed(step(1, 1, version as u32), true);
            version += 1;
        }
        assert_eq!(version, 3);
        pulls.release_holder(7);
        assert!(pulls.begin(step(1, 1, 3), 8, version));
    }

    #[test]
    fn a_newer_lease_lets_go_what_the_older_one_held() {
        let mut pulls = PullsUnderWay::new(0);
        assert!(pulls.begin(step(1, 1, 0), 1, 0));
        pulls.release_lease(1, 1);
        assert!(pulls.begin(step(1, 2, 0), 2, 0));
        pulls.release_lease(1, 1);
        assert!(!pulls.begin(step(2, 1, 0), 3, 0));
    }

    #[test]
    fn a_gradient_whose_pull_was_let_go_is_taken_while_it_is_within_the_bound() {
        let mut pulls = PullsUnderWay::new(2);
        assert!(pulls.confirm(step(1, 1, 0), 1, 4, 2));
        pulls.pushed(step(1, 1, 0), true);
        assert!(!pulls.confirm(step(1, 1, 0), 1, 5, 2));
        assert!(pulls.begin(step(2, 1, 0), 2, 5));
        assert!(!pulls.confirm(step(1, 1, 0), 1, 5, 3));
    }

    #[test]
    fn what_only_a_restored_replica_lacked_counts_against_the_bound() {
        let mut pulls = PullsUnderWay::new(2);
        assert!(pulls.begin(step(0, 1, 0), 7, 5));
        let mut again = 0;
        while again < 10 && pulls.begin(step(1, 1, again), 8, 5) {
            pulls.pushed(step(1, 1, again), false); // this replica has it: its version stays
            again += 1;
        }
        assert_eq!(again, 2);
        pulls.pushed(step(0, 1, 0), true);
        assert!(pulls.begin(step(1, 1, again), 8, 6));
    }

    #[derive(Clone, Debug)]
    enum Event {
        Pull(u64),
        Push(u64),
        Again(u64),
        Skip(u64),
        Die(u64),
        Late(u64),
        Lease(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let worker = 0u64..5;
        proptest::collection::vec(
            prop_oneof![
                4 => worker.clone().prop_map(Event::Pull),
                4 => worker.clone().prop_map(Event::Push),
                2 => worker.clone().prop_map(Event::Again),
                1 => worker.clone().prop_map(Event::Skip),
                1 => worker.clone().prop_map(Event::Die),
                1 => worker.clone().prop_map(Event::Late),
                1 => worker.prop_map(Event::Lease),
            ],
            0..300,
        )
    }

    proptest! {
        /// Each worker may have three pulls under way and pushes the oldest first. Another replica
        /// applies all that this one does, what this one had before (`Again`), and what a worker
        /// gave it that died before it came here.
        #[test]
        fn no_gradient_is_applied_later_than_the_bound_at_any_replica(
            bound in 0u64..6, events in events(),
        ) {
            let mut pulls = PullsUnderWay::new(bound);
            let (mut version, mut other) = (0u64, 0u64);
            let mut under_way = vec![Vec::<(Step, u64, u64)>::new(); 5];
            let mut let_go: Vec<(Step, u64)> = Vec::new();
            let mut next = 0;
            for event in events {
                match event {
                    Event::Pull(worker) => {
                        let mine = &mut under_way[worker as usize];
                        let step = step(worker, 1, next);
                        if mine.len() < 3 && pulls.begin(step, worker, version) {
                            mine.push((step, version, other));
                            next += 1;
                        }
                    }
                    Event::Push(worker) | Event::Again(worker) => {
                        let mine = &mut under_way[worker as usize];
                        if !mine.is_empty() {
                            let (step, pulled, pulled_there) = mine.remove(0);
                            let is_new = matches!(event, Event::Push(_));
                            prop_assert!(pulls.confirm(step, worker, version, pulled));
                            prop_assert!(other - pulled_there <= bound);
                            prop_assert!(version - pulled <= bound);
                            other += 1;
                            version += u64::from(is_new);
                            pulls.pushed(step, is_new);
                        }
                    }
                    Event::Skip(worker) => {
                        if let Some((step, ..)) = under_way[worker as usize].pop() {
                            pulls.skipped(step);
                        }
                    }
                    Event::Die(worker) => {
                        // All that it had under way may have come to the other replica.
                        for (step, pulled, pulled_there) in under_way[worker as usize].drain(..) {
                            prop_assert!(other - pulled_there <= bound);
                            other += 1;
                            let_go.push((step, pulled));
                        }
                        pulls.release_holder(worker);
                    }
                    Event::Late(worker) => {
                        if let Some((step, pulled)) = let_go.pop()
                            && pulls.confirm(step, worker, version, pulled)
                        {
                            prop_assert!(version - pulled <= bound);
                            version += 1;
                            pulls.pushed(step, true);
                        }
                    }
                    Event::Lease(task) => {
                        pulls.release_lease(task, 1);
                        let mine = under_way[task as usize].drain(..);
                        let_go.extend(mine.map(|(step, pulled, _)| (step, pulled)));
                    }
                }
                // If no pull is under way, any pull may begin, so a lost one blocks nothing.
                if under_way.iter().all(Vec::is_empty) {
                    let probe = step(99, 1, 0);
                    prop_assert!(pulls.begin(probe, 99, version));
                    pulls.skipped(probe);
                }
            }
        }
    }
}
