//! Lines of text as records.

use std::fs;
use std::path::PathBuf;

use edl_recordio::{LineOptions, LineReader, RecordError};
use proptest::prelude::*;
use tempfile::TempDir;

const ALL: usize = usize::MAX;

fn file(text: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.csv");
    fs::write(&path, text).unwrap();
    (folder, path)
}

fn lines(text: &[u8], options: LineOptions) -> Vec<String> {
    let (_folder, path) = file(text);
    let reader = LineReader::open(&path, options).unwrap();
    let batch = reader.read(0, reader.num_records(), ALL).unwrap();
    assert_eq!(batch.len() as u64, reader.num_records());
    batch
        .iter()
        .map(|line| String::from_utf8(line.to_vec()).unwrap())
        .collect()
}

const PLAIN: LineOptions = LineOptions {
    skip_header: false,
    skip_blank: false,
    quoted_newlines: false,
};
const HEADER: LineOptions = LineOptions {
    skip_header: true,
    ..PLAIN
};
const NO_BLANK: LineOptions = LineOptions {
    skip_blank: true,
    ..PLAIN
};
const QUOTED: LineOptions = LineOptions {
    quoted_newlines: true,
    ..PLAIN
};

#[test]
fn a_line_ends_with_lf_crlf_or_the_file() {
    assert_eq!(lines(b"", PLAIN), [""; 0]);
    assert_eq!(lines(b"a", PLAIN), ["a"]);
    assert_eq!(lines(b"a\n", PLAIN), ["a"]);
    assert_eq!(lines(b"a\r\nb\rc\n\nd", PLAIN), ["a", "b\rc", "", "d"]);
}

#[test]
fn blank_lines_are_records_unless_skipped() {
    assert_eq!(
        lines(b"\na\n\r\n\nb\n\n", PLAIN),
        ["", "a", "", "", "b", ""]
    );
    assert_eq!(lines(b"\na\n\r\n\nb\n\n", NO_BLANK), ["a", "b"]);
}

#[test]
fn the_header_is_told_apart() {
    assert_eq!(lines(b"x,y\n1,2\n3,4\n", HEADER), ["1,2", "3,4"]);
    assert_eq!(lines(b"x,y\n", HEADER), [""; 0]);
    assert_eq!(lines(b"", HEADER), [""; 0]);
    let (_folder, path) = file(b"\xef\xbb\xbfx,y\r\n1,2\n");
    let reader = LineReader::open(&path, HEADER).unwrap();
    assert_eq!(reader.header().unwrap(), Some(b"x,y".to_vec()));
    assert_eq!(
        LineReader::open(&path, PLAIN).unwrap().header().unwrap(),
        None
    );
}

#[test]
fn a_newline_in_quotes_belongs_to_the_record_if_asked_for() {
    let text = b"1,\"a\nb\"\n2,\"say \"\"hi\"\"\n!\"\n3,c\n";
    assert_eq!(
        lines(text, QUOTED),
        ["1,\"a\nb\"", "2,\"say \"\"hi\"\"\n!\"", "3,c"]
    );
    assert_eq!(lines(text, PLAIN).len(), 5);
    let (_folder, path) = file(b"1,a\n2,\"b\n3,c\n");
    let error = LineReader::open(&path, QUOTED).unwrap_err();
    assert!(
        matches!(&error, RecordError::Damaged { offset: 4, what, .. } if what.contains("quote")),
        "{error}"
    );
}

#[test]
fn lines_longer_than_what_is_read_at_once_are_whole() {
    let text: String = (0..5)
        .map(|n| format!("{n}{}\n", "z".repeat(n * 700_000)))
        .collect();
    let expected: Vec<&str> = text.lines().collect();
    assert_eq!(lines(text.as_bytes(), PLAIN), expected);
    assert_eq!(lines(text.as_bytes(), QUOTED), expected);
}

#[test]
fn a_file_that_changes_behind_the_reader_is_noticed() {
    let (_folder, path) = file(&b"one\ntwo\n".repeat(200));
    let reader = LineReader::open(&path, PLAIN).unwrap();
    fs::write(&path, b"onetwo\n\n".repeat(200)).unwrap();
    assert!(reader.read(0, 400, ALL).is_ok()); // as many lines in as many bytes
    fs::write(&path, b"one two\n".repeat(200)).unwrap();
    assert!(matches!(
        reader.read(0, 400, ALL),
        Err(RecordError::Damaged { .. })
    ));
    fs::write(&path, b"one\n").unwrap();
    assert!(matches!(
        reader.read(0, 400, ALL),
        Err(RecordError::Io { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_range_equals_the_slice_of_the_lines(
        text in "[ab\"\r\n]{0,600}",
        skip_blank in any::<bool>(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let mut expected: Vec<&str> = text.split_terminator('\n')
            .enumerate()
            .map(|(n, line)| {
                let is_last = text.split_terminator('\n').count() == n + 1;
                if is_last && !text.ends_with('\n') { line } else { line.strip_suffix('\r').unwrap_or(line) }
            })
            .collect();
        if skip_blank {
            expected.retain(|line| !line.is_empty());
        }
        let (_folder, path) = file(text.as_bytes());
        let reader = LineReader::open(&path, LineOptions { skip_blank, ..PLAIN }).unwrap();
        prop_assert_eq!(reader.num_records(), expected.len() as u64);
        let (a, b) = (from.index(expected.len() + 1), to.index(expected.len() + 1));
        let (a, b) = (a.min(b), a.max(b));
        let batch = reader.read(a as u64, b as u64, ALL).unwrap();
        let got: Vec<&str> = batch.iter().map(|line| std::str::from_utf8(line).unwrap()).collect();
        prop_assert_eq!(got, &expected[a..b]);
    }
}
