//! The bytes of a RecordIO file; `docs/designs/recordio.md` draws them. All numbers are little
//! endian. A file is a file header, then sections: blocks, and indexes each followed by a footer.

use crate::codec::Codec;
use crate::{RecordError, crc32c};

/// First bytes of a file. A high first byte and a line feed tell of transfers that change bytes.
pub const FILE_MAGIC: [u8; 8] = *b"\x89EDLRIO\n";
/// The version that is written and read.
pub const VERSION: u16 = 1;
/// Size of the file header.
pub const FILE_HEADER_BYTES: usize = 16;
/// First bytes of a block.
pub const BLOCK_MAGIC: [u8; 4] = *b"EBLK";
/// Size of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 36;
/// First bytes of an index.
pub const INDEX_MAGIC: [u8; 4] = *b"EIDX";
/// Size of what precedes the entries of an index.
pub const INDEX_HEADER_BYTES: usize = 16;
/// Size of an entry of an index.
pub const INDEX_ENTRY_BYTES: usize = 16;
/// Marks the footer, the end of a file that was closed.
pub const FOOTER_MAGIC: [u8; 4] = *b"EEND";
/// Size of the footer that follows an index.
pub const FOOTER_BYTES: usize = 16;

/// The largest record. It bounds what reading a hostile file can make us allocate.
pub const MAX_RECORD_BYTES: usize = 256 << 20;
/// The most records in one block.
pub const MAX_BLOCK_RECORDS: usize = 1 << 20;
/// The largest payload: the largest record, or a full block and one more record than it should.
pub const MAX_RAW_BYTES: usize = MAX_RECORD_BYTES + MAX_BLOCK_BYTES + 4 * MAX_BLOCK_RECORDS;
/// The largest size at which a writer may be told to end a block.
pub const MAX_BLOCK_BYTES: usize = 16 << 20;

const CRC_BYTES: usize = 4;

/// The place of a block, and the number of its first record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Offset of the block's header in the file.
    pub offset: u64,
    /// Number of its first record in the file.
    pub first_record: u64,
}

/// The header before the payload of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The compression of the payload.
    pub codec: Codec,
    /// Number of the first record in the file.
    pub first_record: u64,
    /// How many records there are, at least one.
    pub num_records: u32,
    /// Size of the payload before compression.
    pub raw_bytes: u32,
    /// Size of the payload in the file.
    pub stored_bytes: u32,
    /// Checksum of the payload in the file.
    pub payload_crc: u32,
}

pub(crate) fn le_u32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(number)
}

pub(crate) fn le_u64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// Appends the checksum of everything from `from` on.
pub(crate) fn seal(bytes: &mut Vec<u8>, from: usize) {
    let crc = crc32c(&bytes[from..]);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// Tells whether the last four bytes are the checksum of the others.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.len() >= CRC_BYTES && {
        let (body, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
        crc32c(body) == le_u32(crc, 0)
    }
}

/// Shows the first bytes of a file in an error.
pub(crate) fn magic_text(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "it is empty".to_owned();
    }
    let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("magic {}", hex.join(" "))
}

/// The header of a new file.
#[must_use]
pub fn file_header() -> Vec<u8> {
    let mut bytes = FILE_MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    seal(&mut bytes, 0);
    bytes
}

