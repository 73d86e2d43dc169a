//! What is counted is what a plain count of the values gives, by any number of threads.

use std::collections::BTreeMap;

use edl_recordio::{
    CountLimits, ExampleCounts, Feature, Kind, NotCounted, Values, encode_examples,
};
use proptest::prelude::*;

const NO_LIMITS: CountLimits = CountLimits {
    distinct: usize::MAX,
    bytes: usize::MAX,
};

/// Lists of values of one column, one a record.
fn splits<T>(rows: &[Vec<T>]) -> Vec<i64> {
    let ends = rows.iter().scan(0, |end, row| {
        *end += row.len() as i64;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn records(whole: &[Vec<i64>], real: &[Vec<f32>], text: &[Vec<Vec<u8>>]) -> Vec<Vec<u8>> {
    let texts: Vec<&Vec<u8>> = text.iter().flatten().collect();
    let offsets = splits(&texts.iter().map(|text| text.to_vec()).collect::<Vec<_>>());
    let features = [
        Feature {
            name: "whole",
            values: Values::Int64(&whole.concat()),
            row_splits: &splits(whole),
        },
        Feature {
            name: "real",
            values: Values::Float(&real.concat()),
            row_splits: &splits(real),
        },
        Feature {
            name: "text",
            values: Values::Bytes {
                data: &text.concat().concat(),
                offsets: &offsets,
            },
            row_splits: &splits(text),
        },
    ];
    let (bytes, ends) = encode_examples(&features, whole.len()).unwrap();
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(&ends)
        .map(|(start, &end)| bytes[start..end].to_vec())
        .collect()
}

fn counted(records: &[Vec<u8>], num_threads: usize) -> ExampleCounts {
    let counts = ExampleCounts::new(NO_LIMITS);
    std::thread::scope(|scope| {
        for part in records.chunks(records.len().div_ceil(num_threads).max(1)) {
            scope.spawn(|| counts.add(part.iter().map(Vec::as_slice)).unwrap());
        }
    });
    counts
}

fn plain_count<T: Ord + Clone>(values: impl Iterator<Item = T>) -> BTreeMap<T, u64> {
    values.fold(BTreeMap::new(), |mut counts, value| {
        *counts.entry(value).or_default() += 1;
        counts
    })
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(0_u8..2, 0..12), // many that begin alike, zero bytes among them
        prop::collection::vec(any::<u8>(), 8..=8),
    ]
}

proptest! {
    #[test]
    fn counts_are_those_of_the_values(
        rows in prop::collection::vec(
            (
                prop::collection::vec(-300_i64..300, 0..3),
                prop::collection::vec(prop_oneof![Just(f32::NAN), Just(-0.0), -2_f32..2.0], 0..2),
                prop::collection::vec(text(), 0..3),
            ),
            1..60,
        ),
        num_threads in 1_usize..4,
        threshold in 0_u64..3,
        limit in 0_usize..20,
    ) {
        let whole: Vec<_> = rows.iter().map(|row| row.0.clone()).collect();
        let real: Vec<_> = rows.iter().map(|row| row.1.clone()).collect();
        let texts: Vec<_> = rows.iter().map(|row| row.2.clone()).collect();
        let counts = counted(&records(&whole, &real, &texts), num_threads);

        let expected = plain_count(whole.iter().flatten().copied());
        let columns = counts.columns();
        let number = |name: &str| columns.iter().position(|column| column.name == name);
        if let Some(column) = number("whole") {
            prop_assert_eq!(columns[column].kind, Kind::Int64);
            prop_assert_eq!(columns[column].is_list, whole.iter().any(|row| row.len() > 1));
            let present = whole.iter().filter(|row| !row.is_empty()).count();
            prop_assert_eq!(columns[column].num_records, present as u64);
            prop_assert_eq!(columns[column].num_distinct, expected.len());
            prop_assert_eq!(counts.whole_numbers(column), expected.into_iter().collect::<Vec<_>>());
        } else {
            prop_assert!(expected.is_empty());
        }

        let mut expected: Vec<(f32, u64)> = Vec::new();
        let mut present: Vec<f32> = real.concat();
        present.retain(|value| !value.is_nan());
        present.sort_by(f32::total_cmp);
        for value in present {
            match expected.last_mut() {
                Some((last, count)) if *last == value => *count += 1, // both zeros too
                _ => expected.push((value, 1)),
            }
        }
        if let Some(column) = number("real") {
            let total = expected.iter().map(|(_, count)| count).sum::<u64>();
            prop_assert_eq!(columns[column].num_values, total);
            prop_assert_eq!(columns[column].num_distinct, expected.len());
            prop_assert_eq!(counts.real_numbers(column), expected);
        }

        let expected = plain_count(texts.iter().flatten().filter(|text| !text.is_empty()).cloned());
        if let Some(column) = number("text") {
            prop_assert_eq!(columns[column].num_values, expected.values().sum::<u64>());
            prop_assert_eq!(columns[column].num_distinct, expected.len());
            let mut vocabulary: Vec<_> = expected
                .into_iter()
                .filter(|(_, count)| *count >= threshold)
                .collect();
            vocabulary.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // stable
            vocabulary.truncate(limit);
            prop_assert_eq!(counts.most_frequent(column, threshold, limit), vocabulary);
        }
    }

    #[test]
    fn bytes_that_are_no_messages_are_refused_or_counted(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        let _ = ExampleCounts::new(NO_LIMITS).add([bytes.as_slice()]);
    }
}

#[test]
fn what_is_cut_off_is_refused() {
    let whole = records(&[vec![1, 300]], &[vec![0.5]], &[vec![b"text".to_vec()]]).remove(0);
    for end in 1..whole.len() {
        let error = ExampleCounts::new(NO_LIMITS).add([&whole[..end]]);
        assert!(
            matches!(error, Err(NotCounted::Undecoded { record: 0, .. })),
            "{end}"
        );
    }
}

#[test]
fn a_feature_of_two_kinds_or_twice_in_a_record_is_refused() {
    let one = |values| {
        let feature = Feature {
            name: "x",
            values,
            row_splits: &[0, 1],
        };
        encode_examples(&[feature], 1).unwrap().0
    };
    let (whole, real) = (one(Values::Int64(&[1])), one(Values::Float(&[0.5])));
    let counts = ExampleCounts::new(NO_LIMITS);
    counts.add([whole.as_slice()]).unwrap();
    assert!(counts.add([real.as_slice()]).is_err());

    let twice = [whole.clone(), whole].concat(); // protobuf joins the two messages
    assert!(
        ExampleCounts::new(NO_LIMITS)
            .add([twice.as_slice()])
            .is_err()
    );
}

#[test]
fn more_different_values_than_the_limits_are_not_counted() {
    let rows: Vec<_> = (0..100).map(|n| vec![n]).collect();
    let none = vec![vec![]; 100];
    let texts: Vec<_> = (0..100).map(|n| vec![vec![n; 40]]).collect();
    let records = records(&rows, &none, &texts);
    for (distinct, bytes, is_counted) in [
        (100, usize::MAX, true),
        (99, usize::MAX, false),
        (100, 100 * (34 + 34 + 40 + 16), true),
        (100, 100 * (34 + 34 + 40 + 16) - 1, false),
    ] {
        let counts = ExampleCounts::new(CountLimits { distinct, bytes });
        let found = counts.add(records.iter().map(Vec::as_slice));
        assert_eq!(found.is_ok(), is_counted, "{distinct} {bytes}");
    }
}
