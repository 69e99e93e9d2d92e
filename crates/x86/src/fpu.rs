//! The state of the x87 FPU (SDM vol. 1, 8.1): its registers, and the behaviour of the register stack, the
//! tags and the exception flags.
//!
//! The instructions are in `exec/x87`, the arithmetic is in [`crate::softfloat`].

use serde::{Deserialize, Serialize};

use crate::softfloat::{Class, Context, F80, Flags};

/// The bits of the status word (SDM vol. 1, 8.1.3). The lowest six are the exception
/// flags ([`Flags`]).
pub mod status {
    /// Stack fault: the invalid operation is a stack overflow or underflow.
    pub const SF: u16 = 1 << 6;
    /// Exception summary: an unmasked exception is pending.
    pub const ES: u16 = 1 << 7;
    /// Condition code 0.
    pub const C0: u16 = 1 << 8;
    /// Condition code 1: rounded up; after a stack fault, overflow rather than underflow.
    pub const C1: u16 = 1 << 9;
    /// Condition code 2.
    pub const C2: u16 = 1 << 10;
    /// Top of stack, three bits.
    pub const TOP: u16 = 7 << TOP_SHIFT;
    /// The position of the lowest bit of TOP.
    pub const TOP_SHIFT: u32 = 11;
    /// Condition code 3.
    pub const C3: u16 = 1 << 14;
    /// Busy: the same as ES since the 387.
    pub const B: u16 = 1 << 15;
    /// All condition codes.
    pub const CODES: u16 = C0 | C1 | C2 | C3;
}

/// The control word after FNINIT: extended precision, round to nearest, all exceptions masked.
const CONTROL_INIT: u16 = 0x037f;
/// The bits of the control word that can be loaded: masks, precision, rounding, infinity.
const CONTROL_WRITABLE: u16 = 0x1f3f;
/// The reserved bit of the control word that is always set.
const CONTROL_ONE: u16 = 0x0040;

/// The opcode register holds the low three bits of the first opcode byte and all of the second.
const OPCODE_BITS: u16 = 0x07ff;

/// The values of a register's tag (SDM vol. 1, figure 8-7).
mod tag {
    pub(super) const VALID: u16 = 0;
    pub(super) const ZERO: u16 = 1;
    pub(super) const SPECIAL: u16 = 2;
    pub(super) const EMPTY: u16 = 3;
}

/// The address of an instruction or an operand (SDM vol. 1, 8.1.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The selector of the segment.
    pub selector: u16,
    /// The offset in the segment, of which 32-bit formats store the lower half.
    pub offset: u64,
}

impl Pointer {
    /// Returns the linear address in real mode, which is the form stored there.
    fn real_mode_linear(self) -> u32 {
        (u32::from(self.selector) << 4).wrapping_add(self.offset as u32)
    }
}

/// The fields of the environment as FNSTENV stores them, the first at the lowest address, each in a word or
/// doubleword (SDM vol. 1, 8.1.10). The word is the low half of the doubleword.
pub type Environment = [u32; 7];

/// The upper half of a doubleword whose field is only its lower half.
const RESERVED_HALF: u32 = 0xffff_0000;

/// The x87 FPU's registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fpu {
    /// R0 to R7, by their physical number.
    registers: [F80; 8],
    /// Bit n is set if Rn is not empty.
    in_use: u8,
    control: u16,
    /// The status word, including TOP, ES and B.
    status: u16,
    /// The address of the last instruction that is not a control instruction.
    instruction: Pointer,
    /// The memory operand of the last instruction that had one and raised an unmasked exception. Newer
    /// processors note no others, and report this (SDM vol. 2, CPUID, leaf 7, EBX bit 6).
    operand: Pointer,
    /// The memory operand of the present instruction.
    #[serde(skip)]
    accessed: Option<Pointer>,
    /// The opcode register (SDM vol. 1, 8.1.9). It only holds the value that was loaded: processors since the
    /// Pentium 4 write it only for unmasked exceptions, and handlers read the code at the instruction
    /// pointer.
    opcode: u16,
    /// Whether IGNNE# is active: waiting instructions ignore the pending exception.
    ignores_exception: bool,
}

