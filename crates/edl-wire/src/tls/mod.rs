//! TLS 1.3 between processes of a job, mutual: whose certificates are good, and the stream itself.
//!
//! A certificate says which role its process has, by a DNS name such as `ps.elasticdl`. Both ends
//! check the other's before they say anything else. The token is proven inside, bound to the session
//! (see [`crate::handshake`]).

mod credentials;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
mod words;

pub use credentials::{Credentials, TlsFiles};
pub(crate) use stream::Binding;
pub use stream::TlsStream;
pub(crate) use words::words_of;
