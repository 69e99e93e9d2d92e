//! System instructions (SDM vol. 3, 2.8). Those that only read or write a field of the processor's state
//! access it directly. Handlers of the interpreter execute the others while translated code waits; then it
//! goes on with the next instruction ([`Translator::execute_system`](crate::translator::Translator)).

use std::mem::offset_of;

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::segment::{Segment, TableRegister};

use crate::code::copy;
use crate::code::emitter::Emitter;
use crate::context::at;
use crate::mode::{Loading, Mode};

/// A system instruction, by the parts of translated code that may depend on what it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum System {
    /// Translated code depends on nothing that it changes.
    Plain,
    /// It reads descriptors and sets ZF.
    SegmentCheck,
    Cpuid,
    Rdmsr,
    Wrmsr,
    /// It loads a register that locates descriptors or the TSS.
    Tables,
    /// It loads CR0 or CR4.
    Control,
    /// It reads or loads a debug register.
    Debug,
    /// INVLPG.
    Page,
}

impl System {
    /// Returns the kind of `instruction` in code of `mode`. Returns None if it is not a system instruction,
    /// or raises an exception there.
    pub(crate) fn of(instruction: &Instruction, mode: &Mode) -> Option<System> {
        use Mnemonic as M;
        let loading = mode.segmented.map(|segmented| segmented.loading);
        let is_protected = matches!(loading, None | Some(Loading::Protected));
        match instruction.mnemonic() {
            M::Cpuid => Some(System::Cpuid),
            M::Verr | M::Verw | M::Lar | M::Lsl | M::Arpl => {
                is_protected.then_some(System::SegmentCheck)
            }
            M::Sldt | M::Str => is_protected.then_some(System::Plain),
            _ if matches!(loading, Some(Loading::Virtual8086 { .. })) => None,
            M::Sgdt | M::Sidt | M::Smsw => Some(System::Plain),
            _ if mode.is_user => None,
            M::Rdmsr => Some(System::Rdmsr),
            M::Wrmsr => Some(System::Wrmsr),
            M::Rdpmc | M::Wbinvd | M::Invd => Some(System::Plain),
            M::Lldt | M::Ltr => is_protected.then_some(System::Tables),
            M::Lgdt | M::Lidt => Some(System::Tables),
            M::Clts | M::Lmsw => Some(System::Control),
            M::Invlpg => Some(System::Page),
            M::Mov => match instruction.op0_register() {
                Register::CR0 | Register::CR4 => Some(System::Control),
                Register::CR2 => Some(System::Plain),
                register if register.is_dr() => Some(System::Debug),
                _ => instruction.op1_register().is_dr().then_some(System::Debug),
            },
            _ => None,
        }
    }
}

/// Calls the routine that executes `instruction`, which is a [`System`] one. `number` is its index in the
/// list of instructions that blocks leave to the interpreter. `is_plain` says that it accesses memory, if at
/// all, by the window: it is flat code, and not supervisor code that also accesses memory of users.
pub(crate) fn call(
    emitter: &mut Emitter,
    instruction: &Instruction,
    is_user: bool,
    is_plain: bool,
    number: u32,
) {
    if is_plain && look(emitter, instruction, is_user, number).is_some() {
        return;
    }
    let routine = match instruction.code() {
        Code::Cpuid => at::CPUID,
        _ if !is_plain => at::SYSTEM,
        Code::Rdmsr => at::RDMSR,
        Code::Wrmsr => at::WRMSR,
        Code::Lgdt_m1632 if load_table(emitter, instruction) => at::LGDT,
        Code::Lidt_m1632 if load_table(emitter, instruction) => at::LIDT,
        _ => {
            if let Some(routine) = load_register(emitter, instruction) {
                emitter.load_number(Register::R10D, number);
                emitter.call(routine);
                return;
            }
            at::SYSTEM
        }
    };
    emitter.load_number(Register::R8D, number);
    emitter.call(routine);
}

/// Bytes of the host's instruction that takes the result of LAR or LSL.
pub(crate) const TAKING_RESULT: u8 = 3;

