//! Bytes through rings of threads: what each rank says, and what rank 0 gives.

use std::time::Duration;

use edl_ring::{MAX_GATHER_BYTES, RingError};

use crate::ranks::{By, ranks};

const SOON: Duration = Duration::from_secs(20);

/// Any bytes, also those that are no number as floats.
fn bytes(rank: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 31 + rank * 101) as u8 | 0xc0)
        .collect()
}

#[test]
fn all_ranks_have_the_bytes_of_all() {
    for by in [By::Tcp, By::Unix, By::Memory] {
        for size in [1, 2, 3, 5, 8] {
            let lens = [0, 1, 7, 48, MAX_GATHER_BYTES];
            let found = ranks(size, by, |mut ring| {
                let rank = ring.world().rank as usize;
                lens.map(|len| ring.gather(&bytes(rank, len), SOON).unwrap())
            });
            for found in found {
                for (found, len) in found.into_iter().zip(lens) {
                    let expected: Vec<u8> = (0..size).flat_map(|rank| bytes(rank, len)).collect();
                    assert!(found == expected, "{len} bytes of {size} by {by:?}");
                }
            }
        }
    }
}

#[test]
fn bytes_of_rank_0_come_to_those_who_want_them() {
    for by in [By::Tcp, By::Unix, By::Memory] {
        for size in [1, 2, 3, 5] {
            for len in [0, 1, 262_144, 1_000_001] {
                let given = bytes(0, len);
                let found = ranks(size, by, |mut ring| {
                    let rank = ring.world().rank as usize;
                    let mut out = vec![0; len];
                    match rank {
                        0 => ring.give(&given, SOON).unwrap(),
                        2 => ring.pass_on(len, SOON).unwrap(),
                        _ => ring.take(&mut out, SOON).unwrap(),
                    }
                    // Others after it are not mixed up with it.
                    ring.gather(&[rank as u8], SOON).unwrap();
                    out
                });
                for (rank, found) in found.into_iter().enumerate() {
                    let is_wanted = !matches!(rank, 0 | 2);
                    let expected = if is_wanted {
                        given.clone()
                    } else {
                        vec![0; len]
                    };
                    assert!(
                        found == expected,
                        "{len} bytes at {rank} of {size} by {by:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn ranks_that_differ_in_how_many_bytes_there_are_end_the_ring() {
    let ended = ranks(2, By::Unix, |mut ring| {
        let rank = ring.world().rank as usize;
        let given = match rank {
            0 => ring.give(&[1; 10], SOON),
            _ => ring.take(&mut [0; 11], SOON),
        };
        given.and_then(|()| ring.gather(&[0], SOON).map(drop))
    });
    let is_ended = |found: &Result<(), RingError>| matches!(found, Err(RingError::Ended { .. }));
    assert!(ended.iter().all(is_ended), "{ended:?}");
}

#[test]
fn what_is_too_large_or_not_of_rank_0_is_refused_before_anything_is_sent() {
    ranks(2, By::Memory, |mut ring| {
        let rank = ring.world().rank as usize;
        let too_large = ring.gather(&vec![0; MAX_GATHER_BYTES + 1], SOON);
        assert!(matches!(too_large, Err(RingError::Invalid(_))));
        let not_its = match rank {
            0 => ring.pass_on(1, SOON),
            _ => ring.give(&[1], SOON),
        };
        assert!(matches!(not_its, Err(RingError::Invalid(_))));
        assert_eq!(ring.gather(&[rank as u8], SOON).unwrap(), [0, 1]);
    });
}
