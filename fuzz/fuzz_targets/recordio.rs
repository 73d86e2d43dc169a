//! Any bytes as a RecordIO file: refused, or read to its end.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use edl_recordio::RecordReader;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    TempDir::new_in(base).expect("a folder")
});

fuzz_target!(|bytes: &[u8]| {
    let path = FOLDER.path().join("any.recordio");
    fs::write(&path, bytes).expect("written");
    let Ok(reader) = RecordReader::open_torn(&path) else {
        return;
    };
    let _ = reader.verify();
    let _ = reader.read(0, reader.num_records(), 1 << 20);
});
