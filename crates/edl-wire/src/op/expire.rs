//! Remove the rows that have come to their end.

use super::{Op, exactly, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Seconds since 1970.
    pub now: u64,
}

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Expire).args([self.now, 0, 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            now: header.args[0],
        })
    }
}

/// They are removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The removed rows by table, as JSON.
    pub expired: String,
}

impl super::Response for Response {
    const OP: Op = Op::Expire;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).text(&self.expired)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            expired: only_text(arrays)?.to_owned(),
        })
    }
}
