//! Loads of segment registers, and LAR, LSL, VERR and VERW, by descriptors that the context knows
//! ([`Descriptors`](crate::descriptors::Descriptors)). If a load might have another result than the last
//! time, the interpreter executes it.
//!
//! Meanwhile the status flags are in AX, since POPF would take longer than everything else, and RAX is in the
//! context.

use std::arch::naked_asm;
use std::mem::offset_of;

use ring3_x86::flags::Eflags;
use ring3_x86::segment::sreg;

use super::ask_interpreter;
use super::system::system;
use crate::context::{Context, NO_BASE, View};
use crate::descriptors::{KNOWN_DESCRIPTORS, KnownDescriptor, allowed};

/// Bits of a selector that are 0 in null selectors only.
const INDEX_AND_TABLE: u32 = 0xfffc;
/// Number of bits by which a selector is shifted to get the number of its entry: the table indicator remains,
/// so selectors of both tables have entries.
pub(crate) const DESCRIPTOR_NUMBER_SHIFT: u32 = 2;

/// Bits of the second doubleword of a segment descriptor (SDM vol. 3, figure 3-8): the end of the limit, whether
/// the limit counts pages, whether the segment is code, and whether data can be written.
const HIGH_LIMIT: u32 = 0xf << 16;
const GRANULARITY: u32 = 1 << 23;
const IS_CODE: u32 = 1 << 11;
const IS_WRITABLE: u32 = 1 << 9;
/// Those that LAR loads. Bits 16 to 19 are undefined; the interpreter loads them, too.
const ACCESS_RIGHTS: u32 = 0x00ff_ff00;

/// Loads the segment register of number R9D with the selector in R8D, in flat code of the privilege that
/// `ALLOWED` says ([`allowed`]).
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn load_flat<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        "test r8d, {index_and_table}",
        "jz 3f",
        find_descriptor!(),
        check_descriptor!("r10 + r9 + {allowed}", "r8", "{ask}"),
        "cmp r9d, {fs}",
        "jae 2f",
        "6:",
        "mov r8d, [r10 + {selector}]",
        "mov [r14 + r9 * 2 + {selectors}], r8w",
        "mov byte ptr [r14 + r9 + {loaded}], 1",
        restore_flags!(),
        "ret",
        // FS or GS.
        "2:",
        "mov r8, [r10 + {near}]",
        "mov [r14 + r9 * 8 + {near_bases} - 8 * {fs}], r8",
        "test r8, r8",
        "js 5f",
        "mov [r14 + r9 * 4 + {bases} - 4 * {fs}], r8d",
        "lea r8, [r14 + r9 * 4 + {bases} - 4 * {fs}]",
        "mov [r14 + r9 * 8 + {base_of} - 8 * {fs}], r8",
        "jmp 6b",
        "5:",
        "mov r8, [r14 + {faulting}]",
        "mov [r14 + r9 * 8 + {base_of} - 8 * {fs}], r8",
        "jmp 6b",
        // A null selector.
        "3:",
        "cmp r9d, {fs}",
        "jb {ask}",
        "mov [r14 + r9 * 2 + {selectors}], r8w",
        "mov byte ptr [r14 + r9 + {loaded}], 1",
        "mov r10, {no_base}",
        "mov [r14 + r9 * 8 + {near_bases} - 8 * {fs}], r10",
        "mov r10, [r14 + {faulting}]",
        "mov [r14 + r9 * 8 + {base_of} - 8 * {fs}], r10",
        restore_flags!(),
        "ret",
        saved_rax = const offset_of!(Context, saved_rax),
        index_and_table = const INDEX_AND_TABLE,
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed),
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        near = const offset_of!(KnownDescriptor, near),
        fs = const sreg::FS,
        bases = const offset_of!(Context, bases),
        base_of = const offset_of!(Context, base_of),
        near_bases = const offset_of!(Context, near_bases),
        faulting = const offset_of!(Context, faulting),
        no_base = const NO_BASE,
        selectors = const offset_of!(Context, selectors),
        loaded = const offset_of!(Context, loaded),
        ask = sym ask,
    )
}

