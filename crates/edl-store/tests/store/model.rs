//! Any sequence of calls leaves the store as it leaves a plain map.

use std::collections::BTreeMap;

use crate::common::{Grads, Replicas, WholePush, constant, model, table, uniform};
use edl_optim::Optimizer;
use edl_store::{ModelSpec, PullMode, TaskAudit};
use proptest::prelude::*;

const KINDS: [&str; 5] = ["sgd", "momentum", "adagrad", "adam", "ftrl"];
const DIMS: [usize; 3] = [16, 1, 3];
const DENSE: usize = 40;

#[derive(Debug, Clone)]
enum Call {
    Pull {
        table: usize,
        keys: Vec<u64>,
        mode: PullMode,
    },
    Push {
        task: u64,
        keys: [Vec<u64>; 3],
        grad: f32,
    },
    PushAgain,
    Skip {
        task: u64,
    },
    Scan {
        table: usize,
        max_rows: usize,
    },
    Checkpoint,
    /// From a checkpoint of what has changed since the last one, or of everything.
    Restore {
        count: u32,
    },
}

/// A set of keys: few, so that calls meet; sometimes many, so that the index grows.
fn keys() -> impl Strategy<Value = Vec<u64>> {
    let few = prop::collection::btree_set(0_u64..200, 0..40);
    let many = (0_u64..3000, 1_usize..1500).prop_map(|(first, n)| {
        (first..first + n as u64)
            .map(|k| k.wrapping_mul(0x1234_5678_9abc_def1))
            .collect()
    });
    prop_oneof![4 => few, 1 => many].prop_map(|keys| keys.into_iter().collect())
}

fn call() -> impl Strategy<Value = Call> {
    let mode = prop_oneof![Just(PullMode::Create), Just(PullMode::ReadOnly)];
    prop_oneof![
        3 => (0_usize..3, keys(), mode)
            .prop_map(|(table, keys, mode)| Call::Pull { table, keys, mode }),
        4 => (0_u64..3, [keys(), keys(), keys()], -4_i8..=4)
            .prop_map(|(task, keys, grad)| Call::Push { task, keys, grad: f32::from(grad) / 4.0 }),
        1 => Just(Call::PushAgain),
        1 => (0_u64..3).prop_map(|task| Call::Skip { task }),
        1 => (0_usize..3, prop_oneof![Just(1_usize), Just(7), Just(5000)])
            .prop_map(|(table, max_rows)| Call::Scan { table, max_rows }),
        1 => Just(Call::Checkpoint),
        1 => (1_u32..6).prop_map(|count| Call::Restore { count }),
    ]
}

/// The store, in the plainest way.
struct Plain {
    spec: ModelSpec,
    optimizer: Optimizer,
    tables: [BTreeMap<u64, Vec<f32>>; 3],
    dense: Vec<f32>,
    slots: Vec<f32>,
    state: Vec<f32>,
    version: u64,
    tasks: BTreeMap<u64, (u32, u64)>,
}

impl Plain {
    fn new(spec: &ModelSpec) -> Self {
        let optimizer = spec.optimizer.parse().unwrap();
        let mut slots = vec![0.0; DENSE * optimizer.num_slots()];
        let dense = crate::common::ramp(DENSE);
        optimizer.fill_slots(&dense, &mut slots);
        Self {
            spec: spec.clone(),
            optimizer,
            tables: Default::default(),
            dense,
            slots,
            state: crate::common::ramp(20),
            version: 0,
            tasks: BTreeMap::new(),
        }
    }

    /// The initial weights of a key, from a store that has no other.
    fn fresh(&self, table: usize, key: u64) -> Vec<f32> {
        let alone = Replicas::declared(1, &self.spec);
        let mut row = alone.pull(table as u32, DIMS[table], &[key], PullMode::Create);
        let mut slots = vec![0.0; DIMS[table] * self.optimizer.num_slots()];
        self.optimizer.fill_slots(&row, &mut slots);
        row.extend(slots);
        row
    }

    fn create(&mut self, table: usize, key: u64) {
        if !self.tables[table].contains_key(&key) {
            // Tables 1 and 2 begin with constants, which needs no store.
            let row = match table {
                0 => self.fresh(0, key),
                _ => {
                    let mut row = vec![[0.25, -1.0][table - 1]; DIMS[table]];
                    let mut slots = vec![0.0; DIMS[table] * self.optimizer.num_slots()];
                    self.optimizer.fill_slots(&row, &mut slots);
                    row.extend(slots);
                    row
                }
            };
            self.tables[table].insert(key, row);
        }
    }

    fn pull(&mut self, table: usize, keys: &[u64], mode: PullMode) -> Vec<f32> {
        let dim = DIMS[table];
        let centre = [0.0, 0.25, -1.0][table];
        let mut out = Vec::new();
        for &key in keys {
            if mode == PullMode::Create {
                self.create(table, key);
            }
            match self.tables[table].get(&key) {
                Some(row) => out.extend_from_slice(&row[..dim]),
                None => out.extend(vec![centre; dim]),
            }
        }
        out
    }

