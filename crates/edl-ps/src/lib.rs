//! The parameter server and its client: a store behind connections.
//!
//! [`PsServer`] serves an [`edl_store::Store`]. [`PsClient`] reads and updates a model that is
//! spread over several of them, or over one in its own process. `edl-wire` defines the messages
//! between them.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod bare;
mod client;
mod clip;
mod dedup;
mod driven;
mod elsewhere;
mod error;
mod far;
mod hot_keys;
mod life;
mod local;
mod moving;
mod names;
mod remote;
mod replicas;
mod server;
mod service;
mod several;
mod spans;
mod synchrony;
mod tables;
#[cfg(test)]
mod tests;
mod whole;

pub use client::{ComputedStep, Cursor, PsClient, Pulled, Receipt, StepGradients, Wanted};
pub use dedup::Site;
pub use driven::{Answer, Change, Driven};
pub use edl_wire::op::{Part, Round, Step};
pub use edl_wire::service::{COPY, PS, Service as WireService};
pub use edl_wire::{Credentials, TlsFiles, traffic};
pub use error::{ErrorKind, PsError};
pub use far::FarFiles;
pub use hot_keys::{HotKeys, take_hot_keys};
pub use life::export;
pub use moving::{Entrance, Layout};
pub use names::NameSite;
pub use remote::{Remote, RemoteOptions, SILENCE_TIMEOUT};
pub use replicas::{GivenRows, Minibatch};
pub use server::{Door, PsServer};
pub use service::stats_json as stats;
pub use spans::Span;
pub use synchrony::Synchrony;
pub use whole::apply_whole;
