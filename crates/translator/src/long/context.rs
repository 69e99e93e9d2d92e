//! The context of 64-bit code: the state that translated code and the engine share, and the ways into
//! translated code and out of it. It is at a fixed address below 2 GiB, which translated code contains.
//!
//! # Registers in translated code
//!
//! | host | use |
//! | --- | --- |
//! | RAX, RCX, RDX, RBX, RBP, RSI, RDI, R12 to R15 | the guest's registers of the same name |
//! | XMM0 to XMM15, MXCSR | the guest's, from a block's first SSE instruction on; with AVX YMM0 to YMM15 |
//! | the x87's registers | the guest's, from a block's first x87 or MMX instruction on |
//! | R8 | the guest's RSP |
//! | R9 | the budget: an address in [`Budget`](crate::budget::Budget), less one for each instruction |
//! | R10 | free inside of an instruction |
//! | R11 | the same; between instructions of users it may hold the distance of the second group of units |
//! | status flags and DF | the guest's |
//! | GS | its base is the [distance](crate::memory::units) of the address space |
//! | RSP | the [stack of returns](crate::returns) of the address space |
//!
//! The guest's R8 to R11 are in the context.

use std::arch::naked_asm;
use std::mem::offset_of;

use iced_x86::Register;
use libc::{c_int, greg_t};

use crate::context::{
    HostFault, IMAGE, Image, MXCSR, STATUS_AND_DIRECTION, TimeStamp, keep_registers,
    return_to_engine,
};
use crate::long::calls::{Side, crossed_to};
use crate::long::distances::NOWHERE;
use crate::long::routines;
use crate::long::shared::Shared;
use numeric::{numeric_ready, upper_halves, vectors, vectors_ask, vectors_load, x87_ask, x87_load};

mod numeric;

/// The offset in the image that FXSAVE writes of MXCSR, and of XMM0 (SDM vol. 1, table 10-3).
pub(crate) const IMAGE_MXCSR: usize = 24;
pub(crate) const IMAGE_VECTORS: usize = 160;
/// Bytes of all XMM registers there.
pub(crate) const VECTORS: usize = 16 * 16;

/// Values of [`LongContext::is_live`]: which of the guest's numeric registers are in the host's.
mod live {
    pub(super) const NOTHING: u32 = 0;
    /// Those of SSE.
    pub(super) const VECTORS: u32 = 1;
    /// Those of SSE and the x87.
    pub(super) const ALL: u32 = 2;
}

/// The reasons why translated code was left ([`LongContext::exit`]). Larger numbers are those of [exits].
///
/// [exits]: crate::long::block::Exit
pub(crate) mod reason {
    /// A signal came.
    pub(crate) const SIGNAL: u32 = 0;
    /// There is no code for [`LongContext::rip`](super::LongContext::rip).
    pub(crate) const LOOK_UP: u32 = 1;
    /// The interpreter must execute the instruction at the site whose call of a routine ends at `fault.rip`.
    pub(crate) const CALLED: u32 = 2;
    /// The SSE instruction at the site whose call of a routine ends at `fault.rip` needs the guest's
    /// registers.
    pub(crate) const VECTORS: u32 = 3;
    /// The same for an x87 or MMX instruction.
    pub(crate) const X87: u32 = 4;
    /// The first number of an exit.
    pub(crate) const EXITS: u32 = 5;
}

/// A value of [`LongContext::set_distance`] that no distance has.
pub(crate) const UNKNOWN_DISTANCE: u64 = 1;

/// Numbers of [`LongContext::distances`]. Those of other numbers are 0. 0 is that of [`NOWHERE`].
pub(crate) mod numbers {
    use crate::long::distances::GROUPS;

    /// The first one of the supervisor's groups of units.
    pub(crate) const SUPERVISOR: usize = 1;
    /// The first one of the users' groups.
    pub(crate) const USER: usize = SUPERVISOR + GROUPS;
    /// The first one of the users' groups for accesses of the supervisor: [`NOWHERE`](super::NOWHERE) while
    /// SMAP forbids them.
    pub(crate) const OF_USERS: usize = USER + GROUPS;
    /// Number of the users' groups that the supervisor can access.
    pub(crate) const ACCESSED: usize = 2;
}

