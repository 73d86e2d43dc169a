//! Hints to the cache, usable from safe code.

/// Rows, or lines of an index, that a loop over many asks for ahead of the one that it works on: as
/// many as a second-level cache has requests under way.
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

/// Ask for the cache line that `place` lies in; returns at once and changes nothing.
///
/// It is asked into the second level. The first has few requests under way (24 on Zen 4), and they
/// are all taken by what a loop over random lines reads next anyway; the second has a multiple, and
/// what is there is soon in the first: random lines come up to twice as fast.
///
/// It may be any address: the hint to one that is not mapped is ignored.
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
