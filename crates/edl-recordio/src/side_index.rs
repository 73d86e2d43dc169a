//! The index of a file without its own index; it is kept beside the file as `FILE.idx`.
//!
//! The offset of every [`STRIDE`]th record is enough to find any record: the records between two of
//! them are read and cut anyway. `docs/designs/recordio.md` draws the bytes.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use crate::RecordError;
use crate::atomic::AtomicFile;
use crate::format::{is_sealed, le_u32, le_u64, seal};
pub use crate::source::index_path;
use crate::source::{Source, WINDOW_BYTES};

/// One record in so many has its offset in the index.
pub const STRIDE: usize = 64;
/// First bytes of an index file.
pub const MAGIC: [u8; 8] = *b"\x89EDLIDX\n";
/// The version that is written and read.
pub const VERSION: u16 = 1;
const HEADER_BYTES: usize = 40;
/// [`Kind::format`] of TFRecord files.
pub(crate) const TFRECORD: u8 = 1;

/// The kind of an indexed file's records, which decides where they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) format: u8, // TFRECORD, or 2: lines
    pub(crate) flags: u8,  // of that format
}

/// Offsets of the records `0`, `STRIDE`, `2 * STRIDE`, ...
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideIndex {
    pub(crate) num_records: u64,
    pub(crate) offsets: Vec<u64>,
    /// The end of the last record.
    pub(crate) end: u64,
}

/// Whether an index was found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexOrigin {
    /// Read from `FILE.idx`.
    Loaded,
    /// Made by reading the file, and written to `FILE.idx`.
    Written,
    /// Made by reading the file, and kept in memory.
    InMemory,
    /// The same, for `FILE.idx` belongs to somebody who owns neither the file nor this process.
    PassedOver,
}

impl SideIndex {
    /// Starts an empty index.
    pub(crate) fn new() -> SideIndex {
        SideIndex {
            num_records: 0,
            offsets: Vec::new(),
            end: 0,
        }
    }

    /// Adds the next record.
    pub(crate) fn add(&mut self, offset: u64) {
        if self.num_records.is_multiple_of(STRIDE as u64) {
            self.offsets.push(offset);
        }
        self.num_records += 1;
    }

    /// Splits records `[start, end)` into pieces to read at once. A piece has whole strides and,
    /// if they are small, about [`WINDOW_BYTES`].
    pub(crate) fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = Piece> {
        let stride = STRIDE as u64;
        let mut group = start / stride;
        let last = if start < end { end.div_ceil(stride) } else { 0 };
        std::iter::from_fn(move || {
            if group >= last {
                return None;
            }
            let (first_group, from) = (group, self.group_start(group));
            group += 1;
            while group < last && self.group_start(group + 1) - from <= WINDOW_BYTES as u64 {
                group += 1;
            }
            Some(Piece {
                first_record: first_group * stride,
                end_record: self.num_records.min(group * stride),
                start: from,
                end: self.group_start(group),
            })
        })
    }

    fn group_start(&self, group: u64) -> u64 {
        usize::try_from(group)
            .ok()
            .and_then(|group| self.offsets.get(group))
            .map_or(self.end, |&offset| offset)
    }

    fn encode(&self, kind: Kind, stamp: Stamp) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[kind.format, kind.flags]);
        bytes.extend_from_slice(&(STRIDE as u32).to_le_bytes());
        bytes.extend_from_slice(&stamp.size.to_le_bytes());
        bytes.extend_from_slice(&stamp.modified_nanos.to_le_bytes());
        bytes.extend_from_slice(&self.num_records.to_le_bytes());
        for offset in &self.offsets {
            bytes.extend_from_slice(&offset.to_le_bytes());
        }
        seal(&mut bytes, 0);
        bytes
    }

    /// Reads an index file; `None` if it is not the index of this very file.
    fn decode(bytes: &[u8], kind: Kind, stamp: Stamp) -> Option<SideIndex> {
        if bytes.len() < HEADER_BYTES + 4 || bytes[..8] != MAGIC || !is_sealed(bytes) {
            return None;
        }
        let says = Stamp {
            size: le_u64(bytes, 16),
            modified_nanos: le_u64(bytes, 24),
        };
        let is_ours = bytes[8..10] == VERSION.to_le_bytes()
            && bytes[10..12] == [kind.format, kind.flags]
            && le_u32(bytes, 12) as usize == STRIDE
            && says == stamp;
        let offsets: Vec<u64> = bytes[HEADER_BYTES..bytes.len() - 4]
            .chunks_exact(8)
            .map(|offset| le_u64(offset, 0))
            .collect();
        let num_records = le_u64(bytes, 32);
        let first_is_known = match kind.format {
            TFRECORD => offsets.first() == Some(&0),
            _ => !offsets.is_empty(), // lines may be blank before it
        };
        let is_sound = first_is_known
            && num_records.div_ceil(STRIDE as u64) == offsets.len() as u64
            && offsets.is_sorted_by(|one, next| one < next)
            && offsets.last().is_none_or(|&last| last < stamp.size);
        (is_ours && is_sound).then_some(SideIndex {
            num_records,
            offsets,
            end: stamp.size,
        })
    }
}

