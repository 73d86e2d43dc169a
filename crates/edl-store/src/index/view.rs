//! Many searches of an index at a time, so that their cache misses overlap.

use std::ops::Deref;

use edl_optim::prefetch;

use super::{Entry, Found, GROUP, Homes, Index, LINE, NO_ROW, search, search_line};

/// Cache lines that are asked for in a burst, one burst ahead of what is worked on.
///
/// In a burst because a request for a line whose page the processor has yet to look up holds up
/// what comes after it: requests look up their pages at the same time only if there is little
/// else between them.
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

    /// Return where the search for a hash begins, and ask for it.
    #[inline(always)]
    fn ask(&self, hash: u64) -> (usize, bool) {
        let (line, old) = self.homes.of(hash);
        prefetch(&self.lines(old)[line]);
        (line, old)
    }

    /// Ask for the cache line where the search for a hash begins.
    #[inline(always)]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.ask(hash);
    }
}

/// Where an entry lies.
struct Place {
    old: bool,
    line: usize,
    at: usize,
}

/// Search for up to `GROUP` hashes; `found` is told the number of each that is there, in no order.
///
/// The lines of the first `BURST` should have been asked for; those of the first of `next`, the
/// hashes of the next group, are asked for here.
#[inline(always)]
fn search_all<L: Deref<Target = [[Entry; LINE]]>>(
    index: &mut Access<L>,
    hashes: &[u64],
    next: &[u64],
    mut found: impl FnMut(&mut Access<L>, usize, Place),
) {
    let mut homes = [(0, false); 2 * BURST];
    let (mut later, mut num_later) = ([0_u16; GROUP], 0);
    for i in 0..BURST.min(hashes.len()) {
        homes[i] = index.homes.of(hashes[i]);
    }
    for (i, &hash) in hashes.iter().enumerate() {
        if i.is_multiple_of(BURST) {
            let ahead = hashes.get(i + BURST..).unwrap_or_default();
            for (j, &hash) in ahead.iter().take(BURST).enumerate() {
                homes[(i + BURST + j) % (2 * BURST)] = index.ask(hash);
            }
            if ahead.is_empty() {
                next.iter()
                    .take(BURST)
                    .for_each(|&hash| index.prefetch(hash));
            }
        }
        let (line, old) = homes[i % (2 * BURST)];
        let places = index.lines(old);
        match search_line(&places[line], hash) {
            Found::At(at) => found(index, i, Place { old, line, at }),
            Found::Empty(_) => {}
            Found::Nothing => {
                // It goes on when its next line has come.
                prefetch(places.get(line + 1).unwrap_or(&places[0]));
                later[num_later] = i as u16;
                num_later += 1;
            }
        }
    }
    for i in later[..num_later].iter().map(|&i| usize::from(i)) {
        let (line, old) = index.homes.of(hashes[i]);
        if let (line, Found::At(at)) = search(index.lines(old), line, hashes[i]) {
            found(index, i, Place { old, line, at });
        }
    }
}

impl View<'_> {
    /// Find the rows of up to `GROUP` hashes, as `search_all` has it; `NO_ROW` for those that
    /// have none.
    #[inline(always)]
    pub(crate) fn find(mut self, hashes: &[u64], next: &[u64], rows: &mut [u32; GROUP]) {
        rows[..hashes.len()].fill(NO_ROW);
        search_all(&mut self, hashes, next, |view, i, place| {
            rows[i] = view.lines(place.old)[place.line][place.at].row();
        });
    }
}

impl ViewMut<'_> {
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
        rows[..hashes.len()].fill(NO_ROW);
        search_all(self, hashes, next, |view, i, place| {
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
