//! Instructions of every form that meet page faults. The handler finds CR2, error code, EIP and registers,
//! repairs the page, and the instruction continues. This holds for each page of an operand, each element of a
//! string, both pages of an instruction, and pages that belong to a device. An instruction that then raises
//! another exception must raise it as it should.

use std::fmt::Write;

use iced_x86::{Code, CpuidFeature, FlowControl, Instruction, Mnemonic};
use ring3_core::memory::Backing;
use ring3_hostcpu::{FILLER, FxImage, Layout, PAGE_SIZE, Region, State};
use ring3_x86::cpu::{Cr0, Cr4};
use ring3_x86::cpuid::Model;
use ring3_x86::decode::{CodeSize, decoder};
use ring3_x86::engine::Exit;
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Attributes, Segment, sreg};
use ring3_x86::table;
use ring3_x86::undefined::undefined;

use crate::common::assembler::jmp;
use crate::common::comparison::{Case, Poke, Scene};
use crate::common::guest::{registers, set_x87};
use crate::common::host_fpu;
use crate::common::random::Random;
use crate::common::series::{SEED, Series};
use crate::machine::*;
use crate::pair::Pair;
use crate::scene::{IntegerScene, compares_strings};
use crate::x87_scene::{X87Scene, encodings};

const CASES: u64 = if cfg!(debug_assertions) { 2_000 } else { 4_000 };
/// Upper bound of the instructions in a case, including those of the handler.
const INSTRUCTIONS: u64 = 3000;

const LAYOUT: Layout = Layout::FIXED;
/// Physical addresses of the layout's pages and of their page table.
const ARENA: u32 = 0x40_0000;
const ARENA_TABLE: u32 = 0xa000;
/// Physical address of a device's page.
const DEVICE: u32 = 0x50_0000;
/// The accessed bit of a page-table entry.
const ACCESSED: u32 = 0x20;
/// A guest changes nothing from here on, except the arena.
const LOW_END: usize = 0x5_0000;
/// Addresses in the handler's log: of the pointer to the next record, and of the first record.
const LOG: u32 = DATA;
const RECORDS: u32 = DATA + 0x10;
/// Bytes in a record, and the offset of EFLAGS in it.
const RECORD: u32 = 15 * 4;
const LOGGED_FLAGS: u32 = 12 * 4;

/// Returns the handler of page faults. It logs CR2, the registers and the values that were pushed, makes the
/// page readable and writable for everyone, and returns. It halts if the page is not in the arena.
fn handler_code() -> Vec<u8> {
    let [log, start, table] = [LOG, LAYOUT.arena.start, ARENA_TABLE].map(u32::to_le_bytes);
    let pages = (LAYOUT.arena.len / PAGE_SIZE).to_le_bytes();
    [
        &[0x60, 0x8b, 0x1d][..],         // PUSHAD; MOV EBX, [LOG]
        &log,                            //
        &[0x0f, 0x20, 0xd0, 0x89, 0x03], // MOV EAX, CR2; MOV [EBX], EAX
        &[0x8d, 0x7b, 0x04, 0x89, 0xe6], // LEA EDI, [EBX+4]; MOV ESI, ESP
        &[0xb9, 14, 0, 0, 0, 0xfc],      // MOV ECX, 14; CLD
        &[0xf3, 0xa5, 0x89, 0x3d],       // REP MOVSD; MOV [LOG], EDI
        &log,                            //
        &[0x2d],                         // SUB EAX, the arena's start
        &start,                          //
        &[0xc1, 0xe8, 0x0c, 0x3d],       // SHR EAX, 12; CMP EAX, its pages
        &pages,                          //
        &[0x72, 0x01, 0xf4],             // JB over HLT
        &[0x83, 0x0c, 0x85],             // OR DWORD [EAX*4+ARENA_TABLE], P | RW | US
        &table,                          //
        &[0x07, 0x0f, 0x20, 0xd0],       // MOV EAX, CR2
        &[0x0f, 0x01, 0x38, 0x61],       // INVLPG [EAX]; POPAD
        &[0x83, 0xc4, 0x04, 0xcf],       // ADD ESP, 4; IRETD
    ]
    .concat()
}

