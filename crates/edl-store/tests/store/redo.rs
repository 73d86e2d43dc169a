//! What a successor has of a store that was killed: its checkpoint, and its redo log after it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::grads_of;
use edl_store::{
    ModelSpec, PullMode, Push, RedoLogState, RoundGradient, RoundMember, Store, StoreError, unseen,
};
use tempfile::TempDir;

const LIMIT: u64 = 1 << 30;

const MODEL: &str = r#"{"seed": 1, "state": [],
    "optimizer": {"kind": "adam", "params": {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": 0.0}},
    "dense": [{"name": "w", "shape": [3], "offset": 0}],
    "tables": [{"name": "t", "dim": 2, "optimizer": {"kind": "adagrad",
        "params": {"initial_accumulator": 0.1, "epsilon": 1e-7}}, "keep_names": true,
        "initializer": {"kind": "uniform", "params": {"low": -0.05, "high": 0.05}}}]}"#;

/// A job's folder with a redo log and a checkpoint.
struct Job(TempDir);

impl Job {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("redo")
    }

    /// A process that begins as the first one of the job did.
    fn begun(&self, limit: u64) -> Store {
        let store = Store::new(0, 1);
        store.redo(&self.log(), limit, &unseen).unwrap();
        store
    }

    fn restored(&self, name: &str) -> Store {
        let store = Store::restore(&self.0.path().join(name), 0, 1, true).unwrap();
        store.redo(&self.log(), LIMIT, &unseen).unwrap();
        store
    }

    /// Write a checkpoint; it is whole once it has a manifest.
    fn checkpoint(&self, store: &Store, name: &str) -> impl FnOnce() + use<> {
        let folder = self.0.path().join(name);
        let entry = store.checkpoint(&folder).unwrap();
        move || {
            let manifest = format!("{{\n \"format\": 1,\n \"replicas\": [{entry}]\n}}");
            let manifest = edl_store::seal(&manifest).unwrap();
            fs::write(folder.join("manifest.json"), manifest).unwrap();
        }
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.log()).unwrap();
        let mut names: Vec<_> = names
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "boot")
            .collect();
        names.sort();
        names
    }
}

fn declare(store: &Store) {
    let model = ModelSpec::from_json(MODEL).unwrap();
    store.declare(model, &[0.5, 0.25, 0.125], &[]).unwrap();
}

fn push(store: &Store, task: u64, lease: u32, index: u32) -> Result<bool, StoreError> {
    let keys = [task, 100 + u64::from(index)];
    let value = task as f32 + 0.1 * index as f32;
    let grads = [value, -value, 1.0, 2.0];
    let push = Push {
        task,
        lease,
        index,
        num_records: 8,
        learning_rate: 0.5 / (1.0 + index as f32),
        pulled_version: 0,
        tables: &[grads_of(0, &keys, &grads)],
        dense: &[value, 0.0, -1.0],
        state: &[],
    };
    Ok(store.apply(&push)?.applied)
}

/// Two tasks, a minibatch that is left out, names, and a round of minibatches of two tasks.
fn train(store: &Store) {
    declare(store);
    store.begin_task(1, 1).unwrap();
    store.begin_task(2, 1).unwrap();
    for index in 0..3 {
        push(store, 1, 1, index).unwrap();
        push(store, 2, 1, index).unwrap();
    }
    store.name_keys(0, &[1, 2], &["one", "two"]).unwrap();
    store.skip(1, 1, 3).unwrap();
    store.begin_task(2, 2).unwrap();
    let members = [(1, 1, 4), (2, 2, 3)].map(|(task, lease, index)| RoundMember {
        task,
        lease,
        index,
        num_minibatches: 1,
        num_records: 8,
        pulled_version: 0,
    });
    let merged = RoundGradient {
        tables: vec![(0, vec![1, 2, 3], vec![0.5; 6])],
        dense: vec![1.0; 3],
        state: vec![],
        weight: 2.0,
    };
    store.apply_round(&members, 0.1, |_| merged).unwrap();
}

