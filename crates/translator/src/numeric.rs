//! x87, MMX and SSE instructions, which run on the host's registers.
//!
//! The guest's numeric registers are in one of three places: in [`Cpu`], where the interpreter uses them; in
//! the image in the [`crate::context::Context`]; or in the host's registers, while translated code that uses
//! them runs. Before its first x87 or MMX instruction a block calls the routine in the context's
//! `numeric_check`, which loads the registers from the image or asks the engine for them. Before its first
//! SSE instruction, which the guest's system may not have enabled, it calls the routine in `sse_check`. When
//! translated code is left, the registers go back to the image, since all other host code uses the same
//! registers.

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

use iced_x86::{Code, CpuidFeature, Instruction, MemoryOperand, Mnemonic, OpKind, Register};
use ring3_x86::cpu::{Cpu, Cr0, Cr4};
use ring3_x86::segment::sreg;
use ring3_x86::sse::MXCSR_MASK;
use ring3_x86::undefined::Vendor;

use crate::code::block::Operand;
use crate::code::block_store::BlockStore;
use crate::code::copy;
use crate::code::emitter::Emitter;
use crate::context::{Context, IMAGE, Image, at};

/// The value in the image of an address that is still the guest's: no translated code and no window is at
/// this address.
const UNCHANGED: u64 = 0xffff_ffff;

/// In the status word: the summary of unmasked exceptions (SDM vol. 1, 8.1.3).
const STATUS_ES: u32 = 1 << 7;
/// The place of the status word in the first 64 bits of the image.
const STATUS_SHIFT: u32 = 16;

/// Offsets in the image of the opcode, and of the addresses of the last instruction and its operand. In the
/// host's format an address has 64 bits (SDM vol. 1, table 10-3); in the guest's it has 32, with the selector
/// after it (table 10-2).
pub(crate) mod image {
    pub(crate) const FOP: usize = 6;
    pub(crate) const FIP: usize = 8;
    pub(crate) const FDP: usize = 16;
}

/// Where the guest's registers are while the host does not have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// In [`Cpu`].
    Cpu,
    /// In the image.
    Image,
}

/// The addresses of the last instruction and of its operand with their selectors, and its opcode. Those of
/// 64-bit code have 64 bits.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Pointers {
    instruction: (u64, u16),
    operand: (u64, u16),
    /// The opcode. The guest's processor changes it only when it is loaded; the host's may change it with
    /// each instruction.
    opcode: [u8; 2],
}

/// The last instruction that translated code has executed: its address and that of its operand in memory, with
/// selectors. Both are None if they are not known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Last {
    pub(crate) instruction: Option<(u64, u16)>,
    pub(crate) operand: Option<(u64, u16)>,
}

impl Pointers {
    /// Takes the pointers out of `registers`, an image as FXSAVE writes it outside 64-bit mode, with the
    /// `offsets` of 64 bits.
    pub(crate) fn of(registers: &[u8], offsets: (u64, u64)) -> Pointers {
        let selector = |at: usize| u16::from_le_bytes([registers[at + 4], registers[at + 5]]);
        Pointers {
            instruction: (offsets.0, selector(image::FIP)),
            operand: (offsets.1, selector(image::FDP)),
            opcode: [registers[image::FOP], registers[image::FOP + 1]],
        }
    }

    /// Notes the `last` instruction, of which `image` has the host's addresses, and takes them out of it. `loaded`
    /// is the status word after the last FLDCW, or 0 if there was none, or FNCLEX came after it.
    pub(crate) fn note(&mut self, image: &mut Image, loaded: &mut u32, last: Last) {
        let is_pending = (image.get(0) >> STATUS_SHIFT) as u32 & STATUS_ES != 0;
        // Then FLDCW has made an earlier exception pending, and nothing that waits was executed since.
        let is_loaded = is_pending && *loaded & STATUS_ES != 0;
        match vendor_of_host() {
            Vendor::Amd | Vendor::AmdZen4 if is_loaded => *self = Pointers::default(),
            Vendor::Amd | Vendor::AmdZen4 => {
                if let Some(instruction) = last.instruction {
                    let operand = last.operand.unwrap_or_default();
                    *self = Pointers { instruction, operand, opcode: [0; 2] };
                }
            }
            Vendor::Intel => {
                self.instruction = last.instruction.unwrap_or(self.instruction);
                // The guest's processor notes only operands of unmasked exceptions; not all hosts do so.
                let is_noted = is_pending || notes_operands_of_exceptions_only();
                if let Some(operand) = last.operand.filter(|_| is_noted && !is_loaded) {
                    self.operand = operand;
                }
            }
        }
        *loaded = 0;
        hide_pointers(image);
    }

