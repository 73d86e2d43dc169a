//! RecordIO files: what is written is read, and what is torn or foreign is told apart.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use edl_recordio::{
    Blocks, Codec, IndexState, RecordError, RecordReader, RecordWriter, WriterOptions, repair,
};
use proptest::prelude::*;
use tempfile::TempDir;

const ALL: usize = usize::MAX;

fn options(codec: Codec, block_bytes: usize) -> WriterOptions {
    WriterOptions { codec, block_bytes }
}

fn small_blocks() -> WriterOptions {
    options(Codec::None, 64)
}

fn record(number: usize) -> Vec<u8> {
    format!("record {number} {}", "x".repeat(number % 7)).into_bytes()
}

fn records(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(record).collect()
}

fn file_of(count: usize, options: WriterOptions) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    write_all(RecordWriter::create(&path, options).unwrap(), 0..count);
    (folder, path)
}

fn write_all(mut writer: RecordWriter, numbers: std::ops::Range<usize>) {
    for number in numbers {
        writer.write(&record(number)).unwrap();
    }
    writer.close().unwrap();
}

fn read(reader: &RecordReader, start: u64, end: u64) -> Vec<Vec<u8>> {
    let batch = reader.read(start, end, ALL).unwrap();
    batch.iter().map(<[u8]>::to_vec).collect()
}

fn read_all(path: &Path) -> Vec<Vec<u8>> {
    let reader = RecordReader::open(path).unwrap();
    read(&reader, 0, reader.num_records())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn every_range_reads_as_the_slice_with_every_codec() {
    for codec in Codec::ALL {
        let (_folder, path) = file_of(40, options(codec, 100));
        let reader = RecordReader::open(&path).unwrap();
        assert!(reader.num_blocks() > 3);
        assert_eq!(reader.index_state(), IndexState::Stored);
        let expected = records(40);
        for start in 0..=40 {
            for end in start..=40 {
                assert_eq!(
                    read(&reader, start as u64, end as u64),
                    expected[start..end],
                    "{} [{start}, {end})",
                    codec.name()
                );
            }
        }
    }
}

#[test]
fn a_file_without_records_is_a_file() {
    let (_folder, path) = file_of(0, WriterOptions::default());
    assert_eq!(RecordReader::open(&path).unwrap().num_records(), 0);
}

#[test]
fn empty_and_large_records_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    let large = vec![7; 3 << 20];
    for codec in Codec::ALL {
        let mut writer = RecordWriter::create(&path, options(codec, 1 << 10)).unwrap();
        for record in [&b""[..], &large, b"", b"x"] {
            writer.write(record).unwrap();
        }
        assert_eq!(writer.close().unwrap(), 4);
        assert_eq!(read_all(&path), [&b""[..], &large, b"", b"x"]);
    }
}

#[test]
fn a_read_stops_after_the_bytes_it_may_have_but_makes_progress() {
    let (_folder, path) = file_of(40, small_blocks());
    let reader = RecordReader::open(&path).unwrap();
    let batch = reader.read(3, 40, 1).unwrap();
    assert!(!batch.is_empty());
    assert!(batch.len() < 37);
    assert_eq!(batch.iter().next().unwrap(), record(3));
}

#[test]
fn a_range_beyond_the_end_is_refused_with_the_count() {
    let (_folder, path) = file_of(4, small_blocks());
    let error = RecordReader::open(&path)
        .unwrap()
        .read(2, 5, ALL)
        .unwrap_err();
    assert!(matches!(
        error,
        RecordError::Range {
            start: 2,
            end: 5,
            num_records: 4,
            ..
        }
    ));
}

#[test]
fn a_block_that_compression_does_not_shrink_is_stored_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    let mut writer = RecordWriter::create(&path, options(Codec::Zstd, 1)).unwrap();
    writer.write(b"q").unwrap();
    writer.write(&[0; 1000]).unwrap();
    writer.close().unwrap();
    let reader = RecordReader::open(&path).unwrap();
    assert_eq!(reader.block(0).unwrap().codec, Codec::None);
    assert_eq!(reader.block(1).unwrap().codec, Codec::Zstd);
}

