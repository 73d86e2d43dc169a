//! A hash map of vectors as somebody who cares for speed writes it with what crates.io has.

use ahash::AHashMap;
use edl_optim::Optimizer;
use parking_lot::Mutex;

use crate::Peer;

const SHARDS: usize = 64;

/// The peer: a row and its optimizer slots in one piece of memory, found by one look-up with AHash;
/// one lock a shard, which is taken once for all keys of a call.
pub(crate) struct Sharded {
    shards: Vec<Mutex<AHashMap<u64, Box<[f32]>>>>,
    optimizer: Optimizer,
    dim: usize,
}

impl Sharded {
    pub(crate) fn new(optimizer: Optimizer, dim: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            optimizer,
            dim,
        }
    }

    /// Call `work` with the map and the position of each key, shard by shard.
    fn by_shard(
        &self,
        keys: &[u64],
        mut work: impl FnMut(&mut AHashMap<u64, Box<[f32]>>, usize, u64),
    ) {
        // The maps hash all bits again, so those that choose the shard may be any.
        let shard_of = |key: u64| (key >> 32) as usize % SHARDS;
        let mut next = [0; SHARDS];
        keys.iter().for_each(|&key| next[shard_of(key)] += 1);
        let mut start = 0;
        for count in &mut next {
            start += std::mem::replace(count, start);
        }
        let mut order = vec![0_u32; keys.len()];
        for (position, &key) in keys.iter().enumerate() {
            let place = &mut next[shard_of(key)];
            order[*place] = position as u32;
            *place += 1;
        }
        let mut start = 0;
        for (shard, end) in self.shards.iter().zip(next) {
            let mut map = shard.lock();
            for &position in &order[start..end] {
                let position = position as usize;
                work(&mut map, position, keys[position]);
            }
            start = end;
        }
    }
}

impl Peer for Sharded {
    fn insert(&self, keys: &[u64], rows: &[f32]) {
        let dim = self.dim;
        self.by_shard(keys, |map, position, key| {
            let mut row = vec![0.0; dim * (1 + self.optimizer.num_slots())];
            let (weights, slots) = row.split_at_mut(dim);
            weights.copy_from_slice(&rows[position * dim..][..dim]);
            self.optimizer.fill_slots(weights, slots);
            map.insert(key, row.into_boxed_slice());
        });
    }

    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        let dim = self.dim;
        self.by_shard(keys, |map, position, key| {
            let out = &mut out[position * dim..][..dim];
            match map.get(&key) {
                Some(row) => out.copy_from_slice(&row[..dim]),
                None => out.fill(0.0),
            }
        });
    }

    fn push(&self, keys: &[u64], grads: &[f32]) {
        let (step, dim) = (self.optimizer.step(0.01, 1), self.dim);
        self.by_shard(keys, |map, position, key| {
            if let Some(row) = map.get_mut(&key) {
                let (weights, slots) = row.split_at_mut(dim);
                step.update(weights, slots, &grads[position * dim..][..dim]);
            }
        });
    }
}
