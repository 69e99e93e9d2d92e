//! Decodes instruction bytes to [`Op`]s. It uses iced-x86 once for each instruction, and keeps only what the
//! instruction's handler needs.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use iced_x86::{
    Code, CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic, OpCodeOperandKind, OpKind,
    Register,
};
use ring3_core::memory::PAGE_SIZE;
use tracing::warn;

use crate::cpu::reg;
use crate::cpuid::Model;
use crate::exec::{overlong_instruction, undefined_instruction};
use crate::segment::sreg;
use crate::table::{self, Exec, FormId, Way, exec};

/// A decoded instruction, in half a cache line, because an interpreter spends most of its waits on its own
/// decoded code.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// The handler.
    pub exec: Exec,
    /// The immediate operand, sign-extended to 32 bits; for branches the distance from the next
    /// instruction; for direct far transfers the offset; for MOV from and to an absolute 64-bit address its
    /// upper half; with VEX see [`Op::vvvv`].
    pub imm: u32,
    /// The displacement of the memory operand, sign-extended to 32 bits, as it is to 64 bits with 64-bit
    /// addresses; for direct far transfers the selector, for ENTER the nesting level, for MOV of a 64-bit
    /// immediate operand its upper half; for near branches see [`Op::link`].
    pub disp: u32,
    /// The number of its form in the instruction table.
    pub form: FormId,
    /// Its offset in its page.
    pub offset: u16,
    /// For the first instruction of a block: the offset in its page where the block ends.
    pub block_end: u16,
    /// For the first instruction of a block: the number of its instructions; 0 for the others.
    pub block_ops: u8,
    /// The register that ModRM.rm or the opcode specifies as an operand.
    pub rm: u8,
    /// The register that ModRM.reg specifies as an operand.
    pub reg: u8,
    /// Base register of the memory operand, or [`reg::NONE`].
    pub base: u8,
    /// Index register of the memory operand, or [`reg::NONE`].
    pub index: u8,
    /// log2 of the index's scale; for near relative branches see [`Op::is_far`].
    pub scale: u8,
    /// Segment register of the memory operand, or 7 if there is no memory operand.
    pub segment: u8,
    /// Length in bytes, 1 to 15.
    pub length: u8,
    /// The repeat prefix of a string instruction.
    pub repeat: Repeat,
    /// The number of bits that an effective address lacks of 64.
    address_shift: u8,
}

impl Op {
    /// Returns the register that the field vvvv of a VEX prefix specifies. Such instructions have immediate operands
    /// of one byte at most, which leaves room for it.
    #[inline(always)]
    pub(crate) fn vvvv(&self) -> u8 {
        (self.imm >> VVVV_SHIFT) as u8 & 15
    }

    /// Returns the mask of an effective address, and of the index and count registers of string instructions.
    #[inline(always)]
    pub fn address_mask(&self) -> u64 {
        u64::MAX >> (self.address_shift & 63)
    }

    /// Returns the same instruction at another offset in its page.
    #[must_use]
    pub fn at_offset(&self, offset: u16) -> Op {
        let mut op = Op { offset, ..*self };
        if op.base == reg::CODE {
            let distance = i64::from(offset) - i64::from(self.offset);
            op.set_distance_in_code(self.distance_in_code() + distance);
        }
        op
    }

    /// Returns the same instruction with a memory operand whose address is in `base`.
    #[must_use]
    pub(crate) fn with_base_alone(&self, base: u8) -> Op {
        Op { base, index: reg::NONE, disp: 0, ..*self }
    }

    /// Returns the distance of a RIP-relative operand from the beginning of the instruction's page.
    fn distance_in_code(&self) -> i64 {
        let pages = if self.index == reg::PAGE { CODE_PAGES } else { 0 };
        i64::from(self.disp as i32) + pages
    }

    /// Makes the operand RIP-relative. A distance may be a little more than the displacement can hold, to
    /// which it adds the instruction's offset and length; then the index has the rest.
    fn set_distance_in_code(&mut self, distance: i64) {
        self.base = reg::CODE;
        (self.index, self.scale) = (reg::NONE, 0);
        let mut displacement = distance;
        if i32::try_from(distance).is_err() {
            (self.index, self.scale) = (reg::PAGE, CODE_PAGES_SCALE);
            displacement -= CODE_PAGES;
        }
        self.disp = displacement as u32;
    }

