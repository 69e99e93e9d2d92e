//! The processor's state.
//!
//! Other parts of the processor are in the files below: its modes and control registers ([`mode`]), the ways
//! in which instructions stop and ask the machine ([`stop`]), the invalidations of translations
//! ([`invalidations`]), and its saved form ([`saved`]).

pub mod invalidations;
mod mode;
mod saved;
mod stop;

use std::mem::offset_of;

use bitflags::bitflags;
use ring3_core::clock::Clock;
use ring3_core::device::Width;
use ring3_core::memory::PAGE_SIZE;
use serde::{Deserialize, Serialize};

use crate::cpu::invalidations::Invalidations;
use crate::cpuid::{Features, Model};
use crate::debugger::Debugger;
use crate::decode::{CodeMode, CodeSize, Op};
use crate::device_access::DeviceAccess;
use crate::exception::Stop;
use crate::flags::{ALWAYS_ONE, Eflags, Status};
use crate::fpu::Fpu;
use crate::guest_tools::GuestTools;
use crate::histogram::Counting;
use crate::interrupt::Event;
use crate::jumps::Jumps;
use crate::machine_check::MachineCheck;
use crate::mtrr::Mtrrs;
use crate::observer::MemoryAccess;
use crate::segment::{Attributes, Segment, TableRegister, View, sreg};
use crate::softfloat::transcendental::{self, Transcendental};
use crate::sse::Sse;
use crate::system_calls::SystemCalls;
use crate::table::Unlinked;
use crate::tlb::Tlb;
use crate::undefined::Vendor;
use crate::word::Word;

/// General registers by their number in instructions.
pub mod reg {
    /// Accumulator.
    pub const AX: u8 = 0;
    /// Counter.
    pub const CX: u8 = 1;
    /// Data.
    pub const DX: u8 = 2;
    /// Base.
    pub const BX: u8 = 3;
    /// Stack pointer.
    pub const SP: u8 = 4;
    /// Base pointer.
    pub const BP: u8 = 5;
    /// Source index.
    pub const SI: u8 = 6;
    /// Destination index.
    pub const DI: u8 = 7;
    /// No register, which reads as zero: for addresses without base or index.
    pub const NONE: u8 = 16;
    /// The address of the page of the instruction that is executed, for RIP-relative addresses.
    pub(crate) const CODE: u8 = 17;
    /// The size of a page, for RIP-relative addresses.
    pub(crate) const PAGE: u8 = 18;
    /// An address that an instruction has computed.
    pub(crate) const ADDRESS: u8 = 19;
    /// The offset that is added to the number of AX to BX as a byte register to mean AH to BH.
    pub const HIGH_BYTE: u8 = 16;
}