impl Default for Fpu {
    /// Makes the state after FNINIT, with all registers zero.
    fn default() -> Self {
        Fpu {
            registers: [F80::ZERO; 8],
            in_use: 0,
            control: CONTROL_INIT,
            status: 0,
            instruction: Pointer::default(),
            operand: Pointer::default(),
            accessed: None,
            opcode: 0,
            ignores_exception: false,
        }
    }
}

impl Fpu {
    /// Performs FNINIT: the state becomes that of [`Fpu::default`], except for the contents of the registers,
    /// which are now empty.
    pub fn init(&mut self) {
        *self = Fpu { registers: self.registers, ..Fpu::default() };
    }

    /// Returns whether the methods here can make this state, in contrast to one read from a damaged file.
    pub fn is_valid(&self) -> bool {
        let mut same = self.clone();
        same.set_control(self.control);
        same.set_status(self.status);
        same == *self && self.opcode & !OPCODE_BITS == 0
    }

    // Control and status ------------------------------------------------

    /// The control word.
    pub fn control(&self) -> u16 {
        self.control
    }

    /// Sets the control word; unmasking a raised exception makes it pending.
    pub fn set_control(&mut self, word: u16) {
        self.control = word & CONTROL_WRITABLE | CONTROL_ONE;
        self.update_summary();
    }

    /// The status word.
    pub fn status(&self) -> u16 {
        self.status
    }

    /// Sets the status word, except for ES and B, which follow from flags and masks.
    pub fn set_status(&mut self, word: u16) {
        self.status = word;
        self.update_summary();
    }

    /// Sets the condition codes in `mask` to those of `codes`.
    pub(crate) fn set_codes(&mut self, mask: u16, codes: u16) {
        self.status = self.status & !mask | codes & mask;
    }

    /// Clears the exception flags and SF (FNCLEX).
    pub(crate) fn clear_exceptions(&mut self) {
        self.set_status(self.status & !(Flags::ALL.bits() | status::SF));
    }

    /// Masks all exceptions (FNSTENV, after storing).
    pub(crate) fn mask_exceptions(&mut self) {
        self.set_control(self.control | Flags::ALL.bits());
    }

    /// Returns whether an unmasked exception is pending, which the next waiting instruction reports.
    pub fn has_pending_exception(&self) -> bool {
        self.status & status::ES != 0
    }

    /// Makes waiting instructions ignore the exception that is pending now.
    pub(crate) fn ignore_pending_exception(&mut self) {
        self.ignores_exception = self.has_pending_exception();
    }

    /// Returns whether waiting instructions ignore the pending exception because IGNNE# is active (SDM vol.
    /// 1, D.2.1.2).
    pub fn ignores_exception(&self) -> bool {
        self.ignores_exception
    }

    /// Returns whether the invalid-operation exception is masked.
    pub(crate) fn masks_invalid(&self) -> bool {
        Flags::from_word(self.control).contains(Flags::INVALID)
    }

    /// Updates ES and B, which say whether an unmasked exception is raised. Without one there is nothing to
    /// ignore.
    fn update_summary(&mut self) {
        let pending = Flags::from_word(self.status).difference(Flags::from_word(self.control));
        self.status &= !(status::ES | status::B);
        if pending.is_empty() {
            self.ignores_exception = false;
        } else {
            self.status |= status::ES | status::B;
        }
    }

    /// Returns the settings for an operation that the control word selects.
    pub(crate) fn context(&self) -> Context {
        Context::new(self.control)
    }

    /// Stores the results of an operation in the status word: its exceptions, and C1.
    pub(crate) fn conclude(&mut self, context: Context) {
        self.set_codes(status::C1, if context.rounded_up { status::C1 } else { 0 });
        self.raise(context.raised.bits());
    }

    /// Raises exceptions without changing C1.
    pub(crate) fn raise(&mut self, flags: u16) {
        if flags != 0 {
            self.set_status(self.status | flags);
            if self.has_pending_exception()
                && let Some(operand) = self.accessed
            {
                self.operand = operand;
            }
        }
    }

    // The register stack ------------------------------------------------

    /// The number of the physical register that is ST(0).
    pub fn top(&self) -> u8 {
        ((self.status & status::TOP) >> status::TOP_SHIFT) as u8
    }