    /// Puts the pointers in the places that `registers`, an image as FXSAVE writes it outside 64-bit mode, has
    /// for them. Returns the offsets of 64 bits.
    pub(crate) fn put(&self, registers: &mut [u8; IMAGE]) -> (u64, u64) {
        let Pointers { instruction, operand, opcode } = *self;
        registers[image::FOP..image::FOP + opcode.len()].copy_from_slice(&opcode);
        for (at, (offset, selector)) in [(image::FIP, instruction), (image::FDP, operand)] {
            registers[at..at + 4].copy_from_slice(&(offset as u32).to_le_bytes());
            registers[at + 4..at + 8].copy_from_slice(&u32::from(selector).to_le_bytes());
        }
        (instruction.0, operand.0)
    }
}

/// Takes the addresses of the last instruction and its operand out of `image`, so that they are not taken for
/// those of host code later.
pub(crate) fn hide_pointers(image: &mut Image) {
    image.set(image::FIP, UNCHANGED);
    image.set(image::FDP, UNCHANGED);
}

impl Image {
    /// Returns the host's address of the last instruction, if one was executed in translated code.
    pub(crate) fn instruction(&self) -> Option<u32> {
        let instruction = self.get(image::FIP);
        (instruction != UNCHANGED).then(|| u32::try_from(instruction).ok()).flatten()
    }

    /// Returns the offset of the last operand in translated code, if there was one that the host has noted.
    pub(crate) fn operand(&self) -> Option<u64> {
        Some(self.get(image::FDP)).filter(|operand| *operand != UNCHANGED)
    }
}

/// Returns the vendor of the host's processor.
fn vendor_of_host() -> Vendor {
    static VENDOR: LazyLock<Vendor> = LazyLock::new(Vendor::of_host);
    *VENDOR
}

/// The checks that a block has made so far. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Checked {
    Nothing,
    /// The registers are loaded, and x87 and MMX instructions are enabled.
    X87,
    /// SSE instructions are enabled too.
    Sse,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Numeric {
    location: Location,
    pointers: Pointers,
    /// For code of the supervisor and for code of users: CS and DS when it was last entered or asked for the
    /// registers.
    selectors: [(u16, u16); 2],
}

impl Numeric {
    pub(crate) fn new() -> Numeric {
        Numeric {
            location: Location::Cpu,
            pointers: Pointers::default(),
            selectors: Default::default(),
        }
    }

    pub(crate) fn location(&self) -> Location {
        self.location
    }

    /// Returns whether the host executes x87 and MMX instructions as the guest's processor would: the guest's
    /// system has not switched them off, and no exception is ignored.
    pub(crate) fn are_enabled(cpu: &Cpu) -> bool {
        !cpu.cr0().intersects(Cr0::EM | Cr0::TS) && !cpu.fpu.ignores_exception()
    }

    /// Returns whether that holds for SSE instructions too, if [`are_enabled`](Numeric::are_enabled) does.
    pub(crate) fn is_sse_enabled(cpu: &Cpu) -> bool {
        cpu.cr4().contains(Cr4::OSFXSR)
    }

    /// Returns the selector of CS when code of users, or of the supervisor, was last entered or asked for the
    /// registers.
    pub(crate) fn code_selector(&self, is_user: bool) -> u16 {
        self.selectors[usize::from(is_user)].0
    }

    /// Moves the registers from [`Cpu`] to the image.
    pub(crate) fn give(&mut self, cpu: &Cpu, context: &mut Context) {
        let image = &mut context.image;
        let registers = cpu.numeric_image();
        image.0[..registers.len()].copy_from_slice(&registers);
        self.pointers = Pointers::of(&registers, cpu.numeric_offsets());
        hide_pointers(image);
        context.loaded_status = 0;
        self.location = Location::Image;
    }

    /// Notes the selectors in CS and DS before translated code of users or of the supervisor executes numeric
    /// instructions. By the time the guest asks for the addresses of the last instruction and its operand,
    /// these registers may have other selectors.
    pub(crate) fn note_selectors(
        &mut self,
        is_user: bool,
        blocks: &BlockStore,
        context: &mut Context,
    ) {
        let [code, data] = [sreg::CS, sreg::DS].map(|at| context.selectors[usize::from(at)]);
        let privilege = usize::from(is_user);
        if self.selectors[privilege] != (code, data) {
            self.note_pointers(blocks, context);
            self.selectors[privilege] = (code, data);
        }
    }

