//! A store whose rows are mostly on disk, beside one that has all in memory.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;

use super::write;
use crate::cold::ColdRoom;
use crate::error::StoreError;
use crate::gradient::TableGrads;
use crate::placement::NUM_STRIPES;
use crate::progress::unseen;
use crate::spec::ModelSpec;
use crate::store::{Piece, Push, Store};
use crate::table::PullMode;

/// Rows of 128 bytes, of 240 with expiry and admission, and of 4, which never go to disk.
const MODEL: &str = r#"{"seed": 1, "state": [], "optimizer": {"kind": "sgd", "params": {}}, "dense": [],
    "tables": [
        {"name": "a", "dim": 16, "optimizer": {"kind": "adagrad", "params": {}},
         "initializer": {"kind": "uniform", "params": {"low": -1.0, "high": 1.0}}},
        {"name": "b", "dim": 20, "optimizer": {"kind": "adam", "params": {}},
         "initializer": {"kind": "uniform", "params": {"low": -1.0, "high": 1.0}},
         "admission": {"kind": "count", "params": {"count": 2}},
         "expiry": {"steps": 12, "min_norm": 1.9, "grace_steps": 3}},
        {"name": "c", "dim": 1, "optimizer": {"kind": "sgd", "params": {}},
         "initializer": {"kind": "constant", "params": {"value": 0.0}}}]}"#;
const DIMS: [usize; 3] = [16, 20, 1];
/// With the index of as many rows as the tests have, room for a few hundred.
const LIMIT: u64 = 250_000;
/// Room for the index of all rows after any calls, with what is noted of them between two cuts.
const LIMIT_OF_ANY_CALLS: u64 = 340_000;

fn model() -> ModelSpec {
    ModelSpec::from_json(MODEL).unwrap()
}

fn room(folder: &Path, memory_limit: u64) -> ColdRoom {
    ColdRoom {
        folder: folder.join("rows"),
        memory_limit,
    }
}

fn on_disk(folder: &Path) -> Store {
    on_disk_beyond(folder, LIMIT)
}

fn on_disk_beyond(folder: &Path, limit: u64) -> Store {
    let store = Store::on_disk(0, 1, &room(folder, limit)).unwrap();
    store.declare(model(), &[], &[]).unwrap();
    store.begin_task(1, 1).unwrap();
    store
}

fn in_memory() -> Store {
    let store = Store::new(0, 1);
    store.declare(model(), &[], &[]).unwrap();
    store.begin_task(1, 1).unwrap();
    store
}

fn pull(store: &Store, table: usize, keys: &[u64], mode: PullMode) -> Result<Vec<u32>, StoreError> {
    let mut out = vec![0.0; keys.len() * DIMS[table]];
    store.pull_rows(table as u32, keys, mode, &mut out)?;
    Ok(out.into_iter().map(f32::to_bits).collect())
}

fn push(store: &Store, index: u32, keys: &[u64]) -> Result<(), StoreError> {
    let grads = DIMS.map(|dim| {
        let grads = 0..keys.len() * dim;
        grads
            .map(|i| (i as f32 + index as f32).sin())
            .collect::<Vec<_>>()
    });
    let tables = (0..3).map(|table| TableGrads {
        table: table as u32,
        keys,
        grads: &grads[table],
    });
    let tables: Vec<_> = tables.collect();
    let push = Push {
        task: 1,
        lease: 1,
        index,
        num_records: 1,
        learning_rate: 0.1,
        pulled_version: 0,
        tables: &tables,
        dense: &[],
        state: &[],
    };
    store.apply(&push).map(|_| ())
}

type Rows = BTreeMap<u64, (u64, Vec<u32>)>;

/// All rows of all tables with their slots and versions, as a cut has them; updates come meanwhile.
fn cut(
    store: &Store,
    name: &str,
    since: Option<&str>,
    meanwhile: &mut dyn FnMut(usize),
) -> (Vec<Rows>, Vec<Vec<u64>>) {
    let (mut all, mut gone) = (vec![Rows::new(); 3], vec![Vec::new(); 3]);
    let mut num_pieces = 0;
    let made = store.cut::<StoreError>(name, since, &unseen, |piece| {
        match piece {
            Piece::Gone { table, keys } => gone[table].extend_from_slice(keys),
            Piece::Rows {
                table,
                keys,
                versions,
                rows,
                width,
                ..
            } => {
                for ((&key, &version), row) in keys.iter().zip(versions).zip(rows.chunks(width)) {
                    let row = row.iter().map(|x| x.to_bits()).collect();
                    let before = all[table].insert(key, (version, row));
                    assert!(before.is_none(), "key {key} came twice");
                }
            }
        }
        meanwhile(num_pieces);
        num_pieces += 1;
        Ok(())
    });
    made.unwrap();
    gone.iter_mut().for_each(|keys| keys.sort_unstable());
    (all, gone)
}

