//! System instructions of 64-bit code that need no interpreter: CLI, STI, CLAC and STAC, PUSHF and POPF,
//! SWAPGS, RDTSC, and reads of control registers and selectors.

use iced_x86::{Code, Instruction, MemoryOperand, OpKind, Register};
use ring3_x86::cpu::Cpu;
use ring3_x86::flags::Eflags;

use crate::long::context::{at, numbers};
use crate::long::writer::{Scratch, Writer, is_in_context, rename};

/// PUSHFQ, and POP R10.
const LOAD_FLAGS: [u8; 3] = [0x9c, 0x41, 0x5a];

/// Returns whether `instruction`, after which the next one follows, ends its block: STI, so that the budget
/// says whether another one has been executed since, and RDTSC, so that the budget says what time it is.
pub(crate) fn ends_block(instruction: &Instruction) -> bool {
    matches!(instruction.code(), Code::Sti | Code::Rdtsc | Code::Rdtscp)
}

/// Translates `instruction`. Returns false if it is not one of those here; then nothing is written.
pub(crate) fn translate(writer: &mut Writer, instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Pushfq => push_flags(writer),
        Code::Mov_r32m16_Sreg | Code::Mov_r64m16_Sreg => return read_selector(writer, instruction),
        Code::Rdtsc => writer.call(at::TIME_STAMP),
        Code::Rdtscp => {
            writer.call(at::TIME_STAMP);
            writer.load(Register::RCX, writer.field(at::TSC_AUX));
        }
        // Whether others may use these instructions depends on IOPL.
        _ if writer.is_user => return false,
        Code::Popfq => pop_flags(writer),
        Code::Cli => set_interrupt_flag(writer, 0),
        Code::Sti => writer.call(at::STI),
        Code::Swapgs => swap_bases(writer),
        Code::Mov_r64_cr => return read_control(writer, instruction),
        Code::Stac => set_alignment_flag(writer, true),
        Code::Clac => set_alignment_flag(writer, false),
        _ => return false,
    }
    true
}

/// Translates SYSCALL and SYSRET, which end a block. Returns false, and then writes nothing, for all other
/// instructions and where they raise an exception.
pub(crate) fn translate_call(writer: &mut Writer, instruction: &Instruction) -> bool {
    match (instruction.code(), writer.is_user) {
        (Code::Syscall, true) => {
            writer.load_number(Register::R10, instruction.next_ip());
            writer.call(at::SYSCALL);
        }
        (Code::Sysretq, false) => writer.call(at::SYSRET),
        _ => return false,
    }
    true
}

/// Sets IF in the context to `flag`.
fn set_interrupt_flag(writer: &mut Writer, flag: u32) {
    let to = writer.field(at::INTERRUPT_FLAG);
    writer.emitter.instruction(Instruction::with2(Code::Mov_rm32_imm32, to, flag));
}

/// Translates STAC and CLAC, which set AC to `flag`. With SMAP, the supervisor may access memory of users
/// only while it is set. Without SMAP it always may, but while AC is clear its [far
/// sites](crate::long::far_sites) leave that to the interpreter.
fn set_alignment_flag(writer: &mut Writer, flag: bool) {
    const AC: u32 = Eflags::AC.bits();
    let flags = writer.field(at::OTHER_FLAGS);
    writer.emitter.instruction(Instruction::with2(Code::Mov_r32_rm32, Register::R11D, flags));
    writer.load_number(Register::R10, u64::from(!AC));
    // These change no flags.
    for code in [Code::VEX_Pext_r32_r32_rm32, Code::VEX_Pdep_r32_r32_rm32] {
        let select = Instruction::with3(code, Register::R11D, Register::R11D, Register::R10D);
        writer.emitter.instruction(select);
    }
    if flag {
        writer.add(Register::R11, Register::R11, AC.into());
    }
    writer.store(flags, Register::R11);
    for group in 0..numbers::ACCESSED {
        let from = if flag { numbers::USER + group } else { 0 };
        writer.load(Register::R10, writer.field(at::distance(from)));
        writer.store(writer.field(at::distance(numbers::OF_USERS + group)), Register::R10);
    }
}

/// Translates PUSHF.
fn push_flags(writer: &mut Writer) {
    writer.emitter.bytes(&LOAD_FLAGS);
    // These change no flags.
    for code in [Code::VEX_Pext_r64_r64_rm64, Code::VEX_Pdep_r64_r64_rm64] {
        let mask = writer.field(at::HOST_FLAGS_MASK);
        let select = Instruction::with3(code, Register::R10, Register::R10, mask);
        writer.emitter.instruction(select);
    }
    for field in [at::INTERRUPT_FLAG, at::OTHER_FLAGS] {
        let flags = writer.field(field);
        writer.emitter.instruction(Instruction::with2(Code::Mov_r32_rm32, Register::R11D, flags));
        writer.add_registers(Register::R10, Register::R10, Register::R11);
    }
    let below = writer.checked(Register::R8, -8, Scratch::R11);
    writer.store(below, Register::R10);
    writer.move_stack(-8);
}

/// Translates POPF.
fn pop_flags(writer: &mut Writer) {
    let top = writer.checked(Register::R8, 0, Scratch::R10);
    writer.load(Register::R10, top);
    writer.call(at::POPF);
    writer.move_stack(8);
}

/// Translates SWAPGS.
fn swap_bases(writer: &mut Writer) {
    let (base, other) = (writer.field(at::BASES + 8), writer.field(at::OTHER_BASE));
    writer.load(Register::R10, base);
    writer.load(Register::R11, other);
    writer.store(base, Register::R11);
    writer.store(other, Register::R10);
}

/// Translates MOV of a selector to a register. Returns false, and then writes nothing, for one to memory.
fn read_selector(writer: &mut Writer, instruction: &Instruction) -> bool {
    if instruction.op0_kind() != OpKind::Register {
        return false;
    }
    let to = instruction.op0_register();
    let host = if is_in_context(to) { Register::R10 } else { rename(to) };
    let selector = writer.field(at::selector(instruction.op1_register().number()));
    let load = Instruction::with2(Code::Mov_r32_rm32, host.full_register32(), selector);
    writer.emitter.instruction(load);
    if is_in_context(to) {
        writer.store(writer.register(to), Register::R10);
    }
    true
}

/// Translates MOV from a control register. Returns false, and then writes nothing, if it does not exist.
fn read_control(writer: &mut Writer, instruction: &Instruction) -> bool {
    let (offset, load) = match instruction.op1_register() {
        Register::CR0 => (Cpu::CONTROL_REGISTER_0, Code::Mov_r32_rm32),
        Register::CR2 => (Cpu::CONTROL_REGISTER_2, Code::Mov_r64_rm64),
        Register::CR3 => (Cpu::CONTROL_REGISTER_3, Code::Mov_r64_rm64),
        Register::CR4 => (Cpu::CONTROL_REGISTER_4, Code::Mov_r32_rm32),
        _ => return false,
    };
    let to = instruction.op0_register();
    let host = if is_in_context(to) { Register::R10 } else { rename(to) };
    writer.load(Register::R10, writer.field(at::CPU));
    let from = MemoryOperand::with_base_displ(Register::R10, offset as i64);
    let part = if load == Code::Mov_r32_rm32 { host.full_register32() } else { host };
    writer.emitter.instruction(Instruction::with2(load, part, from));
    if is_in_context(to) {
        writer.store(writer.register(to), Register::R10);
    }
    true
}

/// The flags that the host keeps for the guest, and IF.
pub(crate) const IN_PLACE: Eflags = Eflags::STATUS.union(Eflags::DF).union(Eflags::IF);
