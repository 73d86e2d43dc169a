//! Fence off older leases of a task.

use super::{Op, exactly, operand};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Says which lease begins.
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
        Outgoing::new(Op::BeginTask).args([self.task, u64::from(self.lease), 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            task: header.args[0],
            lease: operand(header, 1)?,
        })
    }
}

/// The place at which the task goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The first minibatch that the replica has not applied.
    pub next_index: u32,
}

impl super::Response for Response {
    const OP: Op = Op::BeginTask;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).args([u64::from(self.next_index), 0, 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            next_index: operand(header, 0)?,
        })
    }
}
