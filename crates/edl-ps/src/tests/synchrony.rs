//! Bounded staleness and synchronous rounds, with real sockets and clients that vanish.

use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::ErrorKind;
use crate::synchrony::{Coordinator, Peer, Pushed};

const SYNCHRONOUS: Synchrony = Synchrony::Synchronous {
    grads_to_wait: 2,
    version_tolerance: 0,
};

fn bounded(max_staleness: u64) -> Synchrony {
    Synchrony::Bounded { max_staleness }
}

fn step(task: u64, index: u32) -> Step {
    Step {
        task,
        lease: 1,
        index,
    }
}

fn begun(cluster: &Cluster, task: u64) -> PsClient {
    let client = cluster.client();
    declare(&client);
    client.begin_task(task, 1).unwrap();
    client
}

/// What each replica has applied: (task, minibatches, records).
fn audits(cluster: &Cluster) -> Vec<Vec<(u64, u32, u64)>> {
    let audit = |store: &Arc<Store>| {
        let tasks = store.audit().into_iter();
        tasks
            .map(|t| (t.task, t.next_index, t.num_records))
            .collect()
    };
    cluster.stores.iter().map(audit).collect()
}

#[test]
fn no_push_is_later_than_the_bound_whatever_the_workers_do() {
    for bound in [0, 1, 3] {
        let cluster = Cluster::with(2, bounded(bound));
        thread::scope(|scope| {
            for task in 0..4 {
                let client = begun(&cluster, task);
                scope.spawn(move || {
                    for index in 0..40 {
                        let pulled = pull_for(&client, task, Some(step(task, index)));
                        let late = push(&client, &pulled, minibatch(task, index)).unwrap().1;
                        assert!(late <= bound, "{late} > {bound}");
                    }
                });
            }
        });
        for store in &cluster.stores {
            assert_eq!(store.version(), 160);
            assert!(store.stats().staleness.max <= bound);
        }
    }
}

#[test]
fn a_client_that_vanishes_with_a_pull_in_hand_blocks_nobody() {
    let cluster = Cluster::with(2, bounded(0));
    let (dead, living) = (begun(&cluster, 1), begun(&cluster, 2));
    pull_for(&dead, 0, Some(step(1, 0)));
    let (sender, admitted) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let pulled = pull_for(&living, 0, Some(step(2, 0)));
            sender.send(()).unwrap();
            push(&living, &pulled, minibatch(2, 0)).unwrap();
        });
        assert!(admitted.recv_timeout(Duration::from_millis(200)).is_err());
        drop(dead);
        admitted.recv_timeout(TIMEOUT).unwrap();
    });
}

#[test]
fn a_client_that_vanishes_while_it_waits_blocks_nobody() {
    let cluster = Cluster::with(1, bounded(0));
    let (holder, next) = (begun(&cluster, 1), begun(&cluster, 3));
    let pulled = pull_for(&holder, 0, Some(step(1, 0)));
    let impatient = {
        let client = cluster.client_with(Duration::from_millis(100), true);
        declare(&client);
        client
    };
    let site = Site {
        table: 0,
        ids: &[1],
    };
    let refused = impatient.pull(&[site], PullMode::Create, true, Some(step(2, 0)));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unavailable);
    drop(impatient);
    push(&holder, &pulled, minibatch(1, 0)).unwrap();
    pull_for(&next, 0, Some(step(3, 0)));
}

#[test]
fn skipping_ending_and_a_newer_lease_let_go_of_pulls() {
    let cluster = Cluster::with(2, bounded(0));
    let (first, second) = (begun(&cluster, 1), begun(&cluster, 2));
    pull_for(&first, 0, Some(step(1, 0)));
    first.skip(1, 1, 0).unwrap();
    pull_for(&second, 0, Some(step(2, 0)));
    second.end_task(2, 1).unwrap();
    pull_for(&first, 0, Some(step(1, 1)));
    second.begin_task(1, 2).unwrap();
    pull_for(&second, 0, Some(step(2, 0)));
}