#[test]
fn a_new_file_appears_only_when_it_is_closed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    let mut writer = RecordWriter::create(&path, small_blocks()).unwrap();
    (0..20).for_each(|number| writer.write(&record(number)).unwrap());
    assert!(!path.exists());
    drop(writer);
    assert_eq!(names_in(folder.path()), Vec::<String>::new());
}

#[test]
fn a_file_that_exists_stays_whole_until_its_successor_is_closed() {
    let (_folder, path) = file_of(5, small_blocks());
    let mut writer = RecordWriter::create(&path, small_blocks()).unwrap();
    (0..20).for_each(|number| writer.write(&record(number)).unwrap());
    assert_eq!(read_all(&path), records(5));
    writer.close().unwrap();
    assert_eq!(read_all(&path), records(20));
}

#[test]
fn appending_continues_the_numbers_and_changes_no_byte_that_was_there() {
    let (_folder, path) = file_of(10, small_blocks());
    let before = fs::read(&path).unwrap();
    let old_reader = RecordReader::open(&path).unwrap();

    for times in 1..4 {
        let writer = RecordWriter::append(&path, options(Codec::Deflate, 64)).unwrap();
        write_all(writer, 10 * times..10 * (times + 1));
    }

    assert!(fs::read(&path).unwrap().starts_with(&before));
    assert_eq!(read_all(&path), records(40));
    assert_eq!(read(&old_reader, 0, 10), records(10));
}

#[test]
fn appending_to_no_file_creates_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    write_all(RecordWriter::append(&path, small_blocks()).unwrap(), 0..10);
    assert_eq!(read_all(&path), records(10));
}

#[test]
fn giving_up_an_append_restores_the_file() {
    let (folder, path) = file_of(10, small_blocks());
    let before = fs::read(&path).unwrap();
    let mut writer = RecordWriter::append(&path, small_blocks()).unwrap();
    (10..50).for_each(|number| writer.write(&record(number)).unwrap());
    assert!(fs::metadata(&path).unwrap().len() > before.len() as u64);
    drop(writer);
    assert_eq!(fs::read(&path).unwrap(), before);

    let new = folder.path().join("new.rio");
    drop(RecordWriter::append(&new, small_blocks()).unwrap());
    assert!(!new.exists());
}

#[test]
fn what_was_flushed_survives_a_writer_that_gives_up() {
    let (_folder, path) = file_of(10, small_blocks());
    let mut writer = RecordWriter::append(&path, small_blocks()).unwrap();
    (10..13).for_each(|number| writer.write(&record(number)).unwrap());
    writer.flush().unwrap();
    (13..30).for_each(|number| writer.write(&record(number)).unwrap());
    drop(writer);
    let reader = RecordReader::open(&path).unwrap();
    assert_eq!(reader.index_state(), IndexState::Rebuilt);
    assert_eq!(read(&reader, 0, reader.num_records()), records(13));
}

#[test]
fn only_one_writer_appends_at_a_time() {
    let (_folder, path) = file_of(3, small_blocks());
    let first = RecordWriter::append(&path, small_blocks()).unwrap();
    let error = RecordWriter::append(&path, small_blocks()).unwrap_err();
    assert!(matches!(error, RecordError::Locked { .. }), "{error}");
    first.close().unwrap();
    RecordWriter::append(&path, small_blocks())
        .unwrap()
        .close()
        .unwrap();
}

