//! `ring3 bench net` with real guests, in a binary of its own: it counts how often two machines wake each
//! other up, and tests that run beside it would change these counts.

#[path = "program/support/mod.rs"]
#[allow(dead_code, reason = "this test uses a part of it")]
mod support;

use crate::support::guest::file;
use crate::support::{output, ring3};

/// Returns how often a step happens: by the design, and as counted.
fn counts(line: &str) -> Option<[f64; 2]> {
    let (design, counted) = line.split_once(" by design, ")?;
    let counted = counted.split_once(" counted")?.0;
    Some([design.split_whitespace().last()?.parse().ok()?, counted.parse().ok()?])
}

/// A packet of an NE2000 takes many accesses to its registers, while the paper's design has three. The counts
/// show that, whatever the time is.
#[test]
fn the_model_is_compared_with_two_real_guests() {
    let suite = file("suite.cpio.gz");
    let guests = suite.parent().expect("it is in a directory");
    let words = ["bench", "net", "--model", "--card", "ne2k_pci", "--runs", "1", "--guests"];
    // No other emulator is in this PATH: the model is not compared with it.
    let mut command = ring3();
    command.args(words).arg(guests).env("PATH", "/none");
    let text = String::from_utf8(output(&mut command)).unwrap();
    assert!(text.starts_with("This host: ring3 netmodel --frequency "), "{text}");
    let of = |name: &str| -> Vec<[f64; 2]> {
        let lines = text.lines().filter(|line| line.trim_start().starts_with(name));
        lines.filter_map(counts).collect()
    };
    // A round trip and a stream, each directly and by the switch.
    let (exits, interrupts, wake_ups) = (of("exits"), of("interrupts"), of("wake-ups"));
    assert_eq!([exits.len(), interrupts.len(), wake_ups.len()], [4; 3], "{text}");
    for [design, counted] in exits {
        assert!(counted > 3.0 * design, "{text}");
    }
    // Each packet that arrives alone interrupts, and so does each packet that has been sent. Some interrupts
    // are saved when the guest looks at its card at the right moment.
    for [design, counted] in [interrupts[0], interrupts[2]] {
        assert!(counted > design / 4.0 && counted < 2.0 * design, "{text}");
    }
    // A thread that finds a packet while it polls needs no wake-up, so there may be next to none. More than
    // the design has would mean wake-ups in vain.
    for [design, counted] in [wake_ups[0], wake_ups[2]] {
        assert!(counted < 2.0 * design, "{text}");
    }
    assert_eq!(text.matches("largest difference: ").count(), 4, "{text}");
}