/// Calls the routine that executes LAR, LSL, VERR or VERW by a known descriptor. Returns None for all other
/// instructions, and then writes nothing.
fn look(
    emitter: &mut Emitter,
    instruction: &Instruction,
    is_user: bool,
    number: u32,
) -> Option<()> {
    let (routines, operand, result) = match instruction.code() {
        Code::Verr_rm16 | Code::Verr_r32m16 => (at::VERIFY_READ, 0, None),
        Code::Verw_rm16 | Code::Verw_r32m16 => (at::VERIFY_WRITE, 0, None),
        Code::Lar_r32_r32m16 => (at::LOOK, 1, Some(Register::R9D)),
        Code::Lsl_r32_r32m16 => (at::LOOK, 1, Some(Register::R8D)),
        _ => return None,
    };
    load_word_operand(emitter, instruction, operand)?;
    emitter.load_number(Register::R9D, number);
    emitter.call(routines[usize::from(is_user)]);
    if let Some(result) = result {
        let begin = emitter.here();
        emitter.copy(copy::rename(instruction.op0_register()), result);
        assert_eq!(emitter.here() - begin, TAKING_RESULT.into(), "the routine skips it");
    }
    Some(())
}

/// Loads R8D with the value that `instruction` of flat code loads into CR0, CR4, LDTR or TR, and returns the
/// field of the context with the routine that loads it. Returns None for all other instructions, and then
/// writes nothing.
fn load_register(emitter: &mut Emitter, instruction: &Instruction) -> Option<u32> {
    match (instruction.code(), instruction.op0_register()) {
        (Code::Mov_cr_r32, Register::CR0) => {
            emitter.copy(Register::R8D, copy::rename(instruction.op1_register()));
            Some(at::LOAD_CR0)
        }
        (Code::Mov_cr_r32, Register::CR4) => {
            emitter.copy(Register::R8D, copy::rename(instruction.op1_register()));
            Some(at::LOAD_CR4)
        }
        (Code::Clts, _) => {
            let without = MemoryOperand::with_base_displ(Register::R14, at::TASK_SWITCHED.into());
            emitter.load(Register::R8D, without);
            Some(at::LOAD_CR0)
        }
        (Code::Lldt_rm16 | Code::Lldt_r32m16, _) => {
            load_word_operand(emitter, instruction, 0)?;
            Some(at::LLDT)
        }
        (Code::Ltr_rm16 | Code::Ltr_r32m16, _) => {
            load_word_operand(emitter, instruction, 0)?;
            Some(at::LTR)
        }
        (Code::Lmsw_rm16 | Code::Lmsw_r32m16, _) => {
            // PE is set in protected mode, and LMSW cannot clear it.
            const LOADED: u32 = Cr0::MP.union(Cr0::EM).union(Cr0::TS).bits();
            load_word_operand(emitter, instruction, 0)?;
            let cr0 = MemoryOperand::with_base_displ(Register::R14, at::CONTROL.into());
            emitter.select_bits(Register::R8D, LOADED);
            emitter.load(Register::R10D, cr0);
            emitter.select_bits(Register::R10D, !LOADED);
            emitter.add_64(Register::R8, Register::R8, Register::R10, 0);
            Some(at::LOAD_CR0)
        }
        _ => None,
    }
}

/// Loads R8D with the operand of this number, a word. Returns None if its address is not plain, and then
/// writes nothing.
fn load_word_operand(emitter: &mut Emitter, instruction: &Instruction, operand: u32) -> Option<()> {
    if instruction.op_kind(operand) == OpKind::Register {
        let from = copy::rename(instruction.op_register(operand).full_register32());
        emitter.copy(Register::R8D, from);
        let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R8D, Register::R8W);
        emitter.instruction(word);
    } else {
        let from = copy::plain_address(emitter, instruction)?;
        emitter.load_word(Register::R8D, from);
    }
    Some(())
}

/// Returns the operand at `offset` from the linear address in R8D.
fn behind(offset: i64) -> MemoryOperand {
    let size = u32::from(offset != 0);
    MemoryOperand::new(Register::R8D, Register::None, 1, offset, size, false, Register::GS)
}

/// Returns whether the memory operand is of a kind whose address [`copy::load_address`] loads.
fn has_plain_address(instruction: &Instruction) -> bool {
    copy::is_translated_address(instruction)
        && !matches!(instruction.memory_segment(), Register::FS | Register::GS)
}

/// Loads R10 with the pseudo-descriptor in memory that `instruction` loads: the base, and the limit above it.
/// Returns false if its address is not plain, and then writes nothing.
fn load_table(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    if !has_plain_address(instruction) {
        return false;
    }
    copy::load_address(emitter, instruction);
    emitter.load_word(Register::R9D, behind(0));
    emitter.load(Register::R10D, behind(2));
    let rotated = Instruction::with3(Code::VEX_Rorx_r64_rm64_imm8, Register::R9, Register::R9, 32);
    emitter.instruction(rotated);
    emitter.add_64(Register::R10, Register::R10, Register::R9, 0);
    true
}

/// Returns the offset in [`Cpu`] of the table register that SGDT or SIDT stores.
fn table_register(mnemonic: Mnemonic) -> usize {
    if mnemonic == Mnemonic::Sgdt { offset_of!(Cpu, gdtr) } else { offset_of!(Cpu, idtr) }
}

