//! Runs random cases on our processor and on the host's, and compares the results.

use std::fmt::Write;

use iced_x86::{Code, Formatter, NasmFormatter};
use ring3_hostcpu::{
    Cpu as HostCpu, FxImage, Layout, LongState, LongStop, PAGE_SIZE, Runner, State, Unavailable,
    Vendor,
};
use ring3_x86::flags::Eflags;

use crate::common::differences::{Tally, conclude, differences, insist, locks_bus};
use crate::common::guest::only_registers;
use crate::common::random::Random;
use crate::common::series::{SEED, Series};
use crate::guest::{LongGuest, copy_high_vectors};
use crate::scene::Scene;

const LAYOUT: Layout = Layout::FIXED;

/// The result of a case on one side.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) state: LongState,
    pub(crate) stop: LongStop,
    /// The contents of the data region.
    pub(crate) data: Vec<u8>,
    /// The contents of the read-only region.
    read_only: Vec<u8>,
}

/// Runs `cases` cases, or those that the environment asks for, evenly spread over `forms`. Panics with a report
/// if the results differ from those of the host's processor. `guest` makes our machine.
pub(crate) fn compare(guest: impl FnOnce() -> LongGuest, cases: u64, forms: &[Code]) {
    let mut bench = match Bench::new(guest) {
        Ok(bench) => bench,
        Err(reason) => {
            ring3_skipped::host(reason);
            return;
        }
    };
    let series = Series::from_environment(cases);
    let text =
        differences(&series, forms, |random, form| bench.compare(&Scene::random(random, *form)));
    conclude(&series, forms.len(), &bench.tally, &text);
}

/// Both processors.
struct Bench {
    host: Runner,
    vendor: Vendor,
    guest: LongGuest,
    /// The contents of the data region before each case, without its pokes.
    data: Vec<u8>,
    tally: Tally,
}

impl Bench {
    fn new(guest: impl FnOnce() -> LongGuest) -> Result<Bench, Unavailable> {
        let mut host = Runner::new()?;
        let mut guest = guest();
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
        // The kernel maps a page when it is first executed, and until then reports it as not present.
        for page in (LAYOUT.code.start..LAYOUT.code.end()).step_by(PAGE_SIZE as usize) {
            let _ = host.run(&State::at(page), &[0x90]);
        }
        let vendor = HostCpu::detect().map_or(Vendor::Other, |cpu| cpu.vendor);
        Ok(Bench { host, vendor, guest, data, tally: Tally::default() })
    }

    /// Runs the case on both sides, again for as long as they differ; the error describes the differences that
    /// remain.
    fn compare(&mut self, scene: &Scene) -> Result<(), String> {
        let (result, disturbed) = insist(|| self.attempt(scene));
        self.tally.disturbed += u64::from(disturbed);
        result
    }

    fn attempt(&mut self, scene: &Scene) -> Result<(), String> {
        for poke in &scene.pokes {
            poke.apply(self.host.data_mut());
        }
        if !scene.pokes.is_empty() {
            self.guest.set_bytes(LAYOUT.data, self.host.data());
        }
        let ours =
            self.guest.run(&scene.start, &scene.code, scene.pace).map(|(state, stop)| Outcome {
                state,
                stop,
                data: self.guest.bytes(LAYOUT.data).to_vec(),
                read_only: self.guest.bytes(LAYOUT.read_only).to_vec(),
            });
        let result = match ours {
            Ok(ours) if scene.is_left_out(&ours, self.vendor) || self.is_beside(&ours) => {
                self.tally.left_out += 1;
                Ok(())
            }
            Ok(ours) => self.compare_with_host(scene, &ours),
            Err(exit) => Err(format!("{}left the engine: {exit:?}\n", describe(scene))),
        };
        self.host.data_mut().copy_from_slice(&self.data);
        self.guest.set_bytes(LAYOUT.data, &self.data);
        result
    }

