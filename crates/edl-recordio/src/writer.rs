//! Writes RecordIO files: new ones atomically, old ones by appending.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::RecordError;
use crate::atomic::{AtomicFile, sync_folder_of};
use crate::blocks::{Block, Blocks, WriterOptions};
use crate::format::{
    BlockEntry, FILE_HEADER_BYTES, MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS, MAX_RECORD_BYTES,
    encode_index, file_header,
};
use crate::reader::{IndexState, RecordReader};
use crate::scan::{self, Verify};
use crate::source::Source;

/// Writes one RecordIO file.
///
/// A writer that is dropped without [`RecordWriter::close`] takes back its writes. A new file does
/// not appear. A file that was appended to ends at its earlier end, or at the last `flush`.
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    target: Target,
    options: WriterOptions,
    blocks: Vec<BlockEntry>,
    num_records: u64, // including those of `table` and `data`
    offset: u64,      // where the next block will lie
    table: Vec<u8>,   // ends of the records of the open block, as they will be stored
    data: Vec<u8>,    // these records
    failed: bool,
}

#[derive(Debug)]
enum Target {
    New(AtomicFile),
    Append(Appended),
    Closed,
}

/// A file under its own name, locked. Bytes before `kept` are never changed.
#[derive(Debug)]
struct Appended {
    file: File,
    kept: u64, // where the file ends if this writer gives up
    is_new: bool,
}

impl Target {
    fn write_all(&mut self, bytes: &[u8], path: &Path) -> Result<(), RecordError> {
        match self {
            Target::New(file) => file.write_all(bytes),
            Target::Append(appended) => appended
                .file
                .write_all(bytes)
                .map_err(RecordError::io(path, "append to")),
            Target::Closed => Err(RecordError::Failed {
                path: path.to_path_buf(),
            }),
        }
    }
}

impl RecordWriter {
    /// Writes a new file, which appears under its name when it is closed. A file that has this name
    /// already is replaced then.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`] if files cannot be created in the folder.
    pub fn create(
        path: impl AsRef<Path>,
        options: WriterOptions,
    ) -> Result<RecordWriter, RecordError> {
        let path = path.as_ref();
        let mut file = AtomicFile::create(path)?;
        file.write_all(&file_header())?;
        let start = FILE_HEADER_BYTES as u64;
        Ok(RecordWriter::new(path, Target::New(file), options, start))
    }

    /// Adds to a file under its own name, creating it if there is none.
    ///
    /// Blocks go behind the present end, so no byte of the file changes: readers are not disturbed,
    /// and a crash leaves all earlier records.
    ///
    /// # Errors
    ///
    /// Those of [`RecordReader::open`], and [`RecordError::Locked`] while another writer appends.
    pub fn append(
        path: impl AsRef<Path>,
        options: WriterOptions,
    ) -> Result<RecordWriter, RecordError> {
        let path = path.as_ref();
        let (file, is_new) = open_locked(path)?;
        if is_new {
            return RecordWriter::append_to_new(path, file, options);
        }
        let source = Source::from_file(file, path)?;
        let reader = RecordReader::from_source(source)?;
        if let Some(torn) = reader.torn() {
            return Err(RecordError::Torn {
                path: path.to_path_buf(),
                offset: torn.offset,
                what: torn.what.clone(),
                whole_records: reader.num_records(),
            });
        }
        let (source, blocks, num_records) = reader.into_parts();
        let kept = source.len();
        let target = Target::Append(Appended {
            file: source.into_file(),
            kept,
            is_new: false,
        });
        let mut writer = RecordWriter::new(path, target, options, kept);
        writer.blocks = blocks;
        writer.num_records = num_records;
        Ok(writer)
    }

    fn append_to_new(
        path: &Path,
        file: File,
        options: WriterOptions,
    ) -> Result<RecordWriter, RecordError> {
        let target = Target::Append(Appended {
            file,
            kept: 0,
            is_new: true,
        });
        let start = FILE_HEADER_BYTES as u64;
        let mut writer = RecordWriter::new(path, target, options, start);
        writer.target.write_all(&file_header(), path)?;
        sync_folder_of(path)?;
        Ok(writer)
    }

