//! The results that the manual leaves undefined: flags, and sometimes the destination, which an instruction
//! may set in any way (SDM vol. 2, "Flags Affected" of each instruction; the same in AMD's manual, vol. 3).
//!
//! Processors differ in them, between vendors and between generations. So tests that compare with a real
//! processor, or engines with each other, ignore them:
//!
//! ```
//! use iced_x86::{Decoder, DecoderOptions};
//! use ring3_x86::flags::Eflags;
//! use ring3_x86::undefined::undefined;
//!
//! let shift = Decoder::new(32, &[0xd3, 0xe0], DecoderOptions::NONE).decode(); // shl eax, cl
//! assert_eq!(undefined(&shift, 1).flags, Eflags::AF);
//! assert_eq!(undefined(&shift, 5).flags, Eflags::AF | Eflags::OF);
//! assert_eq!(undefined(&shift, 32).flags, Eflags::empty());
//! ```

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register, RflagsBits};

use crate::flags::Eflags;

/// The vendor whose processors' results ours leaves in flags that the manual does not define. A translator
/// executes much code on the host's processor, whose results reach guest memory when interrupts push the
/// flags. The interpreter leaves the same results, so that runs on both engines are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Vendor {
    /// Shifts clear AF. Shifts and rotates leave OF as after their first bit, except that ROL and ROR of a
    /// register by a number do not change it. A multiplication sets SF and PF by the product's low half, and
    /// clears ZF and AF. A division changes nothing. BSF and BSR set PF by the number that they find, and
    /// clear CF, OF, SF and AF. TZCNT, LZCNT and the instructions of BMI1 and BMI2 clear the flags that are
    /// undefined after them.
    ///
    /// VCVTPS2PH raises its own exceptions before those of its access to memory. It sets PE for a denormal even if
    /// underflow is unmasked.
    #[default]
    Intel,
    /// Shifts set AF. A multiplication changes only CF and OF, and BSF and BSR change only ZF. A division sets AF, and clears SF, ZF and PF.
    /// ANDN, BLSR, BLSMSK, BLSI and BZHI set PF by their result, and clear AF. So does BEXTR, but it sets AF, and
    /// clears SF. TZCNT and LZCNT clear PF, AF and SF, and do not change OF.
    ///
    /// VCVTPS2PH raises the exceptions of its access to memory before its own, which then leave no flags in MXCSR
    /// (SDM vol. 3, 6.9: their order is up to the processor).
    ///
    /// FXSAVE stores zeros for the addresses of the last x87 instruction and its operand, and for its opcode,
    /// unless an unmasked exception is pending (APM vol. 5, FXSAVE). This is how a translator saves the
    /// host's registers. FNSTENV and FNSAVE store zeros here as well, although they always store the
    /// addresses on AMD's processors. So only an instruction that raises an unmasked exception leaves its
    /// address, with that of its own operand, and FLDCW, by which an earlier exception becomes pending, leaves
    /// zeros.
    Amd,
    /// AMD's processors since Zen 4: as [`Vendor::Amd`], but BSF and BSR leave the flags of [`Vendor::Intel`].
    AmdZen4,
}

impl Vendor {
    /// Returns the vendor of the host's processor. For other vendors and other architectures it is the most
    /// frequent one.
    #[cfg(target_arch = "x86_64")]
    pub fn of_host() -> Vendor {
        let basic = std::arch::x86_64::__cpuid(0);
        let name = [basic.ebx, basic.edx, basic.ecx].map(u32::to_le_bytes);
        match name.as_flattened() {
            b"AuthenticAMD" | b"HygonGenuine" => Vendor::of_amd(std::arch::x86_64::__cpuid(1).eax),
            _ => Vendor::Intel,
        }
    }

    /// Returns the kind of the processor of AMD for whose version CPUID returns `signature` (APM vol. 3, E.3.2).
    fn of_amd(signature: u32) -> Vendor {
        let family = (signature >> 8 & 0xf) + (signature >> 20 & 0xff);
        let model = signature >> 4 & 0xf | signature >> 12 & 0xf0;
        match (family, model) {
            // Family 19h is Zen 3 and Zen 4.
            (0x19, 0x10..=0x1f | 0x60..=0x7f | 0xa0..=0xaf) | (0x1a.., _) => Vendor::AmdZen4,
            _ => Vendor::Amd,
        }
    }

    /// Returns whether this is a processor of AMD.
    pub fn is_amd(self) -> bool {
        matches!(self, Vendor::Amd | Vendor::AmdZen4)
    }

