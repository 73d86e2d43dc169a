//! One minibatch's gradients, then rows and vectors for the next.

use super::push::Outcome;
use super::{
    FLAG_NOT_YET, FLAG_PUSHED, FLAG_STEP, Op, Part, Request as _, Rows, Step, Wanted, push,
};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// A push, and what is wanted after it.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The push.
    pub push: push::Request<'a>,
    /// The step whose pull it is, as its part; one of zeros where it need not wait.
    next: [Part; 1],
    has_next: bool,
    /// What is wanted.
    pub wanted: Wanted<'a>,
}

impl<'a> Request<'a> {
    /// Args: `next` is the training step that the pull is for, if it may have to wait for others.
    pub fn new(push: push::Request<'a>, next: Option<Step>, wanted: Wanted<'a>) -> Self {
        let nobody = Step {
            task: 0,
            lease: 0,
            index: 0,
        };
        Self {
            push,
            next: [Part::new(next.unwrap_or(nobody), 0, 0.0)],
            has_next: next.is_some(),
            wanted,
        }
    }

    /// The training step that the pull is for, which may have to wait for others.
    pub fn next(&self) -> Option<Step> {
        self.has_next.then(|| self.next[0].step())
    }

    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'_> {
        let flags = if self.has_next { FLAG_STEP } else { 0 };
        let frame = self.push.encode_as(Op::PushPull).flags(flags);
        self.wanted
            .add_to(frame.parts(bytemuck::cast_slice(&self.next)))
    }

    /// Reads a frame of this operation.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for arrays that are not a push's, a step and a pull's.
    pub fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let no_step = || WireError::malformed("a push and pull without the step to pull");
        let parts = arrays.iter().position(|a| a.entry.kind == Kind::Parts);
        let (push, pull) = arrays.split_at(parts.ok_or_else(no_step)?);
        let (next, pull) = pull.split_first().ok_or_else(no_step)?;
        let &[next] = Part::all_of(next)? else {
            return Err(no_step());
        };
        Ok(Self {
            push: push::Request::decode(header, push)?,
            next: [next],
            has_next: header.flags & FLAG_STEP != 0,
            wanted: Wanted::of(header.flags, pull)?,
        })
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Response<'a> {
    /// The outcome of the gradient; nothing is pulled if the gradient is not in a round yet.
    pub outcome: Outcome,
    /// The version before the first row was read, and the rows; `None` if the pull would wait.
    pub pulled: Option<(u64, Rows<'a>)>,
}

impl Response<'_> {
    /// The frame that says it.
    pub fn encode(&self) -> Outgoing<'_> {
        let ([before, staleness, learning_rate], flags) = self.outcome.operands();
        let frame = Outgoing::new(Op::PushPull).flags(flags);
        if self.outcome == Outcome::NotYet {
            return frame;
        }
        let frame = frame
            .flags(FLAG_PUSHED)
            .parts(bytemuck::cast_slice(self.outcome.parts()));
        match &self.pulled {
            None => frame
                .flags(FLAG_NOT_YET)
                .args([before, staleness, learning_rate, 0]),
            Some((version, rows)) => {
                rows.add_to(frame.args([before, staleness, learning_rate, *version]))
            }
        }
    }
}

/// The part of the answer beside the rows, which are in their places.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The outcome of the gradient.
    pub outcome: Outcome,
    /// The version of the rows; `None` if the pull would wait, and nothing was read.
    pub pulled: Option<u64>,
}