    fn new(path: &Path, target: Target, options: WriterOptions, offset: u64) -> RecordWriter {
        RecordWriter {
            path: path.to_path_buf(),
            target,
            options: WriterOptions {
                block_bytes: options.block_bytes.clamp(1, MAX_BLOCK_BYTES),
                ..options
            },
            blocks: Vec::new(),
            num_records: 0,
            offset,
            table: Vec::new(),
            data: Vec::new(),
            failed: false,
        }
    }

    /// How many records the file will have.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// Adds a record to the open block, and returns whether that is full now.
    ///
    /// A full block is written by `write_block`, or else by the next `push`:
    /// [`RecordWriter::write`] is both, apart they let a caller release its locks for the second.
    ///
    /// # Errors
    ///
    /// [`RecordError::TooLarge`], or [`RecordError::Failed`] after an earlier failure.
    pub fn push(&mut self, record: &[u8]) -> Result<bool, RecordError> {
        if self.failed {
            return Err(RecordError::Failed {
                path: self.path.clone(),
            });
        }
        if record.len() > MAX_RECORD_BYTES {
            return Err(RecordError::TooLarge {
                path: self.path.clone(),
                record: self.num_records,
                bytes: record.len(),
                limit: MAX_RECORD_BYTES,
            });
        }
        if self.block_is_full() {
            self.write_block()?;
        }
        self.data.extend_from_slice(record);
        // At most MAX_BLOCK_BYTES and one record, far below 4 GiB.
        self.table
            .extend_from_slice(&(self.data.len() as u32).to_le_bytes());
        self.num_records += 1;
        Ok(self.block_is_full())
    }

    fn block_is_full(&self) -> bool {
        self.data.len() >= self.options.block_bytes || self.table.len() >= 4 * MAX_BLOCK_RECORDS
    }

    /// Adds a record.
    ///
    /// # Errors
    ///
    /// Those of [`RecordWriter::push`] and [`RecordWriter::write_block`].
    pub fn write(&mut self, record: &[u8]) -> Result<(), RecordError> {
        if self.push(record)? {
            self.write_block()?;
        }
        Ok(())
    }

    /// Ends the open block and writes it to the file.
    ///
    /// # Errors
    ///
    /// [`RecordError::Io`], as when the disk is full. The writer is of no use after that.
    pub fn write_block(&mut self) -> Result<(), RecordError> {
        let num_records = self.table.len() / 4;
        if num_records == 0 {
            return Ok(());
        }
        let result = self.try_write_block(num_records);
        self.failed |= result.is_err();
        result
    }

    fn try_write_block(&mut self, num_records: usize) -> Result<(), RecordError> {
        let mut raw = std::mem::take(&mut self.table);
        raw.extend_from_slice(&self.data);
        self.data.clear();
        let (block, mut spare) = Block::pack(raw, num_records, self.options.codec)
            .map_err(RecordError::io(&self.path, "compress a block of"))?;
        let first_record = self.num_records - num_records as u64;
        self.append_block(&block, first_record)?;
        spare.clear();
        self.table = spare; // keeps its memory for the next block
        Ok(())
    }

    /// Ends the open block, and adds blocks that were packed elsewhere.
    ///
    /// # Errors
    ///
    /// As [`RecordWriter::write_block`].
    pub fn write_blocks(&mut self, blocks: &Blocks) -> Result<(), RecordError> {
        self.write_block()?;
        for block in &blocks.blocks {
            let result = self.append_block(block, self.num_records);
            self.failed |= result.is_err();
            result?;
            self.num_records += u64::from(block.num_records);
        }
        Ok(())
    }

    fn append_block(&mut self, block: &Block, first_record: u64) -> Result<(), RecordError> {
        let header = block.header(first_record);
        self.target.write_all(&header.encode(), &self.path)?;
        self.target.write_all(&block.payload, &self.path)?;
        self.blocks.push(BlockEntry {
            offset: self.offset,
            first_record,
        });
        self.offset += header.total_bytes();
        Ok(())
    }

