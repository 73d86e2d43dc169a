//! From the hash of a key to its row: open addressing that grows without a stop.

use std::cell::Cell;
use std::ops::Range;

use crate::memory::Buffer;
use bytemuck::{Pod, Zeroable};

mod change;
mod view;

/// Bits of an entry for the row; the rest is for the version.
const ROW_BITS: u32 = 28;

/// Rows that an index can hold.
pub(crate) const MAX_ROWS: usize = (1 << ROW_BITS) - 1;

/// The last version that an entry can hold.
pub(crate) const MAX_VERSION: u64 = (1 << (64 - ROW_BITS)) - 1;

/// The number of keys that are looked up together. A block has 512 keys of a stripe in the mean. A
/// second group for the few blocks with more would wait for the memory once more.
pub(crate) const GROUP: usize = 768;

/// The row of a hash that is not there.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// Places in a cache line. Searches begin with a line, so that most of them end in it.
const LINE: usize = 4;

/// Places of a fresh index.
const FIRST_CAPACITY: usize = 64;

/// An index grows by a quarter when it is three quarters full. So most searches stay within a line.
/// An entry takes 27 bytes in the mean, including the places that are being emptied.
const GROWTH: f64 = 1.25;

/// Bytes that an entry takes at most, places that are being emptied included, unless keys crowd.
pub(crate) const ENTRY_BYTES: usize = 48;

/// Places of the old index that an insertion empties while the index grows: it is empty after a
/// 32nd of its places in insertions.
const MOVED_PER_INSERT: usize = 32;

/// The largest distance of an entry from its home; beyond it the index grows. At the usual load no
/// entry is so far. It happens when keys come in the order of their hashes, as from a scan, and
/// then the index soon has the size that it will need.
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

    /// Return the same with another version.
    #[inline(always)]
    fn at_version(&self, version: u64) -> Self {
        Self {
            hash: self.hash,
            place: self.place & ((1 << ROW_BITS) - 1) | version << ROW_BITS,
        }
    }

    /// Whether this is the entry of a hash. An empty place reads as hash 0.
    #[inline(always)]
    fn has(&self, hash: u64) -> bool {
        self.hash == hash && !self.is_empty()
    }
}

/// The hashes of one stripe: a contiguous range, spread evenly over the places of its index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HashRange {
    pub(crate) first: u64,
    /// At most 2^64.
    pub(crate) width: u128,
}

/// Places in the order of the hash. An entry's home is the first place of a line. The entry is in
/// the first place from there on that was free (after the last place comes the first).
struct Places {
    buffer: Buffer,
    capacity: usize,
    first: u64,
    /// Lines times `2^64 / width`: a hash times this is its line times 2^64.
    scale: u64,
}

impl Places {
    fn new(capacity: usize, range: HashRange) -> Self {
        let lines = capacity.div_ceil(LINE);
        let capacity = lines * LINE;
        Self {
            buffer: Buffer::zeroed(capacity * size_of::<Entry>()),
            capacity,
            first: range.first,
            // Fits: a range has 2^48 hashes at least, and there are far fewer than 2^48 places.
            scale: (((lines as u128) << 64) / range.width) as u64,
        }
    }

    #[inline(always)]
    fn lines(&self) -> &[[Entry; LINE]] {
        &self.buffer.slice()[..self.capacity / LINE]
    }

    #[inline(always)]
    fn lines_mut(&mut self) -> &mut [[Entry; LINE]] {
        &mut self.buffer.slice_mut()[..self.capacity / LINE]
    }

    fn entries(&self) -> &[Entry] {
        self.lines().as_flattened()
    }

    fn entries_mut(&mut self) -> &mut [Entry] {
        self.lines_mut().as_flattened_mut()
    }

    #[inline(always)]
    fn home_line(&self, hash: u64) -> usize {
        home_line(hash.wrapping_sub(self.first), self.scale)
    }

    /// Return the place at which the search for a hash begins.
    #[inline(always)]
    fn home(&self, hash: u64) -> usize {
        self.home_line(hash) * LINE
    }

