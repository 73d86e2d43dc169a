//! Rows, vectors and watermarks that move to stores of another number of replicas.

use edl_store::{PullMode, RowsToPut, Store, key_of_string, replica_of};

use crate::common::moving::Move;
use crate::common::{Grads, Replicas, WholePush, model, ramp};

const DENSE: usize = 70;
const STATE: usize = 21;

fn push(replicas: &Replicas, index: u32) {
    let keys: Vec<u64> = (0..400)
        .map(|i| (i * 7 + u64::from(index) * 31) % 900)
        .collect();
    let mut keys = keys;
    keys.sort_unstable();
    keys.dedup();
    let grads = |dim: usize| {
        let of = |i: usize| ((i as u32 * 5 + index * 3) % 17) as f32 - 8.0;
        (0..keys.len() * dim).map(of).collect::<Vec<_>>()
    };
    let push = WholePush {
        task: u64::from(index / 3),
        lease: 2,
        index: index % 3,
        learning_rate: 0.05,
        tables: [(0, 16), (1, 1)]
            .map(|(table, dim)| Grads::of(table, keys.clone(), grads(dim)))
            .into(),
        dense: ramp(DENSE),
        state: vec![0.25; STATE],
    };
    replicas.push(&push).unwrap();
}

/// All of a model: each row's weights and slots are in what the next updates make of it.
fn assert_same(one: &Replicas, other: &Replicas) {
    for (table, dim) in [(0, 16), (1, 1)] {
        assert_eq!(one.scan(table, dim, 100), other.scan(table, dim, 100));
    }
    assert_eq!(one.vectors(), other.vectors());
    assert_eq!(one.0[0].audit(), other.0[0].audit());
    assert_eq!(one.0[0].version(), other.0[0].version());
}

#[test]
fn updates_go_on_after_a_move_as_if_there_had_been_none() {
    for kind in ["adagrad", "sgd", "adam"] {
        let spec = model(kind, DENSE as u64, STATE as u64);
        let unmoved = Replicas::declared(1, &spec);
        let mut now = Replicas::declared(2, &spec);
        let mut index = 0;
        let mut both = |now: &Replicas, count: u32| {
            for _ in 0..count {
                push(&unmoved, index);
                push(now, index);
                index += 1;
            }
        };
        both(&now, 5);
        for count in [3, 1, 4] {
            let mut next = Move::to(count, &now);
            let all = next.copy(&now).unwrap();
            both(&now, 1);
            let changed = next.copy(&now).unwrap();
            assert!(0 < changed && changed < all, "{changed} of {all}");
            let next = next.end(&now);
            assert_same(&now, &next);
            both(&next, 4);
            now = next;
            assert_same(&unmoved, &now);
        }
    }
}

#[test]
fn what_has_changed_is_found_whether_it_is_little_or_much() {
    let spec = model("sgd", 0, 0);
    let now = Replicas::declared(2, &spec);
    let index = std::cell::Cell::new(0);
    let push = |(first, end): (u64, u64)| {
        let push = WholePush {
            task: 0,
            index: index.replace(index.get() + 1),
            tables: vec![Grads::of(
                1,
                (first..end).collect(),
                vec![1.0; (end - first) as usize],
            )],
            ..WholePush::default()
        };
        now.push(&push).unwrap();
    };
    push((0, 300_000));
    let mut next = Move::to(4, &now);
    assert_eq!(next.copy(&now), Some(300_000));
    // More than are noted, some that are there twice, new ones, none, and some again.
    let rounds: [(&[(u64, u64)], usize); 5] = [
        (&[(0, 200_000)], 200_000),
        (&[(0, 100), (50, 200)], 200),
        (&[(299_990, 300_010)], 20),
        (&[], 0),
        (&[(0, 3), (200_000, 200_003)], 6),
    ];
    for (pushes, changed) in rounds {
        pushes.iter().copied().for_each(&push);
        assert_eq!(next.copy(&now), Some(changed));
    }
    now.pull(1, 1, &[900_000], PullMode::Create);
    assert_eq!(next.copy(&now), Some(1));
    assert_eq!(next.end(&now).scan(1, 1, 1_000), now.scan(1, 1, 1_000));
}