/// All that a store holds, bit by bit.
fn held(store: &Store) -> String {
    let rows = store.scan(0, 0, 1000).unwrap();
    let mut order: Vec<_> = (0..rows.keys.len()).collect();
    order.sort_by_key(|&at| rows.keys[at]);
    let rows: Vec<_> = order
        .into_iter()
        .map(|at| (rows.keys[at], rows.rows[2 * at..2 * at + 2].to_vec()))
        .collect();
    let keys: Vec<u64> = rows.iter().map(|(key, _)| *key).collect();
    let mut dense = [0.0; 3];
    let version = store.pull_vectors(&mut dense, &mut []).unwrap();
    let (audit, names) = (store.audit(), store.names_of(0, &keys).unwrap());
    format!("{version} {audit:?} {dense:?} {rows:?} {names:?}")
}

#[test]
fn a_successor_without_a_checkpoint_has_all_that_was_applied() {
    let job = Job::new();
    let store = job.begun(LIMIT);
    train(&store);
    let successor = job.begun(LIMIT);
    assert_eq!(held(&successor), held(&store));
    // Older leases are over, what comes again is known, and the next minibatch is the next.
    assert!(matches!(
        push(&successor, 2, 1, 4),
        Err(StoreError::StaleLease { .. })
    ));
    assert!(!push(&successor, 2, 2, 3).unwrap());
    assert!(push(&successor, 2, 2, 4).unwrap());
    push(&store, 2, 2, 4).unwrap();
    assert_eq!(held(&successor), held(&store));
    // Slots have come back too: the next updates are the same.
    drop(store);
    assert_eq!(held(&job.begun(LIMIT)), held(&successor));
}

#[test]
fn a_successor_makes_what_came_after_its_checkpoint() {
    let job = Job::new();
    let store = job.begun(LIMIT);
    train(&store);
    let end = job.checkpoint(&store, "first");
    push(&store, 1, 1, 5).unwrap();
    end();
    assert_eq!(held(&job.restored("first")), held(&store));
    // One that is never whole ends nothing.
    let _never = job.checkpoint(&store, "second");
    push(&store, 1, 1, 6).unwrap();
    assert_eq!(held(&job.restored("first")), held(&store));
}

#[test]
fn what_lies_before_a_whole_checkpoint_is_removed() {
    let job = Job::new();
    let store = job.begun(LIMIT);
    train(&store);
    let whole = job.checkpoint(&store, "first");
    push(&store, 1, 1, 5).unwrap();
    let before = store.trim_redo_log().unwrap();
    assert_eq!(job.files(), ["00000001.redo", "00000002.redo"]);
    whole();
    let after = store.trim_redo_log().unwrap();
    assert_eq!(job.files(), ["00000002.redo", "spare"]);
    assert!(after.num_bytes < before.num_bytes && after.num_bytes > 0);
    // The next segment overwrites the first one's file, of which a part stays: it does not count.
    job.checkpoint(&store, "second")();
    push(&store, 1, 1, 6).unwrap();
    assert_eq!(job.files(), ["00000002.redo", "00000003.redo"]);
    let sizes = ["00000002.redo", "00000003.redo"].map(|file| {
        let file = job.log().join(file);
        fs::metadata(file).unwrap().len()
    });
    assert!(sizes[1] > sizes[0]);
    assert_eq!(held(&job.restored("second")), held(&store));
}

#[test]
fn a_torn_record_and_all_after_it_are_not_made() {
    let job = Job::new();
    let store = job.begun(LIMIT);
    train(&store);
    drop(store);
    let file = job.log().join("00000001.redo");
    let whole = fs::read(&file).unwrap();
    let successor_of = |bytes: &[u8]| {
        for file in job.files() {
            fs::remove_file(job.log().join(file)).unwrap();
        }
        fs::write(&file, bytes).unwrap();
        job.begun(LIMIT)
    };
    for end in (0..whole.len()).step_by(5) {
        check_prefix(&successor_of(&whole[..end]));
    }
    for bit in (0..8 * whole.len()).step_by(101) {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        check_prefix(&successor_of(&flipped));
    }
    assert!(successor_of(&whole).version() > 0);
}

