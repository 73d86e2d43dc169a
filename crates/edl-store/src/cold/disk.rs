//! The folder of a store's cold rows, and what became of it.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};

use crate::error::StoreError;

/// The folder for rows that have no room in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColdRoom {
    /// Made if it is not there; others than this user cannot look into it then.
    pub folder: PathBuf,
    /// Bytes that rows may take in memory, with what tells where all are.
    pub memory_limit: u64,
}

/// The position of the clock's hand, which goes round over all tables of a store.
#[derive(Debug, Default)]
pub(crate) struct Hand {
    pub(crate) table: usize,
    pub(crate) stripe: usize,
    /// Room for records.
    pub(crate) buffer: Vec<u8>,
}

/// A folder in which tables have files, which have no names and go with this process.
#[derive(Debug)]
pub(crate) struct Disk {
    folder: PathBuf,
    hand: Mutex<Hand>,
    /// Why it takes no more; all rows are there.
    full: OnceLock<String>,
    /// Why rows are lost.
    lost: OnceLock<String>,
}

impl Disk {
    /// Make the folder, which others than this user cannot look into.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn new(folder: &Path) -> Result<Arc<Self>, StoreError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|e| unusable(folder, &e))?;
        Ok(Arc::new(Self {
            folder: folder.to_owned(),
            hand: Mutex::default(),
            full: OnceLock::new(),
            lost: OnceLock::new(),
        }))
    }

    /// Make a file for a table.
    ///
    /// # Errors
    /// The folder takes none.
    pub(crate) fn file(self: &Arc<Self>) -> Result<DiskFile, StoreError> {
        let file = tempfile::tempfile_in(&self.folder);
        Ok(DiskFile {
            file: Arc::new(file.map_err(|e| unusable(&self.folder, &e))?),
            disk: self.clone(),
        })
    }

    /// Take the hand; unless `waits`, `None` if somebody else has it.
    pub(crate) fn hand(&self, waits: bool) -> Option<MutexGuard<'_, Hand>> {
        if waits {
            return Some(self.hand.lock());
        }
        self.hand.try_lock()
    }

    /// Return why it takes no more rows.
    pub(crate) fn full(&self) -> Option<StoreError> {
        let problem = self.full.get()?.clone();
        Some(StoreError::DiskFull { problem })
    }

    /// Return why rows are lost.
    pub(crate) fn lost(&self) -> Option<StoreError> {
        let problem = self.lost.get()?.clone();
        Some(StoreError::DiskLost { problem })
    }

    fn told(&self, what: &dyn std::fmt::Display) -> String {
        format!("{}: {what}", self.folder.display())
    }
}

fn unusable(folder: &Path, error: &io::Error) -> StoreError {
    StoreError::DiskUnusable {
        problem: format!("{}: {error}", folder.display()),
    }
}

/// A table's file; its errors are noted for the whole store.
#[derive(Debug, Clone)]
pub(crate) struct DiskFile {
    pub(super) file: Arc<File>,
    disk: Arc<Disk>,
}

impl DiskFile {
    /// Note that it takes no more.
    pub(super) fn full(&self, error: &io::Error) -> StoreError {
        let problem = self.disk.told(error);
        let problem = self.disk.full.get_or_init(|| problem).clone();
        StoreError::DiskFull { problem }
    }

    /// Note that something in it cannot be read.
    pub(super) fn lost(&self, what: &dyn std::fmt::Display) -> StoreError {
        let problem = self.disk.told(what);
        let problem = self.disk.lost.get_or_init(|| problem).clone();
        StoreError::DiskLost { problem }
    }
}
