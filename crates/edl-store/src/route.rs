//! The replicas of keys (by hash slot) and of dense vectors (by range).

use std::ops::Range;

/// Number of hash slots; a replica holds a contiguous range of them.
pub const NUM_HASH_SLOTS: u32 = 65_536;

/// Floats in the unit by which dense vectors are split: one cache line.
const DENSE_UNIT: usize = 16;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hash a key; one to one, so that the hash stands for the key. The finalizer of SplitMix64
/// (Steele, Lea and Flood, 2014; constants of Stafford's variant 13).
#[inline(always)]
pub(crate) fn hash(key: u64) -> u64 {
    let mut h = key.wrapping_add(GOLDEN);
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// Return the key that has this hash.
#[inline(always)]
pub(crate) fn unhash(hash: u64) -> u64 {
    let mut h = hash ^ (hash >> 31) ^ (hash >> 62);
    h = h.wrapping_mul(0x3196_42b2_d24d_8ec3);
    h = h ^ (h >> 27) ^ (h >> 54);
    h = h.wrapping_mul(0x96de_1b17_3f11_9089);
    h = h ^ (h >> 30) ^ (h >> 60);
    h.wrapping_sub(GOLDEN)
}

/// Return the hash of a key, by which it is placed; one to one.
#[inline]
pub fn hash_of_key(key: u64) -> u64 {
    hash(key)
}

/// Return the hash slot of a key: the top 16 bits of its hash.
#[inline]
pub fn hash_slot_of(key: u64) -> u16 {
    (hash(key) >> 48) as u16
}

/// Return the replica that holds a key.
#[inline]
pub fn replica_of(key: u64, num_replicas: u32) -> u32 {
    ((u64::from(hash_slot_of(key)) * u64::from(num_replicas)) >> 16) as u32
}

/// Return the hash slots of a replica.
pub fn hash_slots_of(replica: u32, num_replicas: u32) -> Range<u32> {
    // The slots s with `s * num_replicas / NUM_HASH_SLOTS == replica`, as `replica_of` has it.
    let first = |r: u32| {
        (u64::from(r) * u64::from(NUM_HASH_SLOTS)).div_ceil(u64::from(num_replicas.max(1))) as u32
    };
    first(replica)..first(replica + 1)
}

/// Return the elements of a flat vector of `len` that a replica holds: whole cache lines, and
/// all replicas alike but for one line.
pub fn dense_range(len: usize, replica: u32, num_replicas: u32) -> Range<usize> {
    let units = len.div_ceil(DENSE_UNIT) as u128;
    let first = |r: u32| {
        let unit = units * u128::from(r) / u128::from(num_replicas.max(1));
        (unit as usize).saturating_mul(DENSE_UNIT).min(len)
    };
    first(replica)..first(replica + 1)
}

/// Return the hash of a table's name, from which its rows' initial values are made: its XXH64 with
/// seed 0.
pub fn hash_of_name(name: &[u8]) -> u64 {
    xxhash_rust::xxh64::xxh64(name, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_gives_its_key_back() {
        for key in (0..100_000).chain([u64::MAX, 1 << 63, GOLDEN, GOLDEN.wrapping_neg()]) {
            assert_eq!(unhash(hash(key)), key);
        }
    }

    #[test]
    fn hashes_are_stable() {
        // SplitMix64's published first outputs for seed 0.
        assert_eq!(hash(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(hash(GOLDEN), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(hash_of_name(b""), 0xef46_db37_51d8_e999);
        assert_eq!(hash_of_name(b"abc"), 0x44bc_2cf5_ad77_0999);
    }

    #[test]
    fn slot_ranges_agree_with_replica_of() {
        for num_replicas in [1, 2, 3, 7, 8, 100] {
            for key in 0..20_000 {
                let replica = replica_of(key, num_replicas);
                let slots = hash_slots_of(replica, num_replicas);
                assert!(slots.contains(&u32::from(hash_slot_of(key))));
            }
        }
    }

    #[test]
    fn slot_ranges_cover_all_slots_once() {
        for num_replicas in [1, 2, 3, 7, 65_536] {
            let mut next = 0;
            for replica in 0..num_replicas {
                let slots = hash_slots_of(replica, num_replicas);
                assert_eq!(slots.start, next);
                assert!(!slots.is_empty());
                next = slots.end;
            }
            assert_eq!(next, NUM_HASH_SLOTS);
        }
    }

    #[test]
    fn dense_ranges_cover_the_vector_in_whole_lines() {
        for len in [0, 1, 15, 16, 17, 1000, 4096] {
            for num_replicas in [1, 2, 3, 8] {
                let mut next = 0;
                for replica in 0..num_replicas {
                    let range = dense_range(len, replica, num_replicas);
                    assert_eq!(range.start, next);
                    assert!(range.start.is_multiple_of(16) || range.start == len);
                    next = range.end;
                }
                assert_eq!(next, len);
            }
        }
    }
}
