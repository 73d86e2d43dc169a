//! The files of a redo log: segments, each begun by a checkpoint or by a process.
//!
//! A process appends to segments of its own, `00000007.redo`. Its successor seals them: the name says
//! then how much of a file counts, `00000007-4096.redo`, whatever a process that is not dead after
//! all still appends. A record is its length, its CRC-32C and its bytes, so that what a killed process
//! has written last is told from half of it. Nothing is synced: a log is for processes that die, not
//! for machines that do.

use std::cell::RefCell;
use std::fs::{self, File, OpenOptions};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::record::{self, Change};

const SUFFIX: &str = "redo";
/// Bytes before each record: its length and its checksum.
const HEADER: usize = 16;
/// A buffer of a thread that has become larger is given back.
const KEPT_BYTES: usize = 1 << 24;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::default();
}

/// What a redo log takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedoLogState {
    /// Of all its files.
    pub num_bytes: u64,
    /// Why nothing is noted until the next checkpoint.
    pub problem: Option<String>,
}

/// A log that is written.
pub(crate) struct Log {
    folder: PathBuf,
    /// Bytes of the open segment, and of all closed ones.
    segment_limit: u64,
    /// Held shared by who appends, alone by who begins a segment.
    open: RwLock<Open>,
    /// Those before the open one, the oldest first.
    closed: Mutex<Vec<Closed>>,
    problem: Mutex<Option<String>>,
}

struct Open {
    file: File,
    number: u64,
    num_bytes: AtomicU64,
    is_broken: AtomicBool,
    /// The checkpoint at whose instant it began.
    checkpoint: Option<PathBuf>,
}

struct Closed {
    path: PathBuf,
    num_bytes: u64,
    /// The checkpoint at whose instant it began.
    checkpoint: Option<PathBuf>,
}

impl Log {
    /// Begin a segment behind those in `folder`, which are sealed already.
    ///
    /// # Errors
    /// Files that cannot be read or made.
    pub(crate) fn open(folder: &Path, limit: u64) -> std::io::Result<Self> {
        let closed = segments(folder)?.into_iter().map(|segment| Closed {
            path: segment.path,
            num_bytes: segment.counts.unwrap_or(0),
            checkpoint: None,
        });
        let closed: Vec<_> = closed.collect();
        let open = begin(folder, None)?;
        Ok(Self {
            folder: folder.to_owned(),
            segment_limit: limit / 2,
            open: RwLock::new(open),
            closed: Mutex::new(closed),
            problem: Mutex::default(),
        })
    }

    /// Append a change. What cannot be written breaks the log off until the next segment.
    pub(crate) fn append(&self, change: &Change<'_>) {
        let open = self.open.read();
        if open.is_broken.load(Ordering::Relaxed) {
            return;
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            buffer.resize(HEADER, 0);
            record::encode(change, buffer);
            let len = buffer.len() as u64;
            let sum = crc32c::crc32c(&buffer[HEADER..]);
            buffer[..8].copy_from_slice(&(len - HEADER as u64).to_le_bytes());
            buffer[8..HEADER].copy_from_slice(&u64::from(sum).to_le_bytes());
            if open.num_bytes.fetch_add(len, Ordering::Relaxed) + len > self.segment_limit {
                open.num_bytes.fetch_sub(len, Ordering::Relaxed);
                let reached = format!("it has reached {} bytes", self.segment_limit);
                return self.break_off(&open, reached);
            }
            // One call, so that records of several threads follow each other.
            match (&open.file).write(buffer) {
                Ok(written) if written as u64 == len => {}
                Ok(_) => self.break_off(&open, "its disk is full".to_owned()),
                Err(error) => self.break_off(&open, error.to_string()),
            }
            buffer.shrink_to(KEPT_BYTES);
        });
    }

    fn break_off(&self, open: &Open, problem: String) {
        if !open.is_broken.swap(true, Ordering::Relaxed) {
            *self.problem.lock() = Some(problem);
        }
    }

    /// Begin a segment at the instant of a checkpoint that will be in `directory`.
    ///
    /// Nothing changes the store meanwhile.
    pub(crate) fn begin_segment(&self, directory: &Path) {
        let mut open = self.open.write();
        let mut closed = self.closed.lock();
        closed.push(Closed {
            path: path_of(&self.folder, open.number),
            num_bytes: open.num_bytes.load(Ordering::Relaxed),
            checkpoint: open.checkpoint.take(),
        });
        remove_ended(&mut closed, None);
        // Older checkpoints are whole by now, or never.
        while total(&closed) > self.segment_limit {
            let oldest = closed.remove(0);
            let _ = fs::remove_file(oldest.path);
        }
        match begin(&self.folder, Some(directory.to_owned())) {
            Ok(next) => {
                *open = next;
                *self.problem.lock() = None;
            }
            Err(error) => self.break_off(&open, error.to_string()),
        }
    }

    /// Remove the segments from before a checkpoint that is whole.
    pub(crate) fn trim(&self) {
        let newest = self.open.read().checkpoint.clone();
        remove_ended(&mut self.closed.lock(), newest.as_deref());
    }

    pub(crate) fn state(&self) -> RedoLogState {
        let open = self.open.read().num_bytes.load(Ordering::Relaxed);
        RedoLogState {
            num_bytes: open + total(&self.closed.lock()),
            problem: self.problem.lock().clone(),
        }
    }
}

