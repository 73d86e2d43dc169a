//! Any bytes as serialised `tf.train.Example`s: refused, or arrays whose rows fit together.

#![no_main]

use edl_recordio::{Kind, Wanted, decode_examples};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let records = [bytes, first, second];
    let wanted = [("a", Kind::Int64), ("b", Kind::Float), ("c", Kind::Bytes)];
    let wanted = wanted.map(|(name, kind)| Wanted {
        name: name.to_owned(),
        kind,
        width: None,
        fill: None,
    });
    for wanted in [None, Some(&wanted[..])] {
        let Ok(columns) = decode_examples(records, wanted) else {
            continue;
        };
        for column in columns {
            assert_eq!(column.row_splits.len(), records.len() + 1);
            assert_eq!(column.row_splits[records.len()], column.values.len() as i64);
        }
    }
});
