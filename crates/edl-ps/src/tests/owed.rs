//! Minibatches that a replica has no key of, and hears of with a later frame.

use edl_store::replica_of;

use super::moving::Leader;
use super::*;
use crate::ErrorKind;

const MODEL: &str = r#"{"tables": [{"name": "t", "dim": 1, "optimizer": {"kind": "sgd"},
    "initializer": {"kind": "constant", "params": {"value": 0.0}}}], "dense": [], "state": [],
    "optimizer": {"kind": "sgd"}, "seed": 0}"#;

/// A key of replica 0 of so many: the others have none of its minibatches.
fn key_of_the_first(num_replicas: u32) -> u64 {
    (0..)
        .find(|&key| replica_of(key, num_replicas) == 0)
        .unwrap()
}

fn began(cluster: &Cluster) -> PsClient {
    let client = cluster.client();
    client.declare(MODEL, &[], &[]).unwrap();
    client.begin_task(7, 1).unwrap();
    client
}

fn train(client: &PsClient, key: u64, index: u32) -> Result<(u64, u64), PsError> {
    let ids = [key];
    let sites = [Site {
        table: 0,
        ids: &ids,
    }];
    let pulled = client.pull(&sites, PullMode::Create, true, None)?;
    client.push(&pulled.receipt, &[&[1.0]], &[], &[], &minibatch(7, index))
}

fn heard(store: &Store) -> u32 {
    store.audit().first().map_or(0, |task| task.next_index)
}

#[test]
fn all_replicas_have_heard_of_all_when_a_task_is_settled() {
    let cluster = Cluster::start(4);
    let (client, key) = (began(&cluster), key_of_the_first(4));
    for index in 0..100 {
        let (version, staleness) = train(&client, key, index).unwrap();
        assert_eq!(version, u64::from(index) + 1);
        assert!(
            staleness < 16,
            "what is owed may come between a pull and its push"
        );
        for store in &cluster.stores {
            assert!(heard(store) + 16 > index, "so many are computed again");
        }
    }
    client.settle_task(7, 1).unwrap();
    for store in &cluster.stores {
        assert_eq!(
            (store.audit(), store.version()),
            (cluster.stores[0].audit(), 100)
        );
        assert_eq!(store.audit()[0].num_records, 4000);
    }
}

#[test]
fn gradients_come_after_what_their_replica_is_owed() {
    let cluster = Cluster::start(4);
    let client = began(&cluster);
    for index in 0..200 {
        let (_, staleness) = train(&client, u64::from(index * index), index).unwrap();
        assert!(staleness <= 16);
    }
    client.settle_task(7, 1).unwrap();
    let applied: Vec<_> = cluster.stores.iter().map(|store| store.audit()).collect();
    assert!(applied.iter().all(|of_replica| *of_replica == applied[0]));
    assert_eq!(
        (applied[0][0].next_index, heard(&cluster.stores[3])),
        (200, 200)
    );
}

#[test]
fn a_move_has_its_instant_while_a_worker_computes_that_owes() {
    let cluster = Cluster::start(2);
    let (client, key) = (began(&cluster), key_of_the_first(2));
    for index in 0..3 {
        train(&client, key, index).unwrap();
    }
    let now = cluster.addresses();
    let leader = Leader {
        number: 1,
        next: vec![now[0].clone()],
        now,
    };
    leader.lead();
    train(&client, key, 3).unwrap();
    assert_eq!(client.audit().unwrap()[0][0].next_index, 4);
}

#[test]
fn a_task_is_not_settled_under_a_lease_that_is_over_or_where_minibatches_are_lost() {
    let mut cluster = Cluster::start(2);
    let (client, key) = (began(&cluster), key_of_the_first(2));
    train(&client, key, 0).unwrap();
    client.settle_task(7, 1).unwrap();
    cluster.replace(1, Store::new(1, 2), Synchrony::Asynchronous);
    client.set_address(1, &cluster.addresses()[1]).unwrap();
    client.declare(MODEL, &[], &[]).unwrap();
    train(&client, key, 1).unwrap();
    let error = client.settle_task(7, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gap);
    client.end_task(7, 1).unwrap();

    assert_eq!(
        client.begin_task(7, 2).unwrap(),
        0,
        "trained again from there"
    );
    cluster.stores[1].begin_task(7, 3).unwrap();
    let skipped = Minibatch {
        lease: 2,
        ..minibatch(7, 0)
    };
    let sites = [Site {
        table: 0,
        ids: &[key],
    }];
    let pulled = client.pull(&sites, PullMode::Create, true, None).unwrap();
    client
        .push(&pulled.receipt, &[&[1.0]], &[], &[], &skipped)
        .unwrap();
    let error = client.settle_task(7, 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StaleLease);
}
