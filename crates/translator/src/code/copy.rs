//! Instructions that are copied: the host executes the same instruction on the same registers, with its
//! memory operand in the window.

use iced_x86::{Code, CpuidFeature, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::decode::{self, has_16_bit_addresses};

use crate::code::emitter::{Emitter, displacement_size, in_window, is_near};
use crate::context::at;

/// Returns the host's register that holds the guest's `register`.
pub(crate) fn rename(register: Register) -> Register {
    match register {
        Register::ESP => Register::R15D,
        Register::SP => Register::R15W,
        other => other,
    }
}

/// Returns whether `instruction` does nothing. Compilers fill gaps with NOPs and other instructions without
/// effect, and kernels put some wherever they might be traced. Of all these, only the count remains.
pub(crate) fn does_nothing(instruction: &Instruction) -> bool {
    let to = instruction.op0_register();
    match instruction.code() {
        Code::Mov_r32_rm32 | Code::Mov_rm32_r32 => to == instruction.op1_register(),
        Code::Lea_r32_m => {
            instruction.memory_base() == to
                && instruction.memory_index() == Register::None
                && instruction.memory_displacement32() == 0
        }
        code => decode::does_nothing(code),
    }
}

/// Returns whether `instruction` needs ESP itself, other than as the base of an address or to push and pop.
pub(crate) fn needs_stack_pointer(instruction: &Instruction) -> bool {
    instruction.code() == Code::Pushad
        || (0..instruction.op_count()).any(|operand| {
            instruction.op_kind(operand) == OpKind::Register
                && matches!(instruction.op_register(operand), Register::ESP | Register::SP)
        })
}

/// Returns whether the memory operand of `instruction` is of a kind that is translated. Its address must have
/// 32 bits. It must not go through CS, which need not be readable, nor be that of XLAT, whose index is AL.
pub(crate) fn is_translated_address(instruction: &Instruction) -> bool {
    !has_16_bit_addresses(instruction)
        && instruction.memory_segment() != Register::CS
        && instruction.mnemonic() != Mnemonic::Xlatb
}

/// Returns an operand with the address of `instruction`'s memory operand, but with another displacement and
/// segment prefix.
fn operand(
    emitter: &Emitter,
    instruction: &Instruction,
    displacement: u32,
    segment: Register,
) -> MemoryOperand {
    let is_on_stack = instruction.memory_base() == Register::ESP;
    let above = if is_on_stack { emitter.stack_offset() } else { 0 };
    let displacement = i64::from((displacement as i32).wrapping_add(above));
    let has_base = instruction.memory_base() != Register::None;
    let has_index = instruction.memory_index() != Register::None;
    let mut base = rename(instruction.memory_base());
    if segment == Register::GS && has_base && !has_index && is_near(displacement) {
        base = base.full_register();
    }
    MemoryOperand::new(
        base,
        instruction.memory_index(),
        instruction.memory_index_scale(),
        displacement,
        if has_base { displacement_size(base, displacement) } else { 4 },
        false,
        segment,
    )
}

/// Loads R8D with the address of the memory operand of `instruction`, for which [`is_translated_address`]
/// holds and whose segment is flat.
pub(crate) fn load_address(emitter: &mut Emitter, instruction: &Instruction) {
    let displacement = instruction.memory_displacement32();
    let is_number =
        instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    if is_number {
        emitter.load_number(Register::R8D, displacement);
    } else {
        let offset = operand(emitter, instruction, displacement, Register::None);
        emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R8D, offset));
    }
}

/// Returns the memory operand of `instruction` in the window if its segment is flat, and None otherwise.
pub(crate) fn plain_address(emitter: &Emitter, instruction: &Instruction) -> Option<MemoryOperand> {
    if !is_translated_address(instruction)
        || matches!(instruction.memory_segment(), Register::FS | Register::GS)
    {
        return None;
    }
    Some(operand(emitter, instruction, instruction.memory_displacement32(), Register::GS))
}