    /// For a near branch or the end of a block, returns the distance in the decoded code to the instruction
    /// to which it goes, or 0 if the distance is unknown.
    #[inline(always)]
    pub(crate) fn link(&self, way: Way) -> isize {
        let distance = match way {
            Way::Taken => self.disp as i16,
            Way::NotTaken => (self.disp >> 16) as i16,
        };
        isize::from(distance)
    }

    /// Returns whether the target of a near branch or of the end of a block is too far away in the decoded
    /// code for a link.
    pub(crate) fn is_far(&self, way: Way) -> bool {
        self.scale & far_bit(way) != 0
    }

    /// Links a near branch or the end of a block, which is number `at`, to its target number `to`, or notes
    /// that the target is too far away.
    pub(crate) fn set_link(&mut self, way: Way, at: usize, to: usize) {
        let Ok(distance) = i16::try_from(to as isize - at as isize) else {
            self.scale |= far_bit(way);
            return;
        };
        let distance = u32::from(distance as u16);
        self.disp = match way {
            Way::Taken => self.disp & 0xffff_0000 | distance,
            Way::NotTaken => self.disp & 0xffff | distance << 16,
        };
    }

    /// Makes the operation that ends a block without a branch.
    pub(crate) fn end_of_block(exec: Exec) -> Op {
        Op { exec, ..UNDEFINED }
    }

    /// Returns whether there is a memory operand.
    pub(crate) fn has_memory_operand(&self) -> bool {
        self.segment != NO_SEGMENT
    }

    /// Returns whether the memory operand's linear address is the sum of the base register and the
    /// displacement, provided that DS, ES and SS are flat.
    pub fn is_flat(&self) -> bool {
        self.index == reg::NONE
            && self.address_shift == SHIFT_32_BIT
            && matches!(self.segment, sreg::DS | sreg::ES | sreg::SS)
    }

    /// Returns whether the memory operand of an instruction in 64-bit code has a 64-bit address in a segment
    /// without a base, so that its effective address is the linear one.
    pub fn is_long(&self) -> bool {
        self.address_shift == SHIFT_64_BIT && !matches!(self.segment, sreg::FS | sreg::GS)
    }

    /// Returns whether no instruction of the same block comes after it.
    pub fn ends_block(&self) -> bool {
        self.form.form().is_none_or(|form| form.ends_block) || self.stands_alone()
    }

    /// For the first instruction of a block, returns the block's length in bytes.
    #[inline(always)]
    pub(crate) fn block_bytes(&self) -> u16 {
        self.block_end - self.offset
    }

    /// Returns whether its handler does not continue with the next instruction.
    pub(crate) fn branches(&self) -> bool {
        self.form.form().is_some_and(|form| form.branches)
    }

    /// Returns whether it counts its iterations itself, for which it must be alone in its block.
    pub fn stands_alone(&self) -> bool {
        self.repeat != Repeat::None
    }
}

/// Returns the bit of [`Op::is_far`] for `way`.
fn far_bit(way: Way) -> u8 {
    match way {
        Way::Taken => 1,
        Way::NotTaken => 2,
    }
}

/// The repeat prefix of a string instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// No prefix.
    None,
    /// F3h: REP, or REPE for CMPS and SCAS.
    WhileEqual,
    /// F2h: REPNE.
    WhileNotEqual,
}

/// The kinds of code (SDM vol. 3, 3.4.5, D/B and L).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeSize {
    /// The default size of operands and addresses is 16 bits.
    Bits16,
    /// The default size of operands and addresses is 32 bits.
    Bits32,
    /// 64-bit mode: the default size of operands is 32 bits, that of addresses and of the stack 64 bits.
    Bits64,
}

impl CodeSize {
    /// Returns the kind of code outside 64-bit mode, by CS.D.
    pub const fn of(is_32_bit: bool) -> CodeSize {
        if is_32_bit { CodeSize::Bits32 } else { CodeSize::Bits16 }
    }

