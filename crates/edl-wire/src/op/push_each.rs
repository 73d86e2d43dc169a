//! The gradients of several minibatches in one frame; each is an update of its own.
//!
//! The frame has the operands of each push, and then the arrays of each. They are applied in their
//! order. If one is refused, those before it are applied: each is known by its own step, so the
//! frame is as safe to repeat as its parts are.

use std::borrow::Cow;

use super::push::{self, Outcome};
use super::{Op, exactly};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// Hands in the gradients of several minibatches.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    pushes: Cow<'a, [push::Request<'a>]>,
    /// The operands of each push.
    operands: Vec<[u64; 4]>,
}

impl<'a> Request<'a> {
    /// A request of these pushes, in the order in which they are to be applied.
    pub fn new(pushes: impl Into<Cow<'a, [push::Request<'a>]>>) -> Self {
        let pushes = pushes.into();
        Self {
            operands: pushes.iter().map(push::Request::operands).collect(),
            pushes,
        }
    }

    /// The pushes, in their order.
    pub fn pushes(&self) -> &[push::Request<'a>] {
        &self.pushes
    }
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        // A recording of the replica's work names the first minibatch.
        let args = self.operands.first().copied().unwrap_or_default();
        let frame = Outgoing::new(Op::PushEach).args(args).parts(&self.operands);
        self.pushes
            .iter()
            .fold(frame, |frame, push| push.add_to(frame))
    }

    fn decode(_: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let malformed = || WireError::malformed("a push of several minibatches, not all there");
        let (operands, mut arrays) = arrays.split_first().ok_or_else(malformed)?;
        let operands = fours(operands)?;
        let mut pushes = Vec::with_capacity(operands.len());
        for &operands in operands {
            // The state is the last array of each push.
            let last = arrays.iter().position(|a| a.entry.kind == Kind::State);
            let (own, rest) = arrays.split_at(last.ok_or_else(malformed)? + 1);
            pushes.push(push::Request::of(operands, 1, own)?);
            arrays = rest;
        }
        if pushes.is_empty() || !arrays.is_empty() {
            return Err(malformed());
        }
        Ok(Self::new(pushes))
    }
}

/// What became of the gradients of all minibatches.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Version, staleness, and whether this request applied it, of each.
    applied: Vec<[u64; 4]>,
    /// Nanoseconds that the store took.
    pub store_nanos: u64,
}

impl Response {
    /// Args: `outcomes` are those of the pushes, in their order.
    pub fn new(outcomes: &[Outcome], store_nanos: u64) -> Self {
        let applied = outcomes.iter().map(|outcome| {
            let ([version, staleness, _], flags) = outcome.operands();
            [version, staleness, u64::from(flags), 0]
        });
        Self {
            applied: applied.collect(),
            store_nanos,
        }
    }

    /// The outcomes of the pushes, in their order.
    pub fn outcomes(&self) -> Vec<Outcome> {
        let applied = self.applied.iter();
        applied
            .map(|&[version, staleness, now, _]| Outcome::Applied {
                version,
                staleness,
                now: now != 0,
            })
            .collect()
    }
}

impl super::Response for Response {
    const OP: Op = Op::PushEach;

    fn encode(&self) -> Outgoing<'_> {
        Outgoing::new(Self::OP)
            .args([0, 0, 0, self.store_nanos])
            .parts(&self.applied)
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let [applied] = exactly(arrays, [Kind::Parts])?;
        Ok(Self {
            applied: fours(&applied)?.to_vec(),
            store_nanos: header.args[3],
        })
    }
}

/// The numbers of an array, four for each push.
fn fours<'a>(array: &Array<'a>) -> Result<&'a [[u64; 4]], WireError> {
    let (fours, rest) = array.u64s()?.as_chunks::<4>();
    if array.entry.kind != Kind::Parts || !rest.is_empty() {
        return Err(WireError::malformed(
            "numbers of several pushes, expected four for each",
        ));
    }
    Ok(fours)
}
