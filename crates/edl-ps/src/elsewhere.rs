//! The answer to requests for a layout that is over.

use serde::{Deserialize, Serialize};

/// The present layout and its addresses, for a client of a layout that is over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Elsewhere {
    /// The layout that is served.
    pub(crate) number: u64,
    /// The addresses of all replicas of the layout.
    pub(crate) addresses: Vec<String>,
}
