//! String instructions. In 64-bit code their destination is in ES, whose base is always 0, so ESI and EDI become addresses in
//! the window for as long as they run. The window begins at a multiple of 4 GiB: the lower half of such an address is the
//! guest's.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use ring3_x86::decode::has_16_bit_addresses;

use crate::context::at;
use crate::emitter::Emitter;

/// What an instruction uses beside EAX and ECX.
struct Uses {
    source: bool,
    destination: bool,
    /// The opcode for bytes; that for words and doublewords is the next one.
    opcode: u8,
}

/// Translates `instruction`. False, and what was written is to be thrown away, if it is left to the interpreter.
/// It accesses memory of the user too if it is supervisor code that is `for_user`.
pub(crate) fn translate(emitter: &mut Emitter, instruction: &Instruction, for_user: bool) -> bool {
    let uses = |source, destination, opcode| Uses { source, destination, opcode };
    let (Uses { source, destination, opcode }, size) = match instruction.code() {
        Code::Movsb_m8_m8 => (uses(true, true, 0xa4), 1),
        Code::Movsw_m16_m16 => (uses(true, true, 0xa4), 2),
        Code::Movsd_m32_m32 => (uses(true, true, 0xa4), 4),
        Code::Cmpsb_m8_m8 => (uses(true, true, 0xa6), 1),
        Code::Cmpsw_m16_m16 => (uses(true, true, 0xa6), 2),
        Code::Cmpsd_m32_m32 => (uses(true, true, 0xa6), 4),
        Code::Stosb_m8_AL => (uses(false, true, 0xaa), 1),
        Code::Stosw_m16_AX => (uses(false, true, 0xaa), 2),
        Code::Stosd_m32_EAX => (uses(false, true, 0xaa), 4),
        Code::Lodsb_AL_m8 => (uses(true, false, 0xac), 1),
        Code::Lodsw_AX_m16 => (uses(true, false, 0xac), 2),
        Code::Lodsd_EAX_m32 => (uses(true, false, 0xac), 4),
        Code::Scasb_AL_m8 => (uses(false, true, 0xae), 1),
        Code::Scasw_AX_m16 => (uses(false, true, 0xae), 2),
        Code::Scasd_EAX_m32 => (uses(false, true, 0xae), 4),
        _ => return false,
    };
    let is_flat =
        matches!(instruction.memory_segment(), Register::DS | Register::ES | Register::SS);
    if source && !is_flat || has_16_bit_addresses(instruction) {
        return false;
    }
    let repeat = if instruction.has_repne_prefix() {
        Some(0xf2)
    } else {
        instruction.has_rep_prefix().then_some(0xf3)
    };
    let mut bytes = Vec::new();
    bytes.extend((size == 2).then_some(0x66));
    bytes.extend(repeat);
    bytes.push(if size == 1 { opcode } else { opcode + 1 });

    let skip = repeat.map(|_| {
        // R10 has the number of iterations. Nothing is done for a count of 0, which counts as one instruction all the same.
        let branch = emitter.loop_if(0xe3);
        emitter.copy_64(Register::R10, Register::RCX);
        if compares(instruction) {
            // They mostly end long before their count does, which often is the largest number there is.
            emitter.call(at::CHECK_COUNT);
        }
        check_budget(emitter);
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
    emitter.bytes(&bytes);
    for register in used(source, destination) {
        let low = if register == Register::RSI { Register::ESI } else { Register::EDI };
        emitter.copy(low, low);
    }
    if let Some(skip) = skip {
        if !compares(instruction) {
            // Faults if these were not all the iterations.
            emitter.load_field(Register::R9, at::AFTER_REPEATING);
            let there = MemoryOperand::with_base(Register::R9);
            emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, there));
        }
        // Each iteration counts as one instruction; one was counted at the block's entry. NOT is one less than the
        // negative.
        emitter.add_64(Register::R12, Register::R12, Register::RCX, 0);
        emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R10));
        emitter.add_64(Register::R12, Register::R12, Register::R10, 2);
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

/// Faults if the budget is not enough for all iterations.
fn check_budget(emitter: &mut Emitter) {
    emitter.copy_64(Register::R9, Register::RCX);
    emitter.instruction(Instruction::with1(Code::Not_rm64, Register::R9));
    // R12 less the iterations, but one.
    let rest =
        MemoryOperand::with_base_index_scale_displ_size(Register::R12, Register::R9, 1, 2, 1);
    emitter.instruction(Instruction::with2(Code::Mov_r8_rm8, Register::R9L, rest));
}
