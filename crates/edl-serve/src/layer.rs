//! The part of a table in one version: the whole table, or its changes.

use std::ops::Range;
use std::path::Path;

use edl_store::{NUM_HASH_SLOTS, hash_of_key};

use crate::file::Rows;
use crate::words::Words;

/// No entry.
const NONE: u32 = u32::MAX;

/// Most entries of a layer: their numbers are below `NONE`.
const MAX_ENTRIES: usize = NONE as usize;

/// The state of a key in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// Its row.
    Row(&'a [u32]),
    /// It has none.
    Gone,
    /// Nothing; a layer below may know it.
    Unsaid,
}

/// Rows and removed keys, found by hash. Weights are kept as bits, so a lookup returns exactly the
/// written weights.
pub(crate) struct Layer {
    dim: usize,
    /// Entries by the order of the hash, from its own place on; a power of two of them.
    places: Vec<u32>,
    /// The key of each entry; entries with a row come first.
    keys: Vec<u64>,
    rows: Words,
    num_rows: usize,
    /// The hash slots of which the layer has all rows: in these slots a key without an entry was
    /// removed.
    whole: Vec<Range<u32>>,
}

impl Layer {
    /// Makes a layer of rows, and of removed keys that have no row here. The error is a key with
    /// two rows, or `None` if there are too many entries.
    pub(crate) fn new(
        dim: usize,
        keys: Vec<u64>,
        rows: Words,
        gone: &[u64],
        whole: Vec<Range<u32>>,
    ) -> Result<Self, Option<u64>> {
        let num_rows = keys.len();
        let most = num_rows + gone.len();
        if most >= MAX_ENTRIES {
            return Err(None);
        }
        let mut layer = Self {
            dim,
            places: vec![NONE; (most * 2).next_power_of_two().max(2)],
            keys,
            rows,
            num_rows,
            whole,
        };
        for entry in 0..num_rows {
            if !layer.put(layer.keys[entry], entry) {
                return Err(Some(layer.keys[entry]));
            }
        }
        for &key in gone {
            // In a whole slot a removed key needs no entry.
            if !layer.is_whole_for(key) && layer.put(key, layer.keys.len()) {
                layer.keys.push(key);
            }
        }
        Ok(layer)
    }

    pub(crate) fn empty(dim: usize) -> Self {
        Self {
            dim,
            places: vec![NONE; 2],
            keys: Vec::new(),
            rows: Words::Heap(Vec::new()),
            num_rows: 0,
            whole: std::iter::once(0..NUM_HASH_SLOTS).collect(),
        }
    }

    /// Put an entry in its place; false if its key has one.
    fn put(&mut self, key: u64, entry: usize) -> bool {
        let mask = self.places.len() - 1;
        let mut place = self.home(key);
        loop {
            match self.places[place] {
                NONE => break,
                other if self.keys[other as usize] == key => return false,
                _ => place = (place + 1) & mask,
            }
        }
        self.places[place] = entry as u32;
        true
    }

    fn home(&self, key: u64) -> usize {
        // The lower bits: the upper ones are alike in keys of one replica.
        hash_of_key(key) as usize & (self.places.len() - 1)
    }

    fn is_whole_for(&self, key: u64) -> bool {
        let slot = (hash_of_key(key) >> 48) as u32;
        self.whole.iter().any(|slots| slots.contains(&slot))
    }

    /// Whether nothing below it is ever asked.
    pub(crate) fn is_whole(&self) -> bool {
        let covered: u32 = self.whole.iter().map(|slots| slots.end - slots.start).sum();
        covered == NUM_HASH_SLOTS
    }

    pub(crate) fn num_entries(&self) -> usize {
        self.keys.len()
    }

    /// Return the bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        4 * (self.places.len() + self.rows.len()) + 8 * self.keys.len()
    }

    #[inline]
    pub(crate) fn find(&self, key: u64) -> Found<'_> {
        let mask = self.places.len() - 1;
        let mut place = self.home(key);
        loop {
            let entry = self.places[place];
            if entry == NONE {
                break;
            }
            let entry = entry as usize;
            if self.keys[entry] == key {
                if entry >= self.num_rows {
                    return Found::Gone;
                }
                return Found::Row(&self.rows[entry * self.dim..][..self.dim]);
            }
            place = (place + 1) & mask;
        }
        if self.is_whole_for(key) {
            Found::Gone
        } else {
            Found::Unsaid
        }
    }

    pub(crate) fn keys_with_rows(&self) -> &[u64] {
        &self.keys[..self.num_rows]
    }

    /// Return what two layers say together, this one over `below`; its rows are in a file of a
    /// folder, or in memory. `None`: that cannot be written, or has too many entries.
    pub(crate) fn over(&self, below: &Self, folder: Option<&Path>) -> Option<Self> {
        let mut rows = Rows::new(folder).ok()?;
        let mut append = |layer: &Self, entry: usize| {
            rows.keys.push(layer.keys[entry]);
            let row = &layer.rows[entry * layer.dim..][..layer.dim];
            rows.weights.push(row).ok()
        };
        for entry in 0..below.num_rows {
            if self.find(below.keys[entry]) == Found::Unsaid {
                append(below, entry)?;
            }
        }
        for entry in 0..self.num_rows {
            append(self, entry)?;
        }
        let mut whole = below.whole.clone();
        for slots in &self.whole {
            if !whole.contains(slots) {
                whole.push(slots.clone());
            }
        }
        let mut gone = self.keys[self.num_rows..].to_vec();
        gone.extend(&below.keys[below.num_rows..]);
        // A key that has gone below, of which this one has a row, has that.
        let words = rows.weights.finish().ok()?;
        Self::new(self.dim, rows.keys, words, &gone, united(whole)).ok()
    }
}

/// Return ranges that do not overlap.
fn united(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.sort_by_key(|range| range.start);
    let mut united: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match united.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => united.push(range),
        }
    }
    united
}