    /// Returns the number of bits of an address by default.
    pub const fn bits(self) -> u32 {
        match self {
            CodeSize::Bits16 => 16,
            CodeSize::Bits32 => 32,
            CodeSize::Bits64 => 64,
        }
    }
}

/// The state on which decoded instructions depend besides their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeMode {
    /// The kind of code.
    pub size: CodeSize,
    /// Whether DS, ES and SS begin at 0, have no limit and are readable and writable, and the stack pointer
    /// is ESP. This is so in 64-bit mode, where it is RSP.
    pub is_flat: bool,
}

impl CodeMode {
    /// 64-bit mode.
    pub const LONG: CodeMode = CodeMode { size: CodeSize::Bits64, is_flat: true };

    /// Number of modes.
    pub const COUNT: usize = 6;

    /// Returns a number for each mode, from 0.
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.is_flat) | (self.size as usize) << 1
    }
}

/// Makes a decoder of the instructions in `bytes`, the first of which is at `ip` in CS.
///
/// On a model without BMI1 or LZCNT, a repeat prefix before BSF or BSR has no meaning: TZCNT and LZCNT are encoded in
/// that way so that they run on processors that lack them. The same holds for WBNOINVD.
pub fn decoder(bytes: &[u8], size: CodeSize, ip: u64, model: Model) -> Decoder<'_> {
    let mut options = DecoderOptions::NO_WBNOINVD;
    if !model.has(CpuidFeature::BMI1) {
        options |= DecoderOptions::NO_MPFX_0FBC;
    }
    if !model.has(CpuidFeature::LZCNT) {
        options |= DecoderOptions::NO_MPFX_0FBD;
    }
    Decoder::with_ip(size.bits(), bytes, ip, options)
}

/// Returns whether processors of model `model` have `instruction`, and it is implemented here.
pub fn exists(instruction: &Instruction, model: Model) -> bool {
    is_offered(instruction, model) && table::find(instruction.code()).is_some()
}

/// Returns whether processors of model `model` have `instruction`.
fn is_offered(instruction: &Instruction, model: Model) -> bool {
    match instruction.code() {
        code if is_hint(code) => return model.has(CpuidFeature::MULTIBYTENOP),
        code if is_prefetch(code) => return model.ignores_prefetches(),
        _ => {}
    }
    !instruction.is_invalid()
        && (model.has_cr4() || !has_operand(instruction, Register::CR4))
        && instruction.cpuid_features().iter().all(|feature| model.has(*feature))
}

/// Returns whether `register` is an operand of a MOV.
fn has_operand(instruction: &Instruction, register: Register) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && [instruction.op0_register(), instruction.op1_register()].contains(&register)
}

/// Returns whether `code` is a NOP on processors that do not know it, as ours do not: its opcode is one of
/// those that were NOPs before.
fn is_hint(code: Code) -> bool {
    use Code as C;
    matches!(
        code,
        C::Cldemote_m8
            | C::Endbr32
            | C::Endbr64
            | C::Rdsspd_r32
            | C::Rdsspq_r64
            | C::Prefetchit0_m8
            | C::Prefetchit1_m8
    )
}

/// Returns whether `code` does nothing on any processor that has it: NOPs, hints, and prefetches that are
/// ignored.
pub fn does_nothing(code: Code) -> bool {
    let is_reserved = code.mnemonic() == Mnemonic::Reservednop;
    is_reserved || code.mnemonic() == Mnemonic::Nop || is_hint(code) || is_prefetch(code)
}

/// Returns whether `code` is opcode 0F 0D, whose memory forms prefetch data on processors that offer this
/// (SDM vol. 2, PREFETCHW). None of our models does.
fn is_prefetch(code: Code) -> bool {
    use Code as C;
    matches!(
        code,
        C::Reservednop_rm16_r16_0F0D
            | C::Reservednop_rm32_r32_0F0D
            | C::Reservednop_rm64_r64_0F0D
            | C::Prefetch_m8
            | C::Prefetchw_m8
            | C::Prefetchwt1_m8
            | C::Prefetchreserved3_m8
            | C::Prefetchreserved4_m8
            | C::Prefetchreserved5_m8
            | C::Prefetchreserved6_m8
            | C::Prefetchreserved7_m8
    )
}

