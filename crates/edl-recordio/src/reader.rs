//! Reads RecordIO files.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::format::{
    BLOCK_HEADER_BYTES, BlockEntry, BlockHeader, FILE_HEADER_BYTES, FOOTER_BYTES,
    check_file_header, decode_footer, decode_index, le_u32,
};
use crate::scan::{self, TornTail, Verify, Walk};
use crate::source::Source;
use crate::{Batch, Codec, RecordError, crc32c};

/// The origin of a reader's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexState {
    /// From the end of the file, which was closed by its writer.
    Stored,
    /// From the headers of the blocks: the last writer has not closed the file.
    Rebuilt,
}

/// The contents of a block's header, for the inspection of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Offset of the block in the file.
    pub offset: u64,
    /// Number of its first record.
    pub first_record: u64,
    /// How many records it has.
    pub num_records: u32,
    /// The compression of the block.
    pub codec: Codec,
    /// Size of its payload in the file.
    pub stored_bytes: u32,
    /// Size of its payload before compression.
    pub raw_bytes: u32,
}

/// A RecordIO file opened for reading. Any number of threads may read from it at once.
#[derive(Debug)]
pub struct RecordReader {
    source: Source,
    blocks: Vec<BlockEntry>,
    num_records: u64,
    end_of_blocks: u64,
    state: IndexState,
    torn: Option<TornTail>,
    // The block that was read last: chunks of consecutive reads rarely end where a block does.
    // Written by every reading thread, held only to exchange the pointer.
    last: Mutex<Option<(usize, Arc<Block>)>>,
}

/// A block's payload, checked and decompressed.
#[derive(Debug)]
struct Block {
    payload: Arc<Vec<u8>>,
    num_records: usize,
}

impl RecordReader {
    /// Opens a file that is whole.
    ///
    /// # Errors
    ///
    /// [`RecordError::Foreign`], [`RecordError::Version`], [`RecordError::Torn`],
    /// [`RecordError::Damaged`] or [`RecordError::Io`].
    pub fn open(path: impl AsRef<Path>) -> Result<RecordReader, RecordError> {
        let reader = RecordReader::open_torn(path)?;
        match &reader.torn {
            None => Ok(reader),
            Some(torn) => Err(RecordError::Torn {
                path: reader.source.path().to_path_buf(),
                offset: torn.offset,
                what: torn.what.clone(),
                whole_records: reader.num_records,
            }),
        }
    }

    /// Opens a file whose tail may be torn, to read the whole records before the tail.
    ///
    /// # Errors
    ///
    /// Those of [`RecordReader::open`]; `Torn` only if the file header itself is torn.
    pub fn open_torn(path: impl AsRef<Path>) -> Result<RecordReader, RecordError> {
        RecordReader::from_source(Source::open(path.as_ref())?)
    }

    pub(crate) fn from_source(source: Source) -> Result<RecordReader, RecordError> {
        check_start(&source)?;
        if let Some((blocks, num_records, end_of_blocks)) = stored_index(&source)? {
            return Ok(RecordReader {
                source,
                blocks,
                num_records,
                end_of_blocks,
                state: IndexState::Stored,
                torn: None,
                last: Mutex::new(None),
            });
        }
        let Walk {
            blocks,
            num_records,
            end,
            torn,
        } = scan::walk(&source, Verify::LastPayload)?;
        Ok(RecordReader {
            source,
            blocks,
            num_records,
            end_of_blocks: end,
            state: IndexState::Rebuilt,
            torn,
            last: Mutex::new(None),
        })
    }