/// Translates instructions of the supervisor's flat code that only read or write a field of [`Cpu`], and
/// those that do nothing on this machine. Returns false for all others; the caller then throws away what was
/// written.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    match instruction.code() {
        // There are no caches to write back or to invalidate.
        Code::Wbinvd | Code::Invd => {}
        Code::Str_rm16 | Code::Str_r32m16 => {
            let selector = offset_of!(Cpu, tr) + offset_of!(Segment, selector);
            return store_word(emitter, instruction, Some(selector));
        }
        Code::Sldt_rm16 | Code::Sldt_r32m16 => {
            let selector = offset_of!(Cpu, ldtr) + offset_of!(Segment, selector);
            return store_word(emitter, instruction, Some(selector));
        }
        Code::Smsw_rm16 | Code::Smsw_r32m16 => return store_word(emitter, instruction, None),
        Code::Sgdt_m1632 | Code::Sgdt_m1632_16 | Code::Sidt_m1632 | Code::Sidt_m1632_16
            if has_plain_address(instruction) =>
        {
            let register = table_register(instruction.mnemonic());
            copy::load_address(emitter, instruction);
            emitter.load_field(Register::R10, at::CPU);
            emitter.load_word(Register::R9D, field(register + offset_of!(TableRegister, limit)));
            let store = Instruction::with2(Code::Mov_rm16_r16, behind(0), Register::R9W);
            emitter.instruction(store);
            emitter.load(Register::R9D, field(register + offset_of!(TableRegister, base)));
            emitter.store(behind(2), Register::R9D);
        }
        Code::Mov_r32_dr => {
            let number = instruction.op1_register() as u32 - Register::DR0 as u32;
            if matches!(number, 4 | 5) || number > 7 {
                return false;
            }
            emitter.load_field(Register::R8, at::DEBUG_REGISTERS);
            let from = MemoryOperand::with_base_displ(Register::R8, (8 * number).into());
            emitter.load(copy::rename(instruction.op0_register()), from);
        }
        // Writing a breakpoint's address has no other effect: while a breakpoint is enabled, no code is
        // translated.
        Code::Mov_dr_r32 if instruction.op0_register() <= Register::DR3 => {
            let number = instruction.op0_register() as u32 - Register::DR0 as u32;
            emitter.load_field(Register::R8, at::DEBUG_REGISTERS);
            let to = MemoryOperand::with_base_displ(Register::R8, (8 * number).into());
            let value = copy::rename(instruction.op1_register()).full_register();
            emitter.instruction(Instruction::with2(Code::Mov_rm64_r64, to, value));
        }
        Code::Mov_cr_r32 if instruction.op0_register() == Register::CR2 => {
            let value = copy::rename(instruction.op1_register());
            let known = MemoryOperand::with_base_displ(Register::R14, (at::CONTROL + 4 * 2).into());
            emitter.store(known, value);
            emitter.load_field(Register::R10, at::CPU);
            let register = field(offset_of!(Cpu, cr2));
            let value = value.full_register();
            emitter.instruction(Instruction::with2(Code::Mov_rm64_r64, register, value));
        }
        _ => return false,
    }
    true
}

/// Returns the operand at `offset` in the processor state ([`Cpu`]), whose address is in R10.
fn field(offset: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ(Register::R10, offset as i64)
}

/// Stores the word at `offset` in [`Cpu`], or CR0 if `offset` is None, to the first operand. A 32-bit
/// register gets zeros above the word. Returns false if the operand is in memory and not translated.
fn store_word(emitter: &mut Emitter, instruction: &Instruction, offset: Option<usize>) -> bool {
    let is_register = instruction.op0_kind() == OpKind::Register;
    let to = if is_register { None } else { copy::address(emitter, instruction) };
    let load = |emitter: &mut Emitter, to| match offset {
        Some(offset) => {
            emitter.load_field(Register::R10, at::CPU);
            emitter.load_word(to, field(offset));
        }
        None => {
            emitter.load(to, MemoryOperand::with_base_displ(Register::R14, at::CONTROL.into()));
        }
    };
    let register = copy::rename(instruction.op0_register());
    let to_word = match to {
        Some(to) => Instruction::with2(Code::Mov_rm16_r16, to, Register::R10W),
        None if !is_register => return false,
        None if register.size() == 4 => {
            load(emitter, register);
            return true;
        }
        None => Instruction::with2(Code::Mov_r16_rm16, register, Register::R10W),
    };
    load(emitter, Register::R10D);
    emitter.instruction(to_word);
    true
}