    /// Returns the most frequent vendor on other hosts, which have no translator.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn of_host() -> Vendor {
        Vendor::default()
    }
}

/// The results that an instruction leaves undefined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undefined {
    /// The undefined flags.
    pub flags: Eflags,
    /// Whether the first operand is undefined.
    pub destination: bool,
}

/// The condition under which a row of the table applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// The count of a shift or rotate, of which five bits are used or, for quadwords, six, is not 0.
    Counts,
    /// The count is neither 0 nor 1.
    CountsMoreThanOne,
    /// The count is at least the operand's number of bits.
    CountsAllBits,
    /// The count is greater than the operand's number of bits.
    CountsMoreThanAllBits,
    /// The operand is a word.
    Word,
}

/// A row of the table: some instructions, and the results that they leave undefined.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The instructions.
    pub mnemonics: &'static [Mnemonic],
    /// When the row applies.
    pub when: When,
    /// The undefined flags.
    pub flags: Eflags,
    /// Whether the first operand is undefined as well.
    pub destination: bool,
    /// Why it is undefined, or what real processors do.
    pub reason: &'static str,
}

const CF: Eflags = Eflags::CF;
const PF: Eflags = Eflags::PF;
const AF: Eflags = Eflags::AF;
const ZF: Eflags = Eflags::ZF;
const SF: Eflags = Eflags::SF;
const OF: Eflags = Eflags::OF;

/// Makes a row about flags alone.
const fn flags(
    mnemonics: &'static [Mnemonic],
    when: When,
    flags: Eflags,
    reason: &'static str,
) -> Row {
    Row { mnemonics, when, flags, destination: false, reason }
}

/// Makes a row about the first operand and all status flags.
const fn everything(mnemonics: &'static [Mnemonic], when: When, reason: &'static str) -> Row {
    Row { mnemonics, when, flags: Eflags::STATUS, destination: true, reason }
}

/// The table.
pub static TABLE: &[Row] = &[
    flags(
        &[Mnemonic::And, Mnemonic::Or, Mnemonic::Xor, Mnemonic::Test],
        When::Always,
        AF,
        "there is no carry out of bit 3; processors clear AF",
    ),
    flags(
        &[Mnemonic::Mul, Mnemonic::Imul],
        When::Always,
        SF.union(ZF).union(AF).union(PF),
        "CF and OF tell whether the product fits; some processors set the others by its low half",
    ),
    flags(
        &[Mnemonic::Div, Mnemonic::Idiv],
        When::Always,
        Eflags::STATUS,
        "what the steps of the division leave",
    ),
    flags(
        &[Mnemonic::Aaa, Mnemonic::Aas],
        When::Always,
        OF.union(SF).union(ZF).union(PF),
        "decimal carry only is defined, in AF and CF",
    ),
    flags(
        &[Mnemonic::Aam, Mnemonic::Aad],
        When::Always,
        OF.union(AF).union(CF),
        "SF, ZF and PF are those of AL",
    ),
    flags(&[Mnemonic::Daa, Mnemonic::Das], When::Always, OF, "a decimal result has no sign"),
    flags(
        &[Mnemonic::Bt, Mnemonic::Bts, Mnemonic::Btr, Mnemonic::Btc],
        When::Always,
        OF.union(SF).union(AF).union(PF),
        "only CF is set; ZF stays",
    ),
    flags(
        &[Mnemonic::Bsf, Mnemonic::Bsr],
        When::Always,
        CF.union(OF).union(SF).union(AF).union(PF),
        "only ZF is set; the destination stays if the source is 0, on all processors so far",
    ),
    flags(
        &[Mnemonic::Tzcnt, Mnemonic::Lzcnt],
        When::Always,
        OF.union(SF).union(AF).union(PF),
        "only ZF and CF are set",
    ),
    flags(
        &[Mnemonic::Andn, Mnemonic::Blsr, Mnemonic::Blsmsk, Mnemonic::Blsi, Mnemonic::Bzhi],
        When::Always,
        AF.union(PF),
        "neither tells anything of the result",
    ),
    flags(&[Mnemonic::Bextr], When::Always, SF.union(AF).union(PF), "a field of bits has no sign"),
    flags(
        &[Mnemonic::Shl, Mnemonic::Sal, Mnemonic::Shr, Mnemonic::Sar],
        When::Counts,
        AF,
        "there is no carry out of bit 3",
    ),
    flags(
        &[
            Mnemonic::Shl,
            Mnemonic::Sal,
            Mnemonic::Shr,
            Mnemonic::Sar,
            Mnemonic::Rol,
            Mnemonic::Ror,
            Mnemonic::Rcl,
            Mnemonic::Rcr,
        ],
        When::CountsMoreThanOne,
        OF,
        "defined for shifts by one bit",
    ),
    flags(
        &[Mnemonic::Shl, Mnemonic::Sal, Mnemonic::Shr],
        When::CountsAllBits,
        CF,
        "the bit that left last is none of the operand's",
    ),
    flags(&[Mnemonic::Shld, Mnemonic::Shrd], When::Counts, AF, "there is no carry out of bit 3"),
    flags(
        &[Mnemonic::Shld, Mnemonic::Shrd],
        When::CountsMoreThanOne,
        OF,
        "defined for shifts by one bit",
    ),
    everything(
        &[Mnemonic::Shld, Mnemonic::Shrd],
        When::CountsMoreThanAllBits,
        "the filling operand is used up",
    ),
    Row {
        mnemonics: &[Mnemonic::Bswap],
        when: When::Word,
        flags: Eflags::empty(),
        destination: true,
        reason: "the word becomes 0 on most processors",
    },
];