bitflags! {
    /// CR0 (SDM vol. 3, 2.5).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Cr0: u32 {
        /// Protection enable.
        const PE = 1 << 0;
        /// Monitor coprocessor.
        const MP = 1 << 1;
        /// Emulation: there is no x87.
        const EM = 1 << 2;
        /// Task switched.
        const TS = 1 << 3;
        /// Extension type: always 1 since the 486.
        const ET = 1 << 4;
        /// Numeric error: x87 errors are exceptions.
        const NE = 1 << 5;
        /// Write protect: supervisor writes obey read-only pages.
        const WP = 1 << 16;
        /// Alignment mask.
        const AM = 1 << 18;
        /// Not write-through.
        const NW = 1 << 29;
        /// Cache disable.
        const CD = 1 << 30;
        /// Paging.
        const PG = 1 << 31;
    }

    /// CR4 (SDM vol. 3, 2.5).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Cr4: u32 {
        /// Virtual-8086 mode extensions.
        const VME = 1 << 0;
        /// Protected-mode virtual interrupts.
        const PVI = 1 << 1;
        /// RDTSC only at privilege 0.
        const TSD = 1 << 2;
        /// Debugging extensions.
        const DE = 1 << 3;
        /// Page size extensions: 4 MiB pages.
        const PSE = 1 << 4;
        /// Physical address extension.
        const PAE = 1 << 5;
        /// Machine-check enable.
        const MCE = 1 << 6;
        /// Global pages.
        const PGE = 1 << 7;
        /// RDPMC at any privilege.
        const PCE = 1 << 8;
        /// FXSAVE and SSE are supported by the operating system.
        const OSFXSR = 1 << 9;
        /// SIMD floating-point exceptions are supported by the operating system.
        const OSXMMEXCPT = 1 << 10;
        /// User-mode instruction prevention: SGDT, SIDT, SLDT, SMSW and STR only at privilege 0.
        const UMIP = 1 << 11;
        /// RDFSBASE, RDGSBASE, WRFSBASE and WRGSBASE exist.
        const FSGSBASE = 1 << 16;
        /// XSAVE and its relatives exist, and XGETBV tells users of XCR0.
        const OSXSAVE = 1 << 18;
        /// Supervisor-mode execution prevention.
        const SMEP = 1 << 20;
        /// Supervisor-mode access prevention.
        const SMAP = 1 << 21;
    }

    /// Conditions that the engine must handle before it continues at full speed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Attention: u16 {
        /// The machine's answers wait for the next instruction.
        const ANSWERED = 1 << 0;
        /// No interrupt is taken before one more instruction (STI, MOV SS, POP SS).
        const SHADOW = 1 << 1;
        /// TF was set when the instruction began.
        const SINGLE_STEP = 1 << 2;
        /// The instruction is known to write to decoded code.
        const WRITES_CODE = 1 << 3;
        /// The instruction that is executed with TF set does not trap (INT n, MOV SS, POP SS).
        const NO_TRAP = 1 << 4;
        /// RF is set.
        const RESUME = 1 << 5;
        /// A breakpoint is enabled in DR7.
        const BREAKPOINTS = 1 << 6;
        /// The instruction has met conditions that trap after it.
        const DEBUG_TRAP = 1 << 7;
        /// The last instruction loaded SS: no debug exception before the next one.
        const SS_LOADED = 1 << 8;
        /// An NMI must be taken.
        const NMI = 1 << 9;
        /// An observer sees each instruction (see [`crate::observer`]).
        const OBSERVED = 1 << 10;
        /// The guest must stop for the debugger (see [`crate::debugger`]).
        const DEBUGGER = 1 << 11;
    }
}

/// Model-specific registers that only hold a value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Msrs {
    /// IA32_SYSENTER_CS.
    pub sysenter_cs: u32,
    /// IA32_SYSENTER_ESP.
    pub sysenter_esp: u64,
    /// IA32_SYSENTER_EIP.
    pub sysenter_eip: u64,
    /// IA32_EFER.NXE: page-table entries may forbid the execution of a page.
    pub no_execute: bool,
    /// The registers of long mode.
    #[serde(default)]
    pub long: LongMode,
    /// IA32_PAT.
    pub pat: u64,
    /// IA32_APIC_BASE, which is 0 on models without a local APIC. The machine's local APIC has the same
    /// value.
    #[serde(default)]
    pub apic_base: u64,
    /// Subtracted from the machine's time stamp. WRMSR to IA32_TIME_STAMP_COUNTER changes it.
    pub time_stamp_offset: u64,
    /// IA32_TSC_AUX.
    #[serde(default)]
    pub tsc_aux: u32,
    /// XCR0: the state components that XSAVE and XRSTOR know.
    #[serde(default = "xcr0_at_reset")]
    pub xcr0: u64,
    /// The memory type range registers.
    #[serde(default)]
    pub mtrrs: Mtrrs,
    /// The registers of machine checks.
    #[serde(default)]
    pub machine_check: MachineCheck,
}

/// Model-specific registers of processors with long mode (SDM vol. 3, table 2-2 and 6.8.8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LongMode {
    /// IA32_EFER.LME: enabling paging activates long mode.
    pub enabled: bool,
    /// IA32_EFER.SCE: SYSCALL and SYSRET exist.
    pub system_calls: bool,
    /// IA32_STAR: the selectors of SYSCALL and SYSRET.
    pub star: u64,
    /// IA32_LSTAR: RIP after SYSCALL.
    pub lstar: u64,
    /// IA32_CSTAR, which Intel's processors do not use.
    pub cstar: u64,
    /// IA32_FMASK: the flags that SYSCALL clears.
    pub flag_mask: u64,
    /// IA32_KERNEL_GS_BASE, which SWAPGS exchanges with the base of GS.
    pub kernel_gs_base: u64,
}

