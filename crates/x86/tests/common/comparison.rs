//! Runs random cases on our processor and on the host's, and compares the results.

use std::fmt::{Debug, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use iced_x86::{Formatter, Instruction, NasmFormatter};
use ring3_hostcpu::{
    Cpu as HostCpu, FxImage, Layout, LongState, LongStop, PAGE_SIZE, Refused, Runner, State,
    Unavailable, Vendor,
};
use ring3_x86::flags::Eflags;
use ring3_x86::softfloat::F80;

use super::differences::{Tally, conclude, differences, insist, locks_bus};
use super::guest::{Guest, Pace, only_registers};
use super::random::Random;
use super::series::{SEED, Series};

const LAYOUT: Layout = Layout::FIXED;

/// One instruction, and the state in which it is executed. That of 32-bit code has zeros where 32-bit code has
/// nothing.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// The bits of the code: 32 or 64.
    pub(crate) bits: u32,
    /// Its bytes.
    pub(crate) code: Vec<u8>,
    /// The instruction, decoded.
    pub(crate) instruction: Instruction,
    /// The registers; RIP is the instruction's address.
    pub(crate) start: LongState,
    /// The bytes put into the data region beforehand.
    pub(crate) pokes: Vec<Poke>,
    /// The way in which our side runs it.
    pub(crate) pace: Pace,
}

/// Bytes from a linear address on.
#[derive(Debug, Clone)]
pub(crate) struct Poke {
    /// The address of the first byte.
    pub(crate) address: u64,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
}

impl Poke {
    /// Changes `data`, the contents of the data region. Bytes outside the region are left out.
    fn apply(&self, data: &mut [u8]) {
        for (address, byte) in (0..).map(|n| self.address.wrapping_add(n)).zip(&self.bytes) {
            if let Some(place) = data_offset(address) {
                data[place] = *byte;
            }
        }
    }
}

impl Case {
    /// Returns the mask of an address in this code.
    pub(crate) fn mask(&self) -> u64 {
        mask(self.bits)
    }

    /// Returns the number of bytes in a word of the stack.
    pub(crate) fn word(&self) -> u64 {
        u64::from(self.bits / 8)
    }
}

/// Returns the mask of an address in code of `bits` bits.
pub(crate) fn mask(bits: u32) -> u64 {
    u64::MAX >> (64 - bits)
}

/// Returns the offset of a linear address in the data region.
pub(crate) fn data_offset(address: u64) -> Option<usize> {
    let offset = address.wrapping_sub(LAYOUT.data.start.into());
    (offset < LAYOUT.data.len.into()).then_some(offset as usize)
}

/// The result of a case on one side.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Outcome {
    /// The registers; of the floating-point state only the registers of x87 and SSE.
    pub(crate) state: LongState,
    /// How it ended.
    pub(crate) stop: LongStop,
    /// The contents of the data region.
    pub(crate) data: Vec<u8>,
    /// The contents of the read-only region.
    read_only: Vec<u8>,
}

/// A case, and the differences between processors that it allows.
pub(crate) trait Scene {
    /// The case.
    fn case(&self) -> &Case;

    /// Returns whether the case cannot be compared, which only its result on our side shows.
    fn is_left_out(&self, ours: &Outcome, vendor: Vendor) -> bool;

    /// Makes `host` equal to `ours` where a difference is allowed.
    fn forgive(&self, host: &mut Outcome, ours: &Outcome);
}

/// Returns a lock for a test with the real processor, which has its memory at fixed addresses and handlers of
/// signals.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `cases` cases, or those that the environment asks for, on the machine that `guest` makes, evenly
/// spread over `forms`. Panics with a report if the results differ from those of the host's processor.
pub(crate) fn compare_forms<F: Debug, S: Scene>(
    guest: impl FnOnce() -> Guest,
    cases: u64,
    forms: &[F],
    scene: impl Fn(&mut Random, &F) -> S,
) {
    let mut bench = match Bench::new(guest) {
        Ok(bench) => bench,
        Err(reason) => {
            ring3_skipped::host(reason);
            return;
        }
    };
    let series = Series::from_environment(cases);
    let text = differences(&series, forms, |random, form| bench.compare(&scene(random, form)));
    conclude(&series, forms.len(), &bench.tally, &text);
}

/// Both processors.
struct Bench {
    host: Runner,
    vendor: Vendor,
    guest: Guest,
    /// The contents of the data region before each case, without its pokes.
    data: Vec<u8>,
    tally: Tally,
}

