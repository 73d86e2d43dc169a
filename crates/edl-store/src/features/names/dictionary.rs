//! A table's dictionary: the string that each key was made of, for tables that ask for it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

use xxhash_rust::xxh64::xxh64;

use crate::counters::TableStats;
use crate::features::moving::{Gift, Remembered, RememberedKind, Torn};
use crate::features::{NewRow, RowFeature};
use crate::route::unhash;

/// The longest string that is kept, in bytes of UTF-8; whoever sends a longer one cuts it.
pub const MAX_NAME_BYTES: usize = 1024;

/// Updates that a name waits for a row. A name comes before the update that may create the row, and
/// stays behind when a row goes that the next update may create again.
const PATIENCE: u64 = 1024;

/// Names that may wait before those that have waited long enough are looked for.
const MIN_SWEEP: usize = 1024;

/// The bytes of a name beside its text: its place in a table that is at most 7/8 full and is
/// doubled then (1.7 places on average), a control byte, and the overhead of an allocation.
const ENTRY_BYTES: usize = 17 * (size_of::<(u64, Name)>() + 1) / 10 + 16;

/// Hashes are hashes already.
#[derive(Debug, Clone, Copy, Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh64(bytes, self.0);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

type Map = HashMap<u64, Name, BuildHasherDefault<AsIs>>;

#[derive(Debug)]
struct Name {
    text: Box<str>,
    /// The replica's version when it came, or when it was sent again while it waited.
    version: u64,
}

/// The names of one stripe's keys, which are known by their hashes here.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The names of keys with a row.
    kept: Map,
    /// The names of keys without a row, for a while.
    waiting: Map,
    /// Bytes of all texts.
    text_bytes: usize,
    /// Names that waited when the last sweep was over.
    swept_len: usize,
    /// Strings that have the key of another one: the key's hash, and one of the string.
    collisions: HashSet<(u64, u64)>,
}

impl RowFeature for Names {
    fn created(&mut self, row: NewRow<'_>, _word: Option<u64>) {
        self.row_came(row.hash);
    }

    fn removed(&mut self, hash: u64, version: u64) -> bool {
        self.row_went(hash, version)
    }

    fn passed(&mut self, version: u64) {
        self.sweep(version);
    }

    fn bytes(&self) -> usize {
        let count = self.kept.len() + self.waiting.len();
        Self::bytes_of(count, self.text_bytes)
            + self.collisions.capacity() * size_of::<(u64, u64)>()
    }

    fn count(&self, stats: &mut TableStats) {
        stats.names += self.kept.len() as u64;
        stats.name_collisions += self.collisions.len() as u64;
    }

    fn give(
        &mut self,
        kind: RememberedKind,
        _from: u64,
        since: Option<u64>,
        out: &mut Remembered,
    ) -> Option<u64> {
        match kind {
            RememberedKind::Names => {
                for (hash, version, text) in self.since(since.unwrap_or(0)) {
                    out.push(unhash(hash), version, text.as_bytes());
                }
            }
            RememberedKind::OtherNames => {
                for &(hash, text_hash) in &self.collisions {
                    out.push(unhash(hash), 0, &text_hash.to_le_bytes());
                }
            }
            RememberedKind::Counts | RememberedKind::Sketches => {}
        }
        None
    }

    fn take(&mut self, gift: &Gift<'_>) -> Result<(), Torn> {
        match gift.kind {
            RememberedKind::Names => {
                let text = std::str::from_utf8(gift.bytes).map_err(|_| Torn { expected: 0 })?;
                self.add(gift.hash, text, gift.version, gift.has_row);
            }
            RememberedKind::OtherNames => {
                let text_hash = u64::from_le_bytes(gift.array()?);
                self.collisions.insert((gift.hash, text_hash));
            }
            RememberedKind::Counts | RememberedKind::Sketches => {}
        }
        Ok(())
    }
}

