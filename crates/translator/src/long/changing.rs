//! Blocks of 64-bit code in pages that [keep changing](crate::code::changing), as those do in which compilers write
//! while their code runs. Such a block compares the bytes that it was made from with memory before it begins. If
//! they differ, the block of the new bytes takes its place in the jump table, by which alone such blocks are entered.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};
use ring3_core::memory::{Memory, PAGE_SHIFT, Target};

use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::flags::Eflags;
use ring3_x86::paging::Access;

use super::Long;
use crate::code::changing::Contents;
use crate::code::strings::{Form, compares};
use crate::long::context::at;
use crate::long::writer::{Writer, is_in_context, rename};

/// Bytes of the immediate operand of `mov r32, imm32`.
const IMMEDIATE_LEN: u64 = 4;

impl Writer {
    /// Compares the bytes at the host address `host` with `contents`, and goes to `same` if they are equal. Otherwise
    /// translated code is left to look for the code of `linear`. Changes no flags. Uses R10 and R11.
    pub(crate) fn compare(&mut self, contents: &Contents, host: u64, same: u32, linear: u64) {
        self.store(self.field(at::SAVED_RCX), Register::RCX);
        self.load_number(Register::R10, host);
        let registers = [Register::R10, Register::R11];
        let different = contents.jump_if_changed(&mut self.emitter, registers);
        self.restore_rcx();
        let equal = self.emitter.unaligned_jump();
        self.emitter.lead(equal, same);
        for branch in different {
            self.emitter.land(branch);
        }
        self.restore_rcx();
        self.load_number(Register::R10, linear);
        self.leave_to_look_up();
    }

    /// Executes `mov`, MOV r32, imm32, with the operand that it has in memory now, at the end of its bytes, which is
    /// the host address `end`. Uses R11.
    pub(crate) fn load_immediate(&mut self, mov: &Instruction, end: u64) {
        let guest = mov.op0_register();
        let is_in_context = is_in_context(guest);
        let to = if is_in_context { Register::R11D } else { rename(guest) };
        self.load_number(Register::R11, end - IMMEDIATE_LEN);
        let memory = MemoryOperand::with_base(Register::R11);
        self.emitter.instruction(Instruction::with2(Code::Mov_r32_rm32, to, memory));
        if is_in_context {
            self.store(self.register(guest), Register::R11);
        }
    }
}

/// What a repeated string instruction writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Element {
    Nothing,
    /// So many bytes at RDI.
    AtRdi(u64),
    /// Something else, or at EDI.
    Other,
}

impl Element {
    pub(crate) fn of(instruction: &Instruction) -> Element {
        match Form::of(instruction) {
            Some(form) if !form.destination || compares(instruction) => Element::Nothing,
            Some(form) if instruction.op0_kind() == OpKind::MemoryESRDI => {
                Element::AtRdi(form.size.into())
            }
            _ => Element::Other,
        }
    }
}

impl Long {
    /// Returns how many iterations of the repeated instruction at RIP, whose page keeps changing, may be executed at
    /// once: those that write to one other page. After a write to its own page it may be another instruction.
    pub(super) fn iterations_beside_code(
        &mut self,
        cpu: &mut Cpu,
        memory: &mut Memory,
        element: Element,
    ) -> u64 {
        let size = match element {
            Element::Nothing => return u64::MAX,
            Element::AtRdi(size) => size,
            Element::Other => return 1,
        };
        let linear = cpu.gpr(reg::DI);
        let Ok(space) = self.spaces.find(cpu, memory) else { return 1 };
        let code = space.fetch(cpu, memory, cpu.ip);
        let Some((page, _)) = cpu.page_in_advance(memory, linear, Access::Read, cpu.is_user())
        else {
            return 1;
        };
        let Target::Place(written) = memory.read_target(page.address) else { return 1 };
        if code.is_none_or(|code| code >> PAGE_SHIFT == written >> PAGE_SHIFT) {
            return 1;
        }
        let offset = linear & 0xfff;
        let inside = (0x1000 - offset) / size;
        match inside {
            // The first element crosses into the next page.
            0 => 1,
            _ if cpu.eflags().contains(Eflags::DF) => offset / size + 1,
            _ => inside,
        }
    }
}