/// [`LongContext::distances`] while no unit is owned.
const NO_DISTANCES: [u64; 256] = {
    let mut distances = [0; 256];
    distances[0] = NOWHERE;
    distances
};

/// See the module.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct LongContext {
    /// RAX to R15.
    pub(crate) gpr: [u64; 16],
    pub(crate) rip: u64,
    /// RFLAGS.
    pub(crate) flags: u64,
    /// See [`reason`].
    pub(crate) exit: u32,
    /// Which of the guest's numeric registers are in the host's: see [`live`].
    is_live: u32,
    /// The value of R9.
    pub(crate) budget: u64,
    /// The base of GS.
    pub(crate) distance: u64,
    /// The bases of the guest's FS and GS.
    pub(crate) bases: [u64; 2],
    /// The address of the jump table.
    pub(crate) table: u64,
    /// RSP when translated code is entered, and when it was left.
    pub(crate) returns: u64,
    /// The number whose sum with RSP is 0 while the stack of returns is empty.
    pub(crate) no_returns: u64,
    /// The guest's RCX while a branch looks into the jump table, or before a repeated instruction that compares.
    pub(crate) saved_rcx: u64,
    /// The address of [`leave`].
    leave: u64,
    /// The addresses of [code that blocks share](crate::long::shared).
    pub(crate) shared: Shared,
    /// The number of the exit while a return goes by the jump table.
    pub(crate) missed_exit: u32,
    /// The address of the routine that a block calls before its first SSE instruction.
    vector_check: u64,
    /// The address of the routine that a block calls before its first AVX instruction.
    avx_check: u64,
    /// The address of the routine that a block calls before its first x87 or MMX instruction.
    x87_check: u64,
    /// The value of `vector_check` when all registers have been loaded.
    vectors_then: u64,
    /// The value of `avx_check` when those of SSE have been loaded.
    avx_then: u64,
    /// Whether the upper halves of the YMM registers are loaded and saved with the lower ones: AVX is enabled.
    has_upper: u32,
    /// The host address at which translated code is entered.
    pub(crate) target: u64,
    /// RSP outside of translated code.
    pub(crate) host_stack: u64,
    /// The signal for which translated code was left. For some other reasons, too, [`HostFault::rip`] is
    /// where that was.
    pub(crate) fault: HostFault,
    /// R10 and R11 then.
    pub(crate) scratch: [u64; 2],
    /// The address that a repeated string instruction reads when its iterations are done. The read faults if they
    /// are only some of those that the guest's count demands.
    pub(crate) after_repeating: u64,
    /// The guest's numeric registers while they are not in the host's. See [`crate::long::numeric`].
    pub(crate) image: Image,
    /// The upper halves of the YMM registers while they are not in the host's.
    pub(crate) upper: [u128; 16],
    /// The x87's status word after the last FLDCW, or 0 if there was none since the registers came into the
    /// image, or FNCLEX came after it.
    pub(crate) loaded_status: u32,
    /// The offset of the last memory operand of an x87 instruction that the host accesses at another one.
    pub(crate) x87_operand: u64,
    /// The value of MXCSR outside of translated code.
    host_mxcsr: u32,
    /// The base that GS has, or [`UNKNOWN_DISTANCE`].
    pub(crate) set_distance: u64,
    /// The guest's RAX while a routine uses it.
    pub(crate) saved_rax: u64,
    /// IF in its place in RFLAGS, or 0.
    pub(crate) interrupt_flag: u32,
    /// Whether the interrupt pin is high.
    pub(crate) interrupt_pin: u32,
    /// RFLAGS without the flags [in other places](crate::long::system::IN_PLACE), RF and VM.
    pub(crate) other_flags: u64,
    /// The flags that are in the host's RFLAGS.
    host_flags_mask: u64,
    /// IA32_KERNEL_GS_BASE, which SWAPGS exchanges with the base of GS.
    pub(crate) other_base: u64,
    /// The value of R9 after the last STI that has set IF, or 0 if there was none since translated code was
    /// entered.
    pub(crate) after_sti: u64,
    /// The address of the processor's state ([`Cpu`](ring3_x86::cpu::Cpu)).
    pub(crate) cpu: u64,
    /// The spaces of the supervisor and of users, while SYSCALL and SYSRET may go from one to the other.
    pub(crate) sides: [Side; 2],
    /// The selectors in the segment registers, by their numbers.
    pub(crate) selectors: [u32; 6],
    /// See [`crossed_to`].
    pub(crate) crossed_to: u32,
    /// IA32_FMASK.
    pub(crate) flag_mask: u64,
    /// IA32_LSTAR, and the offset in the supervisor's jump table of the code there.
    pub(crate) system_entry: u64,
    pub(crate) system_entry_slot: u64,
    /// The host address of the code that a call leads to, while its return address is stored.
    pub(crate) callee: u64,
    /// The distances that [far sites](crate::long::far_sites) take, by number: see [`numbers`].
    pub(crate) distances: [u64; 256],
    /// The time for RDTSC, and IA32_TSC_AUX, which RDTSCP also reads.
    pub(crate) time: TimeStamp,
    pub(crate) tsc_aux: u64,
    /// The addresses of [routines].
    time_stamp: u64,
    sti: u64,
    popf: u64,
    syscall: u64,
    sysret: u64,
    ask_interpreter: u64,
}