/// XCR0 after power-on: the x87 alone.
const fn xcr0_at_reset() -> u64 {
    1
}

impl Msrs {
    /// The values after power-on.
    fn at_reset(model: Model) -> Msrs {
        let has_apic = model.features().contains(Features::APIC);
        let apic_base = if has_apic { APIC_BASE_AT_RESET } else { 0 };
        Msrs { pat: PAT_AT_RESET, apic_base, xcr0: xcr0_at_reset(), ..Msrs::default() }
    }

    /// Returns the guest-physical address of the local APIC's registers.
    pub(crate) fn apic_address(&self) -> u64 {
        self.apic_base & !0xfff
    }

    /// Returns whether IA32_APIC_BASE has the global enable bit.
    pub fn apic_is_enabled(&self) -> bool {
        self.apic_base & APIC_GLOBAL_ENABLE != 0
    }
}

/// The machine's answers to the exits of one instruction. An instruction that leaves the engine starts again
/// and finds the answers in the order of its questions.
#[derive(Debug, Clone, Default)]
struct Answers {
    values: Vec<u64>,
    used: usize,
}

/// The processor.
#[derive(Debug, Clone)]
pub struct Cpu {
    /// The general registers 0 to 15, and behind them the values that addresses need ([`reg`]). There are as
    /// many places as a byte has values, so that an index that is a byte is never checked.
    gpr: [u64; 256],
    /// RIP. While an instruction executes, this is the address after the last instruction of its block. For
    /// branches and all others that may end a block, that is the next instruction.
    pub ip: u64,
    /// The status flags.
    pub status: Status,
    /// EFLAGS without the status flags.
    pub(crate) system_flags: Eflags,
    segments: [Segment; 8],
    /// Grows when a segment register is loaded.
    segment_loads: u64,
    /// What accesses need of them.
    views: [View; 8],
    /// The bits of a linear address in the running code: 64 in 64-bit mode, and otherwise 32.
    linear_mask: u64,
    /// The bits of RSP that are used.
    stack_mask: u64,
    /// Local descriptor table register.
    pub ldtr: Segment,
    /// Task register.
    pub tr: Segment,
    /// Global descriptor table register.
    pub gdtr: TableRegister,
    /// Interrupt descriptor table register.
    pub idtr: TableRegister,
    pub(crate) cr0: Cr0,
    /// The address of the last page fault.
    pub cr2: u64,
    pub(crate) cr3: u64,
    pub(crate) cr4: Cr4,
    /// The page-directory-pointer-table entries, with PAE paging.
    pub(crate) pdptes: [u64; 4],
    /// Debug registers 0 to 7.
    pub(crate) dr: [u64; 8],
    /// Model-specific registers.
    pub msrs: Msrs,
    /// The x87 FPU.
    pub fpu: Fpu,
    /// The clock of the time-stamp counter, which counts the nanoseconds of virtual time. Without a clock,
    /// the machine is asked ([`Exit::TimeStamp`](crate::engine::Exit::TimeStamp)). It is not part of the
    /// processor's state but of the machine's.
    pub clock: Option<Clock>,
    /// The functions that compute transcendental results. They are not state, but a choice made when the
    /// machine was built.
    pub transcendental: Transcendental,
    /// The vendor whose processors' results appear in flags that the manual leaves undefined.
    pub vendor: Vendor,
    /// The registers of SSE.
    pub sse: Sse,
    cpl: u8,
    /// Whether CPL has been 3 since the last [`Cpu::take_users`].
    has_run_users: bool,
    /// The mode in which code is decoded now.
    code_mode: CodeMode,
    /// The tag of [`Cpu::fetch_key`].
    fetch_tag: u64,
    /// The model that the guest sees.
    pub model: Model,
    /// The tools that software finds by CPUID. They are not state, but a choice made when the machine was
    /// built.
    pub guest_tools: GuestTools,
    /// The counts of executed instructions by their form.
    pub(crate) counting: Counting,

