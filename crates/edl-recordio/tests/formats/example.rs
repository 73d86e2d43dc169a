//! `tf.train.Example` messages from columns.

use edl_recordio::{Feature, RecordError, Values, encode_examples};

#[test]
fn the_bytes_are_those_of_the_message() {
    let features = [
        Feature {
            name: "f",
            values: Values::Float(&[1.0, 2.0]),
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
    let float = |value: f32| {
        let mut entry = vec![0x0a, 13, 0x0a, 1, b'f', 0x12, 8, 0x12, 6, 0x0a, 4];
        entry.extend_from_slice(&value.to_le_bytes());
        entry
    };
    let mut first = vec![0x0a, 38];
    first.extend(float(1.0));
    first.extend([
        0x0a, 21, 0x0a, 1, b'i', 0x12, 16, 0x1a, 14, 0x0a, 12, 0xac, 0x02,
    ]);
    first.extend([0xff; 9]);
    first.push(0x01);
    let mut second = vec![0x0a, 31];
    second.extend(float(2.0));
    second.extend([0x0a, 14, 0x0a, 1, b's', 0x12, 9, 0x0a, 7]);
    second.extend([0x0a, 2, b'h', b'i', 0x0a, 1, b'!']);
    assert_eq!(ends, [first.len(), first.len() + second.len()]);
    assert_eq!(bytes, [first, second].concat());
}

#[test]
fn columns_that_do_not_fit_are_refused() {
    let column = |values, row_splits| {
        let feature = Feature {
            name: "c",
            values,
            row_splits,
        };
        encode_examples(&[feature], 2)
    };
    let numbers = Values::Int64(&[1, 2]);
    assert!(column(numbers, &[0, 1, 2]).is_ok());
    for bad in [&[0, 1][..], &[0, 1, 3], &[0, 2, 1], &[-1, 0, 1], &[]] {
        let error = column(numbers, bad).unwrap_err();
        assert!(matches!(error, RecordError::Column { .. }), "{error}");
    }
    let bytes = |offsets| Values::Bytes {
        data: b"abc",
        offsets,
    };
    assert!(column(bytes(&[0, 1, 3]), &[0, 1, 2]).is_ok());
    assert!(column(bytes(&[0, 1, 4]), &[0, 1, 2]).is_err());
    assert!(column(bytes(&[0, 2, 1]), &[0, 1, 2]).is_err());
}