    /// How many records can be read.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.num_records
    }

    /// How many blocks there are.
    #[must_use]
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Size of the file in bytes.
    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.source.len()
    }

    /// Returns the origin of the index.
    #[must_use]
    pub fn index_state(&self) -> IndexState {
        self.state
    }

    /// The torn tail, if the file has one.
    #[must_use]
    pub fn torn(&self) -> Option<&TornTail> {
        self.torn.as_ref()
    }

    pub(crate) fn into_parts(self) -> (Source, Vec<BlockEntry>, u64) {
        (self.source, self.blocks, self.num_records)
    }

    /// Returns the header of block `number`.
    ///
    /// # Errors
    ///
    /// [`RecordError::Damaged`] if the header is not the written header.
    ///
    /// # Panics
    ///
    /// If there is no such block.
    pub fn block(&self, number: usize) -> Result<BlockInfo, RecordError> {
        let header = self.header(number)?;
        Ok(BlockInfo {
            offset: self.blocks[number].offset,
            first_record: header.first_record,
            num_records: header.num_records,
            codec: header.codec,
            stored_bytes: header.stored_bytes,
            raw_bytes: header.raw_bytes,
        })
    }

    /// Reads and checks every block.
    ///
    /// # Errors
    ///
    /// [`RecordError::Damaged`] with the offset of the first block that is not whole.
    pub fn verify(&self) -> Result<(), RecordError> {
        (0..self.blocks.len()).try_for_each(|number| self.load(number).map(drop))
    }

    /// Reads records `[start, end)`; at least one, then no further block once `max_bytes` are
    /// reached.
    ///
    /// # Errors
    ///
    /// [`RecordError::Range`], [`RecordError::Damaged`] or [`RecordError::Io`].
    pub fn read(&self, start: u64, end: u64, max_bytes: usize) -> Result<Batch, RecordError> {
        if start > end || end > self.num_records {
            return Err(self.source.range_error(start, end, self.num_records));
        }
        let mut batch = Batch::default();
        let mut next = start;
        let mut number = self
            .blocks
            .partition_point(|block| block.first_record <= start)
            .saturating_sub(1);
        while next < end && (batch.is_empty() || batch.num_bytes() < max_bytes) {
            let block = self.cached(number)?;
            let first = self.blocks[number].first_record;
            let stop = end.min(first + block.num_records as u64);
            let records = (next - first) as usize..(stop - first) as usize;
            batch.push(
                Arc::clone(&block.payload),
                records.map(|record| block.record(record)).collect(),
            );
            next = stop;
            number += 1;
        }
        Ok(batch)
    }

    fn cached(&self, number: usize) -> Result<Arc<Block>, RecordError> {
        // A panic cannot leave the pointer half-written, so a poisoned lock holds good data.
        let lock = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((cached, block)) = lock().as_ref()
            && *cached == number
        {
            return Ok(Arc::clone(block));
        }
        let block = Arc::new(self.load(number)?);
        *lock() = Some((number, Arc::clone(&block)));
        Ok(block)
    }

    fn header(&self, number: usize) -> Result<BlockHeader, RecordError> {
        let entry = self.blocks[number];
        let mut bytes = [0; BLOCK_HEADER_BYTES];
        if entry.offset + BLOCK_HEADER_BYTES as u64 > self.end_of_blocks {
            return Err(self.source.damaged(entry.offset, "no block fits here"));
        }
        self.source.read_exact_at(&mut bytes, entry.offset)?;
        let header =
            BlockHeader::decode(&bytes).map_err(|what| self.source.damaged(entry.offset, what))?;
        let end_record = self
            .blocks
            .get(number + 1)
            .map_or(self.num_records, |next| next.first_record);
        if (header.first_record, header.end_record()) != (entry.first_record, end_record) {
            return Err(self.source.damaged(
                entry.offset,
                format!(
                    "the block has records [{}, {}), the index says [{}, {end_record})",
                    header.first_record,
                    header.end_record(),
                    entry.first_record
                ),
            ));
        }
        if entry.offset + header.total_bytes() > self.end_of_blocks {
            return Err(self.source.damaged(
                entry.offset,
                format!("a block of {} bytes does not fit", header.total_bytes()),
            ));
        }
        Ok(header)
    }

    fn load(&self, number: usize) -> Result<Block, RecordError> {
        let header = self.header(number)?;
        let offset = self.blocks[number].offset;
        let damaged = |what: String| {
            self.source.damaged(
                offset,
                format!(
                    "block of records [{}, {}): {what}",
                    header.first_record,
                    header.end_record()
                ),
            )
        };
        let start = offset + BLOCK_HEADER_BYTES as u64;
        let stored = self
            .source
            .read_range(start, offset + header.total_bytes())?;
        if crc32c(&stored) != header.payload_crc {
            return Err(damaged("its checksum does not match".to_owned()));
        }
        let payload = header
            .codec
            .decompress(stored, header.raw_bytes as usize)
            .map_err(damaged)?;
        Block::new(payload, header.num_records as usize).map_err(damaged)
    }
}

impl Block {
    /// Checks the table of ends, so that no record lies outside the payload.
    fn new(payload: Vec<u8>, num_records: usize) -> Result<Block, String> {
        let data_bytes = payload.len() - 4 * num_records; // BlockHeader::check has compared them
        let mut least = 0;
        for end in payload[..4 * num_records]
            .chunks_exact(4)
            .map(|end| le_u32(end, 0))
        {
            if end < least || end as usize > data_bytes {
                return Err(format!(
                    "a record of it ends at {end} of {data_bytes} bytes"
                ));
            }
            least = end;
        }
        if least as usize != data_bytes {
            return Err(format!("its records end at {least} of {data_bytes} bytes"));
        }
        Ok(Block {
            payload: Arc::new(payload),
            num_records,
        })
    }

    fn record(&self, number: usize) -> Range<usize> {
        let data = 4 * self.num_records;
        let start = match number {
            0 => 0,
            _ => le_u32(&self.payload, 4 * (number - 1)),
        };
        data + start as usize..data + le_u32(&self.payload, 4 * number) as usize
    }
}

fn check_start(source: &Source) -> Result<(), RecordError> {
    let mut bytes = [0; FILE_HEADER_BYTES];
    let size = source.len().min(FILE_HEADER_BYTES as u64) as usize;
    source.read_exact_at(&mut bytes[..size], 0)?;
    check_file_header(&bytes[..size], source.path())
}

/// The index at the end of the file, and where it begins, if the file was closed.
fn stored_index(source: &Source) -> Result<Option<(Vec<BlockEntry>, u64, u64)>, RecordError> {
    let footer_start = match source.len().checked_sub(FOOTER_BYTES as u64) {
        Some(start) if start >= FILE_HEADER_BYTES as u64 => start,
        _ => return Ok(None),
    };
    let mut footer = [0; FOOTER_BYTES];
    source.read_exact_at(&mut footer, footer_start)?;
    let Some(offset) = decode_footer(&footer) else {
        return Ok(None);
    };
    if offset < FILE_HEADER_BYTES as u64 || offset >= footer_start {
        return Ok(None);
    }
    let bytes = source.read_range(offset, source.len())?;
    // If the index is not valid, the blocks themselves tell the contents.
    Ok(decode_index(&bytes, offset)
        .ok()
        .map(|(blocks, num_records)| (blocks, num_records, offset)))
}
