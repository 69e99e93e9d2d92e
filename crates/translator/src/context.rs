//! The context: the state that translated code and the engine share. It holds the guest's registers while no
//! translated code runs, the reason why translated code was left, and data for routines. The ways into
//! translated code and out of it are in `entry`.
//!
//! # Registers in translated code
//!
//! | host | use |
//! | --- | --- |
//! | EAX, ECX, EDX, EBX, EBP, ESI, EDI | the guest's registers of the same name; the upper halves are zero |
//! | R15 | the guest's ESP |
//! | status flags and DF | the guest's |
//! | R8, R9, R10 | free inside of an instruction |
//! | R11 | the mask that selects the bits of the index in the jump table |
//! | R12 | the budget: an address in [`Budget`], less one for each instruction |
//! | R13 | the address of the jump table |
//! | R14 | the address of the [`Context`] |
//! | GS | its base is the base of the window |
//! | RSP | the top of the [`Returns`](crate::returns::Returns) |

pub(crate) mod at;
mod devices;
mod entry;
mod far;
mod image;
mod privileges;
mod system;
mod users;
mod virtual_8086;

use libc::{c_int, greg_t};
use ring3_x86::cpu::{Cpu, Cr4};
use ring3_x86::flags::{ALWAYS_ONE, Eflags};
use ring3_x86::segment::Segment;

use crate::budget::Budget;
use crate::descriptors::{KNOWN_DESCRIPTORS, KnownDescriptor, allowed};
use crate::routines;
use crate::routines::descriptors::{load_flat, load_toward_flat, load_view, look, verify_write};
use crate::routines::exceptions::{interrupt_flag_error, numeric_error};
use crate::routines::far::{far_check_call, far_check_flat};
use crate::routines::privileges::{far_check_call_of_user, far_check_return};
use crate::routines::virtual_8086::{check_return_to_program, enter_monitor, enter_program};
use crate::segmented::limits::Limits;
use crate::system::TAKING_RESULT;
pub(crate) use devices::{DEVICE_READ_BITS, DEVICE_READS, DeviceRead, PORT_READ_BITS};
pub(crate) use entry::{
    enter, keep_registers, leave, leave_signal, load_registers, return_to_engine, store_registers,
};
pub(crate) use far::{FAR_BITS, FAR_MODES, FarMode};
pub(crate) use image::{IMAGE, Image};
pub(crate) use privileges::{
    AllowedTransfers, Loaded, PrivilegeState, Tables, Transfer, crossed_to,
};
pub(crate) use system::{ANSWERS, Answers, CpuidAnswer, MsrAnswer, only_holds, outcome};
pub(crate) use virtual_8086::Virtual;

/// The reasons why translated code is left.
pub(crate) mod reason {
    /// A branch is not linked yet. `info` is the address after its 32-bit distance, and `eip` its target.
    pub(crate) const LINK: u32 = 0;
    /// The jump table has no code for `eip`.
    pub(crate) const LOOK_UP: u32 = 1;
    /// The interpreter must execute the instruction at `eip`.
    pub(crate) const STEP: u32 = 2;
    /// A signal came; [`Context::fault`](super::Context::fault) describes it.
    pub(crate) const SIGNAL: u32 = 3;
    /// A numeric instruction, whose host code ends at `fault.rip`, needs the numeric registers, and they are
    /// not in the image.
    pub(crate) const NUMERIC: u32 = 4;
    /// The interpreter must execute the instruction whose host code has called a routine. The call ends at
    /// `fault.rip`.
    pub(crate) const CALLED: u32 = 5;
    /// A system instruction is complete, and the engine must look around. Its host code has called a routine;
    /// the call ends at `fault.rip`.
    pub(crate) const SYSTEM: u32 = 6;
    /// The engine has made an access to a device, and must look around. The call of the instruction's host
    /// code ends at `fault.rip`.
    pub(crate) const ACCESSED: u32 = 7;
    /// POPF in flat code has set TF. It is complete but for that, and for ESP. The call of its host code ends at
    /// `fault.rip`.
    pub(crate) const TRAP_FLAG: u32 = 8;
    /// IRET in flat code, which has led to `eip`, has set TF. It is complete but for that.
    pub(crate) const RETURNED_TO_TRAP: u32 = 9;
}

/// The guest's flags that are in the host's flags while translated code runs: the status flags and DF.
pub(crate) const STATUS_AND_DIRECTION: u32 = Eflags::STATUS.union(Eflags::DF).bits();
/// Flags of the host that are always set: bit 1, and IF.
pub(crate) const HOST_FLAGS: u32 = ALWAYS_ONE | Eflags::IF.bits();

