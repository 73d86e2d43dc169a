//! Many searches of an index at a time, so that their cache misses overlap.

use std::cell::Cell;

use edl_optim::{AHEAD, prefetch};

use super::{Entry, Found, GROUP, Homes, Index, LINE, Look, NO_ROW, Old, place_in, search};

/// The entries of an index, with what it takes to get at them done once.
pub(crate) struct Access<'a, T> {
    homes: Homes,
    current: &'a [[T; LINE]],
    old: &'a [[T; LINE]],
}

/// Access for reading entries.
pub(crate) type View<'a> = Access<'a, Entry>;

/// Access for reading entries and changing versions.
pub(crate) type Cells<'a> = Access<'a, Cell<Entry>>;

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
    pub(crate) fn cells(&mut self) -> Cells<'_> {
        Cells {
            homes: self.homes(),
            current: cells(self.current.lines_mut()),
            old: match &mut self.old {
                Some(Old { places, .. }) => cells(places.lines_mut()),
                None => &[],
            },
        }
    }
}

fn cells(lines: &mut [[Entry; LINE]]) -> &[[Cell<Entry>; LINE]] {
    let cells = Cell::from_mut(lines.as_flattened_mut()).as_slice_of_cells();
    cells.as_chunks().0
}

impl<'a, T: Look> Access<'a, T> {
    /// Return the lines where a hash is searched for, and the one where that begins.
    #[inline(always)]
    fn home<const GROWING: bool>(&self, hash: u64) -> (&'a [[T; LINE]], usize) {
        let (line, old) = if GROWING {
            self.homes.of(hash)
        } else {
            (self.homes.of_current(hash), false)
        };
        (if old { self.old } else { self.current }, line)
    }

    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        let (lines, line) = self.home::<true>(hash);
        prefetch(&lines[line]);
    }

    /// Search for up to `GROUP` hashes; `found` is told the number of each that is there, in no
    /// order, and its entry.
    ///
    /// The lines of the first `AHEAD` should have been asked for; those of the first of `next`,
    /// the hashes of the next group, are asked for here.
    #[inline(always)]
    fn search(&self, hashes: &[u64], next: &[u64], found: impl FnMut(usize, &T)) {
        if self.homes.moved == usize::MAX {
            self.search_in::<false>(hashes, next, found);
        } else {
            self.search_in::<true>(hashes, next, found);
        }
    }

    /// `GROWING` is whether there are old places, so that the usual search need not ask.
    #[inline(always)]
    fn search_in<const GROWING: bool>(
        &self,
        hashes: &[u64],
        next: &[u64],
        mut found: impl FnMut(usize, &T),
    ) {
        let line_of = |hash: u64| {
            let (lines, home) = self.home::<GROWING>(hash);
            &lines[home]
        };
        let (mut later, mut num_later) = ([0_u16; GROUP], 0);
        let mut lines = [&self.current[0]; AHEAD];
        for (line, &hash) in lines.iter_mut().zip(hashes) {
            *line = line_of(hash);
        }
        let mut ahead = hashes.get(AHEAD..).unwrap_or_default().iter().chain(next);
        for (i, &hash) in hashes.iter().enumerate() {
            let line = lines[i % AHEAD];
            if let Some(&hash) = ahead.next() {
                let line = line_of(hash);
                prefetch(line);
                lines[i % AHEAD] = line;
            }
            let at = place_in(line, hash);
            if line[at].entry().has(hash) {
                found(i, &line[at]);
            } else if !line[LINE - 1].entry().is_empty() {
                // It goes on when its next line has come.
                let (lines, home) = self.home::<GROWING>(hash);
                prefetch(lines.get(home + 1).unwrap_or(&lines[0]));
                later[num_later] = i as u16;
                num_later += 1;
            }
        }
        for i in later[..num_later].iter().map(|&i| usize::from(i)) {
            let (lines, home) = self.home::<GROWING>(hashes[i]);
            if let (line, Found::At(at)) = search(lines, home, hashes[i]) {
                found(i, &lines[line][at]);
            }
        }
    }
}

impl View<'_> {
    /// Find the rows of up to `GROUP` hashes, as `search` has it; `NO_ROW` for those that have
    /// none.
    #[inline(never)]
    pub(crate) fn find(&self, hashes: &[u64], next: &[u64], rows: &mut [u32]) {
        let rows = &mut rows[..hashes.len()];
        rows.fill(NO_ROW);
        self.search(hashes, next, |i, entry| rows[i] = entry.row());
    }
}

impl Cells<'_> {
    /// Set the version of up to `GROUP` hashes; return their rows as `View::find` does, and in
    /// `versions` what they had.
    #[inline(never)]
    pub(crate) fn touch(
        &self,
        hashes: &[u64],
        next: &[u64],
        version: u64,
        rows: &mut [u32],
        versions: &mut [u64],
    ) {
        let (rows, versions) = (&mut rows[..hashes.len()], &mut versions[..hashes.len()]);
        rows.fill(NO_ROW);
        self.search(hashes, next, |i, cell| {
            let entry = cell.get();
            rows[i] = entry.row();
            versions[i] = entry.version();
            cell.set(entry.at_version(version));
        });
    }
}
