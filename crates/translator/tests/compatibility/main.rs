//! Random programs of 32-bit code under a 64-bit kernel. They call it in all ways that there are, and it changes
//! their page tables; they go to 64-bit code, 16-bit code and other segments and come back. They must have the
//! same results on the translator as on the interpreter, with deadlines anywhere.

#[path = "../support/agreement.rs"]
mod agreement;
mod kernel;
mod programs;
#[path = "../../../x86/tests/common/random.rs"]
#[allow(dead_code, reason = "it is not all needed here")]
mod random;
#[path = "../../../x86/tests/common/series.rs"]
mod series;
#[path = "../support/mod.rs"]
mod support;

use agreement::{Outcome, assert_agrees, run};
use ring3_core::memory::Memory;
use ring3_x86::engine::Engine;
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use series::Series;
use support::translator;

const CASES: u64 = if cfg!(debug_assertions) { 20 } else { 60 };
#[test]
fn the_translator_agrees_with_the_interpreter_in_compatibility_mode() {
    let series = Series::from_environment(CASES);
    let (mut executed, mut interpreted) = (0, 0);
    for case in series.cases.clone() {
        let mut random = series.random(case);
        let code = programs::program(&mut random);
        let mut memory_then = Memory::new(kernel::MEMORY).unwrap();
        let mut cpu = kernel::machine(&mut memory_then, &code, random.clone());
        let expected =
            run(&mut Interpreter::new(), &mut cpu, &mut memory_then, &mut random.clone(), None);
        let Some((mut translator, mut memory)) = translator(kernel::MEMORY) else { return };
        let mut cpu = kernel::machine(&mut memory, &code, random.clone());
        let states = run(&mut translator, &mut cpu, &mut memory, &mut random, None);
        let what = format!("RING3_FUZZ_SEED={} RING3_FUZZ_CASE={case}", series.seed);
        let ours = Outcome { states: &states, memory: &memory };
        assert_agrees(&what, &ours, &Outcome { states: &expected, memory: &memory_then });
        executed += cpu.instructions;
        let counters = translator.counters();
        let name = "instructions interpreted";
        interpreted += counters.into_iter().find(|(known, _)| *known == name).unwrap().1;
    }
    println!("{interpreted} of {executed} instructions interpreted");
    let cases = series.cases.end - series.cases.start;
    assert!(cases == 1 || interpreted < executed / 2, "{interpreted} of {executed}");
}

#[test]
fn rf_lasts_until_an_access_to_a_device_completes() {
    // An instruction before the access begins, after which RF is not set.
    for nops in [0, 1] {
        // PUSHFD; OR DWORD [ESP], RF; PUSH CS
        let before = [0x9c, 0x81, 0x0c, 0x24, 0, 0, 1, 0, 0x0e];
        // PUSH the address behind IRETD; IRETD; NOPs; OUT 80h, AL
        let behind = kernel::CODE as u32 + before.len() as u32 + 6;
        let push = [&[0x68][..], &behind.to_le_bytes(), &[0xcf]].concat();
        let mut code = [&before[..], &push, &vec![0x90; nops], &[0xe6, 0x80]].concat();
        code.resize(0x100, 0x90);
        let mut outcomes = Vec::new();
        let Some((mut translator, translated)) = translator(kernel::MEMORY) else { return };
        let plain = Memory::new(kernel::MEMORY).unwrap();
        let engines: [(&mut dyn Engine, Memory); 2] =
            [(&mut Interpreter::new(), plain), (&mut translator, translated)];
        for (engine, mut memory) in engines {
            let random = Series::from_environment(1).random(0);
            let mut cpu = kernel::machine(&mut memory, &code, random);
            let exit = engine.run(&mut cpu, &mut memory, 1000);
            assert!(exit.is_access(), "{exit:?}");
            outcomes.push(cpu.eflags().contains(Eflags::RF));
        }
        assert_eq!(outcomes, [nops == 0; 2], "with {nops} instructions before");
    }
}
