//! Decides when a checkpoint may hold only the changes since another one.

use std::path::Path;

use crate::checkpoint::format::{BASE, Base, FileEntry, Wish, broken};
use crate::checkpoint::read::read_manifest;
use crate::error::StoreError;
use crate::stripe::Since;

/// The last checkpoint with all rows that this process wrote. Its contents are known here, but not
/// whether all replicas completed it, and where it is now.
pub(crate) struct LastWhole {
    /// Its files, which tell it from any other.
    pub(crate) files: Vec<FileEntry>,
    /// Updates that it has.
    pub(crate) version: u64,
    /// How often rows had been removed.
    pub(crate) removals: u64,
    /// The marks by table and stripe.
    pub(crate) since: Vec<Vec<Since>>,
}

/// Return the base that `dir/base.json` asks for, if that is `last`; the rows of any other are not
/// known, and all must be written.
pub(crate) fn wished_base(
    dir: &Path,
    replica: u32,
    last: Option<&LastWhole>,
) -> Result<Option<Base>, StoreError> {
    let path = dir.join(BASE);
    let Some(last) = last.filter(|_| path.exists()) else {
        return Ok(None);
    };
    let json = std::fs::read(&path).map_err(|e| broken(&path, format!("cannot be read: {e}")))?;
    let wish: Wish = serde_json::from_slice(&json)
        .map_err(|e| broken(&path, format!("does not name a base: {e}")))?;
    let parent = dir.parent().unwrap_or(Path::new(""));
    // A checkpoint that cannot be read is no base; its next restore reports the problem.
    let manifest = read_manifest(&parent.join(&wish.base));
    let entries = manifest.map_or_else(|_| Vec::new(), |manifest| manifest.replicas);
    let own = entries.into_iter().find(|entry| entry.replica == replica);
    let is_last = own.is_some_and(|entry| entry.base.is_none() && entry.files == last.files);
    Ok(is_last.then(|| Base {
        folder: wish.base,
        files: last.files.clone(),
    }))
}