/// Returns the memory operand of `instruction` in the window. Uses R8 where an address must be computed.
/// Returns None if the operand is of a kind that is not translated.
pub(crate) fn address(emitter: &mut Emitter, instruction: &Instruction) -> Option<MemoryOperand> {
    if !is_translated_address(instruction) {
        return None;
    }
    let number = match instruction.memory_segment() {
        Register::FS => 0,
        Register::GS => 1,
        _ => return plain_address(emitter, instruction),
    };
    let displacement = instruction.memory_displacement32();
    let is_number =
        instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    let offset = i64::from(displacement as i32);
    // The interpreter checks segments that have a limit: for them, the base or the address of the base is one
    // that faults.
    if is_number && is_near(offset) {
        emitter.load_field(Register::R8, at::NEAR_BASES + 8 * number);
        return Some(in_window(Register::R8D, offset));
    }
    emitter.load_field(Register::R8, at::BASE_OF + 8 * number);
    emitter.load(Register::R8D, MemoryOperand::with_base(Register::R8));
    if is_number {
        emitter.add(Register::R8D, Register::R8, displacement as i32);
    } else {
        let offset = operand(emitter, instruction, displacement, Register::None);
        emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R9D, offset));
        emitter.add_64(Register::R8, Register::R8, Register::R9, 0);
    }
    Some(MemoryOperand::new(Register::R8D, Register::None, 1, 0, 0, false, Register::GS))
}

/// Returns the memory operand `bytes` bytes behind that of `instruction`; see [`address`].
pub(crate) fn address_behind(
    emitter: &mut Emitter,
    instruction: &Instruction,
    bytes: u32,
) -> Option<MemoryOperand> {
    let mut behind = *instruction;
    let displacement = instruction.memory_displacement32().wrapping_add(bytes);
    behind.set_memory_displacement64(displacement.into());
    address(emitter, &behind)
}

/// Translates an instruction by copying it. Returns false if it is left to the interpreter; the caller then
/// throws away what was written.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    let mark = emitter.mark();
    let address = |emitter: &mut Emitter| address(emitter, instruction);
    translate_with(emitter, instruction, address) || {
        emitter.go_back(mark);
        with_high_byte(emitter, instruction, address)
    }
}

/// Translates an instruction by copying it with the memory operand that `address` returns. Returns false if
/// it is left to the interpreter; the caller then throws away what was written.
pub(crate) fn translate_with(
    emitter: &mut Emitter,
    instruction: &Instruction,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    if matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Pause) {
        return true;
    }
    if !has_general_registers(instruction) {
        return false;
    }
    if exchanges_with_memory(instruction) {
        return if instruction.mnemonic() == Mnemonic::Cmpxchg {
            compare_and_exchange(emitter, instruction, address)
        } else {
            exchange(emitter, instruction, address)
        };
    }
    copy_with(emitter, instruction, address)
}

/// Returns whether `instruction` is XCHG, XADD or CMPXCHG with a memory operand and is translated by
/// [`exchange`] or [`compare_and_exchange`].
pub(crate) fn exchanges_with_memory(instruction: &Instruction) -> bool {
    let is_exchange = match instruction.mnemonic() {
        Mnemonic::Xchg | Mnemonic::Xadd => true,
        // No CMOVcc has byte registers.
        Mnemonic::Cmpxchg => instruction.op1_register().size() > 1,
        _ => false,
    };
    is_exchange && instruction.op0_kind() == OpKind::Memory
}

/// Translates XCHG or XADD with a memory operand, which `address` returns, as a load and a store. On the host XCHG
/// would lock the bus even without a prefix (SDM vol. 2, XCHG), and take five times as long. The guest has only
/// one processor, and nothing happens in the middle of its instructions. Uses R9 and R10.
fn exchange(
    emitter: &mut Emitter,
    instruction: &Instruction,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    let register = rename(instruction.op1_register());
    let Loaded { load, store, value } = Loaded::of_size(register.size());
    let (add, copy) = match register.size() {
        1 => (Code::Add_rm8_r8, Code::Mov_r8_rm8),
        2 => (Code::Add_rm16_r16, Code::Mov_r16_rm16),
        _ => (Code::Add_rm32_r32, Code::Mov_r32_rm32),
    };
    let change = if instruction.mnemonic() == Mnemonic::Xadd { add } else { store };
    let Some(memory) = address(emitter) else { return false };
    emitter.instruction(Instruction::with2(load, Register::R10D, memory));
    // The register, which may be part of the address, changes after the last instruction that can fault.
    if is_high(register) {
        // 64-bit code cannot encode it with every memory operand.
        if [memory.base, memory.index].contains(&Register::R9D) {
            return false;
        }
        let whole = register.full_register32();
        rotate(emitter, Register::R9D, whole, 8);
        emitter.instruction(Instruction::with2(change, memory, Register::R9L));
        rotate(emitter, whole, whole, 8);
        emitter.instruction(Instruction::with2(copy, low_byte(whole), value));
        rotate(emitter, whole, whole, 32 - 8);
    } else {
        emitter.instruction(Instruction::with2(change, memory, register));
        emitter.instruction(Instruction::with2(copy, register, value));
    }
    true
}

