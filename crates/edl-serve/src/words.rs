//! The weights of rows: in memory, or in a file that is mapped into it.
//!
//! This is the one file of the crate with `unsafe` in it. **The argument**: a mapping is undefined
//! only if the file is changed meanwhile. The file has no name from the moment when it is made, so
//! no other process can open it by name. And this process keeps no descriptor of it once it is
//! mapped.

use std::fs::File;
use std::io::{BufWriter, Error, Write};
use std::ops::Deref;
use std::path::Path;

use memmap2::Mmap;

const BUFFER_BYTES: usize = 1 << 20;

/// Weights as bits, one row after the other.
pub(crate) enum Words {
    Heap(Vec<u32>),
    Mapped(Mmap),
}

impl Deref for Words {
    type Target = [u32];

    #[inline]
    fn deref(&self) -> &[u32] {
        match self {
            Self::Heap(words) => words,
            // A mapping begins at a page.
            Self::Mapped(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

/// Takes the weights of rows.
pub(crate) enum Sink {
    Heap(Vec<u32>),
    File { file: BufWriter<File>, len: usize },
}

impl Sink {
    /// In a file of a folder; `None`: in memory.
    pub(crate) fn new(folder: Option<&Path>) -> Result<Self, Error> {
        match folder {
            None => Ok(Self::Heap(Vec::new())),
            Some(folder) => {
                let file = tempfile::tempfile_in(folder)?;
                let file = BufWriter::with_capacity(BUFFER_BYTES, file);
                Ok(Self::File { file, len: 0 })
            }
        }
    }

    pub(crate) fn push(&mut self, bits: &[u32]) -> Result<(), Error> {
        match self {
            Self::Heap(words) => words.extend_from_slice(bits),
            Self::File { file, len } => {
                file.write_all(bytemuck::cast_slice(bits))?;
                *len += bits.len();
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Heap(words) => words.len(),
            Self::File { len, .. } => *len,
        }
    }

    pub(crate) fn finish(self) -> Result<Words, Error> {
        match self {
            Self::Heap(words) => Ok(Words::Heap(words)),
            // Nothing cannot be mapped.
            Self::File { len: 0, .. } => Ok(Words::Heap(Vec::new())),
            Self::File { file, .. } => {
                let file = file.into_inner().map_err(|error| error.into_error())?;
                // SAFETY: nobody changes the file; see above.
                #[allow(unsafe_code)]
                let mapped = unsafe { Mmap::map(&file) }?;
                Ok(Words::Mapped(mapped))
            }
        }
    }
}