/// Returns whether `instruction` has a memory operand with 16-bit addresses: with 16-bit registers, with no
/// register and a 16-bit displacement, or with SI or DI in a string instruction.
pub fn has_16_bit_addresses(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|operand| match instruction.op_kind(operand) {
        OpKind::Memory => {
            let registers = [instruction.memory_base(), instruction.memory_index()];
            match registers.into_iter().find(|register| *register != Register::None) {
                Some(register) => register.size() == 2,
                None => instruction.memory_displ_size() == 2,
            }
        }
        OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => true,
        _ => false,
    })
}

/// Returns the segment register of a memory operand. In 64-bit mode the prefixes for ES, CS, SS and DS are
/// ignored (SDM vol. 1, 3.4.2.1).
fn segment(instruction: &Instruction, mode: CodeMode) -> u8 {
    match instruction.memory_segment() {
        segment @ (Register::FS | Register::GS) => register_number(segment),
        _ if mode.size == CodeSize::Bits64 => match instruction.memory_base().full_register() {
            Register::RSP | Register::RBP => sreg::SS,
            _ => sreg::DS,
        },
        segment => register_number(segment),
    }
}

/// Returns the number of bits that the addresses of `instruction` lack of 64: of its memory operand, or of SI
/// and DI in a string instruction.
fn address_shift(instruction: &Instruction) -> u8 {
    let operands = (0..instruction.op_count()).map(|operand| instruction.op_kind(operand));
    for kind in operands {
        match kind {
            OpKind::Memory => {
                let registers = [instruction.memory_base(), instruction.memory_index()];
                let size = match registers.into_iter().find(|register| *register != Register::None)
                {
                    Some(Register::RIP) => 8,
                    Some(Register::EIP) => 4,
                    Some(register) => register.size(),
                    None => instruction.memory_displ_size() as usize,
                };
                return match size {
                    2 => SHIFT_16_BIT,
                    8 => SHIFT_64_BIT,
                    _ => SHIFT_32_BIT,
                };
            }
            OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => return SHIFT_16_BIT,
            OpKind::MemorySegRSI | OpKind::MemorySegRDI | OpKind::MemoryESRDI => {
                return SHIFT_64_BIT;
            }
            _ => {}
        }
    }
    SHIFT_32_BIT
}

/// Decodes the instruction at the start of `bytes`, of which at most 15 are used. Returns None if the
/// instruction continues beyond them.
pub fn decode(bytes: &[u8], mode: CodeMode, model: Model) -> Option<Op> {
    let mut decoder = decoder(bytes, mode.size, 0, model);
    let instruction = decoder.decode();
    if goes_on(&decoder, &instruction) && bytes.len() < MAX_LENGTH {
        return None;
    }
    if instruction.code() == Code::Pause
        && let Some(exchange) = exchange_with_r8(&bytes[..instruction.len()], mode, model)
    {
        return Some(to_op(&exchange, mode, model));
    }
    Some(to_op(&instruction, mode, model))
}

/// Opcode 90h with REX.B is XCHG of the accumulator and R8, also behind the prefix that would make it PAUSE, as
/// the decoder thinks. Returns this instruction, if `bytes`, which it takes for PAUSE, are it.
fn exchange_with_r8(bytes: &[u8], mode: CodeMode, model: Model) -> Option<Instruction> {
    const REPE: u8 = 0xf3;
    const DS_PREFIX: u8 = 0x3e;
    let rex = bytes.iter().nth_back(1)?;
    if mode.size != CodeSize::Bits64 || rex & 0xf1 != 0x41 {
        return None;
    }
    let without: Vec<u8> =
        bytes.iter().map(|byte| if *byte == REPE { DS_PREFIX } else { *byte }).collect();
    Some(decoder(&without, mode.size, 0, model).decode())
}

/// Returns whether `instruction`, which `decoder` has just decoded, is incomplete because its bytes end.
pub fn goes_on(decoder: &Decoder, instruction: &Instruction) -> bool {
    instruction.is_invalid() && decoder.last_error() == iced_x86::DecoderError::NoMoreBytes
}

