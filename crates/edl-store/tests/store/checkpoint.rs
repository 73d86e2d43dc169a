//! Facts about checkpoints: what comes back, and what is refused.

use std::fs;
use std::path::Path;

use crate::common::{
    Grads, Replicas, WholePush, constant, model, table, write_manifest, write_part,
};
use edl_store::{ModelSpec, PullMode, Store, StoreError, TaskAudit};
use safetensors::SafeTensors;
use serde_json::{Value, json};

fn adagrad() -> ModelSpec {
    model("adagrad", 100, 50)
}

/// Push `num_minibatches` of a task; each touches other rows.
fn train(replicas: &Replicas, task: u64, num_minibatches: u32) {
    for index in 0..num_minibatches {
        let keys: Vec<u64> = (0..300).map(|k| k * u64::from(index % 3 + 1)).collect();
        let grads = |dim: usize| {
            (0..keys.len() * dim)
                .map(|i| (i % 7) as f32 - 3.0)
                .collect()
        };
        let push = WholePush {
            task,
            lease: 2,
            index,
            learning_rate: 0.1,
            tables: vec![
                Grads::of(0, keys.clone(), grads(16)),
                Grads::of(1, keys.clone(), grads(1)),
            ],
            dense: (0..100).map(|i| i as f32).collect(),
            state: vec![0.5; 50],
        };
        replicas.push(&push).unwrap();
    }
}

fn assert_equal(a: &Replicas, b: &Replicas) {
    assert_eq!(a.scan(0, 16, 1000), b.scan(0, 16, 77));
    assert_eq!(a.scan(1, 1, 1000), b.scan(1, 1, 1_000_000));
    assert_eq!(a.vectors(), b.vectors());
}

/// A checkpoint of two replicas in a fresh directory.
fn checkpointed() -> (tempfile::TempDir, Replicas) {
    let dir = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(2, &adagrad());
    train(&replicas, 1, 3);
    replicas.checkpoint(dir.path());
    (dir, replicas)
}

fn refused(dir: &Path) -> String {
    match Store::restore(dir, 0, 1, true) {
        Err(error @ StoreError::Checkpoint { .. }) => error.to_string(),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a broken checkpoint was restored"),
    }
}

fn edit_manifest(dir: &Path, edit: impl Fn(&mut Value)) {
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(&path, manifest.to_string()).unwrap();
}

#[test]
fn a_checkpoint_restores_to_any_number_of_replicas() {
    let (dir, replicas) = checkpointed();
    for count in [1, 2, 3, 8, 40] {
        let restored = Replicas::restore(dir.path(), count, true).unwrap();
        assert_equal(&restored, &replicas);
        restored.declare(&adagrad()).unwrap();
        assert_equal(&restored, &replicas);
    }
}

#[test]
fn training_goes_on_after_a_restore_as_if_nothing_had_happened() {
    for kind in [
        "sgd", "momentum", "adagrad", "adam", "adamw", "rmsprop", "ftrl",
    ] {
        let spec = model(kind, 100, 50);
        let replicas = Replicas::declared(2, &spec);
        train(&replicas, 1, 3);
        let dir = tempfile::tempdir().unwrap();
        replicas.checkpoint(dir.path());
        train(&replicas, 2, 4);
        for count in [2, 3] {
            let restored = Replicas::restore(dir.path(), count, true).unwrap();
            train(&restored, 2, 4);
            assert_equal(&restored, &replicas);
        }
    }
}

#[test]
fn watermarks_come_back_for_the_same_replicas() {
    let (dir, replicas) = checkpointed();
    let restored = Replicas::restore(dir.path(), 2, true).unwrap();
    for (a, b) in restored.0.iter().zip(&replicas.0) {
        assert_eq!(a.audit(), b.audit());
        assert_eq!(a.stats().version, 3);
        assert!(matches!(
            a.begin_task(1, 1),
            Err(StoreError::StaleLease { current: 2, .. })
        ));
        assert_eq!(a.begin_task(1, 2).unwrap(), 3);
    }
}

#[test]
fn watermarks_for_other_replicas_are_the_lowest_of_all() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(2, &adagrad());
    train(&replicas, 1, 3);
    replicas.0[0].skip(1, 4, 3).unwrap();
    replicas.0[1].skip(9, 1, 0).unwrap();
    replicas.checkpoint(dir.path());
    let store = Store::restore(dir.path(), 0, 1, true).unwrap();
    let audit = |task, next_index, num_records| TaskAudit {
        task,
        next_index,
        num_records,
    };
    assert_eq!(store.audit(), [audit(1, 3, 30), audit(9, 0, 0)]);
    assert!(matches!(
        store.begin_task(1, 3),
        Err(StoreError::StaleLease { current: 4, .. })
    ));
}

