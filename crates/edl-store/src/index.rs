//! From the hash of a key to its row: open addressing that grows without a stop.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use edl_optim::prefetch;

use crate::memory::Buffer;

mod change;

/// Bits of an entry for the row; the rest is for the version.
const ROW_BITS: u32 = 28;

/// Rows that an index can hold.
pub(crate) const MAX_ROWS: usize = (1 << ROW_BITS) - 1;

/// The last version that an entry can hold.
pub(crate) const MAX_VERSION: u64 = (1 << (64 - ROW_BITS)) - 1;

/// Places of a fresh index.
const FIRST_CAPACITY: usize = 64;

/// Places of the old index that an insertion empties while the index grows. It begins at four
/// fifths full and is empty after a sixteenth of its places in insertions.
const MOVED_PER_INSERT: usize = 16;

/// How far from its home an entry may come to lie before the index grows for it. At the usual
/// load that does not happen; it does when keys come in the order of their hashes, as from a
/// scan, and then the index soon has the size that it is going to need.
const FAR: usize = 1024;

/// Places for each entry up to which the index grows for the sake of distance: keys that were
/// chosen to collide shall not take all memory.
const MAX_SPARSE: usize = 64;

/// Homes that a walk sorts at a time.
const WALK: usize = 64;

/// A key and where its row is. Zero is an empty place.
#[derive(Debug, Clone, Copy, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Entry {
    /// The key's hash, which stands for the key.
    pub(crate) hash: u64,
    /// The version of the last update, above the row's number plus one.
    place: u64,
}

impl Entry {
    fn new(hash: u64, row: u32, version: u64) -> Self {
        Self {
            hash,
            place: version << ROW_BITS | (u64::from(row) + 1),
        }
    }

    #[inline(always)]
    fn is_empty(&self) -> bool {
        self.place == 0
    }

    /// The row's number in the arena.
    #[inline(always)]
    pub(crate) fn row(&self) -> u32 {
        (self.place & ((1 << ROW_BITS) - 1)) as u32 - 1
    }

    /// The version of the row's last update; of its creation, before the first.
    #[inline(always)]
    pub(crate) fn version(&self) -> u64 {
        self.place >> ROW_BITS
    }

    #[inline(always)]
    fn set_version(&mut self, version: u64) {
        self.place = self.place & ((1 << ROW_BITS) - 1) | version << ROW_BITS;
    }
}

/// The hashes of one shard: a contiguous range, spread evenly over the places of its index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashRange {
    pub(crate) first: u64,
    /// At most 2^64.
    pub(crate) width: u128,
}

/// Places in the order of the hash: an entry lies at its home or, where that is taken, in the
/// next free place (after the last place comes the first).
struct Places {
    buffer: Buffer,
    capacity: usize,
    first: u64,
    /// `capacity * 2^64 / width`: a hash times this is its home times 2^64.
    scale: u128,
}

impl Places {
    fn new(capacity: usize, range: HashRange) -> Self {
        Self {
            buffer: Buffer::zeroed(capacity * size_of::<Entry>()),
            capacity,
            first: range.first,
            scale: ((capacity as u128) << 64) / range.width,
        }
    }

    #[inline(always)]
    fn entries(&self) -> &[Entry] {
        &self.buffer.slice()[..self.capacity]
    }

    #[inline(always)]
    fn entries_mut(&mut self) -> &mut [Entry] {
        &mut self.buffer.slice_mut()[..self.capacity]
    }

    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash.wrapping_sub(self.first)) * self.scale) >> 64) as usize
    }

    /// Return the place of a hash, or the empty place that ends its search.
    #[inline(always)]
    fn search(&self, hash: u64) -> (usize, bool) {
        search(self.entries(), self.home(hash), hash)
    }

    /// Call `visit` for each entry whose home is among `homes`.
    fn visit(&self, homes: Range<usize>, mut visit: impl FnMut(Entry)) {
        let entries = self.entries();
        let mut at = homes.start;
        for step in 0..entries.len() {
            let entry = entries[at];
            // Displaced entries follow the last home without a gap.
            if entry.is_empty() && homes.start + step >= homes.end {
                return;
            }
            if !entry.is_empty() && homes.contains(&self.home(entry.hash)) {
                visit(entry);
            }
            at += 1;
            if at == entries.len() {
                at = 0;
            }
        }
    }
}

