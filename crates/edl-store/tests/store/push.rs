//! What a push does to rows, vectors and watermarks, and when it is refused.

use crate::common::{Replicas, bare, declared, grads_of, model, pull, sgd};
use edl_store::{
    Applied, PullMode, Push, RoundGradient, RoundMember, Store, StoreError, TableGrads, TaskAudit,
};

#[test]
fn a_push_updates_rows_dense_and_state() {
    let store = declared(&sgd());
    let before = pull(&store, 0, 16, &[5, 6], PullMode::Create);
    let grads: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let tables = [grads_of(0, &[6, 5], &grads), grads_of(1, &[9], &[-1.0])];
    let push = Push {
        tables: &tables,
        ..bare(1, 1, 0)
    };
    let applied = Applied {
        applied: true,
        version: 1,
        staleness: 0,
    };
    assert_eq!(store.apply(&push).unwrap(), applied);
    let after = pull(&store, 0, 16, &[5, 6], PullMode::ReadOnly);
    for i in 0..16 {
        assert_eq!(after[i], before[i] - 0.5 * grads[16 + i]);
        assert_eq!(after[16 + i], before[16 + i] - 0.5 * grads[i]);
    }
    // The row of table 1 did not exist: it is created and updated.
    assert_eq!(pull(&store, 1, 1, &[9], PullMode::ReadOnly), [0.5]);
    let (mut dense, mut state) = ([0.0; 4], [0.0; 2]);
    assert_eq!(store.pull_vectors(&mut dense, &mut state).unwrap(), 1);
    assert_eq!(dense, [-0.5, 0.125 - 0.5, 0.25 - 0.5, 0.375 - 0.5]);
    assert_eq!(state, [1.0, 1.125]);
}

#[test]
fn adam_counts_steps_from_one_for_rows_and_dense_alike() {
    let store = declared(&model("adam", 4, 2));
    let tables = [grads_of(1, &[9], &[1.0])];
    for index in 0..3 {
        let push = Push {
            tables: if index == 2 { &tables } else { &[] },
            ..bare(1, 1, index)
        };
        store.apply(&push).unwrap();
    }
    // The first gradient of the row comes at t = 3: m / (1 - b1^3) over sqrt(v / (1 - b2^3)).
    let m = 0.1 / (1.0 - 0.9_f64.powi(3));
    let v = 0.001 / (1.0 - 0.999_f64.powi(3));
    let row = pull(&store, 1, 1, &[9], PullMode::ReadOnly)[0];
    assert!((f64::from(row) + 0.5 * m / v.sqrt()).abs() < 1e-4, "{row}");
    // Of a constant gradient each step is the learning rate.
    let mut dense = [0.0; 4];
    store.pull_vectors(&mut dense, &mut [0.0; 2]).unwrap();
    assert!((dense[0] + 1.5).abs() < 1e-4);
}

#[test]
fn a_repeated_push_is_acknowledged_and_not_applied() {
    let store = declared(&sgd());
    assert_eq!(store.begin_task(3, 1).unwrap(), 0);
    assert!(store.apply(&bare(3, 1, 0)).unwrap().applied);
    assert!(store.apply(&bare(3, 1, 1)).unwrap().applied);
    let again = store.apply(&bare(3, 1, 0)).unwrap();
    assert!(!again.applied);
    assert_eq!(again.version, 2);
    assert_eq!(store.stats().staleness.count, 2);
    assert_eq!(store.begin_task(3, 2).unwrap(), 2);
}

#[test]
fn a_lease_below_the_first_that_is_let_in_is_refused_by_every_call() {
    let store = declared(&sgd());
    store.refuse_leases_before(5);
    let earlier = |refused| matches!(refused, Err(StoreError::EarlierLease { first: 5, .. }));
    assert!(earlier(store.begin_task(3, 4).map(drop)));
    assert!(earlier(store.apply(&bare(3, 1, 0)).map(drop)));
    assert!(earlier(store.judge(3, 1, 0).map(drop)));
    assert!(earlier(store.skip(3, 1, 0)));
    assert!(store.apply(&bare(3, 5, 0)).unwrap().applied);
}

