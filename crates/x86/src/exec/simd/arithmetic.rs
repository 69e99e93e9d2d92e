//! Packed integer arithmetic, comparison and logic (SDM vol. 1, 9.4, 11.4.2, 12.6, 12.10).

use super::{Lane, Vector, both, lanes, map, row, vector};
use crate::table::Rows;

/// Adds the forms of this file to the instruction table.
pub(super) fn forms(rows: &mut Rows) {
    lanes!(rows, [Paddb_mm_mmm64 Paddb_xmm_xmmm128], u8::wrapping_add);
    lanes!(rows, [Paddw_mm_mmm64 Paddw_xmm_xmmm128], u16::wrapping_add);
    lanes!(rows, [Paddd_mm_mmm64 Paddd_xmm_xmmm128], u32::wrapping_add);
    lanes!(rows, [Paddq_mm_mmm64 Paddq_xmm_xmmm128], u64::wrapping_add);
    lanes!(rows, [Paddsb_mm_mmm64 Paddsb_xmm_xmmm128], i8::saturating_add);
    lanes!(rows, [Paddsw_mm_mmm64 Paddsw_xmm_xmmm128], i16::saturating_add);
    lanes!(rows, [Paddusb_mm_mmm64 Paddusb_xmm_xmmm128], u8::saturating_add);
    lanes!(rows, [Paddusw_mm_mmm64 Paddusw_xmm_xmmm128], u16::saturating_add);
    lanes!(rows, [Psubb_mm_mmm64 Psubb_xmm_xmmm128], u8::wrapping_sub);
    lanes!(rows, [Psubw_mm_mmm64 Psubw_xmm_xmmm128], u16::wrapping_sub);
    lanes!(rows, [Psubd_mm_mmm64 Psubd_xmm_xmmm128], u32::wrapping_sub);
    lanes!(rows, [Psubq_mm_mmm64 Psubq_xmm_xmmm128], u64::wrapping_sub);
    lanes!(rows, [Psubsb_mm_mmm64 Psubsb_xmm_xmmm128], i8::saturating_sub);
    lanes!(rows, [Psubsw_mm_mmm64 Psubsw_xmm_xmmm128], i16::saturating_sub);
    lanes!(rows, [Psubusb_mm_mmm64 Psubusb_xmm_xmmm128], u8::saturating_sub);
    lanes!(rows, [Psubusw_mm_mmm64 Psubusw_xmm_xmmm128], u16::saturating_sub);

    lanes!(rows, [Pmullw_mm_mmm64 Pmullw_xmm_xmmm128], u16::wrapping_mul);
    lanes!(rows, [Pmulld_xmm_xmmm128], u32::wrapping_mul);
    lanes!(rows, [Pmulhw_mm_mmm64 Pmulhw_xmm_xmmm128], multiply_high_signed);
    lanes!(rows, [Pmulhuw_mm_mmm64 Pmulhuw_xmm_xmmm128], multiply_high_unsigned);
    lanes!(rows, [Pmulhrsw_mm_mmm64 Pmulhrsw_xmm_xmmm128], multiply_high_rounded);
    lanes!(rows, [Pmuludq_mm_mmm64 Pmuludq_xmm_xmmm128], multiply_low_halves_unsigned);
    lanes!(rows, [Pmuldq_xmm_xmmm128], multiply_low_halves_signed);
    lanes!(rows, [Pmaddwd_mm_mmm64 Pmaddwd_xmm_xmmm128], multiply_and_add_words);
    lanes!(rows, [Pmaddubsw_mm_mmm64 Pmaddubsw_xmm_xmmm128], multiply_and_add_bytes);

    lanes!(rows, [Pminub_mm_mmm64 Pminub_xmm_xmmm128], <u8 as Ord>::min);
    lanes!(rows, [Pminsw_mm_mmm64 Pminsw_xmm_xmmm128], <i16 as Ord>::min);
    lanes!(rows, [Pminsb_xmm_xmmm128], <i8 as Ord>::min);
    lanes!(rows, [Pminuw_xmm_xmmm128], <u16 as Ord>::min);
    lanes!(rows, [Pminsd_xmm_xmmm128], <i32 as Ord>::min);
    lanes!(rows, [Pminud_xmm_xmmm128], <u32 as Ord>::min);
    lanes!(rows, [Pmaxub_mm_mmm64 Pmaxub_xmm_xmmm128], <u8 as Ord>::max);
    lanes!(rows, [Pmaxsw_mm_mmm64 Pmaxsw_xmm_xmmm128], <i16 as Ord>::max);
    lanes!(rows, [Pmaxsb_xmm_xmmm128], <i8 as Ord>::max);
    lanes!(rows, [Pmaxuw_xmm_xmmm128], <u16 as Ord>::max);
    lanes!(rows, [Pmaxsd_xmm_xmmm128], <i32 as Ord>::max);
    lanes!(rows, [Pmaxud_xmm_xmmm128], <u32 as Ord>::max);
    // The average is rounded up.
    lanes!(rows, [Pavgb_mm_mmm64 Pavgb_xmm_xmmm128], |a: u8, b: u8| {
        (u16::from(a) + u16::from(b)).div_ceil(2) as u8
    });
    lanes!(rows, [Pavgw_mm_mmm64 Pavgw_xmm_xmmm128], |a: u16, b: u16| {
        (u32::from(a) + u32::from(b)).div_ceil(2) as u16
    });

    lanes!(rows, [Pcmpeqb_mm_mmm64 Pcmpeqb_xmm_xmmm128], |a: u8, b| truth(a == b));
    lanes!(rows, [Pcmpeqw_mm_mmm64 Pcmpeqw_xmm_xmmm128], |a: u16, b| truth(a == b));
    lanes!(rows, [Pcmpeqd_mm_mmm64 Pcmpeqd_xmm_xmmm128], |a: u32, b| truth(a == b));
    lanes!(rows, [Pcmpeqq_xmm_xmmm128], |a: u64, b| truth(a == b));
    lanes!(rows, [Pcmpgtb_mm_mmm64 Pcmpgtb_xmm_xmmm128], |a: i8, b| truth(a > b));
    lanes!(rows, [Pcmpgtw_mm_mmm64 Pcmpgtw_xmm_xmmm128], |a: i16, b| truth(a > b));
    lanes!(rows, [Pcmpgtd_mm_mmm64 Pcmpgtd_xmm_xmmm128], |a: i32, b| truth(a > b));
    lanes!(rows, [Pcmpgtq_xmm_xmmm128], |a: i64, b| truth(a > b));

    lanes!(rows, [Pand_mm_mmm64 Pand_xmm_xmmm128], |a: u64, b| a & b);
    lanes!(rows, [Pandn_mm_mmm64 Pandn_xmm_xmmm128], |a: u64, b| !a & b);
    lanes!(rows, [Por_mm_mmm64 Por_xmm_xmmm128], |a: u64, b| a | b);
    lanes!(rows, [Pxor_mm_mmm64 Pxor_xmm_xmmm128], |a: u64, b| a ^ b);
    row!(rows, u128, [Andps_xmm_xmmm128 Andpd_xmm_xmmm128], combine, |a, b| a & b);
    row!(rows, u128, [Andnps_xmm_xmmm128 Andnpd_xmm_xmmm128], combine, |a: u128, b| !a & b);
    row!(rows, u128, [Orps_xmm_xmmm128 Orpd_xmm_xmmm128], combine, |a, b| a | b);
    row!(rows, u128, [Xorps_xmm_xmmm128 Xorpd_xmm_xmmm128], combine, |a, b| a ^ b);

    both!(rows, [Pabsb_mm_mmm64 Pabsb_xmm_xmmm128], |_, b| map(b, i8::wrapping_abs));
    both!(rows, [Pabsw_mm_mmm64 Pabsw_xmm_xmmm128], |_, b| map(b, i16::wrapping_abs));
    both!(rows, [Pabsd_mm_mmm64 Pabsd_xmm_xmmm128], |_, b| map(b, i32::wrapping_abs));
    // The sign of the source times the destination.
    lanes!(rows, [Psignb_mm_mmm64 Psignb_xmm_xmmm128], |a, b: i8| b.signum().wrapping_mul(a));
    lanes!(rows, [Psignw_mm_mmm64 Psignw_xmm_xmmm128], |a, b: i16| b.signum().wrapping_mul(a));
    lanes!(rows, [Psignd_mm_mmm64 Psignd_xmm_xmmm128], |a, b: i32| b.signum().wrapping_mul(a));

    both!(rows, [Phaddw_mm_mmm64 Phaddw_xmm_xmmm128], |a, b| pairs(a, b, i16::wrapping_add));
    both!(rows, [Phaddd_mm_mmm64 Phaddd_xmm_xmmm128], |a, b| pairs(a, b, i32::wrapping_add));
    both!(rows, [Phaddsw_mm_mmm64 Phaddsw_xmm_xmmm128], |a, b| pairs(a, b, i16::saturating_add));
    both!(rows, [Phsubw_mm_mmm64 Phsubw_xmm_xmmm128], |a, b| pairs(a, b, i16::wrapping_sub));
    both!(rows, [Phsubd_mm_mmm64 Phsubd_xmm_xmmm128], |a, b| pairs(a, b, i32::wrapping_sub));
    both!(rows, [Phsubsw_mm_mmm64 Phsubsw_xmm_xmmm128], |a, b| pairs(a, b, i16::saturating_sub));

    lanes!(rows, [Psadbw_mm_mmm64 Psadbw_xmm_xmmm128], |a: u64, b: u64| {
        let distances = a.to_le_bytes().into_iter().zip(b.to_le_bytes()).map(distance);
        distances.sum()
    });
    row!(rows, u128, [Mpsadbw_xmm_xmmm128_imm8], combine_by 3, sums_of_distances);
    row!(rows, u128, [Phminposuw_xmm_xmmm128], combine, |_, b| minimum_and_position(b));
}

