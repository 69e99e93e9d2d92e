//! The cases in which processors differ, or that cannot be run, as in `host_cpu/vendors.rs`.

use iced_x86::{Code, Mnemonic};
use ring3_hostcpu::{LongStop, PAGE_SIZE, Vendor, eflags, gpr};
use ring3_x86::access::is_canonical;
use ring3_x86::undefined::undefined;

use crate::comparison::Outcome;
use crate::guest::SUPERVISOR_START;
use crate::scene::{Scene, compares_strings, data_offset};

impl Scene {
    /// Returns whether the case cannot be compared, which only its result on our side shows.
    pub(crate) fn is_left_out(&self, ours: &Outcome, vendor: Vendor) -> bool {
        if self.reads_unknown_selector() || self.masks_all_bytes() {
            return true;
        }
        // AMD's processors load an offset of 32 bits (APM vol. 3, LxS).
        if vendor == Vendor::Amd && self.instruction.code() == Code::Lss_r64_m1664 {
            return true;
        }
        match ours.stop {
            // This is an endless loop.
            LongStop::Timeout => true,
            LongStop::Reached => {
                // The bytes fetched in the middle of the instruction could be anything.
                let into_itself =
                    ours.state.rip.wrapping_sub(self.start.rip) < self.code.len() as u64;
                let page = u64::from(PAGE_SIZE);
                let crosses_page = ours.state.gpr[gpr::ESP] % page > page - 8;
                // AMD has instructions there, which raise #UD with a register (APM vol. 3, PREFETCHlevel).
                let is_reserved = matches!(
                    self.instruction.code(),
                    Code::Reservednop_rm16_r16_0F0D
                        | Code::Reservednop_rm32_r32_0F0D
                        | Code::Reservednop_rm64_r64_0F0D
                );
                into_itself
                    || self.pushes_segment() && crosses_page
                    || vendor == Vendor::Amd && is_reserved
            }
            LongStop::Exception { vector: 14, cr2, .. } => {
                // On the host its kernel is in the upper half.
                let supervisor = cr2.wrapping_sub(SUPERVISOR_START) < 0x8000;
                // AMD's processors raise #UD without fetching the rest of the instruction.
                let undefined =
                    matches!(self.instruction.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1);
                supervisor || undefined
            }
            LongStop::Exception { vector: 6, .. } => {
                // Where VERW clears buffers, by microcode, some of AMD's processors accept LOCK before it.
                vendor == Vendor::Amd && self.instruction.is_invalid()
            }
            LongStop::Exception { .. } => false,
        }
    }

    /// Makes `host` equal to `ours` where a difference is allowed.
    pub(crate) fn forgive(&self, host: &mut Outcome, ours: &Outcome) {
        if ours.stop == LongStop::Reached {
            self.forgive_undefined(host, ours);
            self.forgive_nans(host, ours);
            self.forgive_approximations(host, ours);
            self.forgive_unwritten(host, ours);
            self.forgive_image(host, ours);
        } else {
            self.forgive_at_fault(host, ours);
        }
    }

    /// Returns whether the instruction is PUSH of a segment register with more than 16 bits.
    fn pushes_segment(&self) -> bool {
        matches!(self.instruction.code(), Code::Pushq_FS | Code::Pushq_GS)
    }

    /// Accepts differences in the upper bytes on the stack, which some processors do not write.
    fn forgive_unwritten(&self, host: &mut Outcome, ours: &Outcome) {
        if self.pushes_segment() {
            for byte in 2..8 {
                let address = ours.state.gpr[gpr::ESP].wrapping_add(byte);
                if let Some(place) = data_offset(address) {
                    host.data[place] = ours.data[place];
                }
            }
        }
    }

    /// Accepts changes that processors make in different ways before a fault.
    fn forgive_at_fault(&self, host: &mut Outcome, ours: &Outcome) {
        hide_kernel(host);
        let instruction = &self.instruction;
        let faults = (page_fault(host), page_fault(ours));
        if self.is_told_otherwise(host, ours) {
            host.stop = ours.stop;
        }
        match (instruction.mnemonic(), faults) {
            // TOP and the tags may have been set as for MMX.
            (Mnemonic::Maskmovq | Mnemonic::Movd | Mnemonic::Movq | Mnemonic::Movntq, _)
                if instruction.op_count() > 1
                    && (instruction.op1_register().is_mm()
                        || instruction.op2_register().is_mm()) =>
            {
                host.state.fx = ours.state.fx.clone();
            }
            // Intel's processors report any one of the bytes that cannot be written.
            (Mnemonic::Maskmovdqu, (Some(address), Some(_))) => {
                let mask = if self.has_32_bit_addresses() { 0xffff_ffff } else { u64::MAX };
                if address.wrapping_sub(self.start.gpr[gpr::EDI]) & mask < 16 {
                    host.stop = ours.stop;
                }
            }
            (_, (Some(_), _)) if compares_strings(instruction) => {
                // Intel's processors read the operand at RDI first.
                host.stop = ours.stop;
                // They also undo the changes of earlier iterations to the flags (SDM vol. 2, REP).
                if (host.state.rflags ^ self.start.rflags) & eflags::STATUS == 0 {
                    host.state.rflags = ours.state.rflags;
                }
            }
            // If one operand of CMPS is not mapped and the other is not canonical, each may be checked first.
            (_, (None, Some(_))) if compares_strings(instruction) => {
                let indices = [gpr::ESI, gpr::EDI].map(|index| ours.state.gpr[index]);
                if !indices.into_iter().all(is_canonical) {
                    host.stop = ours.stop;
                }
            }
            _ => {}
        }
    }

