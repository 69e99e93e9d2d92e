//! The guest's x87, MMX and SSE registers in 64-bit code: in the processor's state ([`Cpu`]), in the image in the
//! [context](crate::long::context), or, while translated code runs that uses them, in the host's registers.
//!
//! SSE registers move more often than those of the x87, which little 64-bit code uses. So each have a check of
//! their own, which a block calls before its first instruction that needs them. While only SSE registers are in
//! the host's, only they are saved when translated code is left.
//!
//! The host notes the address of the host code of the last x87 instruction, from which the guest's follows
//! ([`Pointers`]).

use std::ops::Range;

use iced_x86::{Code, CpuidFeature, Instruction, Mnemonic, OpKind, Register};
use ring3_x86::cpu::Cpu;
use ring3_x86::segment::sreg;

use super::Long;
use crate::code::copy::is_of_host;
use crate::long::block_store::BlockStore;
use crate::long::context::{IMAGE_MXCSR, IMAGE_VECTORS, LongContext, VECTORS, at};
use crate::long::copy::{self, Needs};
use crate::long::far_sites::Reach;
use crate::long::writer::Writer;
use crate::numeric::{self, Last, Pointers, hide_pointers};

/// The parts of the image, as FXSAVE writes it, that have the environment of the x87 and its registers (SDM vol. 1,
/// table 10-3).
const OF_X87: [Range<usize>; 2] = [0..24, 32..160];

/// The memory operand of the instruction of a site, for the pointers of the x87.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Operand {
    /// It has none that the x87 notes.
    #[default]
    None,
    /// One in the segment with this number, at the offset that the host notes.
    Noted(u8),
    /// One in the segment with this number, whose offset the site stores in the context.
    Stored(u8),
}

impl Operand {
    /// Returns the memory operand of `instruction`, at a site whose accesses go to the units `reach`.
    pub(crate) fn of(instruction: &Instruction, reach: Reach) -> Operand {
        if !is_x87(instruction)
            || controls(instruction.mnemonic())
            || instruction.op_kinds().all(|kind| kind != OpKind::Memory)
        {
            return Operand::None;
        }
        match instruction.memory_segment() {
            Register::FS => Operand::Stored(sreg::FS),
            Register::GS => Operand::Stored(sreg::GS),
            _ => {
                let base = instruction.memory_base().full_register();
                let is_on_stack = matches!(base, Register::RSP | Register::RBP);
                let segment = if is_on_stack { sreg::SS } else { sreg::DS };
                match reach {
                    Reach::Near => Operand::Noted(segment),
                    Reach::Second | Reach::All => Operand::Stored(segment),
                }
            }
        }
    }
}

/// Returns whether `instruction` is one of the x87, not of MMX.
fn is_x87(instruction: &Instruction) -> bool {
    use CpuidFeature as F;
    let is_old = |feature: &F| matches!(feature, F::FPU | F::FPU287 | F::FPU387);
    instruction.mnemonic() == Mnemonic::Fisttp || instruction.cpuid_features().iter().any(is_old)
}

/// Returns whether `mnemonic` is one of the x87 that controls it, and so leaves the pointers alone.
fn controls(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Fldcw | Mnemonic::Fnstcw | Mnemonic::Fnstsw)
}

