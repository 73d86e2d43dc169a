//! A step of a move to another number of replicas.

use super::{Op, only_text};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says what is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The step, as JSON.
    pub step: &'a str,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Move).text(self.step)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        Ok(Self {
            step: only_text(arrays)?,
        })
    }
}

/// The result of the step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// As JSON.
    pub told: String,
}

impl super::Response for Response {
    const OP: Op = Op::Move;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).text(&self.told)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        Ok(Self {
            told: only_text(arrays)?.to_owned(),
        })
    }
}
