//! The sparse life cycle: any number of replicas decides as a plain model does.

use crate::common::moving::Move;
use crate::common::{Grads, Replicas, WholePush, constant, model, params, table, uniform};
use edl_store::{AdmissionSpec, ExpirySpec, ModelSpec, PullMode, Store};
use proptest::prelude::*;

use self::plain::{Plain, Row};

mod plain;

const DAY: u64 = 86_400;
const NUM_TABLES: usize = 4;
const DIMS: [usize; NUM_TABLES] = [3, 2, 1, 1];
const COUNT: u32 = 3;
const STEPS: u64 = 6;
const PROBABILITY: f64 = 0.3;
const MIN_NORM: f64 = 0.2;
const GRACE: u64 = 4;
const SKETCH_COUNT: u8 = 2;

fn admission(kind: &str, values: &[(&str, f64)]) -> Option<AdmissionSpec> {
    Some(AdmissionSpec {
        kind: kind.to_owned(),
        params: params(values),
    })
}

/// A table for each way to come and each way to go. The sketch has one cell for each slot, so
/// that what it counts can be told.
fn spec() -> ModelSpec {
    let mut spec = model("adagrad", 0, 0);
    let mut tables = vec![
        table("count", 3, "adagrad", uniform()),
        table("probability", 2, "adagrad", constant(0.125)),
        table("sketch", 1, "adagrad", constant(0.5)),
        table("everybody", 1, "adagrad", constant(0.0)),
    ];
    tables[0].admission = admission("count", &[("count", f64::from(COUNT))]);
    tables[1].admission = admission("probability", &[("probability", PROBABILITY)]);
    let sketch = [("count", f64::from(SKETCH_COUNT)), ("bytes", 262_144.0)];
    tables[2].admission = admission("sketch", &sketch);
    tables[0].expiry = Some(ExpirySpec {
        steps: Some(STEPS),
        ..ExpirySpec::default()
    });
    tables[1].expiry = Some(ExpirySpec {
        min_norm: Some(MIN_NORM),
        grace_steps: Some(GRACE),
        ..ExpirySpec::default()
    });
    tables[3].expiry = Some(ExpirySpec {
        days: Some(1.0),
        ..ExpirySpec::default()
    });
    spec.tables = tables;
    spec
}

#[derive(Debug, Clone)]
enum Call {
    Pull {
        keys: Vec<u64>,
        mode: PullMode,
    },
    Push {
        keys: Vec<u64>,
        grad: f32,
    },
    PushAgain,
    Expire {
        hours: u64,
    },
    /// Write a checkpoint of all rows: the base of the next ones.
    Whole,
    Restore {
        count: u32,
    },
    /// Begin to move to so many replicas, or copy what has changed since.
    Copy {
        count: u32,
    },
    /// Go over to those of the move that has begun.
    GoOver,
}

fn keys() -> impl Strategy<Value = Vec<u64>> {
    let few = prop::collection::btree_set(0_u64..60, 0..30);
    let many =
        (0_u64..100, 1_usize..2000).prop_map(|(first, n)| (first..first + n as u64).collect());
    prop_oneof![6 => few, 1 => many].prop_map(|keys| keys.into_iter().collect())
}

fn call() -> impl Strategy<Value = Call> {
    let mode = prop_oneof![Just(PullMode::Create), Just(PullMode::ReadOnly)];
    prop_oneof![
        2 => (keys(), mode).prop_map(|(keys, mode)| Call::Pull { keys, mode }),
        6 => (keys(), -4_i8..=4)
            .prop_map(|(keys, grad)| Call::Push { keys, grad: f32::from(grad) / 4.0 }),
        1 => Just(Call::PushAgain),
        2 => (0_u64..30).prop_map(|hours| Call::Expire { hours }),
        1 => Just(Call::Whole),
        1 => (1_u32..6).prop_map(|count| Call::Restore { count }),
        2 => (1_u32..6).prop_map(|count| Call::Copy { count }),
        2 => Just(Call::GoOver),
    ]
}

