//! Initial values of rows: a function of (seed, table name, key) and nothing else.
//!
//! Element `i` of a row is made from the 64-bit number `hash(start + i * step)`. `hash` is the hash
//! of the keys, `start` mixes the table's own seed with the key, and `step` is odd. The values do
//! not depend on the time, the place or the order of the rows' creation. Logarithms come from
//! `libm`, which gives the same bits on every machine.

use crate::route::{hash, hash_of_name};
use crate::spec::{InitializerKind, TableSpec};

/// Distance between the numbers of neighbouring elements; odd, as in SplitMix64.
const STEP: u64 = 0xd1b5_4a32_d192_ed03;

/// The standard normal's distribution function at -2: where `truncated_normal` cuts.
const CUT: f64 = 0.022_750_131_948_179_21;

/// Fills new rows of one table.
#[derive(Debug, Clone)]
pub(crate) struct Generator {
    seed: u64,
    kind: InitializerKind,
}

impl Generator {
    pub(crate) fn new(seed: u64, table: &TableSpec, kind: InitializerKind) -> Self {
        let seed = hash(seed ^ hash_of_name(table.name.as_bytes()));
        Self { seed, kind }
    }

    /// Return the table's own seed.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Return what a row reads as before it is created.
    pub(crate) fn centre(&self) -> f32 {
        self.kind.centre()
    }

    /// Write the initial weights of a key.
    pub(crate) fn fill(&self, key: u64, weights: &mut [f32]) {
        if let InitializerKind::Constant { value } = self.kind {
            weights.fill(value as f32);
            return;
        }
        let mut state = hash(self.seed ^ hash(key));
        for weight in weights {
            *weight = self.element(unit(hash(state))) as f32;
            state = state.wrapping_add(STEP);
        }
    }

    /// Map a number between 0 and 1 to the table's distribution.
    fn element(&self, u: f64) -> f64 {
        match self.kind {
            InitializerKind::Constant { value } => value,
            InitializerKind::Uniform { low, high } => low + (high - low) * u,
            InitializerKind::Normal { mean, stddev } => mean + stddev * quantile(u),
            InitializerKind::TruncatedNormal { mean, stddev } => {
                mean + stddev * quantile(CUT + (1.0 - 2.0 * CUT) * u)
            }
        }
    }
}

/// Map 64 random bits to the open interval (0, 1), from the top 52.
fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// The standard normal's quantile function, to about 1e-16: algorithm AS 241, PPND16
/// (Wichura, 1988).
fn quantile(p: f64) -> f64 {
    let q = p - 0.5;
    if q.abs() <= 0.425 {
        let r = 0.180_625 - q * q;
        return q * ratio(r, &CENTRE);
    }
    let tail = if q < 0.0 { p } else { 1.0 - p };
    let r = libm::sqrt(-libm::log(tail));
    let z = if r <= 5.0 {
        ratio(r - 1.6, &MIDDLE)
    } else {
        ratio(r - 5.0, &FAR)
    };
    if q < 0.0 { -z } else { z }
}

/// Numerator and denominator coefficients, lowest power first.
type Ratio = [[f64; 8]; 2];

fn ratio(x: f64, [numerator, denominator]: &Ratio) -> f64 {
    let polynomial = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, &k| sum * x + k);
    polynomial(numerator) / polynomial(denominator)
}

const CENTRE: Ratio = [
    [
        3.387_132_872_796_366_5,
        1.331_416_678_917_843_8e2,
        1.971_590_950_306_551_3e3,
        1.373_169_376_550_946e4,
        4.592_195_393_154_987e4,
        6.726_577_092_700_87e4,
        3.343_057_558_358_813e4,
        2.509_080_928_730_122_7e3,
    ],
    [
        1.0,
        4.231_333_070_160_091e1,
        6.871_870_074_920_579e2,
        5.394_196_021_424_751e3,
        2.121_379_430_158_659_7e4,
        3.930_789_580_009_271e4,
        2.872_908_573_572_194_3e4,
        5.226_495_278_852_545e3,
    ],
];

const MIDDLE: Ratio = [
    [
        1.423_437_110_749_683_5,
        4.630_337_846_156_546,
        5.769_497_221_460_691,
        3.647_848_324_763_204_5,
        1.270_458_252_452_368_4,
        2.417_807_251_774_506e-1,
        2.272_384_498_926_918_4e-2,
        7.745_450_142_783_414e-4,
    ],
    [
        1.0,
        2.053_191_626_637_759,
        1.676_384_830_183_803_8,
        6.897_673_349_851e-1,
        1.481_039_764_274_800_8e-1,
        1.519_866_656_361_645_7e-2,
        5.475_938_084_995_345e-4,
        1.050_750_071_644_416_9e-9,
    ],
];

const FAR: Ratio = [
    [
        6.657_904_643_501_103,
        5.463_784_911_164_114,
        1.784_826_539_917_291_3,
        2.965_605_718_285_048_7e-1,
        2.653_218_952_657_612_4e-2,
        1.242_660_947_388_078_4e-3,
        2.711_555_568_743_487_6e-5,
        2.010_334_399_292_288_1e-7,
    ],
    [
        1.0,
        5.998_322_065_558_88e-1,
        1.369_298_809_227_358e-1,
        1.487_536_129_085_061_5e-2,
        7.868_691_311_456_133e-4,
        1.846_318_317_510_054_8e-5,
        1.421_511_758_316_446e-7,
        2.044_263_103_389_939_8e-15,
    ],
];
