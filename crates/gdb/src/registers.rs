//! The registers as GDB sees them: their names and types (`i386.xml` and
//! `x86_64.xml`, with QEMU's names), and their bytes in
//! the order of that description.

use gdbstub::arch::{self, Arch};
use ring3_vm::debug::Registers;

/// x86 with addresses of 64 bits, for `gdbstub`. Of those, the debugger of a processor without long mode uses 32.
#[derive(Debug)]
pub(crate) enum X86 {}

impl Arch for X86 {
    type Usize = u64;
    type Registers = File;
    type BreakpointKind = usize;
    type RegId = ();
}

/// Returns the description of the registers of processors with long mode, or of others.
pub(crate) fn description(has_long_mode: bool) -> &'static str {
    if has_long_mode { include_str!("x86_64.xml") } else { include_str!("i386.xml") }
}

/// All registers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct File(pub(crate) Registers);

/// The registers CS, SS, DS, ES, FS and GS, in this order, by their numbers in instructions.
const SELECTORS: [usize; 6] = [1, 2, 3, 0, 4, 5];

/// What differs between the two descriptions.
struct Form {
    /// The numbers in instructions of the general registers, in the order of the description.
    general: &'static [usize],
    /// Bytes of general registers, the instruction pointer and registers of the system.
    word: usize,
    /// The number of registers XMM0 and following.
    xmm: usize,
}

const FORM_32: Form = Form { general: &[0, 1, 2, 3, 4, 5, 6, 7], word: 4, xmm: 8 };
const FORM_64: Form =
    Form { general: &[0, 3, 1, 2, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15], word: 8, xmm: 16 };

impl Form {
    fn of(has_long_mode: bool) -> &'static Form {
        if has_long_mode { &FORM_64 } else { &FORM_32 }
    }

    /// Bytes of all registers: those of the core, 9 of the system, x87 and SSE.
    fn bytes(&self) -> usize {
        (self.general.len() + 1) * self.word
            + 7 * 4
            + 9 * self.word
            + 8 * 10
            + 8 * 4
            + self.xmm * 16
            + 4
    }
}

