//! Rows that come and go in one stripe, also while it is read.

use super::*;
use crate::index::HashRange;
use crate::route::hash;
use crate::spec::ModelSpec;

const ALL: HashRange = HashRange {
    first: 0,
    width: 1 << 64,
};

fn spec() -> RowSpec {
    let model = ModelSpec::from_json(
        r#"{"tables": [{"name": "t", "dim": 1, "initializer": {"kind": "constant",
        "params": {"value": 1.0}}, "optimizer": {"kind": "sgd"}}], "dense": [], "state": [],
        "optimizer": {"kind": "sgd"}, "seed": 0}"#,
    );
    RowSpec::parse(&model.unwrap().tables[0], 0).unwrap()
}

fn empty() -> Stripe {
    Stripe::new(ALL, 1, 0.0, Features::default())
}

fn push(stripe: &mut Stripe, keys: std::ops::Range<u64>, version: u64) {
    let hashes: Vec<u64> = keys.map(hash).collect();
    let positions: Vec<u32> = (0..hashes.len() as u32).collect();
    let keys = Keys {
        hashes: &hashes,
        positions: &positions,
    };
    let grads = vec![-1.0; hashes.len()];
    let step = spec().step(1.0, version);
    let pushed = stripe.push(keys, &grads, &spec(), &step, version);
    pushed.unwrap();
}

fn expire_up_to(stripe: &mut Stripe, last: u64) -> u64 {
    let (mut cursor, mut total) = (Some(0), 0);
    while let Some(from) = cursor {
        let gone = stripe.remove_where(from, 2048, last, |row| Ok(row.version() <= last));
        let gone = gone.unwrap();
        (cursor, total) = (gone.next, total + gone.rows);
    }
    total
}

#[test]
fn rows_that_go_make_room_for_new_ones() {
    let mut stripe = empty();
    push(&mut stripe, 0..10_000, 1);
    let bytes = stripe.bytes();
    for version in 2..20 {
        assert_eq!(expire_up_to(&mut stripe, version - 1), 10_000);
        assert_eq!(stripe.len(), 0);
        let first = version * 10_000;
        push(&mut stripe, first..first + 10_000, version);
    }
    assert_eq!(stripe.len(), 10_000);
    // The list of free rows has grown, by four bytes a row and the overhead of a list.
    assert!(stripe.bytes() <= bytes + 8 * 10_000, "{}", stripe.bytes());
}

#[test]
fn a_snapshot_has_the_rows_that_go_while_it_is_read_and_none_that_come() {
    let mut stripe = empty();
    push(&mut stripe, 0..6000, 1);
    push(&mut stripe, 0..3000, 2);
    assert_eq!(stripe.begin_snapshot(2, None), 6000);
    let mut found = Vec::new();
    let mut read = |stripe: &mut Stripe| {
        let mut rows = SavedRows::default();
        let more = stripe.read_snapshot(1000, 1, &mut rows).unwrap();
        let values = rows.versions.iter().zip(&rows.rows);
        let values = values.map(|(&version, &weight)| (version, weight));
        found.extend(rows.keys.iter().copied().zip(values));
        more
    };
    assert!(read(&mut stripe));
    assert_eq!(expire_up_to(&mut stripe, 1), 3000);
    // The same keys again and others: in rows of other numbers, as version 2 or later.
    for key in 2000..4000 {
        stripe.read_or_create(hash(key), &spec(), 2, &mut [0.0]);
    }
    push(&mut stripe, 3500..8000, 3);
    while read(&mut stripe) {}
    found.sort_unstable_by_key(|&(key, _)| key);
    let as_it_was = |key| (key, if key < 3000 { (2, 3.0) } else { (1, 2.0) });
    assert_eq!(found, (0..6000).map(as_it_was).collect::<Vec<_>>());
}
