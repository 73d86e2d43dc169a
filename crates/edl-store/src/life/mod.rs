//! The sparse life cycle: which keys get a row, and which rows go.
//!
//! Every decision is a function of what was pushed, key by key or hash slot by hash slot, so
//! any number of replicas decides alike. `docs/designs/sparse-life-cycle.md` says why it is so.

mod admission;
mod candidates;
mod expiry;
mod sketch;
mod spec;
mod times;

pub(crate) use admission::{AdmissionFilter, Occurrence, Tally};
pub(crate) use candidates::Candidate;
pub use expiry::Expired;
pub(crate) use expiry::{Cut, Fate};
pub(crate) use sketch::NUM_ROWS as SKETCH_ROWS;
pub(crate) use spec::{Admission, Expiry, Limit};
pub use spec::{AdmissionSpec, ExpirySpec, StatisticSpec};
pub(crate) use times::{Times, common};
