//! Rows, and the dense and state ranges.

use super::{FLAG_NOT_YET, FLAG_STEP, Op, Rows, Step, Wanted};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Asks for rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The training step that it is for, which may have to wait for others.
    pub step: Option<Step>,
    /// What is wanted.
    pub wanted: Wanted<'a>,
}

impl<'a> Request<'a> {
    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'a> {
        let mut frame = Outgoing::new(Op::Pull);
        if let Some(step) = self.step {
            let [task, lease_and_index] = step.operands();
            frame = frame.flags(FLAG_STEP).args([task, lease_and_index, 0, 0]);
        }
        self.wanted.add_to(frame)
    }

    /// Reads a frame of this operation.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for arrays that are no keys.
    pub fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let of_step = header.flags & FLAG_STEP != 0;
        Ok(Self {
            step: of_step.then(|| Step::of([header.args[0], header.args[1]])),
            wanted: Wanted::of(header.flags, arrays)?,
        })
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Response<'a> {
    /// The pull may not begin yet: ask again.
    NotYet,
    /// What was wanted.
    Pulled {
        /// The version before the first row was read.
        version: u64,
        /// Nanoseconds that the store took.
        store_nanos: u64,
        /// The rows.
        rows: Rows<'a>,
    },
}

impl<'a> Response<'a> {
    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'a> {
        let frame = Outgoing::new(Op::Pull);
        match self {
            Self::NotYet => frame.flags(FLAG_NOT_YET),
            Self::Pulled {
                version,
                store_nanos,
                rows,
            } => rows.add_to(frame.args([*version, 0, 0, *store_nanos])),
        }
    }
}

/// The part of the answer beside the rows, which are in their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// Nothing was answered: ask again.
    NotYet,
    /// The rows are there.
    Pulled {
        /// Their version.
        version: u64,
        /// Nanoseconds that the store took.
        store_nanos: u64,
    },
}