/// Offsets in the context.
pub(crate) mod at {
    use std::mem::offset_of;

    use super::{LongContext, Side, numbers};
    use crate::long::distances::SECOND;

    pub(crate) const RIP: u32 = offset_of!(LongContext, rip) as u32;
    pub(crate) const BASES: u32 = offset_of!(LongContext, bases) as u32;
    pub(crate) const TABLE: u32 = offset_of!(LongContext, table) as u32;
    pub(crate) const NO_RETURNS: u32 = offset_of!(LongContext, no_returns) as u32;
    pub(crate) const SAVED_RCX: u32 = offset_of!(LongContext, saved_rcx) as u32;
    pub(crate) const INTERRUPT_FLAG: u32 = offset_of!(LongContext, interrupt_flag) as u32;
    pub(crate) const OTHER_FLAGS: u32 = offset_of!(LongContext, other_flags) as u32;
    pub(crate) const HOST_FLAGS_MASK: u32 = offset_of!(LongContext, host_flags_mask) as u32;
    pub(crate) const OTHER_BASE: u32 = offset_of!(LongContext, other_base) as u32;
    pub(crate) const CPU: u32 = offset_of!(LongContext, cpu) as u32;
    pub(crate) const TSC_AUX: u32 = offset_of!(LongContext, tsc_aux) as u32;
    pub(crate) const TIME_STAMP: u32 = offset_of!(LongContext, time_stamp) as u32;
    pub(crate) const STI: u32 = offset_of!(LongContext, sti) as u32;
    pub(crate) const POPF: u32 = offset_of!(LongContext, popf) as u32;
    pub(crate) const SYSCALL: u32 = offset_of!(LongContext, syscall) as u32;
    pub(crate) const SYSRET: u32 = offset_of!(LongContext, sysret) as u32;
    pub(crate) const ASK_INTERPRETER: u32 = offset_of!(LongContext, ask_interpreter) as u32;
    pub(crate) const AFTER_REPEATING: u32 = offset_of!(LongContext, after_repeating) as u32;
    pub(crate) const SUPERVISOR_DISTANCE: u32 = side_at(0) + DISTANCE;
    pub(crate) const SUPERVISOR_TABLE: u32 = side_at(0) + SIDE_TABLE;
    pub(crate) const USER_DISTANCE: u32 = side_at(1) + DISTANCE;
    pub(crate) const USER_TABLE: u32 = side_at(1) + SIDE_TABLE;
    pub(crate) const SUPERVISOR_RETURNS: u32 = side_at(0) + RETURNS;
    pub(crate) const SUPERVISOR_NO_RETURNS: u32 = side_at(0) + SIDE_NO_RETURNS;
    pub(crate) const USER_RETURNS: u32 = side_at(1) + RETURNS;
    pub(crate) const USER_NO_RETURNS: u32 = side_at(1) + SIDE_NO_RETURNS;
    pub(crate) const SUPERVISOR_SELECTORS: u32 = side_at(0) + SIDE_SELECTORS;
    pub(crate) const USER_SELECTORS: u32 = side_at(1) + SIDE_SELECTORS;
    /// Of those in CS and SS.
    pub(crate) const CODE_AND_STACK: u32 = selector(1);
    const SIDE_SELECTORS: u32 = offset_of!(Side, selectors) as u32;
    const RETURNS: u32 = offset_of!(Side, returns) as u32;
    const SIDE_NO_RETURNS: u32 = offset_of!(Side, no_returns) as u32;
    const DISTANCE: u32 = offset_of!(Side, distance) as u32;
    const SIDE_TABLE: u32 = offset_of!(Side, table) as u32;

