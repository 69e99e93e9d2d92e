//! Deterministic runs, and their event logs.

use std::num::NonZero;

use ring3_core::disk::DiskAnswer;

use super::file::File;
use super::*;

/// Returns the contents of `file`.
fn written(file: &File) -> String {
    String::from_utf8(file.contents()).unwrap()
}

fn config() -> Config {
    Config { memory_bytes: 64 << 20, deterministic: true, ..Config::default() }
}

fn machine(engine: EngineChoice) -> Vm {
    let kernel = Kernel { image: kernel_of(CLOCKED_ECHO).into(), ..Kernel::default() };
    Vm::with_engine(config(), Software::Kernel(kernel), engine).unwrap()
}

/// Makes a machine write its event log, and returns the file.
fn logged(vm: &mut Vm, interval: u64) -> File {
    let file = File::default();
    vm.log_events(EventLog::new(file.clone(), NonZero::new(interval)));
    file
}

/// Returns the log without checkpoints.
fn events(log: &File) -> Vec<String> {
    written(log).lines().filter(|line| !line.contains("checkpoint")).map(str::to_owned).collect()
}

/// Runs a machine at which `script` is typed, and returns the bytes that it has sent, and its event log.
fn scripted(engine: EngineChoice, script: &'static [u8], interval: u64) -> (Vec<u8>, File) {
    let mut vm = machine(engine);
    let log = logged(&mut vm, interval);
    let (_sender, mut door) = door();
    door.put_script(script.iter().map(|byte| typed(*byte)));
    let mut sent = Sent::default();
    assert_eq!(vm.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    (sent.0, log)
}

#[test]
fn a_script_makes_the_same_run_on_every_engine() {
    let script = b"the guest hashes the time-stamp counter at each tickq";
    let (sent, log) = scripted(EngineChoice::Interpreter, script, 100);
    assert_eq!(sent.len(), script.len() - 1);
    let text = written(&log);
    let lines = |part| text.lines().filter(|line| line.contains(part)).count();
    assert_eq!(lines("input com1: 1 bytes"), script.len());
    assert!(lines("interrupt 0x00") >= 4 && lines("checkpoint") >= 2, "{text}");
    assert!(text.ends_with("end: the guest has switched the machine off\n"), "{text}");
    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let (again, log_again) = scripted(engine, script, 100);
        assert_eq!((again, written(&log_again)), (sent.clone(), text.clone()));
    }
    // Checkpoints change nothing.
    for interval in [0, 7, 333] {
        let (again, log_again) = scripted(EngineChoice::Interpreter, script, interval);
        assert_eq!((again, events(&log_again)), (sent.clone(), events(&log)));
    }
}

