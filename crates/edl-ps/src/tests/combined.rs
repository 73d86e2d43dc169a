//! A push and the next pull in one exchange: the same as one after the other.

use std::thread;

use super::relay::Relay;
use super::*;
use crate::{ErrorKind, StepGradients, Wanted};

const MODES: [Synchrony; 3] = [
    Synchrony::Asynchronous,
    Synchrony::Bounded { max_staleness: 0 },
    Synchrony::Synchronous {
        grads_to_wait: 1,
        version_tolerance: 0,
    },
];

fn step(task: u64, index: u32) -> Step {
    Step {
        task,
        lease: 1,
        index,
    }
}

/// Pushes as `push` does, and pulls as `pull_for` does for the minibatch after it.
fn push_pull(
    client: &PsClient,
    pulled: &Pulled,
    minibatch: Minibatch,
    table: u32,
) -> Result<((u64, u64), Option<Pulled>), PsError> {
    let grads = gradients_of(pulled, minibatch);
    let grads: Vec<&[f32]> = grads.iter().map(Vec::as_slice).collect();
    let gradients = StepGradients {
        rows: &grads,
        dense: &vec![0.5; pulled.dense.len()],
        state: &vec![0.25; pulled.state.len()],
    };
    let next = minibatch.index + 1;
    let ids = ids(u64::from(next));
    let site = |table, ids| Site { table, ids };
    let wanted = Wanted {
        sites: &[site(0, &ids[0]), site(0, &ids[1]), site(table, &ids[2])],
        mode: PullMode::Create,
        vectors: true,
        step: Some(step(minibatch.task, next)),
    };
    client.push_pull(&pulled.receipt, &gradients, &minibatch, &wanted)
}

/// Trains a few minibatches, each pulled with the push before it; cuts what the relay carries.
fn train_and_compare(
    synchrony: Synchrony,
    cluster: &Cluster,
    client: &PsClient,
    cut: impl Fn(u32),
) {
    let local = PsClient::in_process(Arc::new(Store::new(0, 1))).unwrap();
    for client in [client, &local] {
        declare(client);
        client.begin_task(7, 1).unwrap();
    }
    let mut there = pull_for(client, 0, Some(step(7, 0)));
    for index in 0..8 {
        let here = pull(&local, u64::from(index));
        assert_eq!(there.rows, here.rows, "{synchrony:?}, minibatch {index}");
        assert_eq!((&there.dense, &there.state), (&here.dense, &here.state));
        assert_eq!(there.receipt.version(), u64::from(index));
        push(&local, &here, minibatch(7, index)).unwrap();
        cut(index);
        let ((version, _), next) = push_pull(client, &there, minibatch(7, index), 1).unwrap();
        assert_eq!(version, u64::from(index) + 1);
        there = next.unwrap();
    }
    for store in &cluster.stores {
        let audit = &store.audit()[0];
        assert_eq!((audit.next_index, audit.num_records), (8, 8 * 40));
    }
}

#[test]
fn a_push_and_pull_in_one_are_a_push_and_then_a_pull() {
    for synchrony in MODES {
        for num_replicas in 1..4 {
            let cluster = Cluster::with(num_replicas, synchrony);
            train_and_compare(synchrony, &cluster, &cluster.client(), |_| ());
        }
    }
}

#[test]
fn a_push_and_pull_cut_anywhere_is_applied_once_and_its_rows_are_right() {
    for synchrony in MODES {
        for replica in 0..2 {
            let cluster = Cluster::with(2, synchrony);
            let relay = Relay::start(&cluster.addresses()[replica]);
            let client = relay.client_to(&cluster, replica);
            train_and_compare(synchrony, &cluster, &client, |index| {
                // In the first answer, between two, and in the rows of the last.
                relay.cut_after([0, 1, 63, 64, 65, 500, 1500, 2500][index as usize]);
            });
        }
    }
}

#[test]
fn a_pull_that_is_refused_does_not_hide_that_the_push_was_applied() {
    for synchrony in MODES {
        let cluster = Cluster::with(2, synchrony);
        let client = cluster.client();
        declare(&client);
        client.begin_task(1, 1).unwrap();
        let pulled = pull_for(&client, 0, Some(step(1, 0)));
        for store in &cluster.stores {
            store.set_memory_limit(Some(1));
        }

        let (pushed, next) = push_pull(&client, &pulled, minibatch(1, 0), 1).unwrap();

        assert_eq!(pushed.0, 1);
        assert!(next.is_none());
        assert_eq!(client.begin_task(1, 1).unwrap(), 1);
    }
}

#[test]
fn a_push_that_is_refused_pulls_nothing_and_says_why() {
    for synchrony in MODES {
        let cluster = Cluster::with(2, synchrony);
        let client = cluster.client();
        declare(&client);
        client.begin_task(1, 1).unwrap();
        let pulled = pull_for(&client, 0, Some(step(1, 0)));
        cluster.stores[0].begin_task(1, 2).unwrap();

        let error = push_pull(&client, &pulled, minibatch(1, 0), 1).unwrap_err();

        assert_eq!(error.kind(), ErrorKind::StaleLease, "{error}");
        assert_eq!(cluster.stores[0].version(), 0);
    }
}

#[test]
fn a_pull_that_has_to_wait_for_others_is_left_to_the_caller() {
    let cluster = Cluster::with(2, Synchrony::Bounded { max_staleness: 1 });
    let clients = [cluster.client(), cluster.client()];
    for (task, client) in (0..).zip(&clients) {
        declare(client);
        client.begin_task(task, 1).unwrap();
    }
    let pulled = pull_for(&clients[0], 0, Some(step(0, 0)));
    let other = pull_for(&clients[1], 0, Some(step(1, 0)));

    // One update since the other's pull is what it may be late; a second pull makes it two.
    let (pushed, next) = push_pull(&clients[0], &pulled, minibatch(0, 0), 1).unwrap();

    assert_eq!(pushed, (1, 0));
    assert!(next.is_none());
    assert_eq!(push(&clients[1], &other, minibatch(1, 0)).unwrap(), (2, 1));
    assert_eq!(
        pull_for(&clients[0], 1, Some(step(0, 1))).receipt.version(),
        2
    );
}

#[test]
fn members_of_a_round_pull_what_it_made_with_their_push() {
    let synchrony = Synchrony::Synchronous {
        grads_to_wait: 2,
        version_tolerance: 0,
    };
    let cluster = Cluster::with(2, synchrony);
    let clients = [cluster.client(), cluster.client()];
    for (task, client) in (0..).zip(&clients) {
        declare(client);
        client.begin_task(task, 1).unwrap();
    }
    thread::scope(|scope| {
        let train = |task: usize| {
            let client = &clients[task];
            let mut pulled = pull_for(client, 0, Some(step(task as u64, 0)));
            let mut seen = Vec::new();
            for index in 0..10 {
                let minibatch = minibatch(task as u64, index);
                let (pushed, next) = push_pull(client, &pulled, minibatch, 1).unwrap();
                pulled = next.unwrap();
                assert_eq!(pushed, (u64::from(index) + 1, 0));
                assert_eq!(pulled.receipt.version(), u64::from(index) + 1);
                seen.push((pulled.rows.clone(), pulled.dense.clone()));
            }
            client.end_task(task as u64, 1).unwrap();
            seen
        };
        let other = scope.spawn(move || train(1));
        assert_eq!(train(0), other.join().unwrap());
    });
}
