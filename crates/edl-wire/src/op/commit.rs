//! Apply a round as replica 0 has.

use std::borrow::Cow;

use super::{Op, Part, Round, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Says which round, and what it is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The round.
    pub round: Cow<'a, Round>,
}

impl Request<'_> {
    /// The same as a frame of another operation that begins with a round.
    pub(super) fn encode_as(&self, op: Op) -> Outgoing<'_> {
        let frame = Outgoing::new(op).args(self.round.operands());
        frame.parts(bytemuck::cast_slice(&self.round.parts))
    }
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        self.encode_as(Op::Commit)
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [parts] = exactly(arrays, [Kind::Parts])?;
        Ok(Self {
            round: Cow::Owned(Round::of(header, Part::all_of(&parts)?)),
        })
    }
}

/// It is applied, now or earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Commit;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}
