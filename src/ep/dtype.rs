//! Element types on the CPU, rounded exactly as the kernels do: to nearest even, and every NaN becomes the canonical one.

use super::sys::Region;
use crate::layout::ep::{Dtype, SCALE_GROUP};

const NAN16: u16 = 0x7fff;

pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[allow(clippy::cast_possible_truncation, reason = "the upper half of a word")]
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if value.is_nan() { NAN16 } else { rounded }
}

pub(super) fn from_fp16(bits: u16) -> f32 {
    half::f16::from_bits(bits).to_f32()
}

pub(super) fn to_fp16(value: f32) -> u16 {
    if value.is_nan() { NAN16 } else { half::f16::from_f32(value).to_bits() }
}

/// Single to e4m3, saturating at 448.
#[allow(clippy::cast_possible_truncation, reason = "seven bits")]
pub(super) fn to_e4m3(value: f32) -> u8 {
    if value.is_nan() {
        return 0x7f;
    }
    let sign = (value.to_bits() >> 24 & 0x80) as u8;
    let size = value.abs();
    if size >= 464.0 {
        // Half-way between 448 and the 480 that e4m3 has no room for: from there on it saturates, as below it rounds to.
        return sign | 0x7e;
    }
    // Numbers below 2^-6 are multiples of 2^-9; adding a number whose last bit is 2^-9 rounds to even there.
    if size < 0.015_625 {
        let steps = (size + 16_384.0).to_bits() - 16_384.0f32.to_bits();
        return sign | steps as u8;
    }
    let bits = size.to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    let code = (rounded >> 20) - (120 << 3);
    sign | code.min(0x7e) as u8
}

pub(super) fn from_e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3 & 15), u32::from(code & 7));
    let size = if exponent == 15 && mantissa == 7 {
        f32::NAN
    } else if exponent == 0 {
        #[allow(clippy::cast_precision_loss, reason = "below 8")]
        let mantissa = mantissa as f32;
        mantissa / 512.0
    } else {
        f32::from_bits((exponent + 120) << 23 | mantissa << 20)
    };
    if code & 0x80 != 0 { -size } else { size }
}

/// Adds `weight` times a row (the row itself without one) to `sum`: a product, rounded, then a sum, rounded.
pub(super) fn add(dtype: Dtype, sum: &mut [f32], row: Region<'_>, weight: Option<f32>) {
    // Two loops a type: inside there is no choice left, so that they become vector code.
    macro_rules! run {
        ($values:expr, $convert:expr) => {
            match weight {
                None => sum.iter_mut().zip($values).for_each(|(s, v)| *s += $convert(v.get())),
                Some(w) => sum.iter_mut().zip($values).for_each(|(s, v)| *s += w * $convert(v.get())),
            }
        };
    }
    match dtype {
        Dtype::Bf16 => run!(row.cells::<u16>(), from_bf16),
        Dtype::Fp16 => run!(row.cells::<u16>(), from_fp16),
        Dtype::Fp32 => run!(row.cells::<f32>(), |v| v),
        Dtype::Fp8 => run!(row.cells::<u8>(), from_e4m3),
    }
}

/// Stores a row with one rounding.
pub(super) fn store(dtype: Dtype, values: &[f32], row: Region<'_>) {
    match dtype {
        Dtype::Bf16 => row.cells::<u16>().iter().zip(values).for_each(|(o, v)| o.set(to_bf16(*v))),
        Dtype::Fp16 => row.cells::<u16>().iter().zip(values).for_each(|(o, v)| o.set(to_fp16(*v))),
        Dtype::Fp32 => {
            let canonical = |v: f32| if v.is_nan() { f32::from_bits(0x7fff_ffff) } else { v };
            row.cells::<f32>().iter().zip(values).for_each(|(o, v)| o.set(canonical(*v)));
        }
        Dtype::Fp8 => row.cells::<u8>().iter().zip(values).for_each(|(o, v)| o.set(to_e4m3(*v))),
    }
}

/// A group of elements that are all smaller than this has scale 1 and becomes zeros, each with its sign: the inverse of a smaller
/// scale is no number any more. `NMC_EP_TINY` in kernels/ep.cu.
const TINY: f32 = 1e-30;

