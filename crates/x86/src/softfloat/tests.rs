//! Tests the arithmetic: against vectors from a real processor, against the host's own `f32` and `f64`
//! arithmetic, and by each of its rules.

use super::*;

/// One case in each line, as executed by a real processor (AMD Zen 5): instruction, control word, source
/// operands, `=`, the result (`none` if there was none), exceptions, and `C1` if it was set. Values are in
/// hexadecimal, the highest digit first, with as many digits as their format has. A remainder is followed by
/// the quotient's low bits and by whether it is complete.
const VECTORS: &str = include_str!("vectors.txt");

const DEFAULT_CONTROL: u16 = 0x037f;

fn f80(text: &str) -> F80 {
    let bits = u128::from_str_radix(text, 16).unwrap();
    F80::new((bits >> 64) as u16, bits as u64)
}

fn bcd(text: &str) -> PackedBcd {
    f80(text).to_bytes()
}

fn integer(text: &str) -> i64 {
    let unused = 64 - 4 * text.len();
    (u64::from_str_radix(text, 16).unwrap() << unused) as i64 >> unused
}

/// Returns an operand of the format that has this number of digits.
fn operand(text: &str) -> Operand {
    match text.len() {
        8 => Operand::from_f32(u32::from_str_radix(text, 16).unwrap()),
        16 => Operand::from_f64(u64::from_str_radix(text, 16).unwrap()),
        _ => f80(text).into(),
    }
}

fn show(value: F80) -> String {
    format!("{:04x}{:016x}", value.sign_exponent, value.significand)
}

fn show_remainder(remainder: Remainder) -> String {
    let quotient = remainder.quotient.map_or("-".to_owned(), |quotient| quotient.to_string());
    let state = if remainder.incomplete { "incomplete" } else { "complete" };
    format!("{} {quotient} {state}", show(remainder.value))
}

/// Executes the left side of a vector and returns its right side.
fn evaluate(case: &str) -> String {
    use IntegerSize::{Doubleword, Quadword, Word};

    let words: Vec<&str> = case.split_whitespace().collect();
    let mut c = Context::new(u16::from_str_radix(words[1], 16).unwrap());
    let first = words.get(2).copied().unwrap_or_default();
    let second = words.get(3).copied().unwrap_or_default();
    let rounding = c.rounding;
    let store = |c: &mut Context, size: IntegerSize, rounding| {
        let digits = [4, 8, 16][size as usize];
        let value = c.store_integer(f80(first), size, rounding)?;
        Some(format!("{value:016x}")[16 - digits..].to_owned())
    };
    let delivered = match words[0] {
        "fadd" => c.add(operand(first), operand(second)).map(show),
        "fsub" => c.sub(operand(first), operand(second)).map(show),
        "fmul" => c.mul(operand(first), operand(second)).map(show),
        "fdiv" => c.div(operand(first), operand(second)).map(show),
        "fsqrt" => c.sqrt(f80(first)).map(show),
        "frndint" => c.round_to_integer(f80(first)).map(show),
        "fscale" => c.scale(f80(first), f80(second)).map(show),
        "fxtract" => c
            .extract(f80(first))
            .map(|(exponent, significand)| format!("{} {}", show(exponent), show(significand))),
        "fprem" => c.remainder_truncated(f80(first), f80(second)).map(show_remainder),
        "fprem1" => c.remainder_nearest(f80(first), f80(second)).map(show_remainder),
        "fcom" => Some(format!("{:?}", c.compare(operand(first), operand(second)))),
        "fucom" => Some(format!("{:?}", c.compare_unordered(operand(first), operand(second)))),
        "fld" => c.load(operand(first)).map(show),
        "fild" => Some(show(F80::from(integer(first)))),
        "fbld" => Some(show(F80::from_bcd(bcd(first)))),
        "fst32" => c.store_f32(f80(first)).map(|bits| format!("{bits:08x}")),
        "fst64" => c.store_f64(f80(first)).map(|bits| format!("{bits:016x}")),
        "fist16" => store(&mut c, Word, rounding),
        "fist32" => store(&mut c, Doubleword, rounding),
        "fist64" => store(&mut c, Quadword, rounding),
        "fistt16" => store(&mut c, Word, Rounding::Zero),
        "fistt32" => store(&mut c, Doubleword, Rounding::Zero),
        "fistt64" => store(&mut c, Quadword, Rounding::Zero),
        "fbstp" => c.store_bcd(f80(first)).map(|bytes| show(F80::from_bytes(bytes))),
        "fld1" => Some(show(c.constant(Constant::One))),
        "fldl2t" => Some(show(c.constant(Constant::Log2Of10))),
        "fldl2e" => Some(show(c.constant(Constant::Log2OfE))),
        "fldpi" => Some(show(c.constant(Constant::Pi))),
        "fldlg2" => Some(show(c.constant(Constant::Log10Of2))),
        "fldln2" => Some(show(c.constant(Constant::LnOf2))),
        "fldz" => Some(show(c.constant(Constant::Zero))),
        other => panic!("no instruction {other}"),
    };
    let mut right = delivered.unwrap_or("none".to_owned());
    let names = ["IE", "DE", "ZE", "OE", "UE", "PE"];
    for (bit, name) in names.iter().enumerate() {
        if c.raised.bits() >> bit & 1 != 0 {
            right = format!("{right} {name}");
        }
    }
    if c.rounded_up { format!("{right} C1") } else { right }
}

