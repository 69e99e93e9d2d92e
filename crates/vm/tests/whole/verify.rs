//! Two engines in lock-step: differences are found, and reported.

use std::io;

use crate::support::file::File;
use crate::support::{CONSOLE, LINUX, Until, multiboot_kernel};
use ring3_core::device::DeviceId;
use ring3_core::input::{DeviceInput, Input, StampedInput};
use ring3_core::memory::Memory;
use ring3_vm::recording::{Recording, RecordingError, RecordingWriter};
use ring3_vm::{
    Config, Difference, Ending, EngineChoice, EngineError, EngineMaker, Engines, Software,
    Verified, Vm, VmError, door,
};
use ring3_x86::cpu::{Cpu, reg};
use ring3_x86::engine::{Engine, Exit};
use ring3_x86::flags::Eflags;
use ring3_x86::interpreter::Interpreter;

/// Counts down from 3 million in EAX with a sum in EBX, writes the sum to memory, sends a letter by COM1 and
/// switches off.
#[rustfmt::skip]
const COUNTER: &[u8] = &[
    0xb8, 0xc0, 0xc6, 0x2d, 0x00, //             100020: MOV EAX, 3000000
    0x31, 0xdb, //                               100025: XOR EBX, EBX
    0x01, 0xc3, //                               100027: ADD EBX, EAX
    0x48, //                                     100029: DEC EAX
    0x75, 0xfb, //                               10002A: JNZ 100027
    0x89, 0x1d, 0x00, 0x00, 0x20, 0x00, //       10002C: MOV [200000h], EBX
    0x66, 0xba, 0xf8, 0x03, 0xb0, b'!', 0xee, // 100032: MOV DX, 3F8h; MOV AL, '!'; OUT DX, AL
    0x66, 0xba, 0x04, 0x06, //                   100039: MOV DX, 604h
    0x66, 0xb8, 0x00, 0x20, //                   10003D: MOV AX, 2000h
    0x66, 0xef, //                               100041: OUT DX, AX
    0xeb, 0xfe, //                               100043: JMP to itself
];

/// The interpreter with a fault: after a number of instructions, it executes one of them wrongly.
#[derive(Debug)]
struct Faulty {
    interpreter: Interpreter,
    /// Number of instructions before that one.
    before: u64,
    /// Makes the result of that one wrong.
    fault: fn(&mut Cpu, &mut Memory),
}

impl Engine for Faulty {
    fn name(&self) -> &'static str {
        "faulty engine"
    }

    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit {
        let deadline = cpu.instructions.saturating_add(instructions);
        let after = self.before + 1;
        if cpu.instructions < after && after <= deadline {
            let exit = self.interpreter.run(cpu, memory, after - cpu.instructions);
            if cpu.instructions == after {
                (self.fault)(cpu, memory);
            }
            if exit != Exit::Deadline {
                return exit;
            }
        }
        self.interpreter.run(cpu, memory, deadline - cpu.instructions)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.interpreter.counters()
    }
}

/// Makes such engines.
#[derive(Clone, Copy)]
pub(crate) struct MakeFaulty {
    pub(crate) before: u64,
    pub(crate) fault: fn(&mut Cpu, &mut Memory),
}

impl EngineMaker for MakeFaulty {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        let MakeFaulty { before, fault } = *self;
        let engine = Faulty { interpreter: Interpreter::new(), before, fault };
        Ok((Box::new(engine), Memory::new(size)?))
    }
}

/// The interpreter, but whenever it has executed all the instructions that it was asked for, ZF is inverted.
#[derive(Debug)]
struct OtherFlags(Interpreter);

impl Engine for OtherFlags {
    fn name(&self) -> &'static str {
        "engine with other flags"
    }

    fn run(&mut self, cpu: &mut Cpu, memory: &mut Memory, instructions: u64) -> Exit {
        let exit = self.0.run(cpu, memory, instructions);
        if exit == Exit::Deadline && instructions > 0 {
            cpu.set_status_and_direction(cpu.eflags() ^ Eflags::ZF);
        }
        exit
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.0.counters()
    }
}

struct MakeOtherFlags;

impl EngineMaker for MakeOtherFlags {
    fn make(&self, size: u64) -> Result<(Box<dyn Engine>, Memory), EngineError> {
        Ok((Box::new(OtherFlags(Interpreter::new())), Memory::new(size)?))
    }
}

