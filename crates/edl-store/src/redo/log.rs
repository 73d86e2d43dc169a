//! The files of a redo log: segments, each begun by a checkpoint or by a process.
//!
//! A process appends to segments of its own, such as `00000007.redo`. Its successor seals them: the
//! name then says how much of a file is valid, as `00000007-4096.redo` does. So the appends of a
//! process that is not dead after all have no effect. A record has its length, the number of its
//! segment, its CRC-32C and its bytes. So the last record of a killed process can be told from half
//! a record, and from the earlier contents of a file that is used again.
//!
//! Nothing is synced: a log is for processes that die, not for machines that lose power. After a
//! loss of power, the log may be ahead of the master's journal. So a log is valid as long as the
//! system runs that has written it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, IoSlice, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::record::{Change, Encoded};

/// Bytes before each record: its length, its segment and its checksum.
const HEADER: u64 = 16;
/// Pieces that are written by one call; Linux takes no more.
const MAX_PIECES: usize = 1024;
/// The file with the id of the system's run that has written the log.
const BOOT: &str = "boot";
/// A file that is overwritten takes half the time of a new one.
const SPARE: &str = "spare";

/// The size of a redo log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedoLogState {
    /// Records in all its files.
    pub num_bytes: u64,
    /// Whether it will soon be broken off, or is: a checkpoint lets it go on.
    pub wants_checkpoint: bool,
    /// Why nothing is noted until the next checkpoint.
    pub problem: Option<String>,
}

/// A log that is written.
pub(crate) struct Log {
    folder: PathBuf,
    /// Bytes of the open segment, and of all closed ones.
    segment_limit: u64,
    segments: Mutex<Segments>,
    /// It is broken off; read before anything is encoded.
    is_broken: AtomicBool,
}

struct Segments {
    /// Before the open one, the oldest first.
    closed: Vec<Closed>,
    open: Segment,
    file: File,
    /// Bytes written.
    at: u64,
    /// Why no more are.
    problem: Option<String>,
    /// The checkpoint at whose instant the open one began.
    checkpoint: Option<PathBuf>,
}

struct Closed {
    segment: Segment,
    num_bytes: u64,
    /// The checkpoint at whose instant it began.
    checkpoint: Option<PathBuf>,
}

impl Log {
    /// Begin a segment behind those in `folder`, which are sealed already; the store has `version`.
    ///
    /// # Errors
    /// Files that cannot be read or made.
    pub(crate) fn open(folder: &Path, limit: u64, version: u64) -> io::Result<Self> {
        let closed = segments_in(folder)?.into_iter().map(|segment| Closed {
            num_bytes: segment.counts.unwrap_or(0),
            segment,
            checkpoint: None,
        });
        let closed = closed.collect();
        let (open, file) = begin(folder)?;
        let log = Self {
            folder: folder.to_owned(),
            segment_limit: limit / 2,
            segments: Mutex::new(Segments {
                closed,
                open,
                file,
                at: 0,
                problem: None,
                checkpoint: None,
            }),
            is_broken: AtomicBool::new(false),
        };
        log.append(&Change::Segment { version });
        Ok(log)
    }

    /// Append a change. If it cannot be written, the log is broken off until the next segment.
    pub(crate) fn append(&self, change: &Change<'_>) {
        if self.is_broken.load(Ordering::Relaxed) {
            return;
        }
        let encoded = Encoded::of(change);
        let record = Record::of(&encoded);
        let mut segments = self.segments.lock();
        if segments.problem.is_none() {
            self.write(&mut segments, &record);
        }
    }

    fn write(&self, segments: &mut Segments, record: &Record<'_>) {
        let end = segments.at + record.num_bytes();
        if end > self.segment_limit {
            let reached = format!("it has reached {} bytes", self.segment_limit);
            return self.break_off(segments, reached);
        }
        match record.write(&segments.file, segments.open.number) {
            Ok(()) => segments.at = end,
            Err(error) => self.break_off(segments, error.to_string()),
        }
    }

    fn break_off(&self, segments: &mut Segments, problem: String) {
        segments.problem = Some(problem);
        self.is_broken.store(true, Ordering::Relaxed);
    }

