//! Tests the arithmetic: against vectors from a real processor, by comparing the host's arithmetic with that
//! on integers, and by each of its rules.

use std::cmp::Ordering;

use super::*;

/// One case in each line, as executed by a real processor (AMD Zen 5): instruction (with the immediate
/// operand or the size of the integer), MXCSR, destination, source, `=`, the destination afterwards (`none`
/// if the instruction raised #XM), and MXCSR's flags. The destination of COMISx and UCOMISx is EFLAGS.
const VECTORS: &str = include_str!("vectors.txt");

const MXCSR_INIT: u32 = 0x1f80;
const ONE: F32 = F32(0x3f80_0000);
const QUIET: F32 = F32(0x7fc0_0001);
const SIGNALING: F32 = F32(0x7f80_0001);
const DENORMAL: F32 = F32(0x0000_0001);

fn bits(text: &str) -> u128 {
    u128::from_str_radix(text, 16).unwrap()
}

/// Element `index` of a register.
fn element<F: Float>(register: u128, index: usize) -> F {
    let size = F::FRACTION_BITS + F::EXPONENT_BITS + 1;
    F::from_bits((register >> (index as u32 * size)) as u64)
}

/// The register with `elements` in its low part and `rest` above.
fn register<F: Float, const N: usize>(elements: [F; N], rest: u128) -> u128 {
    let size = F::FRACTION_BITS + F::EXPONENT_BITS + 1;
    elements.iter().enumerate().fold(rest, |register, (index, element)| {
        let place = index as u32 * size;
        register & !(u128::from(u64::MAX >> (64 - size)) << place)
            | u128::from(element.bits()) << place
    })
}

fn elements<F: Float, const N: usize>(register: u128) -> [F; N] {
    std::array::from_fn(|index| element(register, index))
}

/// Executes the instructions that have the same effect on one element or on all.
fn by_element<F: Float>(c: &mut Context, name: &str, immediate: u8, a: F, b: F) -> F {
    match name {
        "add" => c.add(a, b),
        "sub" => c.sub(a, b),
        "mul" => c.mul(a, b),
        "div" => c.div(a, b),
        "min" => c.min(a, b),
        "max" => c.max(a, b),
        "sqrt" => c.sqrt(b),
        "cmp" => {
            let holds = c.compare(a, b, Predicate::from_immediate(immediate));
            F::from_bits(if holds { u64::MAX } else { 0 })
        }
        "round" => {
            let rounding = match immediate & 7 {
                0 => Rounding::Nearest,
                1 => Rounding::Down,
                2 => Rounding::Up,
                3 => Rounding::Zero,
                _ => c.rounding,
            };
            c.round_to_integral(b, rounding, immediate & 8 != 0)
        }
        _ => panic!("no such instruction: {name}"),
    }
}

fn horizontal<F: Float, const N: usize>(
    a: u128,
    b: u128,
    mut operation: impl FnMut(F, F) -> F,
) -> u128 {
    let result: [F; N] = std::array::from_fn(|index| {
        let (from, pair) = if index < N / 2 { (a, index) } else { (b, index - N / 2) };
        operation(element(from, 2 * pair), element(from, 2 * pair + 1))
    });
    register(result, 0)
}

fn add_and_subtract<F: Float, const N: usize>(c: &mut Context, a: u128, b: u128) -> u128 {
    let result: [F; N] = std::array::from_fn(|index| match index % 2 {
        0 => c.sub(element(a, index), element(b, index)),
        _ => c.add(element(a, index), element(b, index)),
    });
    register(result, 0)
}

fn flags(order: Option<Ordering>) -> u128 {
    match order {
        None => 0x45,
        Some(Ordering::Less) => 0x01,
        Some(Ordering::Equal) => 0x40,
        Some(Ordering::Greater) => 0,
    }
}