/// The guest keeps AF after a shift, which is undefined. The report names this flag, and blames no
/// instruction.
#[test]
fn a_guest_that_uses_undefined_flags_is_reported() {
    const SHIFT: u64 = 1_000_000;
    let code = loop_of(&[
        0xc1, 0xe6, 0x05, // SHL ESI, 5
        0x9f, //             LAHF
        0x01, 0xc3, //       ADD EBX, EAX
    ]);
    let fault = |cpu: &mut Cpu, _: &mut Memory| {
        cpu.set_status_and_direction(cpu.eflags() ^ Eflags::AF);
    };
    // After MOV ECX, each turn has four instructions.
    let before = 1 + 4 * SHIFT;
    let Verified::Differs(difference) = verify_code(&code, &MakeFaulty { before, fault }) else {
        panic!("the sum is another one");
    };
    let undefined = difference.undefined().expect("no engine is at fault");
    assert_eq!((undefined.flags, difference.instructions()), (Eflags::AF, before + 1));
    assert!(undefined.by.contains("shl esi"), "{}", undefined.by);
    assert!(difference.to_string().contains("no fault of an engine"), "{difference}");
}

/// Executes `instruction` 3 million times, and switches off.
fn loop_of(instruction: &[u8]) -> Vec<u8> {
    [
        &[0xb9, 0xc0, 0xc6, 0x2d, 0x00][..], // MOV ECX, 3000000
        instruction,
        &[0xe2, 0xfe - instruction.len() as u8], // LOOP to it
        &COUNTER[COUNTER.len() - 12..],          // as there
    ]
    .concat()
}

fn config() -> Config {
    Config { memory_bytes: 16 << 20, deterministic: true, ..Config::default() }
}

/// Runs `COUNTER` on the engine to be tested, compared with the interpreter.
fn verify(tested: &dyn EngineMaker) -> Verified {
    verify_code(COUNTER, tested)
}

/// Runs `code`.
fn verify_code(code: &[u8], tested: &dyn EngineMaker) -> Verified {
    let mut vm =
        Vm::with_engine(config(), Software::Kernel(multiboot_kernel(code)), tested).unwrap();
    let (_sender, mut door) = door();
    let mut console = Until { text: "never", sent: String::new(), sender: None };
    let reference = &EngineChoice::Interpreter;
    vm.verify(Engines { tested, reference }, &mut door, &mut console).unwrap()
}

/// Returns the difference that is found with this fault.
#[track_caller]
fn difference(before: u64, fault: fn(&mut Cpu, &mut Memory)) -> Difference {
    match verify(&MakeFaulty { before, fault }) {
        Verified::Differs(difference) => *difference,
        Verified::Same(ending) => panic!("nothing was found: {ending:?}"),
    }
}

#[test]
fn a_register_that_is_wrong_after_one_instruction_is_found() {
    // MOV and XOR, then three instructions in each turn of the loop: this is an ADD.
    let before = 2 + 3 * 400_000;
    let wrong = |cpu: &mut Cpu, _: &mut Memory| cpu.set_gpr(reg::BX, cpu.gpr(reg::BX) ^ 0x10);
    let difference = difference(before, wrong);
    assert_eq!(difference.instructions(), before);
    assert_eq!(difference.instruction(), Some("00100027  01 c3  add ebx,eax"));
    let [field] = difference.fields() else { panic!("{difference}") };
    assert_eq!(field.path, "cpu.gpr[3]");
    let report = difference.to_string();
    for part in [
        "the faulty engine and the interpreter differ after 1200003 instructions",
        "  > 00100027  01 c3  add ebx,eax\n",
        "    0010002a  75 fb  jne short 00100027h\n",
        "* faulty engine",
        "at eip: 00100029  48  dec eax",
    ] {
        assert!(report.to_lowercase().contains(&part.to_lowercase()), "no {part:?} in:\n{report}");
    }
}

#[test]
fn memory_that_is_wrong_is_found() {
    let before = 2 + 3 * 500_000 + 1;
    let difference = difference(before, |_, memory| memory.write(0x30_0004, &[0xab]));
    assert_eq!(difference.instructions(), before);
    assert_eq!(difference.instruction(), Some("00100029  48  dec eax"));
    assert!(difference.fields().is_empty(), "{difference}");
    let report = difference.to_string();
    assert!(report.contains("1 bytes of memory differ"), "{report}");
    assert!(report.contains("00300000") && report.contains("*ab"), "{report}");
}

/// A state that is wrong only until the next comparison is found too, by its consequences.
#[test]
fn different_output_is_found() {
    let before = 2 + 3 * 3_000_000 + 2;
    let difference = difference(before, |cpu, _| cpu.set_gpr(reg::AX, u64::from(b'?')));
    assert_eq!(difference.instructions(), before);
    assert_eq!(difference.instruction(), Some("00100036  b0 21  mov al,21h"));
}

#[test]
fn undefined_flags_may_differ() {
    // IMUL EAX, ECX leaves ZF undefined, and LOOP changes no flags.
    let verified = verify_code(&loop_of(&[0x0f, 0xaf, 0xc1]), &MakeOtherFlags);
    assert!(matches!(verified, Verified::Same(Ending::PowerOff)), "{verified:?}");
}

