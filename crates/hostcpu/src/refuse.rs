//! Refuses instructions that would leave the box.

use crate::{Layout, Region};

/// Why an instruction was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The code is not 1 to 15 bytes long, as an instruction is (SDM vol. 2A, 2.3.11).
    #[error("{0} bytes of code: an instruction has 1 to 15")]
    Length(usize),
    /// The program is empty or reaches beyond the code region.
    #[error("{0} bytes of program do not fit into the code region")]
    Program(usize),
    /// `eip` of the start state is not in the code region. An instruction may begin on its last byte and
    /// raise #PF for the rest.
    #[error("EIP {0:#x} is outside the code region")]
    Place(u32),
    /// A system call by INT n, SYSENTER or SYSCALL. Of the forms of INT n only INT3 (CC) and INTO are run.
    #[error("system call or software interrupt")]
    SystemCall,
    /// A far CALL, JMP or RET, or IRET: it could leave the 32-bit code segment.
    #[error("far transfer")]
    FarTransfer,
    /// MOV, POP, LFS or LGS to FS or GS, where the 64-bit side has its thread pointer; in 64-bit code also
    /// accesses through FS.
    #[error("load of FS or GS")]
    ThreadPointer,
    /// VMCALL or VMMCALL, which would reach the hypervisor under which the host may run.
    #[error("hypercall")]
    Hypercall,
}

/// The largest length of an instruction in bytes.
const MAX_LENGTH: usize = 15;

/// Checks the place and the first instruction of `code`.
pub(crate) fn check(eip: u32, code: &[u8]) -> Result<(), Refused> {
    const REGION: Region = Layout::FIXED.code;
    if !(1..=MAX_LENGTH).contains(&code.len()) {
        return Err(Refused::Length(code.len()));
    }
    if !REGION.contains(eip) {
        return Err(Refused::Place(eip));
    }
    leaves_the_box(code).map_or(Ok(()), Err)
}

/// Checks the place and the instruction of `code` as 64-bit code.
pub(crate) fn check_long(eip: u32, code: &[u8]) -> Result<(), Refused> {
    check(eip, code)?;
    // What stands behind a REX prefix is checked like the rest. An operand-size prefix in between makes no
    // difference to the opcode.
    let prefixes = code.iter().take_while(|&&byte| is_prefix(byte)).count();
    let rex = code[prefixes..].iter().take_while(|&&byte| byte & 0xf0 == 0x40).count();
    let segment = code[..prefixes].contains(&0x64);
    if segment || sets_base(&code[prefixes + rex..]) {
        return Err(Refused::ThreadPointer);
    }
    leaves_the_box(&code[prefixes + rex..]).map_or(Ok(()), Err)
}

/// Returns whether the instruction behind its prefixes is WRFSBASE (or another one of group 15 with its reg
/// field and a register).
fn sets_base(code: &[u8]) -> bool {
    matches!(code, [0x0f, 0xae, modrm, ..] if modrm >> 6 == 3 && modrm >> 3 & 7 == 2)
}

/// Checks the place and the first instruction of the program `code`.
pub(crate) fn check_program(eip: u32, code: &[u8]) -> Result<(), Refused> {
    const REGION: Region = Layout::FIXED.code;
    if !REGION.contains(eip) {
        return Err(Refused::Place(eip));
    }
    if !(1..=(REGION.end() - eip) as usize).contains(&code.len()) {
        return Err(Refused::Program(code.len()));
    }
    leaves_the_box(code).map_or(Ok(()), Err)
}

/// Recognises the instructions to refuse by opcode (SDM vol. 2D, appendix A).
fn leaves_the_box(code: &[u8]) -> Option<Refused> {
    let prefixes = code.iter().take_while(|&&byte| is_prefix(byte)).count();
    // Bytes beyond the end are HLT in memory, which is neither an opcode to refuse nor, with its reg field of
    // 6, a ModR/M byte of one.
    let byte = |i: usize| code.get(prefixes + i).copied().unwrap_or(crate::FILLER);
    let reg_field = |i: usize| byte(i) >> 3 & 7;
    match byte(0) {
        0xcd => Some(Refused::SystemCall),
        0x9a | 0xea | 0xca | 0xcb | 0xcf => Some(Refused::FarTransfer),
        0xff if matches!(reg_field(1), 3 | 5) => Some(Refused::FarTransfer),
        0x8e if matches!(reg_field(1), 4 | 5) => Some(Refused::ThreadPointer),
        0x0f => match byte(1) {
            0x05 | 0x34 => Some(Refused::SystemCall),
            0xa1 | 0xa9 | 0xb4 | 0xb5 => Some(Refused::ThreadPointer),
            0x01 if matches!(byte(2), 0xc1 | 0xd9) => Some(Refused::Hypercall),
            _ => None,
        },
        _ => None,
    }
}

/// Returns whether `byte` is a legacy prefix (SDM vol. 2A, 2.1.1).
fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_leave_the_box_are_refused() {
        assert_eq!(leaves_the_box(&[0xcd, 0x80]), Some(Refused::SystemCall));
        assert_eq!(leaves_the_box(&[0x66, 0xf3, 0x0f, 0x05]), Some(Refused::SystemCall));
        assert_eq!(leaves_the_box(&[0x0f, 0x34]), Some(Refused::SystemCall));
        assert_eq!(leaves_the_box(&[0x2e, 0xff, 0x28]), Some(Refused::FarTransfer));
        assert_eq!(leaves_the_box(&[0xcf]), Some(Refused::FarTransfer));
        assert_eq!(leaves_the_box(&[0x8e, 0xe8]), Some(Refused::ThreadPointer));
        assert_eq!(leaves_the_box(&[0x0f, 0xa1]), Some(Refused::ThreadPointer));
        assert_eq!(leaves_the_box(&[0x0f, 0x01, 0xd9]), Some(Refused::Hypercall));
    }

    #[test]
    fn lets_the_rest_through() {
        for code in [&[0xcc][..], &[0xce], &[0xff, 0x20], &[0x8e, 0xd8], &[0x0f, 0xa2], &[0x66]] {
            assert_eq!(leaves_the_box(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn wants_a_place_and_a_length() {
        let code = Layout::FIXED.code;
        assert_eq!(check(code.start, &[]), Err(Refused::Length(0)));
        assert_eq!(check(code.start, &[0x90; 16]), Err(Refused::Length(16)));
        assert_eq!(check(code.end(), &[0x90]), Err(Refused::Place(code.end())));
        assert_eq!(check(code.end() - 1, &[0x90; 15]), Ok(()));
        assert_eq!(check_program(code.start, &[]), Err(Refused::Program(0)));
        assert_eq!(check_program(code.end(), &[0x90]), Err(Refused::Place(code.end())));
        assert_eq!(check_program(code.end() - 16, &[0x90; 16]), Ok(()));
        assert_eq!(check_program(code.end() - 16, &[0x90; 17]), Err(Refused::Program(17)));
    }
}
