//! The tests that execute instructions. Other engines run them too, with a function `engine` of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use iced_x86::{Code, Mnemonic};
use ring3_core::memory::Memory;
use ring3_hostcpu::{Layout, LongState, LongStop, Runner, State};
use ring3_x86::cpu::{Cpu, Cr4, reg};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::exception::vector;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::undefined::Vendor;

use crate::common::guest::{Guest, Pace};
use crate::patterns::{self, Pattern, is_offered, names_memory};
use crate::{HOST_STEP, INVALID_STEP, engine};

/// Returns whether `code` is a hint or prefetch, which is a NOP on processors that have no use for it and
/// therefore has no bit of CPUID.
pub(crate) fn is_ignored(code: Code) -> bool {
    code.mnemonic() == Mnemonic::Reservednop
        || matches!(code, Code::Cldemote_m8 | Code::Endbr32 | Code::Endbr64 | Code::Rdsspd_r32)
        || format!("{code:?}").starts_with("Prefetch")
}

// Executed ---------------------------------------------------------------

const CODE: u32 = 0x1_0000;
const DATA: u32 = 0x2_0000;
const GDT: u32 = 0x1000;
const IDT: u32 = 0x2000;
const TSS: u32 = 0x3000;
/// The address of the handlers. The handler of each vector is one HLT, and they are this far apart.
const HANDLERS: u32 = 0x4000;
const HANDLER_SIZE: u32 = 16;

/// Held by a test that uses an engine or the host's processor: both want the same addresses of this process.
static ADDRESSES: Mutex<()> = Mutex::new(());

/// A processor without paging, whose code is at [`CODE`], and which is made anew for each instruction.
struct Machine {
    engine: Box<dyn Engine>,
    memory: Memory,
    cpu: Cpu,
}

/// The mode in which an instruction is executed.
#[derive(Debug, Clone, Copy)]
struct Setting {
    model: Model,
    is_32_bit: bool,
    privilege: u8,
}

impl Machine {
    fn new() -> Machine {
        let (engine, mut memory) = engine();
        for number in 0..32u32 {
            memory.write((HANDLERS + number * HANDLER_SIZE).into(), &[0xf4]);
            let offset = HANDLERS + number * HANDLER_SIZE;
            let gate = u64::from(offset & 0xffff) | 8 << 16 | 0x8e00 << 32;
            memory.write((IDT + number * 8).into(), &gate.to_le_bytes());
        }
        memory.write((GDT + 8).into(), &0x00cf_9b00_0000_ffff_u64.to_le_bytes());
        memory.write((GDT + 16).into(), &0x00cf_9300_0000_ffff_u64.to_le_bytes());
        memory.write((TSS + 4).into(), &0x3_0000_u32.to_le_bytes());
        memory.write((TSS + 8).into(), &16u32.to_le_bytes());
        Machine { engine, memory, cpu: Cpu::new() }
    }

    /// Executes `pattern`. Returns the exception that it raises, if any, or an exit that should not occur
    /// here.
    fn execute(&mut self, pattern: &Pattern, setting: Setting) -> Result<Option<u8>, Exit> {
        let Setting { model, is_32_bit, privilege } = setting;
        self.memory.write(CODE.into(), &[0xf4; 64]);
        self.memory.write(CODE.into(), &pattern.bytes);
        let cpu = &mut self.cpu;
        cpu.reset();
        cpu.model = model;
        cpu.set_flat_entry(8, 16, CODE);
        let level = u16::from(privilege) << 5;
        let size = if is_32_bit { 0xc000 } else { 0x8000 };
        for register in sreg::ES..=sreg::GS {
            let kind = if register == sreg::CS { 0x9b } else { 0x93 };
            let attributes = Attributes(size | kind | level);
            let selector = 0x18 | u16::from(privilege);
            cpu.set_segment(register, Segment::new(selector, 0, u32::MAX, attributes));
        }
        cpu.set_cr4(Cr4::OSFXSR);
        cpu.gdtr = TableRegister { base: GDT.into(), limit: 0x17 };
        cpu.idtr = TableRegister { base: IDT.into(), limit: 0xff };
        cpu.tr = Segment::new(0x28, TSS.into(), 0x67, Attributes(0x8b));
        for register in reg::AX..=reg::DI {
            cpu.set_gpr(register, DATA.into());
        }
        // With this count a repeated instruction ends at once.
        cpu.set_gpr(reg::CX, 0);
        loop {
            match self.engine.run(cpu, &mut self.memory, 1) {
                Exit::Deadline | Exit::Halt => break,
                Exit::PortRead { .. }
                | Exit::PortWrite { .. }
                | Exit::MmioRead { .. }
                | Exit::MmioWrite { .. }
                | Exit::ApicBase { .. }
                | Exit::TimeStamp => cpu.answer(0),
                exit => return Err(exit),
            }
        }
        let number = (cpu.ip as u32).wrapping_sub(HANDLERS) / HANDLER_SIZE;
        Ok((cpu.cpl() == 0 && number < 32).then_some(number as u8))
    }
}

