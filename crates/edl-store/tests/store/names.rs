//! The strings of keys live and go with their rows.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{Grads, Replicas, WholePush, constant, model, table};
use edl_store::{
    ExpirySpec, MAX_NAME_BYTES, ModelSpec, Named, PullMode, Store, StoreError, replica_of,
};

const KEYS: u64 = 5000;

fn spec() -> ModelSpec {
    let mut spec = model("sgd", 0, 0);
    spec.tables = vec![table("word", 1, "sgd", constant(0.0))];
    spec.tables[0].keep_names = true;
    spec.tables[0].expiry = Some(ExpirySpec {
        steps: Some(3),
        ..ExpirySpec::default()
    });
    spec
}

fn text(key: u64) -> String {
    format!("word {key}")
}

/// Name keys at the replicas that they belong to.
fn name(replicas: &Replicas, keys: &[u64], text: impl Fn(u64) -> String) -> Vec<Named> {
    let named = replicas.0.iter().map(|store| {
        let is_its = |&&key: &&u64| replica_of(key, replicas.count()) == store.replica();
        let keys: Vec<u64> = keys.iter().filter(is_its).copied().collect();
        let texts: Vec<String> = keys.iter().map(|&key| text(key)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        store.name_keys(0, &keys, &texts).unwrap()
    });
    named.collect()
}

fn push(replicas: &Replicas, index: u32, keys: &[u64]) {
    let push = WholePush {
        index,
        learning_rate: 1.0,
        tables: vec![Grads::of(0, keys.to_vec(), vec![1.0; keys.len()])],
        ..WholePush::default()
    };
    replicas.push(&push).unwrap();
}

/// Name and train keys, as a worker does.
fn train(replicas: &Replicas, index: u32, keys: &[u64]) {
    replicas.pull(0, 1, keys, PullMode::Create);
    name(replicas, keys, text);
    push(replicas, index, keys);
}

/// The keys of all rows with their names.
fn named(replicas: &Replicas) -> BTreeMap<u64, Option<String>> {
    let mut found = BTreeMap::new();
    for store in &replicas.0 {
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let chunk = store.scan(0, from, 1000).unwrap();
            let names = store.names_of(0, &chunk.keys).unwrap();
            found.extend(chunk.keys.into_iter().zip(names));
            cursor = chunk.next;
        }
    }
    found
}

fn expected(keys: impl IntoIterator<Item = u64>) -> BTreeMap<u64, Option<String>> {
    keys.into_iter().map(|key| (key, Some(text(key)))).collect()
}

fn restored(dir: &Path, count: u32) -> Replicas {
    Replicas::restore(dir, count, true).unwrap()
}

