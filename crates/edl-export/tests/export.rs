//! Facts about exports, read back by the Parquet crate.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use edl_export::{ExportError, ExportRequest, export};
use edl_store::{ModelSpec, PullMode, Push, Store, TableGrads, unseen};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, ListAccessor, RowAccessor};

const DIM: usize = 3;

fn store() -> Store {
    let model = r#"{"tables": [{"name": "a/b", "dim": 3, "initializer": {"kind": "constant",
        "params": {"value": 0.0}}, "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 0}"#;
    let store = Store::new(0, 1);
    let model = ModelSpec::from_json(model).unwrap();
    store.declare(model, &[], &[]).unwrap();
    store
}

/// Set each key's row to the key's sign and size, and the size by halves.
fn push(store: &Store, index: u32, keys: &[u64]) {
    let grads: Vec<f32> = keys
        .iter()
        .flat_map(|&key| [1.0, 0.5, 0.25].map(|share| -share * key as f32))
        .collect();
    let push = Push {
        task: 1,
        lease: 1,
        index,
        num_records: 1,
        learning_rate: 1.0,
        pulled_version: 0,
        tables: &[TableGrads {
            table: 0,
            keys,
            grads: &grads,
        }],
        dense: &[],
        state: &[],
    };
    store.apply(&push).unwrap();
}

fn exported(
    store: &Store,
    threshold: Option<f32>,
    since_version: Option<u64>,
) -> BTreeMap<i64, Vec<f32>> {
    let dir = tempfile::tempdir().unwrap();
    let request = ExportRequest {
        directory: dir.path().to_owned(),
        threshold,
        since_version,
        cut: None,
    };
    let written = export(store, &request, &unseen).unwrap();
    let file = &written.tables[0].file;
    assert_eq!(file.path, "a%2Fb/part-00000-of-00001.parquet");
    let path = dir.path().join(&file.path);
    assert_eq!(path.metadata().unwrap().len(), file.bytes);
    let names = path.parent().unwrap().read_dir().unwrap();
    assert_eq!(names.count(), 1, "nothing else is left");
    let rows = read(&path);
    assert_eq!(rows.len() as u64, file.rows);
    rows
}

fn read(path: &Path) -> BTreeMap<i64, Vec<f32>> {
    let reader = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
    let mut rows = BTreeMap::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let list = row.get_list(1).unwrap();
        let weights = (0..list.len()).map(|i| list.get_float(i).unwrap());
        assert_eq!(
            rows.insert(row.get_long(0).unwrap(), weights.collect()),
            None
        );
        assert!(matches!(
            row.get_column_iter().next(),
            Some((_, Field::Long(_)))
        ));
    }
    rows
}

fn row(key: u64) -> (i64, Vec<f32>) {
    let size = key as f32;
    (key.cast_signed(), vec![size, size / 2.0, size / 4.0])
}

#[test]
fn all_rows_are_written_in_any_number_of_groups() {
    let store = store();
    let keys: Vec<u64> = (1..800_001).collect();
    for (index, keys) in keys.chunks(100_000).enumerate() {
        push(&store, index as u32, keys);
    }
    let rows = exported(&store, None, None);
    assert!(keys.len() * DIM > 2 << 20, "more than one group");
    assert_eq!(rows, keys.into_iter().map(row).collect());
}

#[test]
fn small_rows_and_old_rows_are_left_out_if_asked() {
    let store = store();
    push(&store, 0, &[1, 2, 3, u64::MAX]);
    push(&store, 1, &[4, 5]);
    let mut zeros = [0.0; DIM];
    store
        .pull_rows(0, &[77], PullMode::Create, &mut zeros)
        .unwrap();
    let keys = |threshold, since| {
        let rows = exported(&store, threshold, since);
        rows.into_keys().collect::<Vec<_>>()
    };
    assert_eq!(keys(None, None), [-1, 1, 2, 3, 4, 5, 77]);
    assert_eq!(keys(Some(0.0), None), [-1, 1, 2, 3, 4, 5]);
    assert_eq!(keys(Some(2.0), None), [-1, 3, 4, 5]);
    assert_eq!(keys(Some(0.0), Some(1)), [4, 5]);
    assert!(keys(Some(0.0), Some(2)).is_empty());
}

#[test]
fn the_strings_of_keys_are_a_column_of_their_own() {
    let mut model: ModelSpec = (*store().model().unwrap()).clone();
    model.tables[0].keep_names = true;
    let store = Store::new(0, 1);
    store.declare(model, &[], &[]).unwrap();
    push(&store, 0, &[1, 2, 3]);
    store.name_keys(0, &[1, 3], &["one", "größe"]).unwrap();
    store.name_keys(0, &[1], &["uno"]).unwrap();

    let dir = tempfile::tempdir().unwrap();
    let directory = dir.path().to_owned();
    let request = ExportRequest {
        directory,
        threshold: Some(1.5),
        since_version: None,
        cut: None,
    };
    let table = &export(&store, &request, &unseen).unwrap().tables[0];
    assert_eq!((table.has_names, table.name_collisions), (true, 1));
    let file = File::open(dir.path().join(&table.file.path)).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap);
    let names = rows.map(|row| (row.get_long(0).unwrap(), row.get_string(1).cloned().ok()));
    let names: BTreeMap<i64, Option<String>> = names.collect();
    let expected = [(2, None), (3, Some("größe".to_owned()))];
    assert_eq!(names, expected.into_iter().collect());
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |json: &str| ExportRequest::from_json(json).unwrap_err().to_string();
    assert!(refused(r#"{"directory": "x", "threshold": -1}"#).contains("found -1"));
    assert!(refused(r#"{"directory": "x", "treshold": 1}"#).contains("treshold"));
    let dir = tempfile::tempdir().unwrap();
    let blocked = dir.path().join("file");
    File::create(&blocked).unwrap();
    let request = ExportRequest {
        directory: blocked,
        threshold: None,
        since_version: None,
        cut: None,
    };
    let error = export(&store(), &request, &unseen).unwrap_err();
    assert!(matches!(error, ExportError::File { .. }), "{error}");
}
