//! Weight decay of a part of the dense vector, and constraints of rows and variables.

use crate::common::{Grads, Replicas, WholePush, model, params, variable};
use edl_store::{ConstraintSpec, ModelSpec, PullMode, StoreError, VariableSpec};

fn non_neg() -> Option<ConstraintSpec> {
    Some(ConstraintSpec {
        kind: "non_neg".to_owned(),
        params: params(&[]),
    })
}

fn norm(min: f64, max: f64) -> Option<ConstraintSpec> {
    Some(ConstraintSpec {
        kind: "norm".to_owned(),
        params: params(&[("min", min), ("max", max), ("rate", 1.0), ("epsilon", 1e-7)]),
    })
}

/// Three variables over 100 floats: one is not negative, one does not decay.
fn of_three_variables(kind: &str) -> ModelSpec {
    let at = |name, offset, len| VariableSpec {
        offset,
        ..variable(name, len)
    };
    let mut spec = model(kind, 0, 2);
    spec.optimizer.params = params(&[("weight_decay", 0.5)]);
    spec.dense = vec![
        VariableSpec {
            constraint: non_neg(),
            ..at("first", 0, 30)
        },
        VariableSpec {
            decays: false,
            ..at("second", 30, 45)
        },
        at("third", 75, 25),
    ];
    spec
}

fn push(keys: &[u64], grads: Vec<f32>, dense: f32, index: u32) -> WholePush {
    let keys = keys.to_vec();
    WholePush {
        index,
        tables: vec![Grads::of(0, keys, grads)],
        dense: vec![dense; 100],
        state: vec![0.0; 2],
        ..WholePush::default()
    }
}

#[test]
fn variables_decay_and_are_held_each_as_it_says_wherever_they_are_split() {
    for num_replicas in [1, 3, 5] {
        let replicas = Replicas::declared(num_replicas, &of_three_variables("sgd"));
        replicas.push(&push(&[], vec![], 5.0, 0)).unwrap();
        let (dense, _) = replicas.vectors();
        for (i, w) in dense.iter().enumerate() {
            let before = i as f32 / 8.0;
            let decayed = before - before * 0.5 * 0.5;
            let expected = match i {
                0..30 => (decayed - 2.5).max(0.0),
                30..75 => before - 2.5,
                _ => decayed - 2.5,
            };
            assert_eq!(*w, expected, "{i} of {num_replicas} replicas");
        }
    }
}

#[test]
fn a_restored_store_decays_and_holds_the_same_variables() {
    let spec = of_three_variables("schedule_free_adamw");
    let [whole, split] = [1, 3].map(|count| Replicas::declared(count, &spec));
    let dir = tempfile::tempdir().unwrap();
    whole.push(&push(&[], vec![], 5.0, 0)).unwrap();
    split.push(&push(&[], vec![], 5.0, 0)).unwrap();
    whole.checkpoint(dir.path());
    let restored = Replicas::restore(dir.path(), 2, true).unwrap();
    for replicas in [&restored, &split] {
        replicas.push(&push(&[], vec![], 3.0, 1)).unwrap();
    }
    assert_eq!(restored.vectors(), split.vectors());
}

#[test]
fn rows_keep_their_constraint_from_their_creation_on() {
    let length = |row: &[f32]| row.iter().map(|w| w * w).sum::<f32>().sqrt();
    let mut spec = model("adam", 100, 2);
    spec.tables[0].constraint = norm(1.0, 1.0);
    for num_replicas in [1, 2] {
        let replicas = Replicas::declared(num_replicas, &spec);
        let keys = [3, 4, 5];
        let fresh = replicas.pull(0, 16, &keys, PullMode::Create);
        // Key 6 is created by its gradient.
        let all = [3, 4, 5, 6];
        let grads = (0..64).map(|i| i as f32 - 20.0).collect();
        replicas.push(&push(&all, grads, 0.0, 0)).unwrap();
        let updated = replicas.pull(0, 16, &all, PullMode::ReadOnly);
        for row in fresh.chunks(16).chain(updated.chunks(16)) {
            assert!((length(row) - 1.0).abs() < 1e-5, "{row:?}");
        }
        assert_ne!(fresh[..16], updated[..16]);
    }
}

#[test]
fn slots_that_begin_as_the_weights_begin_as_the_constrained_ones() {
    let mut spec = model("schedule_free_adamw", 100, 2);
    spec.tables[0].constraint = norm(0.0, 0.01);
    let replicas = Replicas::declared(1, &spec);
    let fresh = replicas.pull(0, 16, &[3], PullMode::Create);
    replicas.push(&push(&[3], vec![0.0; 16], 0.0, 0)).unwrap();
    let updated = replicas.pull(0, 16, &[3], PullMode::ReadOnly);
    for (fresh, updated) in fresh.iter().zip(&updated) {
        assert!((fresh - updated).abs() < 1e-6);
    }
}

#[test]
fn a_constraint_that_cannot_be_is_refused_by_name() {
    let said = |spec: &ModelSpec| match Replicas(vec![edl_store::Store::new(0, 1)]).declare(spec) {
        Err(StoreError::BadModel(said)) => said,
        other => panic!("{other:?}"),
    };
    let mut spec = model("sgd", 4, 2);
    spec.dense[0].constraint = norm(0.0, 2.0);
    assert_eq!(
        said(&spec),
        "dense variable 'kernel': constraint 'norm' needs the whole variable, which may be split; \
         expected non_neg"
    );
    let mut spec = model("sgd", 4, 2);
    spec.tables[0].constraint = norm(3.0, 2.0);
    assert_eq!(
        said(&spec),
        "table 'user': constraint 'norm' needs min of at most max, found 3 and 2"
    );
    spec.tables[0].constraint.as_mut().unwrap().params = params(&[("axis", 0.0)]);
    assert!(said(&spec).contains("constraint 'norm' has no setting 'axis'"));
    spec.tables[0].constraint.as_mut().unwrap().kind = "orthogonal".to_owned();
    assert!(said(&spec).contains("unknown constraint 'orthogonal'; known are non_neg, norm"));
}

#[test]
fn workers_that_differ_in_a_constraint_or_a_decay_are_told() {
    let declared = Replicas::declared(1, &of_three_variables("sgd"));
    let differs = |edit: &dyn Fn(&mut ModelSpec)| {
        let mut spec = of_three_variables("sgd");
        edit(&mut spec);
        declared.declare(&spec).unwrap_err().to_string()
    };
    assert!(
        differs(&|spec| spec.tables[0].constraint = norm(0.0, 2.0))
            .contains("table 'user' has constraint norm(epsilon=")
    );
    assert!(differs(&|spec| spec.dense[1].decays = true).contains(
        "dense variable 'second' has trainable=true, momentum=1, the weight decay and no \
         constraint here, trainable=true, momentum=1, no weight decay and no constraint was declared"
    ));
}