/// Returns the results that `instruction` leaves undefined when it completes, with `cl` in CL.
pub fn undefined(instruction: &Instruction, cl: u8) -> Undefined {
    let mut undefined = Undefined { flags: Eflags::empty(), destination: false };
    for row in TABLE {
        if row.mnemonics.contains(&instruction.mnemonic()) && row.when.holds(instruction, cl) {
            undefined.flags |= row.flags;
            undefined.destination |= row.destination;
        }
    }
    undefined
}

/// Returns which flags are undefined after `instruction` was executed, if `before` were undefined before it.
/// CL was `cl` before it, and EIP is `eip` after it. Flags count as defined where this cannot be determined.
pub fn undefined_after(instruction: &Instruction, cl: u8, eip: u32, before: Eflags) -> Eflags {
    let goes_on = instruction.flow_control() == FlowControl::Next;
    if goes_on && eip != instruction.next_ip32() {
        // An exception or interrupt came, and an instruction of the handler was executed.
        return Eflags::empty();
    }
    let counts_by_cl = instruction.op_count() > 1
        && instruction.op_kind(instruction.op_count() - 1) == OpKind::Register
        && instruction.op_register(instruction.op_count() - 1) == Register::CL;
    if counts_by_cl && cl & 31 == 0 {
        // Shifts by nothing change no flags; neither do MOV and other instructions with CL in that position.
        return before;
    }
    (before - modified(instruction)) | undefined(instruction, cl).flags
}

/// Returns the status flags that an instruction writes.
fn modified(instruction: &Instruction) -> Eflags {
    const BITS: [(u32, Eflags); 6] = [
        (RflagsBits::CF, Eflags::CF),
        (RflagsBits::PF, Eflags::PF),
        (RflagsBits::AF, Eflags::AF),
        (RflagsBits::ZF, Eflags::ZF),
        (RflagsBits::SF, Eflags::SF),
        (RflagsBits::OF, Eflags::OF),
    ];
    let modified = instruction.rflags_modified();
    BITS.into_iter().filter(|(bit, _)| modified & bit != 0).map(|(_, flag)| flag).collect()
}

impl When {
    fn holds(self, instruction: &Instruction, cl: u8) -> bool {
        let count = count(instruction, cl);
        match self {
            When::Always => true,
            When::Counts => count > 0,
            When::CountsMoreThanOne => count > 1,
            When::CountsAllBits => count >= operand_bits(instruction),
            When::CountsMoreThanAllBits => count > operand_bits(instruction),
            When::Word => operand_bits(instruction) == 16,
        }
    }
}

/// Returns the count of a shift or rotate: its last operand, modulo 32, or modulo 64 for quadwords.
fn count(instruction: &Instruction, cl: u8) -> u32 {
    let last = instruction.op_count().saturating_sub(1);
    let count = match instruction.op_kind(last) {
        OpKind::Immediate8 => instruction.immediate8(),
        OpKind::Register if instruction.op_register(last) == Register::CL => cl,
        _ => 0,
    };
    u32::from(count) & if operand_bits(instruction) == 64 { 63 } else { 31 }
}

/// Returns the number of bits of the first operand.
fn operand_bits(instruction: &Instruction) -> u32 {
    let bytes = match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size(),
        _ => instruction.memory_size().size(),
    };
    bytes as u32 * 8
}