#[inline(always)]
fn search(entries: &[Entry], home: usize, hash: u64) -> (usize, bool) {
    let mut at = home;
    loop {
        let entry = &entries[at];
        if entry.hash == hash && !entry.is_empty() {
            return (at, true);
        }
        if entry.is_empty() {
            return (at, false);
        }
        at += 1;
        if at == entries.len() {
            at = 0;
        }
    }
}

/// The index of one shard.
///
/// It grows by moving entries, home by home in the order of the hash, from `old` to `current`;
/// an entry whose home in `old` is below `moved` is in `current`, all others are in `old`.
pub(crate) struct Index {
    range: HashRange,
    current: Places,
    old: Option<Old>,
    len: usize,
}

struct Old {
    places: Places,
    moved: usize,
}

impl Index {
    pub(crate) fn new(range: HashRange) -> Self {
        Self {
            range,
            current: Places::new(FIRST_CAPACITY, range),
            old: None,
            len: 0,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        let old = self.old.as_ref().map_or(0, |old| old.places.capacity);
        (self.current.capacity + old) * size_of::<Entry>()
    }

    #[inline(always)]
    fn homes(&self) -> Homes {
        let old = self.old.as_ref();
        Homes {
            first: self.current.first,
            current: self.current.scale,
            old: old.map_or(0, |old| old.places.scale),
            moved: old.map_or(usize::MAX, |old| old.moved),
        }
    }

    /// Return access to the entries for a loop over many.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            homes: self.homes(),
            current: self.current.entries(),
            old: self.old.as_ref().map_or(&[], |old| old.places.entries()),
        }
    }

    /// Return access to the entries for a loop that changes many.
    #[inline(always)]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut {
            homes: self.homes(),
            current: self.current.entries_mut(),
            old: self
                .old
                .as_mut()
                .map_or(&mut [], |old| old.places.entries_mut()),
        }
    }

    #[inline(always)]
    fn places_mut(&mut self, hash: u64) -> &mut Places {
        match &mut self.old {
            Some(old) if old.places.home(hash) >= old.moved => &mut old.places,
            _ => &mut self.current,
        }
    }

    /// Return the row of a hash.
    pub(crate) fn find(&self, hash: u64) -> Option<u32> {
        self.view().find(hash)
    }

    /// Make room for `additional` entries at once, so that they may come in any order.
    pub(crate) fn reserve(&mut self, additional: usize) {
        let wanted = (self.len + additional) + (self.len + additional) / 2;
        if wanted <= self.current.capacity {
            return;
        }
        while self.old.is_some() {
            self.move_some();
        }
        self.grow(wanted);
        while self.old.is_some() {
            self.move_some();
        }
    }

    fn grow(&mut self, capacity: usize) {
        let grown = Places::new(capacity, self.range);
        self.old = Some(Old {
            places: std::mem::replace(&mut self.current, grown),
            moved: 0,
        });
    }

    /// Add a hash that is not there.
    pub(crate) fn insert(&mut self, hash: u64, row: u32, version: u64) {
        let capacity = self.current.capacity;
        if self.old.is_none() && (self.len + 1) * 5 > capacity * 4 {
            self.grow(capacity + capacity / 2);
        }
        let places = self.places_mut(hash);
        let (at, found) = places.search(hash);
        debug_assert!(!found, "a hash is inserted once");
        places.entries_mut()[at] = Entry::new(hash, row, version);
        let distance = (at + places.capacity - places.home(hash)) % places.capacity;
        self.len += 1;
        if distance > FAR && self.old.is_none() && self.len * MAX_SPARSE > capacity {
            self.grow(capacity * 4);
        }
        self.move_some();
    }

    /// Move the entries of the next homes from `old` to `current`.
    fn move_some(&mut self) {
        let Some(old) = &mut self.old else { return };
        let end = (old.moved + MOVED_PER_INSERT).min(old.places.capacity);
        let current = &mut self.current;
        old.places.visit(old.moved..end, |entry| {
            let (at, _) = current.search(entry.hash);
            current.entries_mut()[at] = entry;
        });
        old.moved = end;
        if end == old.places.capacity {
            self.old = None;
        }
    }

    /// Return up to `max` entries from the hash `from` on, in the order of the hash, and the
    /// hash to go on from.
    pub(crate) fn walk(&self, from: u64, max: usize) -> (Vec<Entry>, Option<u64>) {
        let mut found = Vec::new();
        let from = from.max(self.range.first);
        let Some(old) = &self.old else {
            self.current.walk(from, max, |_| true, &mut found);
            return cut(found, max);
        };
        let moved = |hash: u64| old.places.home(hash) < old.moved;
        if moved(from) {
            self.current.walk(from, max, moved, &mut found);
        }
        if found.len() <= max {
            old.places.walk(from, max, |h| !moved(h), &mut found);
        }
        cut(found, max)
    }
}

