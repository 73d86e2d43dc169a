//! Says which part of a vector goes where at which step. Nothing here knows a socket or a clock.
//!
//! Large vectors go around the ring (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms
//! for clusters of workstations", 2009). A vector is cut into blocks, and a block into one segment
//! for each rank. A segment starts at the rank with its number. Each rank that it comes to adds to
//! it, and after `size - 1` hops it is complete. Then it goes around once more so that all ranks
//! have it. Each rank sends `2 (size - 1) / size` of the vector for any size: no algorithm sends
//! less.
//!
//! Small vectors go by recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of
//! collective communication operations in MPICH", 2005). It takes `log2(size)` steps with the whole
//! vector, and suits vectors for which steps cost more time than bytes.

use std::ops::Range;

/// The cut of a vector into blocks and segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    count: usize,
    block: usize,
    size: usize,
}

impl Cut {
    /// For `count` numbers among `size` ranks, in segments of `segment` numbers at most.
    pub fn new(count: usize, segment: usize, size: usize) -> Self {
        let block = segment.max(1) * size.max(1);
        Self { count, block, size }
    }

    /// How many blocks there are; none of an empty vector.
    pub fn num_blocks(&self) -> usize {
        self.count.div_ceil(self.block)
    }

    /// Returns the range of a block's segment in the vector. The lengths of a block's segments
    /// differ by at most one number, so the segments of a short last block are short, or empty.
    pub fn segment(&self, block: usize, segment: usize) -> Range<usize> {
        let start = (block * self.block).min(self.count);
        let len = (self.count - start).min(self.block);
        let at = |segment: usize| start + len * segment / self.size;
        at(segment)..at(segment + 1)
    }
}

/// The task of a rank with a segment that has come to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Add one's own numbers and send it on.
    Add,
    /// Add one's own numbers: it is complete. Keep it, and send it on.
    Complete,
    /// It is complete: keep it, and send it on.
    Keep,
    /// It is complete, and all others have it: keep it.
    KeepLast,
}

/// A segment that comes to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The index of the segment in its block.
    pub segment: usize,
    /// The task with the segment.
    pub task: Task,
}

/// How many segments of a block come to each rank.
pub fn num_arrivals(size: usize) -> usize {
    2 * (size - 1)
}

/// The segment that comes to `rank` from its left at a step; all come in this order.
///
/// A rank begins by sending the segment of its own number, and sends on what came at `step` as
/// what comes to its right at `step + 1`.
pub fn arrival(rank: usize, size: usize, step: usize) -> Arrival {
    let segment = (rank + 2 * size - 1 - step) % size;
    let task = if step + 2 < size {
        Task::Add
    } else if step + 2 == size {
        Task::Complete
    } else if step + 1 < num_arrivals(size) {
        Task::Keep
    } else {
        Task::KeepLast
    };
    Arrival { segment, task }
}

/// The ranks whose numbers are in a segment when it is complete, in the order of adding.
pub fn order_of_adding(segment: usize, size: usize) -> impl Iterator<Item = usize> {
    (0..size).map(move |hop| (segment + hop) % size)
}

/// One step of recursive doubling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    /// Send one's numbers.
    Give(usize),
    /// Receive numbers and add them.
    Take(usize),
    /// Send one's numbers, receive the other's, and add both.
    Swap(usize),
    /// Send the result.
    Return(usize),
    /// Receive the result.
    Await(usize),
}

impl Exchange {
    /// The other rank.
    pub fn peer(self) -> usize {
        match self {
            Self::Give(peer)
            | Self::Take(peer)
            | Self::Swap(peer)
            | Self::Return(peer)
            | Self::Await(peer) => peer,
        }
    }
}

/// The steps of a rank. The ranks above the largest power of two take part through a lower one.
pub fn doubling(rank: usize, size: usize) -> Vec<Exchange> {
    let Some(log) = size.checked_ilog2() else {
        return Vec::new();
    };
    let whole = 1 << log;
    if rank >= whole {
        let through = rank - whole;
        return vec![Exchange::Give(through), Exchange::Await(through)];
    }
    let outside = (rank + whole < size).then_some(rank + whole);
    let swaps = (0..log).map(|step| Exchange::Swap(rank ^ (1 << step)));
    let before = outside.map(Exchange::Take).into_iter();
    before
        .chain(swaps)
        .chain(outside.map(Exchange::Return))
        .collect()
}

