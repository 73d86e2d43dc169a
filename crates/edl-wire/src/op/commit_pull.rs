//! Apply a round as replica 0 has, then rows and vectors.

use super::{Op, Request as _, Rows, Wanted, commit};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// A commit, and what is wanted after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The commit.
    pub commit: commit::Request<'a>,
    /// What is wanted.
    pub wanted: Wanted<'a>,
}

impl<'a> Request<'a> {
    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'_> {
        self.wanted.add_to(self.commit.encode_as(Op::CommitPull))
    }

    /// Reads a frame of this operation.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for arrays that are not a commit's and then a pull's.
    pub fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let no_parts = || WireError::malformed("a commit without the parts of a round");
        let (round, pull) = arrays.split_at_checked(1).ok_or_else(no_parts)?;
        Ok(Self {
            commit: commit::Request::decode(header, round)?,
            wanted: Wanted::of(header.flags, pull)?,
        })
    }
}

/// The requested values, after the round.
#[derive(Clone, Debug, PartialEq)]
pub struct Response<'a> {
    /// The version before the first row was read.
    pub version: u64,
    /// The rows.
    pub rows: Rows<'a>,
}

impl<'a> Response<'a> {
    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'a> {
        let frame = Outgoing::new(Op::CommitPull);
        self.rows.add_to(frame.args([self.version, 0, 0, 0]))
    }
}
