//! Makes memory and a processor in any state, valid, nearly valid or invalid, and runs them.

use iced_x86::OpCodeTableKind;
use ring3_core::memory::{Backing, Memory};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;
use ring3_x86::segment::{Attributes, Segment, TableRegister, sreg};
use ring3_x86::table;
use ring3_x86::undefined::Vendor;

use super::random::Random;

/// Bytes of memory.
pub(crate) const MEMORY: u64 = 1 << 20;
const PAGE: u32 = 0x1000;
/// Pages at the start of memory with contents; most addresses are in these.
const PAGES: u32 = 12;
/// The contents of a page are repeated after this number of bytes, since making them takes longer than
/// running them.
const PATTERN: usize = 512;
/// The number of times that the engine is entered in one case, and the most instructions each time.
const ENTRIES: u32 = 40;
const INSTRUCTIONS: u32 = 40;

/// An address, usually one with contents.
fn address(random: &mut Random) -> u32 {
    if random.percent(90) { random.below(PAGES * PAGE) } else { random.number() }
}

/// Memory with code, descriptors and page tables, and with ROM and devices in between.
pub(crate) fn random_memory(random: &mut Random) -> Memory {
    let mut memory = Memory::new(MEMORY).unwrap();
    fill(random, &mut memory);
    memory
}

/// Fills `memory`, which is zero and has [`MEMORY`] bytes, in the same way.
pub(crate) fn fill(random: &mut Random, memory: &mut Memory) {
    for page in 0..PAGES {
        let mut bytes = Vec::with_capacity(PATTERN + 16);
        let content = random.below(4);
        while bytes.len() < PATTERN {
            match content {
                0 => bytes.extend(random.number().to_le_bytes()),
                1 => bytes.extend(descriptor(random).to_le_bytes()),
                2 => bytes.extend(page_table_entry(random).to_le_bytes()),
                _ => instruction(random, &mut bytes),
            }
        }
        let page_bytes = bytes[..PATTERN].repeat(PAGE as usize / PATTERN);
        memory.load_image(u64::from(page * PAGE), &page_bytes).unwrap();
    }
    let rom = (Backing::Ram, Backing::Nothing);
    for (reads, writes) in [rom, (Backing::Device, Backing::Device)] {
        if random.percent(50) {
            let page = random.below(PAGES) * PAGE;
            memory.map(page.into(), PAGE.into(), reads, writes).unwrap();
        }
    }
}

/// A descriptor or gate that might be valid.
fn descriptor(random: &mut Random) -> u64 {
    const ACCESS: [u8; 18] = [
        0x9b, 0x93, 0xfb, 0xf3, 0x9f, 0x97, 0x8e, 0xee, 0x8f, 0xef, 0x86, 0xe6, 0x8c, 0xec, 0x85,
        0x89, 0x82, 0x8b,
    ];
    let access = if random.percent(90) { random.pick(&ACCESS) } else { random.bits() as u8 };
    let low = if random.percent(50) { 0x0000_ffff } else { random.bits() & 0xfff8_0fff };
    let high = if random.percent(70) { random.bits() & 0x00cf_00ff } else { random.bits() };
    u64::from(high & !0xff00 | u32::from(access) << 8) << 32 | u64::from(low)
}

/// An entry of a page table or page directory that might be valid.
fn page_table_entry(random: &mut Random) -> u32 {
    if random.percent(10) {
        return random.number();
    }
    (random.below(PAGES) * PAGE) | random.bits() & 0xfff | u32::from(random.percent(95))
}

/// An instruction of some form, without its operands.
pub(crate) fn instruction(random: &mut Random, bytes: &mut Vec<u8>) {
    if random.percent(25) {
        bytes.push(random.pick(&[0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x2e, 0x64]));
    }
    let form = random.pick(table::forms()).code.op_code();
    match form.table() {
        OpCodeTableKind::T0F => bytes.push(0x0f),
        OpCodeTableKind::T0F38 => bytes.extend([0x0f, 0x38]),
        OpCodeTableKind::T0F3A => bytes.extend([0x0f, 0x3a]),
        _ => {}
    }
    bytes.push(form.op_code() as u8);
    match u8::try_from(form.group_index()) {
        Ok(group) => bytes.push(random.bits() as u8 & 0xc7 | group << 3),
        Err(_) => bytes.push(random.bits() as u8),
    }
    let constants = random.number().to_le_bytes();
    bytes.extend(&constants[..random.below(5) as usize]);
}

