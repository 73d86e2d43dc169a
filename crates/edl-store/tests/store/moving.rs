//! Rows, vectors and watermarks that move to stores of another number of replicas.

use std::ops::Range;

use edl_store::{MovedMarks, Piece, PullMode, Store, StoreError, dense_range, replica_of, unseen};

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
            .map(|(table, dim)| Grads {
                table,
                keys: keys.clone(),
                grads: grads(dim),
            })
            .into(),
        dense: ramp(DENSE),
        state: vec![0.25; STATE],
    };
    replicas.push(&push).unwrap();
}

/// What two replicas hold of a vector, each counted from its own first element.
fn common(len: usize, from: &Store, to: &Store) -> Option<(Range<usize>, Range<usize>)> {
    let here = dense_range(len, from.replica(), from.num_replicas());
    let there = dense_range(len, to.replica(), to.num_replicas());
    let (first, end) = (here.start.max(there.start), here.end.min(there.end));
    (first < end).then(|| {
        (
            first - here.start..end - here.start,
            first - there.start..end - there.start,
        )
    })
}

fn to_be_filled(from: &Replicas, count: u32) -> Replicas {
    let (spec, is_restored) = from.0[0].model_to_move().unwrap();
    let stores = (0..count).map(|replica| {
        Store::to_be_filled((*spec).clone(), is_restored, replica, count, &[400, 400]).unwrap()
    });
    Replicas(stores.collect())
}

fn copy_rows(from: &Replicas, to: &Replicas, name: &str, since: Option<&str>) -> usize {
    let mut copied = 0;
    for source in &from.0 {
        let cut = source.cut(name, since, &unseen, |piece| {
            let Piece::Rows {
                table,
                keys,
                versions,
                rows,
                width,
            } = piece
            else {
                panic!("no key has gone");
            };
            for (i, (&key, &version)) in keys.iter().zip(versions).enumerate() {
                let target = &to.0[replica_of(key, to.count()) as usize];
                let row = &rows[i * width..(i + 1) * width];
                target.put_moved(table as u32, &[key], &[version], row)?;
                copied += 1;
            }
            Ok::<_, StoreError>(())
        });
        assert_eq!(cut.unwrap().is_whole, since.is_none());
    }
    copied
}

fn copy_vectors(from: &Replicas, to: &Replicas) {
    for source in &from.0 {
        for target in &to.0 {
            let num_slots = source.num_slots().unwrap();
            if let Some((here, there)) = common(DENSE, source, target) {
                let mut values = vec![0.0; here.len() * (1 + num_slots)];
                source.read_part(here, &mut values).unwrap();
                target.write_part(there, &values).unwrap();
            }
            if let Some((here, there)) = common(STATE, source, target) {
                let behind = |store: &Store, part: Range<usize>| {
                    let held = dense_range(DENSE, store.replica(), store.num_replicas()).len();
                    held + part.start..held + part.end
                };
                let mut values = vec![0.0; here.len()];
                source.read_part(behind(source, here), &mut values).unwrap();
                target.write_part(behind(target, there), &values).unwrap();
            }
        }
    }
}

fn take_marks(from: &Replicas, to: &Replicas) {
    let marks: Vec<MovedMarks> = from.0.iter().map(|s| s.marks_to_move().unwrap()).collect();
    assert!(
        marks
            .iter()
            .all(|found| found.watermarks == marks[0].watermarks)
    );
    for target in &to.0 {
        target.take_moved_marks(&marks[0]).unwrap();
    }
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
            let next = to_be_filled(&now, count);
            let all = copy_rows(&now, &next, "first", None);
            both(&now, 1);
            let changed = copy_rows(&now, &next, "second", Some("first"));
            assert!(0 < changed && changed < all, "{changed} of {all}");
            copy_vectors(&now, &next);
            take_marks(&now, &next);
            assert_same(&now, &next);
            both(&next, 4);
            now = next;
            assert_same(&unmoved, &now);
        }
    }
}

#[test]
fn a_row_that_comes_late_does_not_take_the_place_of_a_later_one() {
    let spec = model("sgd", 16, 0);
    let store = Store::to_be_filled(spec, false, 0, 1, &[]).unwrap();
    for (version, value) in [(7, 1.0), (5, 2.0), (7, 3.0)] {
        store.put_moved(1, &[9], &[version], &[value]).unwrap();
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
        assert!(store.put_moved(1, &[key], &[1], row).is_err());
    }
    assert_eq!(store.scan(1, 0, 10).unwrap().keys, [] as [u64; 0]);
}

#[test]
fn a_table_with_a_life_cycle_does_not_move() {
    let mut spec = model("sgd", 16, 0);
    spec.tables[1].keep_names = true;
    let replicas = Replicas::declared(1, &spec);
    let refused = replicas.0[0].check_movable().unwrap_err().to_string();
    assert!(refused.contains("table 'linear' cannot move"), "{refused}");
    assert!(
        Replicas::declared(1, &model("sgd", 16, 0)).0[0]
            .check_movable()
            .is_ok()
    );
}