/// Cuts a file that was appended to at every length: whatever a crash leaves, the records of all
/// whole blocks are read, the rest is reported with its offset, and repair makes the file whole.
#[test]
fn a_crash_at_any_byte_of_an_append_leaves_every_whole_block() {
    let (folder, path) = file_of(10, small_blocks());
    let first_length = fs::metadata(&path).unwrap().len() as usize;
    let writer = RecordWriter::append(&path, options(Codec::Zstd, 64)).unwrap();
    write_all(writer, 10..30);
    let bytes = fs::read(&path).unwrap();
    let cut_path = folder.path().join("cut.rio");

    for length in first_length..bytes.len() {
        fs::write(&cut_path, &bytes[..length]).unwrap();
        let reader = RecordReader::open_torn(&cut_path).unwrap();
        let whole = reader.num_records();
        assert!(whole >= 10);
        assert_eq!(read(&reader, 0, whole), records(whole as usize));
        match (reader.torn(), RecordReader::open(&cut_path)) {
            (None, Ok(again)) => assert_eq!(again.num_records(), whole),
            (
                Some(torn),
                Err(RecordError::Torn {
                    offset,
                    whole_records,
                    ..
                }),
            ) => {
                assert_eq!(offset, torn.offset);
                assert_eq!(whole_records, whole);
                assert!(RecordWriter::append(&cut_path, small_blocks()).is_err());
            }
            other => panic!("{length}: {other:?}"),
        }

        let planned = repair(&cut_path, true).unwrap();
        assert_eq!(fs::read(&cut_path).unwrap(), &bytes[..length]);
        assert_eq!(repair(&cut_path, false).unwrap(), planned);
        assert_eq!(planned.num_records, whole);
        let repaired = RecordReader::open(&cut_path).unwrap();
        assert_eq!(repaired.index_state(), IndexState::Stored);
        assert_eq!(read(&repaired, 0, whole), records(whole as usize));
        assert!(!repair(&cut_path, false).unwrap().is_needed);
        write_all(
            RecordWriter::append(&cut_path, small_blocks()).unwrap(),
            whole as usize..whole as usize + 5,
        );
        assert_eq!(read_all(&cut_path), records(whole as usize + 5));
    }
}

#[test]
fn garbage_behind_the_last_block_is_a_torn_tail() {
    let (_folder, path) = file_of(10, small_blocks());
    let length = fs::metadata(&path).unwrap().len();
    let mut file = OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(&[0; 500]).unwrap();
    let error = RecordReader::open(&path).unwrap_err();
    let RecordError::Torn {
        offset,
        whole_records,
        ..
    } = &error
    else {
        panic!("{error}")
    };
    assert_eq!((*offset, *whole_records), (length, 10));
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("data repair"));
}

#[test]
fn a_last_block_whose_bytes_never_reached_the_disk_is_a_torn_tail() {
    let (_folder, path) = file_of(10, small_blocks());
    let reader = RecordReader::open(&path).unwrap();
    let last = reader.block(reader.num_blocks() - 1).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let end = (last.offset + 36 + u64::from(last.stored_bytes)) as usize;
    bytes.truncate(end); // no index
    bytes[last.offset as usize + 36..end].fill(0);
    fs::write(&path, &bytes).unwrap();
    let error = RecordReader::open(&path).unwrap_err();
    assert!(
        matches!(error, RecordError::Torn { offset, whole_records, .. }
            if offset == last.offset && whole_records == last.first_record),
        "{error}"
    );
}

#[test]
fn damage_in_the_middle_is_not_taken_for_a_torn_tail() {
    let (_folder, path) = file_of(20, small_blocks());
    let reader = RecordReader::open(&path).unwrap();
    let second = reader.block(1).unwrap();
    let last_lost = second.first_record + u64::from(second.num_records) - 1;
    let lost = format!("records {} to {last_lost} are lost", second.first_record);
    let mut bytes = fs::read(&path).unwrap();

    bytes[second.offset as usize + 40] ^= 1; // in its payload
    fs::write(&path, &bytes).unwrap();
    let reader = RecordReader::open(&path).unwrap();
    assert_eq!(
        read(&reader, 0, second.first_record).len() as u64,
        second.first_record
    );
    let error = reader.read(0, 20, ALL).unwrap_err();
    assert!(
        matches!(error, RecordError::Damaged { offset, .. } if offset == second.offset),
        "{error}"
    );
    assert!(reader.verify().is_err());
    assert!(matches!(
        repair(&path, false),
        Err(RecordError::Damaged { .. })
    ));

    bytes[second.offset as usize + 20] ^= 1; // in its header
    bytes.truncate(bytes.len() - 1); // and no footer
    fs::write(&path, &bytes).unwrap();
    let error = RecordReader::open_torn(&path).unwrap_err();
    assert!(
        matches!(&error, RecordError::Damaged { offset, what, .. }
            if *offset == second.offset && what.contains(&lost)),
        "{error}"
    );
}

