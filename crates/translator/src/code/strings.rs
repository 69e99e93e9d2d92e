//! String instructions of flat code. In 64-bit code the base of ES, through which EDI goes, is always 0. So
//! ESI and EDI become addresses in the window while such an instruction runs. The window begins at a multiple
//! of 4 GiB, so the lower half of such an address is the guest's offset.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::decode::has_16_bit_addresses;

use crate::code::emitter::Emitter;
use crate::context::at;

/// The prefix for elements of 64 bits.
const REX_W: u8 = 0x48;

/// The form of MOVS, CMPS, STOS, LODS or SCAS.
pub(crate) struct Form {
    /// Whether it accesses memory at ESI.
    pub(crate) source: bool,
    /// Whether it accesses memory at EDI.
    pub(crate) destination: bool,
    /// Bytes of an element.
    pub(crate) size: u32,
    /// The opcode for bytes. The one for larger elements follows it.
    opcode: u8,
}

impl Form {
    /// Returns the form of `instruction`, if it is a string instruction that is translated.
    pub(crate) fn of(instruction: &Instruction) -> Option<Form> {
        let form =
            |source, destination, opcode, size| Some(Form { source, destination, size, opcode });
        match instruction.code() {
            Code::Movsb_m8_m8 => form(true, true, 0xa4, 1),
            Code::Movsw_m16_m16 => form(true, true, 0xa4, 2),
            Code::Movsd_m32_m32 => form(true, true, 0xa4, 4),
            Code::Cmpsb_m8_m8 => form(true, true, 0xa6, 1),
            Code::Cmpsw_m16_m16 => form(true, true, 0xa6, 2),
            Code::Cmpsd_m32_m32 => form(true, true, 0xa6, 4),
            Code::Stosb_m8_AL => form(false, true, 0xaa, 1),
            Code::Stosw_m16_AX => form(false, true, 0xaa, 2),
            Code::Stosd_m32_EAX => form(false, true, 0xaa, 4),
            Code::Lodsb_AL_m8 => form(true, false, 0xac, 1),
            Code::Lodsw_AX_m16 => form(true, false, 0xac, 2),
            Code::Lodsd_EAX_m32 => form(true, false, 0xac, 4),
            Code::Scasb_AL_m8 => form(false, true, 0xae, 1),
            Code::Scasw_AX_m16 => form(false, true, 0xae, 2),
            Code::Scasd_EAX_m32 => form(false, true, 0xae, 4),
            Code::Movsq_m64_m64 => form(true, true, 0xa4, 8),
            Code::Cmpsq_m64_m64 => form(true, true, 0xa6, 8),
            Code::Stosq_m64_RAX => form(false, true, 0xaa, 8),
            Code::Lodsq_RAX_m64 => form(true, false, 0xac, 8),
            Code::Scasq_RAX_m64 => form(false, true, 0xae, 8),
            _ => None,
        }
    }

    /// Returns the bytes of the host's instruction, which uses RSI and RDI, and RCX if the prefix `repeat`
    /// repeats it.
    pub(crate) fn bytes(&self, repeat: Option<u8>) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((self.size == 2).then_some(0x66));
        bytes.extend(repeat);
        bytes.extend((self.size == 8).then_some(REX_W));
        bytes.push(if self.size == 1 { self.opcode } else { self.opcode + 1 });
        bytes
    }
}

/// Returns the prefix that repeats `instruction`.
pub(crate) fn repeat_prefix(instruction: &Instruction) -> Option<u8> {
    if instruction.has_repne_prefix() {
        return Some(0xf2);
    }
    instruction.has_rep_prefix().then_some(0xf3)
}

/// Translates `instruction`, which also accesses memory of users if it is supervisor code and `for_user`.
/// Returns false if it is left to the interpreter; the caller then throws away what was written.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction, for_user: bool) -> bool {
    let Some(form) = Form::of(instruction) else { return false };
    let Form { source, destination, .. } = form;
    let is_flat =
        matches!(instruction.memory_segment(), Register::DS | Register::ES | Register::SS);
    if source && !is_flat || has_16_bit_addresses(instruction) {
        return false;
    }
    let repeat = repeat_prefix(instruction);
    let skip = repeat.map(|_| {
        // R10 holds the number of iterations. A count of 0 executes none, but counts as one instruction all
        // the same.
        let branch = emitter.loop_if(0xe3);
        emitter.copy_64(Register::R10, Register::RCX);
        if compares(instruction) {
            // CMPS and SCAS mostly end long before their count does, which is often the largest number there
            // is.
            emitter.call(at::CHECK_COUNT);
        }
        check_budget(emitter, Register::RCX);
        branch
    });
    if !for_user {
        emitter.load_field(Register::R9, at::WINDOW);
    }
    for register in used(source, destination) {
        if for_user {
            emitter.load_region(register.full_register32());
        }
        emitter.add_64(register, register, Register::R9, 0);
    }
    emitter.bytes(&form.bytes(repeat));
    for register in used(source, destination) {
        let low = if register == Register::RSI { Register::ESI } else { Register::EDI };
        emitter.copy(low, low);
    }
    if let Some(skip) = skip {
        if !compares(instruction) {
            check_end(emitter);
        }
        take_iterations(emitter);
        emitter.land(skip);
    }
    true
}

/// Returns whether `instruction` is CMPS or SCAS, which a repeat prefix repeats only while elements are
/// equal, or unequal.
pub(crate) fn compares(instruction: &Instruction) -> bool {
    use iced_x86::Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq | M::Scasb | M::Scasw | M::Scasd | M::Scasq
    )
}

/// Returns the registers that hold addresses.
pub(crate) fn used(source: bool, destination: bool) -> impl Iterator<Item = Register> {
    [(source, Register::RSI), (destination, Register::RDI)]
        .into_iter()
        .filter_map(|(is_used, register)| is_used.then_some(register))
}

/// Faults if the iterations so far are only some of those that the guest's count demands. Uses R9.
pub(crate) fn check_end(emitter: &mut Emitter) {
    emitter.load_field(Register::R9, at::AFTER_REPEATING);
    let there = MemoryOperand::with_base(Register::R9);
    emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, there));
}

/// Subtracts the iterations from the budget. Before the instruction R10 held their count; RCX holds the rest
/// of it. Each iteration counts as one instruction, and one was subtracted at the block's entry. Uses R9 and R10.
pub(crate) fn take_iterations(emitter: &mut Emitter) {
    if let Some(counters) = emitter.repeat_counters.take() {
        emitter.count_iterations(counters);
    }
    emitter.add_64(Register::R12, Register::R12, Register::RCX, 0);
    // NOT gives the negative less 1.
    emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R10));
    emitter.add_64(Register::R12, Register::R12, Register::R10, 2);
}

/// Faults if the budget is less than the number of iterations in `count`. Uses R9.
pub(crate) fn check_budget(emitter: &mut Emitter, count: Register) {
    emitter.copy_64(Register::R9, count);
    emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R9));
    // R12 less the iterations, plus the one that was subtracted already.
    let rest =
        MemoryOperand::with_base_index_scale_displ_size(Register::R12, Register::R9, 1, 2, 1);
    emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, rest));
}