fn whole_push(index: u32, keys: &[u64], grad: f32) -> WholePush {
    let tables = (0..NUM_TABLES).map(|table| {
        Grads::of(
            table as u32,
            keys.to_vec(),
            (0..keys.len() * DIMS[table])
                .map(|i| grad + (i % 3) as f32 / 4.0)
                .collect(),
        )
    });
    WholePush {
        index,
        learning_rate: 0.125,
        tables: tables.collect(),
        ..WholePush::default()
    }
}

/// Replicas that make the same calls as the plain model.
struct Run {
    replicas: Replicas,
    /// Gradients dropped by replicas that were restored since.
    dropped: u64,
    checkpoints: tempfile::TempDir,
    num_checkpoints: usize,
    /// The folder of the last one with all rows.
    base: Option<String>,
    moving: Option<Move>,
}

impl Run {
    fn new(count: u32) -> Self {
        Self {
            replicas: Replicas::declared(count, &spec()),
            dropped: 0,
            checkpoints: tempfile::tempdir().unwrap(),
            num_checkpoints: 0,
            base: None,
            moving: None,
        }
    }

    fn next_folder(&mut self) -> String {
        self.num_checkpoints += 1;
        format!("checkpoint-{}", self.num_checkpoints)
    }

    fn write_whole(&mut self) {
        let folder = self.next_folder();
        self.replicas
            .checkpoint(&self.checkpoints.path().join(&folder));
        self.base = Some(folder);
    }

    fn sum(&self, of: impl Fn(&edl_store::TableStats) -> u64) -> u64 {
        let stats = self.replicas.0.iter().map(Store::stats);
        stats.map(|s| s.tables.iter().map(&of).sum::<u64>()).sum()
    }

    fn dropped(&self) -> u64 {
        self.dropped + self.sum(|table| table.dropped)
    }

    fn restore(&mut self, count: u32) {
        self.dropped = self.dropped();
        let folder = self.next_folder();
        let dir = self.checkpoints.path().join(folder);
        match &self.base {
            Some(base) => drop(self.replicas.checkpoint_since(base, &dir)),
            None => self.replicas.checkpoint(&dir),
        }
        self.replicas = Replicas::restore(&dir, count, true).unwrap();
        self.moving = None;
    }

    fn copy(&mut self, count: u32) {
        let begun = self.moving.take();
        let mut moving = begun.unwrap_or_else(|| Move::to(count, &self.replicas));
        // If rows have gone meanwhile it is given up.
        self.moving = moving.copy(&self.replicas).map(|_| moving);
    }

    fn go_over(&mut self) {
        self.copy(1);
        if let Some(moving) = self.moving.take() {
            self.dropped = self.dropped();
            self.replicas = moving.end(&self.replicas);
            self.base = None;
        }
    }

    fn expire(&self, now: u64) -> (u64, u64) {
        let stores = self.replicas.0.iter();
        let expired = stores.flat_map(|store| store.expire(now).unwrap());
        expired.fold((0, 0), |sum, e| (sum.0 + e.rows, sum.1 + e.candidates))
    }

    fn assert_equals(&self, plain: &Plain) {
        for (table, rows) in plain.tables.iter().enumerate() {
            let dim = DIMS[table];
            let weights = |(&key, row): (&u64, &Row)| (key, row.values[..dim].to_vec());
            let expected = rows.iter().map(weights).collect();
            assert_eq!(self.replicas.scan(table as u32, dim, 777), expected);
        }
        assert_eq!(self.sum(|t| t.rows), plain.num_rows());
        assert_eq!(self.sum(|t| t.candidates), plain.candidates.len() as u64);
        assert_eq!(self.dropped(), plain.dropped);
    }
}