    const fn side_at(number: usize) -> u32 {
        (offset_of!(LongContext, sides) + number * size_of::<Side>()) as u32
    }

    pub(crate) const CALLEE: u32 = offset_of!(LongContext, callee) as u32;

    /// Returns the offset of the selector in the segment register with this number.
    pub(crate) const fn selector(number: usize) -> u32 {
        (offset_of!(LongContext, selectors) + number * size_of::<u32>()) as u32
    }

    /// Returns the offset of the distance with this number.
    pub(crate) const fn distance(number: usize) -> u32 {
        (offset_of!(LongContext, distances) + number * size_of::<u64>()) as u32
    }

    /// Of the distance of the users' second group of units.
    pub(crate) const SECOND_DISTANCE: u32 = distance(numbers::USER + SECOND);
    pub(crate) const LEAVE: u32 = offset_of!(LongContext, leave) as u32;
    pub(crate) const WAY_OUT: u32 = offset_of!(LongContext, shared.way_out) as u32;
    pub(crate) const MISSED: u32 = offset_of!(LongContext, shared.missed) as u32;
    pub(crate) const RETURN_ELSEWHERE: u32 = offset_of!(LongContext, shared.elsewhere) as u32;
    pub(crate) const MISSED_EXIT: u32 = offset_of!(LongContext, missed_exit) as u32;
    pub(crate) const VECTOR_CHECK: u32 = offset_of!(LongContext, vector_check) as u32;
    pub(crate) const AVX_CHECK: u32 = offset_of!(LongContext, avx_check) as u32;
    pub(crate) const X87_CHECK: u32 = offset_of!(LongContext, x87_check) as u32;
    pub(crate) const LOADED_STATUS: u32 = offset_of!(LongContext, loaded_status) as u32;
    pub(crate) const X87_OPERAND: u32 = offset_of!(LongContext, x87_operand) as u32;
}

/// Returns the offset in the context of one of R8 to R11.
pub(crate) fn register_at(register: Register) -> u32 {
    (offset_of!(LongContext, gpr) + register.number() * size_of::<u64>()) as u32
}

