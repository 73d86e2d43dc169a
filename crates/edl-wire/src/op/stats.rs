//! Counters.

use super::{Op, exactly, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Asks for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request;

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Stats)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}

/// The counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// As JSON.
    pub counters: String,
}

impl super::Response for Response {
    const OP: Op = Op::Stats;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).text(&self.counters)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            counters: only_text(arrays)?.to_owned(),
        })
    }
}
