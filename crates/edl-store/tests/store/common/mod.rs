//! Models and stores for the tests.

#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::BTreeMap;
use std::path::Path;

use edl_store::{
    Applied, InitializerSpec, ModelSpec, OptimizerSpec, PullMode, Push, Store, StoreError,
    TableGrads, TableSpec, VariableSpec, dense_range, replica_of,
};

pub mod moving;

pub fn params(values: &[(&str, f64)]) -> BTreeMap<String, f64> {
    values.iter().map(|&(k, v)| (k.to_owned(), v)).collect()
}

pub fn optimizer(kind: &str) -> OptimizerSpec {
    OptimizerSpec {
        kind: kind.to_owned(),
        params: BTreeMap::new(),
        program: None,
    }
}

pub fn uniform() -> InitializerSpec {
    InitializerSpec {
        kind: "uniform".to_owned(),
        params: params(&[("low", -0.05), ("high", 0.05)]),
    }
}

pub fn constant(value: f64) -> InitializerSpec {
    InitializerSpec {
        kind: "constant".to_owned(),
        params: params(&[("value", value)]),
    }
}

pub fn table(name: &str, dim: u32, kind: &str, initializer: InitializerSpec) -> TableSpec {
    TableSpec {
        name: name.to_owned(),
        dim,
        initializer,
        optimizer: optimizer(kind),
        input_dim: None,
        wire_dtype: Default::default(),
        admission: None,
        expiry: None,
        keep_names: false,
        constraint: None,
        trainable: true,
        given_rows: false,
        rate: 1.0,
        statistics: None,
    }
}

pub fn variable(name: &str, len: u64) -> VariableSpec {
    VariableSpec {
        name: name.to_owned(),
        shape: vec![len],
        offset: 0,
        decays: true,
        constraint: None,
        trainable: true,
        momentum: 1.0,
        optimizer: None,
        rate: 1.0,
        may_rest: false,
    }
}

/// Two tables, `dense` and `state` of the given lengths.
pub fn model(kind: &str, dense: u64, state: u64) -> ModelSpec {
    ModelSpec {
        tables: vec![
            table("user", 16, kind, uniform()),
            table("linear", 1, kind, constant(0.0)),
        ],
        dense: vec![variable("kernel", dense)],
        state: vec![variable("mean", state)],
        optimizer: optimizer(kind),
        seed: 7,
        clip: None,
    }
}

pub fn ramp(len: usize) -> Vec<f32> {
    (0..len).map(|i| i as f32 / 8.0).collect()
}

/// The model of two tables, trained by SGD.
pub fn sgd() -> ModelSpec {
    model("sgd", 4, 2)
}

/// The one replica of a model.
pub fn declared(spec: &ModelSpec) -> Store {
    Replicas::declared(1, spec).0.remove(0)
}

/// Rows of one replica, one after the other.
pub fn pull(store: &Store, table: u32, dim: usize, keys: &[u64], mode: PullMode) -> Vec<f32> {
    let mut out = vec![f32::NAN; keys.len() * dim];
    store.pull_rows(table, keys, mode, &mut out).unwrap();
    out
}

/// A push that touches nothing but the task's watermark and the vectors.
pub fn bare(task: u64, lease: u32, index: u32) -> Push<'static> {
    Push {
        task,
        lease,
        index,
        num_records: 10,
        learning_rate: 0.5,
        pulled_version: 0,
        tables: &[],
        dense: &[1.0, 1.0, 1.0, 1.0],
        state: &[1.0, 1.0],
    }
}

/// The replicas of a model whose dense and state vectors are ramps.
pub struct Replicas(pub Vec<Store>);

/// Gradients of a table for the whole model.
pub struct Grads {
    pub table: u32,
    pub keys: Vec<u64>,
    pub grads: Vec<f32>,
}

/// A whole model's push, to be spread over replicas.
pub struct WholePush {
    pub task: u64,
    pub lease: u32,
    pub index: u32,
    pub learning_rate: f32,
    pub tables: Vec<Grads>,
    pub dense: Vec<f32>,
    pub state: Vec<f32>,
}

impl Default for WholePush {
    fn default() -> Self {
        Self {
            task: 1,
            lease: 1,
            index: 0,
            learning_rate: 0.5,
            tables: Vec::new(),
            dense: Vec::new(),
            state: Vec::new(),
        }
    }
}

impl Grads {
    pub fn of(table: u32, keys: Vec<u64>, grads: Vec<f32>) -> Self {
        Self { table, keys, grads }
    }
}

/// Return a table's part of one store's push.
pub fn grads_of<'a>(table: u32, keys: &'a [u64], grads: &'a [f32]) -> TableGrads<'a> {
    TableGrads { table, keys, grads }
}

impl Replicas {
    pub fn declared(count: u32, model: &ModelSpec) -> Self {
        let stores = (0..count).map(|r| Store::new(r, count)).collect();
        let replicas = Self(stores);
        replicas.declare(model).unwrap();
        replicas
    }