    /// Makes physical register `number` (modulo 8) ST(0).
    pub(crate) fn set_top(&mut self, number: u8) {
        self.status = self.status & !status::TOP | u16::from(number & 7) << status::TOP_SHIFT;
    }

    /// The physical register that is ST(`i`).
    #[inline(always)]
    fn physical(&self, i: u8) -> usize {
        usize::from(self.top().wrapping_add(i) & 7)
    }

    /// ST(`i`), unless it is empty.
    #[inline(always)]
    pub fn st(&self, i: u8) -> Option<F80> {
        let number = self.physical(i);
        (self.in_use >> number & 1 != 0).then_some(self.registers[number])
    }

    /// Returns the contents of ST(`i`), even if it is empty.
    pub fn content(&self, i: u8) -> F80 {
        self.registers[self.physical(i)]
    }

    /// Sets ST(`i`), which is then not empty.
    #[inline(always)]
    pub fn set_st(&mut self, i: u8, value: F80) {
        let number = self.physical(i);
        self.registers[number] = value;
        self.in_use |= 1 << number;
    }

    /// Makes ST(`i`) empty.
    pub fn free(&mut self, i: u8) {
        self.in_use &= !(1 << self.physical(i));
    }

    /// Returns whether pushing would overflow the stack, since the register above ST(0) is not empty.
    pub(crate) fn is_full(&self) -> bool {
        self.st(7).is_some()
    }

    /// Pushes a value. The caller must check for stack overflow.
    #[inline(always)]
    pub fn push(&mut self, value: F80) {
        self.set_top(self.top().wrapping_sub(1));
        self.set_st(0, value);
    }

    /// Pops ST(0). The caller must check for stack underflow.
    #[inline(always)]
    pub fn pop(&mut self) {
        self.free(0);
        self.set_top(self.top().wrapping_add(1));
    }

    /// Raises stack underflow: an operand is an empty register (SDM vol. 1, 8.5.1.1). Returns whether the
    /// exception is masked, so that the result is the indefinite value.
    pub(crate) fn stack_underflow(&mut self) -> bool {
        self.set_codes(status::C1, 0);
        self.raise(Flags::INVALID.bits() | status::SF);
        self.masks_invalid()
    }

    /// Raises stack overflow: a value is pushed into a register that is not empty. Returns whether the
    /// exception is masked, so that the indefinite value is pushed.
    pub(crate) fn stack_overflow(&mut self) -> bool {
        self.set_codes(status::C1, status::C1);
        self.raise(Flags::INVALID.bits() | status::SF);
        self.masks_invalid()
    }

    // MMX ---------------------------------------------------------------

    /// MMX register `number`: the significand of a physical register (SDM vol. 1, 9.2.2).
    #[inline(always)]
    pub fn mm(&self, number: u8) -> u64 {
        self.registers[usize::from(number & 7)].significand
    }

    /// Sets MMX register `number`: sign and exponent become all ones (SDM vol. 3, 13.2).
    #[inline(always)]
    pub fn set_mm(&mut self, number: u8, value: u64) {
        self.registers[usize::from(number & 7)] =
            F80 { significand: value, sign_exponent: u16::MAX };
    }

    /// Makes the state change that each MMX instruction makes besides its work (SDM vol. 3, 13.2): TOP
    /// becomes 0, and no register is empty.
    #[inline(always)]
    pub(crate) fn enter_mmx(&mut self) {
        self.set_top(0);
        self.in_use = u8::MAX;
    }

    /// Performs EMMS: all registers become empty, so that x87 instructions can follow.
    pub(crate) fn leave_mmx(&mut self) {
        self.set_top(0);
        self.in_use = 0;
    }

    // The environment ---------------------------------------------------

    /// Notes the addresses of an instruction and of its memory operand.
    #[inline(always)]
    pub(crate) fn note_instruction(&mut self, instruction: Pointer, operand: Option<Pointer>) {
        self.instruction = instruction;
        self.accessed = operand;
    }

    /// Forgets the memory operand of the present instruction, which matters until its end only.
    pub(crate) fn forget_access(&mut self) {
        self.accessed = None;
    }

