//! A loop around each kind of instruction that accesses memory.

use crate::scene::{DATA_PAGES, Mode};

/// The condition under which a kind of instruction can be tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Memory: the instruction reads back what was written.
    Memory,
    /// An operand at a multiple of 16.
    Alignment,
    /// Privilege 0.
    Privilege,
    /// Descriptors: neither real mode nor virtual-8086 mode.
    Descriptors,
}

/// A kind of instruction.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) needs: Needs,
    write: fn(&mut Code),
}

/// The target of a branch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// The code after the tested instructions.
    Resume,
    /// RET, RET n and RETF.
    Return,
    ReturnAndPop,
    FarReturn,
}

impl Target {
    fn offset(self) -> u32 {
        match self {
            Target::Resume => RESUME,
            Target::Return => 0xf00,
            Target::ReturnAndPop => 0xf10,
            Target::FarReturn => 0xf20,
        }
    }
}

/// The software interrupt that only returns, and the one that ends the loop.
pub(crate) const RETURNS: u8 = 0x30;
pub(crate) const END: u8 = 0x31;

/// Offset at which the loop continues after the tested instructions.
pub(crate) const RESUME: u32 = 0x60;

/// The code of a loop, which begins its page.
pub(crate) struct Code {
    bytes: Vec<u8>,
    mode: Mode,
    /// CS, and the offset in it of the page.
    selector: u16,
    offset: u32,
    /// The offset of the operand in DS.
    data: u32,
}

impl Code {
    /// Returns a loop of `rounds` rounds around `kind`, at `offset` in the segment `selector`. Its operand is
    /// at `data` in DS. Each round sets the stack pointer to `stack`. INT [`END`] ends it.
    pub(crate) fn of(
        kind: &Kind,
        mode: Mode,
        (selector, offset): (u16, u32),
        data: u32,
        stack: u32,
        end_of_round: &[u8],
    ) -> Vec<u8> {
        let mut code = Code { bytes: Vec::new(), mode, selector, offset, data };
        (kind.write)(&mut code);
        assert!(code.bytes.len() <= RESUME as usize, "{} is short", kind.name);
        code.bytes.resize(RESUME as usize, 0x90);
        code.number(&[0xbc], stack); // MOV ESP, stack
        code.bytes(end_of_round);
        code.bytes(&[0x4d, 0x75]); // DEC EBP; JNZ to the beginning
        let distance = -(code.bytes.len() as i32 + 1);
        code.bytes(&[i8::try_from(distance).expect("it is near") as u8, 0xcd, END]);
        let size = code.size() as u8;
        for (target, bytes) in [
            (Target::Return, &[0xc3][..]),
            (Target::ReturnAndPop, &[0xc2, size, 0]),
            (Target::FarReturn, &[0xcb]),
        ] {
            let at = target.offset() as usize;
            code.bytes.resize(code.bytes.len().max(at), 0x90);
            code.bytes(bytes);
        }
        code.bytes
    }

