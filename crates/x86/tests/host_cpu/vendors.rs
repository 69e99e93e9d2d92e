//! The cases in which processors differ, or that cannot be run, although [`ring3_x86::undefined`] lists
//! nothing undefined in them.

use iced_x86::{Code, Decoder, DecoderOptions, Mnemonic, OpKind};
use ring3_hostcpu::{LongStop, PAGE_SIZE, Vendor, eflags, gpr};
use ring3_x86::access::is_canonical;
use ring3_x86::undefined::undefined;

use crate::common::comparison::{Case, Outcome, Scene, data_offset};
use crate::common::kernel::Kernel;
use crate::scene::{IntegerScene, compares_strings};
use crate::vectors::{is_extended, is_gather};

impl Scene for IntegerScene {
    fn case(&self) -> &Case {
        &self.0
    }

    fn is_left_out(&self, ours: &Outcome, vendor: Vendor) -> bool {
        let case = &self.0;
        // The host's descriptor table may contain it.
        if self.reads_unknown_selector() {
            return true;
        }
        // The host's processor has more state components than ours, which must stay as they are.
        let [low, high] = [gpr::EAX, gpr::EDX].map(|register| case.start.gpr[register] as u32);
        if is_extended(case.instruction.mnemonic()) && (low & !7 != 0 || high != 0) {
            return true;
        }
        // If the mask selects no bytes, AMD's processors fault where others and ours do not.
        if self.masks_all_bytes() {
            return true;
        }
        // AMD's processors load an offset of 32 bits (APM vol. 3, LxS).
        if vendor == Vendor::Amd && case.instruction.code() == Code::Lss_r64_m1664 {
            return true;
        }
        match ours.stop {
            // This is an endless loop.
            LongStop::Timeout => true,
            LongStop::Reached => {
                // The bytes fetched in the middle of the instruction could be anything.
                let distance = ours.state.rip.wrapping_sub(case.start.rip) & case.mask();
                let into_itself = distance < case.code.len() as u64;
                // For a PUSH of a segment register, some processors write two bytes and some all: only the
                // latter may fault in the second page.
                let page = u64::from(PAGE_SIZE);
                let crosses_page = ours.state.gpr[gpr::ESP] % page > page - case.word();
                // AMD has instructions there, which raise #UD with a register (APM vol. 3, PREFETCHlevel).
                let is_reserved = matches!(
                    case.instruction.code(),
                    Code::Reservednop_rm16_r16_0F0D
                        | Code::Reservednop_rm32_r32_0F0D
                        | Code::Reservednop_rm64_r64_0F0D
                );
                // They read a doubleword for a word.
                let reads_more = vendor == Vendor::Amd
                    && case.instruction.code() == Code::Movsxd_r16_rm16
                    && self.memory_address() % page > page - 4;
                // They access the image in an area of XSAVE even if the mask selects no component.
                let accesses_image = vendor == Vendor::Amd
                    && is_extended(case.instruction.mnemonic())
                    && low == 0
                    && self.memory_address() % page > page - 512;
                into_itself
                    || reads_more
                    || accesses_image
                    || vendor == Vendor::Intel && is_extended_pause(case)
                    || pushes_segment(case) && crosses_page
                    || vendor == Vendor::Amd && is_reserved
            }
            LongStop::Exception { vector: 14, cr2, .. } => {
                // On the host nothing is mapped there, or it is its kernel's.
                let kernel = Kernel::for_code_of(case.bits);
                let supervisor = cr2.wrapping_sub(kernel.start()) < 8 * u64::from(PAGE_SIZE);
                // In 32-bit code, accesses that wrap around at 4 GiB may raise #SS or #GP (SDM vol. 3, 6.3).
                let is_last = |address: u64| case.bits == 32 && address >= 0xffff_fff0;
                // So may the other operand of CMPS, whose segment AMD's processors check first.
                let other_wraps = compares_strings(&case.instruction)
                    && [gpr::ESI, gpr::EDI].into_iter().any(|index| is_last(ours.state.gpr[index]));
                let wraps = is_last(cr2) || other_wraps;
                // AMD's processors raise #UD without fetching the rest of the instruction.
                let undefined =
                    matches!(case.instruction.mnemonic(), Mnemonic::Ud0 | Mnemonic::Ud1);
                // The translator keeps memory of its own there, which the host's processor can access.
                let own = case.bits == 64 && (0x1100_0000..0x8000_0000).contains(&cr2);
                supervisor || wraps || undefined || own
            }
            // Where VERW clears buffers, by microcode, some of AMD's processors accept LOCK before it.
            LongStop::Exception { vector: 6, .. } => vendor == Vendor::Amd && is_verw(case),
            LongStop::Exception { .. } => false,
        }
    }