/// Stores in `to` the bits of `from`, rotated to the right. Changes no flags.
fn rotate(emitter: &mut Emitter, to: Register, from: Register, bits: u32) {
    emitter.instruction(Instruction::with3(Code::VEX_Rorx_r32_rm32_imm8, to, from, bits));
}

/// Returns AL, CL, DL or BL.
fn low_byte(whole: Register) -> Register {
    Register::AL + whole.number() as u32
}

/// The ways to load a value from memory into R10, and to store it there.
struct Loaded {
    load: Code,
    store: Code,
    /// R10, or its lowest bytes, with the value.
    value: Register,
}

impl Loaded {
    /// Returns those for values of so many bytes: 1, 2 or 4.
    fn of_size(bytes: usize) -> Loaded {
        let (load, store, value) = match bytes {
            1 => (Code::Movzx_r32_rm8, Code::Mov_rm8_r8, Register::R10L),
            2 => (Code::Movzx_r32_rm16, Code::Mov_rm16_r16, Register::R10W),
            _ => (Code::Mov_r32_rm32, Code::Mov_rm32_r32, Register::R10D),
        };
        Loaded { load, store, value }
    }
}

/// Translates CMPXCHG of words and doublewords with a memory operand, which `address` returns, as a load and
/// stores, for the reason that [`exchange`] has. CMPXCHG always writes (SDM vol. 2, CMPXCHG): the first store
/// writes what was loaded, and faults before flags and registers change. Uses R10.
fn compare_and_exchange(
    emitter: &mut Emitter,
    instruction: &Instruction,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    let new = rename(instruction.op1_register());
    let Loaded { load, store, value: old } = Loaded::of_size(new.size());
    let (compare, if_equal, if_not_equal, accumulator) = if new.size() == 2 {
        (Code::Cmp_r16_rm16, Code::Cmove_r16_rm16, Code::Cmovne_r16_rm16, Register::AX)
    } else {
        (Code::Cmp_r32_rm32, Code::Cmove_r32_rm32, Code::Cmovne_r32_rm32, Register::EAX)
    };
    let Some(memory) = address(emitter) else { return false };
    emitter.instruction(Instruction::with2(load, Register::R10D, memory));
    emitter.instruction(Instruction::with2(store, memory, old));
    emitter.instruction(Instruction::with2(compare, accumulator, old));
    emitter.instruction(Instruction::with2(if_equal, old, new));
    emitter.instruction(Instruction::with2(store, memory, old));
    // The accumulator, which may be part of the address, changes last.
    emitter.instruction(Instruction::with2(if_not_equal, accumulator, old));
    true
}

/// Translates instructions with AH, CH, DH or BH and a memory operand, which `address` returns. Such an
/// operand may need registers with which 64-bit code cannot encode these byte registers (SDM vol. 2,
/// 2.2.1.2), so the byte moves to a register that it can encode. Uses R10.
pub(crate) fn with_high_byte(
    emitter: &mut Emitter,
    instruction: &Instruction,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    use Mnemonic as M;
    let is_simple = matches!(
        instruction.mnemonic(),
        M::Mov | M::Add | M::Or | M::Adc | M::Sbb | M::And | M::Sub | M::Xor | M::Cmp | M::Test
    );
    let (first, second) = (instruction.op0_register(), instruction.op1_register());
    let mut copied = *instruction;
    if is_simple && is_high(second) && instruction.op0_kind() == OpKind::Memory {
        rotate(emitter, Register::R10D, second.full_register32(), 8);
        copied.set_op1_register(Register::R10L);
        return translate_with(emitter, &copied, address);
    }
    if is_simple && is_high(first) && instruction.op1_kind() == OpKind::Memory {
        let Some(from) = address(emitter) else { return false };
        emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R10D, from));
        let register = first.full_register32();
        copied.set_op0_register(low_byte(register));
        copied.set_op1_kind(OpKind::Register);
        copied.set_op1_register(Register::R10L);
        // Nothing faults after this point.
        rotate(emitter, register, register, 8);
        if !emitter.try_instruction(&copied) {
            return false;
        }
        rotate(emitter, register, register, 32 - 8);
        return true;
    }
    false
}

fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::CH | Register::DH | Register::BH)
}