    /// Forgets the last instruction: its address, that of its operand, and its opcode.
    pub(crate) fn forget_instruction(&mut self) {
        (self.instruction, self.operand, self.opcode) = Default::default();
    }

    /// Returns the tag word, with two bits for each physical register, computed from the registers' contents.
    pub fn tag_word(&self) -> u16 {
        let tag = |number: usize| match self.registers[number].class() {
            _ if self.in_use >> number & 1 == 0 => tag::EMPTY,
            Class::Zero => tag::ZERO,
            Class::Normal => tag::VALID,
            _ => tag::SPECIAL,
        };
        (0..8).fold(0, |word, number| word | tag(number) << (2 * number))
    }

    /// Sets which registers are empty. The contents determine the other tags (SDM vol. 1, 8.1.7).
    pub fn set_tag_word(&mut self, word: u16) {
        self.in_use = (0..8).fold(0, |in_use, number| {
            let is_in_use = word >> (2 * number) & 3 != tag::EMPTY;
            in_use | u8::from(is_in_use) << number
        });
    }

    /// Returns the offsets of the last instruction and of its operand.
    pub(crate) fn offsets(&self) -> (u64, u64) {
        (self.instruction.offset, self.operand.offset)
    }

    /// Sets the offsets of the last instruction and of its operand.
    pub(crate) fn set_offsets(&mut self, instruction: u64, operand: u64) {
        (self.instruction.offset, self.operand.offset) = (instruction, operand);
    }

    /// Forgets the selectors of the last instruction and of its operand, which 64-bit formats do not store.
    pub(crate) fn forget_selectors(&mut self) {
        (self.instruction.selector, self.operand.selector) = (0, 0);
    }

    /// Returns the environment, with pointers in the format of protected mode, or in that of real and
    /// virtual-8086 mode (SDM vol. 1, figures 8-9 to 8-12).
    pub fn environment(&self, protected_mode: bool) -> Environment {
        let control = RESERVED_HALF | u32::from(self.control);
        let status = RESERVED_HALF | u32::from(self.status);
        let tags = RESERVED_HALF | u32::from(self.tag_word());
        let opcode = u32::from(self.opcode);
        if protected_mode {
            let Fpu { instruction, operand, .. } = *self;
            let code_selector = u32::from(instruction.selector) | opcode << 16;
            let data_selector = RESERVED_HALF | u32::from(operand.selector);
            [
                control,
                status,
                tags,
                instruction.offset as u32,
                code_selector,
                operand.offset as u32,
                data_selector,
            ]
        } else {
            let instruction = self.instruction.real_mode_linear();
            let operand = self.operand.real_mode_linear();
            let (ip_low, dp_low) = (RESERVED_HALF | instruction, RESERVED_HALF | operand);
            let ip_high = instruction >> 16 << 12 | opcode;
            let dp_high = operand >> 16 << 12;
            [control, status, tags, ip_low, ip_high, dp_low, dp_high]
        }
    }