/// Both machines, and their states before each case.
struct Stage {
    pair: Pair,
    low: Vec<u8>,
    arena: Vec<u8>,
}

impl Stage {
    fn new() -> Option<Stage> {
        let mut pair = Pair::new()?;
        pair.each(|machine| {
            machine.memory.map(DEVICE.into(), 0x1000, Backing::Device, Backing::Device).unwrap();
            machine.put(CODE, &handler_code());
            machine.code(handler(14), &[jmp(CODE)]);
            machine.put_dword(LOG, RECORDS);
            machine.enable_paging();
            for page in (0..0x40_0000).step_by(0x1000) {
                let bits = if page < LOW_END as u32 { P | RW } else { 0 };
                machine.map(page, page, bits);
            }
            // Supervisor code must not change the page tables without the processor's noticing.
            machine.map(PAGE_DIRECTORY, 0, 0);
            machine.map(PAGE_TABLE, 0, 0);
            let directory_entry = PAGE_DIRECTORY + (LAYOUT.arena.start >> 22) * 4;
            machine.put_dword(directory_entry, ARENA_TABLE | P | RW | US);
        });
        let mut random = Random::new(SEED, u64::MAX);
        let mut arena: Vec<u8> =
            (0..LAYOUT.arena.len / 4).flat_map(|_| random.number().to_le_bytes()).collect();
        for region in [LAYOUT.hole_before_code, LAYOUT.code, LAYOUT.hole_before_data] {
            arena[in_arena(region)].fill(FILLER);
        }
        let low = pair.right.memory.contents()[..LOW_END].to_vec();
        Some(Stage { pair, low, arena })
    }

    /// Runs a case, with random rights for pages, and compares.
    fn compare(&mut self, random: &mut Random, case: &Case) -> Result<(), String> {
        let mut arena = self.arena.clone();
        // CMC twice, so that the instruction is not the first one of its block.
        let state = State::from(case.start.clone());
        let start = state.eip - LAYOUT.arena.start;
        let code = [&[0xf5, 0xf5], &case.code[..]].concat();
        let begin = start as usize - 2;
        arena[begin..begin + code.len()].copy_from_slice(&code);
        for Poke { address, bytes } in &case.pokes {
            let first = *address as u32;
            for (address, byte) in (0..).map(|n| first.wrapping_add(n)).zip(bytes) {
                if LAYOUT.data.contains(address) {
                    arena[(address - LAYOUT.arena.start) as usize] = *byte;
                }
            }
        }
        let entries = page_table(random, state.eip);
        let is_user = is_for_user(&case.instruction) || random.percent(60);
        let limited = random.percent(50);
        let low = &self.low;
        self.pair.each(|machine| {
            restore(machine, 0, low);
            restore(machine, ARENA as usize, &arena);
            machine.put(ARENA_TABLE, entries.as_flattened());
            machine.accesses.clear();
            set_processor(machine, &state, is_user, limited);
        });
        let exit = self.pair.right.run_for(INSTRUCTIONS);
        let our_exit = self.pair.tested.run_for(INSTRUCTIONS);
        self.difference(case, is_user, [&our_exit, &exit]).map_or(Ok(()), Err)
    }

