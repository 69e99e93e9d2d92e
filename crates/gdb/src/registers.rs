//! The registers as GDB sees them: their names and types (`i386.xml`, with QEMU's names), and their bytes in
//! the order of that description.

use gdbstub::arch::{self, Arch};
use ring3_vm::debug::Registers;

/// 32-bit x86, for `gdbstub`.
#[derive(Debug)]
pub(crate) enum I386 {}

impl Arch for I386 {
    type Usize = u32;
    type Registers = File;
    type BreakpointKind = usize;
    type RegId = ();

    fn target_description_xml() -> Option<&'static str> {
        Some(include_str!("i386.xml"))
    }
}

/// All registers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct File(pub(crate) Registers);

/// The registers CS, SS, DS, ES, FS and GS, in this order, by their numbers in instructions.
const SELECTORS: [usize; 6] = [1, 2, 3, 0, 4, 5];

/// Bytes of all registers: 16 of the core, 9 of the system, x87 and SSE.
const BYTES: usize = 16 * 4 + 9 * 4 + 8 * 10 + 8 * 4 + 8 * 16 + 4;

impl File {
    fn bytes(&self) -> Vec<u8> {
        let all = &self.0;
        let [cr0, cr2, cr3, cr4] = all.control;
        let [control, status, tags, instruction, code, operand, data] = all.environment;
        let core = all.general.into_iter().chain([all.eip, all.eflags]);
        let selectors = SELECTORS.map(|number| u32::from(all.selectors[number]));
        // There are no kernel base of GS and no CR8 without long mode.
        let system = [all.bases[0], all.bases[1], 0, cr0, cr2, cr3, cr4, 0, all.efer];
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
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(core.chain(selectors).chain(system).flat_map(u32::to_le_bytes));
        bytes.extend(all.st.as_flattened());
        bytes.extend(x87.into_iter().flat_map(u32::to_le_bytes));
        bytes.extend(all.xmm.into_iter().flat_map(u128::to_le_bytes));
        bytes.extend(all.mxcsr.to_le_bytes());
        bytes
    }

    fn of_bytes(bytes: &[u8]) -> Option<File> {
        let mut rest = bytes;
        let dword = |rest: &mut &[u8]| take(rest).map(u32::from_le_bytes);
        let mut all = Registers::default();
        for register in &mut all.general {
            *register = dword(&mut rest)?;
        }
        all.eip = dword(&mut rest)?;
        all.eflags = dword(&mut rest)?;
        for number in SELECTORS {
            all.selectors[number] = dword(&mut rest)? as u16;
        }
        let mut system = [0; 9];
        for register in &mut system {
            *register = dword(&mut rest)?;
        }
        let [fs, gs, _, cr0, cr2, cr3, cr4, _, efer] = system;
        (all.bases, all.control, all.efer) = ([fs, gs], [cr0, cr2, cr3, cr4], efer);
        for register in &mut all.st {
            *register = take(&mut rest)?;
        }
        let mut x87 = [0; 8];
        for register in &mut x87 {
            *register = dword(&mut rest)?;
        }
        let [control, status, tags, code, instruction, data, operand, opcode] = x87;
        // The upper halves of words are reserved and read as ones (SDM vol. 1, figure 8-9).
        let word = |field: u32| field & 0xffff | 0xffff_0000;
        all.environment = [
            word(control),
            word(status),
            word(tags),
            instruction,
            code & 0xffff | (opcode & 0x7ff) << 16,
            operand,
            word(data),
        ];
        for register in &mut all.xmm {
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
    type ProgramCounter = u32;

    fn pc(&self) -> u32 {
        self.0.eip
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
        let sizes = include_str!("i386.xml").lines().filter_map(|line| {
            let (_, rest) = line.split_once("<reg ")?.1.split_once("bitsize=\"")?;
            rest.split_once('"')?.0.parse::<usize>().ok()
        });
        assert_eq!(sizes.sum::<usize>() / 8, BYTES);
        assert_eq!(File::default().bytes().len(), BYTES);
    }

    #[test]
    fn what_is_read_can_be_written() {
        let mut all = Registers {
            general: [1, 2, 3, 4, 5, 6, 7, 8],
            eip: 9,
            eflags: 0x202,
            selectors: [10, 11, 12, 13, 14, 15],
            bases: [16, 17],
            control: [18, 19, 20, 21],
            efer: 22,
            st: [[23; 10]; 8],
            environment: [0xffff_037f, 0xffff_0001, 0xffff_1234, 24, 0x0123_0008, 25, 0xffff_0010],
            xmm: [26; 8],
            mxcsr: 0x1f80,
        };
        assert_eq!(File::of_bytes(&File(all.clone()).bytes()), Some(File(all.clone())));
        all.eip += 1;
        let mut bytes = File(all).bytes();
        bytes.pop();
        assert_eq!(File::of_bytes(&bytes), None);
    }
}