/// The value of MXCSR that host code expects: all exceptions masked, round to nearest.
pub(crate) const MXCSR: u32 = 0x1f80;

/// Bits of [`Context::info`] when translated code was left for [`reason::STEP`].
pub(crate) mod info {
    /// The instruction may use numeric registers.
    pub(crate) const NUMERIC: u32 = 1;
    /// The instruction is repeated.
    pub(crate) const REPEATS: u32 = 2;
    /// The instruction follows STI, which holds interrupts back.
    pub(crate) const AFTER_STI: u32 = 4;
    /// The interpreter has had to execute the instruction again and again.
    pub(crate) const BARRED: u32 = 8;
    /// The instruction is INT n or IRET, which loads CS and mostly SS.
    pub(crate) const TRANSFERS: u32 = 16;
    /// The instruction changes only general registers, status flags, CR2 and memory, unless it raises an
    /// exception.
    pub(crate) const QUIET: u32 = 32;
    /// The debugger has a breakpoint at the instruction. No instruction has both of these bits otherwise.
    pub(crate) const BREAKPOINT: u32 = TRANSFERS | QUIET;
    /// The instruction follows a load of SS, which holds interrupts and the single-step trap back.
    pub(crate) const AFTER_SS: u32 = 64;
    /// The instruction follows one that holds interrupts back.
    pub(crate) const AFTER_HOLDING: u32 = AFTER_STI | AFTER_SS;
    /// The bits from this one on are the instruction's index in the list of those that blocks leave to the
    /// interpreter.
    pub(crate) const OP_SHIFT: u32 = 7;
}

/// log2 of the bytes in a region; see [`Context::regions`].
pub(crate) const REGION_SHIFT: u32 = 22;
/// Number of regions.
pub(crate) const REGIONS: usize = 1 << (32 - REGION_SHIFT);

/// Returns the mask of an index in the jump table of supervisor code, or of user code. All code of a kernel
/// shares one table; each program has its own, and less code.
pub(crate) const fn index_mask(is_user: bool) -> u32 {
    if is_user { 0x3fff } else { 0x3_ffff }
}

/// Number of slots for direct branches that follow a jump table of supervisor code, and one of user code
/// ([`BranchSlots`](crate::code::branch_slots::BranchSlots)).
pub(crate) const BRANCH_SLOTS: [u32; 2] = [0x1_0000, 0x2000];

/// Number of bits by which an address is rotated to the right before it is added to itself for the index.
pub(crate) const INDEX_ROTATION: u32 = 12;

/// Returns the index of the address `linear` in a jump table. Code of a kernel and of programs is spread so
/// widely that the low bits of addresses alone would not keep it apart.
pub(crate) fn index(linear: u32, mask: u32) -> u32 {
    linear.wrapping_add(linear.rotate_right(INDEX_ROTATION)) & mask
}

/// A segment as segmented code sees it.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct View {
    /// The address to which the offsets of reads are added; see [`Limits`].
    pub(crate) read_limit: u64,
    /// The address to which the offsets of writes are added.
    pub(crate) write_limit: u64,
    /// The base address.
    pub(crate) base: u32,
}

impl View {
    /// Returns the view of `segment`.
    pub(crate) fn of(segment: &Segment, limits: &Limits) -> View {
        View {
            read_limit: limits.for_reading(segment),
            write_limit: limits.for_writing(segment),
            base: segment.base as u32,
        }
    }
}

/// How RDTSC computes the time-stamp counter: nanoseconds that follow from the number of instructions.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct TimeStamp {
    /// The value of R12 for the count of instructions at which the machine's clock was last set.
    pub(crate) origin: u64,
    /// Picoseconds for each instruction. Their sum stays below 2^64 until translated code is left.
    pub(crate) picos_per_instruction: u64,
    /// The value of the counter at that time.
    pub(crate) base: u64,
}

impl TimeStamp {
    /// Returns it for translated code that may execute `allowed` instructions of `budget`. Returns None if the
    /// interpreter must execute RDTSC.
    pub(crate) fn of(cpu: &Cpu, budget: &Budget, allowed: u64) -> Option<TimeStamp> {
        let clock = cpu.clock.as_ref().filter(|_| !cpu.cr4().contains(Cr4::TSD));
        clock.and_then(|clock| {
            let (instructions, base) = clock.base();
            let executed = cpu.instructions.checked_sub(instructions)?;
            let picos_per_instruction = clock.picos_per_instruction();
            let most = (executed + allowed).checked_mul(picos_per_instruction)?;
            base.as_nanos().checked_add(most)?;
            Some(TimeStamp {
                origin: budget.of(allowed).wrapping_add(executed),
                picos_per_instruction,
                base: base.as_nanos().wrapping_sub(cpu.msrs.time_stamp_offset),
            })
        })
    }
}

