//! A checkpoint of which one file is any bytes, with a checksum that fits: refused, or restored.
//!
//! The first byte says which file, of a checkpoint with all rows or of one of what has changed
//! since. The second says whether the others are its content, or changes of what should be there:
//! (offset, two bytes; value) each.

#![no_main]

use std::fs;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::LazyLock;

use edl_store::{ModelSpec, PullMode, Push, Store, TableGrads};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use tempfile::TempDir;

const MODEL: &str = r#"{
    "tables": [{
        "name": "user", "dim": 3, "input_dim": null,
        "initializer": {"kind": "uniform", "params": {"low": -1.0, "high": 1.0}},
        "optimizer": {"kind": "adagrad", "params": {}}
    }, {
        "name": "word", "dim": 1, "input_dim": null, "keep_names": true,
        "initializer": {"kind": "constant", "params": {"value": 0.0}},
        "optimizer": {"kind": "sgd", "params": {}},
        "expiry": {"steps": 100, "min_norm": 0.1, "grace_steps": 10}
    }, {
        "name": "item", "dim": 2, "input_dim": null,
        "initializer": {"kind": "constant", "params": {"value": 0.0}},
        "optimizer": {"kind": "sgd", "params": {}},
        "admission": {"kind": "count", "params": {"count": 2}}
    }],
    "dense": [{"name": "kernel", "shape": [5], "offset": 0}],
    "state": [{"name": "mean", "shape": [2], "offset": 0}],
    "optimizer": {"kind": "adagrad", "params": {}},
    "seed": 1
}"#;

const KEYS: u64 = 40;

/// A checkpoint as it should be; the one that is read, in memory where the system has that.
struct Checkpoint {
    folder: PathBuf,
    files: Vec<PathBuf>,
    contents: Vec<Vec<u8>>,
    manifest: Value,
}

/// One with all rows, and one of what has changed since.
static CHECKPOINTS: LazyLock<(TempDir, [Checkpoint; 2])> = LazyLock::new(|| {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() {
        shm
    } else {
        std::env::temp_dir()
    };
    let parent = TempDir::new_in(base).expect("a folder");
    let store = Store::new(0, 1);
    let model = ModelSpec::from_json(MODEL).expect("a model");
    store
        .declare(model, &[0.5; 5], &[0.0; 2])
        .expect("declared");
    store.begin_task(7, 1).expect("a task");
    train(&store, 0, 0..KEYS);
    let full = written(&store, parent.path().join("full"), None);
    train(&store, 1, KEYS / 2..KEYS + 5);
    let since = written(&store, parent.path().join("since"), Some("full"));
    (parent, [full, since])
});

/// Pull, name and push some keys of every table.
fn train(store: &Store, index: u32, keys: Range<u64>) {
    let keys: Vec<u64> = keys.collect();
    let model = store.model().expect("a model");
    let dims: Vec<usize> = model
        .tables
        .iter()
        .map(|table| table.dim as usize)
        .collect();
    let grads = vec![1.0; dims.iter().max().unwrap_or(&0) * keys.len()];
    let names: Vec<String> = keys.iter().map(|key| format!("word {key}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    store.name_keys(1, &keys, &names).expect("names");
    let tables: Vec<TableGrads> = (0..)
        .zip(&dims)
        .map(|(table, dim)| {
            let grads = &grads[..dim * keys.len()];
            let mut rows = grads.to_vec();
            store
                .pull_rows(table, &keys, PullMode::Create, &mut rows)
                .expect("rows");
            TableGrads {
                table,
                keys: &keys,
                grads,
            }
        })
        .collect();
    let push = Push {
        task: 7,
        lease: 1,
        index,
        num_records: 1,
        learning_rate: 0.1,
        pulled_version: 0,
        tables: &tables,
        dense: &[0.1; 5],
        state: &[0.1; 2],
    };
    store.apply(&push).expect("applied");
}

/// Write a checkpoint, of what has changed since `base` if that is given.
fn written(store: &Store, folder: PathBuf, base: Option<&str>) -> Checkpoint {
    fs::create_dir(&folder).expect("a folder");
    if let Some(base) = base {
        fs::write(folder.join("base.json"), json!({"base": base}).to_string()).expect("written");
    }
    let entry = store.checkpoint(&folder).expect("a checkpoint");
    let entry: Value = serde_json::from_str(&entry).expect("an entry");
    assert_eq!(entry.get("base").is_some(), base.is_some());
    let names = entry["files"].as_array().expect("files").iter();
    let files: Vec<PathBuf> = names
        .map(|file| folder.join(file["name"].as_str().expect("a name")))
        .collect();
    let contents = files
        .iter()
        .map(|file| fs::read(file).expect("a file"))
        .collect();
    let format = if base.is_some() { 2 } else { 1 };
    let manifest = json!({"format": format, "replicas": [entry]});
    fs::write(folder.join("manifest.json"), manifest.to_string()).expect("written");
    Checkpoint {
        folder,
        files,
        contents,
        manifest,
    }
}

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
    let (_, [full, since]) = &*CHECKPOINTS;
    // The files of both, each followed by its manifest.
    let which = usize::from(*which) % (full.files.len() + since.files.len() + 2);
    let (checkpoint, which) = match which.checked_sub(full.files.len() + 1) {
        Some(which) => (since, which),
        None => (full, which),
    };
    let original = checkpoint.contents.get(which);
    let whole_manifest = checkpoint.manifest.to_string().into_bytes();
    let content = if *whole % 2 == 0 {
        rest.to_vec()
    } else {
        changed(original.unwrap_or(&whole_manifest).clone(), rest)
    };
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
    fs::write(checkpoint.folder.join("manifest.json"), manifest_bytes).expect("written");
    for (replica, num_replicas) in [(0, 1), (1, 2)] {
        if let Ok(store) = Store::restore(&checkpoint.folder, replica, num_replicas, true) {
            read(&store);
        }
    }
    if let (Some(file), Some(original)) = (checkpoint.files.get(which), original) {
        fs::write(file, original).expect("written");
    }
    fs::write(checkpoint.folder.join("manifest.json"), whole_manifest).expect("written");
});

/// Read, and change, what was restored.
fn read(store: &Store) {
    store.audit();
    let num_tables = store.model().map_or(0, |model| model.tables.len() as u32);
    for table in 0..num_tables {
        if let Ok(chunk) = store.scan(table, 0, 100) {
            let _ = store.names_of(table, &chunk.keys);
        }
    }
    let _ = store.expire(1_000_000_000);
}
