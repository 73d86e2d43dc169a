//! TFRecord files and the index beside them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use edl_recordio::side_index::{IndexOrigin, index_path};
use edl_recordio::{RecordError, TfRecordReader, TfRecordWriter, repair_tfrecord};
use proptest::prelude::*;
use tempfile::TempDir;

const ALL: usize = usize::MAX;

fn record(number: usize) -> Vec<u8> {
    format!("record {number} {}", "y".repeat(number % 11)).into_bytes()
}

fn file_of(count: usize) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.tfrecord");
    write(&path, count);
    (folder, path)
}

fn write(path: &Path, count: usize) {
    let mut writer = TfRecordWriter::create(path).unwrap();
    (0..count).for_each(|number| writer.write(&record(number)).unwrap());
    assert_eq!(writer.close().unwrap(), count as u64);
}

fn read(reader: &TfRecordReader, start: u64, end: u64) -> Vec<Vec<u8>> {
    let batch = reader.read(start, end, ALL).unwrap();
    batch.iter().map(<[u8]>::to_vec).collect()
}

#[test]
fn the_bytes_are_those_of_tensorflow() {
    // tf.io.TFRecordWriter of TensorFlow 2.21 wrote b"abc" and b"" so.
    let expected: &[u8] = &[
        0x03, 0, 0, 0, 0, 0, 0, 0, 0xb0, 0x99, 0x49, 0x0e, b'a', b'b', b'c', 0x6e, 0x57, 0xf1,
        0x21, 0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2,
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.tfrecord");
    let mut writer = TfRecordWriter::create(&path).unwrap();
    writer.write(b"abc").unwrap();
    writer.write(b"").unwrap();
    writer.close().unwrap();
    assert_eq!(fs::read(&path).unwrap(), expected);
}

#[test]
fn any_range_reads_as_the_slice() {
    let (_folder, path) = file_of(200);
    let reader = TfRecordReader::open(&path).unwrap();
    assert_eq!(reader.num_records(), 200);
    let expected: Vec<Vec<u8>> = (0..200).map(record).collect();
    for start in (0..=200).step_by(9) {
        for end in start..=200 {
            assert_eq!(
                read(&reader, start as u64, end as u64),
                expected[start..end]
            );
        }
    }
    assert!(matches!(
        reader.read(0, 201, ALL),
        Err(RecordError::Range {
            num_records: 200,
            ..
        })
    ));
}

#[test]
fn the_index_is_written_once_and_used_until_the_file_changes() {
    let (_folder, path) = file_of(200);
    let origin = |path: &Path| TfRecordReader::open(path).unwrap().index_origin();
    assert_eq!(origin(&path), IndexOrigin::Written);
    assert_eq!(origin(&path), IndexOrigin::Loaded);

    write(&path, 150);
    let reader = TfRecordReader::open(&path).unwrap();
    assert_eq!(reader.index_origin(), IndexOrigin::Written);
    assert_eq!(reader.num_records(), 150);

    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(60))
        .unwrap();
    assert_eq!(origin(&path), IndexOrigin::Written);
    assert_eq!(origin(&path), IndexOrigin::Loaded);
}

#[test]
fn a_damaged_index_is_made_anew() {
    let (_folder, path) = file_of(200);
    TfRecordReader::open(&path).unwrap();
    let index = index_path(&path);
    let good = fs::read(&index).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        fs::write(&index, &bytes).unwrap();
        let reader = TfRecordReader::open(&path).unwrap();
        assert_ne!(reader.index_origin(), IndexOrigin::Loaded);
        assert_eq!(reader.num_records(), 200);
    }
}

#[test]
fn a_file_of_that_name_which_is_not_ours_is_left_alone() {
    let (_folder, path) = file_of(20);
    fs::write(index_path(&path), "0 35\n35 36\n").unwrap();
    let reader = TfRecordReader::open(&path).unwrap();
    assert_eq!(reader.index_origin(), IndexOrigin::InMemory);
    assert_eq!(fs::read(index_path(&path)).unwrap(), b"0 35\n35 36\n");
}