#[test]
fn a_new_job_starts_without_watermarks_and_with_the_version() {
    let (dir, _) = checkpointed();
    let store = Store::restore(dir.path(), 1, 2, false).unwrap();
    assert!(store.audit().is_empty());
    assert_eq!(store.begin_task(1, 1).unwrap(), 0);
    assert_eq!(store.stats().version, 3);
}

#[test]
fn a_checkpoint_of_another_model_is_refused_when_declared() {
    let (dir, _) = checkpointed();
    let restored = Replicas::restore(dir.path(), 1, true).unwrap();
    let mut other = adagrad();
    other.tables[0].dim = 8;
    let error = restored.declare(&other).unwrap_err();
    assert!(matches!(error, StoreError::ModelMismatch(_)));
    assert_eq!(
        error.to_string(),
        "table 'user' has dim 8 here, 16 was declared; the checkpoint belongs to another model"
    );
}

#[test]
fn files_are_safetensors_named_by_replica() {
    let (dir, replicas) = checkpointed();
    let mut names: Vec<String> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "manifest.json",
            "replica-00000-of-00002-rows-00.safetensors",
            "replica-00000-of-00002-vectors.safetensors",
            "replica-00001-of-00002-rows-00.safetensors",
            "replica-00001-of-00002-vectors.safetensors",
        ]
    );
    let bytes = fs::read(dir.path().join(&names[1])).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let notes = header.metadata().as_ref().unwrap();
    assert_eq!(notes["version"], "3");
    assert_eq!(notes["slots"], "0-32768");
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let rows = replicas.0[0].stats().tables[0].rows as usize;
    assert_eq!(tensors.tensor("table.0.keys").unwrap().shape(), [rows]);
    assert_eq!(tensors.tensor("table.0.rows").unwrap().shape(), [rows, 32]);
    let vectors = fs::read(dir.path().join(&names[2])).unwrap();
    let vectors = SafeTensors::deserialize(&vectors).unwrap();
    assert_eq!(vectors.tensor("dense.slots").unwrap().shape(), [1, 48]);
    assert_eq!(vectors.tensor("tasks").unwrap().shape(), [1, 4]);
}

#[test]
fn a_large_store_is_split_into_files_by_slot_range() {
    let mut spec = adagrad();
    spec.tables = vec![table("wide", 4096, "adam", constant(0.5))];
    let replicas = Replicas::declared(1, &spec);
    let keys: Vec<u64> = (0..3000).collect();
    replicas.pull(0, 4096, &keys, PullMode::Create);
    let dir = tempfile::tempdir().unwrap();
    replicas.checkpoint(dir.path());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2 + 3);
    let restored = Replicas::restore(dir.path(), 2, true).unwrap();
    assert_eq!(restored.scan(0, 4096, 100), replicas.scan(0, 4096, 100));
}

#[test]
fn an_empty_store_is_checkpointed_too() {
    let mut spec = adagrad();
    spec.tables.clear();
    spec.dense.clear();
    spec.state.clear();
    for spec in [spec, adagrad()] {
        let dir = tempfile::tempdir().unwrap();
        let replicas = Replicas::declared(3, &spec);
        replicas.checkpoint(dir.path());
        let restored = Replicas::restore(dir.path(), 2, true).unwrap();
        assert_eq!(restored.vectors(), replicas.vectors());
        restored.declare(&spec).unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(
        Store::new(0, 1).checkpoint(dir.path()),
        Err(StoreError::NotDeclared(_))
    ));
}

