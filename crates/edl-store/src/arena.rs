//! Rows of one width, numbered in the order of their creation.

use std::cell::Cell;
use std::ops::Range;

use edl_optim::{prefetch_slice, work_ahead};

use crate::memory::Buffer;

/// Bytes of the first segment; each further one doubles the rows, so that few rows take little.
const FIRST_BYTES: usize = 4096;

/// Bytes of all segments that double.
const DOUBLING_BYTES: usize = 2 << 20;

/// Bytes of each segment after those that double: few segments, where a row is found by a shift.
const SEGMENT_BYTES: usize = 32 << 20;

/// Bytes that are skipped at most: half of what doubles.
const SKIPPED_BYTES: usize = 1 << 20;

/// Floats in a cache line.
const LINE: usize = 16;

/// Rows at a fixed stride, in segments, so that growing copies nothing. Skipped rows at the
/// beginning are never touched, and take no memory.
pub(crate) struct Arena {
    layout: Layout,
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
        Self {
            layout: Layout::new(stride(width), phase),
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
        self.layout.stride * 4
    }

    /// Return the bytes taken from the system for rows; those never touched are not resident.
    pub(crate) fn used_bytes(&self) -> usize {
        self.len as usize * self.row_bytes()
    }

    /// Add a zeroed row and return its number.
    pub(crate) fn push(&mut self) -> u32 {
        let row = self.len;
        let segment = self.layout.locate(row).segment as usize;
        if segment >= self.segments.len() {
            // Segments that are skipped as a whole are never read.
            self.segments.resize_with(segment, || Buffer::zeroed(0));
            let rows = self.layout.rows(segment);
            self.segments.push(Buffer::zeroed(rows * self.row_bytes()));
        }
        self.len += 1;
        row
    }

    /// Remove the last row. One segment beyond the rows that are left is kept, so that an arena that
    /// grows and shrinks by a few rows asks nothing of the system.
    pub(crate) fn pop(&mut self) {
        self.len -= 1;
        let used = self.layout.locate(self.len).segment as usize + 1;
        self.segments.truncate(used + 1);
    }

    /// Copy the first `width` floats of a row to another one.
    pub(crate) fn copy_row(&mut self, from: u32, to: u32, width: usize) {
        let (from, to) = (self.layout.locate(from), self.layout.locate(to));
        let (source, target) = (from.segment as usize, to.segment as usize);
        let (from, to) = (from.range(width), to.range(width));
        if source == target {
            self.segments[source]
                .slice_mut::<f32>()
                .copy_within(from, to.start);
            return;
        }
        let (before, after) = self.segments.split_at_mut(source.max(target));
        let (source, target) = if source < target {
            (&before[source], &mut after[0])
        } else {
            (&after[0], &mut before[target])
        };
        target.slice_mut::<f32>()[to].copy_from_slice(&source.slice::<f32>()[from]);
    }

    /// Return access to the rows for a loop over many.
    #[inline(always)]
    pub(crate) fn view(&self) -> View<'_> {
        View {
            layout: self.layout,
            segments: self.segments.iter().map(Buffer::slice).collect(),
        }
    }

    /// Return access to the rows for a loop that changes many.
    #[inline(always)]
    pub(crate) fn cells(&mut self) -> Cells<'_> {
        let cells = |buffer| Cell::from_mut(Buffer::slice_mut(buffer)).as_slice_of_cells();
        Cells {
            layout: self.layout,
            segments: self.segments.iter_mut().map(cells).collect(),
        }
    }

    /// Return the first `width` floats of a row.
    pub(crate) fn row_mut(&mut self, row: u32, width: usize) -> &mut [f32] {
        let place = self.layout.locate(row);
        &mut self.segments[place.segment as usize].slice_mut()[place.range(width)]
    }
}

/// The place of a row.
struct Place {
    segment: u32,
    /// Its first float in there.
    first: u32,
}

impl Place {
    #[inline(always)]
    fn range(self, width: usize) -> Range<usize> {
        let first = self.first as usize;
        first..first + width
    }
}

