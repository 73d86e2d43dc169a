//! The gradients of a minibatch, or of several that follow each other.

use std::sync::Arc;

use super::{
    FLAG_APPLIED, FLAG_NOT_YET, Op, Part, Round, Step, TableRows, Vectors, exactly, halves, joined,
};
use crate::error::WireError;
use crate::frame::{Array, Header, Kind, Outgoing};

/// The upper half of the flags says how many minibatches there are beside the first.
const MORE_MINIBATCHES_SHIFT: u32 = 16;

/// Gradients of rows of one table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TableGradients<'a> {
    /// The rows' keys, each once.
    pub keys: &'a [u64],
    /// A gradient for each key.
    pub rows: TableRows<'a>,
}

/// Hands in the gradients of a minibatch.
#[derive(Clone, Debug, PartialEq)]
pub struct Request<'a> {
    /// The minibatch; of several the first.
    pub step: Step,
    /// How many it is.
    pub num_minibatches: u32,
    /// Records in it, or in all.
    pub num_records: u32,
    /// The learning rate of its step.
    pub learning_rate: f32,
    /// The version of the parameters that it was computed on.
    pub pulled_version: u64,
    /// Gradients of rows.
    pub tables: Vec<TableGradients<'a>>,
    /// Gradient of the dense range, and change of the state range.
    pub vectors: Vectors<'a>,
}

impl<'a> super::Request<'a> for Request<'a> {
    type Response = Response;

    fn encode(&self) -> Outgoing<'_> {
        self.encode_as(Op::Push)
    }

    fn decode(header: &Header, arrays: &[Array<'a>]) -> Result<Self, WireError> {
        let num_minibatches = 1 + (header.flags >> MORE_MINIBATCHES_SHIFT);
        Self::of(header.args, num_minibatches, arrays)
    }
}

impl<'a> Request<'a> {
    /// A push of these operands and arrays.
    pub(super) fn of(
        args: [u64; 4],
        num_minibatches: u32,
        arrays: &[Array<'a>],
    ) -> Result<Self, WireError> {
        let too_short = || WireError::malformed("a push without dense and state");
        let (pairs, vectors) = arrays.split_at(arrays.len().checked_sub(2).ok_or_else(too_short)?);
        let [dense, state] = exactly(vectors, [Kind::Dense, Kind::State])?;
        let (pairs, odd) = pairs.as_chunks::<2>();
        if !odd.is_empty() {
            return Err(WireError::malformed("keys without gradients"));
        }
        let [task, lease_and_index, records_and_rate, pulled_version] = args;
        let (num_records, learning_rate) = halves(records_and_rate);
        let tables = pairs.iter().map(gradients_of);
        Ok(Self {
            step: Step::of([task, lease_and_index]),
            num_minibatches,
            num_records,
            learning_rate: f32::from_bits(learning_rate),
            pulled_version,
            tables: tables.collect::<Result<_, _>>()?,
            vectors: Vectors {
                dense: dense.f32s()?,
                state: state.f32s()?,
            },
        })
    }

    /// The same as a frame of another operation that begins with gradients.
    pub(super) fn encode_as(&self, op: Op) -> Outgoing<'a> {
        let more = self.num_minibatches.saturating_sub(1) << MORE_MINIBATCHES_SHIFT;
        self.add_to(Outgoing::new(op).flags(more).args(self.operands()))
    }

    /// Everything but the arrays.
    pub(super) fn operands(&self) -> [u64; 4] {
        let [task, lease_and_index] = self.step.operands();
        let records_and_rate = joined(self.num_records, self.learning_rate.to_bits());
        [task, lease_and_index, records_and_rate, self.pulled_version]
    }

