//! Connections between the processes of a job: sockets, authentication, and frames of arrays.
//!
//! [`op`] has one file for each operation: its request, its response, and the form of both. This
//! crate does not know the effect of an operation, and knows no store. `docs/designs/wire.md`
//! specifies the wire.

#![forbid(unsafe_code)]

pub mod answers;
mod at_once;
mod connection;
mod deadline;
mod error;
pub mod frame;
pub mod half_rows;
pub mod handshake;
pub mod op;
mod server;
pub mod service;
mod socket;
mod tls;
mod traffic;

pub use connection::{Connection, Place};
pub use deadline::timed_out;
pub use error::{ErrorKind, WireError, cause_of};
pub use server::{Client, Handler, Listening, Reply, Request, Server, Session, give_way};
pub use socket::{Host, Listener, Origin, Socket};
pub use tls::{Credentials, TlsFiles, TlsStream};
pub use traffic::traffic;