/// The places of rows: row `r` is number `r + skipped` of a sequence. The sequence's segments begin
/// at the powers of two from `2^first_log2` to `2^doubled_log2`, and from there on at each multiple
/// of `2^segment_log2`.
#[derive(Clone, Copy)]
struct Layout {
    /// Floats from one row to the next.
    stride: usize,
    /// Numbers that no row has, so that arenas begin a new page at different numbers of rows.
    skipped: u32,
    first_log2: u32,
    doubled_log2: u32,
    segment_log2: u32,
}

impl Layout {
    fn new(stride: usize, phase: f64) -> Self {
        let log2 = |bytes: usize| (bytes / (4 * stride)).max(1).ilog2();
        let first_log2 = log2(FIRST_BYTES);
        Self {
            stride,
            // The sequence begins with the first segment.
            skipped: (1 << first_log2) + (phase * (SKIPPED_BYTES / (4 * stride)) as f64) as u32,
            first_log2,
            doubled_log2: log2(DOUBLING_BYTES),
            segment_log2: log2(SEGMENT_BYTES),
        }
    }

    /// Return where a row lies.
    #[inline(always)]
    fn locate(self, row: u32) -> Place {
        // In 64 bits: `NO_ROW` is beyond all segments, and does not come round to the first.
        let number = u64::from(row) + u64::from(self.skipped);
        let doubled = 1 << self.doubled_log2;
        let (segment, within) = if number >= doubled {
            let further = number - doubled;
            let segment = u64::from(self.num_doubling()) + (further >> self.segment_log2);
            (segment, further & ((1 << self.segment_log2) - 1))
        } else {
            let top = number.ilog2();
            (u64::from(top - self.first_log2), number ^ (1 << top))
        };
        // Both fit: a segment has `SEGMENT_BYTES`, or one row.
        Place {
            segment: segment as u32,
            first: within as u32 * self.stride as u32,
        }
    }

    /// Return the number of segments that double.
    #[inline(always)]
    fn num_doubling(self) -> u32 {
        self.doubled_log2 - self.first_log2
    }

    /// Return how many rows a segment has room for.
    fn rows(self, segment: usize) -> usize {
        let segment = segment as u32;
        if segment < self.num_doubling() {
            1 << (self.first_log2 + segment)
        } else {
            1 << self.segment_log2
        }
    }
}

/// The segments of an arena, with what it takes to get at them done once.
pub(crate) struct Access<'a, T> {
    layout: Layout,
    segments: Vec<&'a [T]>,
}

/// Access for reading rows.
pub(crate) type View<'a> = Access<'a, f32>;

/// Access for reading and changing rows.
pub(crate) type Cells<'a> = Access<'a, Cell<f32>>;

impl<'a, T> Access<'a, T> {
    /// Return the first `width` floats of a row.
    #[inline(always)]
    pub(crate) fn row(&self, row: u32, width: usize) -> &'a [T] {
        let place = self.layout.locate(row);
        &self.segments[place.segment as usize][place.range(width)]
    }

    /// Return the first `width` floats of a row, if it is there; `NO_ROW` never is.
    #[inline(always)]
    fn get(&self, row: u32, width: usize) -> Option<&'a [T]> {
        let place = self.layout.locate(row);
        self.segments
            .get(place.segment as usize)?
            .get(place.range(width))
    }
}

impl<'a> View<'a> {
    /// Visit rows one after the other, asking for those to come; `None` for one that is not there.
    #[inline(always)]
    pub(crate) fn each(
        &self,
        rows: impl Iterator<Item = u32>,
        width: usize,
        mut visit: impl FnMut(usize, Option<&'a [f32]>),
    ) {
        let ask = |row: &Option<&[f32]>| prefetch_slice(row.unwrap_or_default());
        let rows: Vec<_> = rows.map(|row| self.get(row, width)).collect();
        work_ahead(&rows, ask, |i, &row| visit(i, row));
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
