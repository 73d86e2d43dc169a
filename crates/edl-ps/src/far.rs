//! Checkpoints and exports that are to lie behind a URL: written here, then sent there.

use std::path::{Path, PathBuf};

use edl_export::ExportRequest;
use edl_store::{Progress, Store, StoreError};

use crate::error::PsError;
use crate::life::export_request;

/// Knows how to send files to where no file system reaches.
pub trait FarFiles: Send + Sync {
    /// A folder of this machine to write the files for a URL to. It lies beside those of other URLs
    /// of one parent, and has what the store is to know of the folder behind the URL.
    ///
    /// # Errors
    /// Says what was wrong with which URL.
    fn scratch(&self, url: &str) -> Result<PathBuf, String>;

    /// Send what was written there and remove it here, telling of each piece.
    ///
    /// # Errors
    /// Says what was wrong with which URL.
    fn send(&self, scratch: &Path, url: &str, progress: Progress<'_>) -> Result<(), String>;
}

/// Writes what a store holds to a folder, or to where a URL leads.
pub(crate) fn checkpoint(
    store: &Store,
    place: &str,
    far: Option<&dyn FarFiles>,
    progress: Progress<'_>,
) -> Result<String, StoreError> {
    if !place.contains("://") {
        return store.checkpoint_showing(Path::new(place), progress);
    }
    let failed = |problem| StoreError::Checkpoint {
        path: place.into(),
        problem,
    };
    let far = far.ok_or_else(|| failed("is no folder, and nobody sends files there".to_owned()))?;
    let scratch = far.scratch(place).map_err(failed)?;
    let entry = store.checkpoint_showing(&scratch, progress);
    let entry = entry.inspect_err(|_| removed(&scratch))?;
    far.send(&scratch, place, progress).map_err(failed)?;
    Ok(entry)
}

/// The same of a store's part of an export.
pub(crate) fn export(
    store: &Store,
    request: &str,
    far: Option<&dyn FarFiles>,
    progress: Progress<'_>,
) -> Result<String, PsError> {
    let request = ExportRequest::from_json(request).map_err(crate::life::refused)?;
    let place = request.directory.to_string_lossy().into_owned();
    if !place.contains("://") {
        return export_request(store, &request, progress);
    }
    let failed = |problem| StoreError::Checkpoint {
        path: request.directory.clone(),
        problem,
    };
    let far = far.ok_or_else(|| failed("is no folder, and nobody sends files there".to_owned()))?;
    let scratch = far.scratch(&place).map_err(failed)?;
    let here = ExportRequest {
        directory: scratch.clone(),
        ..request.clone()
    };
    let written = export_request(store, &here, progress);
    let written = written.inspect_err(|_| removed(&scratch))?;
    far.send(&scratch, &place, progress).map_err(failed)?;
    Ok(written)
}

/// Removes what a store has written before it failed; its error says more than one of this.
fn removed(scratch: &Path) {
    let _ = std::fs::remove_dir_all(scratch);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl FarFiles for Scratch {
        fn scratch(&self, _: &str) -> Result<PathBuf, String> {
            std::fs::create_dir(&self.0).map_err(|error| error.to_string())?;
            Ok(self.0.clone())
        }

        fn send(&self, _: &Path, _: &str, _: Progress<'_>) -> Result<(), String> {
            Ok(())
        }
    }

    #[test]
    fn files_of_a_store_that_fails_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let far = Scratch(folder.path().join("scratch"));
        let undeclared = Store::new(0, 1);
        let place = "memory://a/b";
        assert!(checkpoint(&undeclared, place, Some(&far), &|| ()).is_err());
        assert!(!far.0.exists());
        let request = format!(r#"{{"directory": "{place}"}}"#);
        assert!(export(&undeclared, &request, Some(&far), &|| ()).is_err());
        assert!(!far.0.exists());
    }
}
