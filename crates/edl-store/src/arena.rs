//! Rows of one width, numbered in the order of their creation.

use edl_optim::prefetch;

use crate::index::BURST;
use crate::memory::Buffer;

/// Bytes of the first segment; each further one doubles the rows.
const FIRST_BYTES: usize = 4096;

/// Bytes that are skipped at most: half a huge page, so that they are within small segments.
const SKIPPED_BYTES: usize = 1 << 20;

/// Floats in a cache line.
const LINE: usize = 16;

/// Segments that an arena can come to have: rows are numbered by 28 bits.
const MAX_SEGMENTS: usize = 29;

/// Rows at a fixed stride in segments that double, so that growing copies nothing: row `r` is
/// number `r + skipped + 2^b` of a sequence whose segments begin at the powers of two from `2^b`
/// on. What is skipped is never touched, and takes no memory.
pub(crate) struct Arena {
    stride: usize,
    /// Binary logarithm of the rows in the first segment.
    first_log2: u32,
    /// Numbers that no row has, so that arenas begin a new page at different numbers of rows.
    skipped: u32,
    segments: Vec<Buffer>,
    len: u32,
}

/// Return the floats from one row to the next, for rows of `width` floats.
///
/// Up to a line, the next power of two: no row straddles two lines, and a row of one float
/// takes four bytes. Above, the next half line: a row then touches no more lines than if it
/// began with one.
pub(crate) fn stride(width: usize) -> usize {
    if width <= LINE {
        width.next_power_of_two()
    } else {
        width.next_multiple_of(LINE / 2)
    }
}

impl Arena {
    /// Make an empty arena for rows of `width` floats; `phase` from 0 to 1 says how far into a
    /// page it begins.
    pub(crate) fn new(width: usize, phase: f64) -> Self {
        let stride = stride(width);
        Self {
            stride,
            skipped: (phase * SKIPPED_BYTES as f64) as u32 / (4 * stride as u32),
            first_log2: (FIRST_BYTES / (4 * stride)).max(1).ilog2(),
            segments: Vec::new(),
            len: 0,
        }
    }

    /// Return the number of rows.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Return the bytes of one row, padding included.
    pub(crate) fn row_bytes(&self) -> usize {
        self.stride * 4
    }

    /// Return the bytes taken from the system for rows; those never touched are not resident.
    pub(crate) fn used_bytes(&self) -> usize {
        self.len as usize * self.stride * 4
    }

    /// Add a zeroed row and return its number.
    pub(crate) fn push(&mut self) -> u32 {
        let row = self.len;
        let (segment, _) = self.locate(row);
        if segment >= self.segments.len() {
            // Those that are skipped whole are never looked into.
            self.segments.resize_with(segment, || Buffer::zeroed(0));
            let rows = 1usize << (self.first_log2 as usize + segment);
            self.segments.push(Buffer::zeroed(rows * self.stride * 4));
        }
        self.len += 1;
        row
    }

    #[inline(always)]
    fn layout(&self) -> Layout {
        Layout {
            stride: self.stride,
            first_log2: self.first_log2,
            skipped: self.skipped,
        }
    }

    #[inline(always)]
    fn locate(&self, row: u32) -> (usize, usize) {
        self.layout().locate(row)
    }

    /// Return access to the rows for a loop over many.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        let mut segments = self.segments.iter();
        View {
            layout: self.layout(),
            segments: std::array::from_fn(|_| segments.next().map_or(&[][..], Buffer::slice)),
        }
    }

    /// Return access to the rows for a loop that changes many.
    #[inline(always)]
    pub(crate) fn view_mut(&mut self) -> ViewMut<'_> {
        let layout = self.layout();
        let mut segments = self.segments.iter_mut();
        let segment = |_| segments.next().map_or(&mut [][..], Buffer::slice_mut);
        ViewMut {
            layout,
            segments: std::array::from_fn(segment),
        }
    }

    /// Return the first `width` floats of a row.
    pub(crate) fn row_mut(&mut self, row: u32, width: usize) -> &mut [f32] {
        let (segment, at) = self.locate(row);
        &mut self.segments[segment].slice_mut()[at..at + width]
    }
}