/// Nothing ends the machine, and instructions that are not offered raise #UD, at privilege 0 and 3, in 16-
/// and 32-bit code, on all models.
#[test]
fn nothing_ends_the_machine() {
    let _alone = ADDRESSES.lock();
    let mut machine = Machine::new();
    let mut known = BTreeSet::new();
    let mut ends = BTreeMap::new();
    let mut executed = 0;
    for pattern in patterns::all().filter(Pattern::is_sample) {
        for is_32_bit in [false, true] {
            let instruction = pattern.instruction(is_32_bit);
            // Invalid bytes are tried once for each opcode and prefix, or for some of them.
            let opcode = instruction.is_invalid().then(|| pattern.bytes[..4].to_vec());
            let is_invalid = opcode.is_some();
            let kind = (
                instruction.code(),
                names_memory(&instruction),
                instruction.has_lock_prefix(),
                opcode,
            );
            if !known.insert((is_32_bit, kind)) || is_invalid && known.len() % INVALID_STEP != 0 {
                continue;
            }
            for (model, privilege) in
                Model::ALL.into_iter().flat_map(|model| [(model, 0), (model, 3)])
            {
                let setting = Setting { model, is_32_bit, privilege };
                executed += 1;
                let raised = machine.execute(&pattern, setting);
                let is_right = match raised {
                    Ok(raised) => {
                        is_offered(&instruction, model)
                            || is_ignored(instruction.code())
                            || raised == Some(vector::UD)
                    }
                    // This is the result if there is no gate for the exception.
                    Err(Exit::Shutdown) => is_offered(&instruction, model),
                    Err(_) => false,
                };
                if !is_right {
                    let key = (format!("{:?}", instruction.code()), format!("{setting:?}"));
                    ends.entry(key).or_insert((pattern.bytes.clone(), raised));
                }
            }
        }
    }
    println!("{executed} executed");
    assert!(
        ends.is_empty(),
        "{} wrong: {:02x?}",
        ends.len(),
        ends.iter().take(20).collect::<Vec<_>>()
    );
}

// Beside the host's processor ---------------------------------------------

/// Returns whether the host's processor has `code` and `max` lacks it, although the bytes are the same and
/// have another meaning without it.
fn is_of_the_host(code: Code) -> bool {
    // Shadow stacks and branch tracking are off for this program; if they were on, these would not be NOPs.
    matches!(code, Code::Rdsspd_r32 | Code::Endbr32 | Code::Endbr64)
}

/// Returns whether processors of AMD and of Intel differ about `bytes`. `max` follows Intel's.
fn differs_by_vendor(bytes: &[u8]) -> bool {
    // AMD has instructions in opcode 0F 0D, which raise #UD with a register (APM vol. 3, PREFETCHlevel,
    // PREFETCHW). LOCK MOV CR0 is MOV CR8 (APM vol. 3, MOV CRn). Where VERW clears buffers, by microcode,
    // some processors take LOCK before it.
    let has_lock = bytes.contains(&0xf0);
    let opcode =
        bytes.iter().position(|byte| *byte == 0x0f).map_or(&[][..], |start| &bytes[start..]);
    match *opcode {
        [0x0f, 0x0d, operands, ..] => operands >= 0xc0,
        [0x0f, 0x20 | 0x22, operands, ..] => has_lock && operands >> 3 & 7 == 0,
        [0x0f, 0x00, operands, ..] => has_lock && operands >> 3 & 7 == 5,
        _ => false,
    }
}

/// An instruction that `max` offers raises #UD for a user exactly if it does on the host's processor, and so
/// do instructions that no processor has.
#[test]
fn the_user_meets_undefined_instructions_where_the_host_does() {
    let _alone = ADDRESSES.lock();
    // The translator's first engine installs its handlers of signals, which stay. The runner's handlers, which
    // end with it, must be installed above those.
    drop(engine());
    let mut host = match Runner::new() {
        Ok(host) => host,
        Err(reason) => return ring3_skipped::host(reason),
    };
    let (engine, memory) = engine();
    let mut guest = Guest::new(32, engine, memory);
    let layout = Layout::FIXED;
    let mut start = State::at(layout.code.start + 64);
    start.gpr = [layout.data.start + 512; 8];
    start.gpr[1] = 0;
    let _ = host.run(&start, &[0x90]);
    let (mut compared, mut refused) = (0, 0);
    let mut wrong = BTreeMap::new();
    for pattern in patterns::all().filter(Pattern::is_host_sample).step_by(HOST_STEP) {
        let instruction = pattern.instruction(true);
        let code = instruction.code();
        let is_ours = is_offered(&instruction, Model::Max) || is_ignored(code);
        if !instruction.is_invalid() && (!is_ours || is_of_the_host(code)) {
            continue;
        }
        // Nothing follows the instruction. For invalid bytes it is unknown where the next one would be.
        let len = if instruction.is_invalid() { pattern.bytes.len() } else { instruction.len() };
        let bytes = &pattern.bytes[..len];
        if Vendor::of_host().is_amd() && differs_by_vendor(bytes) {
            continue;
        }
        let Ok((_, on_host)) = host.run(&start, bytes) else {
            refused += 1;
            continue;
        };
        let on_host = LongStop::from(on_host);
        compared += 1;
        let ours = guest.run(&LongState::from(&start), bytes, Pace::ONCE);
        let is_undefined = |stop| matches!(stop, LongStop::Exception { vector: vector::UD, .. });
        let is_same = match ours {
            Ok((_, stop)) => is_undefined(stop) == is_undefined(on_host),
            Err(Exit::TimeStamp) => !is_undefined(on_host),
            Err(_) => false,
        };
        if !is_same {
            wrong.entry(code).or_insert((bytes.to_vec(), on_host, ours.map(|(_, stop)| stop)));
        }
    }
    println!("{compared} compared, {refused} not run on the host");
    assert!(compared > 10_000);
    assert!(wrong.is_empty(), "{} codes: {wrong:02x?}", wrong.len());
}
