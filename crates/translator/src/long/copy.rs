//! Instructions of 64-bit code that are copied: the host executes the same instruction on the same registers,
//! with its memory operand at the [distance](crate::memory::units) of the address space, after a check of the
//! operand's address. An instruction with one of R8 to R11, which the context holds, uses R10 or R11 in its
//! place.
//!
//! The check is for the base register or for the whole address; what a displacement of 32 bits and the operand's
//! size add to it stays far below a unit.

use iced_x86::{Code, Instruction, MemoryOperand, Mnemonic, OpAccess, OpKind, Register};

use ring3_x86::access::is_canonical;
use ring3_x86::decode;

use crate::code::copy::{has_undefined_result, is_copied, is_of_host, set_memory};
use crate::long::context::at;
use crate::long::facts::{Address as Known, FS_BASE};
use crate::long::far_sites::Reach;
use crate::long::numeric::{note_for_x87, numeric_needs};
use crate::long::registers;
use crate::long::writer::{
    Scratch, Writer, as_signed, in_window, is_in_context, of_size, on_host, rename,
};
use crate::memory::units::unit_of;
use crate::numeric;

/// Bytes of PAUSE.
const PAUSE: usize = 2;

/// What an instruction needs before it: which of the guest's numeric registers in the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    /// Those of SSE, which must be enabled.
    pub(crate) vectors: bool,
    /// Those of AVX, which must be enabled.
    pub(crate) avx: bool,
    /// Those of the x87.
    pub(crate) x87: bool,
}

impl Needs {
    /// Returns what both contain.
    pub(crate) fn and(self, other: Needs) -> Needs {
        Needs {
            vectors: self.vectors && other.vectors,
            avx: self.avx && other.avx,
            x87: self.x87 && other.x87,
        }
    }
}

/// Returns what `instruction` needs, or None if it is not translated.
pub(crate) fn needs(instruction: &Instruction) -> Option<Needs> {
    if numeric::is_numeric(instruction) {
        return numeric_needs(instruction);
    }
    let mnemonic = instruction.mnemonic();
    let is_known = (is_copied(mnemonic) || is_copied_in_64_bits(mnemonic))
        && !matches!(mnemonic, Mnemonic::Nop | Mnemonic::Pause | Mnemonic::Xlatb);
    let has_general_registers = (0..instruction.op_count()).all(|operand| {
        instruction.op_kind(operand) != OpKind::Register
            || instruction.op_register(operand).is_gpr()
    });
    let is_copied = is_known && is_of_host(instruction) && !has_undefined_result(instruction);
    (is_copied && has_general_registers).then(Needs::default)
}

/// Returns whether integer instructions with this mnemonic, which other code does not have, are copied.
fn is_copied_in_64_bits(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Movsxd | M::Cdqe | M::Cqo | M::Cmpxchg16b | M::Push | M::Pop | M::Leave)
}

/// Returns whether `instruction` only orders memory accesses between processors, or prefetches into a cache,
/// which the guest's machine does not have.
pub(crate) fn does_nothing(instruction: &Instruction) -> bool {
    decode::does_nothing(instruction.code())
        // With REX.B it exchanges RAX and R8.
        || instruction.mnemonic() == Mnemonic::Pause && instruction.len() == PAUSE
        || numeric::orders_or_prefetches(instruction.mnemonic())
}

/// The registers that an instruction may use in the place of those in the context, in the order in which they
/// are taken.
#[derive(Debug, Clone, Copy)]
struct Free([Option<Register>; 2]);

impl Free {
    const BOTH: Free = Free([Some(Register::R10), Some(Register::R11)]);
    const R10: Free = Free([Some(Register::R10), None]);
    const R11: Free = Free([Some(Register::R11), None]);

    fn take(&mut self) -> Option<Register> {
        self.0.iter_mut().find_map(Option::take)
    }
}

/// A memory operand at the guest's address, which was checked.
struct Address {
    operand: MemoryOperand,
    /// The registers that it does not use.
    free: Free,
}

