//! The layout of an ELF core file with the memory and the registers of a machine (System V ABI, Intel386 and AMD64
//! supplements, and QEMU's `dump/dump.c`): headers, program headers, notes, and then memory.
//!
//! Two kinds of readers take it. To `crash`, the physical address of a segment counts, to a debugger the
//! virtual one: without paging both are the same, and with it the virtual address is the linear one.

use std::ops::Range;

use ring3_vm::debug::Registers;
use ring3_x86::cpu::Cpu;
use ring3_x86::segment::{Segment, TableRegister, sreg};

/// The number of program headers that says that the real one is in `sh_info` of section header 0.
const PN_XNUM: u16 = 0xffff;

const ET_CORE: u16 = 4;
const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_RWX: u32 = 7;

/// Types of notes named CORE: the general registers, and those of the x87.
const NT_PRSTATUS: u32 = 1;
const NT_FPREGSET: u32 = 2;

/// Memory begins at a multiple of this in the file.
const ALIGNMENT: u64 = 4096;

/// The forms of such files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Numbers and registers of 32 bits, for machines whose code has such addresses.
    Bits32,
    /// The same registers in a file with numbers of 64 bits, for those of them with memory above 4 GiB.
    Wide,
    /// Numbers and registers of 64 bits, for machines in long mode.
    Bits64,
}

impl Class {
    /// Returns the form for a machine with these registers and the memory in `ranges`.
    pub(crate) fn of(registers: &Registers, ranges: &[Range<u64>]) -> Class {
        let is_wide = ranges.last().is_some_and(|range| range.end > 1 << 32);
        if registers.is_in_long_mode() {
            Class::Bits64
        } else if is_wide {
            Class::Wide
        } else {
            Class::Bits32
        }
    }

    /// Returns the sizes of the ELF header, a program header and a section header.
    fn sizes(self) -> [u16; 3] {
        match self {
            Class::Bits32 => [52, 32, 40],
            Class::Wide | Class::Bits64 => [64, 56, 64],
        }
    }

    /// Writes addresses, offsets or sizes.
    fn put(self, to: &mut Vec<u8>, values: &[u64]) {
        let len = if self == Class::Bits32 { 4 } else { 8 };
        to.extend(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(len)));
    }

    /// Writes a program header.
    fn put_segment(self, to: &mut Vec<u8>, kind: u32, flags: u32, offset: u64, load: &Load) {
        let Load { linear, physical, len } = *load;
        put32(to, &[kind]);
        if self != Class::Bits32 {
            put32(to, &[flags]);
        }
        self.put(to, &[offset, linear, physical, len, len]);
        if self == Class::Bits32 {
            put32(to, &[flags]);
        }
        self.put(to, &[0]);
    }
}

/// A segment of the file: memory at consecutive addresses of both kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    /// The address for debuggers.
    pub(crate) linear: u64,
    /// The guest-physical address.
    pub(crate) physical: u64,
    /// Number of bytes.
    pub(crate) len: u64,
}

/// The file, apart from the contents of memory.
#[derive(Debug)]
pub(crate) struct Layout {
    /// What stands before memory.
    pub(crate) start: Vec<u8>,
    /// For each range of guest-physical memory, its offset in the file.
    pub(crate) offsets: Vec<u64>,
    /// The size of the whole file.
    pub(crate) len: u64,
}