/// Returns all ones, or 0.
fn truth<L: Lane>(is_true: bool) -> L {
    L::of(if is_true { u64::MAX } else { 0 })
}

fn multiply_high_signed(a: i16, b: i16) -> i16 {
    ((i32::from(a) * i32::from(b)) >> 16) as i16
}

fn multiply_high_unsigned(a: u16, b: u16) -> u16 {
    ((u32::from(a) * u32::from(b)) >> 16) as u16
}

/// Returns the product of two fractions with 15 bits after the point.
fn multiply_high_rounded(a: i16, b: i16) -> i16 {
    ((((i32::from(a) * i32::from(b)) >> 14) + 1) >> 1) as i16
}

fn multiply_low_halves_unsigned(a: u64, b: u64) -> u64 {
    u64::from(a as u32) * u64::from(b as u32)
}

fn multiply_low_halves_signed(a: i64, b: i64) -> i64 {
    i64::from(a as i32) * i64::from(b as i32)
}

/// Returns the sum of the products of both words; it wraps around when all four are -32768.
fn multiply_and_add_words(a: i32, b: i32) -> i32 {
    let low = i32::from(a as i16) * i32::from(b as i16);
    let high = (a >> 16) * (b >> 16);
    low.wrapping_add(high)
}

/// Returns the saturated sum of the products of both bytes; those of `a` are unsigned and those of `b`
/// signed.
fn multiply_and_add_bytes(a: i16, b: i16) -> i16 {
    let [a, b] = [a, b].map(i16::to_le_bytes);
    let product = |index: usize| i16::from(a[index]) * i16::from(b[index] as i8);
    product(0).saturating_add(product(1))
}