impl LongContext {
    pub(crate) fn new() -> LongContext {
        LongContext {
            gpr: [0; 16],
            rip: 0,
            flags: 0,
            exit: 0,
            is_live: live::NOTHING,
            budget: 0,
            distance: 0,
            bases: [0; 2],
            table: 0,
            returns: 0,
            no_returns: 0,
            saved_rcx: 0,
            leave: leave as *const () as u64,
            shared: Shared::default(),
            missed_exit: 0,
            vector_check: vectors_ask as *const () as u64,
            avx_check: vectors_ask as *const () as u64,
            x87_check: x87_ask as *const () as u64,
            vectors_then: vectors_ask as *const () as u64,
            avx_then: vectors_ask as *const () as u64,
            has_upper: 0,
            target: 0,
            host_stack: 0,
            fault: HostFault::default(),
            scratch: [0; 2],
            after_repeating: 0,
            image: Image([0; IMAGE]),
            upper: [0; 16],
            loaded_status: 0,
            x87_operand: 0,
            host_mxcsr: MXCSR,
            set_distance: UNKNOWN_DISTANCE,
            saved_rax: 0,
            interrupt_flag: 0,
            interrupt_pin: 0,
            other_flags: 0,
            host_flags_mask: STATUS_AND_DIRECTION.into(),
            other_base: 0,
            after_sti: 0,
            cpu: 0,
            sides: [Side::default(); 2],
            selectors: [0; 6],
            crossed_to: crossed_to::NOTHING,
            flag_mask: 0,
            system_entry: 0,
            system_entry_slot: 0,
            callee: 0,
            distances: NO_DISTANCES,
            time: TimeStamp::default(),
            tsc_aux: 0,
            time_stamp: routines::ask_interpreter as *const () as u64,
            sti: routines::sti as *const () as u64,
            popf: routines::popf as *const () as u64,
            syscall: routines::ask_interpreter as *const () as u64,
            sysret: routines::ask_interpreter as *const () as u64,
            ask_interpreter: routines::ask_interpreter as *const () as u64,
        }
    }

    /// Lets SYSCALL and SYSRET go from one of these spaces to the other.
    pub(crate) fn allow_calls(&mut self, sides: [Side; 2]) {
        self.sides = sides;
        self.syscall = routines::syscall as *const () as u64;
        self.sysret = routines::sysret as *const () as u64;
    }

    /// Makes RDTSC return `time`; where it is None, the interpreter executes RDTSC.
    pub(crate) fn set_time(&mut self, time: Option<TimeStamp>) {
        self.time = time.unwrap_or_default();
        self.time_stamp = match time {
            Some(_) => routines::time_stamp as *const () as u64,
            None => routines::ask_interpreter as *const () as u64,
        };
    }

    /// Leaves SYSCALL and SYSRET to the interpreter.
    pub(crate) fn forbid_calls(&mut self) {
        [self.syscall, self.sysret] = [routines::ask_interpreter as *const () as u64; 2];
    }

    /// Prepares for translated code to be entered: SSE instructions, and x87 and MMX instructions, may be executed
    /// with the registers in the image. `has_avx` says whether AVX instructions may be executed where those of SSE may.
    /// If it is entered in the middle of a block (`goes_on`) that has loaded these registers, they are loaded again.
    pub(crate) fn set_numeric(
        &mut self,
        has_sse: bool,
        has_x87: bool,
        has_avx: bool,
        goes_on: bool,
    ) {
        if !goes_on {
            self.is_live = live::NOTHING;
        }
        self.vector_check = match (has_sse, self.is_live) {
            (false, _) => vectors_ask as *const () as u64,
            (true, live::NOTHING) => vectors_load as *const () as u64,
            (true, _) => numeric_ready as *const () as u64,
        };
        self.vectors_then = if has_sse {
            numeric_ready as *const () as u64
        } else {
            vectors_ask as *const () as u64
        };
        let left_out = routines::ask_interpreter as *const () as u64;
        self.avx_check = if has_avx { self.vector_check } else { left_out };
        self.avx_then = if has_avx { self.vectors_then } else { left_out };
        // Hosts without AVX do not execute its instructions, so that the upper halves stay where they are.
        self.has_upper = u32::from(has_avx && is_x86_feature_detected!("avx"));
        self.x87_check = match (has_x87, self.is_live) {
            (false, _) => x87_ask as *const () as u64,
            (true, live::ALL) => numeric_ready as *const () as u64,
            (true, _) => x87_load as *const () as u64,
        };
    }

