//! Guest tools: functions that software in the guest calls by CPUID.

use std::io;
use std::time::{Duration, SystemTime};

use crate::support::multiboot_kernel;
use ring3_core::clock::Time;
use ring3_core::input::{HostClocks, Input, StampedInput};
use ring3_vm::histogram::Histogram;
use ring3_vm::{
    Config, Console, Ending, EngineChoice, Engines, GuestTools, Software, Verified, Vm, VmError,
    door,
};
use ring3_x86::cpu::reg;

use crate::verify::MakeFaulty;

/// Reads the host's clocks 32 times, with 200,000 instructions between, sends all values in the order EAX, EDX,
/// ECX, EBX to the debug console, and switches off. Without an answer it sends nothing.
#[rustfmt::skip]
const CLOCK_READER: &[u8] = &[
    0xfc, //                               100020: CLD
    0xbf, 0x00, 0x00, 0x20, 0x00, //       100021: MOV EDI, 200000h
    0xbe, 0x20, 0x00, 0x00, 0x00, //       100026: MOV ESI, 32
    0xb8, b'Q', b'E', b'M', b'U', //       10002B: MOV EAX, "QEMU"
    0xba, b't', b'i', b'm', b'e', //       100030: MOV EDX, "time"
    0x31, 0xc9, 0x31, 0xdb, //             100035: XOR ECX, ECX; XOR EBX, EBX
    0xf9, 0x0f, 0xa2, //                   100039: STC; CPUID
    0x72, 0x23, //                         10003C: JC 100061
    0xab, //                               10003E: STOSD
    0x89, 0xd0, 0xab, //                   10003F: MOV EAX, EDX; STOSD
    0x89, 0xc8, 0xab, //                   100042: MOV EAX, ECX; STOSD
    0x89, 0xd8, 0xab, //                   100045: MOV EAX, EBX; STOSD
    0xb9, 0x40, 0x0d, 0x03, 0x00, //       100048: MOV ECX, 200000
    0xe2, 0xfe, //                         10004D: LOOP to itself
    0x4e, 0x75, 0xd9, //                   10004F: DEC ESI; JNZ 10002B
    0x66, 0xba, 0x02, 0x04, //             100052: MOV DX, 402h
    0xbe, 0x00, 0x00, 0x20, 0x00, //       100056: MOV ESI, 200000h
    0x89, 0xf9, 0x29, 0xf1, //             10005B: MOV ECX, EDI; SUB ECX, ESI
    0xf3, 0x6e, //                         10005F: REP OUTSB
    0x66, 0xba, 0x04, 0x06, //             100061: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //             100065: MOV AX, 2000h
    0x66, 0xef, 0xeb, 0xfe, //             100069: OUT DX, AX; JMP to itself
];

/// Number of reads.
const READS: usize = 32;
/// Instructions before the first read.
const BEFORE_FIRST: u64 = 8;

/// Keeps what the guest sends to the debug console.
#[derive(Default)]
struct Sent(Vec<u8>);

