//! Makes instructions from their mnemonics, and their bytes. The order of operands is the manual's: the
//! destination first.

pub(crate) use iced_x86::Register::{
    AL, AX, CR0, CR3, CR4, DR6, DS, EAX, EBX, ECX, EDI, EDX, ES, ESI, ESP, FS, GS, SS,
};
use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

/// Returns the bytes of each of `instructions`, which follow each other from `address` on in code of
/// `bitness` 16 or 32 bits.
pub(crate) fn assemble(bitness: u32, address: u32, instructions: &[Instruction]) -> Vec<Vec<u8>> {
    let mut encoder = Encoder::new(bitness);
    let mut at = u64::from(address);
    let encode = |instruction: &Instruction| {
        let length = encoder.encode(instruction, at).expect("an instruction of this code size");
        at += length as u64;
        encoder.take_buffer()
    };
    instructions.iter().map(encode).collect()
}

fn made(instruction: Result<Instruction, IcedError>) -> Instruction {
    instruction.expect("operands of this form")
}

/// The doubleword or byte at `address` of DS.
fn at(address: u32) -> MemoryOperand {
    MemoryOperand::with_displ(address.into(), 4)
}

/// An instruction without explicit operands.
pub(crate) fn plain(code: Code) -> Instruction {
    Instruction::with(code)
}

/// One operand, a register.
pub(crate) fn unary(code: Code, register: Register) -> Instruction {
    made(Instruction::with1(code, register))
}

/// One operand, in memory at `address`.
pub(crate) fn memory(code: Code, address: u32) -> Instruction {
    made(Instruction::with1(code, at(address)))
}

/// Two operands, both registers.
pub(crate) fn binary(code: Code, to: Register, from: Register) -> Instruction {
    made(Instruction::with2(code, to, from))
}

/// NOP.
pub(crate) fn nop() -> Instruction {
    plain(Code::Nopd)
}

/// HLT.
pub(crate) fn hlt() -> Instruction {
    plain(Code::Hlt)
}

/// MOV r32, imm32.
pub(crate) fn mov(to: Register, value: u32) -> Instruction {
    made(Instruction::with2(Code::Mov_r32_imm32, to, value))
}

/// MOV r32, [address].
pub(crate) fn load(to: Register, address: u32) -> Instruction {
    made(Instruction::with2(Code::Mov_r32_rm32, to, at(address)))
}

/// MOV [address], r32.
pub(crate) fn store(address: u32, from: Register) -> Instruction {
    made(Instruction::with2(Code::Mov_rm32_r32, at(address), from))
}

/// MOV BYTE [address], imm8.
pub(crate) fn store_byte(address: u32, value: u8) -> Instruction {
    made(Instruction::with2(Code::Mov_rm8_imm8, at(address), u32::from(value)))
}

/// ADD DWORD [address], r32.
pub(crate) fn add_to_memory(address: u32, from: Register) -> Instruction {
    made(Instruction::with2(Code::Add_rm32_r32, at(address), from))
}

/// INC r32.
pub(crate) fn inc(register: Register) -> Instruction {
    unary(Code::Inc_r32, register)
}

/// PUSH r32.
pub(crate) fn push(register: Register) -> Instruction {
    unary(Code::Push_r32, register)
}

/// POP r32.
pub(crate) fn pop(register: Register) -> Instruction {
    unary(Code::Pop_r32, register)
}

/// PUSH imm32.
pub(crate) fn push_value(value: u32) -> Instruction {
    made(Instruction::with1(Code::Pushd_imm32, value))
}

/// INT n.
pub(crate) fn int(vector: u8) -> Instruction {
    made(Instruction::with1(Code::Int_imm8, u32::from(vector)))
}

/// JMP rel32 to `target`.
pub(crate) fn jmp(target: u32) -> Instruction {
    made(Instruction::with_branch(Code::Jmp_rel32_32, target.into()))
}

/// CALL rel32 to `target`.
pub(crate) fn call(target: u32) -> Instruction {
    made(Instruction::with_branch(Code::Call_rel32_32, target.into()))
}

/// JMP ptr16:32.
pub(crate) fn far_jmp(selector: u16, offset: u32) -> Instruction {
    made(Instruction::with_far_branch(Code::Jmp_ptr1632, selector, offset))
}

/// MOV to a control register.
pub(crate) fn to_control(to: Register, from: Register) -> Instruction {
    binary(Code::Mov_cr_r32, to, from)
}

/// MOV from a control register.
pub(crate) fn from_control(to: Register, from: Register) -> Instruction {
    binary(Code::Mov_r32_cr, to, from)
}

/// MOV Sreg, r32.
pub(crate) fn to_segment(to: Register, from: Register) -> Instruction {
    binary(Code::Mov_Sreg_r32m16, to, from)
}

/// INVLPG [address].
pub(crate) fn invlpg(address: u32) -> Instruction {
    memory(Code::Invlpg_m, address)
}

/// IN AL, imm8.
pub(crate) fn in_al(port: u8) -> Instruction {
    made(Instruction::with2(Code::In_AL_imm8, AL, u32::from(port)))
}

/// IN AX, imm8.
pub(crate) fn in_ax(port: u8) -> Instruction {
    made(Instruction::with2(Code::In_AX_imm8, AX, u32::from(port)))
}

/// OUT imm8, AL.
pub(crate) fn out_al(port: u8) -> Instruction {
    made(Instruction::with2(Code::Out_imm8_AL, u32::from(port), AL))
}

/// REP MOVSB.
pub(crate) fn rep_movsb() -> Instruction {
    made(Instruction::with_rep_movsb(32))
}

/// REP STOSB.
pub(crate) fn rep_stosb() -> Instruction {
    made(Instruction::with_rep_stosb(32))
}