#[test]
fn a_gradient_whose_pull_was_given_up_is_refused_once_it_is_too_late() {
    let cluster = Cluster::with(2, bounded(1));
    let (slow, fast) = (begun(&cluster, 1), begun(&cluster, 2));
    let pulled = pull_for(&slow, 0, Some(step(1, 0)));
    slow.end_task(1, 1).unwrap();
    for index in 0..2 {
        let pulled = pull_for(&fast, 0, Some(step(2, index)));
        push(&fast, &pulled, minibatch(2, index)).unwrap();
    }
    let refused = push(&slow, &pulled, minibatch(1, 0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooStale);
    assert_eq!(audits(&cluster)[0], [(1, 0, 0), (2, 2, 80)]);
}

#[test]
fn two_clients_together_train_as_one_with_twice_the_minibatch() {
    let cluster = Cluster::with(2, SYNCHRONOUS);
    let clients = [begun(&cluster, 1), begun(&cluster, 2)];
    let alone = PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap();
    declare(&alone);
    let barrier = Barrier::new(2);
    let ids: [[u64; 4]; 2] = [[1, 2, 3, 2], [3, 9, 1, 1]];
    thread::scope(|scope| {
        for (client, ids) in clients.iter().zip(&ids) {
            let (barrier, task) = (&barrier, if ids[0] == 1 { 1 } else { 2 });
            scope.spawn(move || {
                for index in 0..10 {
                    let site = Site { table: 1, ids };
                    let pulled = client.pull(&[site], PullMode::Create, true, None).unwrap();
                    let grads: Vec<f32> = (0..12).map(|i| (i % 5) as f32 * task as f32).collect();
                    let dense = vec![task as f32; 37];
                    barrier.wait();
                    let (version, late) = client
                        .push(
                            &pulled.receipt,
                            &[&grads],
                            &dense,
                            &[1.0; 5],
                            &minibatch(task, index),
                        )
                        .unwrap();
                    assert_eq!((version, late), (u64::from(index) + 1, 0));
                    barrier.wait();
                }
            });
        }
    });
    let both: Vec<u64> = ids.concat();
    for index in 0..10 {
        let site = Site {
            table: 1,
            ids: &both,
        };
        let pulled = alone.pull(&[site], PullMode::Create, true, None).unwrap();
        // The mean over both minibatches.
        let grads: Vec<f32> = (0..24)
            .map(|i| (i % 12 % 5) as f32 * if i < 12 { 0.5 } else { 1.0 })
            .collect();
        let dense = [1.5; 37];
        alone
            .push(
                &pulled.receipt,
                &[&grads],
                &dense,
                // State sums over a round: what two added, one adds.
                &[2.0; 5],
                &minibatch(1, index),
            )
            .unwrap();
    }
    let probe = Site {
        table: 1,
        ids: &both,
    };
    let (there, here) = (
        clients[0]
            .pull(&[probe], PullMode::ReadOnly, true, None)
            .unwrap(),
        alone
            .pull(&[probe], PullMode::ReadOnly, true, None)
            .unwrap(),
    );
    for (a, b) in there.rows[0].iter().zip(&here.rows[0]) {
        assert!((a - b).abs() <= 1e-5 * b.abs().max(1.0), "{a} {b}");
    }
    assert_eq!(there.dense, here.dense);
    assert_eq!(there.state, here.state);
    for audit in audits(&cluster) {
        assert_eq!(audit, [(1, 10, 400), (2, 10, 400)]);
    }
}

#[test]
fn a_gradient_older_than_the_tolerance_is_refused_and_may_be_computed_again() {
    let cluster = Cluster::with(2, SYNCHRONOUS);
    let slow = begun(&cluster, 1);
    let early = pull(&slow, 0);
    slow.end_task(1, 1).unwrap();
    let fast = begun(&cluster, 2);
    push(&fast, &pull(&fast, 0), minibatch(2, 0)).unwrap();
    fast.end_task(2, 1).unwrap();
    let refused = push(&slow, &early, minibatch(1, 0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooStale);
    push(&slow, &pull(&slow, 0), minibatch(1, 0)).unwrap();
    for audit in audits(&cluster) {
        assert_eq!(audit, [(1, 1, 40), (2, 1, 40)]);
    }
}

#[test]
fn a_member_that_vanishes_is_not_waited_for() {
    let cluster = Cluster::with(2, SYNCHRONOUS);
    let (dead, living) = (begun(&cluster, 1), begun(&cluster, 2));
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            push(&living, &pull(&living, 0), minibatch(2, 0)).unwrap();
            sender.send(()).unwrap();
        });
        assert!(done.recv_timeout(Duration::from_millis(200)).is_err());
        drop(dead);
        done.recv_timeout(TIMEOUT).unwrap();
    });
}