    /// Saves the guest's registers after a signal in translated code: the general ones, as the kernel orders
    /// them, and those of SSE and AVX. `upper` returns the upper halves of the latter.
    pub(crate) fn take_registers(
        &mut self,
        general: &[greg_t; 23],
        numeric: Option<&[u8; IMAGE]>,
        upper: impl FnOnce() -> [u128; 16],
    ) {
        const GUEST: [(usize, c_int); 12] = [
            (0, libc::REG_RAX),
            (1, libc::REG_RCX),
            (2, libc::REG_RDX),
            (3, libc::REG_RBX),
            (4, libc::REG_R8),
            (5, libc::REG_RBP),
            (6, libc::REG_RSI),
            (7, libc::REG_RDI),
            (12, libc::REG_R12),
            (13, libc::REG_R13),
            (14, libc::REG_R14),
            (15, libc::REG_R15),
        ];
        let register = |number: c_int| general[number as usize] as u64;
        for (number, host) in GUEST {
            self.gpr[number] = register(host);
        }
        self.scratch = [libc::REG_R10, libc::REG_R11].map(register);
        self.flags = register(libc::REG_EFL);
        self.budget = register(libc::REG_R9);
        self.returns = register(libc::REG_RSP);
        self.exit = reason::SIGNAL;
        let Some(numeric) = numeric else { return };
        let of_sse = [IMAGE_MXCSR..IMAGE_MXCSR + 4, IMAGE_VECTORS..IMAGE_VECTORS + VECTORS];
        if self.has_upper != 0 && self.is_live != live::NOTHING {
            self.upper = upper();
        }
        match self.is_live {
            live::NOTHING => {}
            live::VECTORS => of_sse
                .into_iter()
                .for_each(|part| self.image.0[part.clone()].copy_from_slice(&numeric[part])),
            _ => self.image.0 = *numeric,
        }
    }
}

/// The offsets in the context of XMM0 to XMM15 in the image, and of MXCSR.
const IN_IMAGE: usize = offset_of!(LongContext, image) + IMAGE_VECTORS;
const MXCSR_IN_IMAGE: usize = offset_of!(LongContext, image) + IMAGE_MXCSR;

/// The code of a routine that leaves translated code for a [`reason`]. R11 is the address of the context, and only the
/// return address is on the stack.
macro_rules! leave_from_routine {
    ($reason:expr) => {
        std::arch::naked_asm!(
            "pop r10",
            "mov [r11 + {fault_rip}], r10",
            "mov r10d, {reason}",
            "jmp {leave}",
            fault_rip = const std::mem::offset_of!($crate::long::context::LongContext, fault.rip),
            reason = const $reason,
            leave = sym $crate::long::context::leave,
        )
    };
}

pub(crate) use leave_from_routine;

