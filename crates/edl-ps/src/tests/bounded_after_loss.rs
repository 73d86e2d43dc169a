//! Bounded staleness when what replica 0 knows of pulls is lost, or is not all there is to know.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::ErrorKind;

const BOUND: u64 = 2;

const BOUNDED: Synchrony = Synchrony::Bounded {
    max_staleness: BOUND,
};

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

fn train(client: &PsClient, task: u64, indices: std::ops::Range<u32>) {
    for index in indices {
        let pulled = pull_for(client, 0, Some(step(task, index)));
        push(client, &pulled, minibatch(task, index)).unwrap();
    }
}

fn staleness(cluster: &Cluster) -> Vec<u64> {
    let stores = cluster.stores.iter();
    stores.map(|store| store.stats().staleness.max).collect()
}

#[test]
fn no_replica_applies_a_gradient_later_than_the_bound_after_replica_0_forgot_its_pull() {
    let mut cluster = Cluster::with(2, BOUNDED);
    let slow = begun(&cluster, 1);
    let pulled = pull_for(&slow, 0, Some(step(1, 0)));
    // Its successor knows nothing of the pulls that are under way.
    cluster.replace(0, Store::new(0, 2), BOUNDED);
    let fast = begun(&cluster, 2);
    train(&fast, 2, 0..10);
    slow.set_address(0, &cluster.addresses()[0]).unwrap();
    let refused = push(&slow, &pulled, minibatch(1, 0)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TooStale);
    assert!(cluster.stores[1].stats().staleness.max <= BOUND);
    // Nothing was applied anywhere, and the next lease goes on.
    assert_eq!(slow.begin_task(1, 2).unwrap(), 0);
    assert!(cluster.stores[1].audit()[0].next_index == 0);
}

#[test]
fn updates_that_a_restored_replica_alone_lacks_count_against_the_bound() {
    let mut cluster = Cluster::with(2, BOUNDED);
    let (slow, fast) = (begun(&cluster, 1), begun(&cluster, 2));
    train(&fast, 2, 0..40);
    // It comes back from its beginning, and is given again what replica 0 has.
    cluster.replace(1, Store::new(1, 2), BOUNDED);
    for client in [&slow, &fast] {
        client.set_address(1, &cluster.addresses()[1]).unwrap();
        declare(client);
    }
    slow.begin_task(1, 1).unwrap();
    assert_eq!(fast.begin_task(2, 1).unwrap(), 0);
    let pulled = pull_for(&slow, 0, Some(step(1, 0)));
    let (sender, done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            train(&fast, 2, 0..40);
            sender.send(()).unwrap();
        });
        // The bound stops the replay until the slow one is done.
        assert!(done.recv_timeout(Duration::from_millis(500)).is_err());
        push(&slow, &pulled, minibatch(1, 0)).unwrap();
        done.recv_timeout(TIMEOUT).unwrap();
    });
    assert!(staleness(&cluster).iter().all(|&late| late <= BOUND));
    assert_eq!(cluster.stores[1].version(), 41);
}