    /// The INTR pin, by which the interrupt controller requests an interrupt.
    pub interrupt_pin: bool,
    /// The mask of guest-physical addresses that leave the processor; see [`Cpu::set_a20`].
    pub(crate) address_mask: u64,
    /// Whether an NMI has arrived and was not taken yet.
    pub(crate) nmi_pending: bool,
    /// Whether an NMI was taken, so that no other one is taken before IRET.
    pub(crate) nmi_blocked: bool,
    /// The conditions of [`Attention::DEBUG_TRAP`], as bits of DR6.
    pub(crate) debug_conditions: u32,
    /// Whether the processor is in HLT, or before an instruction with which it waits for an interrupt.
    pub(crate) halted: bool,
    /// The exception or interrupt that is being delivered.
    pub(crate) event: Option<Event>,
    /// The conditions that the engine must handle.
    pub(crate) attention: Attention,
    answers: Answers,
    /// The device access of the last exit that can be finished without the engine.
    pub(crate) device_access: Option<DeviceAccess>,
    /// Why the last instruction stopped.
    pub(crate) stop: Stop,
    /// The number of that instruction among the decoded instructions of its page.
    pub(crate) stopped_at: usize,
    /// The number of the first instruction of the block that is being executed.
    pub(crate) block: usize,
    /// How many instructions may be executed after this block before the engine must check for events.
    pub(crate) left: u64,
    /// The branch by which the last block was left, if it has no link to its target yet.
    pub(crate) unlinked: Option<Unlinked>,
    /// Instructions executed since the machine was switched on.
    pub instructions: u64,
    /// The count of instructions at which the guest last looked for long mode, by CPUID or by IA32_EFER. It
    /// is not state: it tells people why a guest gives up.
    pub long_mode_sought: Option<u64>,
    /// The instruction count at which the engine must return.
    pub(crate) deadline: u64,
    /// Whether writes to decoded code stop the instruction (see [`Stop::WritesCode`]).
    pub(crate) guard_code: bool,
    pub(crate) tlb: Tlb,
    /// Whether CR0.AM and EFLAGS.AC are set, so that accesses at privilege 3 must be aligned.
    pub(crate) checks_alignment: bool,
    /// Grows when the bytes fetched at an address may have changed, or code that was decoded there was
    /// dropped.
    pub(crate) fetch_generation: u64,
    /// The decoded blocks at linear addresses.
    jumps: Jumps,
    /// The translations that an engine other than the interpreter must drop.
    invalidations: Invalidations,
    /// What the debugger outside has set.
    pub(crate) debugger: Debugger,
    /// Who is told of system calls. Like an observer, this is no state.
    pub(crate) system_calls: SystemCalls,
    /// Number of page walks.
    pub(crate) page_walks: u64,
    /// Whether an observer wants to know of memory accesses.
    pub(crate) notes_accesses: bool,
    /// The accesses for the observer.
    pub(crate) accesses: Vec<MemoryAccess>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self::new()
    }
}

impl Cpu {
    /// Offset of general registers 0 to 15, 64 bits each, for an engine that keeps registers elsewhere.
    pub const GENERAL_REGISTERS: usize = offset_of!(Cpu, gpr);
    /// Offset of CR0, 32 bits.
    pub const CONTROL_REGISTER_0: usize = offset_of!(Cpu, cr0);
    /// Offset of CR2, 64 bits.
    pub const CONTROL_REGISTER_2: usize = offset_of!(Cpu, cr2);
    /// Offset of CR3, 64 bits.
    pub const CONTROL_REGISTER_3: usize = offset_of!(Cpu, cr3);
    /// Offset of CR4, 32 bits.
    pub const CONTROL_REGISTER_4: usize = offset_of!(Cpu, cr4);
    /// Offset of debug registers 0 to 7. DR4 and DR5 have no storage of their own.
    pub const DEBUG_REGISTERS: usize = offset_of!(Cpu, dr);

    /// Makes a processor of the default model after power-on.
    pub fn new() -> Cpu {
        Cpu::of_model(Model::default())
    }