#[test]
fn every_cut_is_reported_with_its_offset_and_the_whole_records() {
    let (_folder, path) = file_of(5);
    let bytes = fs::read(&path).unwrap();
    let mut ends = vec![0];
    for number in 0..5 {
        ends.push(ends[number] + 16 + record(number).len());
    }
    for length in 1..bytes.len() {
        fs::write(&path, &bytes[..length]).unwrap();
        let whole = ends.iter().rposition(|&end| end <= length).unwrap();
        match TfRecordReader::open(&path) {
            Ok(reader) => {
                assert_eq!(ends[whole], length);
                assert_eq!(reader.num_records(), whole as u64);
            }
            Err(RecordError::Torn {
                offset,
                whole_records,
                ..
            }) => {
                assert_eq!((offset, whole_records), (ends[whole] as u64, whole as u64));
                let planned = repair_tfrecord(&path, true).unwrap();
                assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
                assert_eq!(repair_tfrecord(&path, false).unwrap(), planned);
                let reader = TfRecordReader::open(&path).unwrap();
                assert_eq!(reader.num_records(), whole as u64);
            }
            Err(RecordError::Foreign { .. }) => assert!(length < 12),
            Err(other) => panic!("{length}: {other}"),
        }
    }
}

#[test]
fn damage_is_reported_with_record_and_offset() {
    let (_folder, path) = file_of(5);
    let mut bytes = fs::read(&path).unwrap();
    let third: usize = (0..2).map(|number| 16 + record(number).len()).sum();
    bytes[third + 14] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let reader = TfRecordReader::open(&path).unwrap();
    let error = reader.read(0, 5, ALL).unwrap_err();
    assert!(
        matches!(&error, RecordError::Damaged { offset, what, .. }
            if *offset == third as u64 && what.contains("record 2")),
        "{error}"
    );
    assert_eq!(read(&reader, 3, 5).len(), 2);

    bytes[third] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let error = TfRecordReader::open(&path).unwrap_err();
    assert!(
        matches!(&error, RecordError::Damaged { offset, .. } if *offset == third as u64),
        "{error}"
    );
}

#[test]
fn foreign_files_are_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.tfrecord");
    fs::write(&path, b"a,b,c\n1,2,3\n4,5,6\n").unwrap();
    let error = TfRecordReader::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("not a TFRecord file (magic 61 2c"),
        "{error}"
    );
    fs::write(&path, b"\x1f\x8b\x08 and more of gzip").unwrap();
    let error = TfRecordReader::open(&path).unwrap_err().to_string();
    assert!(error.contains("gzip"), "{error}");
}

#[test]
fn large_and_empty_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.tfrecord");
    write(&path, 0);
    assert_eq!(TfRecordReader::open(&path).unwrap().num_records(), 0);
    let large: Vec<Vec<u8>> = (0..130).map(|n: usize| vec![n as u8; n * 500]).collect();
    let mut writer = TfRecordWriter::create(&path).unwrap();
    large.iter().for_each(|r| writer.write(r).unwrap());
    writer.close().unwrap();
    let reader = TfRecordReader::open(&path).unwrap();
    assert_eq!(read(&reader, 0, 130), large);
    let some = reader.read(1, 130, 1 << 20).unwrap();
    assert!(some.len() < 129 && !some.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_files_and_indexes_never_panic_nor_give_wrong_records(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        index_changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let (_folder, path) = file_of(150);
        TfRecordReader::open(&path).unwrap();
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let mutate = |path: &Path, changes: &[(prop::sample::Index, u8)], from: usize| {
            let mut bytes = fs::read(path).unwrap();
            for (at, value) in changes {
                let at = from + at.index(bytes.len() - from);
                bytes[at] = *value;
            }
            bytes
        };
        fs::write(&path, mutate(&path, &changes, 0)).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_modified(modified).unwrap();
        // An index that lies, under a right checksum and stamp.
        let mut index = mutate(&index_path(&path), &index_changes, 32);
        let end = index.len() - 4;
        let crc = edl_recordio::crc32c(&index[..end]);
        index[end..].copy_from_slice(&crc.to_le_bytes());
        fs::write(index_path(&path), &index).unwrap();

        if let Ok(reader) = TfRecordReader::open(&path) {
            let end = reader.num_records().min(1000);
            if let Ok(batch) = reader.read(0, end, ALL)
                && index_changes.is_empty()
            {
                let got: Vec<Vec<u8>> = batch.iter().map(<[u8]>::to_vec).collect();
                let expected: Vec<Vec<u8>> = (0..150).map(record).collect();
                prop_assert_eq!(&got[..], &expected[..got.len()]);
            }
        }
    }
}
