//! The first message of a rank on a connection: it says which of the ring's connections this is.

use bytemuck::{Pod, Zeroable};

use crate::message::SEGMENT_NUMBERS;

const MAGIC: [u8; 4] = *b"EDLR";
const VERSION: u16 = 2;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub(crate) enum Link {
    /// Between neighbours: signs of life, and why a ring ends.
    Control = 1,
    /// From a rank to its right: segments.
    Data = 2,
    /// Between partners of recursive doubling.
    Pair = 3,
}

impl Link {
    fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Control),
            2 => Some(Self::Data),
            3 => Some(Self::Pair),
            _ => None,
        }
    }
}

/// The first bytes of a connection, after the token's handshake.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Hello {
    magic: [u8; 4],
    version: u16,
    link: u16,
    pub(crate) world: u64,
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) size: u32,
    pub(crate) segment_numbers: u32,
}

impl Hello {
    pub(crate) fn new(link: Link, world: u64, from: u32, to: u32, size: u32) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            link: link as u16,
            world,
            from,
            to,
            size,
            segment_numbers: SEGMENT_NUMBERS as u32,
        }
    }

    /// Returns the purpose; or, for bytes that have none, words about the mistake.
    pub(crate) fn link(&self) -> Result<Link, String> {
        if self.magic != MAGIC || self.version != VERSION {
            return Err(format!(
                "the connection begins with {:?} in version {}, expected {:?} in version \
                 {VERSION}; run the same elasticdl in all processes of a job",
                self.magic.escape_ascii().to_string(),
                self.version,
                MAGIC.escape_ascii().to_string(),
            ));
        }
        Link::from_code(self.link).ok_or_else(|| format!("a connection of kind {}", self.link))
    }

    /// In words how it differs from what a rank expects of one that it is connected to.
    pub(crate) fn difference(&self, expected: &Self) -> Option<String> {
        let (found, wanted) = (
            (self.to, self.size, self.segment_numbers),
            (expected.to, expected.size, expected.segment_numbers),
        );
        (found != wanted).then(|| {
            format!(
                "connected to rank {} of {} with segments of {} numbers, expected rank {} of {} \
                 with {}; do all ranks have the same members?",
                found.0, found.1, found.2, wanted.0, wanted.1, wanted.2
            )
        })
    }
}
