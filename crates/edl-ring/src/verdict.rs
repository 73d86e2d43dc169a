//! Why a ring came to its end, in words that name the rank.

use std::fmt;

/// The action of a rank, or the missing action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Cause {
    /// Its connections were closed: the process is gone.
    Lost = 1,
    /// It said nothing for too long: the process or its host stands still.
    Silent = 2,
    /// It is alive, but did not come to a reduction before the deadline.
    Late = 3,
    /// It has left the ring, in peace.
    Left = 4,
    /// It said what its neighbour cannot use.
    Broken = 5,
    /// All take part, and the reduction was not over at the deadline.
    Slow = 6,
    /// It did not join the ring.
    Absent = 7,
}

impl Cause {
    pub(crate) fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Lost),
            2 => Some(Self::Silent),
            3 => Some(Self::Late),
            4 => Some(Self::Left),
            5 => Some(Self::Broken),
            6 => Some(Self::Slow),
            7 => Some(Self::Absent),
            _ => None,
        }
    }
}

/// Why a ring came to its end: all ranks that are left hear the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rank that caused the end; none if all ranks were too slow.
    pub culprit: Option<u32>,
    /// What it did.
    pub cause: Cause,
    /// Who noticed.
    pub noticed_by: u32,
    /// More, where it was noticed.
    pub detail: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.culprit {
            Some(rank) => write!(f, "rank {rank} ")?,
            None => f.write_str("the ranks ")?,
        }
        f.write_str(match self.cause {
            Cause::Lost => "was lost: its connections were closed",
            Cause::Silent => "was silent for too long, and was given up",
            Cause::Late => "did not come to the reduction before its deadline",
            Cause::Left => "has left the ring",
            Cause::Broken => "sent what its neighbour cannot use",
            Cause::Absent => "did not join the ring",
            Cause::Slow => {
                "all took part, but the reduction was not over at its deadline; allow more time"
            }
        })?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        write!(f, "; noticed by rank {}", self.noticed_by)
    }
}