/// Loads the segment register of number R9D with the selector in R8D, in segmented code of the privilege and
/// with the stack that `ALLOWED` says.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn load_view<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        "test r8d, {index_and_table}",
        "jz 3f",
        find_descriptor!(),
        check_descriptor!("r10 + r9 + {allowed}", "r8", "{ask}"),
        "mov r8d, [r10 + {selector}]",
        "mov [r14 + r9 * 2 + {selectors}], r8w",
        "mov byte ptr [r14 + r9 + {loaded}], 1",
        "lea r9d, [r9 + r9 * 2]",
        "mov r8, [r10 + {known_read_limit}]",
        "mov [r14 + r9 * 8 + {views} + {read_limit}], r8",
        "mov r8, [r10 + {known_write_limit}]",
        "mov [r14 + r9 * 8 + {views} + {write_limit}], r8",
        "mov r8d, [r10 + {known_base}]",
        "mov [r14 + r9 * 8 + {views} + {base}], r8d",
        restore_flags!(),
        "ret",
        // A null selector.
        "3:",
        "cmp r9d, {ss}",
        "je {ask}",
        "mov [r14 + r9 * 2 + {selectors}], r8w",
        "mov byte ptr [r14 + r9 + {loaded}], 1",
        "lea r9d, [r9 + r9 * 2]",
        "mov r8, [r14 + {closed_limit}]",
        "mov [r14 + r9 * 8 + {views} + {read_limit}], r8",
        "mov [r14 + r9 * 8 + {views} + {write_limit}], r8",
        "mov dword ptr [r14 + r9 * 8 + {views} + {base}], 0",
        restore_flags!(),
        "ret",
        saved_rax = const offset_of!(Context, saved_rax),
        index_and_table = const INDEX_AND_TABLE,
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed),
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        known_read_limit = const offset_of!(KnownDescriptor, view) + offset_of!(View, read_limit),
        known_write_limit = const offset_of!(KnownDescriptor, view) + offset_of!(View, write_limit),
        known_base = const offset_of!(KnownDescriptor, view) + offset_of!(View, base),
        ss = const sreg::SS,
        closed_limit = const offset_of!(Context, closed_limit),
        views = const offset_of!(Context, views),
        read_limit = const offset_of!(View, read_limit),
        write_limit = const offset_of!(View, write_limit),
        base = const offset_of!(View, base),
        selectors = const offset_of!(Context, selectors),
        loaded = const offset_of!(Context, loaded),
        ask = sym ask,
    )
}

/// Loads DS, ES or SS as [`load_view`] does, in code that becomes flat when all three of them are flat.
/// Leaves the load that makes it flat to the interpreter, since the code then has another mode.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn load_toward_flat<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        "mov r10, [r14 + {open_limit}]",
        "cmp r9d, {es}",
        "je 2f",
        "cmp r10, [r14 + {es_view} + {write_limit}]",
        "jne 5f",
        "cmp dword ptr [r14 + {es_view} + {base}], 0",
        "jne 5f",
        "2:",
        "cmp r9d, {ds}",
        "je 3f",
        "cmp r10, [r14 + {ds_view} + {write_limit}]",
        "jne 5f",
        "cmp dword ptr [r14 + {ds_view} + {base}], 0",
        "jne 5f",
        "3:",
        "cmp r9d, {ss}",
        "je 4f",
        "cmp r10, [r14 + {ss_view} + {write_limit}]",
        "jne 5f",
        "cmp dword ptr [r14 + {ss_view} + {base}], 0",
        "jne 5f",
        // If the entry is that of another selector, this bit says nothing; `load_view` finds out that it is
        // not the right one.
        "4:",
        find_descriptor!(),
        "test byte ptr [r10 + r9 + {allowed}], {flat} | {flat_of_user}",
        "jnz {ask}",
        "5:",
        restore_flags!(),
        "jmp {load_view}",
        saved_rax = const offset_of!(Context, saved_rax),
        open_limit = const offset_of!(Context, open_limit),
        es = const sreg::ES,
        ds = const sreg::DS,
        ss = const sreg::SS,
        es_view = const offset_of!(Context, views) + size_of::<View>() * sreg::ES as usize,
        ds_view = const offset_of!(Context, views) + size_of::<View>() * sreg::DS as usize,
        ss_view = const offset_of!(Context, views) + size_of::<View>() * sreg::SS as usize,
        write_limit = const offset_of!(View, write_limit),
        base = const offset_of!(View, base),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        allowed = const offset_of!(KnownDescriptor, allowed),
        flat = const allowed::FLAT,
        flat_of_user = const allowed::of_user(allowed::FLAT),
        ask = sym ask,
        load_view = sym load_view::<ALLOWED>,
    )
}