    pub fn declare(&self, model: &ModelSpec) -> Result<(), StoreError> {
        let dense = ramp(model.dense_len().unwrap());
        let state = ramp(model.state_len().unwrap());
        for store in &self.0 {
            let range = |len| dense_range(len, store.replica(), store.num_replicas());
            let (d, s) = (range(dense.len()), range(state.len()));
            store.declare(model.clone(), &dense[d], &state[s])?;
        }
        Ok(())
    }

    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    fn own(&self, store: &Store, keys: &[u64]) -> Vec<usize> {
        (0..keys.len())
            .filter(|&i| replica_of(keys[i], self.count()) == store.replica())
            .collect()
    }

    pub fn pull(&self, table: u32, dim: usize, keys: &[u64], mode: PullMode) -> Vec<f32> {
        let mut out = vec![f32::NAN; keys.len() * dim];
        for store in &self.0 {
            let own = self.own(store, keys);
            let part: Vec<u64> = own.iter().map(|&i| keys[i]).collect();
            let mut rows = vec![f32::NAN; part.len() * dim];
            store.pull_rows(table, &part, mode, &mut rows).unwrap();
            for (&i, row) in own.iter().zip(rows.chunks_exact(dim)) {
                out[i * dim..(i + 1) * dim].copy_from_slice(row);
            }
        }
        out
    }

    pub fn vectors(&self) -> (Vec<f32>, Vec<f32>) {
        let model = self.0[0].model().unwrap();
        let mut dense = vec![f32::NAN; model.dense_len().unwrap()];
        let mut state = vec![f32::NAN; model.state_len().unwrap()];
        for store in &self.0 {
            let range = |len| dense_range(len, store.replica(), store.num_replicas());
            let (d, s) = (range(dense.len()), range(state.len()));
            store.pull_vectors(&mut dense[d], &mut state[s]).unwrap();
        }
        (dense, state)
    }

    pub fn push(&self, push: &WholePush) -> Result<Vec<Applied>, StoreError> {
        self.0
            .iter()
            .map(|store| self.push_part(store, push))
            .collect()
    }

    fn push_part(&self, store: &Store, push: &WholePush) -> Result<Applied, StoreError> {
        let parts: Vec<Grads> = push
            .tables
            .iter()
            .map(|grads| {
                let own = self.own(store, &grads.keys);
                let dim = grads.grads.len() / grads.keys.len().max(1);
                Grads::of(
                    grads.table,
                    own.iter().map(|&i| grads.keys[i]).collect(),
                    own.iter()
                        .flat_map(|&i| &grads.grads[i * dim..(i + 1) * dim])
                        .copied()
                        .collect(),
                )
            })
            .collect();
        let tables: Vec<TableGrads<'_>> = parts
            .iter()
            .map(|part| grads_of(part.table, &part.keys, &part.grads))
            .collect();
        let range = |len| dense_range(len, store.replica(), store.num_replicas());
        store.apply(&Push {
            task: push.task,
            lease: push.lease,
            index: push.index,
            num_records: 10,
            learning_rate: push.learning_rate,
            pulled_version: 0,
            tables: &tables,
            dense: &push.dense[range(push.dense.len())],
            state: &push.state[range(push.state.len())],
        })
    }

    /// All rows of a table, by key, gathered in chunks of `max_rows`.
    pub fn scan(&self, table: u32, dim: usize, max_rows: usize) -> BTreeMap<u64, Vec<f32>> {
        let mut all = BTreeMap::new();
        for store in &self.0 {
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let chunk = store.scan(table, from, max_rows).unwrap();
                assert!(chunk.keys.len() <= max_rows);
                assert_eq!(chunk.rows.len(), chunk.keys.len() * dim);
                for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks_exact(dim)) {
                    assert_eq!(all.insert(key, row.to_vec()), None, "key {key} came twice");
                }
                cursor = chunk.next;
            }
        }
        all
    }

    pub fn checkpoint(&self, dir: &Path) {
        let entries = self.0.iter().map(|store| store.checkpoint(dir).unwrap());
        write_manifest(dir, &entries.collect::<Vec<_>>());
    }

    /// Write a checkpoint of what has changed since `base`, a folder beside `dir`, where that is
    /// known; return the manifest's entries.
    pub fn checkpoint_since(&self, base: &str, dir: &Path) -> Vec<serde_json::Value> {
        std::fs::create_dir_all(dir).unwrap();
        let wish = format!(r#"{{"base": "{base}"}}"#);
        std::fs::write(dir.join("base.json"), wish).unwrap();
        self.checkpoint(dir);
        let manifest = std::fs::read(dir.join("manifest.json")).unwrap();
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
        manifest["replicas"].as_array().unwrap().clone()
    }

    pub fn restore(dir: &Path, count: u32, keep_watermarks: bool) -> Result<Self, StoreError> {
        (0..count)
            .map(|r| Store::restore(dir, r, count, keep_watermarks))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

pub fn write_manifest(dir: &Path, entries: &[String]) {
    let manifest = format!(r#"{{"format": 1, "replicas": [{}]}}"#, entries.join(","));
    std::fs::write(dir.join("manifest.json"), manifest).unwrap();
}

/// Write what one replica hands over to its successor.
pub fn write_part(dir: &Path, entry: &str) {
    let manifest = format!(r#"{{"format": 1, "is_part": true, "replicas": [{entry}]}}"#);
    std::fs::write(dir.join("manifest.json"), manifest).unwrap();
}