#[test]
fn a_damaged_index_is_rebuilt_from_the_blocks() {
    let (_folder, path) = file_of(20, small_blocks());
    let mut bytes = fs::read(&path).unwrap();
    let index_entry = bytes.len() - 16 - 4 - 8;
    bytes[index_entry] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(
        RecordReader::open(&path),
        Err(RecordError::Torn {
            whole_records: 20,
            ..
        })
    ));
    assert_eq!(repair(&path, false).unwrap().num_records, 20);
    assert_eq!(read_all(&path), records(20));
}

#[test]
fn foreign_and_later_files_are_named_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    fs::write(&path, b"PAR1 and so on and on").unwrap();
    let error = RecordReader::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("not a RecordIO file (magic 50 41 52 31"),
        "{error}"
    );
    fs::write(&path, b"").unwrap();
    let error = RecordReader::open(&path).unwrap_err().to_string();
    assert!(
        error.contains("not a RecordIO file (it is empty"),
        "{error}"
    );

    let mut header = edl_recordio::format::file_header();
    header[8] = 9;
    let crc = edl_recordio::crc32c(&header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    fs::write(&path, &header).unwrap();
    let error = RecordReader::open(&path).unwrap_err();
    assert!(
        matches!(error, RecordError::Version { found: 9, .. }),
        "{error}"
    );

    let error = RecordReader::open(folder.path().join("none")).unwrap_err();
    assert!(error.to_string().contains("cannot open"), "{error}");
    assert!(RecordReader::open(folder.path()).is_err());
}

#[test]
fn a_record_above_the_limit_is_refused_and_the_writer_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.rio");
    let mut writer = RecordWriter::create(&path, small_blocks()).unwrap();
    writer.write(b"one").unwrap();
    let limit = edl_recordio::format::MAX_RECORD_BYTES;
    let error = writer.write(&vec![0; limit + 1]).unwrap_err();
    assert!(
        matches!(error, RecordError::TooLarge { record: 1, .. }),
        "{error}"
    );
    writer.write(b"two").unwrap();
    writer.close().unwrap();
    assert_eq!(read_all(&path), [b"one", b"two"]);
}

#[test]
fn many_threads_read_one_reader() {
    let (_folder, path) = file_of(500, options(Codec::Zstd, 128));
    let reader = RecordReader::open(&path).unwrap();
    let expected = records(500);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (reader, expected) = (&reader, &expected);
            scope.spawn(move || {
                for round in 0..50 {
                    let start = (thread * 131 + round * 17) % 480;
                    let got = read(reader, start as u64, start as u64 + 20);
                    assert_eq!(got, expected[start..start + 20]);
                }
            });
        }
    });
}

