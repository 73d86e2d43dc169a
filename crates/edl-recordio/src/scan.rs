//! Finding the blocks of a file without its index, by walking from header to header.

use crate::format::{
    BLOCK_HEADER_BYTES, BLOCK_MAGIC, BlockEntry, BlockHeader, FILE_HEADER_BYTES,
    INDEX_HEADER_BYTES, decode_index, index_bytes, index_num_blocks,
};
use crate::source::{Source, WINDOW_BYTES};
use crate::{RecordError, crc32c};

/// The end of a file that lacks a part of its last section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// The end of the last whole section.
    pub offset: u64,
    /// The incomplete part there.
    pub what: String,
}

/// The payloads that a walk reads and checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// The last block's: what was written last may be missing after a power cut.
    LastPayload,
    /// Every block's.
    EveryPayload,
}

/// The result of a walk.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) blocks: Vec<BlockEntry>,
    pub(crate) num_records: u64,
    /// The end of the last whole section.
    pub(crate) end: u64,
    pub(crate) torn: Option<TornTail>,
}

/// Walks over a file whose header has been checked.
///
/// # Errors
///
/// [`RecordError::Damaged`] where a section is not whole and whole blocks follow it.
pub(crate) fn walk(source: &Source, verify: Verify) -> Result<Walk, RecordError> {
    let mut walk = Walk {
        blocks: Vec::new(),
        num_records: 0,
        end: FILE_HEADER_BYTES as u64,
        torn: None,
    };
    while walk.end < source.len() {
        match next_section(source, &walk, verify)? {
            Ok(Section::Index { end }) => walk.end = end,
            Ok(Section::Block { end, header }) => {
                walk.blocks.push(BlockEntry {
                    offset: walk.end,
                    first_record: header.first_record,
                });
                walk.num_records = header.end_record();
                walk.end = end;
            }
            Err(what) => {
                tear(source, &mut walk, what)?;
                break;
            }
        }
    }
    if verify == Verify::LastPayload && walk.torn.is_none() {
        check_last_block(source, &mut walk)?;
    }
    Ok(walk)
}

enum Section {
    Block { end: u64, header: BlockHeader },
    Index { end: u64 },
}

/// Reads the section at the end of the walk so far; the inner error says why it is not whole.
fn next_section(
    source: &Source,
    walk: &Walk,
    verify: Verify,
) -> Result<Result<Section, String>, RecordError> {
    let offset = walk.end;
    let left = source.len() - offset;
    let mut bytes = [0; BLOCK_HEADER_BYTES];
    let size = left.min(BLOCK_HEADER_BYTES as u64) as usize;
    source.read_exact_at(&mut bytes[..size], offset)?;
    if let Some(num_blocks) = index_num_blocks(&bytes[..size]) {
        return index_section(source, offset, num_blocks);
    }
    if size < BLOCK_HEADER_BYTES {
        return Ok(Err(format!(
            "a section's header has {INDEX_HEADER_BYTES} or {BLOCK_HEADER_BYTES} bytes, \
             only {size} are there"
        )));
    }
    let header = match BlockHeader::decode(&bytes) {
        Ok(header) => header,
        Err(what) => return Ok(Err(what)),
    };
    if header.first_record != walk.num_records {
        return Ok(Err(format!(
            "the block begins with record {}, expected {}",
            header.first_record, walk.num_records
        )));
    }
    if header.total_bytes() > left {
        return Ok(Err(format!(
            "a block of {} bytes begins, only {left} are there",
            header.total_bytes()
        )));
    }
    if verify == Verify::EveryPayload && !payload_is_whole(source, offset, &header)? {
        return Ok(Err("the checksum of the block does not match".to_owned()));
    }
    Ok(Ok(Section::Block {
        end: offset + header.total_bytes(),
        header,
    }))
}

/// An index that a later writer appended to: nothing in it is needed but its size.
fn index_section(
    source: &Source,
    offset: u64,
    num_blocks: u64,
) -> Result<Result<Section, String>, RecordError> {
    let (size, left) = (index_bytes(num_blocks), source.len() - offset);
    if size > left {
        return Ok(Err(format!(
            "an index of {size} bytes begins, only {left} are there"
        )));
    }
    let end = offset + size;
    let bytes = source.read_range(offset, end)?;
    Ok(decode_index(&bytes, offset).map(|_| Section::Index { end }))
}

pub(crate) fn payload_is_whole(
    source: &Source,
    offset: u64,
    header: &BlockHeader,
) -> Result<bool, RecordError> {
    let start = offset + BLOCK_HEADER_BYTES as u64;
    let payload = source.read_range(start, offset + header.total_bytes())?;
    Ok(crc32c(&payload) == header.payload_crc)
}

/// Ends the walk where a section is not whole: a torn tail, unless whole blocks follow.
fn tear(source: &Source, walk: &mut Walk, what: String) -> Result<(), RecordError> {
    match next_whole_block(source, walk.end + 1, walk.num_records)? {
        Some((offset, header)) => Err(source.damaged(
            walk.end,
            format!(
                "{what}; records {} to {} are lost, the next whole block is at offset {offset}",
                walk.num_records,
                header.first_record.saturating_sub(1)
            ),
        )),
        None => {
            walk.torn = Some(TornTail {
                offset: walk.end,
                what,
            });
            Ok(())
        }
    }
}

fn check_last_block(source: &Source, walk: &mut Walk) -> Result<(), RecordError> {
    let Some(&last) = walk.blocks.last() else {
        return Ok(());
    };
    let mut bytes = [0; BLOCK_HEADER_BYTES];
    source.read_exact_at(&mut bytes, last.offset)?;
    let header = BlockHeader::decode(&bytes).map_err(|what| source.damaged(last.offset, what))?;
    if last.offset + header.total_bytes() > source.len()
        || !payload_is_whole(source, last.offset, &header)?
    {
        walk.blocks.pop();
        walk.num_records = last.first_record;
        walk.end = last.offset;
        walk.torn = Some(TornTail {
            offset: last.offset,
            what: "the checksum of the last block does not match".to_owned(),
        });
    }
    Ok(())
}

/// Looks for a whole block of later records at or after `from`.
///
/// Its number must leave room for the damaged block's records: a record may itself hold the
/// bytes of a RecordIO file, whose blocks are numbered from 0.
fn next_whole_block(
    source: &Source,
    from: u64,
    num_records: u64,
) -> Result<Option<(u64, BlockHeader)>, RecordError> {
    let mut start = from;
    let mut window = Vec::new();
    while start + (BLOCK_HEADER_BYTES as u64) <= source.len() {
        let size = (source.len() - start).min(WINDOW_BYTES as u64) as usize;
        window.resize(size, 0);
        source.read_exact_at(&mut window, start)?;
        for (position, bytes) in window.windows(BLOCK_HEADER_BYTES).enumerate() {
            let Some(bytes) = bytes.first_chunk().filter(|b| b[..4] == BLOCK_MAGIC) else {
                continue;
            };
            let offset = start + position as u64;
            if let Ok(header) = BlockHeader::decode(bytes)
                && header.first_record > num_records
                && offset + header.total_bytes() <= source.len()
                && payload_is_whole(source, offset, &header)?
            {
                return Ok(Some((offset, header)));
            }
        }
        start += (size - BLOCK_HEADER_BYTES + 1) as u64;
    }
    Ok(None)
}