#[test]
fn defined_flags_may_not_differ() {
    // ADD EAX, ECX
    match verify_code(&loop_of(&[0x01, 0xc8]), &MakeOtherFlags) {
        Verified::Differs(difference) => {
            let [field] = difference.fields() else { panic!("{difference}") };
            assert_eq!(field.path, "cpu.eflags");
        }
        Verified::Same(ending) => panic!("nothing was found: {ending:?}"),
    }
}

#[test]
fn the_translator_counts_like_the_interpreter() {
    let verified = verify(&EngineChoice::Auto);
    assert!(matches!(verified, Verified::Same(Ending::PowerOff)), "{verified:?}");
}

/// Hashes, in EBX, the bytes that come in by COM1 up to a q, sends the hash, and continues as `COUNTER` with
/// it.
#[rustfmt::skip]
const LISTENER: &[u8] = &[
    0x66, 0xba, 0xfd, 0x03, 0xec, //       100020: MOV DX, 3FDh; IN AL, DX
    0xa8, 0x01, 0x74, 0xf7, //             100025: TEST AL, 1; JZ 100020
    0x66, 0xba, 0xf8, 0x03, 0xec, //       100029: MOV DX, 3F8h; IN AL, DX
    0x69, 0xdb, 0x01, 0x01, 0x00, 0x01, // 10002E: IMUL EBX, EBX, 1000101h
    0x0f, 0xb6, 0xc8, 0x01, 0xcb, //       100034: MOVZX ECX, AL; ADD EBX, ECX
    0x3c, b'q', 0x75, 0xe3, //             100039: CMP AL, 'q'; JNE 100020
    0x88, 0xd8, 0xee, //                   10003D: MOV AL, BL; OUT DX, AL
];

fn listener() -> Software {
    let counter = [&COUNTER[..5], &COUNTER[7..]].concat();
    Software::Kernel(multiboot_kernel(&[LISTENER, &counter].concat()))
}

fn typed(byte: u8) -> Input {
    Input::Device { device: DeviceId::COM[0], input: DeviceInput::Serial(vec![byte]) }
}

fn nobody() -> Until {
    Until { text: "never", sent: String::new(), sender: None }
}

fn recorded(file: &File) -> Recording {
    Recording::read(io::Cursor::new(file.contents())).unwrap()
}

/// Returns a run of the listener in host time: its inputs, its output and its number of instructions.
fn normal_run() -> (Vec<StampedInput>, String, u64) {
    let config = Config { deterministic: false, ..config() };
    let mut vm = Vm::new(config, listener()).unwrap();
    vm.record();
    let (sender, mut door) = door();
    b"typedq".iter().for_each(|byte| sender.send(typed(*byte)));
    let mut console = nobody();
    assert_eq!(vm.run(&mut door, &mut console).unwrap(), Ending::PowerOff);
    (vm.recording().to_vec(), console.sent, vm.stats().instructions)
}

/// Repeats a normal run of the listener on the engine to be tested, compared with the interpreter.
fn verify_normal(
    inputs: Vec<Result<StampedInput, RecordingError>>,
    tested: &dyn EngineMaker,
) -> (Result<Verified, VmError>, String) {
    let config = Config { deterministic: false, ..config() };
    let mut vm = Vm::with_engine(config, listener(), tested).unwrap();
    let reference = &EngineChoice::Interpreter;
    let mut console = nobody();
    let engines = Engines { tested, reference };
    let verified = vm.verify_replay(engines, inputs.into_iter(), &mut console);
    (verified, console.sent)
}

fn wrong_bx(cpu: &mut Cpu, _: &mut Memory) {
    cpu.set_gpr(reg::BX, cpu.gpr(reg::BX) ^ 0x10);
}

#[track_caller]
fn expect_difference(verified: Result<Verified, VmError>) -> Difference {
    match verified {
        Ok(Verified::Differs(difference)) => *difference,
        other => panic!("no difference: {other:?}"),
    }
}

#[test]
fn a_difference_is_found_again_in_the_recording() {
    let tested = &MakeFaulty { before: 4_000_000, fault: wrong_bx };
    let engines = Engines { tested, reference: &EngineChoice::Interpreter };
    let file = File::default();
    let mut vm = Vm::with_engine(config(), listener(), tested).unwrap();
    vm.record_to(RecordingWriter::new(file.clone(), &config(), &listener()).unwrap());
    let (_sender, mut door) = door();
    door.put_script(b"a scriptq".iter().map(|byte| typed(*byte)));
    let live = expect_difference(vm.verify(engines, &mut door, &mut nobody()));
    assert_eq!(live.instructions(), 4_000_000);

    let recording = recorded(&file);
    let config = recording.config().clone();
    let mut vm = Vm::with_engine(config.clone(), recording.software().clone(), tested).unwrap();
    let again = expect_difference(vm.verify_replay(engines, recording, &mut nobody()));
    assert_eq!(again.to_string(), live.to_string());

    // The recording is complete, and ends where the engines were compared.
    let mut vm = Vm::new(config, listener()).unwrap();
    assert_eq!(vm.replay_from(recorded(&file), &mut nobody()).unwrap(), Ending::Quit);
    assert!(vm.stats().instructions > 4_000_000);
}

