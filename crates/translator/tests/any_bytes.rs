//! Random bytes as code, in random states: whatever the guest does, translated code neither panics nor hangs.

#[path = "../../x86/tests/common/mod.rs"]
mod common;
mod support;

use common::anything::{MEMORY, fill, random_cpu, run};
use common::random::Random;
use common::series::Series;
use ring3_x86::cpu::Cpu;
use ring3_x86::segment::{Attributes, Segment, sreg};
use support::translator;

const CASES: u64 = 300;

#[test]
fn any_bytes_in_any_state() {
    let series = Series::from_environment(CASES);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let Some((mut translator, mut memory)) = translator(MEMORY) else { return };
        fill(&mut random, &mut memory);
        let mut cpu = random_cpu(&mut random);
        if random.percent(60) {
            make_flat(&mut random, &mut cpu);
        }
        run(&mut translator, &mut random, &mut cpu, &mut memory);
    }
}

/// Makes the code flat, at a random privilege that is translated. Otherwise it remains segmented.
fn make_flat(random: &mut Random, cpu: &mut Cpu) {
    let privilege = random.pick(&[0, 0x60]);
    for register in sreg::ES..=sreg::DS {
        let attributes = if register == sreg::CS { 0xc09b } else { 0xc093 };
        let segment = Segment::new(8, 0, u32::MAX, Attributes(attributes | privilege));
        cpu.set_segment(register, segment);
    }
}
