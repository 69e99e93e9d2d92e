//! The parts of which seccomp filters are made: conditions for the arguments of system calls, and constants that
//! these need.

use std::collections::BTreeMap;
use std::env::consts::ARCH;

use libc::c_long;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Time-outs of sockets in the form of Linux 5.1 (include/uapi/asm-generic/socket.h).
pub const RCVTIMEO_NEW: i32 = 66;
/// See [`RCVTIMEO_NEW`].
pub const SNDTIMEO_NEW: i32 = 67;

/// The bits of a socket's type that hold the type proper (Linux, include/linux/net.h).
pub const TYPE: u64 = 0xf;

/// What a part is, or why there is none.
pub type Result<T> = std::result::Result<T, BackendError>;

/// The rules for system calls, one of which must hold. A call without rules is meant with any arguments.
pub type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Makes the condition that argument `index` equals `value` in the bits of `mask`.
pub fn has(index: u8, mask: u64, value: u64) -> Result<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(mask), value)
}

/// Makes the condition that argument `index` equals `value`.
pub fn is(index: u8, value: u64) -> Result<SeccompCondition> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
}

/// Compiles a filter: what happens to calls of which a rule holds, and to others.
pub fn program(rules: Rules, matching: SeccompAction, others: SeccompAction) -> Result<BpfProgram> {
    let architecture = ARCH.try_into()?;
    SeccompFilter::new(rules, others, matching, architecture)?.try_into()
}
