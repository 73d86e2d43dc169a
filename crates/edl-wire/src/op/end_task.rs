//! A lease is over.

use super::{Op, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says which lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The task.
    pub task: u64,
    /// The lease.
    pub lease: u32,
}

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::EndTask).args([self.task, u64::from(self.lease), 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            task: header.args[0],
            lease: operand(header, 1)?,
        })
    }
}

/// The answer: no replica waits for the task any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::EndTask;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}