#[test]
fn a_row_that_comes_late_does_not_take_the_place_of_a_later_one() {
    let spec = model("sgd", 16, 0);
    let store = Store::to_be_filled(spec, false, 0, 1, &[]).unwrap();
    for (version, value) in [(7, 1.0), (5, 2.0), (7, 3.0)] {
        let given = RowsToPut {
            keys: &[9],
            versions: &[version],
            words: &[],
            rows: &[value],
        };
        store.put_moved(1, &given).unwrap();
    }
    let mut found = [0.0];
    store
        .pull_rows(1, &[9], PullMode::ReadOnly, &mut found)
        .unwrap();
    assert_eq!(found, [3.0]);
}

#[test]
fn rows_of_others_and_rows_that_do_not_fit_are_refused() {
    let spec = model("sgd", 16, 0);
    let store = Store::to_be_filled(spec, false, 0, 2, &[]).unwrap();
    let foreign = (0..).find(|&key| replica_of(key, 2) == 1).unwrap();
    let own = (0..).find(|&key| replica_of(key, 2) == 0).unwrap();
    for (key, row) in [(foreign, &[1.0][..]), (own, &[1.0, 2.0])] {
        let given = RowsToPut {
            keys: &[key],
            versions: &[1],
            words: &[],
            rows: row,
        };
        assert!(store.put_moved(1, &given).is_err());
    }
    assert_eq!(store.scan(1, 0, 10).unwrap().keys, [] as [u64; 0]);
}

#[test]
fn names_move_with_their_rows_and_before_them() {
    let mut spec = model("sgd", 16, 0);
    spec.tables[1].keep_names = true;
    let text = |number: u64| format!("word {number}");
    let key = |number: u64| key_of_string(text(number).as_bytes());
    let name = |replicas: &Replicas, number: u64, text: &str| {
        let replica = replica_of(key(number), replicas.count());
        let store = &replicas.0[replica as usize];
        store.name_keys(1, &[key(number)], &[text]).unwrap();
    };
    let mut now = Replicas::declared(2, &spec);
    let collisions = |replicas: &Replicas| -> u64 {
        let stats = replicas.0.iter().map(Store::stats);
        stats.map(|found| found.tables[1].name_collisions).sum()
    };
    let create = |replicas: &Replicas, numbers: std::ops::Range<u64>| {
        let keys: Vec<u64> = numbers.map(key).collect();
        replicas.pull(1, 1, &keys, PullMode::Create);
    };
    let mut known = 0;
    for count in [3, 1, 2] {
        let mut next = Move::to(count, &now);
        (known..known + 20).for_each(|number| name(&now, number, &text(number)));
        create(&now, known..known + 10);
        next.copy(&now).unwrap();
        // Some get their rows between two copies, some after the move; and one has a name twice.
        create(&now, known + 10..known + 15);
        name(&now, known, &format!("not {}", text(known)));
        name(&now, known + 20, &text(known + 20));
        let after = next.end(&now);
        create(&after, known + 15..known + 21);
        known += 21;
        now = after;
        for number in 0..known {
            let store = &now.0[replica_of(key(number), count) as usize];
            let found = store.names_of(1, &[key(number)]).unwrap();
            assert_eq!(found, [Some(text(number))]);
        }
        assert_eq!(collisions(&now), known / 21);
    }
}

#[test]
fn a_row_that_expires_between_two_copies_is_seen() {
    let mut spec = model("sgd", DENSE as u64, STATE as u64);
    spec.tables[1].expiry = Some(edl_store::ExpirySpec {
        steps: Some(1),
        ..Default::default()
    });
    let now = Replicas::declared(1, &spec);
    (0..4).for_each(|index| push(&now, index));
    let mut next = Move::to(2, &now);
    next.copy(&now).unwrap();
    now.0[0].expire(0).unwrap();
    assert!(next.copy(&now).is_none());
}