    /// Returns whether processors report different reasons for the faults of such an instruction.
    fn is_told_otherwise(&self, host: &Outcome, ours: &Outcome) -> bool {
        let instruction = &self.instruction;
        let reasons = [host, ours].map(|outcome| match outcome.stop {
            LongStop::Exception { vector, error_code: 0, .. } => vector,
            _ => 0,
        });
        match (instruction.mnemonic(), (page_fault(host), page_fault(ours))) {
            // An operand is neither aligned nor at a canonical address of the stack.
            _ if reasons == [13, 12] && !self.memory_address().is_multiple_of(16) => true,
            // Processors access the parts of the image in different orders.
            (
                Mnemonic::Fxsave | Mnemonic::Fxrstor | Mnemonic::Fxsave64 | Mnemonic::Fxrstor64,
                (Some(_), Some(_)),
            )
            // AMD's processors check the target after the stack.
            | (Mnemonic::Call, (Some(_), None)) => true,
            // They read a doubleword for a word.
            (Mnemonic::Movsxd, _) => instruction.op0_register().size() == 2,
            // They write a quadword for a selector.
            (Mnemonic::Push, _) => self.pushes_segment(),
            _ => false,
        }
    }

    /// If several operands of DPPS and DPPD are NaNs, the processor chooses which one is the result.
    fn forgive_nans(&self, host: &mut Outcome, ours: &Outcome) {
        let (bits, infinity) = match self.instruction.mnemonic() {
            Mnemonic::Dpps => (32, 0x7f80_0000),
            Mnemonic::Dppd => (64, 0x7ff0_0000_0000_0000),
            _ => return,
        };
        self.forgive_elements(host, ours, bits, |their, our| {
            let magnitude = (1_u128 << (bits - 1)) - 1;
            their & magnitude > infinity && our & magnitude > infinity
        });
    }

    /// Accepts differences in approximations: the processor chooses their bits, and whether a tiny result is
    /// zero; their relative error is fixed (SDM vol. 2, RCPPS, RSQRTPS).
    fn forgive_approximations(&self, host: &mut Outcome, ours: &Outcome) {
        const LIMIT: f32 = 1.5 / 4096.0;
        use Mnemonic as M;
        if !matches!(self.instruction.mnemonic(), M::Rcpps | M::Rcpss | M::Rsqrtps | M::Rsqrtss) {
            return;
        }
        self.forgive_elements(host, ours, 32, |their, our| {
            let [their, our] = [their, our].map(|bits| f32::from_bits(bits as u32));
            let is_near = their.is_normal() && (their - our).abs() <= 2.0 * LIMIT * their.abs();
            is_near || their.abs().max(our.abs()) <= f32::MIN_POSITIVE
        });
    }

    /// Accepts differences in the elements of the destination for which `is_allowed` is true.
    fn forgive_elements(
        &self,
        host: &mut Outcome,
        ours: &Outcome,
        bits: usize,
        is_allowed: impl Fn(u128, u128) -> bool,
    ) {
        let register = self.instruction.op0_register().number();
        let (mut result, ours) = (host.state.fx.xmm(register), ours.state.fx.xmm(register));
        for shift in (0..128).step_by(bits) {
            let all = u128::MAX >> (128 - bits);
            if is_allowed(result >> shift & all, ours >> shift & all) {
                result = result & !(all << shift) | ours & (all << shift);
            }
        }
        host.state.fx.set_xmm(register, result);
    }

    /// Accepts differences in an image of FXSAVE: each processor stores the pointers and the opcode in its own
    /// way, and AMD's have one more bit in MXCSR.
    fn forgive_image(&self, host: &mut Outcome, ours: &Outcome) {
        if matches!(self.instruction.mnemonic(), Mnemonic::Fxsave | Mnemonic::Fxsave64) {
            for offset in (6..24).chain(28..32) {
                if let Some(place) = data_offset(self.memory_address().wrapping_add(offset)) {
                    host.data[place] = ours.data[place];
                }
            }
        }
    }

    /// Accepts any values in results that the manual leaves undefined when the instruction completes.
    fn forgive_undefined(&self, host: &mut Outcome, ours: &Outcome) {
        if host.stop != LongStop::Reached {
            return;
        }
        let undefined = undefined(&self.instruction, self.start.gpr[gpr::ECX] as u8);
        if undefined.destination {
            *host = ours.clone();
        }
        let mask = undefined.flags.bits();
        host.state.rflags = host.state.rflags & !mask | ours.state.rflags & mask;
    }
}

/// Undoes a change by the host's kernel, which reports all pages of its own as present.
fn hide_kernel(host: &mut Outcome) {
    const END_OF_USER: u64 = 0x7fff_ffff_f000;
    if let LongStop::Exception { vector: 14, error_code, cr2: END_OF_USER.. } = &mut host.stop {
        *error_code &= !1;
    }
}

/// Returns the address of the page fault in which a case ended.
fn page_fault(outcome: &Outcome) -> Option<u64> {
    match outcome.stop {
        LongStop::Exception { vector: 14, cr2, .. } => Some(cr2),
        _ => None,
    }
}