impl File {
    fn bytes(&self) -> Vec<u8> {
        let all = &self.0;
        let form = Form::of(all.has_long_mode);
        let [cr0, cr2, cr3, cr4] = all.control;
        let [control, status, tags, instruction, code, operand, data] = all.environment;
        let low = |field: u32| field & 0xffff;
        let x87 = [
            low(control),
            low(status),
            low(tags),
            low(code),
            instruction,
            low(data),
            operand,
            code >> 16 & 0x7ff,
        ];
        let mut bytes = Vec::with_capacity(form.bytes());
        let word = |bytes: &mut Vec<u8>, value: u64| {
            bytes.extend_from_slice(&value.to_le_bytes()[..form.word]);
        };
        form.general.iter().for_each(|number| word(&mut bytes, all.general[*number]));
        word(&mut bytes, all.ip);
        let selectors = SELECTORS.map(|number| u32::from(all.selectors[number]));
        bytes.extend([all.eflags].into_iter().chain(selectors).flat_map(u32::to_le_bytes));
        // CR8 is in the local APIC, which is asked for nothing.
        let system = [cr0, cr2, cr3, cr4, 0, all.efer];
        all.bases.into_iter().chain(system).for_each(|value| word(&mut bytes, value));
        bytes.extend(all.st.as_flattened());
        bytes.extend(x87.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(all.xmm[..form.xmm].iter().flat_map(|value| value.to_le_bytes()));
        bytes.extend(all.mxcsr.to_le_bytes());
        bytes
    }

    /// Returns the registers whose bytes, by either description, are `bytes`.
    fn of_bytes(bytes: &[u8]) -> Option<File> {
        let has_long_mode = bytes.len() == FORM_64.bytes();
        let form = Form::of(has_long_mode);
        let mut rest = bytes;
        let dword = |rest: &mut &[u8]| take(rest).map(u32::from_le_bytes);
        let word = |rest: &mut &[u8]| {
            let (first, others) = rest.split_at_checked(form.word)?;
            *rest = others;
            Some(first.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
        };
        let mut all = Registers { has_long_mode, ..Registers::default() };
        for number in form.general {
            all.general[*number] = word(&mut rest)?;
        }
        all.ip = word(&mut rest)?;
        all.eflags = dword(&mut rest)?;
        for number in SELECTORS {
            all.selectors[number] = dword(&mut rest)? as u16;
        }
        let mut system = [0; 9];
        for register in &mut system {
            *register = word(&mut rest)?;
        }
        let [fs, gs, kernel_gs, cr0, cr2, cr3, cr4, _, efer] = system;
        (all.bases, all.control, all.efer) = ([fs, gs, kernel_gs], [cr0, cr2, cr3, cr4], efer);
        for register in &mut all.st {
            *register = take(&mut rest)?;
        }
        let mut x87 = [0; 8];
        for register in &mut x87 {
            *register = dword(&mut rest)?;
        }
        let [control, status, tags, code, instruction, data, operand, opcode] = x87;
        // The upper halves of words are reserved and read as ones (SDM vol. 1, figure 8-9).
        let upper = |field: u32| field & 0xffff | 0xffff_0000;
        all.environment = [
            upper(control),
            upper(status),
            upper(tags),
            instruction,
            code & 0xffff | (opcode & 0x7ff) << 16,
            operand,
            upper(data),
        ];
        for register in &mut all.xmm[..form.xmm] {
            *register = take(&mut rest).map(u128::from_le_bytes)?;
        }
        all.mxcsr = dword(&mut rest)?;
        rest.is_empty().then_some(File(all))
    }
}

/// Takes the first `N` bytes of `rest`.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, others) = rest.split_first_chunk()?;
    *rest = others;
    Some(*first)
}

impl arch::Registers for File {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.0.ip
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.bytes().into_iter().for_each(|byte| write_byte(Some(byte)));
    }

    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        *self = File::of_bytes(bytes).ok_or(())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_description() {
        for has_long_mode in [false, true] {
            let sizes = description(has_long_mode).lines().filter_map(|line| {
                let (_, rest) = line.split_once("<reg ")?.1.split_once("bitsize=\"")?;
                rest.split_once('"')?.0.parse::<usize>().ok()
            });
            let bytes = Form::of(has_long_mode).bytes();
            assert_eq!(sizes.sum::<usize>() / 8, bytes);
            let file = File(Registers { has_long_mode, ..Registers::default() });
            assert_eq!(file.bytes().len(), bytes);
        }
    }

    #[test]
    fn what_is_read_can_be_written() {
        let mut general = [0; 16];
        general[..8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let mut xmm = [0; 16];
        xmm[..8].fill(26);
        let mut all = Registers {
            has_long_mode: false,
            general,
            ip: 9,
            eflags: 0x202,
            selectors: [10, 11, 12, 13, 14, 15],
            bases: [16, 17, 0],
            control: [18, 19, 20, 21],
            efer: 22,
            st: [[23; 10]; 8],
            environment: [0xffff_037f, 0xffff_0001, 0xffff_1234, 24, 0x0123_0008, 25, 0xffff_0010],
            xmm,
            mxcsr: 0x1f80,
        };
        assert_eq!(File::of_bytes(&File(all.clone()).bytes()), Some(File(all.clone())));
        all.ip += 1;
        let mut bytes = File(all.clone()).bytes();
        bytes.pop();
        assert_eq!(File::of_bytes(&bytes), None);

        all.has_long_mode = true;
        all.general[8..].fill(u64::MAX - 1);
        (all.ip, all.bases[2], all.control[2]) = (0xffff_ffff_8100_0000, 1 << 63, 1 << 39);
        all.xmm[15] = u128::MAX - 1;
        assert_eq!(File::of_bytes(&File(all.clone()).bytes()), Some(File(all)));
    }
}