fn scan(store: &Store, since: Option<u64>) -> Vec<BTreeMap<u64, Vec<u32>>> {
    let of_table = |table: usize| {
        let (mut all, mut cursor) = (BTreeMap::new(), Some(0));
        while let Some(from) = cursor {
            let chunk = store.scan_since(table as u32, from, 100, since).unwrap();
            for (&key, row) in chunk.keys.iter().zip(chunk.rows.chunks(DIMS[table])) {
                all.insert(key, row.iter().map(|x| x.to_bits()).collect());
            }
            cursor = chunk.next;
        }
        all
    };
    (0..3).map(of_table).collect()
}

#[derive(Debug, Clone)]
enum Call {
    Pull(usize, Vec<u64>, bool),
    Push(Vec<u64>),
    Expire,
    Scan(bool),
    /// With updates while it is read.
    Cut(bool),
    Restore,
}

fn call() -> impl Strategy<Value = Call> {
    let keys = || {
        (0_u64..1500, 1_u64..500, 1_u64..4)
            .prop_map(|(first, n, by)| (0..n).map(|i| (first + i * by) % 1500).collect::<Vec<_>>())
    };
    prop_oneof![
        6 => keys().prop_map(Call::Push),
        4 => (0_usize..3, keys(), any::<bool>()).prop_map(|(t, k, m)| Call::Pull(t, k, m)),
        1 => Just(Call::Expire),
        1 => any::<bool>().prop_map(Call::Scan),
        2 => any::<bool>().prop_map(Call::Cut),
        1 => Just(Call::Restore),
    ]
}

/// Call both stores; they are to answer the same.
fn check(calls: Vec<Call>) {
    let folder = tempfile::tempdir().unwrap();
    let limit = LIMIT_OF_ANY_CALLS;
    let (mut disk, mut memory) = (on_disk_beyond(folder.path(), limit), in_memory());
    // The other one finds them by a walk.
    disk.note_changes().unwrap();
    let mut index = 0;
    let both_push = |disk: &Store, memory: &Store, index: &mut u32, keys: &[u64]| {
        push(disk, *index, keys).unwrap();
        push(memory, *index, keys).unwrap();
        *index += 1;
    };
    let all: Vec<u64> = (0..1500).collect();
    for _ in 0..2 {
        both_push(&disk, &memory, &mut index, &all); // the second one admits those of "b"
    }
    let stats = disk.stats();
    assert!(stats.tables[0].rows_on_disk > 100, "{stats:?}");
    let mut cuts: Option<String> = None;
    for (number, call) in calls.into_iter().enumerate() {
        match call {
            Call::Pull(table, keys, creates) => {
                let mode = if creates {
                    PullMode::Create
                } else {
                    PullMode::ReadOnly
                };
                let [a, b] = [&disk, &memory].map(|s| pull(s, table, &keys, mode).unwrap());
                assert_eq!(a, b);
            }
            Call::Push(keys) => both_push(&disk, &memory, &mut index, &keys),
            Call::Expire => {
                let [a, b] = [&disk, &memory].map(|s| s.expire(0).unwrap());
                assert_eq!(a, b);
            }
            Call::Scan(whole) => {
                let since = (!whole).then(|| memory.version().saturating_sub(2));
                assert_eq!(scan(&disk, since), scan(&memory, since));
            }
            Call::Cut(whole) => {
                let since = cuts.clone().filter(|_| !whole);
                let name = format!("{number}");
                let expected = cut(&memory, &name, since.as_deref(), &mut |_| {});
                let mut keys = Vec::new();
                let found = cut(&disk, &name, since.as_deref(), &mut |piece| {
                    if piece < 5 {
                        let some: Vec<u64> =
                            (0..300).map(|i| (i * 5 + piece as u64) % 1500).collect();
                        push(&disk, index + piece as u32, &some).unwrap();
                        keys.push(some);
                    }
                });
                for some in keys {
                    push(&memory, index, &some).unwrap();
                    index += 1;
                }
                assert_eq!(found, expected);
                cuts = Some(name);
            }
            Call::Restore => {
                let dirs = ["d", "m"].map(|s| folder.path().join(format!("{s}-{number}")));
                write(&disk, &dirs[0]);
                write(&memory, &dirs[1]);
                // Each from what the other has written.
                let room = room(folder.path(), limit);
                disk = Store::restore_showing(&dirs[1], 0, 1, true, Some(&room), &unseen).unwrap();
                memory = Store::restore(&dirs[0], 0, 1, true).unwrap();
                cuts = None;
            }
        }
        // Passes of expiry note what went, and make no room for it.
        let used = disk.budget.used();
        assert!(used <= limit + 20_000, "{used} bytes are taken");
    }
    assert_eq!(scan(&disk, None), scan(&memory, None));
    assert_eq!(
        cut(&disk, "end", None, &mut |_| {}),
        cut(&memory, "end", None, &mut |_| {})
    );
    assert_eq!(disk.stats().tables[2].rows_on_disk, 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_has_the_bits_of_a_store_in_memory(
        calls in prop::collection::vec(call(), 1..30),
    ) {
        check(calls);
    }
}

/// A store with rows on disk in all stripes of table "a", whose file is replaced.
fn with_file(folder: &Path, file: &dyn Fn() -> File) -> Store {
    let store = on_disk(folder);
    push(&store, 0, &(0..1500).collect::<Vec<_>>()).unwrap();
    let model = store.model.get().unwrap();
    for stripe in 0..NUM_STRIPES {
        model.tables[0].replace_file(stripe, file());
    }
    store
}

#[test]
fn a_disk_that_takes_no_more_refuses_training_and_a_checkpoint_has_all_rows() {
    let folder = tempfile::tempdir().unwrap();
    let full = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    let store = on_disk(folder.path());
    let model = store.model.get().unwrap();
    for stripe in 0..NUM_STRIPES {
        model.tables[0].replace_file(stripe, full());
        model.tables[1].replace_file(stripe, full());
    }
    let keys: Vec<u64> = (0..1500).collect();
    push(&store, 0, &keys).unwrap(); // all in memory, since none could go
    let refused = push(&store, 1, &keys).unwrap_err();
    assert!(matches!(refused, StoreError::DiskFull { .. }), "{refused}");
    let words = refused.to_string();
    assert!(
        words.contains("--ps_disk") && words.contains("No space left"),
        "{words}"
    );
    let dir = folder.path().join("checkpoint");
    write(&store, &dir);
    let restored = Store::restore(&dir, 0, 1, true).unwrap();
    let other = in_memory();
    push(&other, 0, &keys).unwrap();
    assert_eq!(scan(&restored, None), scan(&other, None));
}

#[test]
fn rows_that_cannot_be_read_again_are_told_and_nothing_is_answered_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let empty = || tempfile::tempfile().unwrap();
    let store = with_file(folder.path(), &empty);
    assert!(store.lost_rows().is_none());
    let keys: Vec<u64> = (0..1500).collect();
    let lost = push(&store, 1, &keys).unwrap_err();
    assert!(matches!(lost, StoreError::DiskLost { .. }), "{lost}");
    let refusals = [
        pull(&store, 0, &[1], PullMode::ReadOnly).unwrap_err(),
        store.checkpoint(&folder.path().join("none")).unwrap_err(),
        store.lost_rows().unwrap(),
    ];
    for refusal in refusals {
        assert_eq!(refusal.to_string(), lost.to_string());
    }
}

