//! Rows as 16-bit floats, on the wire only: to the nearest, ties to even, NaN stays NaN.

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use crate::frame::Element;

/// Rounds rows; both slices have one length.
pub fn narrow(element: Element, rows: &[f32], out: &mut [u16]) {
    match element {
        Element::Bf16 => {
            for (out, value) in out.iter_mut().zip(rows) {
                *out = bf16_bits(*value);
            }
        }
        _ => out
            .reinterpret_cast_mut::<f16>()
            .convert_from_f32_slice(rows),
    }
}

/// Widens rows, exactly; both slices have one length.
pub fn widen(element: Element, rows: &[u16], out: &mut [f32]) {
    match element {
        Element::Bf16 => {
            for (out, bits) in out.iter_mut().zip(rows) {
                *out = f32::from_bits(u32::from(*bits) << 16);
            }
        }
        _ => rows.reinterpret_cast::<f16>().convert_to_f32_slice(out),
    }
}

/// Does the same as `half::bf16::from_f32`, but without branches, so that the compiler vectorises
/// it.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let quiet = bits | 0x0040_0000;
    ((if value.is_nan() { quiet } else { rounded }) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use proptest::prelude::*;

    use super::*;

    fn through(element: Element, value: f32) -> (u16, f32) {
        let (mut bits, mut back) = ([0; 9], [0.0; 9]);
        narrow(element, &[value; 9], &mut bits);
        widen(element, &bits, &mut back);
        assert_eq!(bits, [bits[0]; 9]);
        assert!(
            back.iter()
                .all(|other| other.to_bits() == back[0].to_bits())
        );
        (bits[0], back[0])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100_000))]
        #[test]
        fn every_float_is_rounded_to_the_nearest_16_bits(bits in any::<u32>()) {
            let value = f32::from_bits(bits);
            let (narrowed, back) = through(Element::Bf16, value);
            prop_assert_eq!(narrowed, bf16::from_f32_const(value).to_bits());
            prop_assert!(back == bf16::from_f32_const(value).to_f32_const() || value.is_nan());
            let (narrowed, back) = through(Element::F16, value);
            let exact = f16::from_f32_const(value);
            prop_assert!(narrowed == exact.to_bits() || value.is_nan());
            prop_assert!(back == exact.to_f32_const() || value.is_nan());
            prop_assert_eq!(back.is_nan(), value.is_nan());
        }
    }

    #[test]
    fn what_fits_into_16_bits_comes_back_as_it_was() {
        for bits in 0..=u16::MAX {
            for (element, value) in [
                (Element::F16, f16::from_bits(bits).to_f32_const()),
                (Element::Bf16, bf16::from_bits(bits).to_f32_const()),
            ] {
                let (_, back) = through(element, value);
                assert!(back == value || value.is_nan() && back.is_nan());
            }
        }
    }
}