/// The longest instruction (SDM vol. 2, 2.3.11).
pub const MAX_LENGTH: usize = 15;

/// The bit of [`Op::imm`] from which on there is [`Op::vvvv`].
const VVVV_SHIFT: u32 = 8;

/// The segment register of an instruction without a memory operand.
const NO_SEGMENT: u8 = 7;

/// The operation for bytes that are not an instruction.
const UNDEFINED: Op = Op {
    exec: exec!(undefined_instruction),
    imm: 0,
    disp: 0,
    form: FormId::NONE,
    offset: 0,
    block_end: 0,
    block_ops: 0,
    rm: 0,
    reg: 0,
    base: reg::NONE,
    index: reg::NONE,
    scale: 0,
    segment: NO_SEGMENT,
    length: 1,
    repeat: Repeat::None,
    address_shift: SHIFT_32_BIT,
};

/// Returns the decoded form of `instruction`, at offset 0 of its page.
pub fn to_op(instruction: &Instruction, mode: CodeMode, model: Model) -> Op {
    let mut op = Op { length: instruction.len().max(1) as u8, ..UNDEFINED };
    if instruction.is_invalid() && instruction.len() == MAX_LENGTH {
        // The decoder does not distinguish 15 bytes that are no instruction from the beginning of a longer
        // one; no program should contain the former.
        op.exec = exec!(overlong_instruction);
        return op;
    }
    if !is_offered(instruction, model) {
        return op;
    }
    let Some((id, form)) = table::find(instruction.code()) else {
        note_missing(instruction.code());
        return op;
    };
    op.form = id;
    op.exec = form.flat_stack.filter(|_| mode.is_flat).unwrap_or(form.register);
    if instruction.is_string_instruction() {
        if instruction.has_repne_prefix() {
            op.repeat = Repeat::WhileNotEqual;
        } else if instruction.has_rep_prefix() {
            op.repeat = Repeat::WhileEqual;
        }
    }
    op.address_shift = address_shift(instruction);
    let kinds = instruction.op_code();
    let mut immediates = 0;
    let mut vvvv = 0;
    for operand in 0..instruction.op_count() {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let number = register_number(instruction.op_register(operand));
                match kinds.op_kind(operand) {
                    OpCodeOperandKind::r8_reg
                    | OpCodeOperandKind::r16_reg
                    | OpCodeOperandKind::r32_reg
                    | OpCodeOperandKind::r64_reg
                    | OpCodeOperandKind::mm_reg
                    | OpCodeOperandKind::xmm_reg
                    | OpCodeOperandKind::ymm_reg
                    | OpCodeOperandKind::seg_reg
                    | OpCodeOperandKind::cr_reg
                    | OpCodeOperandKind::dr_reg => op.reg = number,
                    OpCodeOperandKind::r8_or_mem
                    | OpCodeOperandKind::r16_or_mem
                    | OpCodeOperandKind::r32_or_mem
                    | OpCodeOperandKind::r64_or_mem
                    | OpCodeOperandKind::mm_or_mem
                    | OpCodeOperandKind::mm_rm
                    | OpCodeOperandKind::xmm_or_mem
                    | OpCodeOperandKind::xmm_rm
                    | OpCodeOperandKind::ymm_or_mem
                    | OpCodeOperandKind::ymm_rm
                    | OpCodeOperandKind::r8_opcode
                    | OpCodeOperandKind::r16_opcode
                    | OpCodeOperandKind::r32_opcode
                    | OpCodeOperandKind::r64_opcode
                    | OpCodeOperandKind::r16_rm
                    | OpCodeOperandKind::r32_rm
                    | OpCodeOperandKind::r64_rm
                    | OpCodeOperandKind::sti_opcode => op.rm = number,
                    OpCodeOperandKind::r32_vvvv
                    | OpCodeOperandKind::r64_vvvv
                    | OpCodeOperandKind::xmm_vvvv
                    | OpCodeOperandKind::ymm_vvvv => vvvv = u32::from(number) << VVVV_SHIFT,
                    OpCodeOperandKind::xmm_is4 | OpCodeOperandKind::ymm_is4 => {
                        op.imm = number.into();
                    }
                    // The handler knows fixed registers.
                    _ => {}
                }
            }
            OpKind::Memory => {
                op.base = optional_register(instruction.memory_base());
                op.index = optional_register(instruction.memory_index());
                op.scale = instruction.memory_index_scale().trailing_zeros() as u8;
                op.disp = instruction.memory_displacement32();
                op.segment = segment(instruction, mode);
                if instruction.is_ip_rel_memory_operand() {
                    // This is the distance from the instruction itself, which was decoded at address 0.
                    op.set_distance_in_code(instruction.memory_displacement64() as i64);
                }
                let is_absolute = kinds.op_kind(operand) == OpCodeOperandKind::mem_offs;
                if is_absolute {
                    op.imm = (instruction.memory_displacement64() >> 32) as u32;
                }
                op.exec = match mode.size {
                    CodeSize::Bits64 if op.is_long() || is_absolute => form.long,
                    CodeSize::Bits16 | CodeSize::Bits32 if mode.is_flat && op.is_flat() => {
                        form.flat
                    }
                    _ => form.memory,
                };
            }
            OpKind::MemorySegSI
            | OpKind::MemorySegDI
            | OpKind::MemorySegESI
            | OpKind::MemorySegEDI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegRDI => {
                op.segment = segment(instruction, mode);
            }
            OpKind::NearBranch16 => {
                let distance = instruction.near_branch16().wrapping_sub(instruction.next_ip16());
                op.imm = distance as i16 as u32;
            }
            OpKind::NearBranch32 => {
                op.imm = instruction.near_branch32().wrapping_sub(instruction.next_ip32());
            }
            OpKind::NearBranch64 => {
                op.imm = instruction.near_branch64().wrapping_sub(instruction.next_ip()) as u32;
            }
            OpKind::FarBranch16 => {
                op.imm = u32::from(instruction.far_branch16());
                op.disp = u32::from(instruction.far_branch_selector());
            }
            OpKind::FarBranch32 => {
                op.imm = instruction.far_branch32();
                op.disp = u32::from(instruction.far_branch_selector());
            }
            OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64 => {
                let value = instruction.immediate(operand) as u32;
                if immediates == 0 {
                    op.imm = value;
                } else {
                    op.disp = value;
                }
                immediates += 1;
            }
            OpKind::Immediate64 => {
                let value = instruction.immediate64();
                (op.imm, op.disp) = (value as u32, (value >> 32) as u32);
            }
            _ => {}
        }
    }
    op.imm |= vvvv;
    op
}

