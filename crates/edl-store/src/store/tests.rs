//! What is out of reach from outside: a defect in the middle of a change, and limits that nobody fills.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Push, Store};
use crate::error::StoreError;
use crate::gradient::TableGrads;
use crate::index::MAX_VERSION;
use crate::spec::ModelSpec;
use crate::table::PullMode;

mod disk;

thread_local! {
    static PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Stands for a defect that shows when some rows have changed and others have not.
pub(super) fn maybe_panic() {
    assert!(!PANICS.get(), "a defect");
}

const MODEL: &str = r#"{"seed": 1, "state": [], "optimizer": {"kind": "sgd", "params": {}},
    "dense": [{"name": "w", "shape": [3], "offset": 0}],
    "tables": [{"name": "t", "dim": 2, "optimizer": {"kind": "sgd", "params": {}},
        "initializer": {"kind": "constant", "params": {"value": 0.0}}}]}"#;

fn store() -> Store {
    let store = Store::new(0, 1);
    let model = ModelSpec::from_json(MODEL).unwrap();
    store.declare(model, &[0.0; 3], &[]).unwrap();
    store.begin_task(1, 1).unwrap();
    store
}

fn push(store: &Store, index: u32, keys: &[u64]) -> Result<u64, StoreError> {
    let grads = vec![1.0; 2 * keys.len()];
    let push = Push {
        task: 1,
        lease: 1,
        index,
        num_records: 1,
        learning_rate: 0.5,
        pulled_version: 0,
        tables: &[TableGrads {
            table: 0,
            keys,
            grads: &grads,
        }],
        dense: &[1.0; 3],
        state: &[],
    };
    Ok(store.apply(&push)?.version)
}

#[test]
fn a_gradient_later_than_the_bound_changes_nothing() {
    let store = store();
    store.bound_staleness(2);
    for index in 0..3 {
        push(&store, index, &[1]).unwrap();
    }
    let refused = push(&store, 3, &[1]).unwrap_err(); // pulled at version 0, like all
    assert!(matches!(
        refused,
        StoreError::TooStale {
            version: 3,
            limit: 2,
            ..
        }
    ));
    assert_eq!((store.version(), store.audit()[0].next_index), (3, 3));
    assert_eq!(row(&store, 1).unwrap(), [-1.5, -1.5]);
    store.begin_task(1, 2).unwrap();
}

fn row(store: &Store, key: u64) -> Result<[f32; 2], StoreError> {
    let mut row = [0.0; 2];
    store.pull_rows(0, &[key], PullMode::ReadOnly, &mut row)?;
    Ok(row)
}

