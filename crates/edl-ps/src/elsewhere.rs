//! What is said to those who ask of a layout that is over.

use serde::{Deserialize, Serialize};

/// Where everything is, for those who ask of a layout that is over.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Elsewhere {
    /// The layout that is served.
    pub(crate) number: u64,
    /// Of all its replicas.
    pub(crate) addresses: Vec<String>,
}
