//! Tests with results that were computed elsewhere with 400 bits, and with special values.

use super::Function::{F2xm1, Fcos, Fpatan, Fptan, Fsin, Fsincos, Fyl2x, Fyl2xp1};
use super::*;

/// As after FNINIT.
const CONTROL: u16 = 0x037f;

const MINUS_ONE: F80 = F80::ONE.negate();
const MINUS_ZERO: F80 = F80::ZERO.negate();
const MINUS_INFINITY: F80 = F80::INFINITY.negate();
const DENORMAL: F80 = F80::new(0, 1);
const QUIET: F80 = F80::new(0x7fff, 0xc000_0000_0000_0005);

/// Runs a function. Returns the exceptions that it raised, and the (first) result.
fn run(function: Function, st0: F80, st1: F80) -> (Flags, F80) {
    let outcome = execute(function, CONTROL, [st0, st1]);
    assert!(!outcome.incomplete);
    let result = match outcome.results {
        Results::Replace(value) | Results::Pop(value) => value,
        Results::Push { replacing, .. } => replacing,
        Results::None => panic!("no result"),
    };
    (outcome.raised, result)
}

#[test]
fn numbers_are_rounded_correctly() {
    let rows = [
        (
            F2xm1,
            (0x3ffe, 0xa0b26c1c9f767c45),
            (0x0000, 0x0000000000000000),
            (0x3ffe, 0x8b8d3d0b0b3eaba3),
        ),
        (
            F2xm1,
            (0xbffb, 0xade47ddebde5c099),
            (0x0000, 0x0000000000000000),
            (0xbffa, 0xea1c0a752b315993),
        ),
        (
            F2xm1,
            (0x3f80, 0xd8608fefcb91ce37),
            (0x0000, 0x0000000000000000),
            (0x3f80, 0x95fb32c707f81497),
        ),
        (
            Fyl2x,
            (0x3ffe, 0xebb6a198f1446bea),
            (0xbffe, 0xd375c64fbd69fe29),
            (0x3ffb, 0xc97eff48f75426f4),
        ),
        (
            Fyl2x,
            (0x3fff, 0xc3d85892ec1d7da0),
            (0xbffe, 0xeb9086ff076ce2ef),
            (0xbffe, 0x908900ac9192b0a1),
        ),
        (
            Fyl2x,
            (0x5000, 0xe3529c3b77330bdb),
            (0xbffe, 0x9fe0f51bf17fd374),
            (0xc00a, 0x9ff33ac5a622e112),
        ),
        (
            Fyl2x,
            (0x0001, 0x86a3209ca6233255),
            (0xbffe, 0x9413b446e6a16a3b),
            (0x400c, 0x940ee8764f3e885b),
        ),
        (
            Fyl2x,
            (0x3fff, 0x8000000000000001),
            (0x4001, 0xaf96ecbf1cfb10f6),
            (0x3fc2, 0xfd5279ed7548a3eb),
        ),
        (
            Fyl2x,
            (0x3ffe, 0xffffffffffffffff),
            (0x4001, 0xaf96ecbf1cfb10f6),
            (0xbfc1, 0xfd5279ed7548a3ec),
        ),
        (
            Fyl2xp1,
            (0x3ffc, 0xef2938807814e8a2),
            (0x4002, 0xb0bcace73f1f65a8),
            (0x4000, 0xd6147bfcc0b91f80),
        ),
        (
            Fyl2xp1,
            (0xbffc, 0x8d0d7f438b33e968),
            (0x4002, 0x9fea11ac92edcf45),
            (0xc000, 0x88c4f0fb209fce88),
        ),
        (
            Fyl2xp1,
            (0xbf00, 0xdd976d90035b7399),
            (0x4002, 0xb43e4b36377b9aa2),
            (0xbf04, 0xe115cedd748e3577),
        ),
        (
            Fyl2xp1,
            (0x3fff, 0x974e4158478c281d),
            (0x4002, 0xef08e64eea959c21),
            (0x4003, 0x868a7540e5d843db),
        ),
        (
            Fpatan,
            (0x3fff, 0xb1d914f8c4069545),
            (0x3ffe, 0xe186c5bb28dbd25e),
            (0x3ffe, 0x90a8cb265224ba04),
        ),
        (
            Fpatan,
            (0xbfff, 0x89350f24cc11d357),
            (0x3ffe, 0xcf18348e238642ea),
            (0x4000, 0x9fafcaa1e0ac305a),
        ),
        (
            Fpatan,
            (0xbff0, 0xb8f0603f9e115e4b),
            (0xc005, 0x90ed44bc206f5c66),
            (0xbfff, 0xc90fdfbcd7764820),
        ),
        (
            Fpatan,
            (0x4010, 0xfc758c5c00745130),
            (0xbfa0, 0x80ae19d9df1461aa),
            (0xbf8e, 0x827c2014c23e6979),
        ),
        (
            Fpatan,
            (0x3fff, 0xe3051e55359eeefb),
            (0x3fff, 0xfae571df3729c619),
            (0x3ffe, 0xd5d7413e308d20d2),
        ),
        (
            Fsin,
            (0x3ffd, 0x953ac8acfb7ff337),
            (0x0000, 0x0000000000000000),
            (0x3ffd, 0x93202e37c188076e),
        ),
        (
            Fcos,
            (0x3ffd, 0x953ac8acfb7ff337),
            (0x0000, 0x0000000000000000),
            (0x3ffe, 0xf533f7351d82a0e0),
        ),
        (
            Fptan,
            (0x3ffd, 0x953ac8acfb7ff337),
            (0x0000, 0x0000000000000000),
            (0x3ffd, 0x999aa52dbc6be7dc),
        ),
        (
            Fsin,
            (0xbfff, 0x954f5d06df561d80),
            (0x0000, 0x0000000000000000),
            (0xbffe, 0xeb5c0cd7feeb71e8),
        ),
        (
            Fcos,
            (0xbfff, 0x954f5d06df561d80),
            (0x0000, 0x0000000000000000),
            (0x3ffd, 0xc969ea01f1453fc7),
        ),
        (
            Fptan,
            (0xbfff, 0x954f5d06df561d80),
            (0x0000, 0x0000000000000000),
            (0xc000, 0x9592a645906fbbdf),
        ),
        (
            Fsin,
            (0x4001, 0xa825ba5d4a0fe75d),
            (0x0000, 0x0000000000000000),
            (0xbffe, 0xdb47f993333403a0),
        ),
        (
            Fcos,
            (0x4001, 0xa825ba5d4a0fe75d),
            (0x0000, 0x0000000000000000),
            (0x3ffe, 0x841aec889860d0ae),
        ),
        (
            Fptan,
            (0x4001, 0xa825ba5d4a0fe75d),
            (0x0000, 0x0000000000000000),
            (0xbfff, 0xd4778c49439aa5e7),
        ),
        (
            Fsin,
            (0x4020, 0x99753494f6236bf2),
            (0x0000, 0x0000000000000000),
            (0xbffa, 0xb82dd576d65ce1a1),
        ),
        (
            Fcos,
            (0x4020, 0x99753494f6236bf2),
            (0x0000, 0x0000000000000000),
            (0xbffe, 0xffbdb67577efcf9f),
        ),
        (
            Fptan,
            (0x4020, 0x99753494f6236bf2),
            (0x0000, 0x0000000000000000),
            (0x3ffa, 0xb85d928d11f41b45),
        ),
        (
            Fsin,
            (0xc03d, 0xf024aa478a0a8c96),
            (0x0000, 0x0000000000000000),
            (0xbffc, 0x97fdf53476f1b074),
        ),
        (
            Fcos,
            (0xc03d, 0xf024aa478a0a8c96),
            (0x0000, 0x0000000000000000),
            (0xbffe, 0xfd2a0e1c707c6395),
        ),
        (
            Fptan,
            (0xc03d, 0xf024aa478a0a8c96),
            (0x0000, 0x0000000000000000),
            (0x3ffc, 0x99b1caf132e429a8),
        ),
        (
            Fsin,
            (0x4000, 0xc90fdaa22168c235),
            (0x0000, 0x0000000000000000),
            (0xbfbf, 0x8000000000000000),
        ),
    ];
    for (function, st0, st1, expected) in rows {
        let [st0, st1, expected] = [st0, st1, expected].map(|(se, m)| F80::new(se, m));
        assert_eq!(run(function, st0, st1), (Flags::PRECISION, expected), "{function:?} {st0:x?}");
    }
}