impl Bench {
    fn new(guest: impl FnOnce() -> Guest) -> Result<Bench, Unavailable> {
        // The host's side comes first: it needs fixed addresses, which an engine may take too.
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
    fn compare(&mut self, scene: &impl Scene) -> Result<(), String> {
        let (result, disturbed) = insist(|| self.attempt(scene));
        self.tally.disturbed += u64::from(disturbed);
        result
    }

    fn attempt(&mut self, scene: &impl Scene) -> Result<(), String> {
        let Case { start, code, pokes, pace, .. } = scene.case();
        for poke in pokes {
            poke.apply(self.host.data_mut());
        }
        if !pokes.is_empty() {
            self.guest.set_bytes(LAYOUT.data, self.host.data());
        }
        let ours = self.guest.run(start, code, *pace).map(|(state, stop)| Outcome {
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
            Err(exit) => Err(format!("{}left the engine: {exit:?}\n", describe(scene.case()))),
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

    /// Runs the case on the host.
    fn run_on_host(&mut self, case: &Case) -> Result<(LongState, LongStop), Refused> {
        if case.bits == 64 {
            // SAFETY: the addresses are those of the arena, or random ones of which the process has a negligible
            // part; the runner refuses what uses or changes FS.
            return unsafe { self.host.run_long(&case.start, &case.code) };
        }
        let (state, stop) = self.host.run(&State::from(case.start.clone()), &case.code)?;
        Ok((LongState::from(&state), as_without_nx(stop.into())))
    }

    fn compare_with_host(&mut self, scene: &impl Scene, ours: &Outcome) -> Result<(), String> {
        let case = scene.case();
        let (mut state, stop) = match self.run_on_host(case) {
            Ok(end) => end,
            Err(refused) => return Err(format!("{}refused: {refused}\n", describe(case))),
        };
        let timed_out = stop == LongStop::Timeout && ours.stop != LongStop::Timeout;
        if timed_out && locks_bus(&case.instruction) {
            self.tally.withheld += 1;
            return Ok(());
        }
        state.fx = only_registers(&state.fx);
        let mut host = Outcome {
            state,
            stop,
            data: self.host.data().to_vec(),
            read_only: self.host.read_only().to_vec(),
        };
        scene.forgive(&mut host, ours);
        if host == *ours { Ok(()) } else { Err(describe_difference(case, &host, ours)) }
    }
}

/// Returns a page fault's error code without execute-disable, which the host has and two-level paging lacks:
/// bit 4 says that an instruction was fetched.
fn as_without_nx(stop: LongStop) -> LongStop {
    match stop {
        LongStop::Exception { vector: 14, error_code, cr2 } => {
            LongStop::Exception { vector: 14, error_code: error_code & !0x10, cr2 }
        }
        other => other,
    }
}

fn describe(case: &Case) -> String {
    let mut disassembly = String::new();
    NasmFormatter::new().format(&case.instruction, &mut disassembly);
    let code: Vec<_> = case.code.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:?}: {} {disassembly}\n", case.instruction.code(), code.join(" "))
}

fn describe_difference(case: &Case, host: &Outcome, ours: &Outcome) -> String {
    let mut text = describe(case);
    let _ = writeln!(text, "  start {}", describe_state(&case.start, None));
    for Poke { address, bytes } in &case.pokes {
        let _ = writeln!(text, "  at {address:08x}: {bytes:02x?}");
    }
    for (name, outcome) in [("host", host), ("ours", ours)] {
        let state = describe_state(&outcome.state, Some(&case.start));
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
        "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13",
        "r14", "r15",
    ];
    for (number, name) in names.into_iter().enumerate() {
        if from.is_none_or(|from| from.gpr[number] != state.gpr[number]) {
            let _ = write!(text, "{name} {:x} ", state.gpr[number]);
        }
    }
    let flags = Eflags::from_bits_truncate(state.rflags);
    let names: Vec<_> = flags.iter_names().map(|(name, _)| name).collect();
    let _ = write!(text, "ip {:x} {}", state.rip, names.join(" "));
    if from.map_or(state.fx != FxImage::INIT, |from| from.fx != state.fx) {
        text += &describe_vectors(&state.fx);
    }
    if from.map_or(state.upper != [0; 16], |from| from.upper != state.upper) {
        text += "\n        upper";
        for half in state.upper {
            let _ = write!(text, " {half:032x}");
        }
    }
    text
}

fn describe_vectors(fx: &FxImage) -> String {
    let mut text = format!(
        " control {:04x} status {:04x} (top {}) in use {:08b}",
        fx.fcw(),
        fx.fsw(),
        fx.top(),
        fx.ftw()
    );
    for i in 0..8 {
        let F80 { sign_exponent, significand } = F80::from_bytes(fx.st(i));
        let _ = write!(text, " {sign_exponent:04x}:{significand:016x}");
    }
    let _ = write!(text, "\n        mxcsr {:04x}", fx.mxcsr());
    for i in 0..16 {
        let _ = write!(text, " {:032x}", fx.xmm(i));
    }
    text
}
