//! The key of a string: FarmHash's `Fingerprint64`, which TensorFlow has as an operation.
//!
//! From Geoff Pike's FarmHash (2014), `farmhashna::Hash64`. It is frozen: the same on every
//! machine and in every version. A test in `tests/numerics` holds it against TensorFlow's.

const K0: u64 = 0xc3a5_c85c_97cb_3127;
const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// Bytes that the loop over long strings takes at a time.
const BLOCK: usize = 64;

/// Return the key of a string id: its `Fingerprint64` modulo 2^63 - 1, as
/// `tf.strings.to_hash_bucket_fast(id, 2**63 - 1)` gives it.
///
/// Below 2^63, so that it is no negative number to those who know only signed ones.
pub fn key_of_string(id: &[u8]) -> u64 {
    fingerprint(id) % (i64::MAX as u64)
}

fn fingerprint(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => up_to_16(s),
        17..=32 => up_to_32(s),
        33..=64 => up_to_64(s),
        _ => long(s),
    }
}

/// The eight bytes from `at` on; callers stay within the string.
#[inline(always)]
fn word(s: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&s[at..at + 8]);
    u64::from_le_bytes(bytes)
}

#[inline(always)]
fn half_word(s: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&s[at..at + 4]);
    u64::from(u32::from_le_bytes(bytes))
}

#[inline(always)]
fn mixed(x: u64) -> u64 {
    x ^ (x >> 47)
}

