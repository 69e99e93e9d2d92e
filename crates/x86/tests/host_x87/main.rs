//! Every x87 instruction in random states at privilege 3, here and on the real processor.
//!
//! | variable | what |
//! | --- | --- |
//! | `RING3_FUZZ_CASES` | number of cases, spread evenly over the encodings |
//! | `RING3_FUZZ_SEED` | another series of cases |
//! | `RING3_FUZZ_CASE` | only the case of this number |
//!
//! What is compared: the control and status words (so that a pending exception is seen), the
//! contents of all registers, which of them are empty, EFLAGS, the general registers, memory,
//! and the exception with its error code and CR2. The full tag word is compared where FNSTENV
//! and FNSAVE store it. What is not:
//!
//! | what | why |
//! | --- | --- |
//! | instruction, operand and opcode pointers | processors differ in when they keep them |
//! | the page offset in CR2 for environments and whole states | processors access these in an order of their own |
//! | FPREM and FPREM1, except on AMD | the manual leaves to the processor how far one step goes |

#[path = "../common/random.rs"]
#[allow(dead_code, reason = "not every test needs all kinds of numbers")]
mod random;

mod guest;
mod scene;

use std::fmt::Write;

use iced_x86::{Code, Formatter, NasmFormatter};
use ring3_hostcpu::{Cpu as HostCpu, Layout, Runner, State, Stop, Vendor};
use ring3_x86::softfloat::F80;

use guest::Guest;
use random::Random;
use scene::Scene;

/// A few seconds in either build.
const CASES: u64 = if cfg!(debug_assertions) { 50_000 } else { 1_000_000 };
const SEED: u64 = 0x2026;
/// Differences after which the test gives up.
const TOLD: usize = 20;

#[test]
fn every_form_does_what_the_host_does() {
    let mut host = match Runner::new() {
        Ok(host) => host,
        Err(reason) => {
            println!("skipped: {reason}");
            return;
        }
    };
    let is_amd = HostCpu::detect().is_some_and(|cpu| cpu.vendor == Vendor::Amd);
    let seed = variable("RING3_FUZZ_SEED").unwrap_or(SEED);
    let cases = match variable("RING3_FUZZ_CASE") {
        Some(case) => case..case + 1,
        None => 0..variable("RING3_FUZZ_CASES").unwrap_or(CASES),
    };
    let encodings = scene::encodings();
    let mut guest = Guest::new();
    let mut report = String::new();
    let mut told = 0;
    for case in cases {
        let mut random = Random::new(seed, case);
        let scene = Scene::random(&mut random, &encodings[case as usize % encodings.len()]);
        if !is_amd && matches!(scene.instruction.code(), Code::Fprem | Code::Fprem1) {
            continue;
        }
        if let Err(difference) = compare(&mut host, &mut guest, &scene) {
            writeln!(report, "seed {seed}, case {case}: {difference}").unwrap();
            told += 1;
            if told == TOLD {
                break;
            }
        }
    }
    assert!(report.is_empty(), "\n{report}");
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")))
}

/// What came out of a case on one side.
#[derive(PartialEq)]
struct Outcome {
    state: State,
    stop: Stop,
    data: Vec<u8>,
}

impl Outcome {
    /// Takes out what is not compared.
    fn mask(&mut self, scene: &Scene) {
        if let (true, Stop::Exception { cr2, .. }) = (scene.is_image(), &mut self.stop) {
            *cr2 &= !0xfff;
        }
        for place in scene.pointers().filter_map(|distance| scene.place(distance)) {
            self.data[place] = 0;
        }
    }
}

/// Runs a case on both sides; a difference is an error that describes it.
fn compare(host: &mut Runner, guest: &mut Guest, scene: &Scene) -> Result<(), String> {
    let mut data = vec![0; Layout::FIXED.data.len as usize];
    scene.put_operand(&mut data);
    host.data_mut().copy_from_slice(&data);
    guest.set_data(&data);

    let (state, stop) = host.run(&scene.start, &scene.code).map_err(|error| error.to_string())?;
    let data = host.data().to_vec();
    let mut expected = Outcome { state, stop, data };
    // What FXSAVE stores besides the registers is the host's alone.
    let (mut state, stop) = guest.run(&scene.start, &scene.code);
    state.fx = with_x87_of(&expected.state, &state);
    let mut found = Outcome { state, stop, data: guest.data().to_vec() };

    expected.mask(scene);
    found.mask(scene);
    if expected == found { Ok(()) } else { Err(describe(scene, &expected, &found)) }
}

/// The FXSAVE image of `host` with the x87 registers of `guest`.
fn with_x87_of(host: &State, guest: &State) -> ring3_hostcpu::FxImage {
    let mut fx = host.fx.clone();
    fx.set_fcw(guest.fx.fcw());
    fx.set_fsw(guest.fx.fsw());
    fx.set_ftw(guest.fx.ftw());
    for i in 0..8 {
        fx.set_st(i, guest.fx.st(i));
    }
    fx
}

fn describe(scene: &Scene, expected: &Outcome, found: &Outcome) -> String {
    let mut text = String::new();
    NasmFormatter::new().format(&scene.instruction, &mut text);
    writeln!(text, "  {:02x?}", scene.code).unwrap();
    writeln!(text, "  start {}", show(&scene.start)).unwrap();
    for (name, outcome) in [("host ", expected), ("guest", found)] {
        writeln!(text, "  {name} {} {:x?}", show(&outcome.state), outcome.stop).unwrap();
    }
    writeln!(text, "  operand {:02x?}", scene.operand).unwrap();
    if expected.data != found.data {
        for (name, outcome) in [("host ", expected), ("guest", found)] {
            let places = (0..scene::OPERAND_SIZE).filter_map(|distance| scene.place(distance));
            let bytes: Vec<u8> = places.map(|place| outcome.data[place]).collect();
            writeln!(text, "  {name}   {bytes:02x?}").unwrap();
        }
    }
    text
}

fn show(state: &State) -> String {
    let State { gpr, eip, eflags, fx } = state;
    let mut text = format!(
        "eip {eip:x} eax {:x} eflags {eflags:x} control {:04x} status {:04x} (top {}) in use {:08b}",
        gpr[0],
        fx.fcw(),
        fx.fsw(),
        fx.top(),
        fx.ftw()
    );
    for i in 0..8 {
        let F80 { sign_exponent, significand } = F80::from_bytes(fx.st(i));
        write!(text, " {sign_exponent:04x}:{significand:016x}").unwrap();
    }
    text
}