/// Checks the start of a file; `bytes` are its first [`FILE_HEADER_BYTES`], or fewer if it ends.
///
/// # Errors
///
/// [`RecordError::Foreign`], [`RecordError::Version`], or damaged or torn within the header.
pub fn check_file_header(bytes: &[u8], path: &std::path::Path) -> Result<(), RecordError> {
    let magic = &bytes[..bytes.len().min(FILE_MAGIC.len())];
    if magic.is_empty() || !FILE_MAGIC.starts_with(magic) {
        return Err(RecordError::Foreign {
            path: path.to_path_buf(),
            format: "RecordIO",
            found: magic_text(magic),
            expected: magic_text(&FILE_MAGIC),
        });
    }
    if bytes.len() < FILE_HEADER_BYTES {
        return Err(RecordError::Torn {
            path: path.to_path_buf(),
            offset: 0,
            what: format!(
                "the file header has {FILE_HEADER_BYTES} bytes, the file {}",
                bytes.len()
            ),
            whole_records: 0,
        });
    }
    if !is_sealed(&bytes[..FILE_HEADER_BYTES]) {
        return Err(RecordError::Damaged {
            path: path.to_path_buf(),
            offset: 0,
            what: "the checksum of the file header does not match".to_owned(),
        });
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != VERSION || bytes[10..12] != [0; 2] {
        return Err(RecordError::Version {
            path: path.to_path_buf(),
            found: version,
            known: VERSION,
        });
    }
    Ok(())
}

impl BlockHeader {
    /// The bytes of the header, its own checksum last.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK_HEADER_BYTES);
        bytes.extend_from_slice(&BLOCK_MAGIC);
        bytes.extend_from_slice(&[self.codec.code(), 0, 0, 0]);
        bytes.extend_from_slice(&self.first_record.to_le_bytes());
        bytes.extend_from_slice(&self.num_records.to_le_bytes());
        bytes.extend_from_slice(&self.raw_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.stored_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.payload_crc.to_le_bytes());
        seal(&mut bytes, 0);
        bytes
    }

    /// Reads a header and checks all that can be checked without the payload.
    ///
    /// # Errors
    ///
    /// Says what is wrong; the caller knows the file and the offset.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_BYTES]) -> Result<BlockHeader, String> {
        if bytes[..4] != BLOCK_MAGIC {
            return Err("no block begins here".to_owned());
        }
        if !is_sealed(bytes) {
            return Err("the checksum of the block header does not match".to_owned());
        }
        let codec = Codec::from_code(bytes[4])
            .ok_or_else(|| format!("codec {} is not known to this release", bytes[4]))?;
        let header = BlockHeader {
            codec,
            first_record: le_u64(bytes, 8),
            num_records: le_u32(bytes, 16),
            raw_bytes: le_u32(bytes, 20),
            stored_bytes: le_u32(bytes, 24),
            payload_crc: le_u32(bytes, 28),
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), String> {
        let (records, raw) = (self.num_records as usize, self.raw_bytes as usize);
        if records == 0 || records > MAX_BLOCK_RECORDS {
            return Err(format!(
                "a block has 1 to {MAX_BLOCK_RECORDS} records, this one says {records}"
            ));
        }
        if raw < 4 * records || raw > MAX_RAW_BYTES {
            return Err(format!(
                "a block of {records} records has {} to {MAX_RAW_BYTES} bytes, this one says {raw}",
                4 * records
            ));
        }
        if self.stored_bytes > self.raw_bytes
            || (self.codec == Codec::None && self.stored_bytes != self.raw_bytes)
        {
            return Err(format!(
                "{} bytes are stored for {raw} with codec {}",
                self.stored_bytes,
                self.codec.name()
            ));
        }
        if self.first_record.checked_add(records as u64).is_none() {
            return Err(format!("record number {} overflows", self.first_record));
        }
        Ok(())
    }

    /// Size of header and payload in the file.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        BLOCK_HEADER_BYTES as u64 + u64::from(self.stored_bytes)
    }

    /// Number of the first record of the next block.
    #[must_use]
    pub fn end_record(&self) -> u64 {
        self.first_record + u64::from(self.num_records)
    }
}

/// Size of an index of `num_blocks` blocks and of the footer behind it.
#[must_use]
pub fn index_bytes(num_blocks: u64) -> u64 {
    let fixed = (INDEX_HEADER_BYTES + CRC_BYTES + FOOTER_BYTES) as u64;
    num_blocks
        .saturating_mul(INDEX_ENTRY_BYTES as u64)
        .saturating_add(fixed)
}