/// Logs, once for each form, that the model has a form that is missing in the table. There should be none. If
/// there is one, the guest gets #UD, because no program may end a machine.
#[cold]
fn note_missing(code: Code) {
    static TOLD: Mutex<BTreeSet<Code>> = Mutex::new(BTreeSet::new());
    let is_new = TOLD.lock().unwrap_or_else(PoisonError::into_inner).insert(code);
    if is_new {
        warn!(
            "an instruction is not implemented, and is undefined to the guest: {}",
            code.op_code().instruction_string()
        );
    }
}

/// Returns the number of a register in the form of [`Op`]: AH to BH have [`reg::HIGH_BYTE`] added.
fn register_number(register: Register) -> u8 {
    let number = register.number() as u8;
    match register {
        Register::AH | Register::CH | Register::DH | Register::BH => (number - 4) | reg::HIGH_BYTE,
        // The decoder numbers SPL, which follows BH, and those behind it from 8 on.
        _ if register.is_gpr8() && number >= 8 => number - 4,
        _ => number,
    }
}

fn optional_register(register: Register) -> u8 {
    if register == Register::None { reg::NONE } else { register_number(register) }
}

/// The values of [`Op::address_shift`].
const SHIFT_16_BIT: u8 = 48;
const SHIFT_32_BIT: u8 = 32;
const SHIFT_64_BIT: u8 = 0;

/// The part of a distance in the code that is in the index, and the scale of [`reg::PAGE`] that gives it.
const CODE_PAGES: i64 = 2 * PAGE_SIZE as i64;
const CODE_PAGES_SCALE: u8 = 1;