/// How translated code gets the numeric registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumericEntry {
    /// Translated code asks the engine, since they are not in the image.
    Ask,
    /// Translated code loads them from the image.
    Load,
    /// They are in the image. They are loaded into the host's registers before translated code is entered,
    /// which expects them there.
    Loaded,
}

/// Returns the index of a slot in a jump table of user code, or of supervisor code.
pub(crate) const fn slot_index(is_user: bool, slot: u32) -> u32 {
    index_mask(is_user) + 1 + slot
}

/// A signal in translated code.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct HostFault {
    /// The signals that were blocked when it came.
    pub(crate) mask: u64,
    /// The address whose access caused it.
    pub(crate) address: u64,
    /// The address of the host instruction that caused it.
    pub(crate) rip: u64,
    /// The error code of the host's page fault, or 0 if it was no page fault.
    pub(crate) code: u64,
    /// The number of the signal.
    pub(crate) signal: u64,
}

/// See the module. The code below and translated code know the layout. The fields that translated code uses
/// most are in the first 128 bytes, where its instructions are shortest.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Context {
    /// EAX to EDI.
    pub(crate) gpr: [u32; 8],
    /// EIP when translated code was left, and when it is entered by the jump table.
    pub(crate) eip: u32,
    /// See [`reason`].
    pub(crate) reason: u32,
    /// RFLAGS.
    pub(crate) flags: u64,
    /// The address of [`miss`](routines::miss).
    miss: u64,
    /// The address of [`jump_by_table`](routines::jump_by_table).
    jump_by_table: u64,
    /// The address of the routine that a block calls before its first numeric instruction.
    pub(crate) numeric_check: u64,
    /// The address of the routine that a block calls before its first SSE instruction.
    sse_check: u64,
    /// The base of GS.
    pub(crate) window: u64,
    /// The addresses of the bases of FS and GS, or [`Context::faulting`], which faults, where the segment
    /// must be checked.
    pub(crate) base_of: [u64; 2],
    /// The bases of FS and GS, or [`NO_BASE`] where the segment must be checked.
    pub(crate) near_bases: [u64; 2],
    /// The address of [`leave_to_link`](routines::leave_to_link).
    leave_to_link: u64,
    /// The address of [`leave_to_step`](routines::leave_to_step).
    leave_to_step: u64,
    /// The value of R12.
    pub(crate) budget: u64,
    /// The value of R13.
    pub(crate) table: u64,
    /// The value of R11: [`index_mask`].
    pub(crate) index_mask: u32,
    /// The host address at which translated code is entered.
    pub(crate) target: u64,
    /// See [`reason`] and [`info`].
    pub(crate) info: u32,
    /// The value of R10, in which a repeated instruction keeps the count with which it began.
    pub(crate) repeat_count: u64,
    /// The address that a repeated instruction reads when its iterations are done. The read faults if they
    /// are only a part of the guest's count.
    pub(crate) after_repeating: u64,
    /// The signal for which translated code was left. For some other reasons, too, [`HostFault::rip`] is where
    /// that was.
    pub(crate) fault: HostFault,
    /// The bases of FS and GS.
    pub(crate) bases: [u32; 2],
    /// EFLAGS as PUSHF pushes it, without the status flags and DF.
    pub(crate) system_flags: u32,
    /// The same flags with IF clear.
    pub(crate) flags_without_if: u32,
    /// The third byte of these flags with AC clear, and with AC set.
    pub(crate) flags_with_ac: [u8; 2],
    /// Whether the machine requests an interrupt, to be taken as soon as IF is set.
    pub(crate) interrupt_pin: u8,
    /// The selectors of ES to GS.
    pub(crate) selectors: [u16; 6],
    /// Whether translated code has loaded each of them; two more entries are always false.
    pub(crate) loaded: [bool; 8],
    /// The segments ES to GS, for segmented code.
    pub(crate) views: [View; 6],
    /// The address to which the targets of branches of segmented code are added, for the limit of CS.
    pub(crate) code_limit: u64,
    /// The target of a branch while its return address is pushed. Other instructions keep a value here, too.
    pub(crate) branch_target: u32,
    /// The address to which offsets are added to check that they have 16 bits, for repeated string
    /// instructions.
    pub(crate) word_limit: u64,
    /// An address of a byte that can be read, when the byte after it cannot: adding DF to it checks that a
    /// string instruction goes forward.
    pub(crate) forward_check: u64,
    /// While a repeated string instruction runs in segmented code: the numbers that make the guest's ECX, ESI
    /// and EDI of the host's registers.
    pub(crate) strings: [u32; 3],
    /// See [`Descriptors`](crate::descriptors::Descriptors).
    pub(crate) known_descriptors: [KnownDescriptor; KNOWN_DESCRIPTORS],
    /// An address that faults, for [`Context::base_of`] of a segment that must be checked.
    pub(crate) faulting: u64,
    /// CR0 to CR4.
    pub(crate) control: [u32; 5],
    /// The addresses of the routines that flat code of the supervisor, and of users, calls to load the
    /// segment register of number R9D with the selector in R8D.
    load_flat: [u64; 2],
    /// The addresses of these routines for segmented code: of the supervisor with a 16-bit stack and with a
    /// 32-bit one, then of users.
    load_view: [u64; 4],
    /// The addresses of these routines for loads of DS, ES and SS in code that becomes flat when all three of
    /// them are flat.
    load_toward_flat: [u64; 4],
    /// The guest's RAX, while a routine that needs more registers than are free uses it.
    pub(crate) saved_rax: u64,
    /// The address from which on nothing can be read, and the one from which on all offsets can.
    pub(crate) closed_limit: u64,
    pub(crate) open_limit: u64,
    /// The address of the routine that executes STI of the supervisor.
    pub(crate) sti: u64,
    /// The address of the routine that executes POPF of the supervisor's flat code. The popped value is in R8D.
    pub(crate) popf: u64,
    /// The address of the routine that executes POPF in segmented code, in the same way.
    segmented_popf: u64,
    /// The address of the routine that executes POPF of flat user code. The popped value is in R8D.
    popf_of_user: u64,
    /// The address of the routine that executes the POPF part of IRET with 32-bit operands.
    popf_of_iret: u64,
    /// The addresses of the routines that execute CLAC and STAC of the supervisor.
    pub(crate) clac: u64,
    pub(crate) stac: u64,
    /// The address of the routine that checks the count of a comparison that is repeated.
    pub(crate) check_count: u64,
    /// The address of the routine that executes RDTSC.
    pub(crate) time_stamp: u64,
    /// The time for RDTSC.
    pub(crate) time: TimeStamp,
    /// The value of IA32_TSC_AUX, which RDTSCP also reads.
    pub(crate) tsc_aux: u64,
    /// The address at which SYSENTER goes on: in the supervisor's code, or with the interpreter.
    pub(crate) sysenter: u64,
    /// The address at which SYSEXIT goes on: in user code, or with the interpreter.
    pub(crate) sysexit: u64,
    /// The addresses at which INT n goes on, in code of the supervisor and of users: the routine that reads
    /// the gate, or the interpreter.
    pub(crate) interrupt: [u64; 2],
    /// The addresses at which it goes on after its pushes.
    enter_handler: [u64; 2],
    /// The addresses at which an exception goes on, as INT n does. The DPL of its gate does not matter.
    pub(crate) exception: [u64; 2],
    /// The addresses of the routines that begin to deliver #MF, in code of the supervisor and of users.
    numeric_error: [u64; 2],
    /// The address of the routine that begins to deliver #GP for CLI and STI in code of users.
    interrupt_flag_error: u64,
    /// The addresses at which IRET goes on in code of the supervisor after its first pops, and after those of
    /// a return to user code: a routine, or the interpreter.
    pub(crate) interrupt_return: [u64; 2],
    /// The values of [`Context::sysexit`] and of [`Context::interrupt_return`] to user code while AC is
    /// clear. While it is set the interpreter executes these instructions, since user code may check
    /// alignment.
    pub(crate) outward_without_ac: [u64; 2],
    /// The address of the routine that leaves them to the interpreter.
    pub(crate) leave_to_call: u64,
    /// See [`Tables`].
    pub(crate) tables: Tables,
    /// See [`Transfer`].
    pub(crate) transfer: Transfer,
    /// The value of R12 after the last IRET that has set RF, or 0 if none has since translated code was
    /// entered.
    pub(crate) resumed: u64,
    /// The address at which IRET to user code is left to the interpreter, since a page must be filled there
    /// (`Translator::fill_after_page_fault`), or one beyond all addresses.
    pub(crate) awaited: u64,
    /// Whether INT n, IRET or a far transfer has loaded CS, and SS, with the selectors in
    /// [`Context::selectors`].
    pub(crate) transferred: [bool; 2],
    /// The state that differs between the two privileges: the supervisor's, and the users'.
    pub(crate) privileges: [PrivilegeState; 2],
    /// See [`crossed_to`].
    pub(crate) crossed_to: u32,
    /// IA32_SYSENTER_EIP.
    pub(crate) fast_call_entry: u32,
    /// IA32_SYSENTER_ESP.
    pub(crate) fast_call_stack: u32,
    /// Device registers whose values are known.
    pub(crate) device_reads: [DeviceRead; DEVICE_READS],
    /// Ports whose bytes are known.
    pub(crate) port_reads: [DeviceRead; DEVICE_READS],
    /// Whether [`Context::device_reads`] has any entries.
    has_device_reads: bool,
    /// The base that GS already has when translated code is entered, or 0 if that is not known. Setting it
    /// takes a good part of the time of an instruction beside translated code.
    set_window: u64,
    /// The value that was read of a device register or a port.
    pub(crate) device_value: u32,
    /// The error code of the exception that translated code is about to raise, if the engine has found it.
    pub(crate) error_code: u32,
    /// The selector that an instruction is about to load, which has been refused before.
    pub(crate) selector: u32,
    /// The linear address of a device register whose value is not known.
    pub(crate) device_address: u32,
    /// The address of the routine that reads a device register.
    read_device: u64,
    /// The address of the routine that has the engine make an access to a device.
    access_device: u64,
    /// The address of the routine that reads a byte at a port.
    read_port: u64,
    /// The index of the instruction that reads a port in the list of those that blocks leave to the
    /// interpreter.
    pub(crate) port_number: u32,
    /// The code segments to which far transfers of segmented code can lead.
    pub(crate) far_modes: [[FarMode; FAR_MODES]; 2],
    /// Offset, flags and selector that a far transfer loads.
    pub(crate) far_offset: u32,
    pub(crate) far_flags: u32,
    pub(crate) far_selector: u16,
    /// The address of the [`FarMode`] of the code to which a far call or INT n leads.
    far_found: u64,
    /// Whether a far transfer has loaded CS with its selector in [`Context::selectors`].
    pub(crate) has_gone_far: u32,
    /// The value of RSP of an empty stack of returns.
    pub(crate) no_returns: u64,
    /// The linear address of the interrupt vectors of real mode.
    pub(crate) real_vectors: u32,
    /// The address of the routine that checks a code segment whose entry is known.
    far_check: u64,
    /// The addresses of the routines that find the code segment of a far transfer, without a descriptor and
    /// by one.
    far_find: u64,
    far_find_descriptor: u64,
    /// The address of the routine that finds the code segment of INT n of real mode.
    far_find_vector: u64,
    /// The addresses of the routines that find the code segment of IRET, without a descriptor and by one.
    far_find_return: u64,
    far_find_return_descriptor: u64,
    /// The address of the routine that reads the gate of INT n.
    far_gate: u64,
    /// The address at which a far transfer goes on.
    far_go: u64,
    /// See [`Virtual`].
    pub(crate) virtual_8086: Virtual,
    /// The addresses of the routines for INT n of virtual-8086 mode, and for its exceptions, up to their
    /// pushes.
    interrupt_program: [u64; 2],
    /// The address at which these go on after their pushes.
    enter_monitor: u64,
    /// The address of the routine that checks whether IRET leads to virtual-8086 mode, and the one at which
    /// it then goes on after its pops.
    check_return_to_program: u64,
    enter_program: u64,
    /// The address of the processor's state ([`Cpu`]).
    pub(crate) cpu: u64,
    /// The address of the `Running` of `translator::system`.
    pub(crate) running: u64,
    /// The address of the debug registers, or one that faults if the engine must notice the next access to
    /// them.
    pub(crate) debug_registers: u64,
    /// The values of CR0 with TS clear, and with TS set.
    pub(crate) task_switched: [u32; 2],
    /// The value of CR4; another number if MOV to CR4 may have an effect even with this value.
    pub(crate) known_cr4: u64,
    /// GDTR and IDTR, each with its limit above its base.
    pub(crate) table_registers: [u64; 2],
    /// Past answers of CPUID and RDMSR.
    pub(crate) answers: Answers,
    /// The index of the last system instruction in the list of instructions that blocks leave to the
    /// interpreter.
    pub(crate) system_number: u32,
    /// The addresses of the routine for system instructions, with that index in R8D, and of those for some of
    /// them alone.
    system: u64,
    cpuid: u64,
    rdmsr: u64,
    wrmsr: u64,
    lgdt: u64,
    lidt: u64,
    lldt: u64,
    ltr: u64,
    load_cr0: u64,
    load_cr4: u64,
    /// The addresses of the routines for LAR and LSL in flat code of the supervisor and of users, and of those
    /// for VERR and for VERW.
    look: [u64; 2],
    verify_read: [u64; 2],
    verify_write: [u64; 2],
    /// The addresses of the routines for far transfers of flat code: two of the supervisor and of users that
    /// check JMP, two that check CALL, two that check RET, and one that loads CS.
    far_check_flat: [u64; 2],
    far_check_call: [u64; 2],
    far_check_return: [u64; 2],
    far_load_flat: u64,
    /// The numeric registers while they are not in the host's registers.
    pub(crate) image: Image,
    /// The x87's status word after the last FLDCW, or 0 if there was none since the registers came into the image,
    /// or FNCLEX came after it.
    pub(crate) loaded_status: u32,
    /// Whether the numeric registers are in the host's registers.
    pub(crate) numeric_is_live: u32,
    /// Whether they were there when translated code was left.
    pub(crate) numeric_was_live: u32,
    /// The value of MXCSR outside of translated code.
    host_mxcsr: u32,
    /// For supervisor code that also accesses memory of users, and for each 4 MiB of linear addresses: the
    /// address of one of the next two fields.
    pub(crate) regions: [u64; REGIONS],
    /// The base of the supervisor's own window.
    pub(crate) own_window: u64,
    /// The base of the window of user code. While that is closed to the supervisor, it is the base of the
    /// supervisor's own window, where accesses to pages of users fault.
    pub(crate) user_window: u64,
    /// The values of [`Context::user_window`] with AC clear, and with AC set.
    pub(crate) user_windows: [u64; 2],
    /// RSP in translated code.
    pub(crate) returns: u64,
    /// RSP outside of translated code.
    pub(crate) host_stack: u64,
    /// Whether translated code was left for an instruction that was given back to the budget. The engine takes
    /// it.
    pub(crate) gave_back: u32,
}

