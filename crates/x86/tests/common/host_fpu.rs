//! The transcendental functions of the host's x87.

use ring3_hostfpu::Stack;
use ring3_x86::softfloat::F80;
use ring3_x86::softfloat::transcendental::{self, Function, Outcome, Results};

/// Computes `function` on the host. Returns `None` if the host has no x87.
pub(crate) fn try_execute(function: Function, control: u16, st: [F80; 2]) -> Option<Outcome> {
    let host = ring3_hostfpu::execute(function.opcode(), control, st.map(F80::to_bytes))?;
    let results = match host.stack {
        Stack::Same(st0) => Results::Replace(F80::from_bytes(st0)),
        Stack::Popped(st0) => Results::Pop(F80::from_bytes(st0)),
        Stack::Pushed([st0, st1]) => {
            Results::Push { replacing: F80::from_bytes(st1), pushed: F80::from_bytes(st0) }
        }
    };
    Some(Outcome::from_x87(host.status, results))
}

/// Computes `function` on the host if it has an x87.
pub(crate) fn execute(function: Function, control: u16, st: [F80; 2]) -> Outcome {
    try_execute(function, control, st)
        .unwrap_or_else(|| transcendental::execute(function, control, st))
}