    /// Returns the size of operands and addresses, in bytes.
    fn size(&self) -> usize {
        if self.mode.is_32_bit() { 4 } else { 2 }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// Adds an opcode with an immediate operand.
    fn number(&mut self, opcode: &[u8], number: u32) {
        self.bytes(opcode);
        let number = number.to_le_bytes();
        self.bytes.extend(&number[..self.size()]);
    }

    /// Adds an opcode with an operand at [EBX], or [BX].
    fn memory(&mut self, opcode: &[u8], register: u8) {
        self.bytes(opcode);
        self.bytes.push(register << 3 | if self.mode.is_32_bit() { 3 } else { 7 });
    }

    /// Adds an opcode with an operand `displacement` bytes after that.
    fn memory_after(&mut self, opcode: &[u8], register: u8, displacement: u8) {
        self.memory(opcode, register);
        *self.bytes.last_mut().expect("it was written") |= 0x40;
        self.bytes.push(displacement);
    }

    /// Makes ESI and EDI point to two pages.
    fn point(&mut self) {
        self.bytes(&[0x89, 0xde]); // MOV ESI, EBX
        self.bytes(&[0x8d, if self.mode.is_32_bit() { 0xbb } else { 0xbf }]); // LEA EDI, [EBX+...]
        self.number(&[], (DATA_PAGES - 1) * 0x1000);
    }

    /// Makes ESI and EDI point to two pages, and sets the count in ECX.
    fn point_and_count(&mut self, count: u32) {
        self.point();
        self.number(&[0xb9], count);
    }

    fn call(&mut self, target: Target) {
        let next = self.bytes.len() + 1 + self.size();
        self.number(&[0xe8], target.offset().wrapping_sub(next as u32));
    }

    fn far(&mut self, opcode: u8, target: Target) {
        self.number(&[opcode], self.offset + target.offset());
        self.bytes.extend(self.selector.to_le_bytes());
    }

    /// Adds code that stores an address, and the selector after it, as the operand.
    fn store_target(&mut self, target: Target) {
        self.memory(&[0xc7], 0);
        self.number(&[], self.offset + target.offset());
        let size = self.size() as u8;
        self.memory_after(&[0x8c], 1, size); // MOV [EBX+...], CS
    }
}

const AX: u8 = 0;
const CX: u8 = 1;
const DX: u8 = 2;
const AH: u8 = 4;

/// CLC: CF is the only undefined flag that the end of the loop leaves as it is.
const CLEAR_UNDEFINED: &[u8] = &[0xf8];

const fn kind(name: &'static str, needs: Needs, write: fn(&mut Code)) -> Kind {
    Kind { name, needs, write }
}

const fn any(name: &'static str, write: fn(&mut Code)) -> Kind {
    kind(name, Needs::Nothing, write)
}

/// All kinds of instructions.
#[rustfmt::skip]
pub(crate) static KINDS: &[Kind] = &[
    any("MOV r8, m", |c| c.memory(&[0x8a], CX)),
    any("MOV AH, m", |c| c.memory(&[0x8a], AH)),
    any("MOV r, m", |c| c.memory(&[0x8b], CX)),
    any("MOVZX r, m8", |c| c.memory(&[0x0f, 0xb6], CX)),
    any("MOV r, ES:m", |c| c.memory(&[0x26, 0x8b], CX)),
    any("MOV r, FS:m", |c| c.memory(&[0x64, 0x8b], CX)),
    any("MOV r, GS:m", |c| c.memory(&[0x65, 0x8b], CX)),
    any("MOV r, CS:m", |c| c.memory(&[0x2e, 0x8b], CX)),
    any("MOV AL, moffs", |c| { let data = c.data; c.number(&[0xa0], data); }),
    any("MOV moffs, EAX", |c| { let data = c.data; c.number(&[0xa3], data); }),
    any("XLAT", |c| c.bytes(&[0x31, 0xc0, 0xd7])),
    any("MOV m8, r8", |c| c.memory(&[0x88], CX)),
    any("MOV m, AH", |c| c.memory(&[0x88], AH)),
    any("MOV m, r", |c| c.memory(&[0x89], CX)),
    any("MOV m, number", |c| { c.memory(&[0xc7], 0); c.number(&[], 7); }),
    any("MOV FS:m, r", |c| c.memory(&[0x64, 0x89], CX)),
    any("ADD m, r", |c| c.memory(&[0x01], CX)),
    any("ADC m, AH", |c| c.memory(&[0x10], AH)),
    any("INC m", |c| c.memory(&[0xff], 0)),
    any("NOT m", |c| c.memory(&[0xf7], 2)),
    any("SHL m, 1", |c| c.memory(&[0xd1], 4)),
    any("ROR m, 3", |c| { c.memory(&[0xc1], 1); c.bytes(&[3]); }),
    any("SHLD m, r, 3", |c| { c.memory(&[0x0f, 0xa4], CX); c.bytes(&[3]); }),
    any("LOCK ADD m, r", |c| c.memory(&[0xf0, 0x01], CX)),
    any("LOCK XADD m, r", |c| c.memory(&[0xf0, 0x0f, 0xc1], CX)),
    any("LOCK CMPXCHG m, r", |c| c.memory(&[0xf0, 0x0f, 0xb1], CX)),
    any("CMPXCHG8B m", |c| c.memory(&[0x0f, 0xc7], 1)),
    any("XCHG m, r", |c| c.memory(&[0x87], CX)),
    any("CMP m, r", |c| c.memory(&[0x39], CX)),
    any("TEST m, r", |c| c.memory(&[0x85], CX)),
    any("IMUL r, m", |c| c.memory(&[0x0f, 0xaf], CX)),
    any("MUL m", |c| c.memory(&[0xf7], 4)),
    kind("DIV m", Needs::Memory, |c| {
        c.memory(&[0xc7], 0);
        c.number(&[], 3);
        c.bytes(&[0x31, 0xd2]); // XOR EDX, EDX
        c.memory(&[0xf7], 6);
        c.bytes(CLEAR_UNDEFINED);
    }),
    any("SETZ m", |c| c.memory(&[0x0f, 0x94], 0)),
    any("CMOVZ r, m", |c| c.memory(&[0x0f, 0x44], CX)),
    any("BT m, 5", |c| { c.memory(&[0x0f, 0xba], 4); c.bytes(&[5]); }),
    any("BT m, r", |c| { c.number(&[0xb8], 77); c.memory(&[0x0f, 0xa3], AX); }),
    any("BTS m, r", |c| { c.number(&[0xb8], 77); c.memory(&[0x0f, 0xab], AX); }),
    any("BTC m, r far", |c| { c.number(&[0xb8], 0x1234); c.memory(&[0x0f, 0xbb], AX); }),
    any("BSF r, m", |c| {
        c.memory(&[0x0f, 0xbc], CX);
        c.bytes(CLEAR_UNDEFINED);
    }),
    any("LES r, m", |c| {
        let size = c.size() as u8;
        c.memory_after(&[0x8c], 0, size); // MOV [EBX+...], ES
        c.memory(&[0xc4], CX);
    }),
    // The stack.
    any("PUSH m, POP m", |c| { c.memory(&[0xff], 6); c.memory(&[0x8f], 0); }),
    any("PUSH r, POP r", |c| c.bytes(&[0x51, 0x5a])),
    any("PUSH number", |c| { c.number(&[0x68], 9); c.bytes(&[0x59]); }),
    any("PUSHA, POPA", |c| c.bytes(&[0x60, 0x61])),
    any("PUSHF, POPF", |c| c.bytes(&[0x9c, 0x9d])),
    any("CALL, RET", |c| c.call(Target::Return)),
    any("CALL, RET n", |c| { c.bytes(&[0x50]); c.call(Target::ReturnAndPop); }),
    any("ENTER, LEAVE", |c| c.bytes(&[0xc8, 0x10, 0, 0, 0xc9])),
    any("ENTER of a level, LEAVE", |c| c.bytes(&[0xc8, 0x10, 0, 3, 0xc9])),
    any("MOV r, [ESP]", |c| {
        if !c.mode.is_32_bit() { c.bytes(&[0x67]); }
        c.bytes(&[0x8b, 0x0c, 0x24]);
    }),
    any("PUSH ES, POP ES", |c| c.bytes(&[0x06, 0x07])),
    any("PUSH FS, POP FS", |c| c.bytes(&[0x0f, 0xa0, 0x0f, 0xa1])),
    any("MOV Sreg, r", |c| c.bytes(&[0x8c, 0xc0, 0x8e, 0xc0])),
    any("MOV m, Sreg, MOV Sreg, m", |c| { c.memory(&[0x8c], 0); c.memory(&[0x8e], 0); }),
    // Branches.
    kind("JMP m", Needs::Memory, |c| { c.store_target(Target::Resume); c.memory(&[0xff], 4); }),
    kind("CALL m", Needs::Memory, |c| { c.store_target(Target::Return); c.memory(&[0xff], 2); }),
    kind("JMP far m", Needs::Memory, |c| { c.store_target(Target::Resume); c.memory(&[0xff], 5); }),
    kind("CALL far m", Needs::Memory, |c| { c.store_target(Target::FarReturn); c.memory(&[0xff], 3); }),
    any("CALL far, RETF", |c| c.far(0x9a, Target::FarReturn)),
    any("JMP far", |c| c.far(0xea, Target::Resume)),
    any("INT n, IRET", |c| c.bytes(&[0xcd, RETURNS])),
    // Strings.
    any("MOVSB", |c| { c.point(); c.bytes(&[0xa4]); }),
    any("MOVS", |c| { c.point(); c.bytes(&[0xa5]); }),
    any("FS MOVS", |c| { c.point(); c.bytes(&[0x64, 0xa5]); }),
    any("STOS", |c| { c.point(); c.bytes(&[0xab]); }),
    any("LODS", |c| { c.point(); c.bytes(&[0xad]); }),
    any("CMPS", |c| { c.point(); c.bytes(&[0xa7]); }),
    any("SCAS", |c| { c.point(); c.bytes(&[0xaf]); }),
    any("REP MOVSB", |c| { c.point_and_count(12); c.bytes(&[0xf3, 0xa4]); }),
    any("REP MOVS", |c| { c.point_and_count(4); c.bytes(&[0xf3, 0xa5]); }),
    any("REP MOVS down", |c| { c.point_and_count(4); c.bytes(&[0xfd, 0xf3, 0xa5, 0xfc]); }),
    any("REP STOS", |c| { c.point_and_count(4); c.bytes(&[0xf3, 0xab]); }),
    any("REP LODSB", |c| { c.point_and_count(12); c.bytes(&[0xf3, 0xac]); }),
    any("REPE CMPSB", |c| { c.point_and_count(12); c.bytes(&[0xf3, 0xa6]); }),
    any("REPNE SCASB", |c| { c.point_and_count(12); c.bytes(&[0xf2, 0xae]); }),
    // x87, MMX and SSE.
    any("FLD m32, FSTP m32", |c| { c.memory(&[0xd9], 0); c.memory(&[0xd9], 3); }),
    any("FLDZ, FADD m64, FSTP m64", |c| {
        c.bytes(&[0xd9, 0xee]);
        c.memory(&[0xdc], 0);
        c.memory(&[0xdd], 3);
    }),
    any("FLD m80, FSTP m80", |c| { c.memory(&[0xdb], 5); c.memory(&[0xdb], 7); }),
    any("FILD m, FISTP m", |c| { c.memory(&[0xdf], 5); c.memory(&[0xdf], 7); }),
    any("FNSTCW m, FLDCW m", |c| {
        c.memory(&[0xd9], 7);
        c.memory(&[0xd9], 5);
        c.bytes(&[0xdb, 0xe3]); // FNINIT
    }),
    any("FNSTSW m", |c| c.memory(&[0xdd], 7)),
    any("FNSTENV m, FLDENV m", |c| { c.memory(&[0xd9], 6); c.memory(&[0xd9], 4); c.bytes(&[0xdb, 0xe3]); }),
    any("FNSAVE m, FRSTOR m", |c| { c.memory(&[0xdd], 6); c.memory(&[0xdd], 4); c.bytes(&[0xdb, 0xe3]); }),
    kind("FXSAVE m, FXRSTOR m", Needs::Alignment, |c| {
        c.memory(&[0x0f, 0xae], 0);
        c.memory(&[0x0f, 0xae], 1);
    }),
    any("MOVQ MM, m, MOVQ m, MM", |c| {
        c.memory(&[0x0f, 0x6f], CX);
        c.memory(&[0x0f, 0x7f], CX);
        c.bytes(&[0x0f, 0x77]); // EMMS
    }),
    any("MOVUPS X, m, MOVUPS m, X", |c| { c.memory(&[0x0f, 0x10], CX); c.memory(&[0x0f, 0x11], CX); }),
    any("MOVSS X, m, MOVSS m, X", |c| { c.memory(&[0xf3, 0x0f, 0x10], CX); c.memory(&[0xf3, 0x0f, 0x11], CX); }),
    kind("PADDD X, m", Needs::Alignment, |c| c.memory(&[0x66, 0x0f, 0xfe], CX)),
    any("STMXCSR m, LDMXCSR m", |c| { c.memory(&[0x0f, 0xae], 3); c.memory(&[0x0f, 0xae], 2); }),
    any("MOVNTI m, r", |c| c.memory(&[0x0f, 0xc3], CX)),
    any("MASKMOVDQU", |c| {
        c.point();
        c.bytes(&[0x66, 0x0f, 0x76, 0xc9, 0x66, 0x0f, 0xf7, 0xc1]); // PCMPEQD XMM1, XMM1; MASKMOVDQU XMM0, XMM1
    }),
    any("CLFLUSH m", |c| c.memory(&[0x0f, 0xae], 7)),
    // The system.
    any("SGDT m", |c| c.memory(&[0x0f, 0x01], 0)),
    any("SMSW m", |c| c.memory(&[0x0f, 0x01], 4)),
    kind("SLDT m", Needs::Descriptors, |c| c.memory(&[0x0f, 0x00], 0)),
    kind("LAR r, m", Needs::Descriptors, |c| { c.memory(&[0x8c], 0); c.memory(&[0x0f, 0x02], CX); }),
    kind("VERR m", Needs::Descriptors, |c| { c.memory(&[0x8c], 0); c.memory(&[0x0f, 0x00], 4); }),
    kind("ARPL m, r", Needs::Descriptors, |c| c.memory(&[0x63], DX)),
    kind("CLI, STI", Needs::Privilege, |c| c.bytes(&[0xfa, 0xfb])),
    kind("INVLPG m", Needs::Privilege, |c| { c.memory(&[0x8b], CX); c.memory(&[0x0f, 0x01], 7); }),
    kind("MOV CR3, r", Needs::Privilege, |c| {
        c.memory(&[0x89], CX);
        c.bytes(&[0x0f, 0x20, 0xd8, 0x0f, 0x22, 0xd8]);
    }),
];