/// Returns whether the address of `instruction`'s memory operand is computed in 32 bits.
fn has_32_bit_address(instruction: &Instruction) -> bool {
    let is_short = |register: Register| register.size() == 4 && register.is_gpr();
    let base = instruction.memory_base();
    base == Register::EIP || is_short(base) || is_short(instruction.memory_index())
}

/// Returns whether `displacement` from a register is rather the address of a table at the top of the upper
/// half, and the register an index. Then the register is in another unit than the table.
fn is_table(displacement: i64) -> bool {
    const FURTHEST: i64 = 16 << 20;
    displacement < -FURTHEST
}

/// Writes the computation and the check of the address of `instruction`'s memory operand. Returns None if it is
/// not translated; the caller then throws away what was written.
fn address(writer: &mut Writer, instruction: &Instruction) -> Option<Address> {
    if has_32_bit_address(instruction) {
        return None;
    }
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    let displacement = instruction.memory_displacement64();
    let segment = match instruction.memory_segment() {
        Register::FS => Some(0),
        Register::GS => Some(1),
        _ => None,
    };
    let is_number = matches!(base, Register::None | Register::RIP) && index == Register::None;
    let load_base = |writer: &mut Writer, to: Register, number: u32| {
        writer.load(to, writer.field(at::BASES + 8 * number));
    };
    match (segment, is_number) {
        (None, true) => {
            if !is_canonical(displacement) {
                return None;
            }
            if writer.reach == Reach::All {
                writer.load_number(Register::R11, displacement);
                return Some(Address { operand: writer.checked_in_r11(0, None), free: Free::R10 });
            }
            writer.check_number(displacement);
            if writer.reach == Reach::Second {
                let operand = second_number(writer, displacement);
                return Some(Address { operand, free: Free::R10 });
            }
            if as_signed(displacement).is_some() {
                let operand = MemoryOperand::new(
                    Register::None,
                    Register::None,
                    1,
                    displacement as i64,
                    8,
                    false,
                    Register::GS,
                );
                return Some(Address { operand, free: Free::BOTH });
            }
            writer.load_number(Register::R11, displacement);
            Some(Address { operand: in_window(Register::R11, 0), free: Free::R10 })
        }
        (Some(number), true) => {
            load_base(writer, Register::R11, number);
            let (mut near, mut of) = (0, None);
            if as_signed(displacement).is_some() {
                near = displacement as i64;
                of = Some((Known::Register(FS_BASE + number as u8), 0));
            } else {
                writer.load_number(Register::R10, displacement);
                writer.add_registers(Register::R11, Register::R11, Register::R10);
            }
            Some(Address { operand: writer.checked_in_r11(near, of), free: Free::R10 })
        }
        // A table at a constant address, with an index of 32 bits.
        (None, false) if is_in_table(writer, instruction) => {
            writer.check_number(displacement);
            let operand = in_window(rename(base), displacement as i64);
            Some(Address { operand, free: Free::BOTH })
        }
        (None, false) if index == Register::None && is_table(displacement as i64) => {
            load_sum(writer, instruction, Register::R11);
            Some(Address { operand: writer.checked_in_r11(0, None), free: Free::R10 })
        }
        (None, false) if index == Register::None && !is_in_context(base) => {
            let operand = writer.checked(rename(base), displacement as i64, Scratch::Both);
            let free = if writer.reach == Reach::Near { Free::BOTH } else { Free::R10 };
            Some(Address { operand, free })
        }
        (None, false) if index == Register::None => {
            writer.load(Register::R11, writer.register(base));
            let of = Some((Known::of(base), 0));
            let operand = writer.checked_in_r11(displacement as i64, of);
            Some(Address { operand, free: Free::R10 })
        }
        (segment, false) => {
            if segment.is_none()
                && writer.reach != Reach::All
                && let Some(address) = indexed(writer, instruction)
            {
                return Some(address);
            }
            let mut of = Known::of_operand(instruction).map(|known| (known, displacement as i64));
            load_sum(writer, instruction, Register::R11);
            if let Some(number) = segment {
                of = None;
                load_base(writer, Register::R10, number);
                writer.add_registers(Register::R11, Register::R11, Register::R10);
            }
            Some(Address { operand: writer.checked_in_r11(0, of), free: Free::R10 })
        }
    }
}