/// What it takes to tell where the search for a hash begins.
#[derive(Clone, Copy)]
struct Homes {
    first: u64,
    /// The scales of the two places.
    current: u128,
    old: u128,
    /// Homes in `old` from this on are searched there; none if there is no `old`.
    moved: usize,
}

impl Homes {
    /// Return the home of a hash, and whether it is in `old`.
    #[inline(always)]
    fn of(&self, hash: u64) -> (usize, bool) {
        let hash = u128::from(hash.wrapping_sub(self.first));
        if self.moved != usize::MAX {
            let home = ((hash * self.old) >> 64) as usize;
            if home >= self.moved {
                return (home, true);
            }
        }
        (((hash * self.current) >> 64) as usize, false)
    }
}

/// The entries of an index, with what it takes to get at them done once.
pub(crate) struct View<'a> {
    homes: Homes,
    current: &'a [Entry],
    old: &'a [Entry],
}

/// The same, to change versions.
pub(crate) struct ViewMut<'a> {
    homes: Homes,
    current: &'a mut [Entry],
    old: &'a mut [Entry],
}

impl View<'_> {
    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let (home, old) = self.homes.of(hash);
        prefetch(&if old { self.old } else { self.current }[home]);
    }

    /// Return the row of a hash.
    #[inline(always)]
    pub(crate) fn find(&self, hash: u64) -> Option<u32> {
        let (home, old) = self.homes.of(hash);
        let entries = if old { self.old } else { self.current };
        let (at, found) = search(entries, home, hash);
        found.then(|| entries[at].row())
    }
}

impl ViewMut<'_> {
    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let (home, old) = self.homes.of(hash);
        prefetch(&if old { &*self.old } else { &*self.current }[home]);
    }

    /// Set the version of a hash; return its row, and the version that it had.
    #[inline(always)]
    pub(crate) fn touch(&mut self, hash: u64, version: u64) -> Option<(u32, u64)> {
        let (home, old) = self.homes.of(hash);
        let entries = if old {
            &mut *self.old
        } else {
            &mut *self.current
        };
        let (at, found) = search(entries, home, hash);
        if !found {
            return None;
        }
        let entry = &mut entries[at];
        let before = entry.version();
        entry.set_version(version);
        Some((entry.row(), before))
    }
}

