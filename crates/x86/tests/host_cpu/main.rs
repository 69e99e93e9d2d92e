//! Random instructions of every integer form at privilege 3, here and on the real processor.
//!
//! | variable | what |
//! | --- | --- |
//! | `RING3_FUZZ_CASES` | number of cases, spread evenly over the forms |
//! | `RING3_FUZZ_SEED` | another series of cases |
//! | `RING3_FUZZ_CASE` | only the case of this number |
//!
//! What is compared: registers, EIP, EFLAGS but for what is [undefined](ring3_x86::undefined),
//! memory, and the exception with its error code and CR2. Alignment checks (EFLAGS.AC) are
//! not part of it, as the interpreter has none.

#[path = "../common/random.rs"]
mod random;

mod encode;
mod forms;
mod guest;
mod scene;
mod vendors;

use std::fmt::Write;

use iced_x86::{Formatter, NasmFormatter};
use ring3_hostcpu::{Layout, PAGE_SIZE, Runner, State, Stop, gpr};
use ring3_x86::flags::Eflags;
use ring3_x86::undefined::undefined;

use guest::Guest;
use random::Random;
use scene::Scene;

const LAYOUT: Layout = Layout::FIXED;
const CASES: u64 = if cfg!(debug_assertions) { 20_000 } else { 200_000 };
const SEED: u64 = 0x2026;
/// Differences that are told of one form, and of all.
const TOLD_OF_FORM: usize = 2;
const TOLD: usize = 24;

#[test]
fn every_form_does_what_the_host_does() {
    let mut bench = match Bench::new() {
        Ok(bench) => bench,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let forms = forms::tested();
    let seed = variable("RING3_FUZZ_SEED").unwrap_or(SEED);
    let cases = match variable("RING3_FUZZ_CASE") {
        Some(case) => case..case + 1,
        None => 0..variable("RING3_FUZZ_CASES").unwrap_or(CASES),
    };
    let mut told = vec![0; forms.len()];
    let mut text = String::new();
    for case in cases {
        let form = (case % forms.len() as u64) as usize;
        let mut random = Random::new(seed, case);
        let scene = Scene::random(&mut random, forms[form]);
        if let Err(difference) = bench.compare(&scene) {
            told[form] += 1;
            if told[form] <= TOLD_OF_FORM && told.iter().filter(|count| **count > 0).count() <= TOLD
            {
                let _ = writeln!(text, "seed {seed:#x} case {case}: {difference}");
            }
        }
    }
    for (form, count) in forms.iter().zip(told).filter(|(_, count)| *count > 0) {
        let _ = writeln!(text, "{form:?}: {count}");
    }
    let Bench { left_out, disturbed, .. } = bench;
    println!("{} forms; cases not compared: {left_out}, disturbed: {disturbed}", forms.len());
    assert!(text.is_empty(), "differences from the host's processor:\n{text}");
}

/// The number in an environment variable.
fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is to be a number, not {text:?}")))
}

/// Both sides.
struct Bench {
    host: Runner,
    guest: Guest,
    /// What the data region holds before each case, but for its pokes.
    data: Vec<u8>,
    left_out: u64,
    /// Cases that differed once and not again.
    disturbed: u64,
}

impl Bench {
    fn new() -> Result<Bench, ring3_hostcpu::Unavailable> {
        let mut host = Runner::new()?;
        let mut guest = Guest::new();
        let mut random = Random::new(SEED, u64::MAX);
        let mut fill = |len: u32| -> Vec<u8> {
            (0..len / 4).flat_map(|_| random.number().to_le_bytes()).collect()
        };
        let data = fill(LAYOUT.data.len);
        let read_only = fill(LAYOUT.read_only.len);
        host.data_mut().copy_from_slice(&data);
        host.read_only_mut().copy_from_slice(&read_only);
        guest.set_bytes(LAYOUT.data, &data);
        guest.set_bytes(LAYOUT.read_only, &read_only);
        // The kernel maps a page when it is first executed, and until
        // then reports it as not present.
        for page in (LAYOUT.code.start..LAYOUT.code.end()).step_by(PAGE_SIZE as usize) {
            let _ = host.run(&State::at(page), &[0x90]);
        }
        Ok(Bench { host, guest, data, left_out: 0, disturbed: 0 })
    }