#[test]
fn agrees_with_a_real_processor() {
    let mut cases = 0;
    for line in VECTORS.lines() {
        let (case, expected) = line.split_once(" = ").unwrap();
        assert_eq!(evaluate(case), expected, "{case}");
        cases += 1;
    }
    assert!(cases > 500);
}

/// A generator of test inputs (Marsaglia's xorshift64), the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A `float` whose products and quotients with others neither overflow nor underflow.
    fn f32(&mut self) -> f32 {
        let exponent = 127 - 16 + (self.next() >> 32) as u32 % 32;
        let bits = self.next() as u32 & 0x807f_ffff | exponent << 23;
        f32::from_bits(bits)
    }

    /// A `double` whose products and quotients with others neither overflow nor underflow.
    fn f64(&mut self) -> f64 {
        let exponent = 1023 - 60 + (self.next() >> 32) % 120;
        let bits = self.next() & 0x800f_ffff_ffff_ffff | exponent << 52;
        f64::from_bits(bits)
    }
}

#[test]
fn single_precision_control_gives_the_results_of_f32() {
    let mut random = Random(1);
    for _ in 0..20_000 {
        let (x, y) = (random.f32(), random.f32());
        let (a, b) = (Operand::from_f32(x.to_bits()), Operand::from_f32(y.to_bits()));
        let mut c = Context::new(0x007f);
        let results = [
            (c.add(a, b), x + y),
            (c.sub(a, b), x - y),
            (c.mul(a, b), x * y),
            (c.div(a, b), x / y),
            (c.sqrt(a.value.abs()), x.abs().sqrt()),
        ];
        for (ours, theirs) in results {
            assert_eq!(c.store_f32(ours.unwrap()), Some(theirs.to_bits()), "{x:e} {y:e}");
        }
    }
}

#[test]
fn double_precision_control_gives_the_results_of_f64() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let (x, y) = (random.f64(), random.f64());
        let (a, b) = (Operand::from_f64(x.to_bits()), Operand::from_f64(y.to_bits()));
        let mut c = Context::new(0x027f);
        let results = [
            (c.add(a, b), x + y),
            (c.sub(a, b), x - y),
            (c.mul(a, b), x * y),
            (c.div(a, b), x / y),
            (c.sqrt(a.value.abs()), x.abs().sqrt()),
        ];
        for (ours, theirs) in results {
            assert_eq!(c.store_f64(ours.unwrap()), Some(theirs.to_bits()), "{x:e} {y:e}");
        }
    }
}

#[test]
fn conversions_round_trip() {
    let mut random = Random(3);
    for _ in 0..20_000 {
        let bits = random.next();
        let mut c = Context::new(DEFAULT_CONTROL);
        let integer = bits as i64 >> (random.next() % 64);
        let value = F80::from(integer);
        assert_eq!(c.store_integer(value, IntegerSize::Quadword, Rounding::Zero), Some(integer));
        assert_eq!(c.round_to_integer(value), Some(value));
        assert_eq!(F80::from_bytes(value.to_bytes()), value);
        if c.store_bcd(value) != c.store_bcd(F80::INFINITY) {
            assert_eq!(c.store_bcd(value).map(F80::from_bcd), Some(value));
        }
        let quiet_bit = if f64::from_bits(bits).is_nan() { 1 << 51 } else { 0 };
        let loaded = c.load(Operand::from_f64(bits)).unwrap();
        assert_eq!(c.store_f64(loaded), Some(bits | quiet_bit));
    }
}

