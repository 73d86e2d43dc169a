//! Rings of threads, each with a listener of its own, against a plain sum.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use edl_ring::{Options, Request, Ring, RingListener, World};

use crate::ranks::{By, TOKEN, options, ranks};

fn request(weight: u64) -> Request {
    Request {
        weight,
        mean: true,
        bfloat16: false,
        timeout: Duration::from_secs(20),
    }
}

/// Some numbers of either sign that differ from rank to rank.
fn gradients(rank: usize, len: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(rank as u64 + 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn weight(rank: usize) -> u64 {
    [64, 7, 0, 32, 1, 100, 5, 64][rank]
}

fn expected_mean(size: usize, len: usize) -> Vec<f64> {
    let total: u64 = (0..size).map(weight).sum();
    let mut mean = vec![0.0; len];
    for rank in 0..size {
        let share = weight(rank) as f64 / total as f64;
        for (mean, gradient) in mean.iter_mut().zip(gradients(rank, len)) {
            *mean += share * f64::from(gradient);
        }
    }
    mean
}

fn check_all(size: usize, by: By, lengths: &[usize]) {
    let results = ranks(size, by, |mut ring| {
        let rank = ring.world().rank as usize;
        let reduce = |&len: &usize| {
            let given = gradients(rank, len);
            let mut out = vec![f32::NAN; len];
            // Two arrays, cut where it hurts.
            let middle = len / 3;
            let (a, b) = given.split_at(middle);
            let (c, d) = out.split_at_mut(middle);
            let total = ring
                .all_reduce(&[a, b], &mut [c, d], &request(weight(rank)))
                .unwrap();
            assert_eq!(total, (0..size).map(weight).sum::<u64>());
            assert_eq!(given, gradients(rank, len));
            out
        };
        let results: Vec<_> = lengths.iter().map(reduce).collect();
        let transport = ring.transport();
        let wanted = match by {
            _ if size == 1 => "nothing",
            By::Tcp => "tcp",
            By::Unix => "unix",
            By::Memory => "shared memory",
        };
        assert_eq!(transport, wanted);
        results
    });
    for (number, &len) in lengths.iter().enumerate() {
        let mean = expected_mean(size, len);
        for (rank, of_rank) in results.iter().enumerate() {
            let found = &of_rank[number];
            let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
            assert!(
                found.iter().zip(&results[0][number]).all(same),
                "ranks 0 and {rank} of {size} differ by {by:?}, {len} numbers"
            );
        }
        for (place, (found, wanted)) in results[0][number].iter().zip(&mean).enumerate() {
            assert!(
                (f64::from(*found) - wanted).abs() < 2e-6,
                "{size} ranks by {by:?}: {found} at {place} of {len}, expected {wanted}"
            );
        }
    }
}

/// Below and above where the ways part, and not divisible by anything.
const LENGTHS: [usize; 9] = [0, 1, 2, 7, 1000, 8192, 8193, 100_003, 700_001];

#[test]
fn one_to_eight_ranks_get_the_weighted_mean_over_tcp() {
    for size in 1..=8 {
        check_all(size, By::Tcp, &LENGTHS);
    }
}

#[test]
fn one_to_eight_ranks_get_the_weighted_mean_over_unix_sockets() {
    for size in 1..=8 {
        check_all(size, By::Unix, &LENGTHS);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn one_to_eight_ranks_get_the_weighted_mean_through_shared_memory() {
    for size in 1..=8 {
        check_all(size, By::Memory, &LENGTHS);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_vector_of_one_block_has_the_same_bits_around_the_ring_and_through_memory() {
    let by = |by| {
        ranks(3, by, |mut ring| {
            let given = gradients(ring.world().rank as usize, 90_000);
            let mut out = vec![0.0; given.len()];
            let request = request(ring.world().rank as u64 + 1);
            ring.all_reduce(&[&given], &mut [&mut out], &request)
                .unwrap();
            out
        })
    };
    assert_eq!(by(By::Tcp), by(By::Memory));
}

#[test]
fn bfloat16_rounds_what_travels_and_is_the_same_on_all_ranks() {
    for size in [2, 3, 5] {
        let results = ranks(size, By::Unix, |mut ring| {
            let given = gradients(ring.world().rank as usize, 50_000);
            let mut out = vec![0.0; given.len()];
            let request = Request {
                bfloat16: true,
                ..request(1)
            };
            ring.all_reduce(&[&given], &mut [&mut out], &request)
                .unwrap();
            out
        });
        for of_rank in &results {
            assert_eq!(of_rank, &results[0]);
        }
        for (place, found) in results[0].iter().enumerate() {
            let sum: f32 = (0..size)
                .map(|rank| gradients(rank, place + 1)[place])
                .sum();
            let mean = sum / size as f32;
            // Each hop rounds a sum of at most `size` to eight bits.
            assert!((found - mean).abs() <= size as f32 / 256.0);
            assert_eq!(found.to_bits() & 0xffff, 0, "it is a bfloat16");
            if place == 200 {
                break;
            }
        }
    }
}

#[test]
fn a_rank_without_samples_gives_nothing_not_even_nan() {
    for (by, len) in [
        (By::Tcp, 10),
        (By::Tcp, 20_000),
        (By::Memory, 10),
        (By::Memory, 20_000),
    ] {
        let results = ranks(2, by, |mut ring| {
            let is_idle = ring.world().rank == 1;
            let given = vec![if is_idle { f32::NAN } else { 3.0 }; len];
            let mut out = vec![0.0; len];
            let request = request(if is_idle { 0 } else { 10 });
            ring.all_reduce(&[&given], &mut [&mut out], &request)
                .unwrap();
            out
        });
        assert_eq!(results, vec![vec![3.0; len]; 2]);
    }
}

#[test]
fn where_nobody_has_samples_the_sum_is_zero() {
    let results = ranks(2, By::Tcp, |mut ring| {
        let mut out = [1.0; 3];
        let total = ring.all_reduce(&[&[5.0; 3]], &mut [&mut out], &request(0));
        (total.unwrap(), out)
    });
    assert_eq!(results, [(0, [0.0; 3]); 2]);
}

#[test]
fn ranks_that_reduce_different_lengths_are_told() {
    for by in [By::Tcp, By::Memory] {
        for lengths in [[10, 11], [20_000, 20_001]] {
            let errors = ranks(2, by, |mut ring| {
                let given = vec![1.0; lengths[ring.world().rank as usize]];
                let mut out = given.clone();
                let reduced = ring.all_reduce(&[&given], &mut [&mut out], &request(1));
                reduced.unwrap_err().to_string()
            });
            let told = errors
                .iter()
                .any(|error| error.contains("do all ranks run the same model"));
            assert!(told, "{errors:?}");
            assert!(
                errors
                    .iter()
                    .all(|error| error.contains("sent what its neighbour"))
            );
        }
    }
}

#[test]
fn a_result_of_another_length_is_refused_and_the_ring_goes_on() {
    ranks(2, By::Tcp, |mut ring| {
        let mut short = [0.0; 2];
        let error = ring.all_reduce(&[&[1.0; 3]], &mut [&mut short], &request(1));
        assert!(error.unwrap_err().to_string().contains("expected [3]"));
        let mut out = [0.0; 3];
        ring.all_reduce(&[&[1.0; 3]], &mut [&mut out], &request(1))
            .unwrap();
        assert_eq!(out, [1.0; 3]);
    });
}

#[test]
fn a_rank_that_leaves_is_missed_by_the_next_reduction_and_not_by_this_one() {
    for by in [By::Tcp, By::Memory] {
        let results = ranks(3, by, |mut ring| {
            let rank = ring.world().rank;
            let mut out = vec![0.0; 200_000];
            let given = vec![1.0; out.len()];
            ring.all_reduce(&[&given], &mut [&mut out], &request(1))
                .unwrap();
            assert_eq!(out, given);
            if rank == 1 {
                return None;
            }
            let error = ring
                .all_reduce(&[&given], &mut [&mut out], &request(1))
                .unwrap_err();
            assert_eq!(given, vec![1.0; given.len()]);
            Some((error.rank(), error.to_string()))
        });
        for result in [&results[0], &results[2]] {
            let (rank, words) = result.as_ref().unwrap();
            assert_eq!(*rank, Some(1), "{words}");
            assert!(words.contains("rank 1 has left the ring"), "{words}");
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_deadline() {
    for by in [By::Tcp, By::Memory] {
        for len in [10, 20_000] {
            // It is alive, and elsewhere, until the others have given it up.
            let given_up = Barrier::new(4);
            let reductions = ranks(4, by, |mut ring| {
                let mut out = vec![0.0; len];
                let given = vec![1.0; out.len()];
                let request = Request {
                    timeout: Duration::from_millis(500),
                    ..request(1)
                };
                let is_late = ring.world().rank == 2;
                let reduced =
                    (!is_late).then(|| ring.all_reduce(&[&given], &mut [&mut out], &request));
                given_up.wait();
                let late = ring.all_reduce(&[&given], &mut [&mut out], &request);
                reduced.unwrap_or(late)
            });
            for (rank, reduced) in reductions.into_iter().enumerate() {
                let error = match reduced {
                    // It came before the news, and found in memory what the others had left there.
                    Ok(4) if rank == 2 => continue,
                    reduced => reduced.unwrap_err(),
                };
                assert_eq!(error.rank(), Some(2), "{error}");
                assert!(
                    error.to_string().contains("did not come to the reduction"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn a_member_that_never_comes_is_named_to_all() {
    let listeners: Vec<_> = (0..4)
        .map(|_| RingListener::start("127.0.0.1", 0, TOKEN, None).unwrap())
        .collect();
    let members: Vec<String> = listeners.iter().map(|l| l.address().to_owned()).collect();
    for absent in 0..4_u32 {
        let errors: Vec<_> = thread::scope(|scope| {
            let forming: Vec<_> = (0..4_u32)
                .filter(|&rank| rank != absent)
                .map(|rank| {
                    let world = World {
                        id: 10 + u64::from(absent),
                        rank,
                        members: members.clone(),
                    };
                    let options = Options {
                        timeout: Duration::from_secs(1),
                        ..options(By::Unix)
                    };
                    let listener = &listeners[rank as usize];
                    scope.spawn(move || Ring::form(listener, world, &options).err().unwrap())
                })
                .collect();
            forming.into_iter().map(|t| t.join().unwrap()).collect()
        });
        for error in errors {
            assert_eq!(error.rank(), Some(absent), "{error}");
        }
    }
}

#[test]
fn one_listener_serves_one_ring_after_the_other() {
    let listeners: Vec<_> = (0..3)
        .map(|_| RingListener::start("127.0.0.1", 0, TOKEN, None).unwrap())
        .collect();
    for id in 1..=5 {
        // The others go on without the last.
        let size = if id % 2 == 0 { 2 } else { 3 };
        let members: Vec<String> = listeners[..size]
            .iter()
            .map(|l| l.address().into())
            .collect();
        thread::scope(|scope| {
            for (rank, listener) in listeners[..size].iter().enumerate() {
                let members = members.clone();
                scope.spawn(move || {
                    let rank = rank as u32;
                    let world = World { id, rank, members };
                    let mut ring = Ring::form(listener, world, &options(By::Memory)).unwrap();
                    let mut out = [0.0];
                    ring.all_reduce(&[&[rank as f32]], &mut [&mut out], &request(1))
                        .unwrap();
                    assert_eq!(out, [(size as f32 - 1.0) / 2.0]);
                });
            }
        });
    }
}
