//! Why a version of an export, or a request, is refused.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a version of an export is refused.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A file is missing, damaged, or not what the manifest says.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The problem of the file.
        problem: String,
    },
    /// The manifest says what cannot be.
    #[error("{0}")]
    Manifest(String),
}

impl ServeError {
    pub(crate) fn file(path: &Path, problem: impl ToString) -> Self {
        Self::File {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

/// Why a request is refused.
#[derive(Debug, Error)]
pub enum RequestError {
    /// It is not what a model takes.
    #[error("{0}")]
    Wrong(String),
    /// It has more records than a request may have.
    #[error("{0}")]
    TooLarge(String),
}
