//! `tf.train.Example` messages to columns.

use edl_recordio::{
    Decoded, Feature, Kind, Undecoded, Values, Wanted, decode_examples, encode_examples,
};

fn messages() -> Vec<Vec<u8>> {
    let features = [
        Feature {
            name: "f",
            values: Values::Float(&[1.5, -2.0]),
            row_splits: &[0, 1, 2],
        },
        Feature {
            name: "i",
            values: Values::Int64(&[300, -1]),
            row_splits: &[0, 2, 2],
        },
        Feature {
            name: "s",
            values: Values::Bytes {
                data: b"hi!",
                offsets: &[0, 2, 3],
            },
            row_splits: &[0, 0, 2],
        },
    ];
    let (bytes, ends) = encode_examples(&features, 2).unwrap();
    vec![bytes[..ends[0]].to_vec(), bytes[ends[0]..].to_vec()]
}

fn decode(
    records: &[Vec<u8>],
    wanted: Option<&[Wanted]>,
) -> Result<Vec<(String, Decoded, Vec<i64>)>, Undecoded> {
    let columns = decode_examples(records.iter().map(Vec::as_slice), wanted)?;
    Ok(columns
        .into_iter()
        .map(|column| (column.name, column.values, column.row_splits))
        .collect())
}

fn wanted(name: &str, kind: Kind, width: Option<usize>, fill: Option<Decoded>) -> Wanted {
    Wanted {
        name: name.to_owned(),
        kind,
        width,
        fill,
    }
}

#[test]
fn all_features_are_found_with_their_values() {
    let found = decode(&messages(), None).unwrap();
    let strings = Decoded::Bytes {
        data: b"hi!".to_vec(),
        offsets: vec![0, 2, 3],
    };
    let expected = [
        ("f", Decoded::Float(vec![1.5, -2.0]), vec![0, 1, 2]),
        ("i", Decoded::Int64(vec![300, -1]), vec![0, 2, 2]),
        ("s", strings, vec![0, 0, 2]),
    ];
    assert_eq!(
        found,
        expected.map(|(name, values, splits)| (name.to_owned(), values, splits))
    );
}

#[test]
fn what_is_wanted_comes_in_its_order_and_is_filled_in() {
    let fill = Decoded::Int64(vec![7, 8]);
    let asked = [
        wanted("i", Kind::Int64, Some(2), Some(fill)),
        wanted("s", Kind::Bytes, None, None),
        wanted("none", Kind::Float, None, None),
    ];
    let found = decode(&messages(), Some(&asked)).unwrap();
    assert_eq!(found[0].1, Decoded::Int64(vec![300, -1, 7, 8]));
    assert_eq!(found[0].2, [0, 2, 4]);
    assert_eq!(found[1].2, [0, 0, 2]);
    assert_eq!(found[2].1, Decoded::Float(vec![]));
    assert_eq!(found[2].2, [0, 0, 0]);
}

#[test]
fn values_that_are_not_those_wanted_are_refused_with_their_record() {
    for (asked, record, what) in [
        (
            wanted("i", Kind::Int64, Some(2), None),
            1,
            "feature \"i\" is missing",
        ),
        (
            wanted("f", Kind::Float, Some(2), None),
            0,
            "feature \"f\" has 1 values, expected 2",
        ),
        (
            wanted("f", Kind::Int64, Some(1), None),
            0,
            "feature \"f\": expected int64, found float",
        ),
    ] {
        let error = decode(&messages(), Some(&[asked])).unwrap_err();
        assert_eq!((error.record, error.what.as_str()), (record, what));
    }
}

#[test]
fn numbers_need_not_be_packed() {
    let entry = [0x0a, 1, b'i', 0x12, 7, 0x1a, 5, 0x08, 5, 0x08, 0xac, 0x02];
    let features = [&[0x0a, entry.len() as u8][..], &entry].concat();
    let record = [&[0x0a, features.len() as u8][..], &features].concat();
    let found = decode(&[record], None).unwrap();
    assert_eq!(found[0].1, Decoded::Int64(vec![5, 300]));
}

#[test]
fn a_feature_that_is_there_twice_is_refused() {
    let first = &messages()[0];
    let twice = [first.clone(), first.clone()].concat();
    let error = decode(&[twice], None).unwrap_err();
    assert_eq!(error.what, "feature \"f\" is there twice");
}

#[test]
fn an_empty_message_has_no_features() {
    let fill = Decoded::Float(vec![0.5]);
    let asked = [wanted("f", Kind::Float, Some(1), Some(fill))];
    let found = decode(&[vec![], messages()[0].clone()], Some(&asked)).unwrap();
    assert_eq!(found[0].1, Decoded::Float(vec![0.5, 1.5]));
    assert!(decode(&[vec![]], None).unwrap().is_empty());
}

#[test]
fn no_bytes_make_it_panic() {
    let whole = &messages()[0];
    for end in 0..whole.len() {
        assert!(decode(&[whole[..end].to_vec()], None).is_err() || end == 0);
    }
    for place in 0..whole.len() {
        for bit in 0..8 {
            let mut damaged = whole.clone();
            damaged[place] ^= 1 << bit;
            let _ = decode(&[damaged], None);
        }
    }
}