/// Where rows lie.
#[derive(Clone, Copy)]
struct Layout {
    stride: usize,
    first_log2: u32,
    skipped: u32,
}

impl Layout {
    /// Return the segment of a row, and its first float in there.
    #[inline(always)]
    fn locate(self, row: u32) -> (usize, usize) {
        let number = u64::from(row) + u64::from(self.skipped) + (1 << self.first_log2);
        let top = number.ilog2();
        let within = (number ^ (1 << top)) as usize;
        ((top - self.first_log2) as usize, within * self.stride)
    }
}

/// The segments of an arena, with what it takes to get at each done once.
pub(crate) struct View<'a> {
    layout: Layout,
    segments: [&'a [f32]; MAX_SEGMENTS],
}

/// The same, to change rows.
pub(crate) struct ViewMut<'a> {
    layout: Layout,
    segments: [&'a mut [f32]; MAX_SEGMENTS],
}

impl<'a> View<'a> {
    /// Return the first `width` floats of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32, width: usize) -> &'a [f32] {
        let (segment, at) = self.layout.locate(row);
        &self.segments[segment][at..at + width]
    }
}

impl<'a> View<'a> {
    /// Return the first `width` floats of a row, if it is there; `NO_ROW` never is.
    #[inline(always)]
    fn get(&self, row: u32, width: usize) -> Option<&'a [f32]> {
        let (segment, at) = self.layout.locate(row);
        self.segments.get(segment)?.get(at..at + width)
    }

    /// Visit rows one after the other, asking for those to come; `None` for one that is not there.
    #[inline(always)]
    pub(crate) fn each(
        &self,
        rows: impl Iterator<Item = u32>,
        width: usize,
        mut visit: impl FnMut(usize, Option<&'a [f32]>),
    ) {
        let mut rows = rows.map(|row| self.get(row, width));
        let mut asked = [None; 2 * BURST];
        let (mut visited, mut end) = (0, 0);
        loop {
            let first = end;
            for row in rows.by_ref().take(BURST) {
                if let Some(row) = row {
                    prefetch_row(row);
                }
                asked[end % (2 * BURST)] = row;
                end += 1;
            }
            if visited == end {
                return;
            }
            while visited < first {
                visit(visited, asked[visited % (2 * BURST)]);
                visited += 1;
            }
        }
    }
}

impl ViewMut<'_> {
    /// Ask for the first `width` floats of a row.
    #[inline(always)]
    pub(crate) fn prefetch(&self, row: u32, width: usize) {
        let (segment, at) = self.layout.locate(row);
        prefetch_row(&self.segments[segment][at..at + width]);
    }

    /// Return the first `width` floats of a row.
    #[inline(always)]
    pub(crate) fn row_mut(&mut self, row: u32, width: usize) -> &mut [f32] {
        let (segment, at) = self.layout.locate(row);
        &mut self.segments[segment][at..at + width]
    }
}

/// Ask for the cache lines of a row.
#[inline(always)]
pub(crate) fn prefetch_row(row: &[f32]) {
    for line in row.chunks(LINE) {
        prefetch(&line[0]);
    }
    // A row that begins amid a line ends in one more.
    if row.len() > LINE && !row.len().is_multiple_of(LINE) {
        prefetch(&row[row.len() - 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_rows_take_little_and_never_straddle_a_line() {
        assert_eq!([1, 2, 3, 8, 9, 16].map(stride), [1, 2, 4, 8, 16, 16]);
        assert_eq!([17, 24, 25, 32, 48].map(stride), [24, 24, 32, 32, 48]);
    }

    #[test]
    fn rows_keep_their_place_as_the_arena_grows() {
        for (width, phase) in [(1, 0.0), (3, 0.9), (16, 0.5), (33, 0.2), (5000, 0.7)] {
            let mut arena = Arena::new(width, phase);
            for i in 0..3000 {
                let row = arena.push();
                assert_eq!(row, i);
                arena.row_mut(row, width).fill(i as f32);
            }
            for i in 0..3000 {
                assert!(arena.view().row(i, width).iter().all(|&x| x == i as f32));
            }
        }
    }
}
