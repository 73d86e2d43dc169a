//! All-reduce among the workers of a job: every rank gives a vector and gets the weighted sum.
//!
//! [`schedule`] says which numbers go where at which step; it knows no sockets. [`Ring::form`]
//! makes the connections of one world. [`Ring::all_reduce`] takes one of four ways: small vectors
//! by recursive doubling, large ones around the ring, and both through shared memory if all ranks
//! are on one host. [`Ring::gather`] and [`Ring::give`] carry bytes. The ranks of a ring watch each
//! other. When a rank is lost, silent or late, the call ends on all other ranks with an error that
//! names it, and their gradients are unchanged.
//!
//! `docs/designs/all-reduce.md` gives the reasons.

mod bytes;
mod doubling;
mod error;
mod forming;
mod hello;
mod listener;
mod message;
mod numbers;
mod pieces;
mod pipeline;
mod ring;
pub mod schedule;
#[cfg(target_os = "linux")]
#[allow(
    unsafe_code,
    reason = "memory of several processes; argued where it begins"
)]
mod shared;
mod verdict;
mod watch;
mod world;

pub use edl_wire::{Credentials, TlsFiles, WireError};
pub use error::RingError;
pub use listener::RingListener;
pub use ring::{MAX_GATHER_BYTES, Request, Ring};
pub use verdict::{Cause, Verdict};
pub use world::{Options, World};