    /// Writes all records so far and, when appending, makes them survive a crash.
    ///
    /// # Errors
    ///
    /// As [`RecordWriter::write_block`].
    pub fn flush(&mut self) -> Result<(), RecordError> {
        self.write_block()?;
        if let Target::Append(appended) = &mut self.target {
            appended
                .file
                .sync_data()
                .map_err(RecordError::io(&self.path, "sync"))?;
            appended.kept = self.offset;
            appended.is_new = false;
        }
        Ok(())
    }

    /// Writes what is left and the index; returns how many records the file has.
    ///
    /// # Errors
    ///
    /// As [`RecordWriter::write_block`]. The file is then as if it had not been written to.
    pub fn close(mut self) -> Result<u64, RecordError> {
        if self.failed {
            return Err(RecordError::Failed {
                path: self.path.clone(),
            });
        }
        self.write_block()?;
        let index = encode_index(&self.blocks, self.num_records, self.offset);
        self.target.write_all(&index, &self.path)?;
        if let Target::Append(appended) = &self.target {
            appended
                .file
                .sync_all()
                .map_err(RecordError::io(&self.path, "sync"))?;
        }
        if let Target::New(file) = std::mem::replace(&mut self.target, Target::Closed) {
            file.commit()?;
        }
        Ok(self.num_records)
    }
}

impl Drop for RecordWriter {
    fn drop(&mut self) {
        // Failures cannot be reported from here; the file then has a tail without an index,
        // which readers notice.
        if let Target::Append(appended) = &self.target {
            let _ = appended.file.set_len(appended.kept);
            if appended.is_new {
                let _ = std::fs::remove_file(&self.path);
            }
        }
    }
}

/// Opens a file for appending, and tells whether it is new. Only one writer at a time has it.
fn open_locked(path: &Path) -> Result<(File, bool), RecordError> {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    let (file, is_new) = match options.clone().create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => (
            options
                .open(path)
                .map_err(RecordError::io(path, "append to"))?,
            false,
        ),
        Err(error) => return Err(RecordError::io(path, "create")(error)),
    };
    lock(&file, path)?;
    Ok((file, is_new))
}

fn lock(file: &File, path: &Path) -> Result<(), RecordError> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => RecordError::Locked {
            path: path.to_path_buf(),
        },
        TryLockError::Error(error) => RecordError::io(path, "lock")(error),
    })
}

/// The effect of a repair on a file, real or possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// Records that the file has afterwards.
    pub num_records: u64,
    /// Bytes cut off its end.
    pub cut_bytes: u64,
    /// Whether anything needed to be done.
    pub is_needed: bool,
}

/// Checks every block of a file, cuts off its torn tail and gives it an index.
///
/// With `dry_run` the file is not changed. A whole file is left unchanged.
///
/// # Errors
///
/// [`RecordError::Damaged`] if records in the middle are damaged: a cut would lose whole records
/// behind them.
pub fn repair(path: impl AsRef<Path>, dry_run: bool) -> Result<Repair, RecordError> {
    let path = path.as_ref();
    let file = OpenOptions::new()
        .read(true)
        .write(!dry_run)
        .open(path)
        .map_err(RecordError::io(path, "repair"))?;
    if !dry_run {
        lock(&file, path)?;
    }
    let reader = RecordReader::from_source(Source::from_file(file, path)?)?;
    let is_closed = reader.index_state() == IndexState::Stored;
    let source = reader.into_parts().0;
    let walk = scan::walk(&source, Verify::EveryPayload)?;
    let repair = Repair {
        num_records: walk.num_records,
        cut_bytes: source.len() - walk.end,
        is_needed: !is_closed || walk.torn.is_some(),
    };
    if !dry_run && repair.is_needed {
        let index = encode_index(&walk.blocks, walk.num_records, walk.end);
        let file = source.into_file();
        file.set_len(walk.end)
            .and_then(|()| file.write_all_at(&index, walk.end))
            .and_then(|()| file.sync_all())
            .map_err(RecordError::io(path, "repair"))?;
    }
    Ok(repair)
}
