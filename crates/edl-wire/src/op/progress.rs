//! An answer is being worked on: what comes before it, as often as there is progress.
//!
//! So whoever waits for a long operation needs no limit of its time, only of silence.

use super::{Op, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Outgoing};

/// Something of it was done since the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response;

impl super::Response for Response {
    const OP: Op = Op::Progress;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
    }

    fn decode(_: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        exactly(arrays, []).map(|[]| Self)
    }
}