    fn forgive(&self, host: &mut Outcome, ours: &Outcome) {
        self.forgive_extended_registers(host, ours);
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
}

/// The bit of MXCSR that only AMD's processors have (APM vol. 2, figure 11-5).
const AMD_MXCSR: u32 = 1 << 17;

/// Returns whether the code is VERW with any prefixes.
fn is_verw(case: &Case) -> bool {
    let options = DecoderOptions::NO_INVALID_CHECK;
    let instruction = Decoder::new(case.bits, &case.code, options).decode();
    instruction.mnemonic() == Mnemonic::Verw
}

/// Returns whether the code is PAUSE with REX.B. For AMD's processors and ours it exchanges RAX and R8 (APM vol. 3,
/// PAUSE); for Intel's it is PAUSE.
fn is_extended_pause(case: &Case) -> bool {
    let is_extended = matches!(case.code.as_slice(), [.., prefix, 0x90] if prefix & 0xf1 == 0x41);
    case.bits == 64 && case.instruction.code() == Code::Pause && is_extended
}

impl IntegerScene {
    /// Accepts that Intel's processors clear the upper halves of RCX, RSI and RDI where a string instruction uses the
    /// lower ones, even if no iteration completes.
    fn forgive_extended_registers(&self, host: &mut Outcome, ours: &Outcome) {
        let is_short = self.0.bits == 64 && self.string_mask() == u64::from(u32::MAX);
        if !is_short || !self.0.instruction.is_string_instruction() {
            return;
        }
        for register in [gpr::ECX, gpr::ESI, gpr::EDI] {
            let value = ours.state.gpr[register];
            if host.state.gpr[register] == u64::from(value as u32) {
                host.state.gpr[register] = value;
            }
        }
    }

    /// Accepts changes that processors make in different ways before a fault. They do no harm, because they
    /// are made again when the instruction starts again.
    fn forgive_at_fault(&self, host: &mut Outcome, ours: &Outcome) {
        if self.0.bits == 64 {
            hide_kernel(host);
        }
        // AMD's processors have one more bit in MXCSR.
        if host.stop == LongStop::Reached
            && is_general_protection(ours)
            && host.state.fx.mxcsr() & AMD_MXCSR != 0
        {
            *host = ours.clone();
        }
        let instruction = &self.0.instruction;
        let faults = (page_fault(host), page_fault(ours));
        if self.0.bits == 64 && self.is_told_otherwise(host, ours) {
            host.stop = ours.stop;
        }
        match (instruction.mnemonic(), faults) {
            // Processors access the parts of the image in different orders, so either of its pages may be the
            // first one to fault.
            (
                Mnemonic::Fxsave | Mnemonic::Fxrstor | Mnemonic::Fxsave64 | Mnemonic::Fxrstor64,
                (Some(_), Some(_)),
            ) => host.stop = ours.stop,
            // The same holds for the area of XSAVE, whose parts are checked in any order too.
            (mnemonic, _) if is_extended(mnemonic) && is_exception(host) => host.stop = ours.stop,
            // AMD's processors check the limit of the stack segment for the first doubleword of an image
            // before its alignment.
            (
                Mnemonic::Fxsave | Mnemonic::Fxrstor | Mnemonic::Fxsave64 | Mnemonic::Fxrstor64,
                _,
            ) if is_stack_limit(host) && is_general_protection(ours) => {
                host.stop = ours.stop;
            }
            // Intel's processors store the return address before they find that the target is not canonical.
            (Mnemonic::Call, (None, None)) if self.0.bits == 64 && is_general_protection(ours) => {
                for byte in 1..=self.0.word() {
                    let address = self.0.start.gpr[gpr::ESP].wrapping_sub(byte);
                    if let Some(place) = data_offset(address) {
                        host.data[place] = ours.data[place];
                    }
                }
            }
            // Some registers may have been popped; ESP has not changed.
            (Mnemonic::Popa | Mnemonic::Popad, _) => {
                let stack_pointer = host.state.gpr[gpr::ESP];
                host.state.gpr = ours.state.gpr;
                host.state.gpr[gpr::ESP] = stack_pointer;
            }
            // TOP and the tags may have been set as for MMX: by AMD's processors for MASKMOVQ, and by Intel's
            // for all stores of an MMX register. Ours always set them before they access memory.
            _ if (0..instruction.op_count()).any(|operand| {
                instruction.op_kind(operand) == OpKind::Register
                    && instruction.op_register(operand).is_mm()
            }) =>
            {
                host.state.fx = ours.state.fx.clone();
            }
            // Intel's processors report any one of the bytes that cannot be written.
            (Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu, (Some(address), Some(_))) => {
                let mask = self.string_mask();
                let offset = address.wrapping_sub(self.0.start.gpr[gpr::EDI]) & mask;
                if offset < 16 {
                    host.stop = ours.stop;
                }
            }
            // A byte that is not written may not be canonical.
            (
                Mnemonic::Maskmovdqu | Mnemonic::Vmaskmovdqu | Mnemonic::Maskmovq,
                (Some(address), None),
            ) => {
                let first = self.0.start.gpr[gpr::EDI] & self.string_mask();
                let is_inside = is_canonical(first) && is_canonical(first.wrapping_add(15));
                if address.wrapping_sub(first) < 16 && !is_inside {
                    host.stop = ours.stop;
                }
            }
            // The elements before the one that faults may have been loaded. Ours loads none of them.
            _ if is_gather(instruction) && is_exception(host) => {
                host.stop = ours.stop;
                host.state.fx = ours.state.fx.clone();
                host.state.upper = ours.state.upper;
            }
            // Intel's processors report any byte of the operand in the page that faults, and some other processors the
            // first one that is accessed.
            _ if is_masked_move(instruction.mnemonic()) && is_exception(host) => {
                host.stop = ours.stop;
            }
            // Intel's processors compare with the lower bound before they read the upper one.
            (Mnemonic::Bound, (None, Some(_))) if is_bound_range(host) => host.stop = ours.stop,
            (_, (Some(_), _)) if compares_strings(instruction) => {
                // Intel's processors read the operand at EDI first.
                host.stop = ours.stop;
                // They also undo the changes of earlier iterations to the flags (SDM vol. 2, REP).
                if (host.state.rflags ^ self.0.start.rflags) & eflags::STATUS == 0 {
                    host.state.rflags = ours.state.rflags;
                }
            }
            // If one operand of CMPS is not mapped and the other is not canonical, each may be checked first.
            (_, (None, Some(_))) if compares_strings(instruction) => {
                let indices = [gpr::ESI, gpr::EDI].map(|index| ours.state.gpr[index]);
                let ends = indices.map(|index| index.wrapping_add(7));
                if !indices.into_iter().chain(ends).all(is_canonical) {
                    host.stop = ours.stop;
                }
            }
            _ => {}
        }
    }

