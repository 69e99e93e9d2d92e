//! Offsets in [`Context`], as displacements.

use std::mem::offset_of;

use super::{Context, FarMode, Transfer, View};

/// Defines the offsets of fields, and of pairs of addresses: one for supervisor code, and one for user
/// code.
macro_rules! fields {
    ([$($name:ident: $field:ident,)*] pairs [$($pair:ident: $of_pair:ident,)*]) => {
        $(pub(crate) const $name: u32 = offset_of!(Context, $field) as u32;)*
        $(pub(crate) const $pair: [u32; 2] = {
            let first = offset_of!(Context, $of_pair) as u32;
            [first, first + 8]
        };)*
        /// Returns the names of the fields at these offsets.
        #[cfg(test)]
        pub(crate) fn names() -> Vec<(u32, String)> {
            let fields = [$(($name, stringify!($field).to_owned())),*];
            let pairs = [$(($pair, stringify!($of_pair))),*];
            let pairs = pairs.into_iter().flat_map(|([of_supervisor, of_user], name)| {
                let supervisor = (of_supervisor, format!("{name}.supervisor"));
                [supervisor, (of_user, format!("{name}.user"))]
            });
            fields.into_iter().chain(pairs).collect()
        }
    };
}

fields! {
    [
        REGIONS: regions,
        WINDOW: window,
        BASE_OF: base_of,
        NEAR_BASES: near_bases,
        LEAVE_TO_LINK: leave_to_link,
        LEAVE_TO_STEP: leave_to_step,
        LEAVE_TO_CALL: leave_to_call,
        SYSTEM_FLAGS: system_flags,
        FLAGS_WITHOUT_IF: flags_without_if,
        SELECTORS: selectors,
        VIEWS: views,
        CODE_LIMIT: code_limit,
        BRANCH_TARGET: branch_target,
        WORD_LIMIT: word_limit,
        FORWARD_CHECK: forward_check,
        STRINGS: strings,
        CONTROL: control,
        LOAD_VIEW: load_view,
        LOAD_TOWARD_FLAT: load_toward_flat,
        STI: sti,
        POPF: popf,
        SEGMENTED_POPF: segmented_popf,
        POPF_OF_USER: popf_of_user,
        CLAC: clac,
        STAC: stac,
        CHECK_COUNT: check_count,
        AFTER_REPEATING: after_repeating,
        TIME_STAMP: time_stamp,
        TSC_AUX: tsc_aux,
        SYSENTER: sysenter,
        SYSEXIT: sysexit,
        READ_DEVICE: read_device,
        ACCESS_DEVICE: access_device,
        READ_PORT: read_port,
        DEVICE_VALUE: device_value,
        ERROR_CODE: error_code,
        SELECTOR: selector,
        FAR_OFFSET: far_offset,
        FAR_SELECTOR: far_selector,
        FAR_FOUND: far_found,
        FAR_FLAGS: far_flags,
        REAL_VECTORS: real_vectors,
        FAR_FIND: far_find,
        FAR_CHECK: far_check,
        FAR_MODES: far_modes,
        FAR_FIND_DESCRIPTOR: far_find_descriptor,
        FAR_FIND_VECTOR: far_find_vector,
        FAR_FIND_RETURN: far_find_return,
        FAR_FIND_RETURN_DESCRIPTOR: far_find_return_descriptor,
        ENTER_MONITOR: enter_monitor,
        CHECK_RETURN_TO_PROGRAM: check_return_to_program,
        ENTER_PROGRAM: enter_program,
        FAR_GATE: far_gate,
        FAR_GO: far_go,
        CPU: cpu,
        DEBUG_REGISTERS: debug_registers,
        SYSTEM: system,
        CPUID: cpuid,
        RDMSR: rdmsr,
        WRMSR: wrmsr,
        LGDT: lgdt,
        LIDT: lidt,
        LLDT: lldt,
        LTR: ltr,
        TASK_SWITCHED: task_switched,
        LOAD_CR0: load_cr0,
        LOAD_CR4: load_cr4,
        INTERRUPT_FLAG_ERROR: interrupt_flag_error,
        FAR_LOAD_FLAT: far_load_flat,
        POPF_OF_IRET: popf_of_iret,
        NUMERIC_CHECK: numeric_check,
        SSE_CHECK: sse_check,
        LOADED_STATUS: loaded_status,
        JUMP_BY_TABLE: jump_by_table,
        MISS: miss,
    ]
    pairs [
        LOAD_FLAT: load_flat,
        INTERRUPT: interrupt,
        ENTER_HANDLER: enter_handler,
        EXCEPTION: exception,
        NUMERIC_ERROR: numeric_error,
        INTERRUPT_RETURN: interrupt_return,
        FAR_CHECK_FLAT: far_check_flat,
        FAR_CHECK_CALL: far_check_call,
        FAR_CHECK_RETURN: far_check_return,
        LOOK: look,
        VERIFY_READ: verify_read,
        VERIFY_WRITE: verify_write,
    ]
}

pub(crate) const INTERRUPT_PROGRAM: [u32; 2] = {
    let first = offset_of!(Context, interrupt_program) as u32;
    [first, first + 8]
};
pub(crate) const POPPED: u32 = offset_of!(Context, virtual_8086.popped) as u32;
pub(crate) const POINTER: u32 =
    (offset_of!(Context, transfer) + offset_of!(Transfer, pointer)) as u32;
pub(crate) const VIEW_SIZE: u32 = size_of::<View>() as u32;
pub(crate) const READ_LIMIT: u32 = offset_of!(View, read_limit) as u32;
pub(crate) const WRITE_LIMIT: u32 = offset_of!(View, write_limit) as u32;
pub(crate) const BASE: u32 = offset_of!(View, base) as u32;
pub(crate) const FAR_CODE_LIMIT: u32 = offset_of!(FarMode, code_limit) as u32;