impl Layout {
    /// Makes the layout of a file with the memory in `ranges`, in ascending order, of which `loads` are
    /// visible, and with `notes`.
    pub(crate) fn new(class: Class, ranges: &[Range<u64>], loads: &[Load], notes: &[u8]) -> Layout {
        let [header_len, segment_len, section_len] = class.sizes();
        let headers = loads.len() as u64 + 1;
        let is_long = headers >= PN_XNUM.into();
        let sections_at = u64::from(header_len) + headers * u64::from(segment_len);
        let notes_at = sections_at + if is_long { u64::from(section_len) } else { 0 };
        let mut end = notes_at + notes.len() as u64;
        let offsets: Vec<u64> = ranges
            .iter()
            .map(|range| {
                let at = end.next_multiple_of(ALIGNMENT);
                end = at + (range.end - range.start);
                at
            })
            .collect();
        let mut start = Vec::new();
        let (number, machine) = match class {
            Class::Bits32 => (1, EM_386),
            Class::Wide => (2, EM_386),
            Class::Bits64 => (2, EM_X86_64),
        };
        start.extend([0x7f, b'E', b'L', b'F', number, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        put16(&mut start, &[ET_CORE, machine]);
        let sections = if is_long { sections_at } else { 0 };
        put32(&mut start, &[1]);
        class.put(&mut start, &[0, header_len.into(), sections]);
        put32(&mut start, &[0]);
        let count = if is_long { PN_XNUM } else { headers as u16 };
        put16(&mut start, &[header_len, segment_len, count]);
        put16(&mut start, &[section_len, u16::from(is_long), 0]);
        let of_notes = Load { linear: 0, physical: 0, len: notes.len() as u64 };
        class.put_segment(&mut start, PT_NOTE, 0, notes_at, &of_notes);
        for load in loads {
            let number = ranges.partition_point(|range| range.end <= load.physical);
            let offset = offsets[number] + (load.physical - ranges[number].start);
            class.put_segment(&mut start, PT_LOAD, PF_RWX, offset, load);
        }
        if is_long {
            put32(&mut start, &[0, 0]);
            class.put(&mut start, &[0, 0, 0, 0]);
            put32(&mut start, &[0, headers as u32]);
            class.put(&mut start, &[0, 0]);
        }
        start.extend(notes);
        Layout { start, offsets, len: end }
    }
}

/// Makes the notes with the registers of a processor, as Linux and QEMU lay them out. The guest's own note follows, if
/// there is one in `of_guest`.
pub(crate) fn notes(class: Class, cpu: &Cpu, registers: &Registers, of_guest: &[u8]) -> Vec<u8> {
    let mut notes = Vec::new();
    let (status, numeric) = match class {
        Class::Bits32 | Class::Wide => (process_status(registers), x87(registers)),
        Class::Bits64 => (long_process_status(registers), fxsave(registers)),
    };
    note(&mut notes, b"CORE\0", NT_PRSTATUS, &status);
    note(&mut notes, b"CORE\0", NT_FPREGSET, &numeric);
    note(&mut notes, b"QEMU\0", 0, &qemu_state(cpu, registers));
    notes.extend(vmcoreinfo(of_guest).unwrap_or_default());
    notes
}

/// Returns the note at the beginning of `bytes`, if it is one about the layout of a kernel's data.
fn vmcoreinfo(bytes: &[u8]) -> Option<&[u8]> {
    const NAME: &[u8] = b"VMCOREINFO\0";
    let number = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let (name_len, body_len) = (number(0)? as usize, number(4)? as usize);
    let body_at = 12 + NAME.len().next_multiple_of(4);
    let has_name = name_len == NAME.len() && bytes.get(12..12 + NAME.len())? == NAME;
    // The length is what the guest says, and may be any number.
    let end = body_at.checked_add(body_len)?.checked_next_multiple_of(4)?;
    bytes.get(..end).filter(|_| has_name)
}

fn note(to: &mut Vec<u8>, name: &[u8], kind: u32, body: &[u8]) {
    put32(to, &[name.len() as u32, body.len() as u32, kind]);
    for part in [name, body] {
        to.extend(part);
        to.resize(to.len().next_multiple_of(4), 0);
    }
}

/// Makes `struct elf_prstatus`: signal and process, of which there is number 1, and the registers.
fn process_status(registers: &Registers) -> Vec<u8> {
    let low = registers.general.map(|value| value as u32);
    let [eax, ecx, edx, ebx, esp, ebp, esi, edi, ..] = low;
    let [es, cs, ss, ds, fs, gs] = registers.selectors.map(u32::from);
    let mut status = vec![0; 72];
    status[24..28].copy_from_slice(&1_u32.to_le_bytes());
    put32(&mut status, &[ebx, ecx, edx, esi, edi, ebp, eax, ds, es, fs, gs]);
    // There is no system call in which the process waits.
    put32(&mut status, &[u32::MAX, registers.ip as u32, cs, registers.eflags, esp, ss]);
    // Whether the registers of the x87 are there, too.
    put32(&mut status, &[1]);
    status
}

/// Makes `struct elf_prstatus` of x86-64.
fn long_process_status(registers: &Registers) -> Vec<u8> {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] =
        registers.general;
    let [es, cs, ss, ds, fs, gs] = registers.selectors.map(u64::from);
    let [fs_base, gs_base, _] = registers.bases;
    let mut status = vec![0; 112];
    status[32..36].copy_from_slice(&1_u32.to_le_bytes());
    put64(&mut status, &[r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi]);
    // There is no system call in which the process waits.
    put64(&mut status, &[u64::MAX, registers.ip, cs, registers.eflags.into(), rsp, ss]);
    put64(&mut status, &[fs_base, gs_base, ds, es, fs, gs]);
    // Whether the registers of the x87 are there, too.
    put64(&mut status, &[1]);
    status
}

/// Makes `struct user_i387_struct`, the image that FNSAVE stores.
fn x87(registers: &Registers) -> Vec<u8> {
    let mut image = Vec::new();
    put32(&mut image, &registers.environment);
    registers.st.iter().for_each(|st| image.extend(st));
    image
}

/// Makes `struct user_i387_struct` of x86-64, the image that FXSAVE stores (SDM vol. 1, table 10-2).
fn fxsave(registers: &Registers) -> Vec<u8> {
    let [control, status, tags, instruction, code, operand, _] = registers.environment;
    let is_used = |number: u32| tags >> (2 * number) & 3 != 3;
    let used = (0..8).fold(0, |used, number| used | u16::from(is_used(number)) << number);
    let mut image = Vec::new();
    put16(&mut image, &[control as u16, status as u16, used, (code >> 16 & 0x7ff) as u16]);
    put64(&mut image, &[instruction.into(), operand.into()]);
    put32(&mut image, &[registers.mxcsr, 0xffff]);
    for st in &registers.st {
        image.extend(st);
        image.extend([0; 6]);
    }
    image.extend(registers.xmm.iter().flat_map(|value| value.to_le_bytes()));
    image.resize(512, 0);
    image
}

/// Makes QEMU's `QEMUCPUState`, version 1, with the registers that no process has.
fn qemu_state(cpu: &Cpu, registers: &Registers) -> Vec<u8> {
    let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, others @ ..] = registers.general;
    let mut body = Vec::new();
    put64(&mut body, &[rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp]);
    put64(&mut body, &others);
    put64(&mut body, &[registers.ip, registers.eflags.into()]);
    for register in [sreg::CS, sreg::DS, sreg::ES, sreg::FS, sreg::GS, sreg::SS] {
        put_segment(&mut body, cpu.segment(register));
    }
    put_segment(&mut body, &cpu.ldtr);
    put_segment(&mut body, &cpu.tr);
    put_table(&mut body, cpu.gdtr);
    put_table(&mut body, cpu.idtr);
    let [cr0, cr2, cr3, cr4] = registers.control;
    let [_, _, kernel_gs_base] = registers.bases;
    put64(&mut body, &[cr0, 0, cr2, cr3, cr4, kernel_gs_base]);
    let mut state = Vec::new();
    put32(&mut state, &[1, body.len() as u32 + 8]);
    state.extend(body);
    state
}