/// Returns whether the result of `instruction` depends on the vendor of the processor, and must therefore not
/// be left to the host: a double shift of a word by as many bits as it has or more, and BSWAP of a word (SDM vol. 2,
/// SHLD and BSWAP). Compilers generate neither.
pub(crate) fn has_undefined_result(instruction: &Instruction) -> bool {
    match instruction.code() {
        Code::Shld_rm16_r16_imm8 | Code::Shrd_rm16_r16_imm8 => instruction.immediate8() & 31 >= 16,
        Code::Shld_rm16_r16_CL | Code::Shrd_rm16_r16_CL | Code::Bswap_r16 => true,
        _ => false,
    }
}

/// Returns whether the host's processor has what `instruction` needs, of the extensions that not all hosts have.
pub(crate) fn is_of_host(instruction: &Instruction) -> bool {
    use CpuidFeature as F;
    instruction.cpuid_features().iter().all(|feature| match feature {
        F::BMI1 => is_x86_feature_detected!("bmi1"),
        F::LZCNT => is_x86_feature_detected!("lzcnt"),
        F::MOVBE => is_x86_feature_detected!("movbe"),
        F::AVX => is_x86_feature_detected!("avx"),
        F::AVX2 => is_x86_feature_detected!("avx2"),
        F::F16C => is_x86_feature_detected!("f16c"),
        F::FMA => is_x86_feature_detected!("fma"),
        _ => true,
    })
}

/// Returns whether `instruction` is one that is copied and has only general registers.
fn has_general_registers(instruction: &Instruction) -> bool {
    is_copied(instruction.mnemonic())
        && is_of_host(instruction)
        && !has_undefined_result(instruction)
        && (0..instruction.op_count()).all(|operand| {
            instruction.op_kind(operand) != OpKind::Register
                || instruction.op_register(operand).is_gpr()
        })
}

/// Returns the memory operand, in the window for its region, of supervisor code that also accesses memory of
/// users. Uses R8 and R9.
fn address_in_region(emitter: &mut Emitter, instruction: &Instruction) -> Option<MemoryOperand> {
    if !is_translated_address(instruction)
        || matches!(instruction.memory_segment(), Register::FS | Register::GS)
    {
        return None;
    }
    let displacement = instruction.memory_displacement32();
    if instruction.memory_base() == Register::None && instruction.memory_index() == Register::None {
        emitter.load_number(Register::R8D, displacement);
    } else {
        let offset = operand(emitter, instruction, displacement, Register::None);
        emitter.instruction(Instruction::with2(Code::Lea_r32_m, Register::R8D, offset));
    }
    emitter.load_region(Register::R8D);
    Some(MemoryOperand::with_base_index(Register::R9, Register::R8))
}

/// Translates an instruction of supervisor code that also accesses memory of users, by copying it. Returns
/// false if it is left to the interpreter; the caller then throws away what was written.
pub(crate) fn translate_for_user(emitter: &mut Emitter, instruction: &Instruction) -> bool {
    translate_with(emitter, instruction, |emitter| address_in_region(emitter, instruction))
}

/// Copies an instruction whose registers have the same names in 64-bit code, with the memory operand that
/// `address` returns. Returns false if 64-bit code has no instruction of this kind, or if the memory operand
/// is not translated; the caller then throws away what was written.
pub(crate) fn copy_with(
    emitter: &mut Emitter,
    instruction: &Instruction,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    let mut copy = *instruction;
    copy.set_code(code_in_64_bit(instruction.code()));
    // There is only one processor, and nothing happens in the middle of its instructions.
    copy.set_has_lock_prefix(false);
    copy.set_has_xacquire_prefix(false);
    copy.set_has_xrelease_prefix(false);
    copy.set_has_rep_prefix(false);
    copy.set_has_repne_prefix(false);
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                copy.set_op_register(operand, rename(instruction.op_register(operand)));
            }
            OpKind::Memory => {
                let memory = if instruction.mnemonic() == Mnemonic::Lea {
                    plain_offset(emitter, instruction)
                } else {
                    address(emitter)
                };
                let Some(memory) = memory else { return false };
                set_memory(&mut copy, &memory);
            }
            OpKind::MemorySegSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegESI
            | OpKind::MemorySegEDI => return false,
            _ => {}
        }
    }
    emitter.try_instruction(&copy)
}