    /// Adds the arrays.
    pub(super) fn add_to(&self, frame: Outgoing<'a>) -> Outgoing<'a> {
        (self.tables.iter())
            .fold(frame, |frame, table| {
                let frame = frame.keys(table.rows.table, table.keys);
                table.rows.add_to(frame)
            })
            .dense(self.vectors.dense)
            .state(self.vectors.state)
    }
}

fn gradients_of<'a>(pair: &[Array<'a>; 2]) -> Result<TableGradients<'a>, WireError> {
    let [keys, rows] = exactly(pair, [Kind::Keys, Kind::Rows])?;
    if keys.entry.table != rows.entry.table || keys.entry.count != rows.entry.count {
        return Err(WireError::malformed(format!(
            "{} keys of table {} with {} gradients of table {}",
            keys.entry.count, keys.entry.table, rows.entry.count, rows.entry.table
        )));
    }
    Ok(TableGradients {
        keys: keys.u64s()?,
        rows: TableRows::of(&rows)?,
    })
}

/// The outcome of a gradient.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// It is an update.
    Applied {
        /// The version after it.
        version: u64,
        /// Updates between its pull and it.
        staleness: u64,
        /// Whether this request applied it, and not an earlier one.
        now: bool,
    },
    /// It is part of a round.
    InRound {
        /// The round, to be committed at the other replicas.
        round: Arc<Round>,
        /// Updates between its pull and the round.
        staleness: u64,
    },
    /// Its round is not complete yet: ask again.
    NotYet,
}

impl Outcome {
    /// Version, staleness and learning rate, and the flags, of an answer.
    pub(super) fn operands(&self) -> ([u64; 3], u32) {
        match self {
            Self::Applied {
                version,
                staleness,
                now,
            } => {
                let flags = if *now { FLAG_APPLIED } else { 0 };
                ([*version, *staleness, 0], flags)
            }
            Self::InRound { round, staleness } => {
                let [version, _, learning_rate, _] = round.operands();
                ([version, *staleness, learning_rate], FLAG_APPLIED)
            }
            Self::NotYet => ([0; 3], FLAG_NOT_YET),
        }
    }

    /// Returns the parts of the push's round; none without a round.
    pub(super) fn parts(&self) -> &[Part] {
        match self {
            Self::InRound { round, .. } => &round.parts,
            Self::Applied { .. } | Self::NotYet => &[],
        }
    }

    /// Reads an answer that says that something became of it.
    pub(crate) fn of(header: &Header, parts: &[Part]) -> Self {
        let [version, staleness, ..] = header.args;
        match parts {
            [] => Self::Applied {
                version,
                staleness,
                now: header.flags & FLAG_APPLIED != 0,
            },
            parts => Self::InRound {
                round: Arc::new(Round::of(header, parts)),
                staleness,
            },
        }
    }

    /// Version and staleness; none of what is not yet.
    pub fn applied(&self) -> Option<(u64, u64)> {
        match self {
            Self::Applied {
                version, staleness, ..
            } => Some((*version, *staleness)),
            Self::InRound { round, staleness } => Some((round.version, *staleness)),
            Self::NotYet => None,
        }
    }
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// The outcome of the gradient.
    pub outcome: Outcome,
    /// Nanoseconds that the store took, waiting included.
    pub store_nanos: u64,
}

impl super::Response for Response {
    const OP: Op = Op::Push;

    fn encode(&self) -> Outgoing<'_> {
        let ([version, staleness, learning_rate], flags) = self.outcome.operands();
        let frame = Outgoing::new(Self::OP)
            .args([version, staleness, learning_rate, self.store_nanos])
            .flags(flags);
        match self.outcome.parts() {
            [] => frame,
            parts => frame.parts(bytemuck::cast_slice(parts)),
        }
    }

    fn decode(header: &Header, arrays: &[Array<'_>]) -> Result<Self, WireError> {
        let outcome = if header.flags & FLAG_NOT_YET != 0 {
            Outcome::NotYet
        } else if arrays.is_empty() {
            Outcome::of(header, &[])
        } else {
            let [parts] = exactly(arrays, [Kind::Parts])?;
            Outcome::of(header, Part::all_of(&parts)?)
        };
        Ok(Self {
            outcome,
            store_nanos: header.args[3],
        })
    }
}
