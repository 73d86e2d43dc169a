//! Why an export fails.

use std::path::PathBuf;

use edl_store::StoreError;
use thiserror::Error;

/// Why an export fails.
#[derive(Debug, Error)]
pub enum ExportError {
    /// The request does not parse, or asks for what cannot be.
    #[error("{0}")]
    BadRequest(String),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file cannot be written.
    #[error("export to {}: {problem}; nothing of this file was kept", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The problem of the file.
        problem: String,
    },
}