/// Opens whatever is there and reads all that it says it has: any result but a panic is right.
fn exercise(path: &Path) {
    for opened in [RecordReader::open(path), RecordReader::open_torn(path)] {
        let Ok(reader) = opened else { continue };
        for number in 0..reader.num_blocks() {
            let _ = reader.block(number);
        }
        let _ = reader.verify();
        let end = reader.num_records();
        let _ = reader.read(0, end, 1 << 20);
        let _ = reader.read(end / 2, end, 1 << 20);
    }
    let _ = repair(path, true);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_records_come_back(
        records in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..60),
        codec in prop::sample::select(&Codec::ALL[..]),
        block_bytes in 1usize..2000,
        split in any::<prop::sample::Index>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.rio");
        let split = split.index(records.len() + 1);
        let mut writer = RecordWriter::create(&path, options(codec, block_bytes)).unwrap();
        records[..split].iter().for_each(|record| writer.write(record).unwrap());
        writer.close().unwrap();
        let mut writer = RecordWriter::append(&path, options(codec, block_bytes)).unwrap();
        records[split..].iter().for_each(|record| writer.write(record).unwrap());
        writer.close().unwrap();
        prop_assert_eq!(read_all(&path), records);
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.rio");
        fs::write(&path, &bytes).unwrap();
        exercise(&path);
        let mut behind_header = edl_recordio::format::file_header();
        behind_header.extend_from_slice(&bytes);
        fs::write(&path, &behind_header).unwrap();
        exercise(&path);
    }

    #[test]
    fn mutated_files_never_panic_nor_give_wrong_records(
        codec in prop::sample::select(&Codec::ALL[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        is_cut in any::<bool>(),
    ) {
        let (_folder, path) = file_of(30, options(codec, 100));
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        exercise(&path);
        if let Ok(reader) = RecordReader::open(&path)
            && let Ok(batch) = reader.read(0, reader.num_records(), ALL)
        {
            let got: Vec<Vec<u8>> = batch.iter().map(<[u8]>::to_vec).collect();
            prop_assert_eq!(&got[..], &records(30)[..got.len()]);
        }
    }

    /// Headers whose checksums are right, and that lie: what a hostile writer would make.
    #[test]
    fn lying_headers_are_refused(
        code in 0u8..4,
        first_record in prop::sample::select(vec![0u64, 1, u64::MAX]),
        num_records in prop::sample::select(vec![0u32, 1, 2, 1000, u32::MAX]),
        raw_bytes in prop::sample::select(vec![0u32, 4, 10, 1 << 20, 1 << 28, u32::MAX]),
        stored_bytes in prop::sample::select(vec![0u32, 4, 10, 50, u32::MAX]),
        payload in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let mut bytes = edl_recordio::format::file_header();
        let mut header = b"EBLK".to_vec();
        header.extend_from_slice(&[code, 0, 0, 0]);
        header.extend_from_slice(&first_record.to_le_bytes());
        header.extend_from_slice(&num_records.to_le_bytes());
        header.extend_from_slice(&raw_bytes.to_le_bytes());
        header.extend_from_slice(&stored_bytes.to_le_bytes());
        let stored = payload.len().min(stored_bytes as usize);
        header.extend_from_slice(&edl_recordio::crc32c(&payload[..stored]).to_le_bytes());
        let crc = edl_recordio::crc32c(&header);
        header.extend_from_slice(&crc.to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&payload);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.rio");
        fs::write(&path, &bytes).unwrap();
        exercise(&path);
    }

    #[test]
    fn lying_indexes_are_refused(
        entries in prop::collection::vec((0u64..400, 0u64..40), 0..6),
        num_records in prop::sample::select(vec![0u64, 20, 21, u64::MAX]),
    ) {
        use edl_recordio::format::{BlockEntry, encode_index};
        let (_folder, path) = file_of(20, small_blocks());
        let mut bytes = fs::read(&path).unwrap();
        let blocks: Vec<BlockEntry> = entries
            .iter()
            .map(|&(offset, first_record)| BlockEntry { offset, first_record })
            .collect();
        bytes.extend(encode_index(&blocks, num_records, bytes.len() as u64));
        fs::write(&path, &bytes).unwrap();
        exercise(&path);
    }
}

#[test]
fn blocks_packed_elsewhere_stand_between_records() {
    for codec in Codec::ALL {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.rio");
        let mut writer = RecordWriter::create(&path, options(codec, 64)).unwrap();
        let all = records(100);
        writer.write(&all[0]).unwrap();
        let bytes = all[1..99].concat();
        let mut end = 0;
        let ends: Vec<usize> = all[1..99]
            .iter()
            .map(|record| {
                end += record.len();
                end
            })
            .collect();
        let blocks = Blocks::pack(&bytes, &ends, options(codec, 64)).unwrap();
        assert_eq!(blocks.num_records(), 98);
        writer.write_blocks(&blocks).unwrap();
        writer
            .write_blocks(&Blocks::pack(&[], &[], small_blocks()).unwrap())
            .unwrap();
        writer.write(&all[99]).unwrap();
        assert_eq!(writer.num_records(), 100);
        writer.close().unwrap();
        assert_eq!(read_all(&path), all);
        let reader = RecordReader::open(&path).unwrap();
        reader.verify().unwrap();
        assert!(reader.num_blocks() > 10);
    }
}