    /// Begin a segment at the instant of a checkpoint that will be in `directory`; the store has
    /// `version`.
    ///
    /// Nothing changes the store meanwhile.
    pub(crate) fn begin_segment(&self, directory: &Path, version: u64) {
        let mut guard = self.segments.lock();
        let segments = &mut *guard;
        remove_ended(&self.folder, &mut segments.closed, None);
        match begin(&self.folder) {
            Err(error) => self.break_off(segments, error.to_string()),
            Ok((open, file)) => {
                segments.closed.push(Closed {
                    segment: std::mem::replace(&mut segments.open, open),
                    num_bytes: segments.at,
                    checkpoint: segments.checkpoint.replace(directory.to_owned()),
                });
                (segments.file, segments.at, segments.problem) = (file, 0, None);
                self.is_broken.store(false, Ordering::Relaxed);
                let begun = Change::Segment { version };
                self.write(segments, &Record::of(&Encoded::of(&begun)));
            }
        }
        // Older checkpoints are whole by now, or never.
        while total(&segments.closed) > self.segment_limit {
            remove(&self.folder, segments.closed.remove(0));
        }
    }

    /// Remove the segments from before a checkpoint that is whole.
    pub(crate) fn trim(&self) {
        let mut guard = self.segments.lock();
        let segments = &mut *guard;
        let newest = segments.checkpoint.as_deref();
        remove_ended(&self.folder, &mut segments.closed, newest);
    }

    pub(crate) fn state(&self) -> RedoLogState {
        let segments = self.segments.lock();
        RedoLogState {
            num_bytes: segments.at + total(&segments.closed),
            wants_checkpoint: segments.problem.is_some() || segments.at > self.segment_limit / 2,
            problem: segments.problem.clone(),
        }
    }
}

/// A change as it is written: a header, and its bytes in pieces.
struct Record<'a> {
    pieces: Vec<&'a [u8]>,
    len: u64,
    sum: u32,
}

impl<'a> Record<'a> {
    fn of(encoded: &'a Encoded<'_>) -> Self {
        let pieces = encoded.pieces();
        let sum = |sum, piece: &&[u8]| crc32c::crc32c_append(sum, piece);
        Self {
            len: pieces.iter().map(|piece| piece.len() as u64).sum(),
            sum: pieces.iter().fold(0, sum),
            pieces,
        }
    }

    fn num_bytes(&self) -> u64 {
        HEADER + self.len
    }

    /// Write it to a segment.
    fn write(&self, file: &File, segment: u32) -> io::Result<()> {
        let header = [self.len, mark_of(segment, self.sum)];
        let mut pieces = vec![bytemuck::cast_slice(&header)];
        pieces.extend_from_slice(&self.pieces);
        write(file, &pieces)
    }
}

/// Tells a record of a segment from an earlier record of the same file.
fn mark_of(number: u32, sum: u32) -> u64 {
    u64::from(number) << 32 | u64::from(sum)
}

/// Write all pieces, or say why only some are.
fn write(mut file: &File, pieces: &[&[u8]]) -> io::Result<()> {
    for pieces in pieces.chunks(MAX_PIECES) {
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let expected: usize = pieces.iter().map(|piece| piece.len()).sum();
        if file.write_vectored(&slices)? != expected {
            return Err(io::Error::other("its disk is full"));
        }
    }
    Ok(())
}

fn total(closed: &[Closed]) -> u64 {
    closed.iter().map(|each| each.num_bytes).sum()
}

/// Remove all that is before the newest whole checkpoint at which a segment began; `newest` is that
/// of the segment behind these.
fn remove_ended(folder: &Path, closed: &mut Vec<Closed>, newest: Option<&Path>) {
    let is_whole = |directory: &Path| directory.join("manifest.json").exists();
    let ended = if newest.is_some_and(is_whole) {
        closed.len()
    } else {
        let whole = |each: &Closed| each.checkpoint.as_deref().is_some_and(is_whole);
        closed.iter().rposition(whole).unwrap_or(0)
    };
    for each in closed.drain(..ended) {
        remove(folder, each);
    }
}