/// Returns the result of the instruction if no exception prevents it.
fn execute(c: &mut Context, name: &str, parameter: &str, a: u128, b: u128) -> u128 {
    let immediate = parameter.parse().unwrap_or(0);
    let conversion = if name.starts_with("cvtt") { Rounding::Zero } else { c.rounding };
    let mut integer = |value: F64| F32(c.convert_to_i32(value, conversion) as u32);
    match (name, parameter) {
        ("haddps", _) => horizontal::<F32, 4>(a, b, |a, b| c.add(a, b)),
        ("haddpd", _) => horizontal::<F64, 2>(a, b, |a, b| c.add(a, b)),
        ("hsubps", _) => horizontal::<F32, 4>(a, b, |a, b| c.sub(a, b)),
        ("hsubpd", _) => horizontal::<F64, 2>(a, b, |a, b| c.sub(a, b)),
        ("addsubps", _) => add_and_subtract::<F32, 4>(c, a, b),
        ("addsubpd", _) => add_and_subtract::<F64, 2>(c, a, b),
        ("dpps", _) => register(c.dot_f32([(elements(a), elements(b))], immediate)[0], 0),
        ("dppd", _) => register(c.dot_f64(elements(a), elements(b), immediate), 0),
        ("comiss" | "ucomiss", _) => {
            flags(c.order::<F32>(element(a, 0), element(b, 0), name == "comiss"))
        }
        ("comisd" | "ucomisd", _) => {
            flags(c.order::<F64>(element(a, 0), element(b, 0), name == "comisd"))
        }
        ("cvtss2sd", _) => register([c.convert::<F32, F64>(element(b, 0))], a),
        ("cvtsd2ss", _) => register([c.convert::<F64, F32>(element(b, 0))], a),
        ("cvtps2pd", _) => register(elements::<F32, 2>(b).map(|b| c.convert::<_, F64>(b)), 0),
        ("cvtpd2ps", _) => register(elements::<F64, 2>(b).map(|b| c.convert::<_, F32>(b)), 0),
        ("cvtpd2dq" | "cvttpd2dq", _) => register(elements::<F64, 2>(b).map(integer), 0),
        ("cvtsd2si" | "cvttsd2si", "32") => integer(element(b, 0)).0.into(),
        ("cvtsd2si" | "cvttsd2si", _) => {
            (c.convert_to_i64::<F64>(element(b, 0), conversion) as u64).into()
        }
        ("cvtps2dq" | "cvttps2dq", _) => {
            register(elements::<F32, 4>(b).map(|b| F32(c.convert_to_i32(b, conversion) as u32)), 0)
        }
        ("cvtss2si" | "cvttss2si", "32") => {
            (c.convert_to_i32::<F32>(element(b, 0), conversion) as u32).into()
        }
        ("cvtss2si" | "cvttss2si", _) => {
            (c.convert_to_i64::<F32>(element(b, 0), conversion) as u64).into()
        }
        ("cvtdq2ps", _) => {
            let integers = elements::<F32, 4>(b);
            register(integers.map(|b| c.convert_integer::<F32>((b.0 as i32).into())), 0)
        }
        ("cvtdq2pd", _) => {
            let integers = elements::<F32, 2>(b);
            register(integers.map(|b| c.convert_integer::<F64>((b.0 as i32).into())), 0)
        }
        ("cvtsi2ss", "32") => register([c.convert_integer::<F32>((b as i32).into())], a),
        ("cvtsi2ss", _) => register([c.convert_integer::<F32>(b as i64)], a),
        ("cvtsi2sd", "32") => register([c.convert_integer::<F64>((b as i32).into())], a),
        ("cvtsi2sd", _) => register([c.convert_integer::<F64>(b as i64)], a),
        _ => {
            let (operation, suffix) = name.split_at(name.len() - 2);
            let mut singles = |index| {
                by_element::<F32>(c, operation, immediate, element(a, index), element(b, index))
            };
            match suffix {
                "ss" => return register([singles(0)], a),
                "ps" => return register([0, 1, 2, 3].map(singles), 0),
                _ => {}
            }
            let mut doubles = |index| {
                by_element::<F64>(c, operation, immediate, element(a, index), element(b, index))
            };
            if suffix == "sd" {
                register([doubles(0)], a)
            } else {
                register([0, 1].map(doubles), 0)
            }
        }
    }
}

/// Executes the left side of a vector and returns its right side.
fn evaluate(case: &str) -> String {
    let words: Vec<&str> = case.split_whitespace().collect();
    let (name, parameter) = words[0].split_once(':').unwrap_or((words[0], ""));
    let mxcsr = bits(words[1]) as u32;
    let mut context = Context::new(mxcsr);
    let result = execute(&mut context, name, parameter, bits(words[2]), bits(words[3]));
    let (delivered, raised) = match context.conclude() {
        Ok(raised) => (format!("{result:032x}"), raised),
        Err(raised) => ("none".to_owned(), raised),
    };
    format!("{delivered} {:02x}", u32::from(raised.bits()) | mxcsr & 0x3f)
}

#[test]
fn results_are_those_of_a_real_processor() {
    for line in VECTORS.lines() {
        let (case, expected) = line.split_once(" = ").unwrap();
        assert_eq!(evaluate(case), expected, "{line}");
    }
}

/// A fixed series of numbers that looks random.
fn numbers() -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::from_fn(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(state)
    })
}

