//! Facts about what an update leaves alone, and what it makes of state.

use std::collections::VecDeque;

use crate::common::{Grads, Replicas, WholePush, constant, model, optimizer, table, variable};
use edl_store::{ModelSpec, OptimizerSpec, PullMode, StoreError, VariableSpec};

fn decaying() -> OptimizerSpec {
    let names = ["beta_1", "beta_2", "epsilon", "amsgrad", "weight_decay"];
    let values = [0.9, 0.999, 1e-7, 0.0, 0.1];
    OptimizerSpec {
        kind: "adamw".to_owned(),
        params: names.iter().map(|n| (*n).to_owned()).zip(values).collect(),
        program: None,
    }
}

/// Two tables and two dense variables; of each the second is not trained.
fn half_frozen(rule: OptimizerSpec) -> ModelSpec {
    let mut spec = model("sgd", 0, 0);
    spec.tables = vec![
        table("trained", 2, "sgd", constant(1.0)),
        table("frozen", 2, "sgd", constant(1.0)),
    ];
    spec.tables[1].trainable = false;
    for table in &mut spec.tables {
        table.optimizer = rule.clone();
    }
    spec.optimizer = rule;
    spec.dense = vec![variable("trained", 5), variable("frozen", 6)];
    spec.dense[1].offset = 5;
    spec.dense[1].trainable = false;
    spec
}

fn push(index: u32, grad: f32, state: Vec<f32>) -> WholePush {
    let grads = |table| Grads::of(table, vec![3, 4], vec![grad; 4]);
    WholePush {
        task: 0,
        lease: 1,
        index,
        learning_rate: 0.1,
        tables: vec![grads(0), grads(1)],
        dense: vec![grad; 11],
        state,
    }
}

#[test]
fn what_is_not_trained_is_created_and_keeps_its_values_under_every_optimizer() {
    let mut rules: Vec<OptimizerSpec> = ["sgd", "momentum", "adagrad", "adam", "ftrl", "rmsprop"]
        .map(optimizer)
        .into();
    rules.push(decaying());
    for rule in rules {
        let replicas = Replicas::declared(3, &half_frozen(rule.clone()));
        for store in &replicas.0 {
            store.begin_task(0, 1).unwrap();
        }
        let before = replicas.vectors().0;
        for table in 0..2 {
            let rows = replicas.pull(table, 2, &[3, 4], PullMode::Create);
            assert_eq!(rows, [1.0; 4]);
        }
        for (index, grad) in [0.5, 0.0, -2.0].into_iter().enumerate() {
            replicas.push(&push(index as u32, grad, vec![])).unwrap();
        }
        let after = replicas.vectors().0;
        assert_ne!(before[..5], after[..5], "{rule:?}");
        assert_eq!(before[5..], after[5..], "{rule:?}");
        assert_ne!(replicas.scan(0, 2, 9)[&3], [1.0, 1.0], "{rule:?}");
        assert_eq!(replicas.scan(1, 2, 9)[&3], [1.0, 1.0], "{rule:?}");
    }
}

fn moving(momentum: f64) -> ModelSpec {
    let mut spec = model("sgd", 0, 0);
    spec.dense = vec![];
    spec.tables = vec![];
    spec.state = vec![
        VariableSpec {
            momentum,
            ..variable("mean", 5)
        },
        VariableSpec {
            offset: 5,
            ..variable("count", 2)
        },
    ];
    spec
}

/// What each of many minibatches would make of the mean.
fn seen(minibatch: u32) -> f32 {
    100.0 + (minibatch % 17) as f32
}

#[test]
fn moving_averages_end_as_sequential_ones_however_late_their_changes_come() {
    for (momentum, staleness) in [0.9_f32, 0.99]
        .into_iter()
        .flat_map(|m| [0, 16, 256].map(|s| (m, s)))
    {
        let mut replicas = Replicas::declared(2, &moving(f64::from(momentum)));
        let mut sequential = vec![0.0_f32; 5];
        sequential.copy_from_slice(&replicas.vectors().1[..5]);
        for store in &replicas.0 {
            store.begin_task(0, 1).unwrap();
        }
        let mut late = VecDeque::new();
        for minibatch in 0..2000 {
            let old = replicas.vectors().1;
            let new = |old: f32| momentum * old + (1.0 - momentum) * seen(minibatch);
            let change = old.iter().map(|&old| new(old) - momentum * old);
            late.push_back(change.take(5).chain([1.0, 1.0]).collect::<Vec<_>>());
            for value in &mut sequential {
                *value = new(*value);
            }
            if minibatch == 1000 {
                // Another number of replicas goes on from a checkpoint.
                let dir = tempfile::tempdir().unwrap();
                replicas.checkpoint(dir.path());
                replicas = Replicas::restore(dir.path(), 3, true).unwrap();
            }
            if late.len() > staleness {
                let index = minibatch - staleness as u32;
                let change = late.pop_front().unwrap();
                let mut push = push(index, 0.0, change);
                (push.tables, push.dense) = (vec![], vec![]);
                replicas.push(&push).unwrap();
                replicas.push(&push).unwrap(); // a repeated one changes nothing
            }
        }
        for (index, change) in (2000 - late.len() as u32..).zip(late) {
            let mut push = push(index, 0.0, change);
            (push.tables, push.dense) = (vec![], vec![]);
            replicas.push(&push).unwrap();
        }
        let state = replicas.vectors().1;
        for (value, expected) in state.iter().zip(&sequential) {
            let error = (value - expected).abs();
            assert!(error < 0.01, "{momentum}, {staleness}: {value}, {expected}");
        }
        // It began at 5/8 and 6/8.
        assert_eq!(state[5..], [2000.625, 2000.75]);
    }
}

#[test]
fn the_first_to_declare_after_a_restore_says_what_is_trained_and_the_others_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let spec = moving(0.9);
    Replicas::declared(2, &spec).checkpoint(dir.path());
    let restored = Replicas::restore(dir.path(), 1, true).unwrap();
    restored.declare(&moving(0.99)).unwrap();
    let said = restored.declare(&spec).unwrap_err();
    let StoreError::ModelMismatch(said) = said else {
        panic!("{said}")
    };
    assert!(said.contains("'mean' has trainable=true, momentum=0.9,"));
    assert!(said.contains("here, trainable=true, momentum=0.99,"));
    assert!(said.contains("do all workers run the same model?"));
    assert_eq!(*restored.0[0].model().unwrap(), moving(0.99));
    let mut other = moving(0.99);
    other.state[1].name = "other".to_owned();
    let restored = Replicas::restore(dir.path(), 1, true).unwrap();
    let said = restored.declare(&other).unwrap_err().to_string();
    assert!(said.contains("the checkpoint belongs to another model"));
}
