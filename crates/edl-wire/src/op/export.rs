//! Write a replica's part of an export.

use super::{Op, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says what and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// As JSON.
    pub request: &'a str,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Export).text(self.request)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        Ok(Self {
            request: only_text(arrays)?,
        })
    }
}

/// It is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The written files, as JSON.
    pub written: String,
}

impl super::Response for Response {
    const OP: Op = Op::Export;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).text(&self.written)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            written: only_text(arrays)?.to_owned(),
        })
    }
}