fn total(closed: &[Closed]) -> u64 {
    closed.iter().map(|each| each.num_bytes).sum()
}

/// Remove all that is before the newest whole checkpoint at which a segment began; `newest` is that
/// of the segment behind these.
fn remove_ended(closed: &mut Vec<Closed>, newest: Option<&Path>) {
    let is_whole = |directory: &Path| directory.join("manifest.json").exists();
    let ended = if newest.is_some_and(is_whole) {
        closed.len()
    } else {
        let whole = |each: &Closed| each.checkpoint.as_deref().is_some_and(is_whole);
        closed.iter().rposition(whole).unwrap_or(0)
    };
    for each in closed.drain(..ended) {
        let _ = fs::remove_file(each.path); // one that stays is read again, to no effect
    }
}

fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:08}.{SUFFIX}"))
}

/// Say of each segment in `folder`, which is created, how much of it counts.
///
/// # Errors
/// Files that cannot be read or renamed.
pub(crate) fn seal(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    for Segment {
        number,
        path,
        counts,
    } in segments(folder)?
    {
        if counts.is_none() {
            let len = fs::metadata(&path)?.len();
            fs::rename(path, folder.join(format!("{number:08}-{len}.{SUFFIX}")))?;
        }
    }
    Ok(())
}

fn begin(folder: &Path, checkpoint: Option<PathBuf>) -> std::io::Result<Open> {
    let last = segments(folder)?.last().map_or(0, |last| last.number);
    for number in last + 1.. {
        let path = path_of(folder, number);
        match OpenOptions::new().append(true).create_new(true).open(path) {
            // A process that counts as lost and is not may still make some.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            file => {
                return Ok(Open {
                    file: file?,
                    number,
                    num_bytes: AtomicU64::new(0),
                    is_broken: AtomicBool::new(false),
                    checkpoint,
                });
            }
        }
    }
    unreachable!("numbers of segments do not end")
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    number: u64,
    path: PathBuf,
    /// Bytes that count, of one that is sealed.
    counts: Option<u64>,
}

impl Segment {
    fn at(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".redo")?;
        let (number, counts) = match name.split_once('-') {
            Some((number, counts)) => (number, Some(counts.parse().ok()?)),
            None => (name, None),
        };
        let number = number.parse().ok()?;
        Some(Self {
            number,
            path,
            counts,
        })
    }
}

/// The segments of a folder by their numbers.
fn segments(folder: &Path) -> std::io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        found.extend(Segment::at(entry?.path()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Call `take` with the bytes of each whole record of the sealed segments in a folder, in their
/// order; a file is read up to the first that is torn.
///
/// # Errors
/// Files that cannot be read.
pub(crate) fn records_in(folder: &Path, mut take: impl FnMut(&[u8])) -> std::io::Result<()> {
    let mut words: Vec<u64> = Vec::new();
    for Segment { path, counts, .. } in segments(folder)? {
        let mut left = counts.unwrap_or(0);
        let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
        while let Some(len) = read_record(&mut file, &mut left, &mut words)? {
            take(&bytemuck::cast_slice(&words)[..len]);
        }
    }
    Ok(())
}

/// Read a record into words, which fit its numbers; return its length, or none at the end or at one
/// that is torn. `left` is how much of the file counts.
fn read_record(
    file: &mut impl Read,
    left: &mut u64,
    words: &mut Vec<u64>,
) -> std::io::Result<Option<usize>> {
    let mut header = [0; HEADER];
    let Some(rest) = left.checked_sub(HEADER as u64) else {
        return Ok(None);
    };
    if !fill(file, &mut header)? {
        return Ok(None);
    }
    let [len, sum] = bytemuck::cast::<_, [u64; 2]>(header);
    let Some(rest) = rest.checked_sub(len) else {
        return Ok(None);
    };
    *left = rest;
    let len = len as usize;
    words.clear();
    words.resize(len.div_ceil(8), 0);
    let bytes = &mut bytemuck::cast_slice_mut(words)[..len];
    let is_whole = fill(file, bytes)? && u64::from(crc32c::crc32c(bytes)) == sum;
    Ok(is_whole.then_some(len))
}

/// Fill `bytes`; false if the file ends before.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
