//! Files that appear whole or not at all, with the checksum of what they hold.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crate::checkpoint::format::{FileEntry, Layout, broken};
use crate::error::StoreError;
use crate::progress::Progress;

/// A file under a temporary name; removed when dropped, unless it was published.
pub(crate) struct PendingFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
    crc32c: u32,
    regions: Vec<Region>,
    bytes: u64,
    /// Brings what is written to the disk, once that is all.
    sync: Option<JoinHandle<io::Result<()>>>,
}

/// The bytes of one tensor, written front to back while other tensors are written too.
struct Region {
    at: u64,
    end: u64,
    written: usize,
    crc32c: u32,
}

impl PendingFile {
    /// Create `dir/name` for the tensors of `layout`, with `header` before them.
    pub(crate) fn create(
        dir: &Path,
        name: &str,
        lens: &[usize],
        header: &[u8],
    ) -> Result<Self, StoreError> {
        let temporary = dir.join(format!(".{name}.{}.tmp", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary);
        let mut at = header.len() as u64;
        let region = |&len: &usize| {
            let start = at;
            at += len as u64;
            Region {
                at: start,
                end: at,
                written: 0,
                crc32c: 0,
            }
        };
        let pending = Self {
            file: file.map_err(|e| unwritable(dir, &e))?,
            temporary,
            path: dir.join(name),
            crc32c: crc32c::crc32c(header),
            regions: lens.iter().map(region).collect(),
            bytes: at,
            sync: None,
        };
        let written = pending.file.write_all_at(header, 0);
        written.map_err(|e| unwritable(dir, &e))?;
        Ok(pending)
    }

    /// Append to a tensor.
    pub(crate) fn write(&mut self, tensor: usize, bytes: &[u8]) -> Result<(), StoreError> {
        let region = &mut self.regions[tensor];
        let next = region.at + bytes.len() as u64;
        assert!(next <= region.end, "a tensor has the length announced");
        let written = self.file.write_all_at(bytes, region.at);
        written.map_err(|e| unwritable(parent(&self.path), &e))?;
        region.at = next;
        region.written += bytes.len();
        region.crc32c = crc32c::crc32c_append(region.crc32c, bytes);
        Ok(())
    }

    /// Begin to bring everything to the disk; return the file's manifest entry.
    pub(crate) fn finish(&mut self, slots: Option<[u32; 2]>) -> Result<FileEntry, StoreError> {
        let mut crc32c = self.crc32c;
        for region in &self.regions {
            assert!(region.at == region.end, "a tensor has the length announced");
            crc32c = crc32c::crc32c_combine(crc32c, region.crc32c, region.written);
        }
        // The disk is slow at times: the next file is written meanwhile.
        let sync = self.file.try_clone().and_then(|file| {
            let thread = std::thread::Builder::new().name("checkpoint-sync".to_owned());
            thread.spawn(move || file.sync_all())
        });
        self.sync = Some(sync.map_err(|e| unwritable(parent(&self.path), &e))?);
        let name = self.path.file_name().unwrap_or_default();
        Ok(FileEntry {
            name: name.to_string_lossy().into_owned(),
            bytes: self.bytes,
            crc32c,
            slots,
        })
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        // Once published there is nothing under this name; and what cannot be removed is of no
        // consequence for the checkpoint.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Give all files their names, or none, once they are on the disk; the directory is synced.
pub(crate) fn publish(
    dir: &Path,
    mut files: Vec<PendingFile>,
    progress: Progress<'_>,
) -> Result<(), StoreError> {
    for file in &mut files {
        progress();
        let synced = file.sync.take().map(JoinHandle::join);
        match synced.expect("a file is finished before it is published") {
            Ok(synced) => synced.map_err(|e| unwritable(dir, &e))?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
    let mut published: Vec<&Path> = Vec::new();
    for file in &files {
        if let Err(e) = fs::rename(&file.temporary, &file.path) {
            for path in published {
                let _ = fs::remove_file(path);
            }
            return Err(unwritable(dir, &e));
        }
        published.push(&file.path);
    }
    let synced = File::open(dir).and_then(|d| d.sync_all());
    synced.map_err(|e| unwritable(dir, &e))
}

/// Return the lengths of the tensors and the header for `create`.
pub(crate) fn laid_out(
    dir: &Path,
    layout: Layout,
    notes: &[(&str, String)],
) -> Result<(Vec<usize>, Vec<u8>), StoreError> {
    let lens = layout.lens();
    let notes = notes.iter().map(|(k, v)| ((*k).to_owned(), v.clone()));
    let header = layout.header(notes.collect());
    Ok((lens, header.map_err(|e| broken(dir, e))?))
}

pub(crate) fn unwritable(dir: &Path, error: &io::Error) -> StoreError {
    let problem = format!(
        "cannot be written: {error}; nothing of it was kept, make room or choose another directory"
    );
    broken(dir, problem)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}