    /// Returns the differences after a case.
    fn difference(
        &mut self,
        case: &Case,
        is_user: bool,
        [our_exit, exit]: [&Exit; 2],
    ) -> Option<String> {
        let undefined = undefined(&case.instruction, case.start.gpr[1] as u8);
        if undefined.destination {
            return None;
        }
        let flags = !undefined.flags.bits();
        let compares = compares_strings(&case.instruction);
        self.pair.each(|machine| {
            // Some processors change undefined flags even when their write to memory faults. Some undo the
            // effects on flags of the iterations before a fault (SDM vol. 2, REP).
            let flags = if compares { !Eflags::STATUS.bits() } else { flags };
            let end = machine.dword(LOG);
            let logged =
                (RECORDS..end).step_by(RECORD as usize).map(|record| record + LOGGED_FLAGS);
            for pushed in logged.chain(is_user.then_some(INNER_STACK - 12)) {
                machine.put_dword(pushed, machine.dword(pushed) & flags);
            }
            // Some processors access the operand at EDI first. Then its page was accessed even if the operand
            // at ESI faults.
            if compares {
                for page in 0..LAYOUT.arena.len / PAGE_SIZE {
                    let entry = ARENA_TABLE + 4 * page;
                    machine.put_dword(entry, machine.dword(entry) & !ACCESSED);
                }
            }
        });
        let is_complete = *exit == Exit::Halt;
        let flags = if compares && !is_complete { !Eflags::STATUS.bits() } else { flags };
        let Pair { right, tested } = &self.pair;
        let seen = |machine: &Machine| {
            let cpu = &machine.cpu;
            let numeric =
                if stores_mmx(&case.instruction) { FxImage::INIT } else { registers(cpu) };
            let registers = (numeric, cpu.cr2, cpu.ip, cpu.instructions);
            let general: [u64; 8] = std::array::from_fn(|register| cpu.gpr(register as u8));
            let segments: [Segment; 6] =
                std::array::from_fn(|register| *cpu.segment(register as u8));
            (registers, general, segments, cpu.eflags().bits() & flags)
        };
        let mut text = String::new();
        // Supervisor code pushes anywhere, to memory or a device.
        let is_comparable = is_user || undefined.flags.is_empty() && !compares;
        if our_exit != exit || is_comparable && right.accesses != tested.accesses {
            let exits = [(exit, &right.accesses), (our_exit, &tested.accesses)];
            let _ = writeln!(text, "{exits:?}");
        }
        if seen(right) != seen(tested) {
            let _ = writeln!(text, "registers: {:x?}\nours:      {:x?}", seen(right), seen(tested));
        }
        let contents = [right, tested].map(|machine| machine.memory.contents());
        if is_comparable {
            let arena = ARENA as usize..(ARENA + LAYOUT.arena.len) as usize;
            for range in [0..LOW_END, arena] {
                let [expected, ours] = contents.map(|contents| &contents[range.clone()]);
                if expected != ours {
                    let place = (0..range.len()).find(|place| expected[*place] != ours[*place]);
                    let place = place.unwrap();
                    let (expected, ours) = (expected[place], ours[place]);
                    let place = range.start + place;
                    let _ = writeln!(text, "at {place:x}: {expected:02x}, ours {ours:02x}");
                }
            }
        }
        if text.is_empty() { None } else { Some(format!("{text}{}", self.pair.reports())) }
    }
}

/// Returns the offsets of a region in the arena.
fn in_arena(region: Region) -> std::ops::Range<usize> {
    let start = (region.start - LAYOUT.arena.start) as usize;
    start..start + region.len as usize
}

/// Writes `bytes` at `place`, except in pages that have them already.
fn restore(machine: &mut Machine, place: usize, bytes: &[u8]) {
    for (at, page) in (place..).step_by(0x1000).zip(bytes.chunks(0x1000)) {
        if machine.memory.contents()[at..at + page.len()] != *page {
            machine.put(at as u32, page);
        }
    }
}

/// Returns the arena's page table. Many of its pages cause some fault, and the pages in holes always do.
fn page_table(random: &mut Random, eip: u32) -> Vec<[u8; 4]> {
    let entry = |page: u32| {
        let address = LAYOUT.arena.start + page * PAGE_SIZE;
        let frame = ARENA + page * PAGE_SIZE;
        let is_hole = [LAYOUT.hole_before_code, LAYOUT.hole_before_data, LAYOUT.hole_after]
            .iter()
            .any(|hole| hole.contains(address));
        let kind = if is_hole { 0 } else { random.below(10) };
        let is_first = address == eip & !(PAGE_SIZE - 1);
        match kind {
            _ if is_first && random.percent(70) => frame | P | US,
            0..4 => frame,
            4 | 5 => frame | P | US,
            6 => frame | P | RW,
            7 if !LAYOUT.code.contains(address) => DEVICE | P | RW | US,
            _ => frame | P | RW | US,
        }
        .to_le_bytes()
    };
    (0..LAYOUT.arena.len / PAGE_SIZE).map(entry).collect()
}

