//! Declare the model, with a replica's dense and state values.

use super::model::Protocol;
use super::{Op, Vectors, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// The model, and the values that the first to declare it gives it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// As JSON.
    pub model: &'a str,
    /// The replica's ranges.
    pub vectors: Vectors<'a>,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        let Vectors { dense, state } = self.vectors;
        Outgoing::new(Op::Declare)
            .text(self.model)
            .dense(dense)
            .state(state)
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let [model, dense, state] = exactly(arrays, [Kind::Text, Kind::Dense, Kind::State])?;
        Ok(Self {
            model: model.text()?,
            vectors: Vectors {
                dense: dense.f32s()?,
                state: state.f32s()?,
            },
        })
    }
}

/// It is declared, now or earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The rule by which the replicas apply gradients.
    pub protocol: Protocol,
}

impl super::Response for Response {
    const OP: Op = Op::Declare;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP).args([self.protocol as u64, 0, 0, 0])
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [] = exactly(arrays, [])?;
        Ok(Self {
            protocol: Protocol::of(header)?,
        })
    }
}
