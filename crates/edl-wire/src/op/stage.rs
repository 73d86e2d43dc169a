//! One minibatch's gradients, to be kept until their round is committed.

use super::{Op, exactly, push};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Hands in gradients as a push does.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a>(pub push::Request<'a>);

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        self.0.encode_as(Op::Stage)
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        Ok(Self(super::Request::decode(header, arrays)?))
    }
}

/// They are kept, or are part of the model already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Stage;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}
