//! Exported tables to look rows up in: a base, and what has changed since.
//!
//! [`Tables`] never change: [`Tables::apply`] makes others of them with one version more, which share
//! what has not changed. So whoever serves swaps one pointer, and a request that is under way goes on
//! with what it began with. `docs/designs/deltas.md` tells the whole of it.

#![deny(unsafe_code)]

mod error;
mod file;
mod layer;
pub mod request;
mod table;
mod tables;
mod words;

pub use error::{RequestError, ServeError};
pub use tables::Tables;
