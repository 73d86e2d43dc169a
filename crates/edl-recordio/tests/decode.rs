//! Examples that were encoded are decoded to the same numbers, and damaged ones are told.

use edl_recordio::{
    Feature, Fixed, Numbers, RecordError, Values, decode_examples, encode_examples,
};

const IDS: [i64; 6] = [1, -2, i64::MAX, i64::MIN, 0, 300];
const REALS: [f32; 3] = [0.5, -1e30, f32::INFINITY];

fn encoded() -> Vec<Vec<u8>> {
    let pairs = [0, 2, 4, 6];
    let ones = [0, 1, 2, 3];
    let features = [
        Feature {
            name: "ids",
            values: Values::Int64(&IDS),
            row_splits: &pairs,
        },
        Feature {
            name: "x",
            values: Values::Float(&REALS),
            row_splits: &ones,
        },
    ];
    let (bytes, ends) = encode_examples(&features, 3).expect("columns that fit");
    let mut start = 0;
    ends.into_iter()
        .map(|end| bytes[std::mem::replace(&mut start, end)..end].to_vec())
        .collect()
}

fn fixed(name: &str, is_float: bool, width: usize) -> Fixed<'_> {
    Fixed {
        name,
        is_float,
        width,
    }
}

fn decoded(records: &[Vec<u8>], features: &[Fixed<'_>]) -> Result<Vec<Numbers>, RecordError> {
    let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
    decode_examples(&records, features)
}

#[test]
fn what_was_encoded_is_decoded_in_any_order_of_features() {
    let features = [fixed("x", true, 1), fixed("ids", false, 2)];
    let found = decoded(&encoded(), &features).expect("whole records");
    assert_eq!(
        found,
        [Numbers::Float(REALS.to_vec()), Numbers::Int64(IDS.to_vec())]
    );
}

#[test]
fn unpacked_numbers_are_decoded_too() {
    // features { feature { key: "a" value { int64_list { value: 7 value: 300 } } } }
    let list = [0x08, 7, 0x08, 0xac, 0x02];
    let feature = [&[0x1a, 5][..], &list].concat();
    let entry = [&[0x0a, 1, b'a', 0x12, 7][..], &feature].concat();
    let features = [&[0x0a, 12][..], &entry].concat();
    let record = [&[0x0a, 14][..], &features].concat();
    let found = decoded(&[record], &[fixed("a", false, 2)]).expect("a whole record");
    assert_eq!(found, [Numbers::Int64(vec![7, 300])]);
}

#[test]
fn what_a_record_lacks_is_said() {
    for (feature, what) in [
        (fixed("y", false, 1), "it has no feature \"y\""),
        (
            fixed("ids", false, 3),
            "feature \"ids\" has 2 numbers of int64, expected 3",
        ),
        (
            fixed("ids", true, 2),
            "feature \"ids\" has 0 numbers of float32, expected 2",
        ),
    ] {
        let error = decoded(&encoded(), &[feature]).expect_err("nothing of that kind");
        assert!(error.to_string().contains(what), "{error}");
        assert!(error.to_string().contains("record 0 of 3"), "{error}");
    }
}

#[test]
fn no_cut_or_changed_byte_makes_it_panic() {
    let features = [fixed("ids", false, 2), fixed("x", true, 1)];
    let record = &encoded()[1];
    for end in 0..record.len() {
        assert!(decoded(&[record[..end].to_vec()], &features).is_err());
    }
    for place in 0..record.len() {
        for value in 0..=255 {
            let mut changed = record.clone();
            changed[place] = value;
            drop(decoded(&[changed], &features));
        }
    }
}
