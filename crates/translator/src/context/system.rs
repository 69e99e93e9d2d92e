//! What system instructions need in translated code.

use ring3_x86::cpu::{Cpu, Cr0};

use super::Context;

/// What CPUID has answered.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CpuidAnswer {
    /// The leaf, and above it the sub-leaf. Where nothing is known it is none that is looked for at this place.
    pub(crate) asked: u64,
    /// EAX, EBX, ECX and EDX.
    pub(crate) registers: [u32; 4],
    /// The bits of ECX that count as the sub-leaf.
    pub(crate) sub_leaf_bits: u64,
}

/// What RDMSR has read.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct MsrAnswer {
    /// The number of the register, of which there is none with 64 bits: that is where nothing is known.
    pub(crate) number: u64,
    /// EAX and EDX.
    pub(crate) registers: [u32; 2],
}

/// So many of each are known, each at the place that the low bits of the leaf or of the number say.
pub(crate) const ANSWERS: usize = 8;

/// What was answered and is still true: nothing that it depends on changes without a look by the engine.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Answers {
    pub(crate) cpuid: [CpuidAnswer; ANSWERS],
    pub(crate) msr: [MsrAnswer; ANSWERS],
    /// There is one.
    are_there: bool,
}

impl Answers {
    pub(crate) fn none() -> Answers {
        let nothing = |place: usize| CpuidAnswer {
            asked: (place as u64 + 1) % ANSWERS as u64,
            registers: [0; 4],
            sub_leaf_bits: 0,
        };
        Answers {
            cpuid: std::array::from_fn(nothing),
            msr: [MsrAnswer { number: u64::MAX, registers: [0; 2] }; ANSWERS],
            are_there: false,
        }
    }

    /// CPUID has answered so to this leaf and sub-leaf, or to all sub-leaves.
    pub(crate) fn note_cpuid(&mut self, leaf: u32, sub_leaf: Option<u32>, registers: [u32; 4]) {
        let asked = u64::from(sub_leaf.unwrap_or(0)) << 32 | u64::from(leaf);
        let sub_leaf_bits = if sub_leaf.is_some() { u32::MAX.into() } else { 0 };
        self.cpuid[leaf as usize % ANSWERS] = CpuidAnswer { asked, registers, sub_leaf_bits };
        self.are_there = true;
    }

    /// RDMSR has read these EAX and EDX from the register of that number.
    pub(crate) fn note_msr(&mut self, number: u32, registers: [u32; 2]) {
        let answer = MsrAnswer { number: number.into(), registers };
        self.msr[number as usize % ANSWERS] = answer;
        self.are_there = true;
    }

    /// They may be other ones now.
    pub(crate) fn forget(&mut self) {
        if self.are_there {
            *self = Answers::none();
        }
    }
}

/// What became of a system instruction: bits that [`system`](crate::routines::system::system) looks at.
pub(crate) mod outcome {
    /// It has stopped, and nothing has happened.
    pub(crate) const STOPPED: u32 = 0;
    /// It is done.
    pub(crate) const DONE: u32 = 1;
    /// Translated code is to be left, as the engine must look around.
    pub(crate) const LEAVES: u32 = 2;
    /// It has set ZF, to the bit of the same place as in EFLAGS.
    pub(crate) const SETS_ZERO: u32 = 4;
}

impl Context {
    /// CR0 to CR4 are those of the processor.
    pub(crate) fn set_control(&mut self, cpu: &Cpu) {
        let (cr0, cr4) = (cpu.cr0(), cpu.cr4());
        self.control = [cr0.bits(), 0, cpu.cr2 as u32, cpu.cr3() as u32, cr4.bits()];
        self.task_switched = [cr0 - Cr0::TS, cr0 | Cr0::TS].map(|cr0| cr0.bits());
        // A processor without CR4 has none that is set.
        self.known_cr4 = if cr4.is_empty() { u64::MAX } else { cr4.bits().into() };
    }

    /// GDTR and IDTR are these, as [`Context::table_registers`] has them.
    pub(crate) fn set_table_registers(&mut self, gdtr: (u32, u16), idtr: (u32, u16)) {
        self.table_registers =
            [gdtr, idtr].map(|(base, limit)| u64::from(limit) << 32 | u64::from(base));
    }
}