#[test]
fn a_normal_run_is_verified_from_its_recording() {
    let (inputs, sent, instructions) = normal_run();
    let inputs = || inputs.iter().cloned().map(Ok).collect();
    let (verified, again) = verify_normal(inputs(), &EngineChoice::Auto);
    assert!(matches!(verified, Ok(Verified::Same(Ending::PowerOff))), "{verified:?}");
    assert_eq!(again, sent);

    // One place where it polls its port, and others where it counts.
    for before in [100, instructions / 2, instructions - 10] {
        let (verified, _) = verify_normal(inputs(), &MakeFaulty { before, fault: wrong_bx });
        assert_eq!(expect_difference(verified).instructions(), before);
    }
}

#[test]
fn a_recording_that_was_cut_off_is_verified_up_to_its_end() {
    let (inputs, ..) = normal_run();
    let last = inputs.last().unwrap().instructions;
    let inputs = || {
        let cut = Err(RecordingError::CutOff);
        inputs.iter().cloned().map(Ok).chain([cut]).collect()
    };
    let (verified, _) = verify_normal(inputs(), &EngineChoice::Interpreter);
    assert!(matches!(verified, Err(VmError::Recording(RecordingError::CutOff))), "{verified:?}");
    let before = last / 2;
    let (verified, _) = verify_normal(inputs(), &MakeFaulty { before, fault: wrong_bx });
    assert_eq!(expect_difference(verified).instructions(), before);
}

/// Both engines have the same results, but not the recorded ones.
#[test]
fn the_recording_of_another_guest_is_not_reported_as_a_difference() {
    let (inputs, ..) = normal_run();
    let inputs: Vec<_> = inputs.into_iter().map(Ok).collect();
    // CLI; HLT
    let software = Software::Kernel(multiboot_kernel(&[0xfa, 0xf4]));
    let tested = &EngineChoice::Interpreter;
    let config = Config { deterministic: false, ..config() };
    let mut vm = Vm::with_engine(config, software, tested).unwrap();
    let engines = Engines { tested, reference: tested };
    let verified = vm.verify_replay(engines, inputs.into_iter(), &mut nobody());
    assert!(matches!(verified, Err(VmError::Diverged(2))), "{verified:?}");
}

/// A normal run waits for the host's time, and is idle where the recording says so.
#[test]
fn debian_begins_a_normal_start_in_the_same_way() {
    let debian = |engine| {
        let config = Config { rng_seed: Some([1; 32]), ..Config::default() };
        crate::support::debian(config, LINUX, CONSOLE, engine)
    };
    let Some(mut vm) = debian(EngineChoice::Auto) else { return };
    vm.record();
    let sent = crate::support::run_until(&mut vm, "clocksource: ");
    let tested = &EngineChoice::Auto;
    let mut replayed = debian(*tested).expect("it was there before");
    let engines = Engines { tested, reference: &EngineChoice::Interpreter };
    let inputs = vm.recording().to_vec().into_iter().map(Ok);
    let mut console = nobody();
    match replayed.verify_replay(engines, inputs, &mut console).unwrap() {
        Verified::Same(ending) => assert_eq!(ending, Ending::Quit),
        Verified::Differs(difference) => panic!("{difference}"),
    }
    assert_eq!(console.sent, sent);
}

/// The first part of a start of Debian; `ring3 run --verify` verifies a whole one.
#[test]
fn debian_begins_to_start_in_the_same_way() {
    let config = Config { rng_seed: Some([1; 32]), deterministic: true, ..Config::default() };
    let tested = EngineChoice::Auto;
    let Some(mut vm) = crate::support::debian(config, LINUX, CONSOLE, tested) else {
        return;
    };
    let (sender, mut door) = door();
    let input = DeviceInput::Serial(b"ls\n".to_vec());
    door.put_script(std::iter::once(Input::Device { device: DeviceId::COM[0], input }));
    let mut console = Until { text: "clocksource: ", sent: String::new(), sender: Some(sender) };
    let engines = Engines { tested: &tested, reference: &EngineChoice::Interpreter };
    let verified = vm.verify(engines, &mut door, &mut console).unwrap();
    match verified {
        Verified::Same(ending) => assert_eq!(ending, Ending::Quit),
        Verified::Differs(difference) => panic!("{difference}"),
    }
}