    /// Loads an environment of the same format.
    pub fn set_environment(&mut self, environment: Environment, protected_mode: bool) {
        let [control, status, tags, ip, ip_high, dp, dp_high] = environment;
        self.control = control as u16;
        self.status = status as u16;
        self.set_control(self.control);
        self.set_tag_word(tags as u16);
        if protected_mode {
            self.instruction = Pointer { selector: ip_high as u16, offset: ip.into() };
            self.operand = Pointer { selector: dp_high as u16, offset: dp.into() };
            self.opcode = (ip_high >> 16) as u16 & OPCODE_BITS;
        } else {
            let linear = |low: u32, high: u32| u64::from(low & 0xffff | (high >> 12) << 16);
            self.instruction = Pointer { selector: 0, offset: linear(ip, ip_high) };
            self.operand = Pointer { selector: 0, offset: linear(dp, dp_high) };
            self.opcode = ip_high as u16 & OPCODE_BITS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full_stack() -> Fpu {
        let mut fpu = Fpu::default();
        for number in 0..8 {
            fpu.push(F80::from(number));
        }
        fpu
    }

    #[test]
    fn the_stack_turns() {
        let mut fpu = full_stack();
        assert_eq!(fpu.top(), 0);
        assert_eq!((fpu.st(0), fpu.st(7)), (Some(F80::from(7)), Some(F80::ZERO)));
        assert!(fpu.is_full());
        fpu.pop();
        assert_eq!((fpu.top(), fpu.st(0), fpu.st(7)), (1, Some(F80::from(6)), None));
        assert_eq!(fpu.content(7), F80::from(7));
    }

    #[test]
    fn stack_faults_tell_their_direction() {
        let mut fpu = Fpu::default();
        assert!(fpu.stack_overflow());
        assert_eq!(fpu.status(), Flags::INVALID.bits() | status::SF | status::C1);
        assert!(fpu.stack_underflow());
        assert_eq!(fpu.status(), Flags::INVALID.bits() | status::SF);
        fpu.set_control(0x037e);
        assert!(fpu.has_pending_exception());
        assert!(!fpu.stack_underflow());
    }

    #[test]
    fn unmasking_makes_an_exception_pending() {
        let mut fpu = Fpu::default();
        fpu.raise(Flags::PRECISION.bits());
        assert_eq!(fpu.status(), 0x0020);
        fpu.set_control(0x035f);
        assert_eq!(fpu.status(), 0x80a0);
        fpu.mask_exceptions();
        assert_eq!(fpu.status(), 0x0020);
        fpu.set_control(0x035f);
        fpu.clear_exceptions();
        assert_eq!(fpu.status(), 0);
    }

    #[test]
    fn tags_classify_the_contents_of_registers() {
        let mut fpu = Fpu::default();
        assert_eq!(fpu.tag_word(), 0xffff);
        fpu.push(F80::ONE);
        fpu.push(F80::ZERO);
        fpu.push(F80::INFINITY);
        fpu.push(F80::new(0, 1));
        // R7 is valid, R6 zero, R5 and R4 special, the rest empty.
        assert_eq!(fpu.tag_word(), 0b00_01_10_10_11_11_11_11);
        fpu.set_tag_word(0x0000);
        assert_eq!(fpu.tag_word() & 0xff, 0b01_01_01_01);
    }

    #[test]
    fn the_environment_of_protected_mode() {
        let mut fpu = full_stack();
        let instruction = Pointer { selector: 0x1b, offset: 0x1234_5678 };
        let operand = Pointer { selector: 0x23, offset: 0x9abc_def0 };
        fpu.note_instruction(instruction, None);
        fpu.operand = operand;
        let environment = fpu.environment(true);
        let expected = [
            0xffff_037f,
            0xffff_0000,
            0xffff_4000,
            0x1234_5678,
            0x0000_001b,
            0x9abc_def0,
            0xffff_0023,
        ];
        assert_eq!(environment, expected);
        let mut other = full_stack();
        other.set_environment(environment, true);
        assert_eq!(other, fpu);
    }

    #[test]
    fn the_environment_of_real_mode_has_linear_addresses() {
        let mut fpu = Fpu::default();
        let instruction = Pointer { selector: 0xf000, offset: 0xfff0 };
        let operand = Pointer { selector: 0x1234, offset: 0x0005 };
        fpu.note_instruction(instruction, None);
        fpu.operand = operand;
        fpu.opcode = 0x5aa;
        let environment = fpu.environment(false);
        let words = environment.map(|field| field as u16);
        assert_eq!(words, [0x037f, 0, 0xffff, 0xfff0, 0xf5aa, 0x2345, 0x1000]);
        let mut other = Fpu::default();
        other.set_environment(words.map(u32::from), false);
        assert_eq!(other.instruction, Pointer { selector: 0, offset: 0xf_fff0 });
        assert_eq!(other.operand, Pointer { selector: 0, offset: 0x1_2345 });
        assert_eq!(other.environment(false), environment);
    }

    #[test]
    fn impossible_values_are_not_valid() {
        assert!(full_stack().is_valid());
        assert!(!Fpu { control: 0x033f, ..Fpu::default() }.is_valid());
        assert!(!Fpu { status: status::ES, ..Fpu::default() }.is_valid());
        assert!(!Fpu { ignores_exception: true, ..Fpu::default() }.is_valid());
        assert!(!Fpu { opcode: 0x800, ..Fpu::default() }.is_valid());
    }
}