#[test]
fn inputs_at_any_time_are_repeated_by_the_recording() {
    let mut live = machine(EngineChoice::Auto);
    live.record();
    let log = logged(&mut live, 20);
    let file = File::default();
    let software = live.software.clone();
    live.record_to(RecordingWriter::new(file.clone(), &config(), &software).unwrap());
    let (sender, mut door) = door();
    let person = thread::spawn(move || {
        let control = sender.control();
        for byte in *b"typed" {
            thread::sleep(Duration::from_millis(3));
            sender.send(typed(byte));
            control.stats().unwrap();
        }
        control.pause().unwrap();
        let before = control.stats().unwrap();
        sender.send(typed(b'!'));
        let after = control.stats().unwrap();
        assert_eq!(before.instructions, after.instructions);
        assert_eq!(before.virtual_time, after.virtual_time);
        sender.send(Input::Reset);
        control.resume().unwrap();
        sender.send(typed(b'q'));
    });
    let mut sent = Sent::default();
    assert_eq!(live.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    person.join().unwrap();
    assert!(written(&log).contains("reset of the machine"), "{}", written(&log));

    for engine in [EngineChoice::Interpreter, EngineChoice::Auto] {
        let bytes = file.contents();
        let mut recording = crate::recording::Recording::read(io::Cursor::new(bytes)).unwrap();
        let mut replayed = recording.machine(engine).unwrap();
        let log_again = logged(&mut replayed, 20);
        let mut again = Sent::default();
        let ending = replayed.replay_from(recording, &mut again).unwrap();
        assert_eq!((ending, again.0), (Ending::PowerOff, sent.0.clone()));
        assert_eq!(written(&log_again), written(&log));
        assert_eq!(replayed.checkpoint(), live.checkpoint());
    }
}

/// The same guest, which is also interrupted by COM1 when a byte has come.
fn interrupted_echo() -> Vec<u8> {
    // MOV DX, 3F9h; MOV AL, 1; OUT DX, AL; MOV DX, 3FCh; MOV AL, 8; OUT DX, AL
    let mut code =
        vec![0x66, 0xba, 0xf9, 0x03, 0xb0, 1, 0xee, 0x66, 0xba, 0xfc, 0x03, 0xb0, 8, 0xee];
    let start = code.len();
    code.extend(CLOCKED_ECHO);
    let moved = start as u8;
    for address in [0x08, 0x82, 0x88] {
        code[start + address] += moved;
    }
    // IRQ 0 and 4; an IDT with five gates, of which the last one is like the first.
    code[start + 0x1d] = 0xee;
    code[start + 0x80] = 5 * 8 - 1;
    code.extend([0; 3 * 8]);
    code.extend_from_within(start + 0x88..start + 0x90);
    code
}

#[test]
fn an_input_that_wakes_the_guest_wakes_it_at_once_when_it_is_repeated() {
    let kernel = Kernel { image: kernel_of(&interrupted_echo()).into(), ..Kernel::default() };
    let software = Software::Kernel(kernel);
    let mut live = Vm::new(config(), software.clone()).unwrap();
    live.record();
    let (sender, mut door) = door();
    let typist = thread::spawn(move || {
        for byte in *b"nine keysq" {
            thread::sleep(Duration::from_micros(2300));
            sender.send(typed(byte));
        }
    });
    let mut sent = Sent::default();
    assert_eq!(live.run(&mut door, &mut sent).unwrap(), Ending::PowerOff);
    typist.join().unwrap();

    let mut replayed = Vm::new(config(), software).unwrap();
    let mut again = Sent::default();
    let ending = replayed.replay(live.recording(), &mut again).unwrap();
    assert_eq!((ending, again.0), (Ending::PowerOff, sent.0));
    assert_eq!(replayed.checkpoint(), live.checkpoint());
}

/// Host time that passes does not concern the guest.
#[test]
fn a_guest_that_waits_sees_the_same_however_long_the_host_sleeps() {
    let mut logs = Vec::new();
    for disturbed in [false, true] {
        let mut vm = machine(EngineChoice::Interpreter);
        let log = logged(&mut vm, 10);
        let (sender, mut door) = door();
        door.put_script(std::iter::once(typed(b'1')));
        let person = thread::spawn(move || {
            let control = sender.control();
            while control.stats().unwrap().virtual_time < Time::from_nanos(50_000_000) {
                if disturbed {
                    control.pause().unwrap();
                    thread::sleep(Duration::from_millis(1));
                    control.resume().unwrap();
                }
            }
            control.quit();
        });
        let mut sent = Sent::default();
        assert_eq!(vm.run(&mut door, &mut sent).unwrap(), Ending::Quit);
        person.join().unwrap();
        logs.push(written(&log));
    }
    let both = logs[0].lines().zip(logs[1].lines()).take_while(|(one, other)| one == other).count();
    // All but the last line, where the run was ended.
    let shorter = logs.iter().map(|log| log.lines().count()).min().unwrap();
    assert!(both > 50 && both >= shorter - 2, "{both} of {shorter}");
}

#[test]
fn a_replay_that_diverges_is_recognized() {
    let mut live = machine(EngineChoice::Interpreter);
    live.record();
    let (_sender, mut door) = door();
    door.put_script(b"abcq".iter().map(|byte| typed(*byte)));
    assert_eq!(live.run(&mut door, &mut Sent::default()).unwrap(), Ending::PowerOff);
    let replay = |inputs: &[StampedInput]| {
        machine(EngineChoice::Interpreter).replay(inputs, &mut Sent::default())
    };
    let inputs = live.recording();
    assert_eq!(replay(inputs).unwrap(), Ending::PowerOff);
    // The input comes when the guest has already continued.
    let mut late = inputs.to_vec();
    late[1].instructions = 1;
    late[2].instructions = 0;
    assert!(matches!(replay(&late), Err(VmError::Diverged(1))));
    // A drive answers a request that does not exist.
    let answer = DiskAnswer { tag: 1, result: Ok(Vec::new()) };
    let mut asked = inputs.to_vec();
    asked[3].input = Input::Device { device: DeviceId::IDE, input: DeviceInput::Disk(answer) };
    assert!(matches!(replay(&asked), Err(VmError::Diverged(_))));
    // The recording could not be read to its end.
    let cut = inputs[..2].iter().cloned().map(Ok).chain([Err(RecordingError::CutOff)]);
    let cut: Vec<_> = cut.collect();
    let result =
        machine(EngineChoice::Interpreter).replay_from(cut.into_iter(), &mut Sent::default());
    assert!(matches!(result, Err(VmError::Recording(RecordingError::CutOff))));
}
