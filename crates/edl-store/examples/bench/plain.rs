//! The simplest hash map of vectors that the store is measured against.

use std::collections::HashMap;
use std::sync::Mutex;

use edl_optim::Optimizer;

use crate::Peer;

/// The peer: weights, and each optimizer slot, in a map of small vectors; one lock, one key at a
/// time.
pub(crate) struct Plain {
    maps: Mutex<Vec<HashMap<u64, Vec<f32>>>>,
    optimizer: Optimizer,
    dim: usize,
    centre: Vec<f32>,
}

impl Plain {
    pub(crate) fn new(optimizer: Optimizer, dim: usize) -> Self {
        Self {
            maps: Mutex::new(vec![HashMap::new(); 1 + optimizer.num_slots()]),
            optimizer,
            dim,
            centre: vec![0.0; dim],
        }
    }
}

impl Peer for Plain {
    fn pull(&self, keys: &[u64], out: &mut [f32]) {
        for (key, out) in keys.iter().zip(out.chunks_exact_mut(self.dim)) {
            let maps = self.maps.lock().expect("no thread panics");
            out.copy_from_slice(maps[0].get(key).unwrap_or(&self.centre));
        }
    }

    /// Update each key's row: it is read from all maps, changed, and written back to them.
    fn push(&self, keys: &[u64], grads: &[f32]) {
        let step = self.optimizer.step(0.01, 1);
        let num_slots = self.optimizer.num_slots();
        let mut together = vec![0.0; self.dim * num_slots];
        for (key, grad) in keys.iter().zip(grads.chunks_exact(self.dim)) {
            let mut maps = self.maps.lock().expect("no thread panics");
            let (weights, slots) = maps.split_at_mut(1);
            let Some(weights) = weights[0].get_mut(key) else {
                continue;
            };
            match slots {
                [] => step.update(weights, &mut [], grad),
                [slot] => {
                    if let Some(slot) = slot.get_mut(key) {
                        step.update(weights, slot, grad);
                    }
                }
                many => {
                    let parts = together.chunks_exact_mut(self.dim);
                    let mut found: Vec<&mut Vec<f32>> =
                        many.iter_mut().filter_map(|map| map.get_mut(key)).collect();
                    for (part, slot) in parts.zip(&found) {
                        part.copy_from_slice(slot);
                    }
                    step.update(weights, &mut together, grad);
                    for (part, slot) in together.chunks_exact(self.dim).zip(&mut found) {
                        slot.copy_from_slice(part);
                    }
                }
            }
        }
    }

    fn insert(&self, keys: &[u64], rows: &[f32]) {
        let mut maps = self.maps.lock().expect("no thread panics");
        let mut slots = vec![0.0; self.dim * self.optimizer.num_slots()];
        for (&key, row) in keys.iter().zip(rows.chunks_exact(self.dim)) {
            self.optimizer.fill_slots(row, &mut slots);
            maps[0].insert(key, row.to_vec());
            for (map, slot) in maps[1..].iter_mut().zip(slots.chunks_exact(self.dim)) {
                map.insert(key, slot.to_vec());
            }
        }
    }
}
