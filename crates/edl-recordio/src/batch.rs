//! Records as they come out of a reader.

use std::ops::Range;
use std::sync::Arc;

/// Consecutive records, still in the buffers that they were read into.
#[derive(Debug, Default)]
pub struct Batch {
    parts: Vec<Part>,
    num_records: usize,
    num_bytes: usize,
}

#[derive(Debug)]
struct Part {
    buffer: Arc<Vec<u8>>,
    records: Vec<Range<usize>>, // each within the buffer: checked when it was pushed
}

impl Batch {
    /// Adds records that lie in `buffer`. The ranges are this crate's own, already checked.
    pub(crate) fn push(&mut self, buffer: Arc<Vec<u8>>, records: Vec<Range<usize>>) {
        debug_assert!(records.iter().all(|record| record.end <= buffer.len()));
        self.num_records += records.len();
        self.num_bytes += records.iter().map(ExactSizeIterator::len).sum::<usize>();
        self.parts.push(Part { buffer, records });
    }

    /// How many records there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.num_records
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.num_records == 0
    }

    /// The size of all records together.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.num_bytes
    }

    /// The records, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().flat_map(|part| {
            part.records
                .iter()
                .map(|record| &part.buffer[record.clone()])
        })
    }
}