#[test]
fn a_manifest_that_is_missing_torn_or_foreign_is_refused() {
    let (dir, _) = checkpointed();
    let path = dir.path().join("manifest.json");
    let whole = fs::read(&path).unwrap();
    edit_manifest(dir.path(), |m| m["format"] = json!(4));
    assert!(refused(dir.path()).contains("manifest.json: has format 4, expected 1 to 3"));
    edit_manifest(dir.path(), |m| m["format"] = json!(3));
    assert!(refused(dir.path()).contains("manifest.json: has no checksum of itself"));
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(refused(dir.path()).contains("manifest.json: is not JSON"));
    fs::write(&path, "[]").unwrap();
    assert!(refused(dir.path()).contains("has format none"));
    fs::write(&path, r#"{"format": 1}"#).unwrap();
    assert!(refused(dir.path()).contains("lacks something or is torn"));
    fs::write(&path, r#"{"format": 1, "replicas": []}"#).unwrap();
    assert!(refused(dir.path()).contains("has 0 replicas"));
    fs::remove_file(&path).unwrap();
    assert!(refused(dir.path()).contains("manifest.json: cannot be read"));
}

#[test]
fn a_manifest_whose_entries_do_not_fit_is_refused() {
    type Edit = fn(&mut Value);
    let cases: [(Edit, &str); 9] = [
        (
            |m| drop(m["replicas"].as_array_mut().unwrap().remove(0)),
            "entries are missing",
        ),
        (
            |m| m["replicas"][1]["replica"] = json!(0),
            "entries are missing or of different",
        ),
        (
            |m| m["replicas"][1]["model"]["seed"] = json!(99),
            "has different models: the seed",
        ),
        (
            |m| m["replicas"][1]["version"] = json!(u64::MAX),
            "has version",
        ),
        (
            |m| drop(m["replicas"][0]["files"].as_array_mut().unwrap().remove(0)),
            "names 0 files",
        ),
        (
            |m| drop(m["replicas"][0]["files"].as_array_mut().unwrap().remove(1)),
            "up to slot 0",
        ),
        (
            |m| m["replicas"][0]["files"][1]["slots"] = json!([0, 7]),
            "up to slot 7 of 0..32768",
        ),
        (
            |m| m["replicas"][0]["files"][1]["name"] = json!("../x"),
            "'../x' outside its folder",
        ),
        (
            |m| m["replicas"][1]["model"]["dense"][0]["shape"] = json!([101]),
            "different models",
        ),
    ];
    let (dir, _) = checkpointed();
    let path = dir.path().join("manifest.json");
    let whole = fs::read(&path).unwrap();
    for (edit, expected) in cases {
        edit_manifest(dir.path(), edit);
        let said = refused(dir.path());
        assert!(
            said.contains(expected) && said.contains("manifest.json"),
            "{said}"
        );
        fs::write(&path, &whole).unwrap();
    }
    edit_manifest(dir.path(), |m| {
        for replica in m["replicas"].as_array_mut().unwrap() {
            replica["model"]["dense"][0]["shape"] = json!([1_u64 << 40]);
        }
    });
    assert!(refused(dir.path()).contains("describes a vector of 1099511627776 floats"));
}

#[test]
fn a_file_that_is_missing_torn_or_changed_is_refused_by_name() {
    for file in ["rows-00", "vectors"] {
        let name = format!("replica-00001-of-00002-{file}.safetensors");
        let (dir, _) = checkpointed();
        let path = dir.path().join(&name);
        let whole = fs::read(&path).unwrap();

        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        let said = refused(dir.path());
        assert!(
            said.contains(&name) && said.contains("it is torn"),
            "{said}"
        );

        let mut changed = whole.clone();
        // The last byte is of a weight or a state: only the checksum can tell.
        *changed.last_mut().unwrap() ^= 1;
        fs::write(&path, &changed).unwrap();
        let said = refused(dir.path());
        assert!(
            said.contains(&name) && said.contains("has checksum"),
            "{said}"
        );

        fs::remove_file(&path).unwrap();
        let said = refused(dir.path());
        assert!(
            said.contains(&name) && said.contains("cannot be opened"),
            "{said}"
        );
    }
}

/// Write `bytes` over a file and bring its manifest entry in line.
fn replace(dir: &Path, replica: usize, file: usize, bytes: &[u8]) {
    let mut name = String::new();
    let path = dir.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let entry = &mut manifest["replicas"][replica]["files"][file];
    name.push_str(entry["name"].as_str().unwrap());
    entry["bytes"] = json!(bytes.len());
    entry["crc32c"] = json!(crc32c::crc32c(bytes));
    fs::write(&path, manifest.to_string()).unwrap();
    fs::write(dir.join(name), bytes).unwrap();
}

#[test]
fn a_file_with_a_good_checksum_and_bad_contents_is_refused() {
    let (dir, _) = checkpointed();
    let path = dir
        .path()
        .join("replica-00000-of-00002-rows-00.safetensors");
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let with = |at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        replace(dir.path(), 0, 1, &changed);
        refused(dir.path())
    };
    // The first key twice.
    assert!(with(header + 8, &whole[header..header + 8]).contains("was read before"));
    let foreign = (0_u64..)
        .find(|&k| edl_store::replica_of(k, 2) == 1)
        .unwrap();
    assert!(with(header, &foreign.to_le_bytes()).contains("keys outside the slots 0..32768"));
    let rows = SafeTensors::deserialize(&whole).unwrap();
    let versions = header + rows.tensor("table.0.keys").unwrap().data().len();
    assert!(with(versions, &4_u64.to_le_bytes()).contains("has a row of version 4"));
    assert!(with(0, &u64::MAX.to_le_bytes()).contains("announces a header of"));
    assert!(with(0, &0_u64.to_le_bytes()).contains("bad safetensors header"));
    assert!(with(8, b"[").contains("bad safetensors header"));
    replace(dir.path(), 0, 1, &whole[..header]);
    assert!(refused(dir.path()).contains("torn or foreign"));
    let vectors = fs::read(
        dir.path()
            .join("replica-00000-of-00002-vectors.safetensors"),
    )
    .unwrap();
    replace(dir.path(), 0, 1, &vectors);
    assert!(refused(dir.path()).contains("lacks tensor 'table.0.keys'"));
    replace(dir.path(), 0, 1, &whole);
    assert!(Store::restore(dir.path(), 0, 1, true).is_ok());
}

#[test]
fn restore_survives_any_change_of_any_byte_of_the_headers() {
    let (dir, _) = checkpointed();
    for (file, name) in ["vectors", "rows-00"].into_iter().enumerate() {
        let path = dir
            .path()
            .join(format!("replica-00000-of-00002-{name}.safetensors"));
        let whole = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        for at in 0..header {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            replace(dir.path(), 0, file, &changed);
            // Notes may change without harm; all else is an error, and nothing panics.
            if let Err(error) = Store::restore(dir.path(), 0, 2, true) {
                assert!(matches!(error, StoreError::Checkpoint { .. }), "{error}");
            }
        }
        replace(dir.path(), 0, file, &whole);
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let replicas = Replicas::declared(1, &adagrad());
    train(&replicas, 1, 1);
    let occupied = dir.path().join("file");
    fs::write(&occupied, "x").unwrap();
    let said = replicas.0[0].checkpoint(&occupied).unwrap_err().to_string();
    assert!(said.contains(occupied.to_str().unwrap()) && said.contains("cannot be written"));

    // A directory in the place of the last file: the files before it must not stay.
    let target = dir.path().join("target");
    let obstacle = target.join("replica-00000-of-00001-rows-00.safetensors");
    fs::create_dir_all(obstacle.join("x")).unwrap();
    let said = replicas.0[0].checkpoint(&target).unwrap_err().to_string();
    assert!(said.contains(target.to_str().unwrap()), "{said}");
    let left: Vec<_> = fs::read_dir(&target)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    assert_eq!(left, [obstacle]);

    // And the store goes on: the snapshot has ended.
    train(&replicas, 2, 2);
    let good = dir.path().join("good");
    replicas.checkpoint(&good);
    assert_equal(&Replicas::restore(&good, 1, true).unwrap(), &replicas);
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    // A limit on the size of files stands for the full disk; a process sets it for itself.
    if let Ok(dir) = std::env::var("EDL_STORE_FULL_DISK") {
        let replicas = Replicas::declared(1, &adagrad());
        train(&replicas, 1, 1);
        let error = replicas.0[0].checkpoint(Path::new(&dir)).unwrap_err();
        assert!(error.to_string().contains(&dir), "{error}");
        assert!(error.to_string().contains("make room"), "{error}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Through pipes: the limit would also hold for a log file that the test writes to.
    let done = std::process::Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "checkpoint::a_full_disk_leaves_nothing_behind",
            "--nocapture",
        ])
        .env("EDL_STORE_FULL_DISK", dir.path())
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn entries_of_different_checkpoints_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let two = Replicas::declared(2, &adagrad());
    let three = Replicas::declared(3, &adagrad());
    let entries = [
        two.0[0].checkpoint(dir.path()).unwrap(),
        three.0[1].checkpoint(dir.path()).unwrap(),
    ];
    write_manifest(dir.path(), &entries);
    assert!(refused(dir.path()).contains("replica 1 of 3 as number 1 of 2"));
}

#[test]
fn part_of_one_replica_restores_that_replica_alone() {
    let (dir, mut replicas) = checkpointed();
    let part = dir.path().join("part");
    let store = replicas.0.remove(1);
    write_part(&part, &store.checkpoint(&part).unwrap());

    let restored = Store::restore(&part, 1, 2, true).unwrap();
    assert_eq!(restored.audit(), store.audit());
    assert_eq!(
        Replicas(vec![restored]).scan(0, 16, 1000),
        Replicas(vec![store]).scan(0, 16, 1000)
    );

    for (replica, count) in [(0, 2), (1, 3), (0, 1)] {
        let Err(error) = Store::restore(&part, replica, count, true) else {
            panic!("replica {replica} of {count} was restored from the part of 1 of 2");
        };
        assert!(error.to_string().contains("replica 1 of 2 has handed over"));
    }
}
