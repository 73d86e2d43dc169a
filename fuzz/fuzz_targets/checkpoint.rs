//! A checkpoint of which one file is any bytes, with a checksum that fits: refused, or restored.
//!
//! The first byte says which file. The second says whether the others are its content, or changes
//! of what should be there: (offset, two bytes; value) each.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use edl_store::{ModelSpec, PullMode, Store};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = r#"{
    "tables": [{
        "name": "user", "dim": 3, "input_dim": null,
        "initializer": {"kind": "uniform", "params": {"low": -1.0, "high": 1.0}},
        "optimizer": {"kind": "adagrad", "params": {}}
    }],
    "dense": [{"name": "kernel", "shape": [5], "offset": 0}],
    "state": [{"name": "mean", "shape": [2], "offset": 0}],
    "optimizer": {"kind": "adagrad", "params": {}},
    "seed": 1
}"#;

/// A checkpoint as it should be; the one that is read, in memory where the system has that.
struct Checkpoint {
    folder: TempDir,
    files: Vec<PathBuf>,
    contents: Vec<Vec<u8>>,
    manifest: Value,
}

static CHECKPOINT: LazyLock<Checkpoint> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    let folder = TempDir::new_in(base).expect("a folder");
    let store = Store::new(0, 1);
    let model = ModelSpec::from_json(MODEL).expect("a model");
    store.declare(model, &[0.5; 5], &[0.0; 2]).expect("declared");
    let keys: Vec<u64> = (0..40).collect();
    let mut rows = vec![0.0; 3 * keys.len()];
    store.pull_rows(0, &keys, PullMode::Create, &mut rows).expect("rows");
    store.begin_task(7, 1).expect("a task");
    let entry = store.checkpoint(folder.path()).expect("a checkpoint");
    let entry: Value = serde_json::from_str(&entry).expect("an entry");
    let names = entry["files"].as_array().expect("files").iter();
    let files: Vec<PathBuf> = names
        .map(|file| folder.path().join(file["name"].as_str().expect("a name")))
        .collect();
    let contents = files.iter().map(|file| fs::read(file).expect("a file")).collect();
    let manifest = json!({"format": 1, "replicas": [entry]});
    Checkpoint { folder, files, contents, manifest }
});

fn changed(mut content: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    for &[low, high, value] in changes.as_chunks().0 {
        let at = usize::from(u16::from_le_bytes([low, high])) % content.len();
        content[at] = value;
    }
    content
}

fuzz_target!(|bytes: &[u8]| {
    let Some(([which, whole], rest)) = bytes.split_first_chunk::<2>() else {
        return;
    };
    let checkpoint = &*CHECKPOINT;
    let which = usize::from(*which) % (checkpoint.files.len() + 1);
    let content = if *whole % 2 == 0 {
        rest.to_vec()
    } else {
        let original = checkpoint.contents.get(which);
        let manifest = || checkpoint.manifest.to_string().into_bytes();
        changed(original.cloned().unwrap_or_else(manifest), rest)
    };
    for (file, original) in checkpoint.files.iter().zip(&checkpoint.contents) {
        fs::write(file, original).expect("written");
    }
    let mut manifest = checkpoint.manifest.clone();
    let manifest_bytes = match checkpoint.files.get(which) {
        Some(file) => {
            fs::write(file, &content).expect("written");
            let entry = &mut manifest["replicas"][0]["files"][which];
            entry["bytes"] = json!(content.len());
            entry["crc32c"] = json!(crc32c::crc32c(&content));
            manifest.to_string().into_bytes()
        }
        None => content,
    };
    fs::write(checkpoint.folder.path().join("manifest.json"), manifest_bytes).expect("written");
    for (replica, num_replicas) in [(0, 1), (1, 2)] {
        if let Ok(store) = Store::restore(checkpoint.folder.path(), replica, num_replicas, true) {
            store.audit();
            let _ = store.scan(0, 0, 100);
        }
    }
});