    /// Notes the guest address of the last numeric instruction, which only `blocks` can find from the address
    /// of its host code. Must be called before blocks are dropped, and in segmented code before the segments
    /// change.
    pub(crate) fn note_pointers(&mut self, blocks: &BlockStore, context: &mut Context) {
        if self.location == Location::Cpu {
            return;
        }
        let image = &context.image;
        let operand = image.operand();
        let mut last = Last::default();
        if let Some((block, site)) = image.instruction().and_then(|host| blocks.at(host)) {
            let eip = block.eip.wrapping_add(site.offset.into());
            let (code, data) = self.selectors[usize::from(block.is_user)];
            last.instruction = Some((eip.into(), code));
            // The host's operand pointer is an offset in GS, and so the linear address. Operands of the
            // kernel itself are in the upper half of the addresses.
            if let Some(operand) = operand.filter(|operand| operand >> 32 == 0) {
                last.operand = match site.operand {
                    // FNCLEX has cleared the exception, and other instructions came since. That was in flat code.
                    Operand::None if keeps_operands_of_exceptions() => Some((operand, data)),
                    Operand::None => None,
                    Operand::Flat => Some((operand, data)),
                    Operand::Segment(segment) => {
                        let segment = usize::from(segment);
                        let offset = (operand as u32).wrapping_sub(context.views[segment].base);
                        Some((offset.into(), context.selectors[segment]))
                    }
                };
            }
        }
        self.pointers.note(&mut context.image, &mut context.loaded_status, last);
    }

    /// Moves the registers from the image to [`Cpu`].
    pub(crate) fn take(&mut self, cpu: &mut Cpu, blocks: &BlockStore, context: &mut Context) {
        if self.location == Location::Cpu {
            return;
        }
        self.note_pointers(blocks, context);
        let mut registers = context.image.0;
        let (instruction, operand) = self.pointers.put(&mut registers);
        cpu.set_sse_image(&registers);
        cpu.set_x87_image(&registers);
        cpu.set_numeric_offsets(instruction, operand);
        self.location = Location::Cpu;
    }
}

/// Returns whether the host's processor notes the address of an operand only for unmasked exceptions (SDM
/// vol. 1, 8.1.8: CPUID.(EAX=07H,ECX=0H):EBX, bit 6). Intel's have done so since 2013.
fn notes_operands_of_exceptions_only() -> bool {
    static NOTES: LazyLock<bool> = LazyLock::new(|| {
        let [basic, features] = [0, 7].map(|leaf| __cpuid_count(leaf, 0));
        basic.eax >= 7 && features.ebx & 1 << 6 != 0
    });
    *NOTES
}

/// Returns whether the host's processor is one of Intel's that notes the address of an operand only for unmasked
/// exceptions, and keeps it until the next one.
fn keeps_operands_of_exceptions() -> bool {
    vendor_of_host() == Vendor::Intel && notes_operands_of_exceptions_only()
}

/// Returns whether the address of an operand is still known after FNCLEX, which hides that there was an
/// exception. Processors of AMD forget it then, and so does the guest's ([`Vendor`]). In code with bases the
/// segment of the operand is known only as long as no other instruction comes.
pub(crate) fn survives_fnclex(is_flat: bool) -> bool {
    vendor_of_host().is_amd() || is_flat && keeps_operands_of_exceptions()
}

/// Returns whether `instruction` uses x87, MMX, SSE or AVX registers.
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
                | F::XSAVE
        )
    }) || uses_avx(instruction)
        || instruction.mnemonic() == Mnemonic::Wait
}

/// Returns whether `instruction` has a VEX prefix and uses vectors.
pub(crate) fn uses_avx(instruction: &Instruction) -> bool {
    use CpuidFeature as F;
    let of_avx = |feature: &F| matches!(feature, F::AVX | F::AVX2 | F::F16C | F::FMA);
    instruction.cpuid_features().iter().any(of_avx)
}

/// Returns whether `instruction` only reads its first operand if that is in memory.
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

