//! Many searches of an index at a time, so that their cache misses overlap.

use edl_optim::prefetch;

use super::{Entry, Found, GROUP, Homes, Index, LINE, NO_ROW, search, search_line};

/// How many searches or rows ahead of the one at hand a cache line is asked for: as many as a core
/// has requests under way.
pub(crate) const AHEAD: usize = 24;

/// The entries of an index, with what it takes to get at them done once.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    homes: Homes,
    current: &'a [[Entry; LINE]],
    old: &'a [[Entry; LINE]],
}

/// The same, to change versions.
pub(crate) struct ViewMut<'a> {
    homes: Homes,
    current: &'a mut [[Entry; LINE]],
    old: &'a mut [[Entry; LINE]],
}

impl Index {
    /// Return access to the entries for a loop over many.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            homes: self.homes(),
            current: self.current.lines(),
            old: self.old.as_ref().map_or(&[], |old| old.places.lines()),
        }
    }

    /// Return access to the entries for a loop that changes many.
    #[inline(always)]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        let old = self.old.as_mut();
        ViewMut {
            homes: Homes::new(&self.current, old.as_deref()),
            current: self.current.lines_mut(),
            old: old.map_or(&mut [], |old| old.places.lines_mut()),
        }
    }
}

impl<'a> View<'a> {
    /// Return where the search for a hash begins.
    #[inline(always)]
    fn start(&self, hash: u64) -> (&'a [[Entry; LINE]], usize) {
        let (line, in_old) = self.homes.of(hash);
        (if in_old { self.old } else { self.current }, line)
    }

    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let (lines, line) = self.start(hash);
        prefetch(&lines[line]);
    }

    /// Ask for the lines of the first `AHEAD` hashes, or if there are none, of `next`; return
    /// the hashes after them.
    ///
    #[inline(always)]
    fn prefetch_some<'h>(&self, hashes: &'h [u64], next: &'h [u64]) -> &'h [u64] {
        let hashes = if hashes.is_empty() { next } else { hashes };
        let (now, later) = hashes.split_at(AHEAD.min(hashes.len()));
        for &hash in now {
            self.prefetch(hash);
        }
        later
    }

    /// Find the rows of up to `GROUP` hashes; `NO_ROW` for those that have none.
    ///
    /// The lines of the first `AHEAD` should have been asked for; those of the first of `next`,
    /// the hashes of the next group, are asked for here.
    #[inline(always)]
    pub(crate) fn find(&self, hashes: &[u64], next: &[u64], rows: &mut [u32; GROUP]) {
        let mut later = Later::new();
        let (_, mut ahead) = hashes.split_at(AHEAD.min(hashes.len()));
        for (i, (row, &hash)) in rows.iter_mut().zip(hashes).enumerate() {
            if i % AHEAD == 0 {
                ahead = self.prefetch_some(ahead, next);
            }
            let (lines, line) = self.start(hash);
            *row = match search_line(&lines[line], hash) {
                Found::At(at) => lines[line][at].row(),
                Found::Empty(_) => NO_ROW,
                Found::Nothing => later.put_off(i, lines, line),
            };
        }
        for i in later.each() {
            let (lines, line) = self.start(hashes[i]);
            if let (line, Found::At(at)) = search(lines, line, hashes[i]) {
                rows[i] = lines[line][at].row();
            }
        }
    }
}

/// Searches of a group that leave the line where they began: put off until their next line has
/// come.
struct Later {
    searches: [u16; GROUP],
    len: usize,
}

impl Later {
    #[inline(always)]
    fn new() -> Self {
        Self {
            searches: [0; GROUP],
            len: 0,
        }
    }

    /// Note that the search for hash `i` goes on after `line`.
    #[inline(always)]
    fn put_off(&mut self, i: usize, lines: &[[Entry; LINE]], line: usize) -> u32 {
        prefetch(lines.get(line + 1).unwrap_or(&lines[0]));
        self.searches[self.len] = i as u16;
        self.len += 1;
        NO_ROW
    }

    #[inline(always)]
    fn each(&self) -> impl Iterator<Item = usize> {
        self.searches[..self.len].iter().map(|&i| usize::from(i))
    }
}

impl ViewMut<'_> {
    #[inline(always)]
    fn as_view(&self) -> View<'_> {
        View {
            homes: self.homes,
            current: self.current,
            old: self.old,
        }
    }

    /// Set the version of up to `GROUP` hashes; return their rows as `View::find` does, and in
    /// `versions` what they had.
    #[inline(always)]
    pub(crate) fn touch(
        &mut self,
        hashes: &[u64],
        next: &[u64],
        version: u64,
        rows: &mut [u32; GROUP],
        versions: &mut [u64; GROUP],
    ) {
        let mut later = Later::new();
        let (_, mut ahead) = hashes.split_at(AHEAD.min(hashes.len()));
        for (i, &hash) in hashes.iter().enumerate() {
            if i % AHEAD == 0 {
                ahead = self.as_view().prefetch_some(ahead, next);
            }
            let (line, in_old) = self.homes.of(hash);
            let lines = if in_old {
                &mut *self.old
            } else {
                &mut *self.current
            };
            rows[i] = match search_line(&lines[line], hash) {
                Found::At(at) => {
                    let entry = &mut lines[line][at];
                    versions[i] = entry.replace_version(version);
                    entry.row()
                }
                Found::Empty(_) => NO_ROW,
                Found::Nothing => later.put_off(i, lines, line),
            };
        }
        for i in later.each() {
            let (line, in_old) = self.homes.of(hashes[i]);
            let lines = if in_old {
                &mut *self.old
            } else {
                &mut *self.current
            };
            if let (line, Found::At(at)) = search(lines, line, hashes[i]) {
                let entry = &mut lines[line][at];
                versions[i] = entry.replace_version(version);
                rows[i] = entry.row();
            }
        }
    }
}
