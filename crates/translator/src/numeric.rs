//! x87, MMX and SSE: instructions run on the host's registers.
//!
//! The guest's registers are in one of three places: in [`Cpu`], where the interpreter uses them; in the image in the
//! [`crate::context::Context`]; or in the host's registers, while translated code that uses them runs. A block
//! calls what `numeric_check` points to before its first such instruction, which loads them from the image, or
//! asks the engine for them. Before its first one of SSE, which the system may not have enabled, it calls what `sse_check`
//! points to. When translated code is left they go back to the image, as all other host code has the same registers.

use iced_x86::{Code, CpuidFeature, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::segment::sreg;
use ring3_x86::sse::MXCSR_MASK;

use crate::blocks::Blocks;
use crate::context::{Context, at};
use crate::copy;
use crate::emitter::Emitter;

/// What the image has for addresses of the last instruction and its operand that are the guest's: no translated code is
/// there, and no window.
const UNCHANGED: u64 = 0xffff_ffff;

/// In the first 64 bits of the image: the status word's summary of unmasked exceptions (SDM vol. 1, 8.1.3).
const STATUS_ES: u64 = 1 << (16 + 7);

/// Where the image has the opcode, and these addresses: 64 bits as the host writes it (SDM vol. 1, table 10-3), 32 and the selector as
/// the guest does (table 10-2).
mod image {
    pub(super) const FOP: usize = 6;
    pub(super) const FIP: usize = 8;
    pub(super) const FDP: usize = 16;
}

/// Where the guest's registers are, but for the host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In [`Cpu`].
    Cpu,
    /// In the image.
    Image,
}

/// The addresses of the last instruction and of its operand, with their selectors, and its opcode, as FXSAVE has them.
#[derive(Debug, Clone, Copy, Default)]
struct Pointers {
    instruction: (u32, u16),
    operand: (u32, u16),
    /// The opcode: no instruction changes it but by loading it, where the host's may.
    opcode: [u8; 2],
}

/// What a block has asked for so far; the last one includes the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Checked {
    Nothing,
    /// The registers are there, and instructions of x87 and MMX are enabled.
    X87,
    /// Those of SSE are too.
    Sse,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Numeric {
    place: Place,
    pointers: Pointers,
    /// CS and DS when translated code was entered last, or has asked for the registers, by whether it was a user's.
    selectors: [(u16, u16); 2],
}

impl Numeric {
    pub(crate) fn new() -> Numeric {
        Numeric { place: Place::Cpu, pointers: Pointers::default(), selectors: Default::default() }
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Instructions of x87 and MMX do what the host's do: the system has not switched them off, and they ignore no exception.
    pub(crate) fn are_enabled(cpu: &Cpu) -> bool {
        !cpu.cr0().intersects(Cr0::EM | Cr0::TS) && !cpu.fpu.ignores_exception()
    }

    /// Those of SSE do, where [`are_enabled`](Numeric::are_enabled) holds.
    pub(crate) fn is_sse_enabled(cpu: &Cpu) -> bool {
        cpu.cr4().contains(Cr4::OSFXSR)
    }

    /// The selector that CS had then.
    pub(crate) fn code_selector(&self, is_user: bool) -> u16 {
        self.selectors[usize::from(is_user)].0
    }

    /// Moves the registers to the image.
    pub(crate) fn give(&mut self, cpu: &Cpu, context: &mut Context) {
        let image = &mut context.image;
        let registers = cpu.numeric_image();
        image.0[..registers.len()].copy_from_slice(&registers);
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| registers[at + byte]));
        self.pointers = Pointers {
            instruction: (word(image::FIP), word(image::FIP + 4) as u16),
            operand: (word(image::FDP), word(image::FDP + 4) as u16),
            opcode: [registers[image::FOP], registers[image::FOP + 1]],
        };
        image.set(image::FIP, UNCHANGED);
        image.set(image::FDP, UNCHANGED);
        self.place = Place::Image;
    }

    /// Translated code of users or of the supervisor is about to execute numeric instructions with CS as it is now; DS counts as what it is now, too. When the addresses of
    /// what it executes are asked for, the system may have other selectors there.
    pub(crate) fn note_selectors(&mut self, is_user: bool, blocks: &Blocks, context: &mut Context) {
        let [code, data] = [sreg::CS, sreg::DS].map(|at| context.selectors[usize::from(at)]);
        let privilege = usize::from(is_user);
        if self.selectors[privilege] != (code, data) {
            self.note_pointers(blocks, context);
            self.selectors[privilege] = (code, data);
        }
    }

    /// Notes where the last instruction was, which only `blocks` can tell from where its host code is. To be called
    /// before they are dropped, and where it was in segmented code, before the segments are other ones.
    pub(crate) fn note_pointers(&mut self, blocks: &Blocks, context: &mut Context) {
        if self.place == Place::Cpu {
            return;
        }
        let image = &mut context.image;
        let (instruction, operand) = (image.get(image::FIP), image.get(image::FDP));
        if instruction == UNCHANGED {
            return;
        }
        if let Some((block, site)) = blocks.at(instruction as u32) {
            let eip = block.eip.wrapping_add(site.offset.into());
            let (code, data) = self.selectors[usize::from(block.is_user)];
            self.pointers.instruction = (eip, code);
            // Older processors note each operand, and the guest's one those of unmasked exceptions alone.
            let has_exception = image.get(0) & STATUS_ES != 0;
            // That is an offset in GS, and so the linear address; the kernel's own operands are in the upper half.
            if has_exception && operand != UNCHANGED && operand >> 32 == 0 {
                // Which segment it was is not known of flat code.
                self.pointers.operand = match site.operand.map(usize::from) {
                    None => (operand as u32, data),
                    Some(segment) => (
                        (operand as u32).wrapping_sub(context.views[segment].base),
                        context.selectors[segment],
                    ),
                };
            }
        }
        image.set(image::FIP, UNCHANGED);
        image.set(image::FDP, UNCHANGED);
    }

    /// Moves the registers to [`Cpu`].
    pub(crate) fn take(&mut self, cpu: &mut Cpu, blocks: &Blocks, context: &mut Context) {
        if self.place == Place::Cpu {
            return;
        }
        self.note_pointers(blocks, context);
        let mut registers = context.image.0;
        let Pointers { instruction, operand, opcode } = self.pointers;
        registers[image::FOP..image::FOP + opcode.len()].copy_from_slice(&opcode);
        for (at, (offset, selector)) in [(image::FIP, instruction), (image::FDP, operand)] {
            registers[at..at + 4].copy_from_slice(&offset.to_le_bytes());
            registers[at + 4..at + 8].copy_from_slice(&u32::from(selector).to_le_bytes());
        }
        cpu.set_sse_image(&registers);
        cpu.set_x87_image(&registers);
        self.place = Place::Cpu;
    }
}

