//! Sends bytes of rank 0 from rank to rank, once along the ring: each rank passes the bytes on.
//!
//! The bytes go in segments, so a rank that keeps nothing needs memory for one segment, and all
//! ranks but the first work on the segment before. There is no circle of waiting ranks: the last
//! rank only receives.

use crate::message::{BROADCAST, Header, Lane, SEGMENT_BYTES, Trouble};

/// The part of a rank in the transfer of bytes.
pub(crate) enum Part<'a> {
    /// It has them: rank 0.
    Give(&'a [u8]),
    /// It wants them.
    Take(&'a mut [u8]),
    /// It hands so many on.
    Pass(usize),
}

impl Part<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Give(bytes) => bytes.len(),
            Self::Take(bytes) => bytes.len(),
            Self::Pass(len) => *len,
        }
    }
}

/// A rank's place among the others, for one broadcast.
pub(crate) struct Chain<'a> {
    pub(crate) left: &'a Lane,
    /// `None` for the last rank.
    pub(crate) right: Option<&'a Lane>,
    /// Kept from one broadcast to the next.
    pub(crate) passing: &'a mut Vec<u8>,
}

impl Chain<'_> {
    pub(crate) fn run(&mut self, op: u64, mut part: Part<'_>) -> Result<(), Trouble> {
        let len = part.len();
        for (block, start) in (0..len).step_by(SEGMENT_BYTES).enumerate() {
            let segment = start..len.min(start + SEGMENT_BYTES);
            let header = Header {
                op,
                count: len as u64,
                form: BROADCAST,
                block: block as u32,
                numbers: segment.len() as u32,
                ..bytemuck::Zeroable::zeroed()
            };
            let bytes: &[u8] = match &mut part {
                Part::Give(bytes) => &bytes[segment],
                Part::Take(bytes) => self.receive(&header, &mut bytes[segment])?,
                Part::Pass(_) => {
                    let mut passing = std::mem::take(self.passing);
                    passing.resize(segment.len(), 0);
                    self.receive(&header, &mut passing)?;
                    *self.passing = passing;
                    self.passing
                }
            };
            if let Some(right) = self.right {
                right.send(&header, bytes)?;
            }
        }
        Ok(())
    }

    fn receive<'b>(&self, own: &Header, bytes: &'b mut [u8]) -> Result<&'b [u8], Trouble> {
        let header = self.left.receive_header()?;
        if let Some(words) = header.difference(own) {
            return Err(self.left.broken(words));
        }
        if (header.block, header.numbers) != (own.block, own.numbers) {
            return Err(self.left.broken(format!(
                "{} bytes as segment {}, expected {} as segment {}",
                header.numbers, header.block, own.numbers, own.block
            )));
        }
        self.left.receive(bytes)?;
        Ok(bytes)
    }
}
