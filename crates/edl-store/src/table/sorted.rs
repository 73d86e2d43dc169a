//! The keys of a batch, sorted by stripe.

use std::cell::RefCell;

use crate::placement::{NUM_STRIPES, Placement};
use crate::route::hash;
use crate::stages::{Stage, Watch};
use crate::stripe::Keys;

/// Keys that are sorted by stripe at a time: their hashes and gradients stay in the cache, and those
/// of a stripe, 512 in the mean, are one `GROUP`.
pub(super) const BLOCK: usize = 1 << 13;

/// A block of keys, sorted by stripe; kept by each thread for the next batch.
pub(super) struct Sorted {
    /// The hashes of each stripe, from a multiple of `APART` on.
    hashes: Vec<u64>,
    positions: Vec<u32>,
    /// The end of each stripe's keys.
    ends: [usize; NUM_STRIPES],
}

/// Room for one stripe's keys, which may be all keys of a block. Unused room is never touched, and
/// takes no memory. The number is no power of two: otherwise all ends, which advance together,
/// would be in one set of the cache.
const APART: usize = BLOCK + 40;

thread_local! {
    pub(super) static SORTED: RefCell<Sorted> = RefCell::new(Sorted::new());
}

impl Sorted {
    fn new() -> Self {
        Self {
            hashes: vec![0; NUM_STRIPES * APART],
            positions: vec![0; NUM_STRIPES * APART],
            ends: [0; NUM_STRIPES],
        }
    }

    /// Sort at most `BLOCK` keys, all of which belong to this replica.
    pub(super) fn sort(&mut self, keys: &[u64], placement: &Placement) {
        let mut watch = Watch::start();
        let mut ends = std::array::from_fn(|stripe| stripe * APART);
        let (hashes, positions) = (&mut self.hashes[..], &mut self.positions[..]);
        for (position, &key) in keys.iter().enumerate() {
            let hash = hash(key);
            let end = &mut ends[placement.stripe(hash)];
            hashes[*end] = hash;
            positions[*end] = position as u32;
            *end += 1;
        }
        self.ends = ends;
        watch.lap(Stage::Sort);
    }

    /// Return the keys of one stripe.
    pub(super) fn keys(&self, stripe: usize) -> Keys<'_> {
        let range = stripe * APART..self.ends[stripe];
        Keys {
            hashes: &self.hashes[range.clone()],
            positions: &self.positions[range],
        }
    }
}