impl Names {
    /// Note the name of a key. The first one stays; another one for the same key is counted.
    /// Return whether it is kept for good: whether there is a row.
    pub(crate) fn add(&mut self, hash: u64, text: &str, version: u64, has_row: bool) -> bool {
        if let Some(name) = self.kept.get(&hash) {
            if *name.text != *text {
                self.collisions.insert((hash, xxh64(text.as_bytes(), hash)));
            }
            return true;
        }
        if let Some(name) = self.waiting.get_mut(&hash) {
            name.version = version;
            if *name.text != *text {
                self.collisions.insert((hash, xxh64(text.as_bytes(), hash)));
            }
            if has_row {
                self.row_came(hash);
            }
            return has_row;
        }
        self.text_bytes += text.len();
        let text = text.into();
        let place = if has_row {
            &mut self.kept
        } else {
            &mut self.waiting
        };
        place.insert(hash, Name { text, version });
        if self.waiting.len() > 2 * self.swept_len.max(MIN_SWEEP) {
            self.sweep(version);
        }
        has_row
    }

    /// A key has got a row.
    fn row_came(&mut self, hash: u64) {
        if let Some(name) = self.waiting.remove(&hash) {
            self.kept.insert(hash, name);
        }
    }

    /// A key's row has gone at a version; return whether it had a name.
    fn row_went(&mut self, hash: u64, version: u64) -> bool {
        let name = self.kept.remove(&hash);
        let had_one = name.is_some();
        if let Some(Name { text, .. }) = name {
            self.waiting.insert(hash, Name { text, version });
        }
        had_one
    }

    /// Forget the names that have waited long enough.
    fn sweep(&mut self, version: u64) {
        let text_bytes = &mut self.text_bytes;
        self.waiting.retain(|_, name| {
            let stays = name.version.saturating_add(PATIENCE) > version;
            if !stays {
                *text_bytes -= name.text.len();
            }
            stays
        });
        self.waiting.shrink_to(2 * self.waiting.len());
        self.swept_len = self.waiting.len();
    }

    pub(crate) fn get(&self, hash: u64) -> Option<&str> {
        self.kept.get(&hash).map(|name| &*name.text)
    }

    /// Return what so many names of so many bytes take.
    pub(crate) fn bytes_of(count: usize, text_bytes: usize) -> usize {
        count * ENTRY_BYTES + text_bytes
    }

    /// Return the names that came at a version or later, each with its version. Those that wait are
    /// among them: an update that is under way may need them.
    pub(crate) fn since(&self, version: u64) -> impl Iterator<Item = (u64, u64, &str)> {
        let all = self.kept.iter().chain(&self.waiting);
        all.filter(move |(_, name)| name.version >= version)
            .map(|(&hash, name)| (hash, name.version, &*name.text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_of_a_key_stays_and_others_are_counted_once() {
        let mut names = Names::default();
        assert!(names.add(1, "one", 5, true));
        assert!(names.add(1, "uno", 6, true));
        assert!(names.add(1, "uno", 7, true));
        assert!(names.add(1, "one", 8, true));
        assert_eq!(
            (names.get(1), names.collisions.len(), names.kept.len()),
            (Some("one"), 1, 1)
        );
    }

    #[test]
    fn a_name_waits_for_its_row_and_is_forgotten_if_none_comes() {
        let mut names = Names::default();
        assert!(!names.add(1, "one", 5, false));
        assert!(!names.add(2, "two", 6, false));
        names.row_came(1);
        assert_eq!((names.get(1), names.get(2)), (Some("one"), None));
        names.sweep(6 + PATIENCE);
        names.row_came(2);
        assert_eq!((names.get(1), names.get(2)), (Some("one"), None));
        assert_eq!(names.bytes(), Names::bytes_of(1, 3));
    }

    #[test]
    fn a_row_that_comes_back_at_once_has_its_name() {
        let mut names = Names::default();
        names.add(1, "one", 5, true);
        assert!(names.row_went(1, 9));
        assert!(!names.row_went(1, 9));
        assert_eq!((names.get(1), names.kept.len()), (None, 0));
        names.row_came(1);
        assert_eq!(names.get(1), Some("one"));
    }

    #[test]
    fn names_that_wait_are_not_more_than_come_in_the_time_that_they_wait() {
        let mut names = Names::default();
        for version in 0..100_000_u64 {
            names.add(version, "text", version, false);
        }
        assert!(names.waiting.len() <= 4 * PATIENCE as usize, "{names:?}");
    }
}