#[test]
fn a_bit_that_is_another_one_on_disk_is_not_trained_on() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path());
    let keys: Vec<u64> = (0..1500).collect();
    push(&store, 0, &keys).unwrap();
    let model = store.model.get().unwrap();
    let file = model.tables[0].file(0);
    let mut byte = [0];
    // In the middle of the first record: its weights.
    file.read_exact_at(&mut byte, 60).unwrap();
    file.write_all_at(&[byte[0] ^ 4], 60).unwrap();
    let lost = pull(&store, 0, &keys, PullMode::ReadOnly).unwrap_err();
    let words = lost.to_string();
    assert!(words.contains("its checksum is another one"), "{words}");
}

#[test]
fn rows_that_are_read_and_not_changed_are_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path());
    let keys: Vec<u64> = (0..1500).collect();
    push(&store, 0, &keys).unwrap();
    for _ in 0..8 {
        pull(&store, 0, &keys, PullMode::Create).unwrap();
    }
    let table = &store.stats().tables[0];
    // Each once, when it went for the first time.
    assert!(table.disk_writes <= 1500, "{table:?}");
    assert!(table.disk_reads > 1000, "{table:?}");
}

#[test]
fn a_checkpoint_reads_each_row_once_and_brings_none_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path());
    push(&store, 0, &(0..1500).collect::<Vec<_>>()).unwrap();
    let before = store.stats();
    write(&store, &folder.path().join("checkpoint"));
    let after = store.stats();
    let (before, after) = (&before.tables[0], &after.tables[0]);
    assert_eq!(after.disk_reads - before.disk_reads, before.rows_on_disk);
    assert_eq!(after.rows_on_disk, before.rows_on_disk);
}

#[test]
fn a_file_is_at_most_twice_what_is_in_it_however_often_rows_change() {
    let folder = tempfile::tempdir().unwrap();
    let store = on_disk(folder.path());
    for index in 0..60 {
        let first = u64::from(index) * 97 % 1500;
        push(
            &store,
            index,
            &(first..first + 700).map(|k| k % 1500).collect::<Vec<_>>(),
        )
        .unwrap();
    }
    let table = &store.stats().tables[0];
    assert!(table.disk_writes > 10_000, "{table:?}");
    let record_bytes = 32 * 4 + 24;
    // A few parts of each stripe are not counted.
    let spare = 16 * 6 * 1024;
    assert!(
        table.disk_bytes <= 2 * 1500 * record_bytes + spare,
        "{table:?}"
    );
}
