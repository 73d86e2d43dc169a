//! Strings of keys reach the replicas, also those that died meanwhile.

use super::*;
use crate::NameSite;

use edl_store::key_of_string;

fn model() -> String {
    r#"{"tables": [{"name": "word", "dim": 1, "keep_names": true, "optimizer": {"kind": "sgd"},
        "initializer": {"kind": "constant", "params": {"value": 0.0}}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 1}"#
        .to_owned()
}

fn words(numbers: std::ops::Range<u32>) -> Vec<String> {
    numbers.map(|i| format!("word {i}")).collect()
}

/// Pull, name and push, as a worker does; `between` happens before the push.
fn train(client: &PsClient, index: u32, words: &[String], between: impl FnOnce()) {
    let ids: Vec<u64> = words.iter().map(|w| key_of_string(w.as_bytes())).collect();
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    let site = Site {
        table: 0,
        ids: &ids,
    };
    let pulled = client.pull(&[site], PullMode::Create, true, None).unwrap();
    let site = NameSite {
        table: 0,
        ids: &ids,
        names: &names,
    };
    client.name_keys(&[site]).unwrap();
    between();
    let grads = vec![1.0; ids.len()];
    let receipt = &pulled.receipt;
    let pushed = client.push(receipt, &[&grads], &[], &[], &minibatch(1, index));
    pushed.unwrap();
}

/// The strings that replicas have for all rows; each row must have its own.
fn named(stores: &[Arc<Store>]) -> usize {
    let mut count = 0;
    for store in stores {
        let chunk = store.scan(0, 0, usize::MAX).unwrap();
        let names = store.names_of(0, &chunk.keys).unwrap();
        for (&key, name) in chunk.keys.iter().zip(names) {
            let name = name.unwrap_or_else(|| panic!("key {key} has no name"));
            assert_eq!(key_of_string(name.as_bytes()), key);
            count += 1;
        }
    }
    count
}

#[test]
fn every_row_has_its_string_over_sockets_and_in_process() {
    let cluster = Cluster::start(3);
    let local = Arc::new(Store::new(0, 1));
    let in_process = PsClient::in_process(local.clone()).unwrap();
    for client in [&cluster.client(), &in_process] {
        client.declare(&model(), &[], &[]).unwrap();
        for index in 0..4 {
            train(client, index, &words(index * 50..index * 50 + 100), || ());
        }
        client.name_keys(&[]).unwrap();
    }
    assert_eq!(named(&cluster.stores), 250);
    assert_eq!(named(&[local]), 250);
}

#[test]
fn a_replica_that_dies_between_names_and_their_update_is_told_them_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(1);
    let client = cluster.client();
    client.declare(&model(), &[], &[]).unwrap();
    train(&client, 0, &words(0..50), || ());
    let entry = cluster.stores[0].checkpoint(dir.path()).unwrap();
    let manifest = format!(r#"{{"format": 1, "replicas": [{entry}]}}"#);
    std::fs::write(dir.path().join("manifest.json"), manifest).unwrap();

    // The successor, of a checkpoint without these names, takes the update as the next one.
    train(&client, 1, &words(25..75), || {
        let store = Arc::new(Store::restore(dir.path(), 0, 1, true).unwrap());
        let server = serve(&store, 0);
        client.set_address(0, server.address()).unwrap();
        cluster.servers[0].stop();
        cluster = Cluster {
            stores: vec![store],
            servers: vec![server],
        };
    });
    client.name_keys(&[]).unwrap();
    assert_eq!(named(&cluster.stores), 75);
    // What it had before is sent when it is met again: it cannot be known that it was kept.
    train(&client, 2, &words(0..100), || ());
    assert_eq!(named(&cluster.stores), 100);
}

#[test]
fn another_client_knows_nothing_of_what_was_sent() {
    let cluster = Cluster::start(2);
    let (first, second) = (cluster.client(), cluster.client());
    for client in [&first, &second] {
        client.declare(&model(), &[], &[]).unwrap();
    }
    train(&first, 0, &words(0..50), || ());
    train(&second, 1, &words(25..75), || ());
    assert_eq!(named(&cluster.stores), 75);
    let colliding = NameSite {
        table: 0,
        ids: &[key_of_string(b"word 3")],
        names: &["another"],
    };
    second.name_keys(&[colliding]).unwrap();
    let stats = cluster.stores.iter().map(|store| store.stats());
    let collisions: u64 = stats.map(|s| s.tables[0].name_collisions).sum();
    assert_eq!(collisions, 1);
}