/// Remove a segment; one of this process is kept for the next. A predecessor may not be dead after
/// all, and write to its own.
fn remove(folder: &Path, closed: Closed) {
    let Segment { path, counts, .. } = closed.segment;
    let is_kept = counts.is_none() && fs::rename(&path, folder.join(SPARE)).is_ok();
    if !is_kept {
        let _ = fs::remove_file(path); // one that stays is read again, to no effect
    }
}

fn begin(folder: &Path) -> io::Result<(Segment, File)> {
    let last = segments_in(folder)?.last().map_or(0, |last| last.number);
    for number in last + 1.. {
        let path = folder.join(format!("{number:08}.redo"));
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match options.open(&path) {
            // A process that counts as lost and is not may still make some.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
            Ok(mut file) => {
                if fs::rename(folder.join(SPARE), &path).is_ok() {
                    file = OpenOptions::new().write(true).open(&path)?;
                }
                let counts = None;
                return Ok((
                    Segment {
                        number,
                        path,
                        counts,
                    },
                    file,
                ));
            }
        }
    }
    Err(io::Error::other("its segments have no numbers left"))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    number: u32,
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
fn segments_in(folder: &Path) -> io::Result<Vec<Segment>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        found.extend(Segment::at(entry?.path()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Call `take` with the bytes of each whole record in a folder, in order; the folder is created.
/// `take` says whether a record counts. A segment is read up to its first record that is torn or
/// does not count, and sealed there.
///
/// # Errors
/// Files that cannot be read or renamed.
pub(crate) fn read_and_seal(folder: &Path, mut take: impl FnMut(&[u8]) -> bool) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let _ = fs::remove_file(folder.join(SPARE)); // a predecessor's
    forget_other_boots(folder)?;
    let mut words: Vec<u64> = Vec::new();
    for segment in segments_in(folder)? {
        let file = File::open(&segment.path)?;
        let size = file.metadata()?.len();
        let mut from = Records {
            file: BufReader::with_capacity(1 << 20, file),
            number: segment.number,
            left: segment.counts.map_or(size, |counts| counts.min(size)),
            at: 0,
        };
        let mut counted = 0;
        while let Some(len) = from.next(&mut words)? {
            if !take(&bytemuck::cast_slice(&words)[..len]) {
                break;
            }
            counted = from.at;
        }
        if segment.counts != Some(counted) {
            let sealed = format!("{:08}-{counted}.redo", segment.number);
            fs::rename(segment.path, folder.join(sealed))?;
        }
    }
    Ok(())
}

/// Remove the segments that were written before the system was started, or by another one.
fn forget_other_boots(folder: &Path) -> io::Result<()> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    if boot.is_some() && fs::read_to_string(folder.join(BOOT)).ok() == boot {
        return Ok(());
    }
    for segment in segments_in(folder)? {
        fs::remove_file(segment.path)?;
    }
    fs::write(folder.join(BOOT), boot.unwrap_or_default())
}

/// The records of a segment.
struct Records {
    file: BufReader<File>,
    number: u32,
    /// Bytes that may be read.
    left: u64,
    /// Bytes of whole records that were read.
    at: u64,
}

impl Records {
    /// Read a record into words, which fit its numbers; return its length, or none at the end or at
    /// one that is torn.
    fn next(&mut self, words: &mut Vec<u64>) -> io::Result<Option<usize>> {
        let mut header = [0_u64; 2];
        let Some(left) = self.left.checked_sub(HEADER) else {
            return Ok(None);
        };
        if !fill(&mut self.file, bytemuck::cast_slice_mut(&mut header))? {
            return Ok(None);
        }
        let [len, mark] = header;
        let Some(left) = left.checked_sub(len) else {
            return Ok(None);
        };
        let num_bytes = len as usize;
        words.clear();
        words.resize(num_bytes.div_ceil(8), 0);
        let bytes = &mut bytemuck::cast_slice_mut(words)[..num_bytes];
        let is_whole =
            fill(&mut self.file, bytes)? && mark == mark_of(self.number, crc32c::crc32c(bytes));
        if !is_whole {
            return Ok(None);
        }
        (self.left, self.at) = (left, self.at + HEADER + len);
        Ok(Some(num_bytes))
    }
}

/// Fill `bytes`; false if the file ends before.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