impl Places {
    /// Append entries in the order of the hash until more than `max` are there.
    ///
    /// `belongs` is true for one contiguous range of hashes; others are left out.
    fn walk(&self, from: u64, max: usize, belongs: impl Fn(u64) -> bool, found: &mut Vec<Entry>) {
        let mut home = self.home(from);
        while home < self.capacity && found.len() <= max {
            let end = (home + WALK).min(self.capacity);
            let sorted = found.len();
            self.visit(home..end, |entry| {
                if entry.hash >= from && belongs(entry.hash) {
                    found.push(entry);
                }
            });
            found[sorted..].sort_unstable_by_key(|entry| entry.hash);
            home = end;
        }
    }
}

fn cut(mut found: Vec<Entry>, max: usize) -> (Vec<Entry>, Option<u64>) {
    let next = found.get(max).map(|entry| entry.hash);
    found.truncate(max);
    (found, next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::hash;

    const ALL: HashRange = HashRange {
        first: 0,
        width: 1 << 64,
    };

    #[test]
    fn every_key_is_found_at_every_moment_of_growth() {
        let mut index = Index::new(ALL);
        for key in 0..3000_u32 {
            assert_eq!(index.find(hash(u64::from(key))), None);
            index.insert(hash(u64::from(key)), key, 7);
            if key < 300 || key % 97 == 0 {
                for k in 0..=key {
                    assert_eq!(index.find(hash(u64::from(k))), Some(k));
                }
            }
        }
    }

    #[test]
    fn touching_sets_the_version_and_returns_the_last() {
        let mut index = Index::new(ALL);
        index.insert(5, 3, 10);
        assert_eq!(index.view_mut().touch(5, MAX_VERSION), Some((3, 10)));
        assert_eq!(index.view_mut().touch(5, 1), Some((3, MAX_VERSION)));
        assert_eq!(index.view_mut().touch(6, 1), None);
    }

    #[test]
    fn a_walk_gives_each_entry_once_in_order_even_while_growing() {
        let mut index = Index::new(ALL);
        let mut hashes = Vec::new();
        for key in 0..2000_u32 {
            hashes.push(hash(u64::from(key)));
            index.insert(hash(u64::from(key)), key, 0);
            if key % 61 != 0 {
                continue;
            }
            let mut expected = hashes.clone();
            expected.sort_unstable();
            for max in [1, 7, 10_000] {
                let mut seen = Vec::new();
                let mut cursor = Some(0);
                while let Some(from) = cursor {
                    let (entries, next) = index.walk(from, max);
                    assert!(entries.len() <= max);
                    seen.extend(entries.iter().map(|e| e.hash));
                    cursor = next;
                }
                assert_eq!(seen, expected);
            }
        }
    }

    #[test]
    fn keys_in_the_order_of_their_hashes_are_taken_in_linear_time() {
        let n = 300_000;
        let mut index = Index::new(ALL);
        for i in 0..n {
            index.insert(i * (u64::MAX / n), i as u32, 0);
        }
        assert!((0..n).all(|i| index.find(i * (u64::MAX / n)) == Some(i as u32)));
        assert!(index.bytes() <= n as usize * 16 * 8);
    }

    #[test]
    fn reserved_room_is_kept_and_entries_with_it() {
        let mut index = Index::new(ALL);
        for key in 0..1000 {
            index.insert(hash(key), key as u32, 0);
        }
        index.reserve(100_000);
        let bytes = index.bytes();
        for key in 1000..100_000 {
            index.insert(hash(key), key as u32, 0);
        }
        assert!((0..100_000).all(|key| index.find(hash(key)) == Some(key as u32)));
        assert_eq!(index.bytes(), bytes);
    }

    #[test]
    fn a_range_that_is_crowded_at_its_end_wraps_around() {
        let mut index = Index::new(ALL);
        for i in 0..1000_u32 {
            index.insert(u64::MAX - u64::from(i), i, 0);
        }
        for i in 0..1000_u32 {
            assert_eq!(index.find(u64::MAX - u64::from(i)), Some(i));
        }
        let (entries, next) = index.walk(0, 2000);
        assert_eq!(entries.len(), 1000);
        assert!(entries.is_sorted_by_key(|e| e.hash));
        assert_eq!(next, None);
    }
}