impl Console for Sent {
    fn serial(&mut self, _: u8, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn debug(&mut self, byte: u8) -> io::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn machine(host_time: bool, deterministic: bool, engine: EngineChoice) -> Vm {
    let tools = GuestTools { host_time, ..GuestTools::default() };
    machine_of(CLOCK_READER, tools, deterministic, engine)
}

fn machine_of(
    code: &[u8],
    guest_tools: GuestTools,
    deterministic: bool,
    engine: EngineChoice,
) -> Vm {
    let config = Config { memory_bytes: 16 << 20, deterministic, guest_tools, ..Config::default() };
    Vm::with_engine(config, Software::Kernel(multiboot_kernel(code)), engine).unwrap()
}

/// Runs the machine until it switches itself off. Returns what it has sent.
fn run(vm: &mut Vm) -> Vec<u8> {
    let (_sender, mut door) = door();
    let mut sent = Sent::default();
    assert_eq!(vm.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    sent.0
}

/// Returns the clocks that the guest has sent.
fn clocks(sent: &[u8]) -> Vec<HostClocks> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    let one = |bytes: &[u8]| HostClocks {
        time_stamp: u64::from(word(&bytes[4..8])) << 32 | u64::from(word(&bytes[..4])),
        seconds: word(&bytes[8..12]),
        microseconds: word(&bytes[12..]),
    };
    sent.chunks_exact(16).map(one).collect()
}

/// Returns those inputs that are the host's clocks.
fn inputs_of_clocks(recording: &[StampedInput]) -> Vec<HostClocks> {
    let clocks = |stamped: &StampedInput| match stamped.input {
        Input::HostClocks(clocks) => Some(clocks),
        _ => None,
    };
    recording.iter().filter_map(clocks).collect()
}

const ENGINES: [EngineChoice; 2] = [EngineChoice::Interpreter, EngineChoice::Auto];

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

#[test]
fn guest_tools_read_the_clocks_of_the_host() {
    for engine in ENGINES {
        for deterministic in [false, true] {
            let before = now();
            let read = clocks(&run(&mut machine(true, deterministic, engine)));
            let after = now();
            assert_eq!(read.len(), READS);
            let time = |clocks: &HostClocks| {
                let whole = Duration::from_secs(clocks.seconds.into());
                whole + Duration::from_micros(clocks.microseconds.into())
            };
            let times: Vec<_> = read.iter().map(time).collect();
            // Times are cut to microseconds.
            assert!(times[0] + Duration::from_micros(1) > before && times[READS - 1] <= after);
            assert!(times.is_sorted(), "{times:?}");
            assert!(read.is_sorted_by_key(|clocks| clocks.time_stamp), "{read:?}");
            assert_ne!(read[0].time_stamp, read[READS - 1].time_stamp);
        }
    }
}

#[test]
fn guest_tools_are_off_by_default() {
    assert_eq!(Config::default().guest_tools, GuestTools { host_time: false, histogram: false });
    for engine in ENGINES {
        assert_eq!(run(&mut machine(false, true, engine)), b"");
    }
}

/// The second run finds the clocks of the first, on either engine.
#[test]
fn guest_tools_repeat_the_host_time_in_a_replay() {
    for deterministic in [false, true] {
        let mut live = machine(true, deterministic, EngineChoice::Auto);
        live.record();
        let sent = run(&mut live);
        assert_eq!(inputs_of_clocks(live.recording()), clocks(&sent));
        for engine in ENGINES {
            let mut replayed = machine(true, deterministic, engine);
            let mut again = Sent::default();
            let ending = replayed.replay(live.recording(), &mut again).unwrap();
            assert_eq!((ending, again.0), (Ending::PowerOff, sent.clone()));
            assert_eq!(replayed.checkpoint(), live.checkpoint());
        }
    }
}

/// A recording that does not have the answers where the guest asks is not of this guest.
#[test]
fn guest_tools_end_a_replay_without_their_answers() {
    for deterministic in [false, true] {
        let mut live = machine(true, deterministic, EngineChoice::Auto);
        live.record();
        run(&mut live);
        let is_answer = |input: &StampedInput| matches!(input.input, Input::HostClocks(_));
        let recording = live.recording();
        let answers = recording.iter().filter(|input| is_answer(input));
        let seventh = answers.clone().nth(6).unwrap();
        let missing: Vec<_> = recording.iter().filter(|input| *input != seventh).cloned().collect();
        let early = recording.iter().cloned().map(|mut input| {
            input.instructions -= u64::from(is_answer(&input));
            input
        });
        let none = recording.iter().take_while(|input| !is_answer(input)).cloned();
        for (inputs, expected) in [
            (missing, seventh.instructions),
            (early.collect(), BEFORE_FIRST),
            (none.collect(), BEFORE_FIRST),
        ] {
            let mut replayed = machine(true, deterministic, EngineChoice::Auto);
            let error = replayed.replay(&inputs, &mut Sent::default()).unwrap_err();
            let VmError::Diverged(instructions) = error else { panic!("{error}") };
            assert_eq!(instructions, expected);
        }
    }
}

#[test]
fn guest_tools_have_the_same_answers_on_both_engines() {
    let mut vm = machine(true, true, EngineChoice::Auto);
    let engines = Engines { tested: &EngineChoice::Auto, reference: &EngineChoice::Interpreter };
    let (_sender, mut door) = door();
    let verified = vm.verify(engines, &mut door, &mut Sent::default()).unwrap();
    assert!(matches!(verified, Verified::Same(Ending::PowerOff)), "{verified:?}");
}

/// The search for the first difference repeats the run from its inputs up to any point.
#[test]
fn guest_tools_do_not_hide_a_difference_between_engines() {
    for before in [BEFORE_FIRST - 1, BEFORE_FIRST, BEFORE_FIRST + 1, 2_000_000] {
        let tested =
            &MakeFaulty { before, fault: |cpu, _| cpu.set_gpr(reg::BP, cpu.gpr(reg::BP) ^ 0x10) };
        let config = machine(true, true, EngineChoice::Auto).config().clone();
        let software = Software::Kernel(multiboot_kernel(CLOCK_READER));
        let mut vm = Vm::with_engine(config, software, tested).unwrap();
        let engines = Engines { tested, reference: &EngineChoice::Interpreter };
        let (_sender, mut door) = door();
        match vm.verify(engines, &mut door, &mut Sent::default()).unwrap() {
            Verified::Differs(difference) => assert_eq!(difference.instructions(), before),
            Verified::Same(ending) => panic!("nothing was found: {ending:?}"),
        }
    }
}

/// Number of iterations that are measured.
const LOOPS: u32 = 3_000_000;

/// Calls the histogram's function `function` with `load_operand`, which loads EBX.
fn histogram(function: [u8; 4], load_operand: &[u8]) -> Vec<u8> {
    // MOV EAX, "QEMU"; MOV EDX, "hist"; MOV ECX, function; STC; CPUID
    let registers = [&[0xb8][..], b"QEMU", &[0xba], b"hist", &[0xb9], &function].concat();
    [&registers, load_operand, &[0xf9, 0x0f, 0xa2]].concat()
}

/// Measures a loop, sends the whole buffer to the debug console, and switches off.
#[rustfmt::skip]
fn measurer() -> Vec<u8> {
    const ALL_ONES: &[u8] = &[0xbb, 0xff, 0xff, 0xff, 0xff]; // MOV EBX, -1
    let fetch = [
        histogram(*b"fetc", &[0x89, 0xf3]), //             MOV EBX, ESI
        vec![
            0xa3, 0x00, 0x00, 0x20, 0x00, //              MOV [200000h], EAX
            0x89, 0x1d, 0x04, 0x00, 0x20, 0x00, //        MOV [200004h], EBX
            0x89, 0x0d, 0x08, 0x00, 0x20, 0x00, //        MOV [200008h], ECX
            0x89, 0x15, 0x0c, 0x00, 0x20, 0x00, //        MOV [20000Ch], EDX
            0x89, 0xf7, 0xfc, //                          MOV EDI, ESI; CLD
            0xbe, 0x00, 0x00, 0x20, 0x00, //              MOV ESI, 200000h
            0xb9, 0x10, 0x00, 0x00, 0x00, //              MOV ECX, 16
            0x66, 0xba, 0x02, 0x04, 0xf3, 0x6e, //        MOV DX, 402h; REP OUTSB
            0x8d, 0x77, 0x10, 0x39, 0xee, //              LEA ESI, [EDI + 16]; CMP ESI, EBP
        ],
    ].concat();
    let back = [0x72, (fetch.len() as u8 + 2).wrapping_neg()]; // JB to the fetch
    [
        histogram(*b"star", ALL_ONES),
        vec![0xb9], LOOPS.to_le_bytes().to_vec(), //      MOV ECX, LOOPS
        vec![0xe2, 0xfe], //                              LOOP to itself
        histogram(*b"stop", ALL_ONES),
        vec![0x89, 0xcd, 0x31, 0xf6], //                  MOV EBP, ECX; XOR ESI, ESI
        fetch, back.to_vec(),
        CLOCK_READER[CLOCK_READER.len() - 12..].to_vec(),
    ].concat()
}

/// Returns a machine that runs [`measurer`].
fn measuring(deterministic: bool, engine: EngineChoice) -> Vm {
    let tools = GuestTools { histogram: true, ..GuestTools::default() };
    machine_of(&measurer(), tools, deterministic, engine)
}

/// Returns names and counts of the buffer that the guest has sent, without those that are zero.
fn counts(sent: &[u8]) -> Vec<(String, u64)> {
    let counters = 2 * Histogram::default().rows().len();
    let (counts, names) = sent.split_at(8 * counters);
    let counts = counts.chunks_exact(8).map(|count| u64::from_le_bytes(count.try_into().unwrap()));
    let names = names.split(|byte| *byte == 0);
    let all = names.map(|name| String::from_utf8_lossy(name).into_owned()).zip(counts);
    all.filter(|(_, count)| *count != 0).collect()
}

#[test]
fn guest_tools_count_instructions_alike_on_both_engines_and_in_restored_machines() {
    let sent = run(&mut measuring(true, EngineChoice::Interpreter));
    let counted = counts(&sent);
    let expected = [
        ("s MOV r32, imm32", 5),
        ("s LOOP rel8 (a32 o32 E2 cb)", LOOPS.into()),
        ("s STC", 1),
        ("s CPUID", 1),
    ];
    let all: u64 = counted.iter().map(|(_, count)| count).sum();
    assert_eq!(all, expected.iter().map(|(_, count)| count).sum::<u64>(), "{counted:?}");
    for (name, count) in expected {
        assert!(counted.contains(&(name.to_owned(), count)), "{name}: {counted:?}");
    }
    for engine in ENGINES {
        assert!(run(&mut measuring(true, engine)) == sent);
        // A machine is saved in the middle of the loop, and continues on each engine.
        let mut saved = measuring(false, engine);
        let quit = StampedInput { instructions: 1_000_000, time: Time::ZERO, input: Input::Quit };
        assert_eq!(saved.replay(&[quit], &mut Sent::default()).unwrap(), Ending::Quit);
        let saved = saved.save();
        for engine in ENGINES {
            assert!(run(&mut Vm::restore(&saved, engine).unwrap()) == sent);
        }
    }
    let engines = Engines { tested: &EngineChoice::Auto, reference: &EngineChoice::Interpreter };
    let (_sender, mut door) = door();
    let mut vm = measuring(true, EngineChoice::Auto);
    let verified = vm.verify(engines, &mut door, &mut Sent::default()).unwrap();
    assert!(matches!(verified, Verified::Same(Ending::PowerOff)), "{verified:?}");
}
