//! String instructions. In 64-bit code their destination is in ES, whose base is always 0, so ESI and EDI become addresses in
//! the window for as long as they run. The window begins at a multiple of 4 GiB: the lower half of such an address is the
//! guest's.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::decode::has_16_bit_addresses;

use crate::context::at;
use crate::emitter::Emitter;

/// What MOVS, CMPS, STOS, LODS or SCAS uses beside EAX and ECX.
pub(crate) struct Form {
    /// What ESI points to.
    pub(crate) source: bool,
    /// What EDI points to.
    pub(crate) destination: bool,
    /// Bytes of an element.
    pub(crate) size: u32,
    /// The opcode for bytes; that for words and doublewords is the next one.
    opcode: u8,
}

impl Form {
    /// That of `instruction`, if it is one of these.
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
            _ => None,
        }
    }

    /// The host's instruction, with RSI and RDI, and with RCX where there is a prefix to `repeat` it.
    pub(crate) fn bytes(&self, repeat: Option<u8>) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend((self.size == 2).then_some(0x66));
        bytes.extend(repeat);
        bytes.push(if self.size == 1 { self.opcode } else { self.opcode + 1 });
        bytes
    }
}

/// The prefix that repeats `instruction`.
pub(crate) fn repeat_prefix(instruction: &Instruction) -> Option<u8> {
    if instruction.has_repne_prefix() {
        return Some(0xf2);
    }
    instruction.has_rep_prefix().then_some(0xf3)
}

/// Translates `instruction`. False, and what was written is to be thrown away, if it is left to the interpreter.
/// It accesses memory of the user too if it is supervisor code that is `for_user`.
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
        // R10 has the number of iterations. Nothing is done for a count of 0, which counts as one instruction all the same.
        let branch = emitter.loop_if(0xe3);
        emitter.copy_64(Register::R10, Register::RCX);
        if compares(instruction) {
            // They mostly end long before their count does, which often is the largest number there is.
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

/// CMPS and SCAS, which a repeat prefix repeats as long as they find the same, or something else.
pub(crate) fn compares(instruction: &Instruction) -> bool {
    use iced_x86::Mnemonic as M;
    matches!(
        instruction.mnemonic(),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Scasb | M::Scasw | M::Scasd
    )
}

/// The registers that have addresses.
fn used(source: bool, destination: bool) -> impl Iterator<Item = Register> {
    [(source, Register::RSI), (destination, Register::RDI)]
        .into_iter()
        .filter_map(|(is_used, register)| is_used.then_some(register))
}

/// Faults if these were not all the iterations. R9 is used.
pub(crate) fn check_end(emitter: &mut Emitter) {
    emitter.load_field(Register::R9, at::AFTER_REPEATING);
    let there = MemoryOperand::with_base(Register::R9);
    emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, there));
}

/// Takes the iterations from the budget: R10 has their count at the beginning, RCX what is left of it. Each counts as one instruction;
/// one was counted at the block's entry. R10 is used.
pub(crate) fn take_iterations(emitter: &mut Emitter) {
    emitter.add_64(Register::R12, Register::R12, Register::RCX, 0);
    // NOT is one less than the negative.
    emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R10));
    emitter.add_64(Register::R12, Register::R12, Register::R10, 2);
}

/// Faults if the budget is not enough for as many iterations as `count` says. R9 is used.
pub(crate) fn check_budget(emitter: &mut Emitter, count: Register) {
    emitter.copy_64(Register::R9, count);
    emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R9));
    // R12 less the iterations, but one.
    let rest =
        MemoryOperand::with_base_index_scale_displ_size(Register::R12, Register::R9, 1, 2, 1);
    emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, rest));
}