/// Writes a segment with its attributes where a descriptor has them.
fn put_segment(to: &mut Vec<u8>, segment: &Segment) {
    let attributes = u32::from(segment.attributes.0) << 8;
    put32(to, &[segment.selector.into(), segment.limit, attributes, 0]);
    put64(to, &[segment.base]);
}

fn put_table(to: &mut Vec<u8>, table: TableRegister) {
    put32(to, &[0, table.limit.into(), 0, 0]);
    put64(to, &[table.base]);
}

fn put16(to: &mut Vec<u8>, values: &[u16]) {
    to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put32(to: &mut Vec<u8>, values: &[u32]) {
    to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn put64(to: &mut Vec<u8>, values: &[u64]) {
    to.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dword(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn a_segment_shows_its_part_of_memory() {
        let ranges = [0..0xa_0000, 0x10_0000..0x20_0000];
        let loads = [
            Load { linear: 0xc000_1000, physical: 0x1000, len: 0x2000 },
            Load { linear: 0xc010_4000, physical: 0x10_4000, len: 0x1000 },
        ];
        let layout = Layout::new(Class::Bits32, &ranges, &loads, &[7; 12]);
        assert_eq!(layout.offsets, [0x1000, 0xa_1000]);
        assert_eq!(layout.len, 0x1a_1000);
        assert_eq!(layout.start.len(), 52 + 3 * 32 + 12);
        let of = |number: usize| 52 + 32 * number;
        assert_eq!(dword(&layout.start, of(0)), PT_NOTE);
        assert_eq!(dword(&layout.start, of(0) + 4), 52 + 3 * 32);
        let second = |field: usize| dword(&layout.start, of(2) + 4 * field);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(second),
            [PT_LOAD, 0xa_5000, 0xc010_4000, 0x10_4000, 0x1000, 0x1000]
        );
    }

    #[test]
    fn the_form_suits_code_and_memory() {
        let mut registers = Registers::default();
        let ranges = [0..1 << 32, 1 << 32..(1 << 32) + 1];
        assert_eq!(Class::of(&registers, &ranges[..1]), Class::Bits32);
        assert_eq!(Class::of(&registers, &ranges), Class::Wide);
        registers.efer = 1 << 10;
        assert_eq!(Class::of(&registers, &ranges[..1]), Class::Bits64);
        let wide = Layout::new(Class::Wide, &[], &[], &[]);
        assert_eq!((&wide.start[4..5], &wide.start[18..20]), (&[2][..], &[3, 0][..]));
    }

    #[test]
    fn numbers_of_64_bits_are_whole() {
        let ranges = [0x10_0000..0xc000_0000, 0x1_0000_0000..0x2_0000_0000];
        let linear = 0xffff_8881_8000_0000;
        let loads = [Load { linear, physical: 0x1_8000_0000, len: 0x1000 }];
        let layout = Layout::new(Class::Bits64, &ranges, &loads, &[7; 12]);
        assert_eq!(&layout.start[..6], b"\x7fELF\x02\x01");
        assert_eq!(layout.start.len(), 64 + 2 * 56 + 12);
        let quadword = |at: usize| u64::from_le_bytes(layout.start[at..at + 8].try_into().unwrap());
        let of = 64 + 56;
        assert_eq!((dword(&layout.start, of), dword(&layout.start, of + 4)), (PT_LOAD, PF_RWX));
        let fields = [8, 16, 24, 32, 40].map(|field| quadword(of + field));
        let offset = layout.offsets[1] + 0x8000_0000;
        assert_eq!(fields, [offset, linear, 0x1_8000_0000, 0x1000, 0x1000]);
    }

    #[test]
    fn more_segments_than_the_header_can_count_are_in_a_section_header() {
        let ranges = [0..0x1000_0000, 0x1000_0000..0x4000_0000];
        let load = |page: u64| Load { linear: page << 13, physical: page << 12, len: 0x1000 };
        let loads: Vec<_> = (0..70_000).map(load).collect();
        let layout = Layout::new(Class::Bits32, &ranges, &loads, &[]);
        assert_eq!(&layout.start[44..46], PN_XNUM.to_le_bytes());
        let sections = dword(&layout.start, 32) as usize;
        assert_eq!(dword(&layout.start, sections + 28), 70_001);
        assert_eq!(layout.offsets[0], (sections as u64 + 40).next_multiple_of(4096));
    }

    #[test]
    fn notes_have_the_lengths_that_readers_expect() {
        let notes = notes(Class::Bits32, &Cpu::new(), &Registers::default(), &[]);
        // The headers with their names take 20 bytes each.
        assert_eq!(notes.len(), 20 + 144 + 20 + 108 + 20 + 440);
        assert_eq!(dword(&notes, 4), 144);
        let notes = super::notes(Class::Bits64, &Cpu::new(), &Registers::default(), &[]);
        assert_eq!(notes.len(), 20 + 336 + 20 + 512 + 20 + 440);
    }

    #[test]
    fn only_a_whole_note_of_the_guest_is_taken() {
        let mut memory = Vec::new();
        note(&mut memory, b"VMCOREINFO\0", 0, b"OSRELEASE=6");
        let len = memory.len();
        memory.extend([7; 100]);
        assert_eq!(vmcoreinfo(&memory), Some(&memory[..len]));
        let all = notes(Class::Bits32, &Cpu::new(), &Registers::default(), &memory);
        assert!(all.ends_with(&memory[..len]));
        assert!((0..len).all(|len| vmcoreinfo(&memory[..len]).is_none()));
        for (at, byte) in [(0, 12), (4, 200), (7, 0xff), (12, b'v')] {
            let mut other = memory.clone();
            other[at] = byte;
            assert_eq!(vmcoreinfo(&other), None, "{at}");
        }
        memory[4..8].fill(0xff);
        assert_eq!(vmcoreinfo(&memory), None);
    }
}