    /// Makes a processor of model `model` after power-on (SDM vol. 3, table 10-1).
    pub fn of_model(model: Model) -> Cpu {
        let data = Segment::real(0, 0);
        let mut cpu = Cpu {
            gpr: [0; 256],
            ip: 0xfff0,
            status: Status::default(),
            system_flags: Eflags::empty(),
            segments: [data; 8],
            segment_loads: 0,
            views: [View::of(&data); 8],
            linear_mask: LINEAR_32_BIT,
            stack_mask: 0xffff,
            ldtr: Segment::new(0, 0, 0xffff, Attributes(0x82)),
            tr: Segment::new(0, 0, 0xffff, Attributes(0x8b)),
            gdtr: TableRegister { base: 0, limit: 0xffff },
            idtr: TableRegister { base: 0, limit: 0xffff },
            cr0: Cr0::ET | Cr0::NW | Cr0::CD,
            cr2: 0,
            cr3: 0,
            cr4: Cr4::empty(),
            pdptes: [0; 4],
            dr: [0, 0, 0, 0, 0, 0, 0xffff_0ff0, 0x400],
            msrs: Msrs::at_reset(model),
            fpu: Fpu::default(),
            clock: None,
            transcendental: transcendental::execute,
            vendor: Vendor::default(),
            sse: Sse::default(),
            cpl: 0,
            has_run_users: false,
            code_mode: CodeMode { size: CodeSize::Bits16, is_flat: false },
            fetch_tag: 0,
            model,
            guest_tools: GuestTools::default(),
            counting: Counting::default(),
            interrupt_pin: false,
            address_mask: u64::MAX,
            nmi_pending: false,
            nmi_blocked: false,
            debug_conditions: 0,
            halted: false,
            event: None,
            attention: Attention::empty(),
            answers: Answers::default(),
            device_access: None,
            stop: Stop::Unfinished,
            stopped_at: 0,
            block: 0,
            left: 0,
            unlinked: None,
            instructions: 0,
            long_mode_sought: None,
            deadline: 0,
            guard_code: false,
            tlb: Tlb::default(),
            checks_alignment: false,
            fetch_generation: 0,
            jumps: Jumps::default(),
            invalidations: Invalidations::everything(),
            debugger: Debugger::default(),
            system_calls: SystemCalls::default(),
            page_walks: 0,
            notes_accesses: false,
            accesses: Vec::new(),
        };
        cpu.gpr[usize::from(reg::PAGE)] = PAGE_SIZE;
        cpu.set_segment(sreg::CS, Segment::new(0xf000, 0xffff_0000, 0xffff, Attributes(0x93)));
        cpu.set_gpr(reg::DX, u64::from(model.signature()));
        cpu
    }

    /// Brings the processor into the state in which a boot sector starts: real mode with all segments at
    /// `segment` and EIP at `offset`.
    pub fn set_real_mode_entry(&mut self, segment: u16, offset: u16) {
        for register in 0..6 {
            self.set_segment(register, Segment::real(segment, 0));
        }
        self.ip = u64::from(offset);
    }

    /// Puts the processor into 32-bit protected mode without paging, at
    /// privilege 0, with flat segments under the selectors `code` and `data`,
    /// interrupts disabled, at `eip`.
    pub fn set_flat_entry(&mut self, code: u16, data: u16, eip: u32) {
        self.set_cr0(Cr0::PE);
        self.set_segment(sreg::CS, Segment::new(code, 0, u32::MAX, Attributes(0xc09b)));
        for register in [sreg::ES, sreg::SS, sreg::DS, sreg::FS, sreg::GS] {
            self.set_segment(register, Segment::new(data, 0, u32::MAX, Attributes(0xc093)));
        }
        self.ip = u64::from(eip);
    }

    /// General register `number`, 0 to 15.
    #[inline(always)]
    pub fn gpr(&self, number: u8) -> u64 {
        self.gpr[usize::from(number)]
    }

    /// Sets all bits of general register `number`, 0 to 15.
    #[inline(always)]
    pub fn set_gpr(&mut self, number: u8, value: u64) {
        self.gpr[usize::from(number)] = value;
    }

    /// Reads general register `number` as a word of size `W`; for bytes, see [`reg::HIGH_BYTE`].
    #[inline(always)]
    pub fn get<W: Word>(&self, number: u8) -> W {
        let (register, shift) = part::<W>(number);
        W::truncate(self.gpr[register] >> shift)
    }

