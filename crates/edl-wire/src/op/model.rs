//! Ask for the declared model.

use super::{Op, exactly, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// The duties of a client in the synchrony of its replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Protocol {
    /// Ask all replicas at once.
    Direct = 0,
    /// Pull from replica 0 first, push to it last.
    Bounded = 1,
    /// Stage, join a round at replica 0, commit.
    Rounds = 2,
}

impl Protocol {
    pub(super) fn of(header: &Header) -> Result<Self, WireError> {
        Ok(match header.args[0] {
            0 => Self::Direct,
            1 => Self::Bounded,
            2 => Self::Rounds,
            code => return Err(WireError::malformed(format!("unknown synchrony {code}"))),
        })
    }
}

/// Asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request;

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Model)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}

/// The model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The rule by which the replicas apply gradients.
    pub protocol: Protocol,
    /// As JSON.
    pub model: String,
}

impl super::Response for Response {
    const OP: Op = Op::Model;

    fn encode(&self) -> Outgoing<'_> {
        let args = [self.protocol as u64, 0, 0, 0];
        Outgoing::new(Self::OP).args(args).text(&self.model)
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            protocol: Protocol::of(header)?,
            model: only_text(arrays)?.to_owned(),
        })
    }
}
