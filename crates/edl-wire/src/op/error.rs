//! A request was refused: the answer to any operation.

use super::{Op, only_text};
use crate::error::{ErrorKind, WireError};
use crate::frame::{Array, Header, Outgoing};

/// Says why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The kind of the refusal.
    pub kind: ErrorKind,
    /// The server's words.
    pub message: String,
}

impl super::Response for Response {
    const OP: Op = Op::Error;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
            .args([self.kind as u64, 0, 0, 0])
            .text(&self.message)
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            kind: ErrorKind::from_code(header.args[0]),
            message: only_text(arrays)?.to_owned(),
        })
    }
}
