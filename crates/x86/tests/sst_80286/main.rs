//! Compares with a real 80286 in real mode: 65,000 tests of one instruction each, from the collection
//! SingleStepTests, which Daniel Balsom captured from a Harris N80C286-12.
//!
//! The tests are read from the folder `data/sst-80286-real` of `RING3_SHARED`, which is `../shared` beside
//! the workspace if that variable is not set. The results compared are registers, flags except for those that
//! are [undefined](ring3_x86::undefined), and all memory. `divergences.rs` lists where an 80286 differs from
//! the processor that is emulated.

#[path = "../common/mod.rs"]
mod common;

mod divergences;
mod machine;
mod vectors;

use std::collections::BTreeMap;
use std::fmt::Write;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use ring3_x86::undefined;

use divergences::{Divergence, TABLE};
use machine::{Machine, Outcome, comparable_flags};
use vectors::{CX, FLAGS, REGISTERS, SP, SS, Test};

/// The most forms for which differences are reported, and the most differences for one form.
const FORMS_TOLD: usize = 40;
const DIFFERENCES_TOLD: usize = 3;

#[test]
fn real_mode_is_that_of_an_80286() {
    let folder = vectors::folder();
    if !folder.is_dir() {
        ring3_skipped::host(format_args!(
            "the vectors of the 80286 are not in {}",
            folder.display()
        ));
        return;
    }
    let revoked = vectors::revoked(&folder);
    let mut tally = Tally::default();
    let mut machines = [Machine::new(), Machine::observed()];
    for (form, path) in vectors::files(&folder) {
        let tests = vectors::read(&path);
        for test in tests.iter().filter(|test| !revoked.contains(&test.hash)) {
            tally.compare(&mut machines, &form, test);
        }
        for machine in &mut machines {
            if let Some(address) = machine.stray_write() {
                tally.failed(&form, format!("a test of {form} has written to {address:06x}\n"));
                machine.clear();
            }
        }
    }
    tally.tell();
    assert!(tally.failures.is_empty(), "{} forms differ from the 80286", tally.failures.len());
}

/// How the tests ended.
#[derive(Default)]
struct Tally {
    run: u32,
    /// The number of tests that differ for a known reason, by its row of the table.
    divergent: BTreeMap<usize, u32>,
    /// The failures by form.
    failures: BTreeMap<String, Vec<String>>,
}

impl Tally {
    fn compare(&mut self, [machine, observer]: &mut [Machine; 2], form: &str, test: &Test) {
        self.run += 1;
        let outcome = machine.run(test);
        let observed = observer.run(test);
        let row = Divergence::find(test, observed.raised);
        let row_of_table = row.map(|row| &TABLE[row]);
        let mut differences = differences(machine, test, &outcome, row_of_table);
        if test.exception != observed.raised && row.is_none() && !is_software_interrupt(test) {
            differences.push(format!("exception here: {:?}", observed.raised));
        }
        if outcome.registers != observed.registers || outcome.exit != observed.exit {
            differences.push("it ends otherwise when it is observed".to_owned());
        }
        machine.erase(test);
        observer.erase(test);
        if let Some(row) = row {
            *self.divergent.entry(row).or_default() += 1;
            machine.clear();
            observer.clear();
        }
        if !differences.is_empty() {
            self.failed(form, describe(form, test, &differences));
            machine.clear();
            observer.clear();
        }
    }

    fn failed(&mut self, form: &str, text: String) {
        self.failures.entry(form.to_owned()).or_default().push(text);
    }

    fn tell(&self) {
        println!("{} tests", self.run);
        for (row, count) in &self.divergent {
            println!("{count:5} differ: {}", TABLE[*row].reason);
        }
        for (form, texts) in self.failures.iter().take(FORMS_TOLD) {
            println!("\n{form}: {} differences without a reason", texts.len());
            for text in texts.iter().take(DIFFERENCES_TOLD) {
                print!("{text}");
            }
        }
    }
}

/// Returns the differences after `test` that are not allowed, one in each line.
fn differences(
    machine: &Machine,
    test: &Test,
    outcome: &Outcome,
    divergence: Option<&Divergence>,
) -> Vec<String> {
    let free = divergence.map_or(&[][..], |divergence| divergence.registers);
    if divergence.is_some() && free.is_empty() {
        return Vec::new();
    }
    let mut lines = Vec::new();
    if let Some(exit) = &outcome.exit {
        lines.push(format!("ended with {exit:?}"));
    }
    let defined = !undefined_flags(test);
    for (number, name) in REGISTERS.iter().enumerate().filter(|(_, name)| !free.contains(name)) {
        let (mut expected, mut ours) = (test.last_register(number), outcome.registers[number]);
        if number == FLAGS {
            expected = comparable_flags(expected) & defined;
            ours = comparable_flags(ours) & defined;
        }
        if expected != ours {
            lines.push(format!("{name}: 80286 {expected:04x}, ours {ours:04x}"));
        }
    }
    let mut memory = test.initial.memory.clone();
    memory.extend(&test.last.memory);
    for (address, expected) in memory {
        let ours = machine.byte(address);
        if (expected ^ ours) & compared_bits(test, address, defined) != 0 {
            lines.push(format!("{address:06x}: 80286 {expected:02x}, ours {ours:02x}"));
        }
    }
    lines
}

/// Returns whether the instruction is INT n, INT3 or INTO, which the vectors call exceptions. Their vectors
/// show in CS:IP.
fn is_software_interrupt(test: &Test) -> bool {
    let instruction = Decoder::new(16, &test.bytes, DecoderOptions::NONE).decode();
    instruction.flow_control() == FlowControl::Interrupt
}

/// Returns the flags that the instruction of `test` leaves undefined. They are undefined even if it raises an
/// exception: a division that fails leaves some of its steps in the flags.
fn undefined_flags(test: &Test) -> u16 {
    let instruction = Decoder::new(16, &test.bytes, DecoderOptions::NONE).decode();
    let cl = test.initial.registers[CX].unwrap_or_default() as u8;
    undefined::undefined(&instruction, cl).flags.bits() as u16
}

/// Returns the bits of the byte at `address` that are compared: those of `defined` if it belongs to the flags
/// that an exception has pushed. (The vectors contain their address too, without its lowest bit.)
fn compared_bits(test: &Test, address: u32, defined: u16) -> u8 {
    if test.exception.is_none() {
        return u8::MAX;
    }
    let pushed = |offset| {
        let stack = u32::from(test.last_register(SS)) << 4;
        stack + u32::from(test.last_register(SP).wrapping_add(offset))
    };
    let [low, high] = comparable_flags(defined).to_le_bytes();
    match address {
        _ if address == pushed(4) => low,
        _ if address == pushed(5) => high,
        _ => u8::MAX,
    }
}

fn describe(form: &str, test: &Test, differences: &[String]) -> String {
    let mut text = format!("{form} test {}: {} ({:02x?})", test.index, test.name, test.bytes);
    if let Some(vector) = test.exception {
        let _ = write!(text, " raises exception {vector}");
    }
    text.push_str("\n ");
    for (name, value) in REGISTERS.iter().zip(test.initial.registers) {
        let _ = write!(text, " {name} {:04x}", value.unwrap_or_default());
    }
    text.push('\n');
    for line in differences.iter().take(8) {
        let _ = writeln!(text, "    {line}");
    }
    text
}
