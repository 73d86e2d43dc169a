//! The parameter server and its client: the store behind framed sockets.
//!
//! [`PsServer`] serves an [`edl_store::Store`]; [`PsClient`] reads and updates a model spread over
//! several of them, or one in its own process. `docs/designs/wire.md` specifies the wire.

#![forbid(unsafe_code)]

mod auth;
#[doc(hidden)]
pub mod bare;
mod client;
mod dedup;
mod error;
pub mod frame;
mod half_rows;
mod life;
mod local;
mod names;
mod naming;
mod remote;
mod replicas;
mod server;
mod service;
mod socket;
mod synchrony;
#[cfg(test)]
mod tests;

pub use client::{Cursor, PsClient, Pulled, Receipt, StepGradients, Wanted};
pub use dedup::Site;
pub use error::{ErrorKind, PsError};
pub use life::export;
pub use names::NameSite;
pub use remote::{Remote, RemoteOptions};
pub use replicas::Minibatch;
pub use server::PsServer;
pub use synchrony::{Step, Synchrony};
