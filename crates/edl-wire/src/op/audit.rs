//! The applied minibatches of every task.

use bytemuck::{Pod, Zeroable};

use super::{Op, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tasks before it are done with: they are to be forgotten.
    pub first: u64,
}

impl<'a> super::Request<'a> for Request {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Op::Audit).args([self.first, 0, 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            first: header.args[0],
        })
    }
}

/// The applied minibatches of one task, in the form of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct AuditedTask {
    /// The task.
    pub task: u64,
    /// The first minibatch that was not applied; it fits into 32 bits.
    pub next_index: u64,
    /// Records applied.
    pub num_records: u64,
}

/// All tasks that are not forgotten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// In no order.
    pub tasks: Vec<AuditedTask>,
}

impl super::Response for Response {
    const OP: Op = Op::Audit;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).audit(bytemuck::cast_slice(&self.tasks))
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [tasks] = exactly(arrays, [Kind::Audit])?;
        let tasks = bytemuck::try_cast_slice(tasks.u64s()?)
            .map_err(|_| WireError::malformed("an audit without three numbers for each task"))?;
        Ok(Self {
            tasks: tasks.to_vec(),
        })
    }
}