/// The ranks that a rank speaks to in recursive doubling.
pub fn partners(rank: usize, size: usize) -> Vec<usize> {
    let mut peers: Vec<usize> = doubling(rank, size).iter().map(|e| e.peer()).collect();
    peers.sort_unstable();
    peers.dedup();
    peers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of each rank's numbers at each place, as all ranks have them in the end.
    type Counts = Vec<u32>;

    fn own(rank: usize, size: usize) -> Counts {
        (0..size).map(|other| u32::from(other == rank)).collect()
    }

    fn plus(a: &Counts, b: &Counts) -> Counts {
        a.iter().zip(b).map(|(a, b)| a + b).collect()
    }

    /// Moves segments from rank to rank by the schedule alone.
    fn around_the_ring(size: usize) -> Vec<Vec<Option<Counts>>> {
        let mut kept = vec![vec![None; size]; size];
        let mut sent: Vec<(usize, Counts)> = (0..size).map(|r| (r, own(r, size))).collect();
        for step in 0..num_arrivals(size) {
            let came = sent.clone();
            for rank in 0..size {
                let (segment, counts) = &came[(rank + size - 1) % size];
                let Arrival { segment: due, task } = arrival(rank, size, step);
                assert_eq!(*segment, due, "rank {rank} of {size}, step {step}");
                let counts = match task {
                    Task::Add | Task::Complete => plus(counts, &own(rank, size)),
                    Task::Keep | Task::KeepLast => counts.clone(),
                };
                if task != Task::Add {
                    kept[rank][due] = Some(counts.clone());
                }
                assert_eq!(task == Task::KeepLast, step + 1 == num_arrivals(size));
                sent[rank] = (due, counts);
            }
        }
        kept
    }

    #[test]
    fn every_rank_ends_with_the_numbers_of_each_rank_once_in_each_segment() {
        for size in 2..=9 {
            for (rank, kept) in around_the_ring(size).into_iter().enumerate() {
                let all = Some(vec![1; size]);
                assert_eq!(kept, vec![all; size], "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn segments_are_added_to_in_the_order_that_is_said() {
        for size in 2..=8 {
            for segment in 0..size {
                let mut order = vec![segment];
                for hop in 1..size {
                    let rank = (segment + hop) % size;
                    assert_eq!(arrival(rank, size, hop - 1).segment, segment);
                    order.push(rank);
                }
                assert!(order_of_adding(segment, size).eq(order));
            }
        }
    }

    #[test]
    fn blocks_and_segments_cover_a_vector_once_and_in_order() {
        for size in 1..=8 {
            for segment in [1, 2, 7, 64] {
                for count in [0, 1, 2, 3, 7, 8, 63, 64, 65, 1000] {
                    let cut = Cut::new(count, segment, size);
                    let mut at = 0;
                    for block in 0..cut.num_blocks() {
                        for part in 0..size {
                            let range = cut.segment(block, part);
                            assert_eq!(range.start, at);
                            assert!(range.len() <= segment);
                            at = range.end;
                        }
                    }
                    assert_eq!(at, count);
                }
            }
        }
    }

    #[test]
    fn doubling_gives_every_rank_every_vector_once() {
        for size in 1..=17 {
            let steps: Vec<_> = (0..size).map(|rank| doubling(rank, size)).collect();
            let mut counts: Vec<Counts> = (0..size).map(|rank| own(rank, size)).collect();
            let mut at = vec![0; size];
            // A step is done when the other's is the one that belongs to it.
            while let Some((rank, peer)) = (0..size).find_map(|rank| {
                let peer = steps[rank].get(at[rank])?.peer();
                let meets = steps[peer].get(at[peer])?.peer() == rank;
                meets.then_some((rank, peer))
            }) {
                match (steps[rank][at[rank]], steps[peer][at[peer]]) {
                    (Exchange::Swap(_), Exchange::Swap(_)) => {
                        counts[rank] = plus(&counts[rank], &counts[peer]);
                        counts[peer] = counts[rank].clone();
                    }
                    (Exchange::Take(_), Exchange::Give(_)) => {
                        counts[rank] = plus(&counts[rank], &counts[peer]);
                    }
                    (Exchange::Return(_), Exchange::Await(_)) => {
                        counts[peer] = counts[rank].clone();
                    }
                    (Exchange::Give(_), Exchange::Take(_)) => {
                        counts[peer] = plus(&counts[rank], &counts[peer]);
                    }
                    (Exchange::Await(_), Exchange::Return(_)) => {
                        counts[rank] = counts[peer].clone();
                    }
                    steps => panic!("ranks {rank} and {peer} of {size} meet in {steps:?}"),
                }
                at[rank] += 1;
                at[peer] += 1;
            }
            assert!(
                (0..size).all(|rank| at[rank] == steps[rank].len()),
                "{size}"
            );
            assert_eq!(counts, vec![vec![1; size]; size]);
        }
    }

    #[test]
    fn partners_know_each_other() {
        for size in 1..=17 {
            for rank in 0..size {
                let peers = partners(rank, size);
                assert!(
                    peers
                        .iter()
                        .all(|&peer| partners(peer, size).contains(&rank))
                );
                assert!(!peers.contains(&rank));
            }
        }
    }
}
