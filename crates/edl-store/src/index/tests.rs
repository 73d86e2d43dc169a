use super::*;
use crate::route::hash;

const ALL: HashRange = HashRange {
    first: 0,
    width: 1 << 64,
};

#[test]
fn every_key_is_found_at_every_moment_of_growth() {
    let mut index = Index::new(ALL, 0.0);
    for key in 0..3000_u32 {
        assert_eq!(index.find(hash(u64::from(key))), None);
        index.insert(hash(u64::from(key)), key, 7);
        if key < 300 || key % 97 == 0 {
            for k in 0..=key {
                assert_eq!(index.find(hash(u64::from(k))), Some(k));
            }
        }
    }
}

#[test]
fn touching_sets_the_version_and_returns_the_last() {
    let mut index = Index::new(ALL, 0.0);
    index.insert(5, 3, 10);
    let (mut rows, mut versions) = ([0; GROUP], [0; GROUP]);
    let cells = index.cells();
    cells.touch(&[6, 5], &[], MAX_VERSION, &mut rows, &mut versions);
    assert_eq!((rows[0], rows[1], versions[1]), (NO_ROW, 3, 10));
    cells.touch(&[5], &[], 1, &mut rows, &mut versions);
    assert_eq!((rows[0], versions[0]), (3, MAX_VERSION));
}

#[test]
fn groups_are_found_as_single_hashes_are() {
    let mut index = Index::new(ALL, 0.0);
    for key in 0..5000_u32 {
        // Crowded, so that many searches leave their first line.
        index.insert(hash(u64::from(key)) >> 3, key, 0);
        let (mut rows, mut versions) = ([0; GROUP], [0; GROUP]);
        let first = u64::from(key) * 3 / 4;
        let hashes: Vec<u64> = (first..first + GROUP as u64)
            .map(|k| hash(k) >> 3)
            .collect();
        index.view().find(&hashes, &[], &mut rows);
        let alone = |&h: &u64| index.find(h).unwrap_or(NO_ROW);
        assert_eq!(rows.to_vec(), hashes.iter().map(alone).collect::<Vec<_>>());
        let mut touched = [0; GROUP];
        index
            .cells()
            .touch(&hashes, &[], 1, &mut touched, &mut versions);
        assert_eq!(touched, rows);
    }
}

#[test]
fn a_walk_gives_each_entry_once_in_order_even_while_growing() {
    let mut index = Index::new(ALL, 0.0);
    let mut hashes = Vec::new();
    for key in 0..2000_u32 {
        hashes.push(hash(u64::from(key)));
        index.insert(hash(u64::from(key)), key, 0);
        if key % 61 != 0 {
            continue;
        }
        let mut expected = hashes.clone();
        expected.sort_unstable();
        for max in [1, 7, 10_000] {
            let mut seen = Vec::new();
            let mut cursor = Some(0);
            while let Some(from) = cursor {
                let (entries, next) = index.walk(from, max);
                assert!(entries.len() <= max);
                seen.extend(entries.iter().map(|e| e.hash));
                cursor = next;
            }
            assert_eq!(seen, expected);
        }
    }
}

#[test]
fn keys_in_the_order_of_their_hashes_are_taken_in_linear_time() {
    let n = 300_000;
    let mut index = Index::new(ALL, 0.0);
    for i in 0..n {
        index.insert(i * (u64::MAX / n), i as u32, 0);
    }
    assert!((0..n).all(|i| index.find(i * (u64::MAX / n)) == Some(i as u32)));
    assert!(index.bytes() <= n as usize * 16 * 8);
}

#[test]
fn reserved_room_is_kept_and_entries_with_it() {
    let mut index = Index::new(ALL, 0.0);
    for key in 0..1000 {
        index.insert(hash(key), key as u32, 0);
    }
    index.reserve(100_000);
    let bytes = index.bytes();
    for key in 1000..100_000 {
        index.insert(hash(key), key as u32, 0);
    }
    assert!((0..100_000).all(|key| index.find(hash(key)) == Some(key as u32)));
    assert_eq!(index.bytes(), bytes);
}

#[test]
fn a_range_that_is_crowded_at_its_end_wraps_around() {
    let mut index = Index::new(ALL, 0.0);
    for i in 0..1000_u32 {
        index.insert(u64::MAX - u64::from(i), i, 0);
    }
    for i in 0..1000_u32 {
        assert_eq!(index.find(u64::MAX - u64::from(i)), Some(i));
    }
    let (entries, next) = index.walk(0, 2000);
    assert_eq!(entries.len(), 1000);
    assert!(entries.is_sorted_by_key(|e| e.hash));
    assert_eq!(next, None);
}