/// Executes LAR, LSL or VERR of the selector in R8D, in flat code of the privilege that `ALLOWED` says: loads
/// R9D with the access rights and R8D with the limit, and sets ZF. If the descriptor is not known, the engine
/// executes the instruction, which has index R9D in the list of those that blocks leave to the interpreter.
/// Then the next `SKIPPED` bytes of host code, which take the result from here, are skipped.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn look<const ALLOWED: u8, const SKIPPED: u8>() {
    naked_asm!(
        keep_flags!(),
        find_descriptor!(),
        // What may be loaded into DS is visible and can be read, and its type is one that LAR and LSL accept.
        check_descriptor!("r10 + {allowed}", "r8", "2f"),
        "or ah, {zero}",
        "mov r9, [r10 + {descriptor}]",
        "movzx r8d, r9w",
        "shr r9, 32",
        "mov r10d, r9d",
        "and r10d, {high_limit}",
        "or r8d, r10d",
        "test r9d, {granularity}",
        "jz 3f",
        "shl r8d, 12",
        "or r8d, 0xfff",
        "3:",
        "and r9d, {rights}",
        restore_flags!(),
        "ret",
        "2:",
        "add qword ptr [rsp], {skipped}",
        restore_flags!(),
        "mov r8d, r9d",
        "jmp {system}",
        saved_rax = const offset_of!(Context, saved_rax),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed) + sreg::DS as usize,
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        zero = const Eflags::ZF.bits(),
        high_limit = const HIGH_LIMIT,
        granularity = const GRANULARITY,
        rights = const ACCESS_RIGHTS,
        skipped = const SKIPPED,
        system = sym system,
    )
}

/// Executes VERW as [`look`] executes VERR.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn verify_write<const ALLOWED: u8>() {
    naked_asm!(
        keep_flags!(),
        find_descriptor!(),
        check_descriptor!("r10 + {allowed}", "r8", "2f"),
        "mov r8d, [r10 + {descriptor} + 4]",
        "and r8d, {code} | {writable}",
        "cmp r8d, {writable}",
        "jne 2f",
        "or ah, {zero}",
        restore_flags!(),
        "ret",
        "2:",
        restore_flags!(),
        "mov r8d, r9d",
        "jmp {system}",
        saved_rax = const offset_of!(Context, saved_rax),
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed) + sreg::DS as usize,
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
        code = const IS_CODE,
        writable = const IS_WRITABLE,
        zero = const Eflags::ZF.bits(),
        system = sym system,
    )
}

/// Leaves the load to the interpreter.
#[unsafe(naked)]
unsafe extern "sysv64" fn ask() {
    naked_asm!(
        restore_flags!(),
        "jmp {ask_interpreter}",
        saved_rax = const offset_of!(Context, saved_rax),
        ask_interpreter = sym ask_interpreter,
    )
}

/// Loads R10 with the address of the [`KnownDescriptor`] for the selector in R8D. Sets CF if a load of the
/// segment register of number R9D might have another result than the last time, in flat code of the privilege
/// that `ALLOWED` says. Uses RAX.
#[unsafe(naked)]
pub(super) unsafe extern "sysv64" fn known_descriptor<const ALLOWED: u8>() {
    naked_asm!(
        find_descriptor!(),
        check_descriptor!("r10 + r9 + {allowed}", "rax", "2f"),
        "ret",
        "2:",
        "stc",
        "ret",
        number_shift = const DESCRIPTOR_NUMBER_SHIFT,
        number_mask = const KNOWN_DESCRIPTORS - 1,
        descriptor_shift = const size_of::<KnownDescriptor>().ilog2(),
        known_descriptors = const offset_of!(Context, known_descriptors),
        selector = const offset_of!(KnownDescriptor, selector),
        allowed = const offset_of!(KnownDescriptor, allowed),
        here = const ALLOWED,
        host = const offset_of!(KnownDescriptor, host),
        descriptor = const offset_of!(KnownDescriptor, descriptor),
    )
}

const _: () = assert!(size_of::<KnownDescriptor>().is_power_of_two());
