//! Facts about several threads at one store.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{Replicas, constant, grads_of, model, table};
use edl_store::{ModelSpec, PullMode, Push, Store, StoreError};

/// Run a test that waits for threads, and fail if it takes unreasonably long.
fn in_time(test: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let runner = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the threads wait for each other"),
        _ => runner.join().unwrap(),
    }
}

/// Rows count their updates: a gradient of -1 at learning rate 1.
fn counting() -> ModelSpec {
    let mut spec = model("sgd", 1, 1);
    spec.tables = vec![table("count", 1, "sgd", constant(0.0))];
    spec
}

fn store() -> Store {
    let store = Store::new(0, 1);
    store.declare(counting(), &[0.0], &[0.0]).unwrap();
    store
}

fn count(
    store: &Store,
    task: u64,
    lease: u32,
    index: u32,
    keys: &[u64],
) -> Result<bool, StoreError> {
    let grads = vec![-1.0; keys.len()];
    let push = Push {
        task,
        lease,
        index,
        num_records: keys.len() as u32,
        learning_rate: 1.0,
        pulled_version: 0,
        tables: &[grads_of(0, keys, &grads)],
        dense: &[-1.0],
        state: &[1.0],
    };
    store.apply(&push).map(|applied| applied.applied)
}

/// The keys of a minibatch: a window, so that threads meet and the index grows meanwhile.
fn minibatch(task: u64, index: u32) -> Vec<u64> {
    let first = (task * 37 + u64::from(index) * 101) % 20_000;
    (first..first + 500).collect()
}

fn counts(replicas: &Replicas) -> BTreeMap<u64, u64> {
    let rows = replicas.scan(0, 1, 1000).into_iter();
    rows.map(|(key, row)| (key, row[0] as u64)).collect()
}

fn expected(minibatches: impl Iterator<Item = (u64, u32)>) -> BTreeMap<u64, u64> {
    let mut expected = BTreeMap::new();
    for (task, index) in minibatches {
        for key in minibatch(task, index) {
            *expected.entry(key).or_default() += 1;
        }
    }
    expected
}

#[test]
fn no_update_is_lost_between_threads() {
    in_time(|| {
        let (tasks, minibatches) = (6, 60);
        let store = store();
        thread::scope(|scope| {
            for task in 0..tasks {
                let store = &store;
                scope.spawn(move || {
                    for index in 0..minibatches {
                        let keys = minibatch(task, index);
                        let mut rows = vec![0.0; keys.len()];
                        store
                            .pull_rows(0, &keys, PullMode::Create, &mut rows)
                            .unwrap();
                        assert!(count(store, task, 1, index, &keys).unwrap());
                    }
                });
            }
        });
        let (mut dense, mut state) = ([0.0], [0.0]);
        let total = tasks * u64::from(minibatches);
        assert_eq!(store.pull_vectors(&mut dense, &mut state).unwrap(), total);
        assert_eq!((dense[0], state[0]), (total as f32, total as f32));
        let all = (0..tasks).flat_map(|task| (0..minibatches).map(move |index| (task, index)));
        assert_eq!(counts(&Replicas(vec![store])), expected(all));
    });
}

#[test]
fn of_equal_pushes_that_race_one_is_applied() {
    in_time(|| {
        let store = store();
        let applied = AtomicU64::new(0);
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for index in 0..100 {
                        barrier.wait();
                        let fresh = count(&store, 1, 1, index, &minibatch(1, index)).unwrap();
                        applied.fetch_add(u64::from(fresh), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(applied.load(Ordering::Relaxed), 100);
        assert_eq!(store.audit()[0].num_records, 100 * 500);
        let all = (0..100).map(|index| (1, index));
        assert_eq!(counts(&Replicas(vec![store])), expected(all));
    });
}

#[test]
fn once_a_lease_has_begun_nothing_of_an_older_one_is_applied() {
    in_time(|| {
        let store = store();
        let barrier = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                barrier.wait();
                let refused = (0..).find_map(|index| count(&store, 1, 1, index, &[1]).err());
                assert!(matches!(refused, Some(StoreError::StaleLease { .. })));
            });
            barrier.wait();
            let next = store.begin_task(1, 2).unwrap();
            assert_eq!(store.audit()[0].next_index, next);
            assert!(count(&store, 1, 2, next, &[1]).unwrap());
            assert_eq!(store.audit()[0].next_index, next + 1);
        });
    });
}

#[test]
fn of_racing_first_declarations_one_wins() {
    in_time(|| {
        let store = Store::new(0, 1);
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for i in 0..4 {
                let (store, barrier) = (&store, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    store.declare(counting(), &[i as f32], &[i as f32]).unwrap();
                });
            }
        });
        let (mut dense, mut state) = ([-1.0], [-1.0]);
        store.pull_vectors(&mut dense, &mut state).unwrap();
        assert!(dense == state && dense[0] >= 0.0);
    });
}

#[test]
fn a_checkpoint_is_of_one_instant_while_updates_go_on() {
    in_time(|| {
        let tasks = 3;
        let store = store();
        // Rows enough for the checkpoint to take several turns at each stripe.
        let keys: Vec<u64> = (0..200_000).collect();
        let mut rows = vec![0.0; keys.len()];
        store
            .pull_rows(0, &keys, PullMode::Create, &mut rows)
            .unwrap();
        let running = AtomicU64::new(tasks);
        thread::scope(|scope| {
            for task in 0..tasks {
                let (store, running) = (&store, &running);
                scope.spawn(move || {
                    for index in 0..1000 {
                        count(store, task, 1, index, &minibatch(task, index)).unwrap();
                    }
                    running.fetch_sub(1, Ordering::Relaxed);
                });
            }
            while running.load(Ordering::Relaxed) > 0 {
                let dir = tempfile::tempdir().unwrap();
                let entry = store.checkpoint(dir.path()).unwrap();
                crate::common::write_manifest(dir.path(), &[entry]);
                assert_of_one_instant(&Replicas::restore(dir.path(), 2, true).unwrap(), &keys);
            }
        });
    });
}

/// Rows, vectors, version and watermarks all say that the same minibatches were applied.
fn assert_of_one_instant(restored: &Replicas, keys: &[u64]) {
    let audit = restored.0[0].audit();
    let version: u64 = audit.iter().map(|task| u64::from(task.next_index)).sum();
    assert_eq!(restored.0[0].stats().version, version);
    assert_eq!(
        restored.vectors(),
        (vec![version as f32], vec![version as f32])
    );
    let mut expected = vec![0; keys.len()];
    for task in audit {
        for index in 0..task.next_index {
            for key in minibatch(task.task, index) {
                expected[key as usize] += 1;
            }
        }
    }
    let counts: Vec<u64> = counts(restored).into_values().collect();
    assert!(counts == expected);
}

/// A pull that meets an update must not take its version without its values: the gradient that
/// comes of it would count as newer than it is.
#[test]
fn a_pulled_version_is_never_ahead_of_the_values() {
    in_time(|| {
        let store = store();
        let has_ended = AtomicU64::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..3_000 {
                    count(&store, 1, 1, index, &minibatch(1, 0)).unwrap();
                }
                has_ended.store(1, Ordering::Release);
            });
            while has_ended.load(Ordering::Acquire) == 0 {
                let (mut dense, mut state) = ([0.0], [0.0]);
                let version = store.pull_vectors(&mut dense, &mut state).unwrap();
                assert!(
                    dense[0] as u64 >= version,
                    "{} at version {version}",
                    dense[0]
                );
                assert!(
                    state[0] as u64 >= version,
                    "{} at version {version}",
                    state[0]
                );
            }
        });
    });
}
