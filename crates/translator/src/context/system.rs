//! The fields of the context by which translated code executes system instructions.

use ring3_x86::cpu::{Cpu, Cr0};

use super::Context;

/// A past answer of CPUID.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct CpuidAnswer {
    /// The leaf, and the sub-leaf above it. In an empty entry it is a leaf that is never looked up in this
    /// entry.
    pub(crate) asked: u64,
    /// The values of EAX, EBX, ECX and EDX.
    pub(crate) registers: [u32; 4],
    /// The bits of ECX that select the sub-leaf.
    pub(crate) sub_leaf_bits: u64,
}

/// A past answer of RDMSR, or the one that it would give after WRMSR.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(32))]
pub(crate) struct MsrAnswer {
    /// The number of the model-specific register. In an empty entry it has 64 bits, which no register's
    /// number has.
    pub(crate) number: u64,
    /// The same number if WRMSR with this value does nothing, or else one that no register has.
    pub(crate) rewritten: u64,
    /// The values of EAX and EDX.
    pub(crate) registers: [u32; 2],
}

impl MsrAnswer {
    const NONE: MsrAnswer = MsrAnswer { number: u64::MAX, rewritten: u64::MAX, registers: [0; 2] };
}

/// Returns whether the model-specific register `number` only holds what was written to it: IA32_SYSENTER_CS,
/// IA32_SYSENTER_ESP, IA32_SYSENTER_EIP and IA32_TSC_AUX. Each of them has 32 bits.
pub(crate) fn only_holds(number: u32) -> bool {
    matches!(number, 0x174..=0x176 | 0xc000_0103)
}

/// Number of answers of each kind. The low bits of the leaf, or of the register's number, select the entry.
pub(crate) const ANSWERS: usize = 8;

/// Past answers that are still true: what they depend on changes only when the engine executes an
/// instruction, and then they are forgotten.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Answers {
    pub(crate) cpuid: [CpuidAnswer; ANSWERS],
    pub(crate) msr: [MsrAnswer; ANSWERS],
    /// Whether any entry is in use.
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
            msr: [MsrAnswer::NONE; ANSWERS],
            are_there: false,
        }
    }

    /// Notes that CPUID has answered `registers` to this leaf and sub-leaf, or to all sub-leaves.
    pub(crate) fn note_cpuid(&mut self, leaf: u32, sub_leaf: Option<u32>, registers: [u32; 4]) {
        let asked = u64::from(sub_leaf.unwrap_or(0)) << 32 | u64::from(leaf);
        let sub_leaf_bits = if sub_leaf.is_some() { u32::MAX.into() } else { 0 };
        self.cpuid[leaf as usize % ANSWERS] = CpuidAnswer { asked, registers, sub_leaf_bits };
        self.are_there = true;
    }

    /// Notes that RDMSR reads EAX and EDX from the model-specific register `number`.
    pub(crate) fn note_msr(&mut self, number: u32, registers: [u32; 2]) {
        let rewritten = if only_holds(number) { number.into() } else { u64::MAX };
        self.msr[number as usize % ANSWERS] =
            MsrAnswer { number: number.into(), rewritten, registers };
        self.are_there = true;
    }

    /// Forgets all answers, since they may be different now.
    pub(crate) fn forget(&mut self) {
        if self.are_there {
            *self = Answers::none();
        }
    }
}

/// The outcome of a system instruction, as bits for [`system`](crate::routines::system::system).
pub(crate) mod outcome {
    /// It has stopped, and nothing has changed.
    pub(crate) const STOPPED: u32 = 0;
    /// It is complete.
    pub(crate) const DONE: u32 = 1;
    /// Translated code must be left, so that the engine looks around.
    pub(crate) const LEAVES: u32 = 2;
    /// It has set or cleared ZF. The outcome has ZF in the same bit as EFLAGS.
    pub(crate) const SETS_ZERO: u32 = 4;
    /// The access to a port raises #GP, or the one to memory raises #PF; the registers have not changed, except
    /// CR2.
    pub(crate) const FAULTS: u32 = 8;
}

impl Context {
    /// Copies CR0 to CR4 from the processor.
    pub(crate) fn set_control(&mut self, cpu: &Cpu) {
        let (cr0, cr4) = (cpu.cr0(), cpu.cr4());
        self.control = [cr0.bits(), 0, cpu.cr2 as u32, cpu.cr3() as u32, cr4.bits()];
        self.task_switched = [cr0 - Cr0::TS, cr0 | Cr0::TS].map(|cr0| cr0.bits());
        // CR4 is also empty on a processor without CR4, where MOV to CR4 raises #UD: no value counts as known
        // then.
        self.known_cr4 = if cr4.is_empty() { u64::MAX } else { cr4.bits().into() };
    }

    /// Sets GDTR and IDTR, each given by its base and limit.
    pub(crate) fn set_table_registers(&mut self, gdtr: (u32, u16), idtr: (u32, u16)) {
        self.table_registers =
            [gdtr, idtr].map(|(base, limit)| u64::from(limit) << 32 | u64::from(base));
    }
}
