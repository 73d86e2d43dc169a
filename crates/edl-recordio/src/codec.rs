//! The compression of a block's payload.

use std::cell::RefCell;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use zstd::bulk::{Compressor, Decompressor};

/// Compression of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// Stored as it is.
    None,
    /// Zstandard, level 3.
    Zstd,
    /// Raw deflate (RFC 1951), level 6.
    Deflate,
}

const ZSTD_LEVEL: i32 = 3;

thread_local! {
    // Their tables are as large as a block: to make them anew for each costs as much as some of it.
    static COMPRESSOR: RefCell<Option<Compressor<'static>>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

fn compress_zstd(raw: &[u8]) -> std::io::Result<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|kept| match kept {
        Some(compressor) => compressor.compress(raw),
        None => kept.insert(Compressor::new(ZSTD_LEVEL)?).compress(raw),
    })
}

fn decompress_zstd(stored: &[u8], raw_bytes: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|kept| match kept {
        Some(decompressor) => decompressor.decompress(stored, raw_bytes),
        None => kept
            .insert(Decompressor::new()?)
            .decompress(stored, raw_bytes),
    })
}

impl Codec {
    /// Every codec, in the order of their codes.
    pub const ALL: [Codec; 3] = [Codec::None, Codec::Zstd, Codec::Deflate];

    /// The name that users know it by.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Zstd => "zstd",
            Codec::Deflate => "deflate",
        }
    }

    /// The codec of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.name() == name)
    }

    /// Its number in a block header.
    pub(crate) fn code(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Zstd => 1,
            Codec::Deflate => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Codec> {
        Codec::ALL.into_iter().find(|codec| codec.code() == code)
    }

    /// Compresses `raw`. `None` where the codec is [`Codec::None`], or does not make it smaller.
    pub(crate) fn compress(self, raw: &[u8]) -> std::io::Result<Option<Vec<u8>>> {
        let stored = match self {
            Codec::None => return Ok(None),
            Codec::Zstd => compress_zstd(raw)?,
            Codec::Deflate => {
                let mut encoder =
                    DeflateEncoder::new(Vec::with_capacity(raw.len() / 2), Compression::new(6));
                encoder.write_all(raw)?;
                encoder.finish()?
            }
        };
        Ok((stored.len() < raw.len()).then_some(stored))
    }

    /// Restores exactly `raw_bytes` bytes; never allocates more than that (and a little).
    pub(crate) fn decompress(self, stored: Vec<u8>, raw_bytes: usize) -> Result<Vec<u8>, String> {
        let raw = match self {
            Codec::None => stored,
            Codec::Zstd => {
                decompress_zstd(&stored, raw_bytes).map_err(|error| format!("zstd: {error}"))?
            }
            Codec::Deflate => {
                let mut raw = Vec::with_capacity(raw_bytes);
                DeflateDecoder::new(stored.as_slice())
                    .take(raw_bytes as u64 + 1) // one more shows that there is too much
                    .read_to_end(&mut raw)
                    .map_err(|error| format!("deflate: {error}"))?;
                raw
            }
        };
        if raw.len() == raw_bytes {
            Ok(raw)
        } else {
            Err(format!(
                "payload has {} bytes, the header says {raw_bytes}",
                raw.len()
            ))
        }
    }
}