    /// Returns whether processors report different reasons for the faults of such an instruction of 64-bit code.
    fn is_told_otherwise(&self, host: &Outcome, ours: &Outcome) -> bool {
        let instruction = &self.0.instruction;
        let reasons = [host, ours].map(|outcome| match outcome.stop {
            LongStop::Exception { vector, error_code: 0, .. } => vector,
            _ => 0,
        });
        match (instruction.mnemonic(), (page_fault(host), page_fault(ours))) {
            // An operand is neither aligned nor at a canonical address of the stack.
            _ if reasons == [13, 12] && !self.memory_address().is_multiple_of(16) => true,
            // AMD's processors check the target after the stack.
            (Mnemonic::Call, (Some(_), None)) => true,
            (Mnemonic::Call, _) if reasons == [12, 13] => true,
            // They read a doubleword for a word.
            (Mnemonic::Movsxd, _) => instruction.op0_register().size() == 2,
            // They write a quadword for a selector.
            (Mnemonic::Push, _) => pushes_segment(&self.0),
            _ => false,
        }
    }

    /// Accepts differences in the upper bytes on the stack: Intel's recent processors, like ours, do not write
    /// them, and AMD's write zeros to them (SDM vol. 2, PUSH, "IA-32 architecture compatibility").
    fn forgive_unwritten(&self, host: &mut Outcome, ours: &Outcome) {
        if pushes_segment(&self.0) {
            for byte in 2..self.0.word() {
                let address = ours.state.gpr[gpr::ESP].wrapping_add(byte) & self.0.mask();
                if let Some(place) = data_offset(address) {
                    host.data[place] = ours.data[place];
                }
            }
        }
    }

    /// If several operands of DPPS and DPPD are NaNs, the processor chooses which one is the
    /// result (SDM vol. 2, DPPS).
    fn forgive_nans(&self, host: &mut Outcome, ours: &Outcome) {
        let (bits, infinity) = match self.0.instruction.mnemonic() {
            Mnemonic::Dpps | Mnemonic::Vdpps => (32, 0x7f80_0000),
            Mnemonic::Dppd | Mnemonic::Vdppd => (64, 0x7ff0_0000_0000_0000),
            _ => return,
        };
        self.forgive_elements(host, ours, |mut result, ours| {
            for shift in (0..128).step_by(bits) {
                let magnitude = (1_u128 << (bits - 1)) - 1;
                let is_nan = |vector: u128| vector >> shift & magnitude > infinity;
                if is_nan(result) && is_nan(ours) {
                    let element = (magnitude << 1 | 1) << shift;
                    result = result & !element | ours & element;
                }
            }
            result
        });
    }