#[test]
fn a_log_from_before_the_system_was_started_does_not_count() {
    let job = Job::new();
    train(&job.begun(LIMIT));
    fs::write(job.log().join("boot"), "another").unwrap();
    let successor = job.begun(LIMIT);
    assert!(successor.model().is_none());
    train(&successor);
    assert_eq!(held(&job.begun(LIMIT)), held(&successor));
}

/// The tasks of a store are at some earlier moment of `train`, each update once.
fn check_prefix(store: &Store) {
    if store.model().is_none() {
        return;
    }
    let audit = store.audit();
    let applied: u64 = audit.iter().map(|task| task.num_records / 8).sum();
    let rounds = audit.iter().filter(|task| task.num_records == 32).count() as u64;
    assert_eq!(store.version(), applied - rounds / 2);
}

#[test]
fn what_a_process_appends_that_was_given_up_does_not_count() {
    let job = Job::new();
    let given_up = job.begun(LIMIT);
    train(&given_up);
    let expected = held(&given_up);
    let successor = job.begun(LIMIT);
    push(&given_up, 1, 1, 5).unwrap();
    push(&given_up, 1, 1, 6).unwrap();
    assert_eq!(held(&successor), expected);
    assert_eq!(held(&job.begun(LIMIT)), expected);
}

#[test]
fn a_log_at_its_limit_goes_on_with_the_next_checkpoint() {
    let job = Job::new();
    let store = job.begun(2000);
    train(&store);
    let state = store.trim_redo_log().unwrap();
    let problem = state.problem.unwrap();
    assert!(problem.contains("1000 bytes"), "{problem}");
    let end = job.checkpoint(&store, "first");
    push(&store, 1, 1, 5).unwrap();
    end();
    assert!(matches!(
        store.trim_redo_log(),
        Some(RedoLogState { problem: None, .. })
    ));
    assert_eq!(held(&job.restored("first")), held(&store));
}

/// The successor of a process whose log lacks an update of task 1 before one of task 2.
fn after_a_missing_update(job: &Job) -> Store {
    let store = job.begun(2600);
    declare(&store);
    store.begin_task(1, 1).unwrap();
    push(&store, 1, 1, 0).unwrap();
    while store.trim_redo_log().unwrap().problem.is_none() {
        push(&store, 1, 1, store.version() as u32).unwrap();
    }
    let num_noted = store.version() - 1;
    // The checkpoint at which the log goes on is never whole, and another task follows.
    let _never = job.checkpoint(&store, "first");
    store.begin_task(2, 1).unwrap();
    push(&store, 2, 1, 0).unwrap();
    let successor = job.begun(LIMIT);
    assert_eq!(successor.version(), num_noted);
    successor
}

#[test]
fn no_update_is_made_after_a_missing_one_until_a_process_goes_on_without_it() {
    let job = Job::new();
    let successor = after_a_missing_update(&job);
    let index = u32::try_from(successor.version()).unwrap();
    push(&successor, 1, 1, index).unwrap();
    push(&successor, 2, 1, 0).unwrap();
    assert_eq!(held(&job.begun(LIMIT)), held(&successor));
}

#[test]
fn no_update_is_made_after_a_missing_one_by_a_process_that_has_as_many_others() {
    let job = Job::new();
    let successor = after_a_missing_update(&job);
    successor.begin_task(3, 1).unwrap();
    for index in 0..2 {
        push(&successor, 3, 1, index).unwrap();
    }
    job.checkpoint(&successor, "second")();
    assert_eq!(held(&job.restored("second")), held(&successor));
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let store = Store::new(0, 1);
    let refused = store.redo(Path::new("/proc/none"), LIMIT, &unseen);
    let message = refused.unwrap_err().to_string();
    assert!(
        message.contains("/proc/none") && message.contains("redo log"),
        "{message}"
    );
    assert_eq!(store.trim_redo_log(), None);
    let mut out = [0.0; 2];
    declare(&store);
    store
        .pull_rows(0, &[1], PullMode::Create, &mut out)
        .unwrap();
}