/// Returns the check that must precede `instruction`, for which [`is_numeric`] holds.
fn needed(instruction: &Instruction) -> Checked {
    use CpuidFeature as F;
    let is_old = |feature: &F| matches!(feature, F::FPU | F::FPU287 | F::FPU387 | F::MMX);
    let is_x87 =
        instruction.mnemonic() == Mnemonic::Wait || instruction.cpuid_features().iter().all(is_old);
    if is_x87 { Checked::X87 } else { Checked::Sse }
}

/// Returns whether `instruction`, for which [`is_numeric`] holds, raises #MF if an exception is pending: x87
/// and MMX instructions do, except those that control the x87 without waiting (SDM vol. 1, 8.3.12).
pub(crate) fn waits(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    needed(instruction) == Checked::X87
        && !matches!(
            instruction.mnemonic(),
            M::Fninit
                | M::Fnclex
                | M::Fnstcw
                | M::Fnstsw
                | M::Fnstenv
                | M::Fnsave
                | M::Fneni
                | M::Fndisi
                | M::Fnsetpm
        )
}

/// Returns whether the result of `mnemonic` depends in part on the processor: the error of an approximation,
/// the choice among NaNs, the size of a step (SDM vol. 2). The guest must not see which host it runs on.
pub(crate) fn differs_between_processors(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Rcpps
            | M::Rcpss
            | M::Rsqrtps
            | M::Rsqrtss
            | M::Dpps
            | M::Dppd
            | M::Vrcpps
            | M::Vrcpss
            | M::Vrsqrtps
            | M::Vrsqrtss
            | M::Vdpps
            | M::Vdppd
            | M::Fprem
            | M::Fprem1
    )
}

/// Returns whether `mnemonic` stores or clears addresses of instructions, which would be the host's, or is not about
/// registers at all.
pub(crate) fn accesses_pointers(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Fxsave
            | M::Fxrstor
            | M::Fxsave64
            | M::Fxrstor64
            | M::Xsave
            | M::Xrstor
            | M::Xsave64
            | M::Xrstor64
            | M::Xgetbv
            | M::Xsetbv
            | M::Fnsave
            | M::Frstor
            | M::Fnstenv
            | M::Fldenv
            | M::Fninit
            | M::Clflush
    )
}

/// Returns whether `mnemonic` orders memory accesses between processors, or prefetches into a cache, which the
/// guest's machine does not have.
pub(crate) fn orders_or_prefetches(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(
        mnemonic,
        M::Lfence
            | M::Mfence
            | M::Sfence
            | M::Prefetchnta
            | M::Prefetcht0
            | M::Prefetcht1
            | M::Prefetcht2
    )
}

/// Translates an instruction for which [`is_numeric`] holds, by copying it with the memory operand that
/// `address` returns; `is_flat` says whether it is in flat code. `checked` is what its block has checked so far. Returns false if the instruction is
/// left to the interpreter; the caller then throws away what was written, and `checked`.
pub(crate) fn translate(
    emitter: &mut Emitter,
    instruction: &Instruction,
    checked: &mut Checked,
    is_flat: bool,
    address: impl Fn(&mut Emitter) -> Option<MemoryOperand>,
) -> bool {
    use Mnemonic as M;
    if orders_or_prefetches(instruction.mnemonic()) {
        return true;
    }
    if differs_between_processors(instruction.mnemonic()) {
        return false;
    }
    if accesses_pointers(instruction.mnemonic())
        || uses_avx(instruction)
        || instruction.mnemonic() == M::Fnclex && !survives_fnclex(is_flat)
    {
        return false;
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
    if !copy::copy_with(emitter, instruction, address) {
        return false;
    }
    let status = MemoryOperand::with_base_displ(Register::R14, at::LOADED_STATUS.into());
    match instruction.mnemonic() {
        M::Fldcw => emitter.instruction(Instruction::with1(Code::Fnstsw_m2byte, status)),
        M::Fnclex => emitter.instruction(Instruction::with2(Code::Mov_rm32_imm32, status, 0)),
        _ => {}
    }
    true
}

/// Faults if the value that MXCSR is to be loaded with sets bits that the guest's processor does not have;
/// the host's may have them. Uses R9 and R10.
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
    // At this address one byte can be read, and none of the next 4 GiB.
    emitter.load_field(Register::R9, at::FORWARD_CHECK);
    let there = MemoryOperand::with_base_index(Register::R9, Register::R10);
    emitter.instruction(Instruction::with2(Code::Movzx_r32_rm8, Register::R9D, there));
}