/// Returns whether `instruction`'s memory operand is a constant address of another unit than the first one, with a base
/// that is known to be a number of 32 bits.
fn is_in_table(writer: &Writer, instruction: &Instruction) -> bool {
    let base = instruction.memory_base();
    instruction.memory_index() == Register::None
        && !is_in_context(base)
        && writer.reach == Reach::Near
        && unit_of(instruction.memory_displacement64()) == -1
        && matches!(Known::of_operand(instruction), Some(Known::Register(base)) if writer.facts.is_small(base))
        && is_table(instruction.memory_displacement64() as i64)
}

/// Returns the operand at the constant address `linear` in the second group of units, which was checked. Uses R10 and
/// R11.
fn second_number(writer: &mut Writer, linear: u64) -> MemoryOperand {
    if let Some(displacement) = as_signed(linear) {
        writer.load_second_distance(Register::R11);
        return on_host(Register::R11, Register::None, displacement.into());
    }
    writer.load_second_distance(Register::R10);
    writer.load_number(Register::R11, linear);
    writer.add_registers(Register::R11, Register::R11, Register::R10);
    on_host(Register::R11, Register::None, 0)
}

/// Checks the address of `instruction`'s memory operand, which has an index, unless it is known. Returns None, and
/// writes nothing, if the context holds its registers, or the address is one in the second group that is computed in
/// another way. Uses R10 and R11.
fn indexed(writer: &mut Writer, instruction: &Instruction) -> Option<Address> {
    let sum_of = Known::of_operand(instruction)?;
    let Known::Sum { base, index, scale } = sum_of else { return None };
    if is_in_context(instruction.memory_base()) || is_in_context(instruction.memory_index()) {
        return None;
    }
    let mut operand = sum(writer, instruction);
    let is_small = |register: u8| writer.facts.is_small(register);
    let pointer = match base {
        Some(base) if is_small(index) => Some(base),
        Some(base) if scale == 1 && is_small(base) => Some(index),
        _ => None,
    };
    let displacement = instruction.memory_displacement64();
    let is_near = writer.reach == Reach::Near;
    if let Some(pointer) = pointer {
        let host = rename(Register::RAX + u32::from(pointer));
        writer.checked(host, 0, Scratch::Both);
        if !is_near {
            // The sum of the pointer and its distance takes its place.
            writer.add_registers(Register::R10, host, Register::R11);
            let index = if base == Some(pointer) { operand.index } else { operand.base };
            operand = MemoryOperand { base: Register::R10, index, ..operand };
            return Some(Address { operand, free: Free::R11 });
        }
    } else if base.is_none() && is_small(index) {
        writer.check_number(displacement);
        if !is_near {
            writer.load_second_distance(Register::R11);
            operand = MemoryOperand { base: Register::R11, displ_size: 1, ..operand };
        }
    } else if !is_near {
        return None;
    } else if !writer.facts.knows(writer.place(sum_of)) {
        writer.emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::R11, operand));
        writer.check(Register::R11, Register::R11, Reach::Near);
        writer.facts.note_check(writer.place(sum_of), displacement as i64);
    }
    if is_near {
        operand.segment_prefix = Register::GS;
        return Some(Address { operand, free: Free::BOTH });
    }
    Some(Address { operand, free: Free::R10 })
}