    /// Writes general register `number` as a word of size `W`. Bytes and words leave the rest of the register
    /// alone; doublewords clear the upper half (SDM vol. 1, 3.4.1.1).
    #[inline(always)]
    pub fn set<W: Word>(&mut self, number: u8, value: W) {
        let (register, shift) = part::<W>(number);
        let register = &mut self.gpr[register];
        let value = value.zero_extend();
        *register = match W::BITS {
            8 | 16 => *register & !(W::MASK << shift) | value << shift,
            _ => value,
        };
    }

    /// EFLAGS.
    pub fn eflags(&self) -> Eflags {
        self.system_flags | self.status.to_eflags()
    }

    /// Sets the status flags and DF to those of `flags`.
    pub fn set_status_and_direction(&mut self, flags: Eflags) {
        self.status = Status::from_eflags(flags);
        self.system_flags.set(Eflags::DF, flags.contains(Eflags::DF));
    }

    /// Returns whether instructions execute without any special conditions: they are not single-stepped, no
    /// breakpoint is enabled, no answer, exception or NMI is pending, and the processor is not halted. It
    /// clears RF, which then has no effect, as each instruction does.
    pub fn begins_to_run_plainly(&mut self) -> bool {
        let is_plain = self.runs_plainly_but_for_resume_flag();
        if is_plain && self.attention.contains(Attention::RESUME) {
            self.use_resume_flag();
        }
        is_plain
    }

    /// Returns whether the next instruction executes without any special condition but, perhaps, RF.
    pub fn runs_plainly_but_for_resume_flag(&self) -> bool {
        (self.attention - Attention::RESUME).is_empty() && self.event.is_none() && !self.halted
    }

    /// Returns whether the next instruction is executed with TF set, and under no other special condition.
    pub fn begins_single_step(&self) -> bool {
        self.attention - Attention::RESUME == Attention::SINGLE_STEP
            && self.event.is_none()
            && !self.halted
            && !(self.interrupt_pin && self.is_interruptible())
    }

    /// Returns EFLAGS as it is pushed, with bit 1 set.
    pub(crate) fn eflags_image(&self) -> u32 {
        self.eflags().bits() | ALWAYS_ONE
    }

    /// Sets all of EFLAGS, which no single instruction can do.
    pub fn set_eflags(&mut self, flags: Eflags) {
        self.status = Status::from_eflags(flags);
        self.system_flags = flags - Eflags::STATUS;
        self.attention.set(Attention::SINGLE_STEP, flags.contains(Eflags::TF));
        self.attention.set(Attention::RESUME, flags.contains(Eflags::RF));
        self.update_cpl();
        self.forget_open_pages();
    }

    /// Holds interrupts and the single-step trap back after an instruction that loads SS, until the next one,
    /// which may load ESP, is complete (SDM vol. 3, 7.8.3).
    pub fn hold_interrupts_back(&mut self) {
        self.attention |= Attention::SHADOW | Attention::SS_LOADED;
        self.hold_trap_back(self.attention);
    }

    /// Suppresses the single-step trap after this instruction, if TF was set when it began (`before`).
    pub(crate) fn hold_trap_back(&mut self, before: Attention) {
        self.attention.set(Attention::NO_TRAP, before.contains(Attention::SINGLE_STEP));
    }

    /// Changes the bits of EFLAGS in `mask` to those of `flags`.
    pub(crate) fn change_eflags(&mut self, flags: Eflags, mask: Eflags) {
        let before = self.system_flags;
        let after = (before - mask) | (flags & (mask - Eflags::STATUS));
        if mask.intersects(Eflags::STATUS) || (before ^ after).intersects(Eflags::VM | Eflags::AC) {
            return self.set_eflags((self.eflags() - mask) | (flags & mask));
        }
        self.system_flags = after;
        self.attention.set(Attention::SINGLE_STEP, after.contains(Eflags::TF));
        self.attention.set(Attention::RESUME, after.contains(Eflags::RF));
    }

    /// Sets TF, as the last part of a POPF that another engine has executed.
    pub fn set_trap_flag(&mut self) {
        self.change_eflags(Eflags::TF, Eflags::TF);
    }

    /// Returns whether the system flag `flag` is set.
    #[inline(always)]
    pub(crate) fn has_flag(&self, flag: Eflags) -> bool {
        self.system_flags.contains(flag)
    }

