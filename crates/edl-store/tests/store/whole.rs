//! Facts about one store: declaring, pulling, scanning, and what its rows take.

use crate::common::{
    Grads, Replicas, WholePush, bare, constant, declared, grads_of, params, pull, ramp, sgd, table,
    uniform, variable, write_manifest,
};
use edl_store::{Clip, InitializerSpec, ModelSpec, PullMode, Push, Store, StoreError, TableGrads};

#[test]
fn python_json_of_a_model_is_read() {
    let json = r#"{"tables": [{"name": "user", "dim": 8,
        "initializer": {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}},
        "optimizer": {"kind": "adagrad", "params": {"epsilon": 1e-07}}, "input_dim": null}],
        "dense": [{"name": "kernel", "shape": [3, 4], "offset": 0},
                  {"name": "bias", "shape": [], "offset": 12}],
        "state": [], "optimizer": {"kind": "sgd", "params": {}}, "seed": 3}"#;
    let spec = ModelSpec::from_json(json).unwrap();
    assert_eq!(spec.tables[0].dim, 8);
    assert_eq!(spec.dense_len().unwrap(), 13);
    let clipped = |limit: &str| {
        let clip = format!(r#""seed": 3, "clip": {{"kind": "global_norm", "limit": {limit}}}"#);
        ModelSpec::from_json(&json.replace(r#""seed": 3"#, &clip))
    };
    let limit = Some(Clip::GlobalNorm { limit: 0.5 });
    assert_eq!(clipped("0.5").unwrap().clip, limit);
    let said = clipped("-1.0").unwrap_err().to_string();
    assert!(said.contains("clipped to -1, expected a number above 0"));
    let again = ModelSpec::from_json(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(again, spec);
}

#[test]
fn nothing_is_answered_before_a_model_is_declared() {
    let store = Store::new(0, 1);
    let error = store.pull_vectors(&mut [], &mut []).unwrap_err();
    assert!(matches!(error, StoreError::NotDeclared(_)));
    assert!(store.model().is_none());
    assert!(store.audit().is_empty());
    assert_eq!(store.stats().version, 0);
}

#[test]
fn first_declaration_gives_the_values_and_later_ones_do_not() {
    let store = declared(&sgd());
    store.declare(sgd(), &[9.0; 4], &[9.0; 2]).unwrap();
    let (mut dense, mut state) = ([0.0; 4], [0.0; 2]);
    assert_eq!(store.pull_vectors(&mut dense, &mut state).unwrap(), 0);
    assert_eq!(dense.to_vec(), ramp(4));
    assert_eq!(state.to_vec(), ramp(2));
}

#[test]
fn a_model_that_differs_is_refused_and_the_difference_named() {
    let store = declared(&sgd());
    let refused = |change: &dyn Fn(&mut ModelSpec)| {
        let mut spec = sgd();
        change(&mut spec);
        match store.declare(spec, &ramp(4), &ramp(2)).unwrap_err() {
            StoreError::ModelMismatch(said) => said,
            other => panic!("{other}"),
        }
    };
    assert_eq!(
        refused(&|m| m.tables[0].dim = 32),
        "table 'user' has dim 32 here, 16 was declared; do all workers run the same model?"
    );
    assert!(refused(&|m| m.tables[1].name = "w".to_owned()).contains("'w' here, 'linear'"));
    assert!(refused(&|m| m.tables[1].optimizer.kind = "adam".to_owned()).contains("adam()"));
    assert!(refused(&|m| m.tables[0].initializer = constant(1.0)).contains("constant(value=1)"));
    assert!(refused(&|m| m.tables[0].input_dim = Some(3)).contains("input_dim 3"));
    assert!(refused(&|m| m.dense[0].shape = vec![2, 2]).contains("'kernel' has shape [2, 2]"));
    assert!(refused(&|m| m.state.clear()).contains("0 state variables here, 1"));
    assert!(refused(&|m| m.optimizer.kind = "ftrl".to_owned()).contains("the model has optimizer"));
    let clip = |m: &mut ModelSpec| m.clip = Some(Clip::Norm { limit: 2.0 });
    assert!(refused(&clip).contains("clipped by Norm { limit: 2.0 } here, not clipped was"));
    assert!(refused(&|m| m.seed = 8).contains("seed is 8 here, 7"));
}

#[test]
fn a_model_that_cannot_be_is_refused() {
    let refused = |change: &dyn Fn(&mut ModelSpec)| {
        let mut spec = sgd();
        change(&mut spec);
        Store::new(0, 1)
            .declare(spec, &ramp(4), &ramp(2))
            .unwrap_err()
            .to_string()
    };
    assert!(refused(&|m| m.tables[0].dim = 0).contains("dim is 0"));
    assert!(refused(&|m| m.tables[0].dim = u32::MAX).contains("expected dim"));
    let kind = |m: &mut ModelSpec| m.tables[0].optimizer.kind = "lamb".to_owned();
    assert!(refused(&kind).contains("table 'user': unknown optimizer 'lamb'; known are sgd"));
    let setting = |m: &mut ModelSpec| m.optimizer.params = params(&[("epsilon", 1.0)]);
    assert!(refused(&setting).contains("'sgd' has no setting 'epsilon'"));
    let initializer = |m: &mut ModelSpec| m.tables[0].initializer.kind = "glorot".to_owned();
    assert!(refused(&initializer).contains("unknown initializer 'glorot'"));
    assert!(refused(&|m| m.dense[0].offset = 1).contains("offset 1, expected 0"));
    assert!(refused(&|m| m.dense[0].shape = vec![u64::MAX, 2]).contains("too large"));
    assert!(refused(&|m| m.dense[0].shape = vec![5]).contains("4 elements, expected 5"));
    let store = Store::new(2, 2);
    assert!(matches!(
        store.declare(sgd(), &ramp(4), &ramp(2)),
        Err(StoreError::BadReplica { .. })
    ));
}

#[test]
fn pull_creates_rows_in_training_and_not_in_evaluation() {
    let store = declared(&sgd());
    assert_eq!(pull(&store, 0, 16, &[1, 2], PullMode::ReadOnly), [0.0; 32]);
    assert_eq!(store.stats().tables[0].rows, 0);
    let rows = pull(&store, 0, 16, &[2, 1], PullMode::Create);
    assert!(rows.iter().all(|x| x.abs() <= 0.05 && *x != 0.0));
    assert_eq!(store.stats().tables[0].rows, 2);
    let found = pull(&store, 0, 16, &[2, 3, 1], PullMode::ReadOnly);
    assert_eq!((&found[..16], &found[32..]), (&rows[..16], &rows[16..]));
    assert_eq!(found[16..32], [0.0; 16]);
}

#[test]
fn a_missing_row_reads_as_the_initializers_centre() {
    let kinds = [
        ("constant", params(&[("value", 3.0)]), 3.0),
        ("uniform", params(&[("low", 1.0), ("high", 2.0)]), 1.5),
        ("normal", params(&[("mean", 4.0), ("stddev", 2.0)]), 4.0),
        (
            "truncated_normal",
            params(&[("mean", 5.0), ("stddev", 2.0)]),
            5.0,
        ),
    ];
    for (kind, params, centre) in kinds {
        let kind = kind.to_owned();
        let mut spec = sgd();
        spec.tables = vec![table("t", 3, "sgd", InitializerSpec { kind, params })];
        let store = declared(&spec);
        assert_eq!(pull(&store, 0, 3, &[5], PullMode::ReadOnly), [centre; 3]);
    }
}

#[test]
fn initial_values_depend_on_seed_table_and_key_alone() {
    let keys: Vec<u64> = (0..500).collect();
    let one = Replicas::declared(1, &sgd());
    let eight = Replicas::declared(8, &sgd());
    let rows = one.pull(0, 16, &keys, PullMode::Create);
    let backwards: Vec<u64> = keys.iter().rev().copied().collect();
    eight.pull(0, 16, &backwards, PullMode::Create);
    assert_eq!(eight.pull(0, 16, &keys, PullMode::Create), rows);
    let mut other = sgd();
    other.seed = 8;
    assert_ne!(
        Replicas::declared(1, &other).pull(0, 16, &keys, PullMode::Create),
        rows
    );
    other.seed = 7;
    other.tables[0].name = "item".to_owned();
    assert_ne!(
        Replicas::declared(1, &other).pull(0, 16, &keys, PullMode::Create),
        rows
    );
}

/// Mean, standard deviation, least and greatest of many initial values.
fn moments(initializer: InitializerSpec) -> (f64, f64, f64, f64) {
    let mut spec = sgd();
    spec.tables = vec![table("t", 16, "sgd", initializer)];
    let keys: Vec<u64> = (0..20_000).collect();
    let rows = pull(&declared(&spec), 0, 16, &keys, PullMode::Create);
    let n = rows.len() as f64;
    let mean = rows.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let square = rows
        .iter()
        .map(|&x| (f64::from(x) - mean).powi(2))
        .sum::<f64>()
        / n;
    let least = rows.iter().copied().fold(f32::INFINITY, f32::min);
    let greatest = rows.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (mean, square.sqrt(), f64::from(least), f64::from(greatest))
}

#[test]
fn initial_values_have_their_distribution() {
    let (mean, deviation, least, greatest) = moments(uniform());
    assert!(mean.abs() < 3e-4 && (deviation - 0.1 / 12f64.sqrt()).abs() < 1e-4);
    assert!((-0.05..-0.0499).contains(&least) && (0.0499..=0.05).contains(&greatest));

    let normal = |kind: &str| InitializerSpec {
        kind: kind.to_owned(),
        params: params(&[("mean", 1.0), ("stddev", 2.0)]),
    };
    let (mean, deviation, least, greatest) = moments(normal("normal"));
    assert!((mean - 1.0).abs() < 0.02 && (deviation - 2.0).abs() < 0.02);
    assert!(least < -6.5 && greatest > 8.5);

    // A normal cut at two deviations has 0.8796 of its deviation.
    let (mean, deviation, least, greatest) = moments(normal("truncated_normal"));
    assert!((mean - 1.0).abs() < 0.02 && (deviation - 2.0 * 0.879_63).abs() < 0.02);
    assert!((-3.0..-2.95).contains(&least) && (4.95..=5.0).contains(&greatest));
}

#[test]
fn a_scan_returns_each_row_once_while_others_are_created() {
    let store = declared(&sgd());
    let first: Vec<u64> = (0..5000).collect();
    let rows = pull(&store, 0, 16, &first, PullMode::Create);
    let mut seen = std::collections::BTreeMap::new();
    let (mut cursor, mut next_key) = (Some(0), 1_000_000);
    while let Some(from) = cursor {
        let chunk = store.scan(0, from, 100).unwrap();
        for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(16)) {
            assert!(seen.insert(key, row.to_vec()).is_none());
        }
        cursor = chunk.next;
        let new: Vec<u64> = (next_key..next_key + 100).collect();
        next_key += 100;
        pull(&store, 0, 16, &new, PullMode::Create);
    }
    for (key, row) in first.iter().zip(rows.chunks_exact(16)) {
        assert_eq!(seen[key], row);
    }
}

#[test]
fn rows_of_every_width_keep_their_values() {
    for dim in [1, 2, 3, 5, 8, 11, 16, 17, 32, 64, 100] {
        let mut spec = sgd();
        spec.tables = vec![table("t", dim, "adam", constant(1.0))];
        let replicas = Replicas::declared(1, &spec);
        let dim = dim as usize;
        let keys: Vec<u64> = (0..2000).map(|k| k * 977).collect();
        let grads: Vec<f32> = (0..keys.len() * dim)
            .map(|i| (i % 13) as f32 - 6.0)
            .collect();
        let push = WholePush {
            task: 0,
            learning_rate: 0.1,
            tables: vec![Grads::of(0, keys.clone(), grads.clone())],
            dense: vec![0.0; 4],
            state: vec![0.0; 2],
            ..WholePush::default()
        };
        replicas.push(&push).unwrap();
        for (grad, row) in grads
            .iter()
            .zip(replicas.pull(0, dim, &keys, PullMode::ReadOnly))
        {
            let expected = if *grad == 0.0 {
                1.0
            } else {
                1.0 - 0.1 * grad.signum()
            };
            assert!(
                (row - expected).abs() < 1e-4,
                "dim {dim}: {row}, expected {expected}"
            );
        }
    }
}

#[test]
fn rows_take_few_bytes_at_every_size() {
    let mut spec = sgd();
    spec.tables[0].optimizer.kind = "adagrad".to_owned();
    let store = declared(&spec);
    for step in 1..=60_u64 {
        let keys: Vec<u64> = ((step - 1) * 5000..step * 5000).collect();
        pull(&store, 0, 16, &keys, PullMode::Create);
        let wide = store.stats().tables[0].bytes.div_ceil(step * 5000);
        assert!(wide <= 160, "{wide} bytes a row at {} rows", step * 5000);
    }
}

#[test]
fn stats_count_rows_and_bytes() {
    let mut spec = sgd();
    spec.dense = vec![variable("kernel", 1000)];
    spec.tables[0].optimizer.kind = "adagrad".to_owned();
    let store = declared(&spec);
    let keys: Vec<u64> = (0..100_000).collect();
    pull(&store, 0, 16, &keys, PullMode::Create);
    pull(&store, 1, 1, &keys, PullMode::Create);
    let stats = store.stats();
    assert_eq!(stats.tables[0].rows, 100_000);
    let wide = stats.tables[0].bytes / 100_000;
    let narrow = stats.tables[1].bytes / 100_000;
    assert!((128 + 16..=160).contains(&wide), "{wide}");
    assert!((4 + 16..=40).contains(&narrow), "{narrow}");
    let tables = stats.tables[0].bytes + stats.tables[1].bytes;
    assert_eq!(stats.resident_bytes, tables + 1002 * 4);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["tables"][0]["name"], "user");
}

#[test]
fn training_pulls_count_keys_and_those_that_had_a_row() {
    let store = declared(&sgd());
    pull(&store, 0, 16, &[1, 2, 3], PullMode::Create);
    pull(&store, 0, 16, &[2, 3, 4, 5], PullMode::Create);
    pull(&store, 0, 16, &[1, 9], PullMode::ReadOnly);
    let stats = store.stats();
    assert_eq!((stats.tables[0].pulled, stats.tables[0].found), (7, 2));
    assert_eq!((stats.tables[1].pulled, stats.tables[1].found), (0, 0));
}

#[test]
fn a_memory_limit_refuses_new_rows_and_serves_those_that_exist() {
    let store = declared(&sgd());
    let keys: Vec<u64> = (0..50_000).collect();
    pull(&store, 0, 16, &keys, PullMode::Create);
    let bytes = store.stats().tables[0].bytes;
    store.set_memory_limit(Some(bytes + 100_000));
    let more: Vec<u64> = (40_000..60_000).collect();
    let mut out = vec![0.0; more.len() * 16];
    let error = store
        .pull_rows(0, &more, PullMode::Create, &mut out)
        .unwrap_err();
    let said = error.to_string();
    assert!(
        matches!(
            error,
            StoreError::MemoryLimit {
                rows: 50_000,
                new_rows: 10_000,
                ..
            }
        ),
        "{said}"
    );
    for part in [
        "'user'",
        "--ps_memory_limit",
        "--num_ps_pods",
        "10000",
        "50000",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let ones = vec![1.0; keys.len() * 16];
    let tables = [grads_of(0, &more, &ones[..more.len() * 16])];
    let refused = store.apply(&push_of(0, &tables));
    assert!(matches!(refused, Err(StoreError::MemoryLimit { .. })));
    assert_eq!(store.stats().tables[0].rows, 50_000);
    assert_eq!(store.stats().version, 0);
    pull(&store, 0, 16, &keys, PullMode::Create);
    let tables = [grads_of(0, &keys, &ones)];
    assert!(store.apply(&push_of(0, &tables)).unwrap().applied);
    // A few rows still fit.
    pull(
        &store,
        0,
        16,
        &(50_000..50_100).collect::<Vec<_>>(),
        PullMode::Create,
    );
    store.set_memory_limit(None);
    pull(&store, 0, 16, &more, PullMode::Create);
}

#[test]
fn a_restored_store_counts_its_rows_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let store = declared(&sgd());
    let keys: Vec<u64> = (0..20_000).collect();
    pull(&store, 0, 16, &keys, PullMode::Create);
    let entry = store.checkpoint(dir.path()).unwrap();
    write_manifest(dir.path(), &[entry]);
    let store = Store::restore(dir.path(), 0, 1, true).unwrap();
    store.set_memory_limit(Some(1_000_000));
    pull(&store, 0, 16, &keys, PullMode::Create);
    let mut out = [0.0; 16];
    let refused = store.pull_rows(0, &[77_777], PullMode::Create, &mut out);
    assert!(matches!(refused, Err(StoreError::MemoryLimit { .. })));
}

fn push_of<'a>(index: u32, tables: &'a [TableGrads<'a>]) -> Push<'a> {
    Push {
        tables,
        ..bare(1, 1, index)
    }
}