/// The index and footer that close a file; `offset` is where they will lie.
#[must_use]
pub fn encode_index(blocks: &[BlockEntry], num_records: u64, offset: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(index_bytes(blocks.len() as u64) as usize);
    bytes.extend_from_slice(&INDEX_MAGIC);
    bytes.extend_from_slice(&(blocks.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&num_records.to_le_bytes());
    for block in blocks {
        bytes.extend_from_slice(&block.offset.to_le_bytes());
        bytes.extend_from_slice(&block.first_record.to_le_bytes());
    }
    seal(&mut bytes, 0);
    let footer = bytes.len();
    bytes.extend_from_slice(&offset.to_le_bytes());
    bytes.extend_from_slice(&FOOTER_MAGIC);
    seal(&mut bytes, footer);
    bytes
}

/// Reads the footer: the offset of the index, if these are the last bytes of a closed file.
#[must_use]
pub fn decode_footer(bytes: &[u8; FOOTER_BYTES]) -> Option<u64> {
    (bytes[8..12] == FOOTER_MAGIC && is_sealed(bytes)).then(|| le_u64(bytes, 0))
}

/// Number of blocks that an index says it has, if an index begins here.
#[must_use]
pub fn index_num_blocks(header: &[u8]) -> Option<u64> {
    (header.len() >= INDEX_HEADER_BYTES && header[..4] == INDEX_MAGIC)
        .then(|| u64::from(le_u32(header, 4)))
}

/// Reads an index and its footer, which lie at `offset`: the blocks, and how many records.
///
/// # Errors
///
/// Says what is wrong; the caller knows the file and the offset.
pub fn decode_index(bytes: &[u8], offset: u64) -> Result<(Vec<BlockEntry>, u64), String> {
    let num_blocks = index_num_blocks(bytes).ok_or("no index begins here")?;
    if index_bytes(num_blocks) != bytes.len() as u64 {
        return Err(format!(
            "an index of {num_blocks} blocks has {} bytes, not {}",
            index_bytes(num_blocks),
            bytes.len()
        ));
    }
    let (index, footer) = bytes.split_at(bytes.len() - FOOTER_BYTES);
    let footer = footer.first_chunk().and_then(decode_footer);
    if !is_sealed(index) || footer != Some(offset) {
        return Err("the checksum of the index does not match".to_owned());
    }
    let num_records = le_u64(bytes, 8);
    let blocks: Vec<BlockEntry> = index[INDEX_HEADER_BYTES..index.len() - CRC_BYTES]
        .chunks_exact(INDEX_ENTRY_BYTES)
        .map(|entry| BlockEntry {
            offset: le_u64(entry, 0),
            first_record: le_u64(entry, 8),
        })
        .collect();
    check_index(&blocks, num_records, offset)?;
    Ok((blocks, num_records))
}

/// Blocks lie in order, within the file, without gaps in their record numbers.
fn check_index(blocks: &[BlockEntry], num_records: u64, end: u64) -> Result<(), String> {
    let mut least = BlockEntry {
        offset: FILE_HEADER_BYTES as u64,
        first_record: 0,
    };
    for (number, block) in blocks.iter().enumerate() {
        let starts_at_zero = number > 0 || block.first_record == 0;
        if block.offset < least.offset || block.first_record < least.first_record || !starts_at_zero
        {
            return Err(format!("entry {number} of the index is out of order"));
        }
        least = BlockEntry {
            offset: block
                .offset
                .saturating_add((BLOCK_HEADER_BYTES + CRC_BYTES) as u64),
            first_record: block.first_record.saturating_add(1),
        };
    }
    if least.offset > end && !blocks.is_empty() || least.first_record > num_records {
        return Err("the last entry of the index lies beyond its end".to_owned());
    }
    if blocks.is_empty() && num_records != 0 {
        return Err(format!("the index says {num_records} records in no block"));
    }
    Ok(())
}
