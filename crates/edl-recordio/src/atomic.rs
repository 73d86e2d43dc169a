//! Files that appear whole or not at all.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::RecordError;

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A file that is written under a temporary name in the same folder and renamed when it is
/// complete. Dropped before that, it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    committed: bool,
}

impl AtomicFile {
    pub(crate) fn create(path: &Path) -> Result<AtomicFile, RecordError> {
        // A link is followed, so that it is the file behind it that is replaced.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let temporary = temporary_name(&path);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary)
            .map_err(RecordError::io(&path, "create"))?;
        Ok(AtomicFile {
            file,
            temporary,
            path,
            committed: false,
        })
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<(), RecordError> {
        self.file
            .write_all(bytes)
            .map_err(RecordError::io(&self.path, "write"))
    }

    /// Makes the file durable and gives it its name.
    pub(crate) fn commit(mut self) -> Result<(), RecordError> {
        self.file
            .sync_all()
            .map_err(RecordError::io(&self.path, "write"))?;
        fs::rename(&self.temporary, &self.path).map_err(RecordError::io(&self.path, "create"))?;
        self.committed = true;
        sync_folder_of(&self.path)
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing can be done about a failure here, and the name says what the file is.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// `.NAME.PID-SERIAL.tmp` in the folder of `path`: hidden, so no reader takes it for data.
fn temporary_name(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{}-{serial}.tmp", std::process::id()));
    path.with_file_name(name)
}

/// Makes a rename or a new name in the folder of `path` survive a power cut.
pub(crate) fn sync_folder_of(path: &Path) -> Result<(), RecordError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(RecordError::io(path, "sync the folder of"))
}
