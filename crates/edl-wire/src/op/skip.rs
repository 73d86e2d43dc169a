//! Count a minibatch as dealt with.

use super::{Op, Step, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says which minibatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The minibatch.
    pub step: Step,
}

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        let Step { task, lease, index } = self.step;
        Outgoing::new(Op::Skip).args([task, u64::from(lease), u64::from(index), 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        let step = Step {
            task: header.args[0],
            lease: operand(header, 1)?,
            index: operand(header, 2)?,
        };
        Ok(Self { step })
    }
}

/// It is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Skip;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}
