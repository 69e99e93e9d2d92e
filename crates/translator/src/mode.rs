//! The mode of code: everything besides its bytes on which its translation depends.
//!
//! Most code is *flat*: 32-bit code in protected mode with CS, SS, DS and ES from 0 to 4 GiB. Its offsets are
//! linear addresses, and no limit must be checked. All other code that is translated is *segmented*
//! ([`segmented`](crate::segmented)).
//!
//! Modes have numbers. Blocks are found by them, and each mode has a jump table of its own, so that no branch
//! leads from one mode into another.

use ring3_x86::cpu::{Cpu, Cr0};
use ring3_x86::decode::{CodeMode, CodeSize};
use ring3_x86::flags::Eflags;
use ring3_x86::segment::{Segment, sreg};

/// The number of a mode.
pub(crate) type ModeNumber = u16;

/// Returns the number of the mode of flat code of users, or of the supervisor.
pub(crate) const fn flat(is_user: bool) -> ModeNumber {
    is_user as ModeNumber
}

/// Returns whether `mode` is the number of flat code, of users or of the supervisor.
pub(crate) const fn is_flat(mode: ModeNumber) -> bool {
    mode <= 1
}

/// The bits of an index in a jump table of segmented code. There are many tables, most of them for little
/// code.
pub(crate) const SEGMENTED_INDEX_MASK: u32 = 0x3ff;

/// Upper bound of the modes that have numbers at a time. Each code segment of real mode is a mode.
const MOST_MODES: usize = 256;

/// How segment registers are loaded, and who may change IF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loading {
    /// Real mode: a load sets the base to 16 times the selector and changes nothing else.
    Real,
    /// Protected mode: a load reads a descriptor.
    Protected,
    /// Virtual-8086 mode: a load is as in real mode. Everything besides the base is as this mode demands.
    Virtual8086 {
        /// Whether IOPL is 3, so that IF may be changed as in real mode (SDM vol. 3, 21.2.7).
        is_privileged: bool,
    },
}

/// Segments that are not all flat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segmented {
    /// CS.D: whether operands and addresses have 32 bits by default.
    pub(crate) is_32_bit: bool,
    /// SS.B: whether the stack pointer is ESP rather than SP.
    pub(crate) has_32_bit_stack: bool,
    pub(crate) loading: Loading,
    /// The base address of CS.
    pub(crate) base: u32,
    /// The limit of CS.
    pub(crate) limit: u32,
}

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode {
    /// Whether the code runs at privilege 3 rather than 0.
    pub(crate) is_user: bool,
    /// The segments; None for flat code.
    pub(crate) segmented: Option<Segmented>,
}

impl Mode {
    /// Returns the mode of flat code.
    pub(crate) const fn flat(is_user: bool) -> Mode {
        Mode { is_user, segmented: None }
    }

    /// The mode in which handlers of interrupts and exceptions of virtual-8086 mode begin, where their code
    /// and their stack are flat: ES, DS, FS and GS are null (SDM vol. 3, 21.2.4).
    pub(crate) const MONITOR: Mode = Mode {
        is_user: false,
        segmented: Some(Segmented {
            is_32_bit: true,
            has_32_bit_stack: true,
            loading: Loading::Protected,
            base: 0,
            limit: u32::MAX,
        }),
    };

    /// Returns the mode of the processor, or None if its code is left to the interpreter or is 64-bit code. In
    /// compatibility mode that is all code but that of users: loaders execute a few instructions there.
    pub(crate) fn of(cpu: &Cpu) -> Option<Mode> {
        let is_user = cpu.is_user();
        if !matches!(cpu.cpl(), 0 | 3)
            || cpu.alignment_is_checked()
            || cpu.is_in_64_bit_mode()
            || cpu.is_in_long_mode() && !is_user
        {
            return None;
        }
        let CodeMode { size, is_flat } = cpu.code_mode();
        let is_32_bit = size == CodeSize::Bits32;
        let code = cpu.segment(sreg::CS);
        let is_protected = cpu.in_protected_mode();
        if is_flat && is_32_bit && is_protected && code.base == 0 && code.limit == u32::MAX {
            return Some(Mode::flat(is_user));
        }
        let loading = if is_protected {
            Loading::Protected
        } else if !cpu.cr0().contains(Cr0::PE) {
            Loading::Real
        } else if has_segments_of_virtual_8086_mode(cpu) {
            let is_privileged = cpu.eflags().contains(Eflags::IOPL);
            Loading::Virtual8086 { is_privileged }
        } else {
            return None;
        };
        let segmented = Segmented {
            is_32_bit,
            has_32_bit_stack: cpu.segment(sreg::SS).attributes.big(),
            loading,
            base: code.base as u32,
            limit: code.limit,
        };
        Some(Mode { is_user, segmented: Some(segmented) })
    }

