//! Writes a result: past the caches, if they will not hold it until it is used.

/// Results from here on (8 MB) are written past the caches.
const PAST_CACHES_NUMBERS: usize = 2 << 20;

/// Copies what a cache will not hold until it is used: past the caches, so that the lines of `out`
/// are not read before they are overwritten.
#[cfg(target_arch = "x86_64")]
fn copy_past_caches(numbers: &[f32], out: &mut [f32]) {
    use std::arch::x86_64::{__m128, _mm_loadu_ps, _mm_sfence, _mm_stream_ps};
    const LANES: usize = size_of::<__m128>() / size_of::<f32>();

    assert_eq!(numbers.len(), out.len());
    let unaligned = out.as_ptr().align_offset(align_of::<__m128>());
    let (begin, out) = out.split_at_mut(unaligned.min(out.len()));
    let (first, numbers) = numbers.split_at(begin.len());
    begin.copy_from_slice(first);
    let mut to = out.chunks_exact_mut(LANES);
    let mut from = numbers.chunks_exact(LANES);
    for (out, numbers) in to.by_ref().zip(from.by_ref()) {
        // SAFETY: both have four numbers, `out` begins at a multiple of 16 bytes, and each processor
        // of x86-64 has SSE.
        unsafe { _mm_stream_ps(out.as_mut_ptr(), _mm_loadu_ps(numbers.as_ptr())) };
    }
    to.into_remainder().copy_from_slice(from.remainder());
    // SAFETY: as above. Such stores are not in order with later ones, of which others learn of them.
    unsafe { _mm_sfence() };
}

/// Other processors find out by themselves what is overwritten as a whole.
#[cfg(not(target_arch = "x86_64"))]
fn copy_past_caches(numbers: &[f32], out: &mut [f32]) {
    out.copy_from_slice(numbers);
}

/// Returns the function that writes the numbers of a result.
pub(super) fn way_to_copy(len: usize) -> fn(&[f32], &mut [f32]) {
    if len < PAST_CACHES_NUMBERS {
        return |numbers, out| out.copy_from_slice(numbers);
    }
    copy_past_caches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_past_the_caches_is_copied_wherever_it_begins_and_ends() {
        let numbers: Vec<f32> = (1..60).map(|i| i as f32).collect();
        for begin in 0..8 {
            for len in 0..40 {
                for from in 0..4 {
                    let mut out = [0.0; 50];
                    let copied = &numbers[from..from + len];
                    copy_past_caches(copied, &mut out[begin..begin + len]);
                    assert_eq!(out[begin..begin + len], *copied);
                    assert!(out[..begin].iter().all(|&x| x == 0.0));
                    assert!(out[begin + len..].iter().all(|&x| x == 0.0));
                }
            }
        }
    }
}