/// No address near this one is canonical, so every access there faults.
pub(crate) const NO_BASE: u64 = 1 << 63;

impl Context {
    pub(crate) fn new() -> Box<Context> {
        Box::new(Context {
            gpr: [0; 8],
            eip: 0,
            reason: 0,
            flags: 0,
            budget: 0,
            window: 0,
            table: 0,
            index_mask: 0,
            target: 0,
            info: 0,
            repeat_count: 0,
            after_repeating: 0,
            fault: HostFault::default(),
            base_of: [0; 2],
            near_bases: [NO_BASE; 2],
            bases: [0; 2],
            system_flags: 0,
            flags_without_if: 0,
            flags_with_ac: [0; 2],
            interrupt_pin: 0,
            selectors: [0; 6],
            loaded: [false; 8],
            views: [View::default(); 6],
            code_limit: 0,
            branch_target: 0,
            word_limit: 0,
            forward_check: 0,
            strings: [0; 3],
            known_descriptors: [KnownDescriptor::default(); KNOWN_DESCRIPTORS],
            faulting: 0,
            control: [0; 5],
            load_flat: [
                load_flat::<{ allowed::FLAT }> as *const () as u64,
                load_flat::<{ allowed::of_user(allowed::FLAT) }> as *const () as u64,
            ],
            load_view: [
                load_view::<{ allowed::STACK_16 }> as *const () as u64,
                load_view::<{ allowed::STACK_32 }> as *const () as u64,
                load_view::<{ allowed::of_user(allowed::STACK_16) }> as *const () as u64,
                load_view::<{ allowed::of_user(allowed::STACK_32) }> as *const () as u64,
            ],
            load_toward_flat: [
                load_view::<{ allowed::STACK_16 }> as *const () as u64,
                load_toward_flat::<{ allowed::STACK_32 }> as *const () as u64,
                load_view::<{ allowed::of_user(allowed::STACK_16) }> as *const () as u64,
                load_toward_flat::<{ allowed::of_user(allowed::STACK_32) }> as *const () as u64,
            ],
            saved_rax: 0,
            closed_limit: 0,
            open_limit: 0,
            sti: routines::sti as *const () as u64,
            popf: routines::popf::<{ routines::KEPT_BY_POPF }, true> as *const () as u64,
            segmented_popf: routines::popf::<{ routines::KEPT_BY_POPF }, false> as *const () as u64,
            popf_of_user: routines::popf_of_user as *const () as u64,
            popf_of_iret: routines::popf::<{ routines::KEPT_BY_IRET }, false> as *const () as u64,
            clac: routines::clac as *const () as u64,
            stac: routines::stac as *const () as u64,
            check_count: routines::check_count as *const () as u64,
            time_stamp: routines::ask_interpreter as *const () as u64,
            time: TimeStamp::default(),
            tsc_aux: 0,
            sysenter: routines::privileges::leave_to_call as *const () as u64,
            sysexit: routines::privileges::leave_to_call as *const () as u64,
            interrupt: [routines::privileges::leave_to_call as *const () as u64; 2],
            enter_handler: [
                routines::privileges::enter_handler_within as *const () as u64,
                routines::privileges::enter_handler_inward as *const () as u64,
            ],
            exception: [routines::privileges::leave_to_call as *const () as u64; 2],
            numeric_error: [
                numeric_error::<0> as *const () as u64,
                numeric_error::<1> as *const () as u64,
            ],
            interrupt_flag_error: interrupt_flag_error as *const () as u64,
            interrupt_return: [routines::privileges::leave_to_call as *const () as u64; 2],
            outward_without_ac: [routines::privileges::leave_to_call as *const () as u64; 2],
            leave_to_call: routines::privileges::leave_to_call as *const () as u64,
            tables: Tables::default(),
            transfer: Transfer::default(),
            resumed: 0,
            awaited: u64::MAX,
            transferred: [false; 2],
            privileges: [PrivilegeState::default(); 2],
            crossed_to: crossed_to::NOTHING,
            fast_call_entry: 0,
            fast_call_stack: 0,
            device_reads: [DeviceRead::NONE; DEVICE_READS],
            port_reads: [DeviceRead::NONE; DEVICE_READS],
            has_device_reads: false,
            set_window: 0,
            device_value: 0,
            error_code: 0,
            selector: 0,
            device_address: 0,
            read_device: routines::devices::read_device as *const () as u64,
            access_device: routines::devices::access_device as *const () as u64,
            read_port: routines::devices::read_port as *const () as u64,
            port_number: 0,
            far_modes: [[FarMode::NONE; FAR_MODES]; 2],
            far_offset: 0,
            far_selector: 0,
            far_found: 0,
            far_flags: 0,
            has_gone_far: 0,
            no_returns: 0,
            real_vectors: 0,
            far_find: routines::far::far_find as *const () as u64,
            far_check: routines::far::far_check as *const () as u64,
            far_find_descriptor: routines::far::far_find_descriptor as *const () as u64,
            far_find_vector: routines::ask_interpreter as *const () as u64,
            far_find_return: routines::ask_interpreter as *const () as u64,
            far_find_return_descriptor: routines::ask_interpreter as *const () as u64,
            far_gate: routines::far::far_gate as *const () as u64,
            far_go: routines::far::far_go as *const () as u64,
            virtual_8086: Virtual::default(),
            interrupt_program: [routines::ask_interpreter as *const () as u64; 2],
            enter_monitor: enter_monitor as *const () as u64,
            check_return_to_program: check_return_to_program as *const () as u64,
            enter_program: enter_program as *const () as u64,
            cpu: 0,
            running: 0,
            debug_registers: 0,
            task_switched: [0; 2],
            known_cr4: 0,
            table_registers: [0; 2],
            answers: Answers::none(),
            system_number: 0,
            system: routines::system::system as *const () as u64,
            cpuid: routines::system::cpuid as *const () as u64,
            rdmsr: routines::system::rdmsr as *const () as u64,
            wrmsr: routines::system::wrmsr as *const () as u64,
            lgdt: routines::system::lgdt as *const () as u64,
            lidt: routines::system::lidt as *const () as u64,
            lldt: routines::system::lldt as *const () as u64,
            ltr: routines::system::ltr as *const () as u64,
            load_cr0: routines::system::load_cr0 as *const () as u64,
            load_cr4: routines::system::load_cr4 as *const () as u64,
            look: [
                look::<{ allowed::ANY }, TAKING_RESULT> as *const () as u64,
                look::<{ allowed::of_user(allowed::ANY) }, TAKING_RESULT> as *const () as u64,
            ],
            verify_read: [
                look::<{ allowed::ANY }, 0> as *const () as u64,
                look::<{ allowed::of_user(allowed::ANY) }, 0> as *const () as u64,
            ],
            verify_write: [
                verify_write::<{ allowed::ANY }> as *const () as u64,
                verify_write::<{ allowed::of_user(allowed::ANY) }> as *const () as u64,
            ],
            far_check_flat: [
                far_check_flat::<{ allowed::FLAT }> as *const () as u64,
                far_check_flat::<{ allowed::of_user(allowed::FLAT) }> as *const () as u64,
            ],
            far_check_call: [
                far_check_call::<{ allowed::FLAT }> as *const () as u64,
                far_check_call_of_user as *const () as u64,
            ],
            far_check_return: [
                far_check_return as *const () as u64,
                far_check_flat::<{ allowed::of_user(allowed::FLAT) }> as *const () as u64,
            ],
            far_load_flat: routines::far::far_load_flat as *const () as u64,
            image: Image([0; IMAGE]),
            numeric_check: routines::numeric_ask as *const () as u64,
            sse_check: routines::ask_interpreter as *const () as u64,
            loaded_status: 0,
            numeric_is_live: 0,
            numeric_was_live: 0,
            host_mxcsr: MXCSR,
            regions: [0; REGIONS],
            own_window: 0,
            user_window: 0,
            user_windows: [0; 2],
            leave_to_link: routines::leave_to_link as *const () as u64,
            leave_to_step: routines::leave_to_step as *const () as u64,
            miss: routines::miss as *const () as u64,
            jump_by_table: routines::jump_by_table as *const () as u64,
            returns: 0,
            host_stack: 0,
            gave_back: 0,
        })
    }