/// Returns the operand of LEA, whose segment does not matter.
fn plain_offset(emitter: &Emitter, instruction: &Instruction) -> Option<MemoryOperand> {
    let displacement = instruction.memory_displacement32();
    (!has_16_bit_addresses(instruction))
        .then(|| operand(emitter, instruction, displacement, Register::None))
}

/// Replaces the memory operand of `instruction`.
pub(crate) fn set_memory(instruction: &mut Instruction, memory: &MemoryOperand) {
    instruction.set_memory_base(memory.base);
    instruction.set_memory_index(memory.index);
    instruction.set_memory_index_scale(memory.scale);
    let is_64_bit = memory.base.is_gpr64() || memory.index.is_gpr64() || memory.displ_size == 8;
    let displacement = memory.displacement as u64;
    instruction.set_memory_displacement64(if is_64_bit {
        displacement
    } else {
        displacement & u64::from(u32::MAX)
    });
    instruction.set_memory_displ_size(memory.displ_size);
    instruction.set_segment_prefix(memory.segment_prefix);
}

/// Returns another encoding of the same instruction where 64-bit code lacks this one: there 40h to 4Fh are
/// prefixes, and A0h to A3h have longer addresses.
fn code_in_64_bit(code: Code) -> Code {
    match code {
        Code::Inc_r16 => Code::Inc_rm16,
        Code::Inc_r32 => Code::Inc_rm32,
        Code::Dec_r16 => Code::Dec_rm16,
        Code::Dec_r32 => Code::Dec_rm32,
        Code::Mov_AL_moffs8 => Code::Mov_r8_rm8,
        Code::Mov_AX_moffs16 => Code::Mov_r16_rm16,
        Code::Mov_EAX_moffs32 => Code::Mov_r32_rm32,
        Code::Mov_moffs8_AL => Code::Mov_rm8_r8,
        Code::Mov_moffs16_AX => Code::Mov_rm16_r16,
        Code::Mov_moffs32_EAX => Code::Mov_rm32_r32,
        Code::Xchg_r32_EAX => Code::Xchg_rm32_r32,
        Code::Xchg_r16_AX => Code::Xchg_rm16_r16,
        other => other,
    }
}

/// Returns whether integer instructions with this mnemonic are copied.
pub(crate) fn is_copied(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Add
            | M::Or
            | M::Adc
            | M::Sbb
            | M::And
            | M::Sub
            | M::Xor
            | M::Cmp
            | M::Test
            | M::Mov
            | M::Movzx
            | M::Movsx
            | M::Lea
            | M::Inc
            | M::Dec
            | M::Neg
            | M::Not
            | M::Mul
            | M::Imul
            | M::Div
            | M::Idiv
            | M::Shl
            | M::Sal
            | M::Shr
            | M::Sar
            | M::Rol
            | M::Ror
            | M::Rcl
            | M::Rcr
            | M::Shld
            | M::Shrd
            | M::Bt
            | M::Bts
            | M::Btr
            | M::Btc
            | M::Bsf
            | M::Bsr
            | M::Bswap
            | M::Popcnt
            | M::Tzcnt
            | M::Lzcnt
            | M::Movbe
            | M::Andn
            | M::Blsr
            | M::Blsmsk
            | M::Blsi
            | M::Bextr
            | M::Bzhi
            | M::Pdep
            | M::Pext
            | M::Mulx
            | M::Rorx
            | M::Sarx
            | M::Shlx
            | M::Shrx
            | M::Seta
            | M::Setae
            | M::Setb
            | M::Setbe
            | M::Sete
            | M::Setg
            | M::Setge
            | M::Setl
            | M::Setle
            | M::Setne
            | M::Setno
            | M::Setnp
            | M::Setns
            | M::Seto
            | M::Setp
            | M::Sets
            | M::Cmova
            | M::Cmovae
            | M::Cmovb
            | M::Cmovbe
            | M::Cmove
            | M::Cmovg
            | M::Cmovge
            | M::Cmovl
            | M::Cmovle
            | M::Cmovne
            | M::Cmovno
            | M::Cmovnp
            | M::Cmovns
            | M::Cmovo
            | M::Cmovp
            | M::Cmovs
            | M::Xchg
            | M::Xadd
            | M::Cmpxchg
            | M::Cmpxchg8b
            | M::Cbw
            | M::Cwde
            | M::Cwd
            | M::Cdq
            | M::Clc
            | M::Stc
            | M::Cmc
            | M::Cld
            | M::Std
            | M::Lahf
            | M::Sahf
            | M::Nop
            | M::Pause
            | M::Xlatb
    )
}