    /// Returns how the interpreter decodes code of this mode. Its handlers check segments where they are not
    /// flat.
    pub(crate) fn code_mode(&self) -> CodeMode {
        CodeMode { size: self.code_size(), is_flat: self.segmented.is_none() }
    }

    /// Returns the kind of code, by CS.D.
    pub(crate) fn code_size(&self) -> CodeSize {
        CodeSize::of(self.is_32_bit())
    }

    /// Returns CS.D.
    pub(crate) fn is_32_bit(&self) -> bool {
        self.segmented.is_none_or(|segmented| segmented.is_32_bit)
    }

    /// Returns whether CS is as in flat code; the other segments need not be.
    pub(crate) fn has_flat_code(&self) -> bool {
        self.is_32_bit() && self.base() == 0 && self.limit() == u32::MAX
    }

    /// Returns whether CLI, STI and POPF change IF, and IRET too if segments have no descriptors.
    pub(crate) fn changes_interrupt_flag(&self) -> bool {
        match self.segmented.map(|segmented| segmented.loading) {
            Some(Loading::Virtual8086 { is_privileged }) => is_privileged,
            _ => !self.is_user,
        }
    }

    /// Returns the base address of CS.
    pub(crate) fn base(&self) -> u32 {
        self.segmented.map_or(0, |segmented| segmented.base)
    }

    /// Returns the limit of CS.
    pub(crate) fn limit(&self) -> u32 {
        self.segmented.map_or(u32::MAX, |segmented| segmented.limit)
    }

    /// Returns the linear address of the instruction at `eip`.
    pub(crate) fn linear(&self, eip: u32) -> u32 {
        self.base().wrapping_add(eip)
    }
}

/// Returns whether all segments have the limits and attributes that loads in virtual-8086 mode give them (SDM
/// vol. 3, 21.2.1). Then a load changes only the selector and the base.
fn has_segments_of_virtual_8086_mode(cpu: &Cpu) -> bool {
    (sreg::ES..=sreg::GS).all(|register| {
        let segment = cpu.segment(register);
        let expected = Segment::real(segment.selector, 3);
        (segment.limit, segment.attributes) == (expected.limit, expected.attributes)
    })
}

/// The modes that have numbers.
#[derive(Debug)]
pub(crate) struct Modes {
    /// The modes by number; the first two are those of flat code.
    known: Vec<Mode>,
    current: ModeNumber,
}

impl Default for Modes {
    fn default() -> Modes {
        Modes { known: vec![Mode::flat(false), Mode::flat(true)], current: 0 }
    }
}

impl Modes {
    /// Returns the current mode and its number.
    pub(crate) fn current(&self) -> (ModeNumber, Mode) {
        (self.current, self.known[usize::from(self.current)])
    }

    /// Returns the number of `mode`, if it has one.
    pub(crate) fn number(&self, mode: &Mode) -> Option<ModeNumber> {
        let number = self.known.iter().position(|known| known == mode)?;
        Some(number as ModeNumber)
    }

    /// Makes `mode` the current mode, and gives it a number if it has none. Returns false if no number is
    /// left.
    pub(crate) fn enter(&mut self, mode: Mode) -> bool {
        if self.known[usize::from(self.current)] == mode {
            return true;
        }
        let known = self.number(&mode);
        if known.is_none() && self.known.len() == MOST_MODES {
            return false;
        }
        self.current = known.unwrap_or_else(|| {
            self.known.push(mode);
            (self.known.len() - 1) as ModeNumber
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_modes_is_limited() {
        let mut modes = Modes::default();
        let real = |base| {
            let segmented = Segmented {
                is_32_bit: false,
                has_32_bit_stack: false,
                loading: Loading::Real,
                base,
                limit: 0xffff,
            };
            Mode { is_user: false, segmented: Some(segmented) }
        };
        assert!(modes.enter(Mode::flat(true)));
        assert_eq!(modes.current(), (1, Mode::flat(true)));
        let entered = (0..1000).take_while(|base| modes.enter(real(base * 16))).count();
        assert_eq!(entered, MOST_MODES - 2);
        assert!(modes.enter(real(16)));
        assert_eq!(modes.current(), (3, real(16)));
        assert!(!modes.enter(real(1 << 20)));
        assert_eq!(modes.current().0, 3);
    }
}