fn write(store: &Store, dir: &std::path::Path) {
    let entry = store.checkpoint(dir).unwrap();
    let manifest = format!(r#"{{"format": 1, "replicas": [{entry}]}}"#);
    std::fs::write(dir.join("manifest.json"), manifest).unwrap();
}

#[test]
fn what_comes_of_forgotten_tasks_is_refused_also_after_a_checkpoint() {
    let store = store();
    push(&store, 0, &[1]).unwrap();
    store.begin_task(2, 1).unwrap();
    store.forget_tasks_before(2);
    store.forget_tasks_before(1); // of a request that came late
    let dir = tempfile::tempdir().unwrap();
    write(&store, dir.path());
    let restored = Store::restore(dir.path(), 0, 1, true).unwrap();
    for store in [store, restored] {
        assert_eq!(
            store.audit().iter().map(|a| a.task).collect::<Vec<_>>(),
            [2]
        );
        for refused in [
            push(&store, 0, &[1]).unwrap_err(),
            push(&store, 1, &[1]).unwrap_err(),
            store.begin_task(1, 7).unwrap_err(),
            store.skip(1, 7, 0).unwrap_err(),
        ] {
            assert!(matches!(refused, StoreError::StaleLease { task: 1, .. }));
        }
        assert_eq!(row(&store, 1).unwrap(), [-0.5, -0.5]);
        assert_eq!(store.audit().len(), 1);
        store.begin_task(2, 2).unwrap();
    }
    // A new job from the same parameters has tasks of its own.
    let other = Store::restore(dir.path(), 0, 1, false).unwrap();
    other.begin_task(1, 1).unwrap();
}

#[test]
fn a_panic_in_the_middle_of_an_update_leaves_a_store_that_answers_nothing() {
    let store = store();
    push(&store, 0, &[1, 2]).unwrap();
    PANICS.set(true);
    let died = catch_unwind(AssertUnwindSafe(|| push(&store, 1, &[1, 2])));
    PANICS.set(false);
    assert!(died.is_err());
    let dir = tempfile::tempdir().unwrap();
    let refusals = [
        push(&store, 1, &[1, 2]).unwrap_err(),
        row(&store, 1).unwrap_err(),
        store.begin_task(1, 2).unwrap_err(),
        store.checkpoint(dir.path()).unwrap_err(),
    ];
    for refusal in refusals {
        let half = StoreError::HalfChanged { replica: 0 };
        assert_eq!(refusal.to_string(), half.to_string());
    }
}

#[test]
fn rows_past_the_last_number_are_refused_by_name_and_more_replicas_take_them() {
    let store = store();
    // The real number is 2^28 for each stripe: as if it were 40.
    store.budget.set_stripe_rows(40);
    let keys: Vec<u64> = (0..400).collect();
    push(&store, 0, &keys).unwrap();
    let more: Vec<u64> = (0..1200).collect();
    let refused = push(&store, 1, &more).unwrap_err();
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    let words = refused.to_string();
    assert!(words.contains("table 't' cannot take new rows"), "{words}");
    assert!(words.contains("--num_ps_pods"), "{words}");
    let mut rows = vec![0.0; 2400];
    let pulled = store.pull_rows(0, &more, PullMode::Create, &mut rows);
    assert!(matches!(pulled, Err(StoreError::Full(_))));
    // Nothing was changed, and the rows that are there go on.
    assert_eq!(row(&store, 7).unwrap(), [-0.5; 2]);
    push(&store, 1, &keys).unwrap();
    let mut rows = vec![0.0; 800];
    store
        .pull_rows(0, &keys, PullMode::Create, &mut rows)
        .unwrap();

    let dir = tempfile::tempdir().unwrap();
    write(&store, dir.path());
    for replica in 0..4 {
        let part = Store::restore(dir.path(), replica, 4, false).unwrap();
        part.budget.set_stripe_rows(40);
        let mut own = more.clone();
        own.retain(|&key| crate::replica_of(key, 4) == replica);
        let mut rows = vec![0.0; 2 * own.len()];
        part.pull_rows(0, &own, PullMode::Create, &mut rows)
            .unwrap();
    }
}

#[test]
fn updates_past_the_last_version_are_refused_by_name_and_a_new_job_counts_anew() {
    let store = store();
    push(&store, 0, &[1, 2]).unwrap();
    let model = store.model.get().unwrap();
    let last = MAX_VERSION - u64::from(u16::MAX) - 1;
    model.begun.store(last, Ordering::Release);
    model.version.store(last, Ordering::Release);
    assert_eq!(push(&store, 1, &[2]).unwrap(), last + 1);
    let refused = push(&store, 2, &[2]).unwrap_err();
    assert!(matches!(refused, StoreError::Full(_)), "{refused}");
    assert!(refused.to_string().contains("--checkpoint_dir_for_init"));
    assert_eq!(row(&store, 2).unwrap(), [-1.0; 2]);

    let dir = tempfile::tempdir().unwrap();
    write(&store, dir.path());
    let same_job = Store::restore(dir.path(), 0, 1, true).unwrap();
    assert_eq!(same_job.version(), last + 1);
    let new_job = Store::restore(dir.path(), 0, 1, false).unwrap();
    assert_eq!(new_job.version(), 1 << 32);
    assert_eq!(row(&new_job, 2).unwrap(), [-1.0; 2]);
    new_job.begin_task(1, 1).unwrap();
    assert_eq!(push(&new_job, 0, &[1]).unwrap(), (1 << 32) + 1);
    // The row that was updated last is as new as before, the other older than all that is counted.
    assert_eq!(keys_since(&new_job, 0).len(), 2);
    assert_eq!(keys_since(&new_job, (1 << 32) - 1).len(), 2);
    assert_eq!(keys_since(&new_job, 1 << 32), [1]);
}

fn keys_since(store: &Store, version: u64) -> Vec<u64> {
    let (mut keys, mut cursor) = (Vec::new(), Some(0));
    while let Some(from) = cursor {
        let chunk = store.scan_since(0, from, 10, Some(version)).unwrap();
        keys.extend(chunk.keys);
        cursor = chunk.next;
    }
    keys
}

#[test]
fn a_disk_that_hangs_while_a_checkpoint_is_written_stops_no_update() {
    let mut store = Store::new(0, 1);
    // The real ones are 256 MB and a minute.
    let budget = Arc::get_mut(&mut store.budget).unwrap();
    budget.set_impatient(100, Duration::from_millis(50));
    let model = ModelSpec::from_json(MODEL).unwrap();
    store.declare(model, &[0.0; 3], &[]).unwrap();
    store.begin_task(1, 1).unwrap();
    let keys: Vec<u64> = (0..2000).collect();
    push(&store, 0, &keys).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let name = "replica-00000-of-00001-rows-00.safetensors";
    let file = dir
        .path()
        .join(format!(".{name}.{}.tmp", std::process::id()));
    // Whoever opens it to write waits until somebody opens it to read.
    let made = std::process::Command::new("mkfifo").arg(&file).status();
    assert!(made.unwrap().success());

    std::thread::scope(|scope| {
        let writer = scope.spawn(|| store.checkpoint(dir.path()));
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut index = 1;
        while !store.budget.is_given_up() {
            assert!(Instant::now() < deadline, "nothing was given up");
            push(&store, index, &keys).unwrap();
            index += 1;
        }
        let elsewhere = tempfile::tempdir().unwrap();
        let refused = store.checkpoint(elsewhere.path()).unwrap_err();
        assert!(refused.to_string().contains("still writes an earlier one"));
        let later = elsewhere.path().join("later");
        let waits = {
            let (store, later) = (&store, later.clone());
            scope.spawn(move || store.checkpoint_within(&later, Duration::from_secs(60)))
        };
        let _reader = std::fs::File::open(&file).unwrap();
        assert!(writer.join().unwrap().is_err());
        waits.join().unwrap().unwrap();
        assert!(later.is_dir());
    });

    let dir = tempfile::tempdir().unwrap();
    write(&store, dir.path());
    let restored = Store::restore(dir.path(), 0, 1, true).unwrap();
    assert_eq!(row(&restored, 1999).unwrap(), row(&store, 1999).unwrap());
}