/// True for what uses the registers of x87, MMX or SSE.
pub(crate) fn is_numeric(instruction: &Instruction) -> bool {
    use CpuidFeature as F;
    instruction.cpuid_features().iter().any(|feature| {
        matches!(
            feature,
            F::FPU
                | F::FPU287
                | F::FPU387
                | F::MMX
                | F::SSE
                | F::SSE2
                | F::SSE3
                | F::SSSE3
                | F::SSE4_1
                | F::SSE4_2
                | F::FXSR
        )
    }) || instruction.mnemonic() == Mnemonic::Wait
}

/// The first operand of `instruction`, if it is in memory, is only read.
pub(crate) fn reads_first_operand(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    match instruction.mnemonic() {
        M::Ldmxcsr => true,
        M::Fst | M::Fstp | M::Fist | M::Fistp | M::Fisttp | M::Fbstp | M::Fnstcw | M::Fnstsw => {
            false
        }
        _ => {
            use CpuidFeature as F;
            let is_x87 = |feature: &F| matches!(feature, F::FPU | F::FPU287 | F::FPU387);
            instruction.cpuid_features().iter().any(is_x87)
        }
    }
}

/// What must have been asked for before `instruction`, for which [`is_numeric`] holds.
fn needed(instruction: &Instruction) -> Checked {
    use CpuidFeature as F;
    let is_old = |feature: &F| matches!(feature, F::FPU | F::FPU287 | F::FPU387 | F::MMX);
    if instruction.cpuid_features().iter().all(is_old) { Checked::X87 } else { Checked::Sse }
}

/// Translates an instruction for which [`is_numeric`] holds, by copying it with the memory operand that `address` gives. `checked` is what
/// its block has asked for. False, and what was written and `checked` are to be thrown away, if it is left to the interpreter.
pub(crate) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    checked: &mut Checked,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    use Mnemonic as M;
    match instruction.mnemonic() {
        // They order memory accesses of several processors, and fetch what a cache here does not know of.
        M::Lfence
        | M::Mfence
        | M::Sfence
        | M::Prefetchnta
        | M::Prefetcht0
        | M::Prefetcht1
        | M::Prefetcht2 => {
            return true;
        }
        // The first of them show addresses of instructions, which are the host's, or clear them, which not all processors tell; or they are not about
        // registers at all. What comes of the others is left to the processor in part: the error of an approximation, which NaN is the result, how
        // far a step goes (SDM vol. 2). It is not to depend on the host.
        M::Fxsave
        | M::Fxrstor
        | M::Fnsave
        | M::Frstor
        | M::Fnstenv
        | M::Fldenv
        | M::Fninit
        | M::Clflush
        | M::Rcpps
        | M::Rcpss
        | M::Rsqrtps
        | M::Rsqrtss
        | M::Dpps
        | M::Dppd
        | M::Fprem
        | M::Fprem1 => return false,
        _ => {}
    }
    let has_known_registers = (0..instruction.op_count()).all(|operand| {
        let register = instruction.op_register(operand);
        instruction.op_kind(operand) != OpKind::Register
            || register.is_gpr()
            || register.is_xmm()
            || register.is_mm()
            || register.is_st()
    });
    if !has_known_registers {
        return false;
    }
    let needed = needed(instruction);
    if *checked < needed {
        *checked = needed;
        emitter.call(if needed == Checked::Sse { at::SSE_CHECK } else { at::NUMERIC_CHECK });
    }
    if instruction.mnemonic() == M::Ldmxcsr {
        let Some(from) = address(emitter) else { return false };
        check_control(emitter, from);
        let load = Instruction::with1(Code::Ldmxcsr_m32, from);
        emitter.instruction(load);
        return true;
    }
    copy::copy_with(emitter, instruction, address)
}

/// Faults where bits are set in what MXCSR is to be loaded with that the guest's processor has not: the host's may have them. R9 and R10 are used.
fn check_control(emitter: &mut Emitter, from: MemoryOperand) {
    const { assert!(MXCSR_MASK == 0xffff, "the others are the upper half") };
    emitter.load(Register::R10D, from);
    emitter.instruction(Instruction::with3(
        Code::VEX_Rorx_r32_rm32_imm8,
        Register::R10D,
        Register::R10D,
        16,
    ));
    let word = Instruction::with2(Code::Movzx_r32_rm16, Register::R10D, Register::R10W);
    emitter.instruction(word);
    // The byte after the one there cannot be read, nor can any other one up to 4 GiB further.
    emitter.load_field(Register::R9, at::FORWARD);
    let there = MemoryOperand::with_base_index(Register::R9, Register::R10);
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, there));
}
