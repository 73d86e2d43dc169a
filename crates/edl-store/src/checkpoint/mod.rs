//! A store on disk: safetensors files by slot range, of one instant, with checksums.
//!
//! A replica writes its files and returns a manifest entry; whoever coordinates the replicas
//! writes `manifest.json` with all entries, and that is what makes the checkpoint valid. See
//! `docs/designs/store.md` for the format.

mod base;
mod file;
mod format;
mod pace;
mod read;
mod seal;
mod write;

pub(crate) use base::{LastWhole, wished_base};
pub(crate) use file::PendingFile;
pub(crate) use format::{Base, FileEntry, Layout, ReplicaEntry, of_table};
pub use read::Parts;
pub(crate) use read::{Checkpoint, Restored, TensorReader, Wanted, read, read_parts};
pub use seal::{is_sealed, seal};
pub(crate) use write::{Source, parts_of, write};
