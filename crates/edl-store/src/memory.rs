//! Zeroed memory for rows and indexes, in huge pages where that pays.

use std::alloc::{Layout, handle_alloc_error};

use bytemuck::{Pod, Zeroable};
use memmap2::MmapMut;

/// From this size on memory is mapped, so that a page costs nothing before it is touched.
const MAPPED_BYTES: usize = 64 << 10;

/// Size and alignment of a huge page.
const HUGE_BYTES: usize = 2 << 20;

/// A cache line; heap memory is made of these, so that it is aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u64; 8]);

/// Zeroed memory of a fixed size, aligned to a cache line at least.
pub(crate) struct Buffer {
    memory: Memory,
}

enum Memory {
    Heap(Vec<Line>),
    Mapped {
        map: MmapMut,
        start: usize,
        bytes: usize,
    },
}

impl Buffer {
    /// Take `bytes` of memory that reads as zero.
    ///
    /// Memory that the system refuses ends the process, as it does for a `Vec`: an update that
    /// stopped half way could not be undone.
    pub(crate) fn zeroed(bytes: usize) -> Self {
        let memory = if bytes < MAPPED_BYTES {
            Memory::Heap(vec![Line::zeroed(); bytes.div_ceil(size_of::<Line>())])
        } else {
            map_zeroed(bytes)
        };
        Self { memory }
    }

    #[inline(always)]
    pub(crate) fn slice<T: Pod>(&self) -> &[T] {
        match &self.memory {
            Memory::Heap(lines) => bytemuck::cast_slice(lines),
            Memory::Mapped { map, start, bytes } => {
                bytemuck::cast_slice(&map[*start..*start + *bytes])
            }
        }
    }

    #[inline(always)]
    pub(crate) fn slice_mut<T: Pod>(&mut self) -> &mut [T] {
        match &mut self.memory {
            Memory::Heap(lines) => bytemuck::cast_slice_mut(lines),
            Memory::Mapped { map, start, bytes } => {
                bytemuck::cast_slice_mut(&mut map[*start..*start + *bytes])
            }
        }
    }
}

fn map_zeroed(bytes: usize) -> Memory {
    let bytes = bytes.next_multiple_of(size_of::<Line>());
    let huge = bytes >= HUGE_BYTES;
    // A huge page needs its alignment; the slack is never touched and takes no memory.
    let slack = if huge { HUGE_BYTES } else { 0 };
    let Ok(map) = MmapMut::map_anon(bytes + slack) else {
        handle_alloc_error(Layout::new::<Line>());
    };
    let start = if huge {
        map.as_ptr().align_offset(HUGE_BYTES)
    } else {
        0
    };
    #[cfg(target_os = "linux")]
    if huge {
        // A kernel without huge pages refuses; the memory is good all the same.
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Memory::Mapped { map, start, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_aligned_at_every_size() {
        for bytes in [1, 64, 4096, MAPPED_BYTES - 1, MAPPED_BYTES, HUGE_BYTES + 1] {
            let mut buffer = Buffer::zeroed(bytes);
            let floats: &mut [f32] = buffer.slice_mut();
            assert!(floats.len() * 4 >= bytes);
            assert_eq!(floats.as_ptr().align_offset(64), 0);
            assert!(floats.iter().all(|&x| x == 0.0));
            floats[0] = 1.0;
            assert_eq!(buffer.slice::<f32>()[0], 1.0);
        }
    }
}