/// Quantises a row to e4m3 with one scale per group.
pub(super) fn quantise(values: &[f32], codes: &mut [u8], scales: &mut [f32]) {
    let group = SCALE_GROUP as usize;
    for ((values, codes), scale) in values.chunks(group).zip(codes.chunks_mut(group)).zip(scales) {
        let most = values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        let some = most >= TINY;
        *scale = if some { most / 448.0 } else { 1.0 };
        let inverse = if some { 448.0 / most } else { 1.0 };
        codes.iter_mut().zip(values).for_each(|(code, v)| *code = to_e4m3(v * inverse));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_e4m3_code_survives_and_everything_between_goes_to_the_nearest() {
        let mut all: Vec<(f32, u8)> = (0..0x7f).map(|code| (from_e4m3(code), code)).collect();
        for (value, code) in &all {
            assert_eq!(to_e4m3(*value), *code, "{value}");
            assert_eq!(to_e4m3(-*value), *code | 0x80, "{value}");
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in all.windows(2) {
            let (low, high) = (pair[0], pair[1]);
            let middle = f32::midpoint(low.0, high.0);
            let even = if low.1 & 1 == 0 { low.1 } else { high.1 };
            assert_eq!(to_e4m3(middle), even, "{middle}");
            assert_eq!(to_e4m3(middle.next_down()), low.1);
            assert_eq!(to_e4m3(middle.next_up()), high.1);
        }
        assert_eq!((to_e4m3(1e9), to_e4m3(-1e9), to_e4m3(f32::INFINITY)), (0x7e, 0xfe, 0x7e));
        assert_eq!((to_e4m3(463.9), to_e4m3(f32::NAN)), (0x7e, 0x7f));
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (bits, want) in [(0x3f80_8000, 0x3f80), (0x3f81_8000, 0x3f82), (0x3f80_8001, 0x3f81), (0x7f7f_ffff, 0x7f80)]
        {
            assert_eq!(to_bf16(f32::from_bits(bits)), want, "{bits:#x}");
        }
        assert_eq!(to_bf16(f32::NAN), 0x7fff);
        for bits in (0..=u16::MAX).filter(|b| !from_bf16(*b).is_nan()) {
            assert_eq!(to_bf16(from_bf16(bits)), bits);
            if !from_fp16(bits).is_nan() {
                assert_eq!(to_fp16(from_fp16(bits)), bits);
            }
        }
    }

    #[test]
    fn tiny_groups_become_zeros_with_their_signs() {
        // One group each: denormals, what has a scale without an inverse, the last number below the limit, and zeros.
        let tiny = [1e-45f32, 1.1e-38, 1e-37, 1e-36, 9e-31, TINY.next_down(), 0.0];
        for size in tiny {
            let values: Vec<f32> = (0..128).map(|i| if i % 3 == 0 { -size } else { size }).collect();
            let (mut codes, mut scales) = (vec![0x55; 128], vec![f32::NAN; 1]);
            quantise(&values, &mut codes, &mut scales);
            assert_eq!(scales[0].to_bits(), 1.0f32.to_bits(), "{size:e}");
            for (i, code) in codes.iter().enumerate() {
                assert_eq!(*code, if i % 3 == 0 { 0x80 } else { 0 }, "{size:e} at {i}");
            }
        }
        // From the limit on a group has its scale, whatever else is in it.
        for size in [TINY, 1e-20, 1.0, f32::MAX] {
            let mut values = vec![-0.0f32; 128];
            (values[5], values[6], values[7]) = (size, -size, 1e-45);
            let (mut codes, mut scales) = (vec![0x55; 128], vec![f32::NAN; 1]);
            quantise(&values, &mut codes, &mut scales);
            assert_eq!(scales[0].to_bits(), (size / 448.0).to_bits(), "{size:e}");
            assert!(scales[0].is_normal());
            assert_eq!((codes[4], codes[5], codes[6], codes[7]), (0x80, 0x7e, 0xfe, 0), "{size:e}");
        }
    }

    #[test]
    fn a_quantised_row_comes_back_within_a_step() {
        let values: Vec<f32> = (0..256u16).map(|i| (f32::from(i) - 100.0) * 0.37).collect();
        let (mut codes, mut scales) = (vec![0; 256], vec![0.0; 2]);
        quantise(&values, &mut codes, &mut scales);
        for (i, (value, code)) in values.iter().zip(&codes).enumerate() {
            let back = from_e4m3(*code) * scales[i / 128];
            assert!((back - value).abs() <= value.abs() / 16.0 + scales[i / 128] / 512.0, "{i}: {value} {back}");
        }
    }
}
