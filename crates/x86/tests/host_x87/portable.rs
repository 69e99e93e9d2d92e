//! Compares the transcendental functions without an x87 with the host's.
//!
//! Special values, exceptions and C2 must be equal, and so must exact results. Other results may differ by
//! [`LIMIT`] units in the last place (and in C1), which is the error that the manual allows a processor plus
//! the rounding of both.

use ring3_hostcpu::{Cpu, Vendor};
use ring3_x86::softfloat::transcendental::{self, Function, Outcome, Results};
use ring3_x86::softfloat::{Class, F80, Flags};

use crate::common::host_fpu;
use crate::common::random::Random;
use crate::common::series::Series;
use crate::scene;

/// The test takes a fraction of a second when optimised.
const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };

/// Units in the last place: up to 1 for the processor, and up to 1 for directed rounding. On Zen 5 no
/// difference greater than 1 has been seen.
const LIMIT: u128 = 2;

/// The most differences that are reported.
const TOLD: usize = 20;

#[test]
fn the_portable_functions_are_near_the_hosts() {
    let is_amd = Cpu::detect().is_some_and(|cpu| cpu.vendor == Vendor::Amd);
    let series = Series::from_environment(CASES);
    let mut largest = [[0; 4]; Function::ALL.len()];
    let mut differences = Vec::new();
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let index = (case % Function::ALL.len() as u64) as usize;
        let function = Function::ALL[index];
        let st = [(); 2].map(|()| F80::from_bytes(scene::f80(&mut random)));
        let control = control(&mut random);
        let Some(host) = host_fpu::try_execute(function, control, st) else {
            ring3_skipped::host("the host has no x87");
            return;
        };
        if !is_amd && is_undefined(function, st[0]) {
            continue;
        }
        let ours = transcendental::execute(function, control, st);
        if !is_amd && is_at_a_threshold(&host, &ours) {
            continue;
        }
        let distance = distance(&host, &ours, st[0]);
        let largest = &mut largest[index][usize::from(control >> 10 & 3)];
        match distance {
            Some(distance) if distance <= LIMIT => *largest = distance.max(*largest),
            _ => differences.push(format!(
                "case {case}: {function:?} {control:04x} {st:x?}\n  host {host:x?}\n  ours {ours:x?}"
            )),
        }
    }
    for (function, largest) in Function::ALL.iter().zip(largest) {
        println!("{function:?}: {largest:?} units by rounding control");
    }
    let count = differences.len();
    differences.truncate(TOLD);
    assert!(count == 0, "{count} differences:\n{}", differences.join("\n"));
}

/// Returns a control word, with all exceptions masked in half of all cases.
fn control(random: &mut Random) -> u16 {
    let masks = if random.percent(50) { 0x3f } else { random.bits() as u16 & 0x3f };
    masks | 0x40 | random.pick(&[0, 2, 3, 3]) << 8 | (random.bits() as u16 & 3) << 10
}

/// Returns whether the operand is out of range, so that the manual leaves the result undefined (SDM vol. 2,
/// F2XM1, FYL2XP1).
fn is_undefined(function: Function, st0: F80) -> bool {
    let magnitude = st0.abs();
    let exceeds = |limit: F80| {
        (magnitude.sign_exponent, magnitude.significand) > (limit.sign_exponent, limit.significand)
    };
    match function {
        Function::F2xm1 => exceeds(F80::ONE),
        // 1 - √½
        Function::Fyl2xp1 => exceeds(F80::new(0x3ffd, 0x95f6_1998_0c43_36f7)),
        _ => false,
    }
}

/// Returns whether the result is the smallest normal or the largest finite number, or less than a unit away
/// from it. The last bit then decides whether it underflows or overflows, and Intel's processors decide
/// differently from AMD's and ours, for operands as simple as FYL2X of ½.
fn is_at_a_threshold(host: &Outcome, ours: &Outcome) -> bool {
    [Flags::UNDERFLOW, Flags::OVERFLOW].into_iter().any(|flag| {
        let calm = match (host.raised.contains(flag), ours.raised.contains(flag)) {
            (false, true) => host,
            (true, false) => ours,
            _ => return false,
        };
        let threshold = match flag {
            Flags::UNDERFLOW => F80::new(1, 1 << 63),
            _ => F80::new(0x7ffe, u64::MAX),
        };
        let result = match calm.results {
            Results::Replace(result) | Results::Pop(result) => result,
            Results::Push { replacing, .. } => replacing,
            Results::None => return false,
        };
        result.abs() == threshold && host.raised.union(flag) == ours.raised.union(flag)
    })
}

/// Returns the distance between the results in units of the last place, or None if the outcomes differ in
/// another way.
fn distance(host: &Outcome, ours: &Outcome, st0: F80) -> Option<u128> {
    let inexact = ours.raised.contains(Flags::PRECISION);
    let same_flags = host.raised == ours.raised
        && host.incomplete == ours.incomplete
        && (inexact || host.rounded_up == ours.rounded_up);
    if !same_flags {
        return None;
    }
    let pairs = match (host.results, ours.results) {
        (Results::Replace(host), Results::Replace(ours))
        | (Results::Pop(host), Results::Pop(ours)) => vec![(host, ours)],
        (
            Results::Push { replacing, pushed },
            Results::Push { replacing: our_replacing, pushed: our_pushed },
        ) => vec![(replacing, our_replacing), (pushed, our_pushed)],
        // The host reports the contents of ST(0) if it has done nothing.
        (Results::Replace(host), Results::None) => return (host == st0).then_some(0),
        _ => return None,
    };
    let distances = pairs.into_iter().map(|(host, ours)| match (host, ours) {
        _ if host == ours => Some(0),
        _ if inexact && is_number(host) && is_number(ours) => {
            Some(place(host).abs_diff(place(ours)))
        }
        _ => None,
    });
    distances.collect::<Option<Vec<_>>>()?.into_iter().max()
}

fn is_number(value: F80) -> bool {
    matches!(value.class(), Class::Normal | Class::Denormal | Class::Zero)
}

/// Returns the position of a value in the order of all values.
fn place(value: F80) -> i128 {
    let F80 { sign_exponent, significand } = value.abs();
    let magnitude = i128::from(sign_exponent) << 63 | i128::from(significand & !(1 << 63));
    if value.is_negative() { -magnitude } else { magnitude }
}