    /// Changes both halves of the host's destination by `change`, which has ours as well.
    fn forgive_elements(
        &self,
        host: &mut Outcome,
        ours: &Outcome,
        change: impl Fn(u128, u128) -> u128,
    ) {
        let register = self.0.instruction.op0_register().number();
        let fx = &mut host.state.fx;
        fx.set_xmm(register, change(fx.xmm(register), ours.state.fx.xmm(register)));
        let upper = &mut host.state.upper[register];
        *upper = change(*upper, ours.state.upper[register]);
    }

    /// Accepts differences in approximations: the processor chooses their bits, and whether a tiny result is
    /// zero; their relative error is fixed (SDM vol. 2, RCPPS, RSQRTPS).
    fn forgive_approximations(&self, host: &mut Outcome, ours: &Outcome) {
        const LIMIT: f32 = 1.5 / 4096.0;
        if !matches!(
            self.0.instruction.mnemonic(),
            Mnemonic::Rcpps
                | Mnemonic::Rcpss
                | Mnemonic::Rsqrtps
                | Mnemonic::Rsqrtss
                | Mnemonic::Vrcpps
                | Mnemonic::Vrcpss
                | Mnemonic::Vrsqrtps
                | Mnemonic::Vrsqrtss
        ) {
            return;
        }
        self.forgive_elements(host, ours, |mut result, ours| {
            for shift in (0..128).step_by(32) {
                let [their, our] =
                    [result, ours].map(|vector| f32::from_bits((vector >> shift) as u32));
                let is_near = their.is_normal() && (their - our).abs() <= 2.0 * LIMIT * their.abs();
                let is_tiny = their.abs().max(our.abs()) <= f32::MIN_POSITIVE;
                if is_near || is_tiny {
                    let element = u128::from(u32::MAX) << shift;
                    result = result & !element | ours & element;
                }
            }
            result
        });
    }

    /// Accepts differences in an image of FXSAVE: each processor stores the pointers and the opcode in its
    /// own way, and AMD's have one more bit in MXCSR.
    fn forgive_image(&self, host: &mut Outcome, ours: &Outcome) {
        use Mnemonic as M;
        match self.0.instruction.mnemonic() {
            M::Fxsave | M::Fxsave64 => {}
            // Each processor has its own way to track which components are in their initial configuration, too.
            M::Xsave | M::Xsave64 => {
                let address = self.memory_address().wrapping_add(512) & self.0.mask();
                if let Some(place) = data_offset(address) {
                    host.data[place] = host.data[place] & !7 | ours.data[place] & 7;
                }
            }
            _ => return,
        }
        for offset in (6..24).chain(28..32) {
            let address = self.memory_address().wrapping_add(offset) & self.0.mask();
            if let Some(place) = data_offset(address) {
                host.data[place] = ours.data[place];
            }
        }
    }

    /// Accepts any values in results that the manual leaves undefined when the instruction completes.
    fn forgive_undefined(&self, host: &mut Outcome, ours: &Outcome) {
        if host.stop != LongStop::Reached {
            return;
        }
        let undefined = undefined(&self.0.instruction, self.0.start.gpr[gpr::ECX] as u8);
        if undefined.destination {
            *host = ours.clone();
        }
        let mask = undefined.flags.bits();
        host.state.rflags = host.state.rflags & !mask | ours.state.rflags & mask;
    }
}

/// Returns whether this is VMASKMOVPx or VPMASKMOVx.
fn is_masked_move(mnemonic: Mnemonic) -> bool {
    use Mnemonic as M;
    matches!(mnemonic, M::Vmaskmovps | M::Vmaskmovpd | M::Vpmaskmovd | M::Vpmaskmovq)
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

/// Returns whether the case ended in an exception.
fn is_exception(outcome: &Outcome) -> bool {
    matches!(outcome.stop, LongStop::Exception { .. })
}

/// Returns whether the case ended in #SS(0).
fn is_stack_limit(outcome: &Outcome) -> bool {
    matches!(outcome.stop, LongStop::Exception { vector: 12, error_code: 0, .. })
}

/// Returns whether the case ended in #GP(0).
fn is_general_protection(outcome: &Outcome) -> bool {
    matches!(outcome.stop, LongStop::Exception { vector: 13, error_code: 0, .. })
}

/// Returns whether the case ended in #BR.
fn is_bound_range(outcome: &Outcome) -> bool {
    matches!(outcome.stop, LongStop::Exception { vector: 5, .. })
}

/// Returns whether the instruction is PUSH of a segment register with more than 16 bits.
fn pushes_segment(case: &Case) -> bool {
    matches!(
        case.instruction.code(),
        Code::Pushd_ES
            | Code::Pushd_CS
            | Code::Pushd_SS
            | Code::Pushd_DS
            | Code::Pushd_FS
            | Code::Pushd_GS
            | Code::Pushq_FS
            | Code::Pushq_GS
    )
}