    /// Returns whether the case has ended at an address where the host's process has something of its own, or
    /// has met a page fault there.
    fn is_beside(&self, ours: &Outcome) -> bool {
        let is_there = |address| self.guest.beside.iter().any(|place| place.contains(&address));
        let accessed = match ours.stop {
            LongStop::Exception { vector: 14, cr2, .. } => is_there(cr2),
            _ => false,
        };
        accessed || is_there(ours.state.rip)
    }

    fn compare_with_host(&mut self, scene: &Scene, ours: &Outcome) -> Result<(), String> {
        // SAFETY: the addresses are those of the arena, or random ones of which the process has a negligible
        // part; the runner refuses what uses or changes FS.
        let run = unsafe { self.host.run_long(&scene.start, &scene.code) };
        let (mut state, stop) = match run {
            Ok(end) => end,
            Err(refused) => return Err(format!("{}refused: {refused}\n", describe(scene))),
        };
        let timed_out = stop == LongStop::Timeout && ours.stop != LongStop::Timeout;
        if timed_out && locks_bus(&scene.instruction) {
            self.tally.withheld += 1;
            return Ok(());
        }
        state.fx = with_high_vectors(&state.fx);
        let mut host = Outcome {
            state,
            stop,
            data: self.host.data().to_vec(),
            read_only: self.host.read_only().to_vec(),
        };
        scene.forgive(&mut host, ours);
        if host == *ours { Ok(()) } else { Err(describe_difference(scene, &host, ours)) }
    }
}

/// Returns the registers of x87 and SSE in `fx`, with XMM8 to XMM15.
fn with_high_vectors(fx: &FxImage) -> FxImage {
    let mut only = only_registers(fx);
    copy_high_vectors(&mut only, |number| fx.xmm(number));
    only
}

fn describe(scene: &Scene) -> String {
    let mut disassembly = String::new();
    NasmFormatter::new().format(&scene.instruction, &mut disassembly);
    let code: Vec<_> = scene.code.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:?}: {} {disassembly}\n", scene.instruction.code(), code.join(" "))
}

fn describe_difference(scene: &Scene, host: &Outcome, ours: &Outcome) -> String {
    let mut text = describe(scene);
    let _ = writeln!(text, "  start {}", describe_state(&scene.start, None));
    for poke in &scene.pokes {
        let _ = writeln!(text, "  at {:x}: {:02x?}", poke.address, poke.bytes);
    }
    for (name, outcome) in [("host", host), ("ours", ours)] {
        let state = describe_state(&outcome.state, Some(&scene.start));
        let _ = writeln!(text, "  {name}  {state} {:x?}", outcome.stop);
    }
    for (region, host, ours) in [
        (LAYOUT.data, &host.data, &ours.data),
        (LAYOUT.read_only, &host.read_only, &ours.read_only),
    ] {
        let differing = (0..host.len()).filter(|offset| host[*offset] != ours[*offset]);
        for offset in differing.take(12) {
            let address = region.start as usize + offset;
            let (host, ours) = (host[offset], ours[offset]);
            let _ = writeln!(text, "  at {address:08x}: host {host:02x}, ours {ours:02x}");
        }
    }
    text
}

/// Describes a state, or what of it differs from `from`.
fn describe_state(state: &LongState, from: Option<&LongState>) -> String {
    let mut text = String::new();
    let names = [
        "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12",
        "r13", "r14", "r15",
    ];
    for (number, name) in names.into_iter().enumerate() {
        if from.is_none_or(|from| from.gpr[number] != state.gpr[number]) {
            let _ = write!(text, "{name} {:x} ", state.gpr[number]);
        }
    }
    let flags = Eflags::from_bits_truncate(state.rflags);
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    let _ = write!(text, "rip {:x} {}", state.rip, names.join(" "));
    if from.map_or(state.fx != FxImage::INIT, |from| from.fx != state.fx) {
        let _ = write!(text, " {:?}", state.fx);
        for number in 8..16 {
            let _ = write!(text, ", xmm{number}: {:032x}", state.fx.xmm(number));
        }
    }
    text
}