/// A processor in a random mode, with random segments, tables and registers.
pub(crate) fn random_cpu(random: &mut Random) -> Cpu {
    let mut cpu = Cpu::of_model(random.pick(&Model::ALL));
    cpu.vendor = Vendor::of_host();
    cpu.set_cr4(Cr4::from_bits_truncate(random.bits()));
    cpu.set_cr3(address(random).into());
    cpu.set_pdptes(std::array::from_fn(|_| u64::from(address(random) & !0xfff | 1)));
    cpu.msrs.no_execute = random.percent(50);
    cpu.cr2 = random.bits().into();
    let mut cr0 = Cr0::from_bits_truncate(random.bits());
    cr0.set(Cr0::PE, random.percent(75));
    cr0.set(Cr0::PG, cr0.contains(Cr0::PE) && random.percent(50));
    cr0.set(Cr0::EM | Cr0::TS, random.percent(10));
    cpu.set_cr0(cr0);
    let mut flags = Eflags::from_bits_truncate(random.bits());
    flags.set(Eflags::VM, random.percent(20));
    flags.set(Eflags::TF, random.percent(20));
    cpu.set_eflags(flags);
    let is_flat = random.percent(40);
    for register in 0..6 {
        let segment = if !cr0.contains(Cr0::PE) || flags.contains(Eflags::VM) {
            Segment::real(address(random) as u16 >> 4, random.pick(&[0, 3]))
        } else if is_flat {
            let attributes = if register == 1 { 0xc09b } else { 0xc093 };
            Segment::new(random.bits() as u16, 0, u32::MAX, Attributes(attributes))
        } else {
            random_segment(random)
        };
        cpu.set_segment(register, segment);
    }
    cpu.ldtr = random_segment(random);
    cpu.tr = random_segment(random);
    for table in [&mut cpu.gdtr, &mut cpu.idtr] {
        *table =
            TableRegister { base: address(random).into(), limit: random.number() as u16 | 0xff };
    }
    cpu.msrs.sysenter_cs = random.bits() & 0xff;
    cpu.msrs.sysenter_eip = address(random).into();
    cpu.msrs.sysenter_esp = address(random).into();
    for register in 0..8 {
        let value = if random.percent(60) { address(random) } else { random.number() };
        cpu.set_gpr(register, value.into());
    }
    cpu.ip = address(random).into();
    cpu.fpu.set_control(random.bits() as u16);
    cpu.fpu.set_status(random.bits() as u16);
    cpu.fpu.set_tag_word(random.bits() as u16);
    cpu.sse.set_mxcsr(random.bits());
    for register in 0..8 {
        cpu.fpu.set_mm(register, random.next());
        let halves = [random.number(), random.number()].map(u128::from);
        cpu.sse.set_xmm(register, halves[0] << 64 | halves[1]);
    }
    cpu
}

fn random_segment(random: &mut Random) -> Segment {
    let descriptor = descriptor(random);
    let attributes = Attributes((descriptor >> 40 & 0xf0ff) as u16);
    let base = if random.percent(50) { 0 } else { address(random) };
    let limit = random.pick(&[0xffff, u32::MAX, PAGES * PAGE - 1]);
    Segment::new(random.bits() as u16, base.into(), limit, attributes)
}

/// Runs a case made from `bytes`: a seed for memory (8 bytes), the length of the code (1 byte), code, and
/// numbers that choose the processor's state.
pub(crate) fn run_bytes(bytes: &[u8]) {
    let Some((seed, rest)) = bytes.split_first_chunk() else { return };
    let Some((length, rest)) = rest.split_first() else { return };
    let (code, numbers) = rest.split_at(rest.len().min(usize::from(*length)));
    let seed = u64::from_le_bytes(*seed);
    let mut memory = random_memory(&mut Random::new(seed, 0));
    let mut random = Random::given(numbers, seed);
    let mut cpu = random_cpu(&mut random);
    let linear = cpu.segment(sreg::CS).base.wrapping_add(cpu.ip) as u32;
    // Without paging, or if a page is mapped to itself, this code is executed first.
    memory.write((linear % (PAGES * PAGE)).into(), code);
    run(&mut Interpreter::new(), &mut random, &mut cpu, &mut memory);
}

/// Lets the engine run, and answers its exits with any values.
pub(crate) fn run(
    engine: &mut dyn Engine,
    random: &mut Random,
    cpu: &mut Cpu,
    memory: &mut Memory,
) {
    for _ in 0..ENTRIES {
        cpu.interrupt_pin = random.percent(20);
        if random.percent(5) {
            cpu.raise_nmi();
        }
        let instructions = u64::from(1 + random.below(INSTRUCTIONS));
        match engine.run(cpu, memory, instructions) {
            Exit::Deadline => {}
            Exit::NumericError => cpu.ignore_numeric_error(),
            Exit::PortRead { .. } | Exit::MmioRead { .. } | Exit::TimeStamp => {
                cpu.answer(random.next());
            }
            Exit::GuestTool(_) => cpu.answer_guest_tool([random.bits(); 4]),
            Exit::PortWrite { .. } | Exit::MmioWrite { .. } | Exit::ApicBase { .. } => {
                cpu.answer(0);
            }
            Exit::InterruptWindow | Exit::Halt => cpu.inject(random.bits() as u8),
            Exit::Debugger | Exit::Shutdown | Exit::Missing(_) => *cpu = random_cpu(random),
        }
    }
    survives_saving(cpu);
}

/// Checks that any state can be saved and restored.
fn survives_saving(cpu: &Cpu) {
    let saved = cpu.save();
    let mut other = Cpu::new();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
}
