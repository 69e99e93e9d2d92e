//! The transcendental functions of the host's x87, where it has one.
//!
//! They deliver the last bits of a real processor, which the manual leaves to the processor; the portable
//! functions differ in these. So a guest's results are the same on all hosts with processors of the same
//! design, but not on all hosts.

use ring3_hostfpu::Stack;
use ring3_x86::softfloat::F80;
use ring3_x86::softfloat::transcendental::{self, Function, Outcome, Results};

/// Computes `function` on the host, or portably if the host has no x87.
pub(crate) fn execute(function: Function, control: u16, st: [F80; 2]) -> Outcome {
    let host = ring3_hostfpu::execute(function.opcode(), control, st.map(F80::to_bytes));
    let Some(host) = host else {
        return transcendental::execute(function, control, st);
    };
    let results = match host.stack {
        Stack::Same(st0) => Results::Replace(F80::from_bytes(st0)),
        Stack::Popped(st0) => Results::Pop(F80::from_bytes(st0)),
        Stack::Pushed([st0, st1]) => {
            Results::Push { replacing: F80::from_bytes(st1), pushed: F80::from_bytes(st0) }
        }
    };
    Outcome::from_x87(host.status, results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_results_come_in_their_order() {
        let control = 0x037f;
        let both = execute(Function::Fsincos, control, [F80::ZERO, F80::ZERO]);
        let expected = Results::Push { replacing: F80::ZERO, pushed: F80::ONE };
        assert_eq!(both.results, expected);
        // (ST(1), ST(0)) is (0, 1): the angle is 0.
        let angle = execute(Function::Fpatan, control, [F80::ONE, F80::ZERO]);
        assert_eq!(angle.results, Results::Pop(F80::ZERO));
        let huge = execute(Function::Fsin, control, [F80::new(0x403e, 1 << 63), F80::ZERO]);
        assert!(huge.incomplete);
    }
}