fn check(calls: Vec<Call>) {
    let mut plain = Plain::new();
    let mut runs = [1, 3, 8].map(Run::new);
    let (mut index, mut now, mut last) = (0, 40 * DAY, None);
    for call in calls {
        match call {
            Call::Pull { keys, mode } => {
                for (table, &dim) in DIMS.iter().enumerate() {
                    let expected = plain.pull(table, &keys, mode);
                    for run in &runs {
                        let found = run.replicas.pull(table as u32, dim, &keys, mode);
                        assert_eq!(found, expected);
                    }
                }
            }
            Call::Push { keys, grad } => {
                let push = whole_push(index, &keys, grad);
                index += 1;
                plain.push(&push);
                for run in &runs {
                    let applied = run.replicas.push(&push).unwrap();
                    let as_plain = |a: &edl_store::Applied| a.applied && a.version == plain.version;
                    assert!(applied.iter().all(as_plain));
                }
                last = Some(push);
            }
            Call::PushAgain => {
                // A retry counts nobody again.
                for (run, push) in runs.iter().zip(last.iter().cycle()) {
                    let applied = run.replicas.push(push).unwrap();
                    assert!(applied.iter().all(|a| !a.applied));
                }
            }
            Call::Expire { hours } => {
                now += hours * 3600;
                let expected = plain.expire(now);
                assert!(runs.iter().all(|run| run.expire(now) == expected));
            }
            Call::Whole => {
                for run in &mut runs {
                    run.write_whole();
                }
            }
            Call::Restore { count } => {
                for (run, more) in runs.iter_mut().zip(0..) {
                    run.restore(count + more);
                }
            }
            Call::Copy { count } => {
                for (run, more) in runs.iter_mut().zip(0..) {
                    run.copy(count + more);
                }
            }
            Call::GoOver => runs.iter_mut().for_each(Run::go_over),
        }
        runs.iter().for_each(|run| run.assert_equals(&plain));
    }
}

#[test]
fn rows_and_candidates_go_on_from_what_has_changed_since_a_base() {
    let push = |keys: std::ops::Range<u64>| Call::Push {
        keys: keys.collect(),
        grad: 0.5,
    };
    check(vec![
        push(0..40),
        push(0..20),
        Call::Whole,
        push(20..3000),
        Call::Pull {
            keys: (2900..3100).collect(),
            mode: PullMode::Create,
        },
        push(0..30),
        Call::Restore { count: 2 },
        push(0..60),
        Call::Whole,
        Call::Expire { hours: 30 },
        push(0..60),
        Call::Restore { count: 1 },
        push(0..3000),
        push(0..60),
    ]);
}

#[test]
fn rows_and_all_that_is_remembered_move() {
    let push = |keys: std::ops::Range<u64>| Call::Push {
        keys: keys.collect(),
        grad: 0.5,
    };
    check(vec![
        push(0..3000),
        Call::Expire { hours: 1 },
        push(0..2000),
        Call::Copy { count: 2 },
        push(1000..3000),
        Call::Copy { count: 2 },
        push(0..1500),
        Call::GoOver,
        push(0..3500),
        Call::Expire { hours: 24 },
        push(0..40),
        Call::GoOver,
        push(0..60),
    ]);
}

