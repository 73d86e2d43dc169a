//! Many searches of an index at a time, so that their cache misses overlap.

use std::ops::Deref;

use edl_optim::prefetch;

use super::{Entry, Found, GROUP, Homes, Index, LINE, NO_ROW, search, search_line};

/// Cache lines that are asked for in a burst, one burst ahead of what is worked on.
///
/// In a burst because locating several in a row, with little else between, takes the processor less
/// than turning from one to the work on another each time.
pub(crate) const BURST: usize = 16;

/// The entries of an index, with what it takes to get at them done once.
#[derive(Clone, Copy)]
pub(crate) struct Access<L> {
    homes: Homes,
    current: L,
    old: L,
}

/// To look at entries.
pub(crate) type View<'a> = Access<&'a [[Entry; LINE]]>;

/// To change versions too.
pub(crate) type ViewMut<'a> = Access<&'a mut [[Entry; LINE]]>;

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

impl<L: Deref<Target = [[Entry; LINE]]>> Access<L> {
    /// Return the lines of the old places, or of the current ones.
    #[inline(always)]
    fn lines(&self, old: bool) -> &[[Entry; LINE]] {
        if old { &self.old } else { &self.current }
    }

    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let (line, old) = self.homes.of(hash);
        prefetch(&self.lines(old)[line]);
    }

    /// Search for up to `GROUP` hashes; `found` is told the number of each that is there, in no
    /// order.
    ///
    /// The lines of the first `BURST` should have been asked for; those of the first of `next`,
    /// the hashes of the next group, are asked for here.
    #[inline(always)]
    fn search(&mut self, hashes: &[u64], next: &[u64], found: impl FnMut(&mut Self, usize, Place)) {
        if self.homes.moved == usize::MAX {
            self.search_in::<false>(hashes, next, found);
        } else {
            self.search_in::<true>(hashes, next, found);
        }
    }

    /// `GROWING` is whether there are old places, so that the usual search need not ask.
    #[inline(always)]
    fn search_in<const GROWING: bool>(
        &mut self,
        hashes: &[u64],
        next: &[u64],
        mut found: impl FnMut(&mut Self, usize, Place),
    ) {
        let homes = self.homes;
        let home = |hash: u64| {
            if GROWING {
                homes.of(hash)
            } else {
                (homes.of_current(hash), false)
            }
        };
        let (mut later, mut num_later) = ([0_u16; GROUP], 0);
        let mut from = [(0, false); BURST];
        for (from, &hash) in from.iter_mut().zip(hashes) {
            *from = home(hash);
        }
        for (burst, these) in hashes.chunks(BURST).enumerate() {
            let first = burst * BURST;
            let ahead = hashes.get(first + BURST..).unwrap_or_default();
            let ahead = if ahead.is_empty() { next } else { ahead };
            let mut ahead_from = [(0, false); BURST];
            for (from, &hash) in ahead_from.iter_mut().zip(ahead) {
                *from = home(hash);
                prefetch(&self.lines(GROWING && from.1)[from.0]);
            }
            for (i, (&hash, &(line, old))) in these.iter().zip(&from).enumerate() {
                let old = GROWING && old;
                let lines = self.lines(old);
                match search_line(&lines[line], hash) {
                    Found::At(at) => found(self, first + i, Place { old, line, at }),
                    Found::Empty(_) => {}
                    Found::Nothing => {
                        // It goes on when its next line has come.
                        prefetch(lines.get(line + 1).unwrap_or(&lines[0]));
                        later[num_later] = (first + i) as u16;
                        num_later += 1;
                    }
                }
            }
            from = ahead_from;
        }
        for i in later[..num_later].iter().map(|&i| usize::from(i)) {
            let (line, old) = home(hashes[i]);
            if let (line, Found::At(at)) = search(self.lines(old), line, hashes[i]) {
                found(self, i, Place { old, line, at });
            }
        }
    }
}

/// Where an entry lies.
struct Place {
    old: bool,
    line: usize,
    at: usize,
}

impl View<'_> {
    /// Find the rows of up to `GROUP` hashes, as `search` has it; `NO_ROW` for those that have
    /// none.
    #[inline(never)]
    pub(crate) fn find(mut self, hashes: &[u64], next: &[u64], rows: &mut [u32]) {
        let rows = &mut rows[..hashes.len()];
        rows.fill(NO_ROW);
        self.search(hashes, next, |view, i, place| {
            rows[i] = view.lines(place.old)[place.line][place.at].row();
        });
    }
}

impl ViewMut<'_> {
    /// Set the version of up to `GROUP` hashes; return their rows as `View::find` does, and in
    /// `versions` what they had.
    #[inline(never)]
    pub(crate) fn touch(
        &mut self,
        hashes: &[u64],
        next: &[u64],
        version: u64,
        rows: &mut [u32],
        versions: &mut [u64],
    ) {
        let (rows, versions) = (&mut rows[..hashes.len()], &mut versions[..hashes.len()]);
        rows.fill(NO_ROW);
        self.search(hashes, next, |view, i, place| {
            let lines = if place.old {
                &mut *view.old
            } else {
                &mut *view.current
            };
            let entry = &mut lines[place.line][place.at];
            versions[i] = entry.replace_version(version);
            rows[i] = entry.row();
        });
    }
}
