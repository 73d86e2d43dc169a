//! Steps of tasks, and the rounds that synchronous jobs make of them.

use bytemuck::{Pod, Zeroable};

use super::{FLAG_STEP, Op, halves, joined};
use crate::error::WireError;
use crate::frame::{Array, Header, parse};

/// One minibatch of one lease: what a pull and a push are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// The task that it is of.
    pub task: u64,
    /// The lease under which it is computed.
    pub lease: u32,
    /// Its number in the task, from 0.
    pub index: u32,
}

impl Step {
    /// Returns the step as the first two operands of a frame.
    pub(super) fn operands(self) -> [u64; 2] {
        [self.task, joined(self.lease, self.index)]
    }

    /// The minibatch that a request names, if it is of one, whatever else is asked.
    pub fn named_by(header: &Header) -> Option<Self> {
        let names_one = match header.op {
            Op::Push | Op::Stage | Op::PushPull | Op::PushEach => true,
            Op::Pull => header.flags & FLAG_STEP != 0,
            _ => false,
        };
        names_one.then(|| Self::of([header.args[0], header.args[1]]))
    }

    /// Returns the steps of a request: the step that it names, those that it pushes, or those of
    /// the round that it commits.
    ///
    /// # Errors
    /// [`WireError::Malformed`] for a request of several steps that does not say which.
    pub fn all_of(header: &Header, payload: &[u8]) -> Result<Vec<Self>, WireError> {
        if !matches!(header.op, Op::Commit | Op::CommitPull | Op::PushEach) {
            return Ok(Self::named_by(header).into_iter().collect());
        }
        let arrays = parse(header.num_arrays, payload)?;
        let no_parts = || WireError::malformed("a request of several steps without their parts");
        let parts = Part::all_of(arrays.first().ok_or_else(no_parts)?)?;
        Ok(parts.iter().map(Part::step).collect())
    }

    /// From the first two operands of a frame.
    pub(super) fn of([task, lease_and_index]: [u64; 2]) -> Self {
        let (lease, index) = halves(lease_and_index);
        Self { task, lease, index }
    }
}

/// A minibatch's part in a round, as it lies in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct Part {
    task: u64,
    lease: u32,
    index: u32,
    /// Records of the minibatch.
    pub num_records: u32,
    /// The factor of its gradient.
    pub weight: f32,
    reserved: u64,
}

impl Part {
    /// A step's part.
    pub fn new(step: Step, num_records: u32, weight: f32) -> Self {
        let Step { task, lease, index } = step;
        Self {
            task,
            lease,
            index,
            num_records,
            weight,
            reserved: 0,
        }
    }

    /// The step whose part it is.
    pub fn step(&self) -> Step {
        let &Self {
            task, lease, index, ..
        } = self;
        Step { task, lease, index }
    }

    pub(super) fn all_of<'a>(array: &Array<'a>) -> Result<&'a [Self], WireError> {
        let numbers = array.u64s()?;
        bytemuck::try_cast_slice(numbers).map_err(|_| {
            WireError::malformed(format!(
                "{} numbers, expected four for each part of a round",
                numbers.len()
            ))
        })
    }
}

/// The outcome of a round at replica 0; the other replicas follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct Round {
    /// The minibatches whose gradients it is made of.
    pub parts: Vec<Part>,
    /// The learning rate of the update.
    pub learning_rate: f32,
    /// Replica 0's version after it.
    pub version: u64,
}

impl Round {
    /// Whether a step is part of it.
    pub fn has(&self, step: Step) -> bool {
        self.parts.iter().any(|part| part.step() == step)
    }

    /// The first three operands of a commit: (version, 0, learning rate).
    pub(super) fn operands(&self) -> [u64; 4] {
        [self.version, 0, u64::from(self.learning_rate.to_bits()), 0]
    }

    /// The round of a frame whose operands are a commit's, or an answer's to a push.
    pub(super) fn of(header: &Header, parts: &[Part]) -> Self {
        let (learning_rate, _) = halves(header.args[2]);
        Self {
            parts: parts.to_vec(),
            learning_rate: f32::from_bits(learning_rate),
            version: header.args[0],
        }
    }
}