#[test]
fn an_old_lease_is_refused_by_every_call() {
    let store = declared(&sgd());
    store.begin_task(3, 5).unwrap();
    assert!(matches!(
        store.begin_task(3, 4),
        Err(StoreError::StaleLease {
            task: 3,
            lease: 4,
            current: 5
        })
    ));
    assert!(matches!(
        store.apply(&bare(3, 4, 0)),
        Err(StoreError::StaleLease { .. })
    ));
    assert!(matches!(
        store.skip(3, 4, 0),
        Err(StoreError::StaleLease { .. })
    ));
    assert_eq!(store.stats().version, 0);
    // Another task has leases of its own, and a push may be the first to show a newer one.
    assert!(store.apply(&bare(4, 1, 0)).unwrap().applied);
    assert!(store.apply(&bare(3, 6, 0)).unwrap().applied);
    assert!(matches!(
        store.begin_task(3, 5),
        Err(StoreError::StaleLease { .. })
    ));
}

#[test]
fn a_gap_is_refused_and_changes_nothing() {
    let store = declared(&sgd());
    assert!(matches!(
        store.apply(&bare(3, 1, 1)),
        Err(StoreError::Gap {
            task: 3,
            index: 1,
            expected: 0
        })
    ));
    assert!(matches!(store.skip(3, 1, 2), Err(StoreError::Gap { .. })));
    assert_eq!(store.stats().version, 0);
    assert_eq!(store.begin_task(3, 1).unwrap(), 0);
}

#[test]
fn a_skipped_minibatch_is_counted_without_records_or_update() {
    let store = declared(&sgd());
    store.apply(&bare(3, 1, 0)).unwrap();
    store.skip(3, 1, 1).unwrap();
    store.skip(3, 1, 1).unwrap();
    store.apply(&bare(3, 1, 2)).unwrap();
    let expected = TaskAudit {
        task: 3,
        next_index: 3,
        num_records: 20,
    };
    assert_eq!(store.audit(), [expected]);
    assert_eq!(store.stats().version, 2);
}

#[test]
fn arrays_that_do_not_fit_are_refused_before_anything_changes() {
    let store = declared(&sgd());
    let refused = |push: Push<'_>| store.apply(&push).unwrap_err().to_string();
    let grads =
        |table, keys: &'static [u64], grads: &'static [f32]| [TableGrads { table, keys, grads }];
    let good = grads(1, &[1], &[1.0])[0];
    let tables = [good, grads(0, &[1], &[1.0])[0]];
    let said = refused(Push {
        tables: &tables,
        ..bare(1, 1, 0)
    });
    assert!(
        said.contains("gradient of table 'user' has 1 elements, expected 16"),
        "{said}"
    );
    let tables = [good, grads(2, &[], &[])[0]];
    let said = refused(Push {
        tables: &tables,
        ..bare(1, 1, 0)
    });
    assert!(said.contains("no table 2: the model has 2"), "{said}");
    let said = refused(Push {
        tables: &[good],
        dense: &[1.0],
        ..bare(1, 1, 0)
    });
    assert!(
        said.contains("dense vector has 1 elements, expected 4"),
        "{said}"
    );
    let said = refused(Push {
        tables: &[good],
        state: &[],
        ..bare(1, 1, 0)
    });
    assert!(
        said.contains("state vector has 0 elements, expected 2"),
        "{said}"
    );
    let error = store
        .pull_rows(0, &[1], PullMode::Create, &mut [0.0; 15])
        .unwrap_err();
    assert!(matches!(error, StoreError::WrongLength { .. }));
    assert!(matches!(
        store.scan(7, 0, 10),
        Err(StoreError::UnknownTable { table: 7, .. })
    ));
    assert_eq!(store.stats().tables[1].rows, 0);
    assert_eq!(store.audit(), []);
}

#[test]
fn a_key_of_another_replica_is_refused() {
    let replicas = Replicas::declared(2, &sgd());
    let key = (0..).find(|&k| edl_store::replica_of(k, 2) == 1).unwrap();
    let error = replicas.0[0]
        .pull_rows(1, &[key], PullMode::ReadOnly, &mut [0.0])
        .unwrap_err();
    assert!(matches!(
        error,
        StoreError::WrongReplica {
            owner: 1,
            replica: 0,
            ..
        }
    ));
}

