//! The sparse life cycle: which keys get a row, and which rows go.
//!
//! Every decision is a function of what was pushed, key by key or hash slot by hash slot, so
//! any number of replicas decides alike. `docs/designs/sparse-life-cycle.md` says why it is so.

mod admission;
mod births;
mod candidates;
mod expiry;
mod rows;
pub(crate) mod saved;
mod sketch;
mod spec;
mod times;

pub(crate) use admission::{AdmissionFilter, Occurrence};
pub(crate) use births::Births;
pub(crate) use candidates::Candidate;
pub(crate) use expiry::Cut;
pub use expiry::Expired;
pub(crate) use rows::{Admitted, check_statistics};
pub(crate) use spec::{Admission, Expiry};
pub use spec::{AdmissionSpec, ExpirySpec, StatisticSpec};
pub(crate) use times::Times;