    fn push(&mut self, push: &WholePush) {
        self.version += 1;
        let step = self.optimizer.step(push.learning_rate, self.version);
        for grads in &push.tables {
            let (table, dim) = (grads.table as usize, DIMS[grads.table as usize]);
            for (&key, grad) in grads.keys.iter().zip(grads.grads.chunks_exact(dim)) {
                self.create(table, key);
                let row = self.tables[table].get_mut(&key).unwrap();
                let (weights, slots) = row.split_at_mut(dim);
                step.update_scalar(weights, slots, grad);
            }
        }
        step.update_scalar(&mut self.dense, &mut self.slots, &push.dense);
        for (value, delta) in self.state.iter_mut().zip(&push.state) {
            *value += delta;
        }
        let task = self.tasks.entry(push.task).or_default();
        *task = (task.0 + 1, task.1 + 10);
    }
}

fn spec(kind: &str) -> ModelSpec {
    let mut spec = model(kind, DENSE as u64, 20);
    spec.tables = vec![
        table("user", 16, kind, uniform()),
        table("linear", 1, kind, constant(0.25)),
        table("odd", 3, kind, constant(-1.0)),
    ];
    spec
}

fn whole_push(task: u64, index: u32, keys: &[Vec<u64>; 3], grad: f32) -> WholePush {
    let tables = keys.iter().enumerate().map(|(table, keys)| {
        Grads::of(
            table as u32,
            keys.clone(),
            (0..keys.len() * DIMS[table])
                .map(|i| grad + (i % 5) as f32)
                .collect(),
        )
    });
    WholePush {
        task,
        lease: 1,
        index,
        learning_rate: 0.25,
        tables: tables.collect(),
        dense: (0..DENSE).map(|i| grad - i as f32).collect(),
        state: vec![grad; 20],
    }
}

fn check(kind: &str, calls: Vec<Call>) {
    let spec = spec(kind);
    let mut replicas = Replicas::declared(2, &spec);
    let mut plain = Plain::new(&spec);
    let mut last = None;
    let root = tempfile::tempdir().unwrap();
    let (mut base, mut is_known) = ("none".to_owned(), false);
    for (number, call) in calls.into_iter().enumerate() {
        match call {
            Call::Pull { table, keys, mode } => {
                let found = replicas.pull(table as u32, DIMS[table], &keys, mode);
                assert_eq!(found, plain.pull(table, &keys, mode));
            }
            Call::Push { task, keys, grad } => {
                let index = plain.tasks.get(&task).map_or(0, |t| t.0);
                let push = whole_push(task, index, &keys, grad);
                let applied = replicas.push(&push).unwrap();
                plain.push(&push);
                assert!(
                    applied
                        .iter()
                        .all(|a| a.applied && a.version == plain.version)
                );
                last = Some(push);
            }
            Call::PushAgain => {
                if let Some(push) = &last {
                    let applied = replicas.push(push).unwrap();
                    assert!(
                        applied
                            .iter()
                            .all(|a| !a.applied && a.version == plain.version)
                    );
                }
            }
            Call::Skip { task } => {
                let next = plain.tasks.entry(task).or_default();
                for store in &replicas.0 {
                    store.skip(task, 1, next.0).unwrap();
                }
                next.0 += 1;
            }
            Call::Scan { table, max_rows } => {
                let dim = DIMS[table];
                let expected = plain.tables[table]
                    .iter()
                    .map(|(&k, r)| (k, r[..dim].to_vec()));
                let found = replicas.scan(table as u32, dim, max_rows);
                assert_eq!(found, expected.collect());
            }
            Call::Checkpoint => {
                base = format!("base-{number}");
                replicas.checkpoint(&root.path().join(&base));
                is_known = true;
            }
            Call::Restore { count } => {
                let dir = root.path().join(format!("since-{number}"));
                let entries = replicas.checkpoint_since(&base, &dir);
                assert!(entries.iter().all(|e| e["base"].is_object() == is_known));
                replicas = Replicas::restore(&dir, count, true).unwrap();
                is_known = false;
            }
        }
        assert_eq!(
            replicas.vectors(),
            (plain.dense.clone(), plain.state.clone())
        );
        let audit: Vec<_> = plain
            .tasks
            .iter()
            .map(|(&task, &(next_index, num_records))| TaskAudit {
                task,
                next_index,
                num_records,
            })
            .collect();
        assert!(replicas.0.iter().all(|store| store.audit() == audit));
    }
    for (table, rows) in plain.tables.iter().enumerate() {
        let dim = DIMS[table];
        let expected = rows.iter().map(|(&k, r)| (k, r[..dim].to_vec())).collect();
        assert_eq!(replicas.scan(table as u32, dim, 1000), expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_equals_a_plain_map(
        kind in prop::sample::select(&KINDS[..]),
        calls in prop::collection::vec(call(), 1..25),
    ) {
        check(kind, calls);
    }
}