/// Executes translated code from `target` on until it is left.
///
/// # Safety
/// `target` must be the entry of a translated block, or an instruction in it; the rest must be as the module
/// says, all units that the tables of checks show must be owned at `distance`, and the handler of
/// [`crate::signals`] must be installed.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter(context: *mut LongContext) {
    naked_asm!(
        keep_registers!(),
        "mov r10, rdi",
        "cmp dword ptr [r10 + {is_live}], {live_vectors}",
        "jb 2f",
        "ja 4f",
        "mov r11, r10",
        vectors!(load),
        "ldmxcsr [r11 + {mxcsr}]",
        "jmp 5f",
        "4:",
        "mov r11, r10",
        "fxrstor64 [r10 + {image}]",
        "5:",
        "cmp dword ptr [r11 + {has_upper}], 0",
        "je 2f",
        upper_halves!(load),
        "2:",
        "mov [r10 + {host_stack}], rsp",
        "mov rax, [r10 + {distance}]",
        "cmp rax, [r10 + {set_distance}]",
        "je 3f",
        "wrgsbase rax",
        "mov [r10 + {set_distance}], rax",
        "3:",
        "mov r9, [r10 + {budget}]",
        "push qword ptr [r10 + {flags}]",
        "popfq",
        "mov rax, [r10]",
        "mov rcx, [r10 + 8]",
        "mov rdx, [r10 + 16]",
        "mov rbx, [r10 + 24]",
        "mov r8, [r10 + 32]",
        "mov rbp, [r10 + 40]",
        "mov rsi, [r10 + 48]",
        "mov rdi, [r10 + 56]",
        "mov r12, [r10 + 96]",
        "mov r13, [r10 + 104]",
        "mov r14, [r10 + 112]",
        "mov r15, [r10 + 120]",
        "mov rsp, [r10 + {returns}]",
        "mov r11, [r10 + {second_distance}]",
        "jmp qword ptr [r10 + {target}]",
        is_live = const offset_of!(LongContext, is_live),
        live_vectors = const live::VECTORS,
        image = const offset_of!(LongContext, image),
        has_upper = const offset_of!(LongContext, has_upper),
        upper = const offset_of!(LongContext, upper),
        vectors = const IN_IMAGE,
        mxcsr = const MXCSR_IN_IMAGE,
        host_stack = const offset_of!(LongContext, host_stack),
        distance = const offset_of!(LongContext, distance),
        set_distance = const offset_of!(LongContext, set_distance),
        budget = const offset_of!(LongContext, budget),
        flags = const offset_of!(LongContext, flags),
        returns = const offset_of!(LongContext, returns),
        second_distance = const at::SECOND_DISTANCE,
        target = const offset_of!(LongContext, target),
    )
}

/// Leaves translated code: saves the guest's registers and returns to the engine. R11 is the address of the
/// context, and R10D the reason.
///
/// # Safety
/// Only translated code may jump here. All other registers must be as the module says.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn leave() {
    naked_asm!(
        "mov [r11], rax",
        "mov [r11 + 8], rcx",
        "mov [r11 + 16], rdx",
        "mov [r11 + 24], rbx",
        "mov [r11 + 32], r8",
        "mov [r11 + 40], rbp",
        "mov [r11 + 48], rsi",
        "mov [r11 + 56], rdi",
        "mov [r11 + 96], r12",
        "mov [r11 + 104], r13",
        "mov [r11 + 112], r14",
        "mov [r11 + 120], r15",
        "mov [r11 + {exit}], r10d",
        "mov [r11 + {budget}], r9",
        "pushfq",
        "pop qword ptr [r11 + {flags}]",
        "mov [r11 + {returns}], rsp",
        "mov rsp, [r11 + {host_stack}]",
        "cld",
        "cmp dword ptr [r11 + {is_live}], {live_vectors}",
        "jb 2f",
        "ja 3f",
        vectors!(store),
        "stmxcsr [r11 + {mxcsr}]",
        "ldmxcsr [r11 + {host_mxcsr}]",
        "jmp 4f",
        "3:",
        "fxsave64 [r11 + {image}]",
        "fninit",
        "ldmxcsr [r11 + {host_mxcsr}]",
        "4:",
        "cmp dword ptr [r11 + {has_upper}], 0",
        "je 2f",
        upper_halves!(store),
        // With anything in them, the host's SSE instructions may take longer.
        "vzeroupper",
        "2:",
        "jmp {return_to_engine}",
        exit = const offset_of!(LongContext, exit),
        budget = const offset_of!(LongContext, budget),
        flags = const offset_of!(LongContext, flags),
        returns = const offset_of!(LongContext, returns),
        host_stack = const offset_of!(LongContext, host_stack),
        is_live = const offset_of!(LongContext, is_live),
        live_vectors = const live::VECTORS,
        image = const offset_of!(LongContext, image),
        has_upper = const offset_of!(LongContext, has_upper),
        upper = const offset_of!(LongContext, upper),
        vectors = const IN_IMAGE,
        mxcsr = const MXCSR_IN_IMAGE,
        host_mxcsr = const offset_of!(LongContext, host_mxcsr),
        return_to_engine = sym return_to_engine,
    )
}