#[test]
fn names_come_through_full_and_incremental_checkpoints_to_any_number_of_replicas() {
    let parent = tempfile::tempdir().unwrap();
    let (full, delta) = (parent.path().join("full"), parent.path().join("delta"));
    let replicas = Replicas::declared(3, &spec());
    let keys: Vec<u64> = (0..KEYS).collect();
    train(&replicas, 0, &keys);
    replicas.checkpoint(&full);
    // Also the name of a key without a row, which the next update may create.
    let late: Vec<u64> = (KEYS..KEYS + 100).collect();
    name(&replicas, &late, text);
    push(&replicas, 1, &keys[..10]);
    std::fs::create_dir(&delta).unwrap();
    std::fs::write(delta.join("base.json"), r#"{"base": "full"}"#).unwrap();
    replicas.checkpoint(&delta);

    let bytes = |dir: &Path| -> u64 {
        let files = dir.read_dir().unwrap().map(|entry| entry.unwrap());
        let names = files.filter(|f| f.file_name().to_string_lossy().contains("-names-"));
        names.map(|file| file.metadata().unwrap().len()).sum()
    };
    assert!(
        bytes(&delta) < bytes(&full) / 5,
        "only what is new is in it"
    );
    for count in [1, 3, 8] {
        assert_eq!(named(&restored(&full, count)), expected(0..KEYS));
        let again = restored(&delta, count);
        assert_eq!(named(&again), expected(0..KEYS));
        push(&again, 2, &late);
        assert_eq!(named(&again), expected(0..KEYS + 100));
    }
}

#[test]
fn a_row_that_goes_takes_its_name_with_it_and_the_replica_says_so() {
    let replicas = Replicas::declared(1, &spec());
    train(&replicas, 0, &[1, 2]);
    let before = name(&replicas, &[], text)[0].generation;
    for index in 1..4 {
        push(&replicas, index, &[2]);
    }
    assert_eq!(name(&replicas, &[], text)[0].generation, before);
    assert_eq!(replicas.0[0].expire(0).unwrap()[0].rows, 1);
    assert_ne!(name(&replicas, &[], text)[0].generation, before);
    assert_eq!(named(&replicas), expected([2]));
    assert_eq!(replicas.0[0].stats().tables[0].names, 1);
    // An update that was under way creates the row again, and it has its name.
    push(&replicas, 4, &[1]);
    assert_eq!(named(&replicas), expected([1, 2]));
}

#[test]
fn the_first_string_of_a_key_stays_and_others_are_counted() {
    let replicas = Replicas::declared(2, &spec());
    train(&replicas, 0, &[1, 2, 3]);
    name(&replicas, &[1, 2], |key| format!("another {key}"));
    name(&replicas, &[1], |key| format!("another {key}"));
    assert_eq!(named(&replicas), expected(1..4));
    let stats = replicas.0.iter().map(Store::stats);
    let collisions: u64 = stats.map(|s| s.tables[0].name_collisions).sum();
    assert_eq!(collisions, 2);
}

#[test]
fn a_key_without_a_row_is_asked_for_again() {
    let replicas = Replicas::declared(1, &spec());
    assert_eq!(name(&replicas, &[7], text)[0].waiting, [7]);
    push(&replicas, 0, &[7]);
    assert!(name(&replicas, &[7], text)[0].waiting.is_empty());
    assert_eq!(named(&replicas), expected([7]));
}

#[test]
fn names_are_among_the_bytes_reported_and_bounded() {
    let replicas = Replicas::declared(1, &spec());
    let store = &replicas.0[0];
    let keys: Vec<u64> = (0..KEYS).collect();
    replicas.pull(0, 1, &keys, PullMode::Create);
    let bytes = || store.stats().tables[0].bytes;
    let before = bytes();
    name(&replicas, &keys, |key| format!("{key:0100}"));
    let taken = bytes() - before;
    assert!((100 * KEYS..200 * KEYS).contains(&taken), "{taken}");

    store.set_memory_limit(Some(bytes() + 1000));
    let more: Vec<u64> = (KEYS..2 * KEYS).collect();
    let texts = vec!["long enough"; more.len()];
    let error = store.name_keys(0, &more, &texts).unwrap_err();
    assert!(matches!(error, StoreError::NamesMemoryLimit { .. }));
    assert!(error.to_string().contains("--ps_memory_limit"), "{error}");
    assert_eq!(named(&replicas).len() as u64, KEYS);
}

#[test]
fn what_cannot_be_a_name_is_refused() {
    let replicas = Replicas::declared(2, &spec());
    let store = &replicas.0[0];
    let own = (0..).find(|&key| replica_of(key, 2) == 0).unwrap();
    let other = (0..).find(|&key| replica_of(key, 2) == 1).unwrap();
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    let refused = |keys: &[u64], names: &[&str], said: &str| {
        let error = store.name_keys(0, keys, names).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    };
    refused(&[own], &[&long], "has 1025 bytes");
    refused(&[own], &[], "0 names came for 1 keys");
    refused(&[other], &["other"], "belongs to replica 1");
    let mut plain = spec();
    plain.tables[0].keep_names = false;
    let plain = Replicas::declared(1, &plain);
    let error = plain.0[0].name_keys(0, &[1], &["one"]).unwrap_err();
    assert!(error.to_string().contains("without keep_names"), "{error}");
}

#[test]
fn a_torn_file_of_names_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(1, &spec());
    train(&replicas, 0, &[1, 2, 3]);
    replicas.checkpoint(dir.path());
    let path = dir
        .path()
        .join("replica-00000-of-00001-names-00.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = Store::restore(dir.path(), 0, 1, true).err().unwrap();
    assert!(error.to_string().contains("names-00"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert!(Store::restore(dir.path(), 0, 1, true).is_err());
}