fn set_processor(machine: &mut Machine, start: &State, is_user: bool, limited: bool) {
    machine.reset_processor();
    if is_user {
        machine.enter_user();
    }
    let cpu = &mut machine.cpu;
    cpu.transcendental = host_fpu::execute;
    cpu.set_cr4(Cr4::OSFXSR | Cr4::OSXMMEXCPT);
    cpu.set_cr3(PAGE_DIRECTORY.into());
    cpu.set_cr0(Cr0::PE | Cr0::PG | Cr0::WP | Cr0::NE | Cr0::MP);
    for (number, value) in (0..).zip(start.gpr) {
        cpu.set_gpr(number, value.into());
    }
    cpu.ip = (start.eip - 2).into();
    cpu.set_eflags(Eflags::from_bits_truncate(start.eflags));
    // Some accesses through FS are beyond its limit.
    let limit = if limited { LAYOUT.data.start + 0x1fff } else { u32::MAX };
    cpu.set_segment(sreg::FS, Segment::new(USER_DS, 0, limit, Attributes(0xc0f3)));
    cpu.set_segment(sreg::GS, Segment::new(USER_DS, 0x10, u32::MAX, Attributes(0xc0f3)));
    set_x87(&mut cpu.fpu, &start.fx);
    cpu.sse.set_mxcsr(start.fx.mxcsr());
    for number in 0..8 {
        cpu.sse.set_xmm(number, start.fx.xmm(number.into()));
    }
}

/// Returns whether `instruction` stores an MMX register. On some processors such an instruction has set TOP
/// and the tags when it faults.
fn stores_mmx(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    matches!(instruction.mnemonic(), M::Movd | M::Movq | M::Movntq | M::Maskmovq)
        && (instruction.op1_register().is_mm() || instruction.op2_register().is_mm())
}

/// Returns whether only users may execute `instruction` here: others could change the system, or go anywhere
/// in it.
fn is_for_user(instruction: &Instruction) -> bool {
    instruction.is_privileged() || instruction.flow_control() != FlowControl::Next
}

/// Runs random cases of `forms`, evenly spread.
fn compare_forms<F>(cases: u64, forms: &[F], case: impl Fn(&mut Random, &F) -> Case) {
    let Some(mut stage) = Stage::new() else { return };
    let series = Series::from_environment(cases);
    let mut text = String::new();
    let mut differences = 0;
    for number in series.cases.clone() {
        let mut random = series.random(number);
        let form = &forms[(number % forms.len() as u64) as usize];
        let mut case = case(&mut random, form);
        // On a model without BMI1, TZCNT is BSF.
        let size = CodeSize::Bits32;
        case.instruction = decoder(&case.code, size, case.start.rip, Model::default()).decode();
        // The second page of an instruction that is only partly in the code region is a hole.
        if case.start.rip < u64::from(LAYOUT.code.start + 2) {
            continue;
        }
        if let Err(difference) = stage.compare(&mut random, &case) {
            differences += 1;
            if differences <= 5 {
                let Case { code, instruction, .. } = &case;
                let seed = series.seed;
                let _ = writeln!(
                    text,
                    "seed {seed} case {number}: {code:02x?} {instruction}\n{difference}"
                );
            }
        }
    }
    assert!(differences == 0, "{differences} differences:\n{text}");
}

#[test]
fn integer_and_vector_instructions_go_on_after_faults() {
    const X87: [CpuidFeature; 3] = [CpuidFeature::FPU, CpuidFeature::FPU287, CpuidFeature::FPU387];
    let is_x87 = |code: &Code| code.cpuid_features().iter().any(|feature| X87.contains(feature));
    let codes = table::forms().iter().map(|form| form.code);
    // At these the engine returns before it executes them.
    let reads_time = |code| matches!(code, Code::Rdtsc | Code::Rdtscp);
    let is_tested = |code: &Code| code.op_code().mode32() && !is_x87(code) && !reads_time(*code);
    let forms: Vec<Code> = codes.filter(is_tested).collect();
    compare_forms(CASES, &forms, |random, form| IntegerScene::random(random, *form, 32).0);
}

#[test]
fn x87_instructions_go_on_after_faults() {
    compare_forms(CASES / 3, &encodings(32), |random, encoding| {
        let scene = X87Scene::random(random, encoding, 32);
        scene.case().clone()
    });
}