    /// Sets the flags that are not in [`Context::flags`].
    pub(crate) fn set_system_flags(&mut self, cpu: &Cpu) {
        self.system_flags = cpu.pushed_flags() & !STATUS_AND_DIRECTION;
        self.flags_without_if = self.system_flags & !Eflags::IF.bits();
        let third_byte = |flags: u32| (flags >> 16) as u8;
        let ac = Eflags::AC.bits();
        self.flags_with_ac = [self.system_flags & !ac, self.system_flags | ac].map(third_byte);
    }

    /// Makes RDTSC return `time`; where it is None, the interpreter executes RDTSC.
    pub(crate) fn set_time(&mut self, time: Option<TimeStamp>) {
        self.time = time.unwrap_or_default();
        self.time_stamp = match time {
            Some(_) => routines::time_stamp as *const () as u64,
            None => routines::ask_interpreter as *const () as u64,
        };
    }

    /// Sets how translated code gets the numeric registers when it is entered next, and whether SSE is
    /// enabled.
    pub(crate) fn set_numeric_entry(&mut self, entry: NumericEntry, has_sse: bool) {
        self.sse_check = if has_sse {
            routines::check_numeric as *const () as u64
        } else {
            routines::ask_interpreter as *const () as u64
        };
        self.numeric_is_live = u32::from(entry == NumericEntry::Loaded);
        self.numeric_check = match entry {
            NumericEntry::Ask => routines::numeric_ask as *const () as u64,
            NumericEntry::Load => routines::numeric_load as *const () as u64,
            NumericEntry::Loaded => routines::numeric_ready as *const () as u64,
        };
    }

    /// Saves the guest's registers after a signal in translated code: the general ones, as the kernel orders
    /// them, and the numeric ones.
    pub(crate) fn take_registers(&mut self, general: &[greg_t; 23], numeric: Option<&[u8; IMAGE]>) {
        const GUEST: [c_int; 8] = [
            libc::REG_RAX,
            libc::REG_RCX,
            libc::REG_RDX,
            libc::REG_RBX,
            libc::REG_R15,
            libc::REG_RBP,
            libc::REG_RSI,
            libc::REG_RDI,
        ];
        let register = |number: c_int| general[number as usize] as u64;
        self.gpr = GUEST.map(|number| register(number) as u32);
        self.returns = register(libc::REG_RSP);
        self.flags = register(libc::REG_EFL);
        self.budget = register(libc::REG_R12);
        self.repeat_count = register(libc::REG_R10);
        self.numeric_was_live = self.numeric_is_live;
        if let Some(numeric) = numeric
            && self.numeric_is_live != 0
        {
            self.image.0 = *numeric;
        }
    }
}