#[test]
fn rounding_control_is_obeyed() {
    // π/2 between its neighbours: to nearest, down, up, toward zero.
    let [nearest, down, up, zero] = [0x037f, 0x077f, 0x0b7f, 0x0f7f].map(|control| {
        let outcome = execute(Fpatan, control, [F80::ZERO, MINUS_ONE]);
        let Results::Pop(F80 { significand, .. }) = outcome.results else { panic!("{outcome:?}") };
        (significand & 0xf, outcome.rounded_up)
    });
    assert_eq!((nearest, down, up, zero), ((5, true), (5, true), (4, false), (4, false)));
}

#[test]
fn the_logarithm_of_a_power_of_two_is_exact_but_for_the_exceptions() {
    // Upward, the largest number times 1 does not overflow.
    let (two, largest) = (F80::new(0x4000, 1 << 63), F80::new(0x7ffe, u64::MAX));
    let outcome = execute(Fyl2x, 0x0b7f, [two, largest]);
    assert_eq!((outcome.raised, outcome.results), (Flags::PRECISION, Results::Pop(largest)));
    let small = Flags::DENORMAL.union(Flags::UNDERFLOW).union(Flags::PRECISION);
    assert_eq!(run(Fyl2x, two, DENORMAL), (small, DENORMAL));
}