/// Returns what `instruction`, for which [`is_numeric`](numeric::is_numeric) holds, needs, or None if it is not
/// translated: those whose results differ between processors are not, nor are those that store or load the
/// pointers of the x87 or MXCSR.
pub(crate) fn numeric_needs(instruction: &Instruction) -> Option<Needs> {
    use CpuidFeature as F;
    use Mnemonic as M;
    let mnemonic = instruction.mnemonic();
    if numeric::differs_between_processors(mnemonic)
        || numeric::accesses_pointers(mnemonic)
        || gathers(instruction)
        || !is_of_host(instruction)
    {
        return None;
    }
    let loses_operand = mnemonic == M::Fnclex && !numeric::survives_fnclex(false);
    let avx = numeric::uses_avx(instruction);
    let (mut has_vector, mut has_x87) = (false, false);
    for operand in 0..instruction.op_count() {
        if instruction.op_kind(operand) == OpKind::Register {
            let register = instruction.op_register(operand);
            let is_x87 = register.is_mm() || register.is_st();
            let is_vector = register.is_xmm() || register.is_ymm();
            if !(is_vector || register.is_gpr() || is_x87) {
                return None;
            }
            has_vector |= is_vector;
            has_x87 |= is_x87;
        }
    }
    let is_old = is_x87(instruction)
        || mnemonic == M::Wait
        || instruction.cpuid_features().iter().all(|feature| *feature == F::MMX);
    // Those from memory, too, leave the x87 as MMX instructions do on some processors.
    has_x87 |= is_old || matches!(mnemonic, M::Cvtpi2ps | M::Cvtpi2pd);
    has_vector |= matches!(mnemonic, M::Vzeroupper | M::Vzeroall);
    let needs = Needs { vectors: !is_old, avx, x87: has_x87 };
    let is_translated =
        !loses_operand && (has_vector || has_x87 || matches!(mnemonic, M::Movnti | M::Crc32));
    is_translated.then_some(needs)
}

/// Returns whether `instruction` loads elements from addresses that a vector of indices gives, which cannot be checked
/// together.
fn gathers(instruction: &Instruction) -> bool {
    let index = instruction.memory_index();
    index.is_xmm() || index.is_ymm()
}

/// Completes the site of `instruction`, which was copied: stores the offset of its memory operand where the host
/// notes another one, and what FLDCW has made of the status word.
pub(crate) fn note_for_x87(writer: &mut Writer, instruction: &Instruction) {
    let status = writer.field(at::LOADED_STATUS);
    match instruction.mnemonic() {
        Mnemonic::Fldcw => {
            writer.emitter.instruction(Instruction::with1(Code::Fnstsw_m2byte, status));
        }
        Mnemonic::Fnclex => {
            writer.emitter.instruction(Instruction::with2(Code::Mov_rm32_imm32, status, 0));
        }
        _ => {}
    }
    if let Operand::Stored(_) = Operand::of(instruction, writer.reach) {
        copy::load_offset(writer, instruction);
        writer.store(writer.field(at::X87_OPERAND), Register::R11);
    }
}

/// Where the guest's registers are while the host does not have them.
#[derive(Debug, Default)]
pub(crate) struct Numeric {
    /// Whether those of SSE are in the image.
    has_vectors: bool,
    /// Whether those of the x87 are in the image. Then those of SSE are.
    has_x87: bool,
    pointers: Pointers,
    /// The selectors in the segment registers while code of the supervisor, and of users, runs.
    selectors: [[u16; 6]; 2],
}

impl Numeric {
    pub(crate) fn has_vectors(&self) -> bool {
        self.has_vectors
    }

    pub(crate) fn has_x87(&self) -> bool {
        self.has_x87
    }

    /// Copies the SSE and AVX registers to the image and what is beside it.
    fn give_vectors(&mut self, cpu: &Cpu, context: &mut LongContext) {
        let image = &mut context.image.0;
        image[IMAGE_MXCSR..IMAGE_MXCSR + 4].copy_from_slice(&cpu.sse.mxcsr().to_le_bytes());
        let places = image[IMAGE_VECTORS..IMAGE_VECTORS + VECTORS].chunks_exact_mut(16);
        for (number, place) in (0..).zip(places) {
            place.copy_from_slice(&cpu.sse.xmm(number).to_le_bytes());
        }
        context.upper = std::array::from_fn(|number| cpu.sse.upper(number as u8));
        self.has_vectors = true;
    }

    /// Copies the registers of the x87 to the image.
    fn give_x87(&mut self, cpu: &Cpu, context: &mut LongContext) {
        let registers = cpu.numeric_image();
        for part in OF_X87 {
            context.image.0[part.clone()].copy_from_slice(&registers[part]);
        }
        self.pointers = Pointers::of(&registers, cpu.numeric_offsets());
        hide_pointers(&mut context.image);
        context.loaded_status = 0;
        self.has_x87 = true;
    }