#[test]
fn host_arithmetic_agrees_with_integers() {
    fn check<F: Float + std::fmt::Debug>(a: F, b: F) {
        let operations: [fn(&mut Context, F, F) -> F; 5] = [
            |c, a, b| c.add(a, b),
            |c, a, b| c.sub(a, b),
            |c, a, b| c.mul(a, b),
            |c, a, b| c.div(a, b),
            |c, a, _| c.sqrt(a),
        ];
        for operation in operations {
            let (mut slow, mut quick) = (Context::new(MXCSR_INIT), Context::new(MXCSR_INIT | 0x20));
            assert!(quick.host_suffices && !slow.host_suffices);
            assert_eq!(operation(&mut quick, a, b), operation(&mut slow, a, b), "{a:?} {b:?}");
            let with_precision = |c: Context| c.conclude().unwrap().union(Flags::PRECISION);
            assert_eq!(with_precision(quick), with_precision(slow), "{a:?} {b:?}");
        }
    }
    let mut numbers = numbers();
    for _ in 0..20_000 {
        let (a, b) = (numbers.next().unwrap(), numbers.next().unwrap());
        check(F32::from_bits(a), F32::from_bits(b));
        check(F64::from_bits(a), F64::from_bits(b));
        // Numbers close to each other, and exponents for which products are close to the denormals.
        check(F32::from_bits(a), F32::from_bits(a ^ b >> 50));
        check(F32(a as u32 & 0x80ff_ffff | 0x2000_0000), F32(b as u32 & 0x80ff_ffff | 0x1f80_0000));
    }
}

#[test]
fn first_nan_is_the_result() {
    let mut context = Context::new(MXCSR_INIT);
    assert_eq!(context.add(QUIET, SIGNALING), QUIET);
    assert_eq!(context.conclude(), Ok(Flags::INVALID));
    let mut context = Context::new(MXCSR_INIT);
    assert_eq!(context.add(SIGNALING, QUIET), SIGNALING.quieted());
    // A NaN has priority over a denormal (SDM vol. 1, 4.9.2).
    let mut context = Context::new(MXCSR_INIT);
    assert_eq!(context.mul(DENORMAL, QUIET), QUIET);
    assert_eq!(context.conclude(), Ok(Flags::NONE));
}

#[test]
fn minimum_with_a_nan_is_the_second_operand() {
    let mut context = Context::new(MXCSR_INIT);
    assert_eq!(context.min(ONE, SIGNALING), SIGNALING);
    assert_eq!(context.min(QUIET, ONE), ONE);
    assert_eq!(context.max(F32::zero(false), F32::zero(true)), F32::zero(true));
    assert_eq!(context.conclude(), Ok(Flags::INVALID));
}

#[test]
fn unmasked_exceptions_before_computation_hide_those_after_it() {
    let mut context = Context::new(MXCSR_INIT & !(1 << (MASKS_SHIFT + 1)));
    context.div(ONE, F32(0x4040_0000));
    context.add(DENORMAL, ONE);
    assert_eq!(context.conclude(), Err(Flags::DENORMAL));
}

#[test]
fn tiny_results_are_flushed_where_asked_for() {
    let smallest = F32(0x0080_0000);
    let half = F32(0x3f00_0000);
    let mut context = Context::new(MXCSR_INIT | FLUSH_TO_ZERO);
    assert_eq!(context.mul(smallest, half.negate()), F32::zero(true));
    assert_eq!(context.conclude(), Ok(Flags::UNDERFLOW.union(Flags::PRECISION)));
    let mut context = Context::new(MXCSR_INIT);
    assert_eq!(context.mul(smallest, half), F32(0x0040_0000));
    assert_eq!(context.conclude(), Ok(Flags::NONE));
}

#[test]
fn approximations_are_as_close_as_the_manual_says() {
    for number in numbers().take(100_000) {
        let a = F32(number as u32 & 0x7fff_ffff);
        let value = f64::from(f32::from_bits(a.0));
        if !value.is_normal() || a.class() != format::Class::Normal {
            continue;
        }
        let close = |approximation: F32, exact: f64| {
            let approximation = f64::from(f32::from_bits(approximation.0));
            let tiny = exact < f64::from(f32::MIN_POSITIVE);
            tiny && approximation == 0.0 || (approximation / exact - 1.0).abs() <= 1.5 / 4096.0
        };
        assert!(close(reciprocal(a), value.recip()), "{a:?}");
        assert!(close(reciprocal_square_root(a), value.sqrt().recip()), "{a:?}");
    }
}

#[test]
fn approximations_of_special_values() {
    let infinity = F32::infinity(false);
    assert_eq!(reciprocal(ONE), ONE);
    assert_eq!(reciprocal(ONE.negate()), ONE.negate());
    assert_eq!(reciprocal(F32::zero(true)), F32::infinity(true));
    assert_eq!(reciprocal(DENORMAL), infinity);
    assert_eq!(reciprocal(infinity.negate()), F32::zero(true));
    assert_eq!(reciprocal(SIGNALING), SIGNALING.quieted());
    assert_eq!(reciprocal_square_root(ONE), ONE);
    assert_eq!(reciprocal_square_root(F32(0x4080_0000)), F32(0x3f00_0000));
    assert_eq!(reciprocal_square_root(ONE.negate()), F32::INDEFINITE);
    assert_eq!(reciprocal_square_root(infinity), F32::zero(false));
    assert_eq!(reciprocal_square_root(F32::zero(true)), F32::infinity(true));
    assert_eq!(reciprocal_square_root(QUIET), QUIET);
}