#[test]
fn a_remainder_finishes_in_a_bounded_number_of_steps() {
    let mut c = Context::new(DEFAULT_CONTROL);
    let (mut a, b) = (F80::new(0x7ffe, u64::MAX), F80::new(0, 3));
    for _ in 0..(0x7fff + 64) / 32 {
        let remainder = c.remainder_truncated(a, b).unwrap();
        a = remainder.value;
        if !remainder.incomplete {
            assert!(a.sign_exponent == 0 && a.significand < 3);
            return;
        }
    }
    panic!("incomplete");
}

#[test]
fn tininess_is_detected_after_rounding() {
    // Just below the smallest normalised number, but rounded to it.
    let mut c = Context::new(DEFAULT_CONTROL);
    let (a, b) = (F80::new(0x0001, u64::MAX), F80::new(0x3ffe, INTEGER_BIT));
    assert_eq!(c.mul(a, b), Some(F80::new(0x0001, INTEGER_BIT)));
    assert_eq!(c.raised, Flags::PRECISION.union(Flags::UNDERFLOW));

    // Here rounding with an unbounded exponent already gives that number: not tiny.
    let mut c = Context::new(DEFAULT_CONTROL);
    let (a, b) = (F80::new(0x0001, INTEGER_BIT | 1), F80::new(0x3ffe, u64::MAX - 1));
    assert_eq!(c.mul(a, b), Some(F80::new(0x0001, INTEGER_BIT)));
    assert_eq!(c.raised, Flags::PRECISION);
}

#[test]
fn masked_underflow_is_silent_if_exact() {
    let (a, half) = (F80::new(0x0001, INTEGER_BIT), F80::new(0x3ffe, INTEGER_BIT));
    let mut c = Context::new(DEFAULT_CONTROL);
    assert_eq!(c.mul(a, half), Some(F80::new(0, 1 << 62)));
    assert_eq!(c.raised, Flags::NONE);

    let mut c = Context::new(DEFAULT_CONTROL & !Flags::UNDERFLOW.bits());
    assert_eq!(c.mul(a, half), Some(F80::new(24576, INTEGER_BIT)));
    assert_eq!(c.raised, Flags::UNDERFLOW);
    assert_eq!(c.unmasked(), Flags::UNDERFLOW);
}

#[test]
fn of_two_nans_the_larger_significand_wins() {
    let mut c = Context::new(DEFAULT_CONTROL);
    let small = F80::new(0xffff, INTEGER_BIT | QUIET_BIT | 1);
    let large = F80::new(0x7fff, INTEGER_BIT | QUIET_BIT | 2);
    let signaling = F80::new(0x7fff, INTEGER_BIT | 3);
    assert_eq!(c.add(small, large), Some(large));
    assert_eq!(c.add(large, small), Some(large));
    assert_eq!(c.raised, Flags::NONE);
    assert_eq!(c.mul(signaling, small), Some(small));
    assert_eq!(c.raised, Flags::INVALID);
}

#[test]
fn unmasked_faults_deliver_nothing() {
    let mut c = Context::new(0x0340);
    assert_eq!(c.div(F80::ONE, F80::ZERO), None);
    assert_eq!(c.raised, Flags::ZERO_DIVIDE);
    assert_eq!(c.sqrt(F80::ONE.negate()), None);
    assert_eq!(c.add(F80::ONE, F80::new(0, 1)), None);
    assert_eq!(c.store_f32(F80::new(0x7ffe, INTEGER_BIT)), None);
    let expected = [Flags::ZERO_DIVIDE, Flags::INVALID, Flags::DENORMAL, Flags::OVERFLOW];
    assert_eq!(c.raised, expected.into_iter().fold(Flags::NONE, Flags::union));
}

#[test]
fn classes_are_those_of_the_manual() {
    let classes = [
        (0x8000, 0, Class::Zero),
        (0x0000, 1, Class::Denormal),
        (0x0000, INTEGER_BIT, Class::PseudoDenormal),
        (0x0001, INTEGER_BIT, Class::Normal),
        (0x0001, INTEGER_BIT - 1, Class::Unsupported),
        (0xffff, INTEGER_BIT, Class::Infinity),
        (0x7fff, INTEGER_BIT | 1, Class::SignalingNan),
        (0x7fff, INTEGER_BIT | QUIET_BIT, Class::QuietNan),
        (0x7fff, 0, Class::Unsupported),
        (0x7fff, QUIET_BIT, Class::Unsupported),
    ];
    for (sign_exponent, significand, class) in classes {
        assert_eq!(F80::new(sign_exponent, significand).class(), class);
    }
}