#[test]
fn a_newer_lease_goes_on_where_a_lost_member_of_a_round_was() {
    let cluster = Cluster::with(2, SYNCHRONOUS);
    let (first, other) = (begun(&cluster, 1), begun(&cluster, 2));
    // Applied at replica 0 and at no other, as when every member dies before it commits.
    let store = &cluster.stores[0];
    store.skip(1, 1, 0).unwrap();
    drop(first);
    other.end_task(2, 1).unwrap();
    let again = cluster.client();
    declare(&again);
    assert_eq!(again.begin_task(1, 2).unwrap(), 0);
    let mut redone = minibatch(1, 0);
    redone.lease = 2;
    push(&again, &pull(&again, 0), redone).unwrap();
    assert_eq!(audits(&cluster)[0][0], (1, 1, 0));
    assert_eq!(audits(&cluster)[1][0], (1, 1, 40));
    assert_eq!(again.begin_task(1, 3).unwrap(), 1);
}

struct Somebody(u64);

impl Peer for Somebody {
    fn id(&self) -> u64 {
        self.0
    }

    fn is_there(&self) -> bool {
        true
    }
}

#[test]
fn a_late_end_of_an_old_lease_leaves_the_round_to_the_lease_that_needs_it() {
    let store = Store::new(0, 1);
    let model = edl_store::ModelSpec::from_json(&model()).unwrap();
    store.declare(model, &[0.0; 37], &[0.0; 5]).unwrap();
    let leader = Coordinator::new(SYNCHRONOUS, 0);
    let begin = |task, lease, client| {
        store.begin_task(task, lease).unwrap();
        leader.begun(&store, task, lease, &Somebody(client));
    };
    let weight_of = |task, lease, client| {
        let push = edl_store::Push {
            task,
            lease,
            index: 0,
            num_records: 40,
            learning_rate: 0.1,
            pulled_version: 0,
            tables: &[],
            dense: &[1.0; 37],
            state: &[0.0; 5],
        };
        match leader.push(&store, &push, &Somebody(client)).unwrap() {
            Pushed::InRound(round, _) => {
                let parts = round.parts.iter();
                let mut own = parts.filter(|part| part.step().task == task);
                own.next().unwrap().weight
            }
            other => panic!("{other:?}"),
        }
    };
    begin(1, 1, 1);
    begin(2, 1, 2);
    thread::scope(|scope| {
        let first = scope.spawn(|| weight_of(1, 1, 1));
        assert_eq!(weight_of(2, 1, 2), 0.5);
        assert_eq!(first.join().unwrap(), 0.5);
    });
    // The worker of the first lease hangs, is given up, and says late that its lease is over.
    begin(1, 2, 3);
    leader.ended(&store, 1, 1);
    assert_eq!(weight_of(1, 2, 3), 0.5);
}

#[test]
fn an_old_lease_leaves_the_round_when_a_newer_one_begins() {
    let cluster = Cluster::with(2, SYNCHRONOUS);
    let (old, other) = (begun(&cluster, 1), begun(&cluster, 2));
    thread::scope(|scope| {
        let refused = scope.spawn(|| push(&old, &pull(&old, 0), minibatch(1, 0)).unwrap_err());
        while cluster.stores[1].version() == 0 && !refused.is_finished() {
            // Whether it has joined or not by now: its lease is over.
            assert_eq!(other.begin_task(1, 2).unwrap(), 0);
        }
        assert_eq!(refused.join().unwrap().kind(), ErrorKind::StaleLease);
    });
    assert_eq!(audits(&cluster)[0], [(1, 0, 0), (2, 0, 0)]);
}