    /// Runs the case on both sides; what differs is the error. A difference must show twice: where
    /// the kernel that takes an interrupt in the middle is not Linux itself, it has
    /// been seen to lose NT and ID.
    fn compare(&mut self, scene: &Scene) -> Result<(), String> {
        if self.attempt(scene).is_ok() {
            return Ok(());
        }
        let again = self.attempt(scene);
        self.disturbed += u64::from(again.is_ok());
        again
    }

    fn attempt(&mut self, scene: &Scene) -> Result<(), String> {
        if !scene.pokes.is_empty() {
            for poke in &scene.pokes {
                poke.apply(self.host.data_mut());
            }
            self.guest.set_bytes(LAYOUT.data, self.host.data());
        }
        let before = self.host.data().to_vec();
        let result = self.run(scene, &before);
        self.host.data_mut().copy_from_slice(&self.data);
        self.guest.set_bytes(LAYOUT.data, &self.data);
        result
    }

    fn run(&mut self, scene: &Scene, before: &[u8]) -> Result<(), String> {
        let (ours, our_stop) = match self.guest.run(&scene.start, &scene.code, scene.pace) {
            Ok(end) => end,
            Err(exit) => return Err(format!("{}left the engine: {exit:?}\n", describe(scene))),
        };
        if vendors::is_left_out(scene, &ours, our_stop) {
            self.left_out += 1;
            return Ok(());
        }
        let (mut host, host_stop) = match self.host.run(&scene.start, &scene.code) {
            Ok(end) => end,
            Err(refused) => return Err(format!("{}refused: {refused}\n", describe(scene))),
        };
        let host_stop = vendors::as_without_nx(host_stop);
        if our_stop == Stop::Reached && host_stop == Stop::Reached {
            let undefined = undefined(&scene.instruction, scene.start.gpr[gpr::ECX] as u8);
            if undefined.destination {
                return Ok(());
            }
            let mask = undefined.flags.bits();
            host.eflags = host.eflags & !mask | ours.eflags & mask;
        }
        vendors::forgive(scene, &mut host, &ours, our_stop);
        if let Some(unwritten) = vendors::unwritten(scene, &ours, our_stop) {
            let ours = self.guest.bytes(LAYOUT.data);
            self.host.data_mut()[unwritten.clone()].copy_from_slice(&ours[unwritten]);
        }
        let memory = self.memory_difference(before);
        if ours.gpr == host.gpr
            && ours.eip == host.eip
            && ours.eflags == host.eflags
            && our_stop == host_stop
            && memory.is_none()
        {
            return Ok(());
        }
        let mut text = describe(scene);
        let _ = writeln!(text, "  start {}", describe_state(&scene.start));
        let _ = writeln!(text, "  host  {} {host_stop:x?}", describe_state(&host));
        let _ = writeln!(text, "  ours  {} {our_stop:x?}", describe_state(&ours));
        text += &memory.unwrap_or_default();
        Err(text)
    }

    fn memory_difference(&self, before: &[u8]) -> Option<String> {
        let mut text = String::new();
        for (region, host, before) in [
            (LAYOUT.data, self.host.data(), before),
            (LAYOUT.read_only, self.host.read_only(), self.host.read_only()),
        ] {
            let ours = self.guest.bytes(region);
            if host == ours {
                continue;
            }
            let differing = (0..host.len()).filter(|offset| host[*offset] != ours[*offset]);
            for offset in differing.take(8) {
                let _ = writeln!(
                    text,
                    "  at {:08x}: was {:02x}, host {:02x}, ours {:02x}",
                    region.start as usize + offset,
                    before[offset],
                    host[offset],
                    ours[offset],
                );
            }
        }
        (!text.is_empty()).then_some(text)
    }
}

fn describe(scene: &Scene) -> String {
    let mut disassembly = String::new();
    NasmFormatter::new().format(&scene.instruction, &mut disassembly);
    let code: Vec<_> = scene.code.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:?}: {} {disassembly}\n", scene.instruction.code(), code.join(" "))
}

fn describe_state(state: &State) -> String {
    let mut text = String::new();
    let names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
    for (name, value) in names.into_iter().zip(state.gpr) {
        let _ = write!(text, "{name} {value:08x} ");
    }
    let flags = Eflags::from_bits_truncate(state.eflags);
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    let _ = write!(text, "eip {:08x} {}", state.eip, names.join(" "));
    text
}
