//! A table of one version: layers, the newest last.

use std::path::Path;
use std::sync::Arc;

use crate::layer::{Found, Layer};

#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) dim: usize,
    /// The first one is whole.
    layers: Vec<Arc<Layer>>,
    /// The folder of files of rows; `None`: rows are in memory.
    folder: Option<Arc<Path>>,
}

impl Table {
    pub(crate) fn empty(name: String, dim: usize, folder: Option<Arc<Path>>) -> Self {
        Self {
            name,
            dim,
            layers: vec![Arc::new(Layer::empty(dim))],
            folder,
        }
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Return the table with another layer. Layers become one where an upper one is not much
    /// smaller, so there are few: each is less than half of the one below.
    pub(crate) fn with(&self, layer: Layer) -> Self {
        let mut layers = if layer.is_whole() {
            Vec::new()
        } else {
            self.layers.clone()
        };
        layers.push(Arc::new(layer));
        while let [.., below, top] = &layers[..] {
            if top.num_entries() * 2 < below.num_entries() {
                break;
            }
            let Some(one) = top.over(below, self.folder()) else {
                break;
            };
            layers.truncate(layers.len() - 2);
            layers.push(Arc::new(one));
        }
        Self {
            name: self.name.clone(),
            dim: self.dim,
            layers,
            folder: self.folder.clone(),
        }
    }

    /// Return the row of a key, as bits.
    #[inline]
    pub(crate) fn row(&self, key: u64) -> Option<&[u32]> {
        for layer in self.layers.iter().rev() {
            match layer.find(key) {
                Found::Row(row) => return Some(row),
                Found::Gone => return None,
                Found::Unsaid => {}
            }
        }
        None
    }

    /// Return the keys that have a row.
    pub(crate) fn keys(&self) -> Vec<u64> {
        let mut keys = Vec::new();
        for (number, layer) in self.layers.iter().enumerate() {
            let above = &self.layers[number + 1..];
            let is_shown = |key: u64| above.iter().all(|layer| layer.find(key) == Found::Unsaid);
            let of_layer = layer.keys_with_rows().iter().copied();
            keys.extend(of_layer.filter(|&key| is_shown(key)));
        }
        keys
    }

    pub(crate) fn num_layers(&self) -> usize {
        self.layers.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use edl_store::{NUM_HASH_SLOTS, hash_slot_of};
    use proptest::prelude::*;

    use super::*;
    use crate::words::Sink;

    /// Keys with a row, keys that have gone, and whether the lower half of the slots is whole.
    type Version = (Vec<u64>, Vec<u64>, bool);

    fn layer(number: usize, (keys, gone, is_whole): &Version, folder: Option<&Path>) -> Layer {
        let mut keys = keys.clone();
        keys.sort_unstable();
        keys.dedup();
        let mut weights = Sink::new(folder).unwrap();
        for &key in &keys {
            weights.push(&[weight(number, key).to_bits()]).unwrap();
        }
        let words = weights.finish().unwrap();
        let half = 0..NUM_HASH_SLOTS / 2;
        let whole = is_whole.then_some(half).into_iter().collect();
        Layer::new(1, keys, words, gone, whole).ok().unwrap()
    }

    fn weight(number: usize, key: u64) -> f32 {
        (number as u64 * 1000 + key) as f32
    }

    fn version() -> impl Strategy<Value = Version> {
        let keys = || prop::collection::vec(0..60_u64, 0..40);
        (keys(), keys(), prop::bool::weighted(0.2))
    }

    proptest! {
        #[test]
        fn layers_are_what_their_versions_say_in_turn(
            versions in prop::collection::vec(version(), 0..12),
            is_mapped in prop::bool::ANY
        ) {
            let folder: Option<Arc<Path>> = is_mapped.then(|| std::env::temp_dir().into());
            let mut expected: HashMap<u64, f32> = HashMap::new();
            let mut table = Table::empty("t".to_owned(), 1, folder.clone());
            for (number, version) in versions.iter().enumerate() {
                let (keys, gone, is_whole) = version;
                let is_upper = |key: u64| u32::from(hash_slot_of(key)) >= NUM_HASH_SLOTS / 2;
                expected.retain(|&key, _| !is_whole || is_upper(key));
                expected.retain(|key, _| !gone.contains(key));
                expected.extend(keys.iter().map(|&key| (key, weight(number, key))));
                table = table.with(layer(number, version, folder.as_deref()));
                for key in 0..60 {
                    let found = table.row(key).map(|row| f32::from_bits(row[0]));
                    prop_assert_eq!(found, expected.get(&key).copied());
                }
                let mut keys = table.keys();
                keys.sort_unstable();
                let mut there: Vec<u64> = expected.keys().copied().collect();
                there.sort_unstable();
                prop_assert_eq!(keys, there);
                prop_assert!(table.num_layers() < 9);
            }
        }
    }

    #[test]
    fn a_key_with_two_rows_is_told() {
        let words = Sink::Heap(vec![0; 3]).finish().unwrap();
        let layer = Layer::new(1, vec![3, 4, 3], words, &[], Vec::new());
        assert_eq!(layer.err(), Some(Some(3)));
    }
}
