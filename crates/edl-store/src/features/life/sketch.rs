//! Counts of many keys in little memory: a count-min sketch for each hash slot.

use std::sync::Arc;

use crate::route::hash;

/// Cells that a key has: one in each row.
pub(crate) const NUM_ROWS: usize = 4;

/// A count-min sketch with conservative update (Estan and Varghese, 2002). There is one sketch for
/// each hash slot of a stripe: replicas never split a slot, so they never split a sketch.
///
/// A count is never too low. Suppose that a table's sketches have `b` bytes together, and that all
/// its slots have had `n` occurrences. Then a count is too high by more than `10.9 n / b` for at
/// most 1 in 54 keys. This is the bound of Cormode and Muthukrishnan, 2005, `e n / w` and
/// `exp(-d)`, for `d = 4` rows of `w = b / 4` cells; a conservative update only lowers it. Cells
/// stop at 255.
pub(crate) struct Sketch {
    first_hash_slot: u32,
    /// Cells of a row.
    width: usize,
    /// The cells by slot, row and cell. The first update after a snapshot copies them.
    cells: Arc<Vec<u8>>,
    /// Slots of which something was counted since they were given to another store.
    changed: Vec<bool>,
}

impl Sketch {
    pub(crate) fn new(first_hash_slot: u32, num_hash_slots: usize, width: u32) -> Self {
        let width = width as usize;
        Self {
            first_hash_slot,
            width,
            cells: Arc::new(vec![0; num_hash_slots * NUM_ROWS * width]),
            changed: vec![false; num_hash_slots],
        }
    }

    /// Count one more occurrence of a key; return how many there were, this one included.
    pub(crate) fn add(&mut self, key_hash: u64) -> u8 {
        let places = self.places(key_hash);
        self.changed[(key_hash >> 48) as usize - self.first_hash_slot as usize] = true;
        let cells = Arc::make_mut(&mut self.cells);
        let least = places.iter().map(|&at| cells[at]).min().unwrap_or(0);
        let count = least.saturating_add(1);
        for at in places {
            cells[at] = cells[at].max(count);
        }
        count
    }

    fn places(&self, key_hash: u64) -> [usize; NUM_ROWS] {
        // The slot is of the hash's own bits; within it the cells go by another hash.
        let slot = (key_hash >> 48) as u32 - self.first_hash_slot;
        let mixed = hash(key_hash);
        let first = slot as usize * NUM_ROWS;
        std::array::from_fn(|row| {
            let bits = (mixed >> (16 * row)) as u16;
            let cell = (usize::from(bits) * self.width) >> 16;
            (first + row) * self.width + cell
        })
    }

    /// Return the cells as they are now.
    pub(crate) fn cells(&self) -> Arc<Vec<u8>> {
        self.cells.clone()
    }

    /// Put back the cells of one slot.
    pub(crate) fn restore(&mut self, slot: u32, cells: &[u8]) {
        let at = (slot - self.first_hash_slot) as usize * NUM_ROWS * self.width;
        Arc::make_mut(&mut self.cells)[at..at + cells.len()].copy_from_slice(cells);
    }

    /// Give the cells of each slot that has changed since the last time; or, of all, those of which
    /// something was counted.
    pub(crate) fn take_changed(&mut self, all: bool, mut take: impl FnMut(u32, &[u8])) {
        let len = self.slot_bytes();
        let slots = (self.first_hash_slot..).zip(self.cells.chunks_exact(len));
        for ((slot, cells), changed) in slots.zip(&mut self.changed) {
            if std::mem::take(changed) || (all && cells.iter().any(|&count| count > 0)) {
                take(slot, cells);
            }
        }
    }

    /// Have at least the counts of another sketch in a slot. Counts never fall, so it does not
    /// matter in which order they come, or how often.
    pub(crate) fn put(&mut self, slot: u32, cells: &[u8]) {
        let at = (slot - self.first_hash_slot) as usize * NUM_ROWS * self.width;
        let own = &mut Arc::make_mut(&mut self.cells)[at..at + NUM_ROWS * self.width];
        for (own, &other) in own.iter_mut().zip(cells) {
            *own = other.max(*own);
        }
    }

    /// Return the bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> usize {
        NUM_ROWS * self.width
    }

    pub(crate) fn bytes(&self) -> usize {
        self.cells.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_never_too_low_and_rarely_too_high() {
        let mut sketch = Sketch::new(0, 4, 256);
        let keys: Vec<u64> = (0..400_u64)
            .map(|key| (hash(key) & !(u64::MAX << 48)) | (key % 4) << 48)
            .collect();
        let times = |i: usize| 1 + i % 5;
        let mut counts = vec![0; keys.len()];
        for round in 0..5 {
            for (i, &key) in keys.iter().enumerate() {
                if round < times(i) {
                    counts[i] = usize::from(sketch.add(key));
                }
            }
        }
        let total: usize = (0..keys.len()).map(times).sum();
        let bound = std::f64::consts::E * total as f64 / (4.0 * 256.0);
        let high = |&i: &usize| (counts[i] - times(i)) as f64 > bound;
        assert!((0..keys.len()).all(|i| counts[i] >= times(i)));
        assert!((0..keys.len()).filter(high).count() <= keys.len() / 54);
    }

    #[test]
    fn a_cell_stops_at_its_largest_count() {
        let mut sketch = Sketch::new(7, 1, 1);
        let counts: Vec<u8> = (0..300).map(|_| sketch.add(7 << 48)).collect();
        assert_eq!(counts[..255], (1..=255).collect::<Vec<u8>>());
        assert!(counts[255..].iter().all(|&c| c == 255));
    }
}
