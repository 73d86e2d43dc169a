//! Single entries of an index: read, set, removed.

use super::{Entry, Index, Places};

impl Places {
    /// Return the place of a hash that is there.
    fn place_of(&self, hash: u64) -> Option<usize> {
        let entries = self.entries();
        let mut at = self.home(hash);
        loop {
            let entry = &entries[at];
            if entry.is_empty() {
                return None;
            }
            if entry.hash == hash {
                return Some(at);
            }
            at = (at + 1) % entries.len();
        }
    }

    /// Empty a place, and move up the entries behind it that it had displaced. So no entry has an
    /// empty place between its home and itself (Knuth, volume 3, algorithm 6.4 R).
    fn vacate(&mut self, place: usize) {
        let capacity = self.capacity;
        let (mut hole, mut at) = (place, place);
        loop {
            at = (at + 1) % capacity;
            let entry = self.entries()[at];
            if entry.is_empty() {
                break;
            }
            let from_home = (at + capacity - self.home(entry.hash)) % capacity;
            let from_hole = (at + capacity - hole) % capacity;
            if from_home >= from_hole {
                self.entries_mut()[hole] = entry;
                hole = at;
            }
        }
        self.entries_mut()[hole] = bytemuck::Zeroable::zeroed();
    }
}

impl Index {
    /// Return how many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Return the row and version of a hash.
    pub(crate) fn get(&self, hash: u64) -> Option<(u32, u64)> {
        let places = match &self.old {
            Some(old) if old.places.home(hash) >= old.moved => &old.places,
            _ => &self.current,
        };
        let entry = places.entries()[places.place_of(hash)?];
        Some((entry.row(), entry.version()))
    }

    /// Set the row and version of a hash that is there.
    pub(crate) fn set(&mut self, hash: u64, row: u32, version: u64) {
        let places = self.places_mut(hash);
        if let Some(at) = places.place_of(hash) {
            places.entries_mut()[at] = Entry::new(hash, row, version);
        }
    }

    /// Remove a hash; return the row and version that it had.
    pub(crate) fn remove(&mut self, hash: u64) -> Option<(u32, u64)> {
        let places = self.places_mut(hash);
        let at = places.place_of(hash)?;
        let entry = places.entries()[at];
        places.vacate(at);
        self.len -= 1;
        Some((entry.row(), entry.version()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::index::{GROUP, HashRange};
    use crate::route::hash;

    /// Few hashes, some of them neighbours, some at the end of the range: searches are long.
    fn hashes() -> impl Strategy<Value = u64> {
        prop_oneof![
            (0_u64..400).prop_map(hash),
            (0_u64..60).prop_map(|i| u64::MAX - i),
            (0_u64..60).prop_map(|i| (1 << 60) + i),
        ]
    }

    proptest! {
        #[test]
        fn any_sequence_of_changes_equals_a_plain_map(
            calls in prop::collection::vec((hashes(), 0_u8..3, 0_u64..100), 1..2000)
        ) {
            let mut index = Index::new(HashRange { first: 0, width: 1 << 64 }, 0.0);
            let mut plain = BTreeMap::new();
            for (i, (hash, call, version)) in calls.into_iter().enumerate() {
                let row = i as u32;
                match (call, plain.contains_key(&hash)) {
                    (0 | 1, false) => {
                        index.insert(hash, row, version);
                        plain.insert(hash, (row, version));
                    }
                    (0, true) => {
                        index.set(hash, row, version);
                        plain.insert(hash, (row, version));
                    }
                    _ => prop_assert_eq!(index.remove(hash), plain.remove(&hash)),
                }
                prop_assert_eq!(index.len(), plain.len());
                prop_assert_eq!(index.get(hash), plain.get(&hash).copied());
            }
            for (&hash, &entry) in &plain {
                prop_assert_eq!(index.get(hash), Some(entry));
                prop_assert_eq!(index.find(hash), Some(entry.0));
            }
            // A group's search takes an empty place for the end of its line.
            let all: Vec<u64> = plain.keys().copied().collect();
            for hashes in all.chunks(GROUP) {
                let mut rows = vec![0; hashes.len()];
                index.view().find(hashes, &[], &mut rows);
                let expected: Vec<u32> = hashes.iter().map(|hash| plain[hash].0).collect();
                prop_assert_eq!(rows, expected);
            }
            let (entries, next) = index.walk(0, plain.len());
            prop_assert_eq!(next, None);
            let walked = entries.iter().map(|e| (e.hash, (e.row(), e.version())));
            prop_assert_eq!(walked.collect::<Vec<_>>(), plain.into_iter().collect::<Vec<_>>());
        }
    }
}