#[test]
fn staleness_is_the_updates_since_the_pull() {
    let store = declared(&sgd());
    for (index, pulled_version) in [0, 0, 2, 0, 9].into_iter().enumerate() {
        let push = Push {
            pulled_version,
            ..bare(1, 1, index as u32)
        };
        let expected = (index as u64).saturating_sub(pulled_version);
        assert_eq!(store.apply(&push).unwrap().staleness, expected);
    }
    let staleness = store.stats().staleness;
    assert_eq!((staleness.sum, staleness.max, staleness.count), (4, 3, 5));
    assert_eq!(staleness.histogram[..3], [3, 1, 1]);
    assert_eq!(staleness.histogram.iter().sum::<u64>(), 5);
}

#[test]
fn a_late_gradient_counts_less_if_asked() {
    let store = declared(&sgd());
    store.modulate_learning_rate();
    for (index, rate) in [0.5, 0.5, 0.25].into_iter().enumerate() {
        let before = dense_of(&store);
        store.apply(&bare(1, 1, index as u32)).unwrap();
        assert_eq!(before[0] - dense_of(&store)[0], rate, "staleness {index}");
    }
}

fn dense_of(store: &Store) -> [f32; 4] {
    let (mut dense, mut state) = ([0.0; 4], [0.0; 2]);
    store.pull_vectors(&mut dense, &mut state).unwrap();
    dense
}

#[test]
fn a_round_is_one_update_of_those_members_that_are_next() {
    let store = declared(&sgd());
    store.skip(2, 1, 0).unwrap();
    store.begin_task(3, 5).unwrap();
    let member = |task| RoundMember {
        task,
        lease: 1,
        index: 0,
        num_minibatches: 1,
        num_records: 7,
        pulled_version: 0,
    };
    let before = dense_of(&store);
    let (live, applied) = store
        .apply_round(&[member(1), member(2), member(3)], 1.0, |live| {
            assert_eq!(live, [true, false, false]);
            RoundGradient {
                dense: vec![1.0; 4],
                state: vec![0.0; 2],
                tables: vec![],
                weight: 1.0,
            }
        })
        .unwrap();
    assert_eq!((live, applied.version), (vec![true, false, false], 1));
    assert_eq!(before[0] - dense_of(&store)[0], 1.0);
    let again = store
        .apply_round(&[member(1)], 1.0, |_| unreachable!())
        .unwrap();
    assert!(!again.1.applied);
    assert_eq!(store.audit()[0].num_records, 7);
}

#[test]
fn several_minibatches_of_a_task_count_together() {
    let store = declared(&sgd());
    let member = RoundMember {
        task: 1,
        lease: 1,
        index: 0,
        num_minibatches: 3,
        num_records: 20,
        pulled_version: 0,
    };
    let gradient = |_: &[bool]| RoundGradient {
        dense: vec![1.0; 4],
        state: vec![0.0; 2],
        tables: vec![],
        weight: 1.0,
    };
    let (live, applied) = store.apply_round(&[member], 1.0, gradient).unwrap();
    assert_eq!((live, applied.version), (vec![true], 1));
    let audit = store.audit()[0];
    assert_eq!((audit.next_index, audit.num_records), (3, 20));
    assert_eq!(store.begin_task(1, 2).unwrap(), 3);
}

#[test]
fn several_minibatches_come_again_as_a_whole_or_not_at_all() {
    let store = declared(&sgd());
    let push = |index, num_minibatches| {
        let applied = store.apply_several(&bare(1, 1, index), num_minibatches)?;
        Ok::<_, StoreError>(applied.applied)
    };
    assert!(push(0, 4).unwrap());
    assert!(!push(0, 4).unwrap(), "all of them were applied before");
    assert!(!push(1, 3).unwrap(), "they are a part of what was applied");
    for (index, num_minibatches) in [(2, 4), (0, 5), (5, 1)] {
        let refused = push(index, num_minibatches).unwrap_err();
        assert!(
            matches!(refused, StoreError::Gap { expected: 4, .. }),
            "{refused}"
        );
    }
    let audit = store.audit()[0];
    assert_eq!((audit.next_index, store.version()), (4, 1));
}
