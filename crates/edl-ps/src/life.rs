//! Expiry and export, as a replica answers them: text in, text out.

use edl_export::{ExportError, ExportRequest};
use edl_store::{Progress, Store, unseen};
use serde::Serialize;

use crate::error::PsError;

/// Remove the rows that have come to their end; `now` in seconds since 1970.
pub(crate) fn expire(store: &Store, now: u64, progress: Progress<'_>) -> Result<String, PsError> {
    json(&store.expire_showing(now, progress)?)
}

/// Write a store's part of an export: an [`ExportRequest`] as JSON, answered by an
/// [`edl_export::ReplicaExport`], or an [`edl_export::ReplicaCut`].
///
/// # Errors
/// A request that cannot be, or a file that cannot be written.
pub fn export(store: &Store, request: &str) -> Result<String, PsError> {
    let request = ExportRequest::from_json(request).map_err(refused)?;
    export_request(store, &request, &unseen)
}

/// The same, telling of each piece that is written.
pub(crate) fn export_request(
    store: &Store,
    request: &ExportRequest,
    progress: Progress<'_>,
) -> Result<String, PsError> {
    match &request.cut {
        None => json(&edl_export::export(store, request, progress).map_err(refused)?),
        Some(cut) => {
            let written = edl_export::export_cut(store, &request.directory, cut, progress);
            json(&written.map_err(refused)?)
        }
    }
}

pub(crate) fn refused(error: ExportError) -> PsError {
    match error {
        ExportError::BadRequest(problem) => PsError::Invalid(problem),
        ExportError::Store(error) => PsError::Store(error),
        // A caller sees the error as a checkpoint that cannot be written.
        ExportError::File { path, problem } => PsError::Store(edl_store::StoreError::Checkpoint {
            path,
            problem: format!("cannot be exported: {problem}"),
        }),
    }
}

fn json(answer: &impl Serialize) -> Result<String, PsError> {
    serde_json::to_string(answer)
        .map_err(|error| PsError::System(format!("an answer cannot be written: {error}")))
}