/// Returns the sum of base, index and displacement of `instruction`'s memory operand. Loads R10 and R11 with
/// those of the registers that the context holds.
fn sum(writer: &mut Writer, instruction: &Instruction) -> MemoryOperand {
    let mut load = |register: Register, free: Register| {
        if is_in_context(register) {
            writer.load(free, writer.register(register));
            of_size(free, register)
        } else {
            rename(register)
        }
    };
    let base = load(instruction.memory_base(), Register::R10);
    let index = load(instruction.memory_index(), Register::R11);
    let displacement = instruction.memory_displacement64() as i64;
    let displacement = if base.size() == 4 || index.size() == 4 {
        i64::from(displacement as i32)
    } else {
        displacement
    };
    let scale = instruction.memory_index_scale();
    let size = match (base, displacement) {
        (Register::None, _) => 8,
        (Register::RBP | Register::R13 | Register::EBP | Register::R13D, 0) => 1,
        (_, 0) => 0,
        _ => 1,
    };
    MemoryOperand::new(base, index, scale, displacement, size, false, Register::None)
}

/// Loads `to` with that sum.
fn load_sum(writer: &mut Writer, instruction: &Instruction, to: Register) {
    let sum = sum(writer, instruction);
    writer.emitter.instruction(Instruction::with2(Code::Lea_r64_m, to, sum));
}

/// Translates an instruction for which [`needs`] returns something, once that is there. Returns false if it is
/// left to the interpreter; the caller then throws away what was written.
pub(crate) fn translate(writer: &mut Writer, instruction: &Instruction) -> bool {
    match instruction.mnemonic() {
        Mnemonic::Push => return push(writer, instruction),
        Mnemonic::Pop => return pop(writer, instruction),
        Mnemonic::Leave => return leave(writer, instruction),
        Mnemonic::Lea => return load_effective_address(writer, instruction),
        Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
            if has_far_bit(instruction) =>
        {
            return bit_test(writer, instruction);
        }
        _ => {}
    }
    let mut copy = *instruction;
    copy.set_code(another_code(instruction.code()));
    // There is only one processor, and nothing happens in the middle of its instructions.
    copy.set_has_lock_prefix(false);
    copy.set_has_xacquire_prefix(false);
    copy.set_has_xrelease_prefix(false);
    copy.set_has_rep_prefix(false);
    copy.set_has_repne_prefix(false);
    let mut free = Free::BOTH;
    let has_memory = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
    if has_memory {
        let Some(address) = address(writer, instruction) else { return false };
        set_memory(&mut copy, &address.operand);
        free = address.free;
    } else if instruction.op_kinds().any(is_implicit_memory) {
        return false;
    } else if registers::translate(writer, &copy) {
        return true;
    }
    let mut kept: Vec<(Register, Register)> = Vec::new();
    let mut written = Vec::new();
    for operand in 0..instruction.op_count() {
        if instruction.op_kind(operand) != OpKind::Register {
            continue;
        }
        let register = instruction.op_register(operand);
        if !is_in_context(register) {
            copy.set_op_register(operand, rename(register));
            continue;
        }
        let whole = register.full_register();
        let known = kept.iter().find(|(guest, _)| *guest == whole).map(|(_, host)| *host);
        let host = if let Some(host) = known {
            host
        } else {
            let Some(host) = free.take() else { return false };
            let is_only_written =
                writer.tables.info(instruction).op_access(operand) == OpAccess::Write;
            if !is_only_written || !registers::overwrites(instruction, operand) {
                writer.load(host, writer.register(whole));
            }
            kept.push((whole, host));
            host
        };
        copy.set_op_register(operand, of_size(host, register));
        let access = writer.tables.info(instruction).op_access(operand);
        let is_only_read = matches!(access, OpAccess::Read | OpAccess::CondRead);
        if !is_only_read {
            written.push((whole, host));
        }
    }
    if !writer.emitter.try_instruction(&copy) {
        return false;
    }
    for (guest, host) in written {
        writer.store(writer.register(guest), host);
    }
    note_for_x87(writer, instruction);
    true
}