/// Applies `change` to the pairs of neighbours: first those of `a`, then those of `b`.
fn pairs<V: Vector, L: Lane>(a: V, b: V, change: impl Fn(L, L) -> L) -> V {
    let half = V::BITS / L::BITS / 2;
    vector(|index| {
        let (from, pair) = if index < half { (a, index) } else { (b, index - half) };
        change(from.lane(2 * pair), from.lane(2 * pair + 1))
    })
}

fn distance((a, b): (u8, u8)) -> u64 {
    a.abs_diff(b).into()
}

/// Performs MPSADBW: the distances of four bytes of `b` from four bytes of `a`, for eight places in `a`.
fn sums_of_distances(a: u128, b: u128, immediate: usize) -> u128 {
    let (in_a, in_b) = ((immediate >> 2 & 1) * 4, (immediate & 3) * 4);
    vector(|index| {
        let bytes = (0..4).map(|byte| (a.lane(in_a + index + byte), b.lane(in_b + byte)));
        bytes.map(distance).sum::<u64>() as u16
    })
}

/// Performs PHMINPOSUW: the smallest word, and the index of the first word with this value.
fn minimum_and_position(b: u128) -> u128 {
    let words = (0..8).map(|index| (b.lane::<u16>(index), index as u16));
    let (minimum, position) = words.min().unwrap_or_default();
    u128::from(minimum) | u128::from(position) << 16
}