#[test]
fn a_row_that_takes_the_place_of_one_that_went_is_in_the_next_incremental_checkpoint() {
    let mode = PullMode::Create;
    check(vec![
        Call::Pull {
            keys: vec![1, 8],
            mode,
        },
        Call::Expire { hours: 0 },
        Call::Expire { hours: 24 },
        Call::Push {
            keys: vec![56],
            grad: 0.0,
        },
        Call::Whole,
        Call::Pull {
            keys: vec![27],
            mode,
        },
        Call::Restore { count: 1 },
    ]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_number_of_replicas_decides_as_a_plain_model(
        calls in prop::collection::vec(call(), 1..30),
    ) {
        check(calls);
    }
}

#[test]
fn a_key_is_admitted_with_its_nth_minibatch_and_trained_from_there() {
    let replicas = Replicas::declared(2, &spec());
    let pull = || replicas.pull(0, 3, &[5], PullMode::Create);
    for index in 0..2 {
        assert_eq!(pull(), [0.0; 3]);
        replicas.push(&whole_push(index, &[5], 1.0)).unwrap();
        assert!(replicas.scan(0, 3, 10).is_empty());
    }
    replicas.push(&whole_push(2, &[5], 1.0)).unwrap();
    assert_ne!(pull(), [0.0; 3]);
    let initial = Plain::new().fresh(0, 5);
    assert!(pull().iter().zip(initial).all(|(now, first)| *now < first));
}

#[test]
fn sketches_of_one_and_eight_replicas_are_alike_however_crowded() {
    let mut spec = spec();
    let sketch = [("count", 4.0), ("bytes", 4.0 * 262_144.0)];
    spec.tables[2].admission = admission("sketch", &sketch);
    let runs = [1, 8].map(|count| Replicas::declared(count, &spec));
    // 10,000 keys a minibatch, in blocks that begin elsewhere for each number of replicas.
    for index in 0..12 {
        let first = u64::from(index % 5) * 40_000;
        let keys: Vec<u64> = (first..first + 100_000).step_by(3).collect();
        let mut push = whole_push(index, &[], 1.0);
        push.tables[2].grads = vec![1.0; keys.len()];
        push.tables[2].keys = keys;
        runs.iter().for_each(|run| drop(run.push(&push).unwrap()));
    }
    let (one, eight) = (runs[0].scan(2, 1, 1000), runs[1].scan(2, 1, 1000));
    assert!(one.len() > 1000, "{}", one.len());
    assert_eq!(one, eight);
}

#[test]
fn probability_admits_its_share() {
    let replicas = Replicas::declared(1, &spec());
    let keys: Vec<u64> = (0..20_000).collect();
    let mut push = whole_push(0, &[], 0.0);
    push.tables[1].grads = vec![1.0; 2 * keys.len()];
    push.tables[1].keys = keys;
    replicas.push(&push).unwrap();
    // Six standard deviations.
    let share = replicas.scan(1, 2, 1000).len() as f64 / 20_000.0;
    assert!((share - PROBABILITY).abs() < 0.02, "{share}");
}

#[test]
fn a_checkpoint_without_its_counts_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(2, &spec());
    replicas.push(&whole_push(0, &[1, 2, 3], 1.0)).unwrap();
    replicas.checkpoint(dir.path());
    let refused = || match Store::restore(dir.path(), 0, 1, true) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a broken checkpoint was restored"),
    };
    let path = dir.path().join("replica-00001-of-00002-life.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let mut torn = whole.clone();
    *torn.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &torn).unwrap();
    assert!(refused().contains("checksum"), "{}", refused());
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(refused().contains("torn"), "{}", refused());
    std::fs::remove_file(&path).unwrap();
    assert!(refused().contains("life.safetensors"), "{}", refused());
    let manifest = dir.path().join("manifest.json");
    let mut value: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&manifest).unwrap()).unwrap();
    value["replicas"][1].as_object_mut().unwrap().remove("life");
    std::fs::write(&manifest, value.to_string()).unwrap();
    assert!(refused().contains("table 'count' needs"), "{}", refused());
}

#[test]
fn another_life_cycle_is_another_model() {
    let replicas = Replicas::declared(1, &spec());
    let mut other = spec();
    other.tables[0].admission = admission("count", &[("count", 4.0)]);
    let error = replicas.declare(&other).unwrap_err().to_string();
    assert!(
        error.contains("table 'count' has admission count(count=4)"),
        "{error}"
    );
    let mut bad = spec();
    bad.tables[1].expiry = Some(ExpirySpec::default());
    let error = Store::new(0, 1).declare(bad, &[], &[]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("table 'probability': expiry needs"),
        "{error}"
    );
}