    /// I/O privilege level.
    pub(crate) fn iopl(&self) -> u8 {
        ((self.system_flags & Eflags::IOPL).bits() >> 12) as u8
    }

    /// Segment register `register`, 0 to 5.
    #[inline(always)]
    pub fn segment(&self, register: u8) -> &Segment {
        &self.segments[usize::from(register & 7)]
    }

    /// The segment registers by number, 0 to 5. The other two elements are not used.
    pub fn segments(&self) -> &[Segment; 8] {
        &self.segments
    }

    /// Returns a number that grows when a segment register is loaded. It is no part of the processor's state.
    pub fn segment_loads(&self) -> u64 {
        self.segment_loads
    }

    /// Sets segment register `register`, 0 to 5, with its hidden part.
    pub fn set_segment(&mut self, register: u8, segment: Segment) {
        self.segments[usize::from(register & 7)] = segment;
        self.segment_loads += 1;
        self.update_view(register);
        if register == sreg::SS {
            self.update_cpl();
        }
        self.update_code_mode();
    }

    /// What an access through segment register `register` needs of it.
    #[inline(always)]
    pub(crate) fn view(&self, register: u8) -> &View {
        &self.views[usize::from(register & 7)]
    }

    /// Returns the linear address of `offset` in the segment of `view`.
    #[inline(always)]
    pub(crate) fn linear(&self, view: &View, offset: u64) -> u64 {
        view.base.wrapping_add(offset) & self.linear_mask
    }

    /// Returns the linear address `distance` bytes after `linear` in the running code's address space.
    #[inline(always)]
    pub(crate) fn linear_after(&self, linear: u64, distance: u64) -> u64 {
        linear.wrapping_add(distance) & self.linear_mask
    }

    /// Returns the linear address of CS:RIP.
    #[inline(always)]
    pub fn linear_ip(&self) -> u64 {
        self.linear(self.view(sreg::CS), self.ip)
    }

    /// While an instruction executes: its address minus its offset in the page.
    #[inline(always)]
    pub(crate) fn code_base(&self) -> u64 {
        self.gpr(reg::CODE)
    }

    /// Sets [`Cpu::code_base`].
    #[inline(always)]
    pub(crate) fn set_code_base(&mut self, base: u64) {
        self.set_gpr(reg::CODE, base);
    }

    /// Returns RIP `bytes` after `start`. In 16-bit code it does not wrap at 64 KiB: sequential code runs
    /// into the limit of CS.
    #[inline(always)]
    pub(crate) fn next_ip(&self, start: u64, bytes: u64) -> u64 {
        start.wrapping_add(bytes) & self.linear_mask
    }

    /// Returns the address in CS of the instruction `op`, which is being executed.
    pub(crate) fn instruction_address(&self, op: &Op) -> u64 {
        self.next_ip(self.code_base(), op.offset.into())
    }
}

/// The bits of a linear address outside 64-bit mode.
const LINEAR_32_BIT: u64 = 0xffff_ffff;

/// The global enable bit of IA32_APIC_BASE.
const APIC_GLOBAL_ENABLE: u64 = 1 << 11;
/// IA32_APIC_BASE after power-on: at FEE00000h, enabled, of the processor that starts first (SDM
/// vol. 3, 12.4.4).
const APIC_BASE_AT_RESET: u64 = 0xfee0_0900;

/// IA32_PAT after power-on: WB, WT, UC-, UC, twice (SDM vol. 3, table 13-12).
const PAT_AT_RESET: u64 = 0x0007_0406_0007_0406;

/// Returns the general register that contains register `number` of the size of `W`, and the lowest bit of
/// that part.
#[inline(always)]
fn part<W: Word>(number: u8) -> (usize, u32) {
    match W::BITS {
        8 => (usize::from(number & 15), u32::from((number & reg::HIGH_BYTE) >> 1)),
        _ => (usize::from(number), 0),
    }
}

/// Returns the width of an access of size `W` to a device. Quadwords are accessed in two parts.
pub(crate) const fn width_of<W: Word>() -> Width {
    match W::BITS {
        8 => Width::Byte,
        16 => Width::Word,
        _ => Width::Dword,
    }
}
