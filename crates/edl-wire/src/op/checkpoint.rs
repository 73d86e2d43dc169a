//! Write a replica's checkpoint files.

use super::{Op, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The folder, which the replica can reach.
    pub directory: &'a str,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Checkpoint).text(self.directory)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        Ok(Self {
            directory: only_text(arrays)?,
        })
    }
}

/// They are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The manifest entry of the replica, as JSON.
    pub entry: String,
}

impl super::Response for Response {
    const OP: Op = Op::Checkpoint;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).text(&self.entry)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            entry: only_text(arrays)?.to_owned(),
        })
    }
}
