//! Facts about checkpoints of what has changed since another.

use std::fs;

use crate::common::{Grads, Replicas, WholePush, model};
use edl_store::{PullMode, StoreError};

fn push(replicas: &Replicas, index: u32, keys: &[u64]) {
    let grads = |dim: usize| vec![0.5; keys.len() * dim];
    let table = |table, dim| Grads::of(table, keys.to_vec(), grads(dim));
    let push = WholePush {
        index,
        learning_rate: 0.1,
        tables: vec![table(0, 16), table(1, 1)],
        dense: vec![1.0; 100],
        state: vec![0.5; 50],
        ..WholePush::default()
    };
    replicas.push(&push).unwrap();
}

fn assert_equal(a: &Replicas, b: &Replicas) {
    assert_eq!(a.scan(0, 16, 1000), b.scan(0, 16, 77));
    assert_eq!(a.scan(1, 1, 1000), b.scan(1, 1, 1_000_000));
    assert_eq!(a.vectors(), b.vectors());
}

/// Two replicas with a checkpoint of all rows in `base`, updated since.
fn changed(root: &std::path::Path) -> Replicas {
    let replicas = Replicas::declared(2, &model("adagrad", 100, 50));
    push(&replicas, 0, &(0..5000).collect::<Vec<_>>());
    replicas.checkpoint(&root.join("base"));
    push(&replicas, 1, &(100..200).collect::<Vec<_>>());
    push(&replicas, 2, &(4990..5100).collect::<Vec<_>>());
    replicas
}

fn bytes_of(dir: &std::path::Path) -> u64 {
    let files = fs::read_dir(dir).unwrap();
    files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum()
}

#[test]
fn what_has_changed_and_its_base_are_restored_to_any_number_of_replicas() {
    let root = tempfile::tempdir().unwrap();
    let replicas = changed(root.path());
    // Rows that were created and never updated belong to it too.
    replicas.pull(0, 16, &(7000..7100).collect::<Vec<_>>(), PullMode::Create);
    let entries = replicas.checkpoint_since("base", &root.path().join("since"));
    assert!(
        entries
            .iter()
            .all(|entry| entry["base"]["folder"] == "base")
    );
    let (all, some) = (
        bytes_of(&root.path().join("base")),
        bytes_of(&root.path().join("since")),
    );
    assert!(some * 5 < all, "{some} bytes of {all}");
    for count in [1, 2, 3, 5] {
        let restored = Replicas::restore(&root.path().join("since"), count, true).unwrap();
        assert_equal(&replicas, &restored);
        assert_eq!(restored.0[0].audit(), replicas.0[0].audit());
        // Slots and versions are those of the newest, or the next update would differ.
        let again = Replicas::restore(&root.path().join("since"), 2, true).unwrap();
        push(&again, 3, &(0..300).collect::<Vec<_>>());
        let there = Replicas::restore(&root.path().join("since"), count, true).unwrap();
        push(&there, 3, &(0..300).collect::<Vec<_>>());
        assert_equal(&again, &there);
    }
}

#[test]
fn several_checkpoints_share_a_base() {
    let root = tempfile::tempdir().unwrap();
    let replicas = changed(root.path());
    replicas.checkpoint_since("base", &root.path().join("first"));
    push(&replicas, 3, &(300..310).collect::<Vec<_>>());
    let entries = replicas.checkpoint_since("base", &root.path().join("second"));
    assert_eq!(entries[1]["base"]["folder"], "base");
    fs::remove_dir_all(root.path().join("first")).unwrap();
    let restored = Replicas::restore(&root.path().join("second"), 2, true).unwrap();
    assert_equal(&replicas, &restored);
}

#[test]
fn a_replica_that_does_not_know_the_base_writes_all_rows() {
    let root = tempfile::tempdir().unwrap();
    let _ = changed(root.path());
    // One that was restored from it has not written it.
    let replicas = Replicas::restore(&root.path().join("base"), 2, true).unwrap();
    push(&replicas, 1, &[1, 2, 3]);
    let entries = replicas.checkpoint_since("base", &root.path().join("since"));
    assert!(entries.iter().all(|entry| entry["base"].is_null()));
    fs::remove_dir_all(root.path().join("base")).unwrap();
    let restored = Replicas::restore(&root.path().join("since"), 1, true).unwrap();
    assert_equal(&replicas, &restored);
}

#[test]
fn a_base_that_is_gone_or_was_replaced_is_refused_and_named() {
    let root = tempfile::tempdir().unwrap();
    let replicas = changed(root.path());
    let since = root.path().join("since");
    replicas.checkpoint_since("base", &since);
    let refused = || match Replicas::restore(&since, 2, true) {
        Err(error @ StoreError::Checkpoint { .. }) => error.to_string(),
        other => panic!("{:?}", other.map(|_| ())),
    };
    fs::rename(root.path().join("base"), root.path().join("away")).unwrap();
    assert!(
        refused().contains("needs 'base' beside it"),
        "{}",
        refused()
    );
    replicas.checkpoint(&root.path().join("base"));
    assert!(refused().contains("was replaced"), "{}", refused());
    fs::remove_dir_all(root.path().join("base")).unwrap();
    fs::rename(root.path().join("away"), root.path().join("base")).unwrap();
    assert_equal(&replicas, &Replicas::restore(&since, 3, true).unwrap());
}