    /// Notes the address of the last x87 instruction, which only `blocks` can find from that of its host code. Must
    /// be called before blocks are forgotten.
    fn note_pointers(&mut self, blocks: &BlockStore, context: &mut LongContext) {
        if !self.has_x87 {
            return;
        }
        let image = &context.image;
        let mut last = Last::default();
        if let Some(host) = image.instruction()
            && let Some((block, Some(site))) = blocks.at(host)
        {
            let selectors = &self.selectors[usize::from(block.is_user)];
            let selector = |number: u8| selectors[usize::from(number)];
            let rip = block.linear.wrapping_add(site.offset.into());
            last.instruction = Some((rip, selector(sreg::CS)));
            last.operand = match site.operand {
                Operand::None => None,
                // The host's operand pointer is an offset in GS, and so the linear address.
                Operand::Noted(segment) => image.operand().map(|at| (at, selector(segment))),
                // The host has noted another offset, or no operand at all.
                Operand::Stored(segment) => {
                    image.operand().map(|_| (context.x87_operand, selector(segment)))
                }
            };
        }
        self.pointers.note(&mut context.image, &mut context.loaded_status, last);
    }

    /// Notes the selectors in the segment registers before translated code executes x87 instructions. By the time the
    /// guest asks for the pointers, these registers may have other selectors.
    pub(crate) fn note_selectors(
        &mut self,
        is_user: bool,
        blocks: &BlockStore,
        context: &mut LongContext,
    ) {
        let now = context.selectors.map(|selector| selector as u16);
        let mut both = [now; 2];
        // After SYSCALL and SYSRET.
        let [code, stack] = context.sides[usize::from(!is_user)].selectors;
        let other = &mut both[usize::from(!is_user)];
        other[usize::from(sreg::CS)] = code as u16;
        other[usize::from(sreg::SS)] = stack as u16;
        if self.selectors != both {
            self.note_pointers(blocks, context);
            self.selectors = both;
        }
    }
}

impl Long {
    /// Copies the SSE registers to the image.
    pub(super) fn load_vectors(&mut self, cpu: &Cpu) {
        self.numeric.give_vectors(cpu, self.low.context());
    }

    /// Copies the registers of the x87 to the image, and those of SSE unless they are there.
    pub(super) fn load_x87(&mut self, cpu: &Cpu) {
        if !self.numeric.has_vectors {
            self.load_vectors(cpu);
        }
        self.numeric.give_x87(cpu, self.low.context());
    }

    /// Notes the address of the last x87 instruction.
    pub(super) fn note_pointers(&mut self) {
        self.numeric.note_pointers(&self.blocks, self.low.context());
    }

    /// Copies the registers back to the processor that are in the image.
    pub(super) fn store_numeric(&mut self, cpu: &mut Cpu) {
        if !self.numeric.has_vectors {
            return;
        }
        self.note_pointers();
        let context = self.low.context();
        if self.numeric.has_x87 {
            let mut registers = context.image.0;
            let (instruction, operand) = self.numeric.pointers.put(&mut registers);
            cpu.set_x87_image(&registers);
            cpu.set_numeric_offsets(instruction, operand);
        }
        let image = &context.image.0;
        let places = image[IMAGE_VECTORS..IMAGE_VECTORS + VECTORS].chunks_exact(size_of::<u128>());
        for (number, place) in (0..).zip(places) {
            let vector = place.try_into().expect("a chunk has 16 bytes");
            cpu.sse.set_xmm(number, u128::from_le_bytes(vector));
            cpu.sse.set_upper(number, context.upper[usize::from(number)]);
        }
        let mxcsr = [0, 1, 2, 3].map(|byte| image[IMAGE_MXCSR + byte]);
        cpu.sse.set_mxcsr(u32::from_le_bytes(mxcsr));
        (self.numeric.has_vectors, self.numeric.has_x87) = (false, false);
    }
}