/// Returns whether an operand of this kind is in memory, at an address that is not that of a memory operand.
fn is_implicit_memory(kind: OpKind) -> bool {
    !matches!(
        kind,
        OpKind::Register
            | OpKind::Memory
            | OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Returns another encoding of the same instruction where this one has an address of 64 bits.
fn another_code(code: Code) -> Code {
    match code {
        Code::Mov_AL_moffs8 => Code::Mov_r8_rm8,
        Code::Mov_AX_moffs16 => Code::Mov_r16_rm16,
        Code::Mov_EAX_moffs32 => Code::Mov_r32_rm32,
        Code::Mov_RAX_moffs64 => Code::Mov_r64_rm64,
        Code::Mov_moffs8_AL => Code::Mov_rm8_r8,
        Code::Mov_moffs16_AX => Code::Mov_rm16_r16,
        Code::Mov_moffs32_EAX => Code::Mov_rm32_r32,
        Code::Mov_moffs64_RAX => Code::Mov_rm64_r64,
        other => other,
    }
}

/// Translates LEA.
fn load_effective_address(writer: &mut Writer, instruction: &Instruction) -> bool {
    let to = instruction.op0_register();
    if to.size() == 2 && is_in_context(to) {
        return false;
    }
    let host = if is_in_context(to) { of_size(Register::R10, to) } else { rename(to) };
    let base = instruction.memory_base();
    if matches!(base, Register::RIP | Register::EIP) {
        if to.size() == 2 {
            return false;
        }
        let linear = instruction.memory_displacement64();
        let linear =
            if base == Register::EIP || to.size() == 4 { u64::from(linear as u32) } else { linear };
        writer.load_number(host.full_register(), linear);
    } else {
        let sum = sum(writer, instruction);
        let mut copy = *instruction;
        copy.set_op0_register(host);
        set_memory(&mut copy, &sum);
        if !writer.emitter.try_instruction(&copy) {
            return false;
        }
    }
    if is_in_context(to) {
        writer.store(writer.register(to), Register::R10);
    }
    true
}

/// Translates PUSH of 64 bits.
fn push(writer: &mut Writer, instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Push_r64 | Code::Push_rm64 if instruction.op0_kind() == OpKind::Register => {
            let register = instruction.op0_register();
            let below = writer.checked_stack(-8, Scratch::Both);
            let mut host = rename(register);
            if is_in_context(register) {
                host = Register::R10;
                writer.load(host, writer.register(register));
            }
            writer.store(below, host);
        }
        Code::Push_rm64 => {
            let Some(from) = address(writer, instruction) else { return false };
            writer.load(Register::R10, from.operand);
            let below = writer.checked_stack(-8, Scratch::R11);
            writer.store(below, Register::R10);
        }
        Code::Pushq_imm8 | Code::Pushq_imm32 => {
            let below = writer.checked_stack(-8, Scratch::Both);
            writer.store_number(below, instruction.immediate(0), Register::R10);
        }
        _ => return false,
    }
    writer.move_stack_later(-8);
    true
}

/// Translates POP of a register of 64 bits.
fn pop(writer: &mut Writer, instruction: &Instruction) -> bool {
    let is_one = matches!(instruction.code(), Code::Pop_r64 | Code::Pop_rm64);
    if !is_one || instruction.op0_kind() != OpKind::Register {
        return false;
    }
    let register = instruction.op0_register();
    let top = writer.checked_stack(0, Scratch::Both);
    if is_in_context(register) {
        writer.load(Register::R10, top);
        writer.store(writer.register(register), Register::R10);
    } else {
        writer.load(rename(register), top);
    }
    if register != Register::RSP {
        writer.move_stack_later(8);
    }
    true
}

/// Returns whether `instruction` is PUSH or POP that finds the guest's RSP while it is not settled.
pub(crate) fn moves_stack_later(instruction: &Instruction) -> bool {
    let is_one = matches!(
        instruction.code(),
        Code::Push_r64
            | Code::Push_rm64
            | Code::Pushq_imm8
            | Code::Pushq_imm32
            | Code::Pop_r64
            | Code::Pop_rm64
    );
    is_one
        && instruction.op0_kind() != OpKind::Memory
        && (instruction.op0_kind() != OpKind::Register
            || instruction.op0_register() != Register::RSP)
}

/// Translates LEAVE of 64 bits.
fn leave(writer: &mut Writer, instruction: &Instruction) -> bool {
    if instruction.code() != Code::Leaveq {
        return false;
    }
    let saved = writer.checked(Register::RBP, 0, Scratch::Both);
    writer.load(Register::R10, saved);
    writer.add(Register::R8, Register::RBP, 8);
    let copy = Instruction::with2(Code::Mov_r64_rm64, Register::RBP, Register::R10);
    writer.emitter.instruction(copy);
    true
}

/// Returns whether `instruction`, a bit test, accesses memory at a distance that a register of 64 bits gives. A
/// register of 32 bits gives one that is far below a unit.
fn has_far_bit(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register
        && instruction.op1_register().size() == 8
}

/// Translates a bit test with such a register. The word that contains the bit is loaded, changed and stored. It
/// is stored before it is changed, too, so that nothing faults after the flags have changed.
fn bit_test(writer: &mut Writer, instruction: &Instruction) -> bool {
    const WORD_BITS: u64 = 6;
    let bit = instruction.op1_register();
    if is_in_context(bit) {
        return false;
    }
    let bit = rename(bit);
    if !load_unchecked(writer, instruction) {
        return false;
    }
    writer.load_number(Register::R10, WORD_BITS);
    let shift = Instruction::with3(Code::VEX_Sarx_r64_rm64_r64, Register::R10, bit, Register::R10);
    writer.emitter.instruction(shift);
    let word = MemoryOperand::with_base_index_scale(Register::R11, Register::R10, 8);
    writer.emitter.instruction(Instruction::with2(Code::Lea_r64_m, Register::R11, word));
    let word = writer.checked_in_r11(0, None);
    writer.load(Register::R10, word);
    let code = match instruction.mnemonic() {
        Mnemonic::Bt => Code::Bt_rm64_r64,
        Mnemonic::Bts => Code::Bts_rm64_r64,
        Mnemonic::Btr => Code::Btr_rm64_r64,
        _ => Code::Btc_rm64_r64,
    };
    let writes = instruction.mnemonic() != Mnemonic::Bt;
    if writes {
        writer.store(word, Register::R10);
    }
    writer.emitter.instruction(Instruction::with2(code, Register::R10, bit));
    if writes {
        writer.store(word, Register::R10);
    }
    true
}

/// Loads R11 with the address of `instruction`'s memory operand, without a check. Returns false if it is not
/// translated.
fn load_unchecked(writer: &mut Writer, instruction: &Instruction) -> bool {
    let has_base = matches!(instruction.memory_segment(), Register::FS | Register::GS);
    if has_base || has_32_bit_address(instruction) {
        return false;
    }
    load_offset(writer, instruction);
    true
}

/// Loads R11 with the offset of `instruction`'s memory operand in its segment. Uses R10.
pub(crate) fn load_offset(writer: &mut Writer, instruction: &Instruction) {
    let registers = [instruction.memory_base(), instruction.memory_index()];
    if registers[0] == Register::RIP || registers == [Register::None; 2] {
        writer.load_number(Register::R11, instruction.memory_displacement64());
    } else {
        load_sum(writer, instruction, Register::R11);
    }
}

/// Loads R10 with the 64 bits that `instruction`, a branch, has as its operand. Returns false if that is not
/// translated.
pub(crate) fn load_target(writer: &mut Writer, instruction: &Instruction) -> bool {
    if instruction.op0_kind() != OpKind::Register {
        let Some(from) = address(writer, instruction) else { return false };
        writer.load(Register::R10, from.operand);
        return true;
    }
    let register = instruction.op0_register();
    if is_in_context(register) {
        writer.load(Register::R10, writer.register(register));
    } else {
        let copy = Instruction::with2(Code::Mov_r64_rm64, Register::R10, rename(register));
        writer.emitter.instruction(copy);
    }
    true
}