#[test]
fn exact_results_raise_no_exception() {
    for (function, st0, st1, expected) in [
        (F2xm1, MINUS_ZERO, F80::ZERO, MINUS_ZERO),
        (F2xm1, F80::INFINITY, F80::ZERO, F80::INFINITY),
        (F2xm1, MINUS_INFINITY, F80::ZERO, MINUS_ONE),
        (Fyl2x, F80::ONE, MINUS_ONE, MINUS_ZERO),
        (Fyl2x, F80::ZERO, F80::INFINITY, MINUS_INFINITY),
        (Fyl2x, F80::INFINITY, MINUS_ONE, MINUS_INFINITY),
        (Fyl2xp1, MINUS_ZERO, MINUS_ONE, F80::ZERO),
        (Fyl2xp1, F80::INFINITY, F80::ONE, F80::INFINITY),
        (Fpatan, F80::ONE, MINUS_ZERO, MINUS_ZERO),
        (Fpatan, F80::INFINITY, MINUS_ONE, MINUS_ZERO),
        (Fsin, MINUS_ZERO, F80::ZERO, MINUS_ZERO),
        (Fcos, MINUS_ZERO, F80::ZERO, F80::ONE),
        (Fptan, MINUS_ZERO, F80::ZERO, MINUS_ZERO),
        (Fsincos, QUIET, F80::ZERO, QUIET),
        (Fyl2x, MINUS_ONE, QUIET, QUIET),
    ] {
        assert_eq!(run(function, st0, st1), (Flags::NONE, expected), "{function:?} {st0:x?}");
    }
}

#[test]
fn invalid_operands() {
    for (function, st0, st1) in [
        (Fyl2x, MINUS_ONE, F80::ONE),
        (Fyl2x, MINUS_INFINITY, F80::ONE),
        (Fyl2x, F80::ZERO, F80::ZERO),
        (Fyl2x, F80::ONE, F80::INFINITY),
        (Fyl2x, F80::INFINITY, F80::ZERO),
        (Fyl2xp1, F80::ZERO, F80::INFINITY),
        (Fyl2xp1, F80::INFINITY, F80::ZERO),
        (Fyl2xp1, MINUS_INFINITY, F80::ONE),
        (Fsin, F80::INFINITY, F80::ZERO),
        (Fcos, MINUS_INFINITY, F80::ZERO),
        (Fptan, F80::INFINITY, F80::ZERO),
        (F2xm1, F80::new(0x3fff, 1), F80::ZERO),
    ] {
        assert_eq!(run(function, st0, st1), (Flags::INVALID, F80::INDEFINITE), "{function:?}");
        let unmasked = execute(function, CONTROL & !Flags::INVALID.bits(), [st0, st1]);
        assert_eq!((unmasked.raised, unmasked.results), (Flags::INVALID, Results::None));
    }
}

#[test]
fn the_logarithm_of_zero_divides_by_zero() {
    assert_eq!(run(Fyl2x, F80::ZERO, DENORMAL), (Flags::ZERO_DIVIDE, MINUS_INFINITY));
    assert_eq!(run(Fyl2x, MINUS_ZERO, MINUS_ONE), (Flags::ZERO_DIVIDE, F80::INFINITY));
}

#[test]
fn denormals_come_and_go() {
    let small = Flags::DENORMAL.union(Flags::UNDERFLOW).union(Flags::PRECISION);
    assert_eq!(run(Fsin, DENORMAL, F80::ZERO), (small, DENORMAL));
    let smallest = F80::new(1, 1 << 63);
    let halved = Flags::UNDERFLOW.union(Flags::PRECISION);
    assert_eq!(run(Fpatan, F80::new(0x4000, 1 << 63), smallest), (halved, F80::new(0, 1 << 62)));
    let overflow = Flags::OVERFLOW.union(Flags::PRECISION);
    let largest = F80::new(0x7ffe, u64::MAX);
    assert_eq!(run(Fyl2x, largest, largest), (overflow, F80::INFINITY));
}

#[test]
fn large_angles_are_left_alone() {
    let limit = F80::new(0x403e, 1 << 63);
    for function in [Fsin, Fcos, Fptan, Fsincos] {
        let outcome = execute(function, CONTROL, [limit.negate(), F80::ZERO]);
        assert!(outcome.incomplete);
        assert_eq!((outcome.raised, outcome.results), (Flags::NONE, Results::None));
        let below = execute(function, CONTROL, [F80::new(0x403d, u64::MAX), F80::ZERO]);
        assert!(!below.incomplete);
    }
}

#[test]
fn the_two_results() {
    let outcome = execute(Fptan, CONTROL, [F80::ZERO, QUIET]);
    assert_eq!(outcome.results, Results::Push { replacing: F80::ZERO, pushed: F80::ONE });
    let one = [F80::ONE, QUIET];
    let both = execute(Fsincos, CONTROL, one).results;
    let (Results::Replace(replacing), Results::Replace(pushed)) =
        (execute(Fsin, CONTROL, one).results, execute(Fcos, CONTROL, one).results)
    else {
        panic!("a sine and a cosine replace ST(0)");
    };
    assert_eq!(both, Results::Push { replacing, pushed });
}
