//! The sparse life cycle in the plainest way.

use std::collections::BTreeMap;

use edl_optim::Optimizer;
use edl_store::{ModelSpec, PullMode, hash_of_name, hash_slot_of};

use super::{
    COUNT, DAY, DIMS, GRACE, MIN_NORM, NUM_TABLES, PROBABILITY, SKETCH_COUNT, STEPS, spec,
};
use crate::common::{Replicas, WholePush};

/// SplitMix64's finalizer, as `docs/designs/store.md` has it.
fn hash(key: u64) -> u64 {
    let mut h = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

pub(super) struct Row {
    pub(super) version: u64,
    /// The version of the first update; 0 before.
    birth: u64,
    /// Weights, then slots.
    pub(super) values: Vec<f32>,
}

/// The store, in the plainest way.
pub(super) struct Plain {
    spec: ModelSpec,
    optimizer: Optimizer,
    pub(super) tables: [BTreeMap<u64, Row>; NUM_TABLES],
    /// (count, version) of keys of table 0 without a row.
    pub(super) candidates: BTreeMap<u64, (u32, u64)>,
    /// Counts of the slots of table 2.
    sketch: BTreeMap<u16, u8>,
    /// (version, seconds) of every pass so far.
    times: Vec<(u64, u64)>,
    pub(super) version: u64,
    pub(super) dropped: u64,
}

impl Plain {
    pub(super) fn new() -> Self {
        let spec = spec();
        Self {
            optimizer: spec.optimizer.parse().unwrap(),
            spec,
            tables: Default::default(),
            candidates: BTreeMap::new(),
            sketch: BTreeMap::new(),
            times: Vec::new(),
            version: 0,
            dropped: 0,
        }
    }

    fn centre(table: usize) -> f32 {
        [0.0, 0.125, 0.5, 0.0][table]
    }

    /// The initial weights of a key: of a table that admits every key.
    pub(super) fn fresh(&self, table: usize, key: u64) -> Vec<f32> {
        if table != 0 {
            return vec![Self::centre(table); DIMS[table]];
        }
        let mut spec = self.spec.clone();
        spec.tables[0].admission = None;
        Replicas::declared(1, &spec).pull(0, DIMS[0], &[key], PullMode::Create)
    }

    fn create(&mut self, table: usize, key: u64) {
        if !self.tables[table].contains_key(&key) {
            let mut values = self.fresh(table, key);
            let mut slots = vec![0.0; DIMS[table] * self.optimizer.num_slots()];
            self.optimizer.fill_slots(&values, &mut slots);
            values.extend(slots);
            let version = self.version;
            let birth = 0;
            let row = Row {
                version,
                birth,
                values,
            };
            self.tables[table].insert(key, row);
        }
    }

    pub(super) fn pull(&mut self, table: usize, keys: &[u64], mode: PullMode) -> Vec<f32> {
        let mut out = Vec::new();
        for &key in keys {
            if mode == PullMode::Create && table == 3 {
                self.create(table, key);
            }
            match self.tables[table].get(&key) {
                Some(row) => out.extend_from_slice(&row.values[..DIMS[table]]),
                None => out.extend(vec![Self::centre(table); DIMS[table]]),
            }
        }
        out
    }

    fn admits(&mut self, table: usize, key: u64, push: &WholePush) -> bool {
        match table {
            0 => {
                let candidate = self.candidates.entry(key).or_default();
                *candidate = (candidate.0 + 1, self.version);
                let admitted = candidate.0 >= COUNT;
                if admitted {
                    self.candidates.remove(&key);
                }
                admitted
            }
            1 => {
                let seed = hash(self.spec.seed ^ hash_of_name(b"probability"));
                let occurrence = hash(hash(push.task) ^ u64::from(push.index));
                let drawn = hash(hash(seed ^ hash(key)) ^ occurrence);
                drawn < (PROBABILITY * 2_f64.powi(64)) as u64
            }
            2 => {
                let count = self.sketch.entry(hash_slot_of(key)).or_default();
                *count = count.saturating_add(1);
                *count >= SKETCH_COUNT
            }
            _ => true,
        }
    }

    pub(super) fn push(&mut self, push: &WholePush) {
        self.version += 1;
        let step = self.optimizer.step(push.learning_rate, self.version);
        for grads in &push.tables {
            let (table, dim) = (grads.table as usize, DIMS[grads.table as usize]);
            for (&key, grad) in grads.keys.iter().zip(grads.grads.chunks_exact(dim)) {
                if !self.tables[table].contains_key(&key) && !self.admits(table, key, push) {
                    self.dropped += 1;
                    continue;
                }
                self.create(table, key);
                let row = self.tables[table].get_mut(&key).unwrap();
                row.version = self.version;
                if row.birth == 0 {
                    row.birth = self.version;
                }
                let (weights, slots) = row.values.split_at_mut(dim);
                step.update_scalar(weights, slots, grad);
            }
        }
    }

    /// Return how many rows and candidates went.
    pub(super) fn expire(&mut self, now: u64) -> (u64, u64) {
        self.times.push((self.version, now));
        let before = self.num_rows();
        let candidates = self.candidates.len() as u64;
        if let Some(last) = self.version.checked_sub(STEPS) {
            self.tables[0].retain(|_, row| row.version > last);
            self.candidates
                .retain(|_, &mut (_, version)| version > last);
        }
        let version = self.version;
        self.tables[1].retain(|_, row| {
            let square: f64 = row.values[..2].iter().map(|&w| f64::from(w).powi(2)).sum();
            square >= MIN_NORM * MIN_NORM || row.birth + GRACE > version
        });
        let old = |&&(_, then): &&(u64, u64)| then + DAY <= now;
        if let Some(&(last, _)) = self.times.iter().rev().find(old) {
            self.tables[3].retain(|_, row| row.version > last);
        }
        let gone = candidates - self.candidates.len() as u64;
        (before - self.num_rows(), gone)
    }

    pub(super) fn num_rows(&self) -> u64 {
        self.tables.iter().map(|rows| rows.len() as u64).sum()
    }
}
