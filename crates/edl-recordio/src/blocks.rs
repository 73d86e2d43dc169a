//! Blocks of records that are compressed before they have a place: by any thread, in any order.

use std::io;

use crate::codec::Codec;
use crate::crc32c;
use crate::format::{BlockHeader, MAX_BLOCK_BYTES, MAX_BLOCK_RECORDS, MAX_RECORD_BYTES};

/// The rule by which records are put into blocks.
#[derive(Clone, Copy, Debug)]
pub struct WriterOptions {
    /// The compression of blocks; a block that does not get smaller is stored uncompressed.
    pub codec: Codec,
    /// A block ends when its records have so many bytes; at most [`MAX_BLOCK_BYTES`].
    pub block_bytes: usize,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            codec: Codec::None,
            block_bytes: 256 << 10,
        }
    }
}

/// Whole blocks, in order, for [`crate::RecordWriter::write_blocks`].
#[derive(Clone, Debug, Default)]
pub struct Blocks {
    pub(crate) blocks: Vec<Block>,
}

/// The payload of one block as it is stored, and what its header says of it.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    pub(crate) codec: Codec,
    pub(crate) num_records: u32,
    raw_bytes: u32,
    payload_crc: u32,
    pub(crate) payload: Vec<u8>,
}

impl Blocks {
    /// Packs records that lie one after the other in `bytes`; record `i` ends at `ends[i]`.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for a record of more than [`MAX_RECORD_BYTES`]; what the codec says.
    pub fn pack(bytes: &[u8], ends: &[usize], options: WriterOptions) -> io::Result<Blocks> {
        let limit = options.block_bytes.clamp(1, MAX_BLOCK_BYTES);
        let mut blocks = Vec::new();
        let (mut first, mut start) = (0, 0);
        for (number, &end) in ends.iter().enumerate() {
            let before = number.checked_sub(1).map_or(0, |before| ends[before]);
            if end - before > MAX_RECORD_BYTES {
                let what = format!("a record of {} bytes is too large", end - before);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let num_records = number + 1 - first;
            let is_last = number + 1 == ends.len();
            if is_last || end - start >= limit || num_records == MAX_BLOCK_RECORDS {
                // At most a block and a record, far below 4 GiB.
                let mut raw = Vec::with_capacity(4 * num_records + end - start);
                for end in &ends[first..=number] {
                    raw.extend_from_slice(&((end - start) as u32).to_le_bytes());
                }
                raw.extend_from_slice(&bytes[start..end]);
                blocks.push(Block::pack(raw, num_records, options.codec)?.0);
                (first, start) = (number + 1, end);
            }
        }
        Ok(Blocks { blocks })
    }

    /// How many records there are.
    #[must_use]
    pub fn num_records(&self) -> u64 {
        self.blocks
            .iter()
            .map(|block| u64::from(block.num_records))
            .sum()
    }
}

impl Block {
    /// Packs a payload; returns its memory too, where it is not the block's.
    pub(crate) fn pack(
        raw: Vec<u8>,
        num_records: usize,
        codec: Codec,
    ) -> io::Result<(Block, Vec<u8>)> {
        let compressed = codec.compress(&raw)?;
        let raw_bytes = raw.len() as u32;
        let (codec, payload, spare) = match compressed {
            Some(stored) => (codec, stored, raw),
            None => (Codec::None, raw, Vec::new()),
        };
        let block = Block {
            codec,
            num_records: num_records as u32,
            raw_bytes,
            payload_crc: crc32c(&payload),
            payload,
        };
        Ok((block, spare))
    }

    pub(crate) fn header(&self, first_record: u64) -> BlockHeader {
        BlockHeader {
            codec: self.codec,
            first_record,
            num_records: self.num_records,
            raw_bytes: self.raw_bytes,
            stored_bytes: self.payload.len() as u32,
            payload_crc: self.payload_crc,
        }
    }
}
