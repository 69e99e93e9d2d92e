//! Prints how many cases a second this host runs, for some kinds of instruction.
//!
//! `cargo run --release -p ring3-hostcpu --example speed`

use std::time::{Duration, Instant};

use ring3_hostcpu::{Cpu, Layout, Runner, State, gpr};

fn main() {
    let mut cpu = match Runner::new() {
        Ok(cpu) => cpu,
        Err(reason) => {
            eprintln!("not on this host: {reason}");
            return;
        }
    };
    if let Some(cpu) = Cpu::detect() {
        println!("{:?}, family {:x}, model {:x}", cpu.vendor, cpu.family, cpu.model);
    }
    let mut start = State::at(Layout::FIXED.code.start);
    start.gpr[gpr::EBX] = Layout::FIXED.hole_after.start;
    let cases: [(&str, &[u8]); 6] = [
        ("ADD EAX, EBX", &[0x01, 0xd8]),
        ("FLD1", &[0xd9, 0xe8]),
        ("JMP to a hole", &[0xff, 0xe3]),
        ("load from a hole (#PF)", &[0x8b, 0x03]),
        ("DIV by zero (#DE)", &[0xf7, 0xf1]),
        ("UD2 (#UD)", &[0x0f, 0x0b]),
    ];
    for (name, code) in cases {
        let rate = rate(|| drop(cpu.run(&start, code)));
        println!("{name:24} {rate:9.0} a second, {:5.2} us each", 1e6 / rate);
    }
}

/// Returns the number of calls of `case` in a second.
fn rate(mut case: impl FnMut()) -> f64 {
    const BATCH: u32 = 1000;
    let begin = Instant::now();
    let mut calls = 0_u32;
    while begin.elapsed() < Duration::from_millis(500) {
        (0..BATCH).for_each(|_| case());
        calls += BATCH;
    }
    f64::from(calls) / begin.elapsed().as_secs_f64()
}
