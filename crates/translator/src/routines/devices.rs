//! Accesses to devices: device registers that translated code reads again and again, and accesses that the
//! engine makes while translated code waits.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::ask_interpreter;
use crate::code::emitter::JUMP_SIZE;
use crate::context::{
    Context, DEVICE_READ_BITS, DeviceRead, PORT_READ_BITS, leave, load_registers, outcome, reason,
    store_registers,
};
use crate::translator::execute_access;

/// Loads the status flags, which LAHF and SETO have left in EBP, and the general registers from the context.
macro_rules! load_state {
    () => {
        concat!("mov eax, ebp\nadd al, 0x7f\nsahf\n", load_registers!())
    };
}

/// Looks for the device register or port with the number in R8D among those whose values are known. If it is
/// there, stores the value in the context and returns. Uses R8 to R10, and changes no flags.
///
/// Operands: `bits`, the bits of the number that select the entry; `reads`, the offset of the entries in the
/// context; `at` and `value`, offsets in a [`DeviceRead`]; `device_value`.
macro_rules! return_known_value {
    () => {
        "mov r9d, {bits}
        pext r9d, r8d, r9d
        lea r9, [r14 + r9 * 8 + {reads}]
        mov r10, rcx
        mov ecx, [r9 + {at}]
        not ecx
        lea ecx, [rcx + r8 + 1]
        jrcxz 2f
        jmp 3f
        2:
        mov rcx, r10
        mov r8d, [r9 + {value}]
        mov [r14 + {device_value}], r8d
        ret
        3:
        mov rcx, r10"
    };
}

/// Finds the value of the device register at the linear address in R8D, and stores it in the context. If the
/// value is not known, leaves translated code to ask the engine. Uses R8 to R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn read_device() {
    naked_asm!(
        return_known_value!(),
        "mov [r14 + {address}], r8d",
        "jmp {ask_interpreter}",
        bits = const DEVICE_READ_BITS,
        reads = const offset_of!(Context, device_reads),
        at = const offset_of!(DeviceRead, at),
        value = const offset_of!(DeviceRead, value),
        address = const offset_of!(Context, device_address),
        device_value = const offset_of!(Context, device_value),
        ask_interpreter = sym ask_interpreter,
    )
}

const _: () = assert!(size_of::<DeviceRead>() == 8);

/// Stores the byte at the port with the number in R8D in the context. If it is not known, calls the engine to
/// make the access of the instruction, whose index is R9D, as [`access_device`] does. Uses R8 to R10.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn read_port() {
    naked_asm!(
        "mov [r14 + {number}], r9d",
        return_known_value!(),
        "mov r8d, [r14 + {number}]",
        "jmp {access_device}",
        number = const offset_of!(Context, port_number),
        bits = const PORT_READ_BITS,
        reads = const offset_of!(Context, port_reads),
        at = const offset_of!(DeviceRead, at),
        value = const offset_of!(DeviceRead, value),
        device_value = const offset_of!(Context, device_value),
        access_device = sym access_device,
    )
}

/// Calls the engine to make the access of the instruction with index R8D in the list of those that blocks
/// leave to the interpreter. The instruction must be the last one that was subtracted from the budget. Leaves
/// it to the interpreter if the engine does not know where the access goes, or may not make it, if the
/// numeric registers are in use, or if DF is set. If the access raises an exception that translated code can
/// deliver ([`DeviceAccess::may_fault`](crate::access::DeviceAccess::may_fault)), returns to the address after
/// the jump that follows the call.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn access_device() {
    naked_asm!(
        store_registers!(),
        // PUSHF and a look at DF would take as long as all this. LODSB adds 1 to RSI, or subtracts it if
        // DF is set.
        "lahf",
        "seto al",
        "movzx ebp, ax",
        "mov rsi, rsp",
        "lodsb",
        "cmp rsi, rsp",
        "jb 3f",
        "cmp dword ptr [r14 + {numeric_is_live}], 0",
        "jne 3f",
        "lea r9, [rsp + 8]",
        "mov [r14 + {returns}], r9",
        "mov [r14 + {budget}], r12",
        "mov rdi, r14",
        "mov esi, r8d",
        // The called function preserves RBX, RBP and R12 to R15.
        "mov rbx, rsp",
        "mov rsp, [r14 + {host_stack}]",
        "call {execute_access}",
        "mov rsp, rbx",
        "mov r12, [r14 + {budget}]",
        "mov r11d, [r14 + {index_mask}]",
        "cmp eax, {done}",
        "jne 2f",
        load_state!(),
        "ret",
        "2:",
        "test eax, eax",
        "jz 3f",
        "cmp eax, {faults}",
        "je 4f",
        "pop r8",
        "mov [r14 + {fault_rip}], r8",
        "mov dword ptr [r14 + {reason}], {accessed}",
        load_state!(),
        "jmp {leave}",
        "3:",
        load_state!(),
        "jmp {ask_interpreter}",
        "4:",
        "add qword ptr [rsp], {jump_size}",
        load_state!(),
        "ret",
        numeric_is_live = const offset_of!(Context, numeric_is_live),
        returns = const offset_of!(Context, returns),
        budget = const offset_of!(Context, budget),
        host_stack = const offset_of!(Context, host_stack),
        execute_access = sym execute_access,
        index_mask = const offset_of!(Context, index_mask),
        done = const outcome::DONE,
        faults = const outcome::FAULTS,
        jump_size = const JUMP_SIZE,
        fault_rip = const offset_of!(Context, fault.rip),
        reason = const offset_of!(Context, reason),
        accessed = const reason::ACCESSED,
        leave = sym leave,
        ask_interpreter = sym ask_interpreter,
    )
}
