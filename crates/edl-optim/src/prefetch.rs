//! Hints to the cache, usable from safe code.

/// The number of rows, or lines of an index, that a loop requests ahead of its present one: as many
/// requests as a second-level cache can have under way.
pub const AHEAD: usize = 64;

/// Bytes of a cache line.
const LINE: usize = 64;

/// Work on one item after the other, asking for what those to come lie in.
#[inline(always)]
pub fn work_ahead<T>(items: &[T], ask: impl Fn(&T), mut work: impl FnMut(usize, &T)) {
    items.iter().take(AHEAD).for_each(&ask);
    for (i, item) in items.iter().enumerate() {
        if let Some(later) = items.get(i + AHEAD) {
            ask(later);
        }
        work(i, item);
    }
}

/// Request the cache line of `place`; returns at once and changes nothing.
///
/// The line goes into the second-level cache. The first level has few requests under way (24 on Zen
/// 4), and the next reads of a loop over random lines take all of them. The second level has a
/// multiple, and lines move from there to the first level quickly: random lines come up to twice as
/// fast.
///
/// `place` may be any address: a hint to an unmapped address is ignored.
#[inline(always)]
fn prefetch_address<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a prefetch reads no memory that the program can see, cannot fault, and SSE is
        // part of the x86-64 baseline.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

/// Ask for the cache line that `place` begins in; returns at once and changes nothing.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    prefetch_address(std::ptr::from_ref(place));
}

/// Ask for the cache lines of a slice that begins with one, or amid one.
#[inline(always)]
pub fn prefetch_slice(floats: &[f32]) {
    prefetch_floats(floats.as_ptr(), floats.len());
}

/// Ask for the cache lines of `len` floats.
#[inline(always)]
pub(crate) fn prefetch_floats(first: *const f32, len: usize) {
    let step = LINE / size_of::<f32>();
    for at in (0..len).step_by(step) {
        prefetch_address(first.wrapping_add(at));
    }
    // Floats that begin amid a line end in one more.
    if len > step && !len.is_multiple_of(step) {
        prefetch_address(first.wrapping_add(len - 1));
    }
}