/// Bytes of a file that begin and end with records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) first_record: u64,
    pub(crate) end_record: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The marks that tell whether a file has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified_nanos: u64,
}

impl Stamp {
    fn of(source: &Source) -> Stamp {
        let modified = source.metadata().modified().ok();
        let since_epoch = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Stamp {
            size: source.len(),
            modified_nanos: since_epoch
                .and_then(|duration| u64::try_from(duration.as_nanos()).ok())
                .unwrap_or(0),
        }
    }
}

/// Returns the index of a file: the index beside it if that is still right, or else a new one. A
/// new index is written beside the file if the file has at least `least_bytes`, the folder can be
/// written to, and no other user's file has that name. An index of another user is ignored: in a
/// shared folder anybody may add a file.
pub(crate) fn load_or_build(
    source: &Source,
    kind: Kind,
    least_bytes: u64,
    build: impl FnOnce(&Source) -> Result<SideIndex, RecordError>,
) -> Result<(SideIndex, IndexOrigin), RecordError> {
    let (path, stamp) = (index_path(source.path()), Stamp::of(source));
    let limit = (HEADER_BYTES + 4) as u64 + source.len().div_ceil(STRIDE as u64) * 8;
    let found = if is_of_another(&path, source.metadata().uid()) {
        Found::OfAnother
    } else {
        read_at_most(&path, limit)
    };
    if let Found::Bytes(bytes) = &found
        && let Some(index) = SideIndex::decode(bytes, kind, stamp)
    {
        return Ok((index, IndexOrigin::Loaded));
    }
    let index = build(source)?;
    let may_write = match &found {
        Found::Nothing => source.len() >= least_bytes,
        Found::Bytes(bytes) => bytes.starts_with(&MAGIC),
        Found::Foreign | Found::OfAnother => false,
    };
    let origin = if matches!(found, Found::OfAnother) {
        IndexOrigin::PassedOver
    } else if may_write && write(&path, &index.encode(kind, stamp)).is_ok() {
        IndexOrigin::Written
    } else {
        IndexOrigin::InMemory // as in a folder that is read-only: slower next time, not wrong
    };
    Ok((index, origin))
}

enum Found {
    Nothing,
    Bytes(Vec<u8>),
    Foreign,
    OfAnother,
}

/// Whether a file or link is there that is neither of the owner of the data nor of this process.
fn is_of_another(path: &Path, owner: u32) -> bool {
    let own = fs::metadata("/proc/self").map(|process| process.uid());
    let is_known = |uid: u32| uid == owner || own.as_ref().is_ok_and(|&own| own == uid);
    let seen = [fs::symlink_metadata(path), fs::metadata(path)];
    seen.iter().flatten().any(|found| !is_known(found.uid()))
}

/// Reads an index file, unless it is larger than the index of this file can be.
fn read_at_most(path: &Path, limit: u64) -> Found {
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Found::Nothing,
        Ok(metadata) if metadata.is_file() && metadata.len() <= limit => {
            fs::read(path).map_or(Found::Foreign, Found::Bytes)
        }
        // Larger: perhaps that of an earlier, longer file. Its first bytes tell whose it is.
        Ok(metadata) if metadata.is_file() => match Source::open(path) {
            Ok(index) => index
                .read_range(0, MAGIC.len() as u64)
                .map_or(Found::Foreign, Found::Bytes),
            Err(_) => Found::Foreign,
        },
        _ => Found::Foreign,
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytes)?;
    file.commit()
}
