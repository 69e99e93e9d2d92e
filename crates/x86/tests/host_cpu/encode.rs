//! Random encodings of an instruction form.

use iced_x86::{
    Code, Decoder, DecoderOptions, EncodingKind, FlowControl, Instruction, MandatoryPrefix,
    Mnemonic, OpCodeInfo, OpCodeOperandKind, OpCodeTableKind, OpKind, Register,
};
use ring3_hostcpu::Layout;

use crate::common::random::Random;
use crate::scene::{address, number};

/// The longest instruction.
const MAX_LENGTH: usize = 15;

/// Returns a random instruction of the form `code` at address `ip` in code of `bits` bits, as bytes and decoded.
/// Returns None if the random bytes were another form; then try again.
pub(crate) fn encode(
    random: &mut Random,
    code: Code,
    ip: u64,
    bits: u32,
) -> Option<(Vec<u8>, Instruction)> {
    let mut bytes = prefixes(random, code, bits);
    let form = code.op_code();
    match form.table() {
        _ if form.encoding() == EncodingKind::VEX => bytes.extend(vex(random, form, bits)),
        OpCodeTableKind::T0F => bytes.push(0x0f),
        OpCodeTableKind::T0F38 => bytes.extend([0x0f, 0x38]),
        OpCodeTableKind::T0F3A => bytes.extend([0x0f, 0x3a]),
        OpCodeTableKind::Normal => {}
        other => panic!("{code:?} is in opcode table {other:?}"),
    }
    let opcode = form.op_code();
    if form.op_code_len() == 2 {
        bytes.push((opcode >> 8) as u8);
    }
    let in_opcode = form.op_kinds().iter().any(|kind| {
        use OpCodeOperandKind as Kind;
        matches!(kind, Kind::r8_opcode | Kind::r16_opcode | Kind::r32_opcode | Kind::r64_opcode)
    });
    bytes.push(opcode as u8 | if in_opcode { random.below(8) as u8 } else { 0 });
    if form.op_code_len() == 1 {
        bytes.push(modrm(random, form.group_index()));
    }
    while bytes.len() < MAX_LENGTH {
        bytes.push(random.bits() as u8);
    }
    bytes.truncate(MAX_LENGTH);

    let mut decoder = Decoder::with_ip(bits, &bytes, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let uses_fs = bits == 64 && instruction.segment_prefix() == Register::FS;
    if instruction.code() != code || loads_fs_or_gs(&instruction) || uses_fs {
        return None;
    }
    let constants = decoder.get_constant_offsets(&instruction);
    bytes.truncate(instruction.len());
    let mut put = |offset: usize, size: usize, value: u64| {
        bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    };
    if constants.has_displacement() {
        // Without registers the displacement is the address.
        let is_address = instruction.memory_base() == Register::None
            && instruction.memory_index() == Register::None;
        let value = if instruction.is_ip_rel_memory_operand() {
            address(random, bits).wrapping_sub(instruction.next_ip())
        } else if is_address {
            address(random, bits)
        } else {
            number(random, bits)
        };
        put(constants.displacement_offset(), constants.displacement_size(), value);
    }
    if constants.has_immediate() {
        let is_branch = matches!(
            instruction.op0_kind(),
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
        );
        let value =
            if is_branch { branch(random, &instruction, bits) } else { number(random, bits) };
        put(constants.immediate_offset(), constants.immediate_size(), value);
    }
    if constants.has_immediate2() {
        put(constants.immediate_offset2(), constants.immediate_size2(), number(random, bits));
    }
    let instruction = Decoder::with_ip(bits, &bytes, ip, DecoderOptions::NONE).decode();
    (instruction.code() == code).then_some((bytes, instruction))
}

/// Returns whether an instruction loads FS or GS, which the host's process needs.
fn loads_fs_or_gs(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Mov
        && matches!(instruction.op0_register(), Register::FS | Register::GS)
}

/// Returns the prefixes that the form needs, and sometimes others.
fn prefixes(random: &mut Random, code: Code, bits: u32) -> Vec<u8> {
    let form = code.op_code();
    let is_long = bits == 64;
    let mut bytes = Vec::with_capacity(MAX_LENGTH);
    if random.percent(12) {
        bytes.push(if is_long {
            random.pick(&[0x26, 0x2e, 0x36, 0x3e, 0x65, 0x65])
        } else {
            random.pick(&[0x26, 0x2e, 0x36, 0x3e, 0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65])
        });
    }
    if form.can_use_lock_prefix() && random.percent(20) {
        bytes.push(0xf0);
    }
    // In 64-bit code AMD's processors take the size of a near branch from this prefix; Intel's and ours ignore it.
    let is_ambiguous = is_long && !matches!(code.flow_control(), FlowControl::Next);
    let has_vex = form.encoding() == EncodingKind::VEX;
    if form.operand_size() == 16 || !is_ambiguous && !has_vex && random.percent(3) {
        bytes.push(0x66);
    }
    if form.address_size() == bits / 2 || random.percent(4) {
        bytes.push(0x67);
    }
    match form.mandatory_prefix() {
        _ if has_vex => {}
        MandatoryPrefix::P66 => bytes.push(0x66),
        MandatoryPrefix::PF3 => bytes.push(0xf3),
        MandatoryPrefix::PF2 => bytes.push(0xf2),
        MandatoryPrefix::None | MandatoryPrefix::PNP => {
            let chance = match form.mnemonic() {
                // AMD's processors take the condition from the prefix.
                Mnemonic::Loope | Mnemonic::Loopne => 0,
                _ if form.can_use_rep_prefix() || form.can_use_repne_prefix() => 70,
                // A repeat prefix without a meaning is ignored.
                _ => 2,
            };
            if random.percent(chance) {
                bytes.push(random.pick(&[0xf2, 0xf3]));
            }
        }
    }
    // Their order does not matter.
    for last in (1..bytes.len()).rev() {
        bytes.swap(last, random.below(last as u32 + 1) as usize);
    }
    if is_long && !has_vex {
        // The last of all is REX.
        let needs_width = form.operand_size() == 64 && random.percent(90);
        if needs_width || random.percent(60) {
            bytes.push(0x40 | u8::from(needs_width) << 3 | random.below(8) as u8);
        } else if random.percent(10) {
            bytes.push(0x40 | random.below(16) as u8);
        }
    }
    bytes
}

/// Returns a VEX prefix of the form (SDM vol. 2, 2.3.5).
fn vex(random: &mut Random, form: &OpCodeInfo, bits: u32) -> Vec<u8> {
    let map = match form.table() {
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        _ => 3,
    };
    let prefix = match form.mandatory_prefix() {
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
        MandatoryPrefix::None | MandatoryPrefix::PNP => 0,
    };
    let has_vvvv = form.op_kinds().iter().any(|kind| {
        use OpCodeOperandKind as Kind;
        matches!(kind, Kind::r32_vvvv | Kind::r64_vvvv | Kind::xmm_vvvv | Kind::ymm_vvvv)
    });
    // A register's number is stored with all bits inverted.
    let vvvv = if has_vvvv { random.below(16) as u8 } else { 15 };
    let is_long = if form.is_lig() { random.percent(50) } else { form.l() == 1 };
    let last = vvvv << 3 | u8::from(is_long) << 2 | prefix;
    // Outside 64-bit code these bits distinguish VEX from LES and LDS.
    let extensions =
        if bits == 64 { random.pick(&[0xe0, 0xe0, 0x60, 0xa0, 0xc0, 0x00]) } else { 0xe0 };
    let is_w = if form.is_wig() { random.percent(30) } else { form.w() == 1 };
    if map == 1 && !is_w && extensions & 0x60 == 0x60 && random.percent(70) {
        vec![0xc5, extensions & 0x80 | last | if bits == 64 { 0 } else { 0x40 }]
    } else {
        vec![0xc4, extensions | map, u8::from(is_w) << 7 | last]
    }
}

/// Returns a ModRM byte, or the byte that stands in its place.
fn modrm(random: &mut Random, group: i32) -> u8 {
    let byte = random.bits() as u8;
    let byte = if random.percent(25) { byte | 0xc0 } else { byte };
    match u8::try_from(group) {
        Ok(group) => byte & 0xc7 | group << 3,
        Err(_) => byte,
    }
}

/// Returns the distance of a branch, usually to an address in the code region.
fn branch(random: &mut Random, instruction: &Instruction, bits: u32) -> u64 {
    if random.percent(20) {
        return number(random, bits);
    }
    let code = Layout::FIXED.code;
    u64::from(code.start + random.below(code.len)).wrapping_sub(instruction.next_ip())
}