#[inline(always)]
fn joined(u: u64, v: u64, mul: u64) -> u64 {
    let a = mixed((u ^ v).wrapping_mul(mul));
    mixed((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

#[inline(always)]
fn factor(s: &[u8]) -> u64 {
    K2.wrapping_add(2 * s.len() as u64)
}

fn up_to_16(s: &[u8]) -> u64 {
    let len = s.len();
    if len >= 8 {
        let mul = factor(s);
        let a = word(s, 0).wrapping_add(K2);
        let b = word(s, len - 8);
        let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
        let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
        return joined(c, d, mul);
    }
    if len >= 4 {
        let first = (len as u64).wrapping_add(half_word(s, 0) << 3);
        return joined(first, half_word(s, len - 4), factor(s));
    }
    if len == 0 {
        return K2;
    }
    let (a, b, c) = (s[0], s[len / 2], s[len - 1]);
    let y = u64::from(a) + (u64::from(b) << 8);
    let z = len as u64 + (u64::from(c) << 2);
    mixed(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
}

/// The factor, the first word, and a pair, from the first and the last 16 bytes of 17 to 64.
#[inline(always)]
fn ends(s: &[u8], first: u64) -> (u64, u64, u64, u64) {
    let (len, mul) = (s.len(), factor(s));
    let a = word(s, 0).wrapping_mul(first);
    let b = word(s, 8);
    let c = word(s, len - 8).wrapping_mul(mul);
    let d = word(s, len - 16).wrapping_mul(K2);
    let u = a
        .wrapping_add(b)
        .rotate_right(43)
        .wrapping_add(c.rotate_right(30))
        .wrapping_add(d);
    let v = a
        .wrapping_add(b.wrapping_add(K2).rotate_right(18))
        .wrapping_add(c);
    (mul, a, u, v)
}

fn up_to_32(s: &[u8]) -> u64 {
    let (mul, _, u, v) = ends(s, K1);
    joined(u, v, mul)
}

fn up_to_64(s: &[u8]) -> u64 {
    let len = s.len();
    let (mul, a, y, v) = ends(s, K2);
    let z = joined(y, v, mul);
    let e = word(s, 16).wrapping_mul(mul);
    let f = word(s, 24);
    let g = y.wrapping_add(word(s, len - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(word(s, len - 24)).wrapping_mul(mul);
    let u = e
        .wrapping_add(f)
        .rotate_right(43)
        .wrapping_add(g.rotate_right(30))
        .wrapping_add(h);
    let v = e
        .wrapping_add(f.wrapping_add(a).rotate_right(18))
        .wrapping_add(g);
    joined(u, v, mul)
}

/// Combines a pair with a block of 32 bytes.
#[inline(always)]
fn weak(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let (w, x, y, z) = (
        word(s, at),
        word(s, at + 8),
        word(s, at + 16),
        word(s, at + 24),
    );
    let a = a.wrapping_add(w);
    let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let sum = a.wrapping_add(x).wrapping_add(y);
    (
        sum.wrapping_add(z),
        b.wrapping_add(sum.rotate_right(44)).wrapping_add(a),
    )
}

/// The state between blocks.
struct Long {
    x: u64,
    y: u64,
    z: u64,
    v: (u64, u64),
    w: (u64, u64),
}

impl Long {
    /// Take 64 bytes. The last ones are taken with another factor, and some terms `times` 9.
    #[inline(always)]
    fn take(&mut self, s: &[u8], at: usize, mul: u64, times: u64) {
        let sum = self.x.wrapping_add(self.y).wrapping_add(self.v.0);
        self.x = sum
            .wrapping_add(word(s, at + 8))
            .rotate_right(37)
            .wrapping_mul(mul);
        let sum = self.y.wrapping_add(self.v.1);
        self.y = sum
            .wrapping_add(word(s, at + 48))
            .rotate_right(42)
            .wrapping_mul(mul);
        self.x ^= self.w.1.wrapping_mul(times);
        self.y = self
            .y
            .wrapping_add(self.v.0.wrapping_mul(times))
            .wrapping_add(word(s, at + 40));
        self.z = self
            .z
            .wrapping_add(self.w.0)
            .rotate_right(33)
            .wrapping_mul(mul);
        let (a, b) = (self.v.1.wrapping_mul(mul), self.x.wrapping_add(self.w.0));
        self.v = weak(s, at, a, b);
        let a = self.z.wrapping_add(self.w.1);
        self.w = weak(s, at + 32, a, self.y.wrapping_add(word(s, at + 16)));
        std::mem::swap(&mut self.z, &mut self.x);
    }
}

fn long(s: &[u8]) -> u64 {
    const SEED: u64 = 81;
    let y = SEED.wrapping_mul(K1).wrapping_add(113);
    let mut state = Long {
        x: SEED.wrapping_mul(K2).wrapping_add(word(s, 0)),
        y,
        z: mixed(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2),
        v: (0, 0),
        w: (0, 0),
    };
    let last = (s.len() - 1) % BLOCK;
    let end = s.len() - 1 - last;
    for at in (0..end).step_by(BLOCK) {
        state.take(s, at, K1, 1);
    }
    let mul = K1.wrapping_add((state.z & 0xff) << 1);
    state.w.0 = state.w.0.wrapping_add(last as u64);
    state.v.0 = state.v.0.wrapping_add(state.w.0);
    state.w.0 = state.w.0.wrapping_add(state.v.0);
    state.take(s, s.len() - BLOCK, mul, 9);
    let Long { x, y, z, v, w } = state;
    let first = joined(v.0, w.0, mul)
        .wrapping_add(mixed(y).wrapping_mul(K0))
        .wrapping_add(z);
    joined(first, joined(v.1, w.1, mul).wrapping_add(x), mul)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_strings_are_those_of_tensorflow() {
        // `tf.strings.to_hash_bucket_fast(s, 2**63 - 1)` of TensorFlow 2.21.
        let long = [
            "x".repeat(32),
            "y".repeat(33),
            "z".repeat(64),
            "w".repeat(65),
            "v".repeat(200),
            "é".repeat(40),
        ];
        let expected = [
            ("", 0x1ae1_6a3b_2f90_4050),
            ("a", 0x3345_4265_b6df_75e4),
            ("abc", 0x24a5_b3a0_74e7_f369),
            ("abcd", 0x1a55_02de_4a1f_8101),
            ("abcdefgh", 0x7ee9_d229_90c8_290a),
            ("user-0123456789", 0x6e7a_07be_41f6_cea4),
            ("0123456789abcdef0", 0x6deb_36b4_a021_a909),
            (&long[0], 0x330b_9bac_cc74_dc06),
            (&long[1], 0x777f_79e5_2d06_0efe),
            (
                "the quick brown fox jumps over the lazy dog 12345",
                0x1b0c_e900_55f0_a436,
            ),
            (&long[2], 0x0417_56d0_f401_a218),
            (&long[3], 0x2d68_852f_3c9c_3281),
            (&long[4], 0x2f72_74dc_7f38_3b1c),
            (&long[5], 0x09cc_82c8_327f_279a),
        ];
        for (string, key) in expected {
            assert_eq!(key_of_string(string.as_bytes()), key, "{string:?}");
        }
    }
}