    /// Return the place for a hash that is not there.
    fn vacancy(&self, hash: u64) -> usize {
        match search(self.lines(), self.home_line(hash), hash) {
            (line, Found::Empty(at)) => line * LINE + at,
            _ => unreachable!("hash {hash} is there already"),
        }
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

/// Return the home of a hash, which is counted from the stripe's first.
#[inline(always)]
fn home_line(hash: u64, scale: u64) -> usize {
    ((u128::from(hash) * u128::from(scale)) >> 64) as usize
}

/// The result of a search in one line.
#[derive(Clone, Copy, PartialEq)]
enum Found {
    /// The hash, at this place of the line.
    At(usize),
    /// The hash is nowhere; it would be at this empty place.
    Empty(usize),
    /// Neither; the search goes on with the next line.
    Nothing,
}

/// An entry to look at, whether it may be changed or not.
pub(crate) trait Look {
    fn entry(&self) -> Entry;
}

impl Look for Entry {
    #[inline(always)]
    fn entry(&self) -> Entry {
        *self
    }
}

impl Look for Cell<Entry> {
    #[inline(always)]
    fn entry(&self) -> Entry {
        self.get()
    }
}

/// Return where in a line a hash lies if it does. Empty places come last: none hides hash 0.
#[inline(always)]
fn place_in(line: &[impl Look; LINE], hash: u64) -> usize {
    // All places are compared at once: which one it is cannot be predicted.
    let mut at = 0;
    for i in (0..LINE).rev() {
        at = if line[i].entry().hash == hash { i } else { at };
    }
    at
}

/// Search one line for a hash.
#[inline(always)]
fn search_line(line: &[impl Look; LINE], hash: u64) -> Found {
    let at = place_in(line, hash);
    if line[at].entry().has(hash) {
        return Found::At(at);
    }
    match line.iter().position(|place| place.entry().is_empty()) {
        Some(at) => Found::Empty(at),
        None => Found::Nothing,
    }
}

/// Search from `line` on; return the line where the search ends, and how.
#[inline(always)]
fn search<T: Look>(lines: &[[T; LINE]], mut line: usize, hash: u64) -> (usize, Found) {
    loop {
        match search_line(&lines[line], hash) {
            Found::Nothing => line = if line + 1 == lines.len() { 0 } else { line + 1 },
            found => return (line, found),
        }
    }
}

/// The index of one stripe.
///
/// It grows by moving entries from `old` to `current`, home by home in the order of the hash. An
/// entry whose home in `old` is below `moved` is in `current`, and all others are in `old`.
pub(crate) struct Index {
    range: HashRange,
    /// The capacity of `current` before it was rounded: rounding shall not bring the sizes of
    /// stripes together.
    size: f64,
    current: Places,
    old: Option<Old>,
    len: usize,
}

struct Old {
    places: Places,
    moved: usize,
}

impl Index {
    /// Make an empty index. Indexes with different `phase`, from 0 to 1, grow at different sizes.
    pub(crate) fn new(range: HashRange, phase: f64) -> Self {
        let size = FIRST_CAPACITY as f64 * GROWTH.powf(phase);
        Self {
            range,
            size,
            current: Places::new(size as usize, range),
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
            first: self.range.first,
            current: self.current.scale,
            old: old.map_or(0, |old| old.places.scale),
            moved: old.map_or(usize::MAX, |old| old.moved / LINE),
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
        let (line, in_old) = self.homes().of(hash);
        let old = self.old.as_ref().filter(|_| in_old);
        let lines = old.map_or(&self.current, |old| &old.places).lines();
        match search(lines, line, hash) {
            (line, Found::At(at)) => Some(lines[line][at].row()),
            _ => None,
        }
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
        self.grow(wanted as f64);
        while self.old.is_some() {
            self.move_some();
        }
    }

    fn grow(&mut self, size: f64) {
        self.size = size;
        let grown = Places::new(size as usize, self.range);
        self.old = Some(Old {
            places: std::mem::replace(&mut self.current, grown),
            moved: 0,
        });
    }

    /// Add a hash that is not there.
    ///
    /// # Panics
    /// If an entry cannot hold the row's number or the version: one would run into the other.
    pub(crate) fn insert(&mut self, hash: u64, row: u32, version: u64) {
        assert!(
            (row as usize) < MAX_ROWS && version <= MAX_VERSION,
            "row {row} at version {version} cannot be numbered"
        );
        let capacity = self.current.capacity;
        if self.old.is_none() && (self.len + 1) * 4 > capacity * 3 {
            self.grow(self.size * GROWTH);
        }
        let places = self.places_mut(hash);
        let at = places.vacancy(hash);
        places.entries_mut()[at] = Entry::new(hash, row, version);
        let distance = (at + places.capacity - places.home(hash)) % places.capacity;
        self.len += 1;
        if distance > FAR && self.old.is_none() && self.len * MAX_SPARSE > capacity {
            self.grow(self.size * 4.0);
        }
        self.move_some();
    }

    /// Move the entries of the next homes from `old` to `current`.
    fn move_some(&mut self) {
        let Some(old) = &mut self.old else { return };
        let end = (old.moved + MOVED_PER_INSERT).min(old.places.capacity);
        let current = &mut self.current;
        old.places.visit(old.moved..end, |entry| {
            let at = current.vacancy(entry.hash);
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

    /// Return the entries of some listed hashes, which rise, from the hash `from` on: of about `max`
    /// of them; and the hash to go on from.
    pub(crate) fn pick(&self, listed: &[u64], from: u64, max: usize) -> (Vec<Entry>, Option<u64>) {
        let listed = &listed[listed.partition_point(|&hash| hash < from)..];
        let (now, later) = listed.split_at(max.min(listed.len()));
        let entry = |&hash: &u64| {
            let (row, version) = self.get(hash)?;
            Some(Entry::new(hash, row, version))
        };
        (
            now.iter().filter_map(entry).collect(),
            later.first().copied(),
        )
    }
}

/// The facts that decide where the search for a hash begins.
#[derive(Clone, Copy)]
struct Homes {
    first: u64,
    /// The scales of the two places.
    current: u64,
    old: u64,
    /// Lines of `old` from this on are searched there; none if there is no `old`.
    moved: usize,
}

impl Homes {
    /// Return the line that is the home of a hash, and whether it is one of `old`.
    #[inline(always)]
    fn of(&self, hash: u64) -> (usize, bool) {
        if self.moved != usize::MAX {
            let line = home_line(hash.wrapping_sub(self.first), self.old);
            if line >= self.moved {
                return (line, true);
            }
        }
        (self.of_current(hash), false)
    }

    /// Return its line among the current places.
    #[inline(always)]
    fn of_current(&self, hash: u64) -> usize {
        home_line(hash.wrapping_sub(self.first), self.current)
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
mod tests;
