//! The histogram of executed instructions, and the guest tool that measures with it.

use std::collections::BTreeSet;

use iced_x86::Code;
use ring3_x86::cpu::Cpu;
use ring3_x86::guest_tools::Call;
use ring3_x86::histogram::Histogram;
use ring3_x86::table::{self, FormId, Group};

/// Bytes of the buffer that the guest fetches in one call.
const FETCHED: usize = 16;
/// Bytes of a counter in that buffer.
const COUNTER: usize = 8;

#[test]
fn rows_have_different_names() {
    let names: BTreeSet<_> = Histogram::default().rows().map(|row| row.name).collect();
    assert_eq!(names.len(), table::forms().len() + 1);
    assert!(names.contains("ADD r/m32, r32") && names.contains("(no instruction)"), "{names:?}");
}

#[test]
fn what_is_counted_too_early_is_taken_back() {
    let (form, _) = table::find(Code::Nopd).unwrap();
    let mut counts = Histogram::default();
    counts.take_back(form, true, 3);
    counts.add(form, true, 5);
    counts.add(FormId::NONE, false, 1);
    assert_eq!(counts.total(), 3);
    let used: Vec<_> = counts.rows().filter(|row| row.total() != 0).collect();
    let [nop, none] = used.as_slice() else { panic!("{used:?}") };
    assert_eq!((nop.supervisor, nop.user, nop.group), (0, 2, Some(Group::Flags)));
    assert_eq!((none.supervisor, none.user, none.group), (1, 0, None));
}

#[test]
fn the_guest_fetches_counters_and_then_names() {
    let mut cpu = Cpu::new();
    assert!(!cpu.counts_forms());
    cpu.execute_histogram(Call::StartHistogram);
    let (form, _) = table::find(Code::Nopd).unwrap();
    cpu.histogram_mut().unwrap().add(form, false, 0x1_0000_0002);
    let [_, counters, size, _] = cpu.execute_histogram(Call::StopHistogram).unwrap();
    assert!(!cpu.counts_forms());
    let mut buffer = Vec::new();
    for index in (0..size).step_by(FETCHED) {
        let words = cpu.execute_histogram(Call::FetchHistogram { index }).unwrap();
        buffer.extend(words.into_iter().flat_map(u32::to_le_bytes));
    }
    assert!(buffer.len() - (size as usize) < FETCHED);
    let (counts, names) = buffer.split_at(counters as usize * COUNTER);
    let names = names[..size as usize - counts.len()].strip_suffix(b"\0").unwrap();
    let names: Vec<_> = names.split(|byte| *byte == 0).collect();
    assert_eq!(names.len(), counters as usize);
    let measured = names.iter().zip(counts.chunks_exact(COUNTER));
    let used: Vec<_> = measured.filter(|(_, count)| *count != [0; COUNTER]).collect();
    assert_eq!(used, [(&&b"s NOP (o32 90)"[..], &[2, 0, 0, 0, 1, 0, 0, 0][..])]);
    for index in [size.next_multiple_of(16), 0x7fff_fff0, 0xffff_fff8, u32::MAX] {
        assert_eq!(cpu.execute_histogram(Call::FetchHistogram { index }), Some([0; 4]));
    }
}

#[test]
fn a_measurement_goes_on_in_a_restored_processor() {
    let (form, _) = table::find(Code::Nopd).unwrap();
    let mut cpu = Cpu::new();
    let nothing = cpu.save();
    cpu.observe_forms(true);
    cpu.histogram_mut().unwrap().add(form, false, 100);
    assert_eq!(cpu.save(), nothing, "what is counted outside is no state");
    cpu.execute_histogram(Call::StartHistogram);
    cpu.histogram_mut().unwrap().add(form, false, 7);
    let saved = cpu.save();
    let mut other = Cpu::new();
    other.restore(&saved).unwrap();
    assert_eq!(other.save(), saved);
    other.histogram_mut().unwrap().add(form, false, 1);
    for (mut cpu, expected) in [(cpu, 7), (other, 8)] {
        cpu.execute_histogram(Call::StopHistogram);
        let index = (form.index() * 2 * COUNTER) as u32;
        let [counted, ..] = cpu.execute_histogram(Call::FetchHistogram { index }).unwrap();
        assert_eq!(counted, expected);
        let saved = cpu.save();
        cpu.restore(&saved).unwrap();
        assert_eq!(cpu.save(), saved);
    }
}
