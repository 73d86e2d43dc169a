//! Several arrays as one vector, without a copy: the tensors of a bucket.

use std::ops::Range;

/// Arrays that are read as one vector.
#[derive(Clone)]
pub(crate) struct Inputs<'a> {
    parts: &'a [&'a [f32]],
    /// The end of each array in the vector.
    ends: Vec<usize>,
}

/// Arrays that are written as one vector.
pub(crate) struct Outputs<'a, 'b> {
    parts: &'a mut [&'b mut [f32]],
    ends: Vec<usize>,
}

fn ends(lengths: impl Iterator<Item = usize>) -> Vec<usize> {
    let add = |end: &mut usize, len| {
        *end += len;
        Some(*end)
    };
    lengths.scan(0, add).collect()
}

/// Yields the pieces of a range: (array, range in the array, range within `range`).
fn pieces(
    ends: &[usize],
    range: Range<usize>,
) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let mut part = ends.partition_point(|&end| end <= range.start);
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        while ends[part] <= at {
            part += 1;
        }
        let begin = if part == 0 { 0 } else { ends[part - 1] };
        let stop = ends[part].min(range.end);
        let piece = (
            part,
            at - begin..stop - begin,
            at - range.start..stop - range.start,
        );
        at = stop;
        Some(piece)
    })
}

impl<'a> Inputs<'a> {
    pub(crate) fn new(parts: &'a [&'a [f32]]) -> Self {
        let ends = ends(parts.iter().map(|part| part.len()));
        Self { parts, ends }
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Calls for each array that a range of the vector lies in, with where it lies in the range.
    pub(crate) fn read(&self, range: Range<usize>, mut take: impl FnMut(Range<usize>, &[f32])) {
        for (part, there, here) in pieces(&self.ends, range) {
            take(here, &self.parts[part][there]);
        }
    }
}

impl<'a, 'b> Outputs<'a, 'b> {
    pub(crate) fn new(parts: &'a mut [&'b mut [f32]]) -> Self {
        let ends = ends(parts.iter().map(|part| part.len()));
        Self { parts, ends }
    }

    /// Copies numbers to where the vector's are from `at` on.
    pub(crate) fn write(&mut self, at: usize, numbers: &[f32]) {
        self.write_by(at, numbers, |numbers, out| out.copy_from_slice(numbers));
    }

    /// The same, by a way to copy.
    pub(crate) fn write_by(&mut self, at: usize, numbers: &[f32], copy: fn(&[f32], &mut [f32])) {
        for (part, there, here) in pieces(&self.ends, at..at + numbers.len()) {
            copy(&numbers[here], &mut self.parts[part][there]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_any_lengths_read_and_write_as_one_vector() {
        let whole: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let parts: [&[f32]; 5] = [&whole[..3], &[], &whole[3..4], &[], &whole[4..]];
        let inputs = Inputs::new(&parts);
        assert_eq!(inputs.len(), 10);
        for start in 0..=10 {
            for end in start..=10 {
                let mut read = vec![-1.0; end - start];
                inputs.read(start..end, |here, part| read[here].copy_from_slice(part));
                assert_eq!(read, whole[start..end]);

                let (mut a, mut b, mut c) = ([0.0; 4], [0.0; 0], [0.0; 6]);
                Outputs::new(&mut [&mut a, &mut b, &mut c]).write(start, &read);
                let written: Vec<f32> = a.into_iter().chain(c).collect();
                let expected = |i| {
                    if (start..end).contains(&i) {
                        i as f32
                    } else {
                        0.0
                    }
                };
                assert_eq!(written, (0..10).map(expected).collect::<Vec<_>>());
            }
        }
    }
}
