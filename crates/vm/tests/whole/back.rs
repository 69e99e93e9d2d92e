//! A debugger goes back in a boot of Debian: the machine returns in place to what it was, and the rest of the boot is
//! the same again.

use std::io;
use std::sync::mpsc;
use std::thread;

use ring3_vm::debug::{Run, Stop, Waiter};
use ring3_vm::recording::{Recording, RecordingWriter};
use ring3_vm::{Config, Control, Ending, EngineChoice, ReplayOptions, Vm, door};

use crate::support::file::File;
use crate::support::{CONSOLE, LINUX, Until, debian, run_until};

/// Returns a machine for the recording in `file`, and the recording.
fn machine(file: &File, engine: EngineChoice) -> (Vm, Recording) {
    let mut recording = Recording::read(io::Cursor::new(file.contents())).unwrap();
    (recording.machine(engine).unwrap(), recording)
}

fn nobody() -> Until {
    Until { text: "never", sent: String::new(), sender: None }
}

/// Lets the machine run, forwards or backwards, and returns why it stands still.
fn go(control: &Control, run: Run) -> Stop {
    let (sender, stops) = mpsc::channel();
    control.debug(run, Waiter::new(move |stop| sender.send(stop).unwrap())).unwrap();
    stops.recv().unwrap()
}

/// Ends the machine when its debugger has ended, even by a failed assertion.
struct Quits(Control);

impl Drop for Quits {
    fn drop(&mut self) {
        self.0.quit();
    }
}

#[test]
fn debian_goes_back_and_starts_again() {
    goes_back(EngineChoice::Auto, "ring3:~# ");
}

/// The beginning of a start, since the interpreter takes many times as long.
#[test]
fn debian_goes_back_and_begins_to_start_again_on_the_interpreter() {
    goes_back(EngineChoice::Interpreter, "LSM: ");
}

/// Records a start of Debian until it has sent `text`, and goes back from its middle on `engine`.
fn goes_back(engine: EngineChoice, text: &'static str) {
    let config = Config { rng_seed: Some([1; 32]), memory_bytes: 64 << 20, ..Config::default() };
    let Some(mut live) = debian(config, LINUX, CONSOLE, EngineChoice::Auto) else { return };
    let file = File::default();
    let software = crate::support::debian_software(LINUX, CONSOLE).expect("it was there before");
    live.record_to(RecordingWriter::new(file.clone(), live.config(), &software).unwrap());
    run_until(&mut live, text);
    let middle = live.stats().instructions / 2;
    let at = |instructions| {
        let (mut vm, recording) = machine(&file, EngineChoice::Auto);
        vm.replay_to_count(recording, instructions, &mut nobody()).unwrap();
        vm
    };
    let before = at(middle - 3);
    let registers = before.processor().registers;
    let end = live.checkpoint();
    let (mut vm, recording) = machine(&file, engine);
    let (sender, mut door) = door();
    let interval = ReplayOptions::CHECKPOINTS;
    let options = ReplayOptions { stop_at: middle, checkpoints: interval };
    let mut console = nobody();
    thread::scope(|scope| {
        let debugger = scope.spawn(|| {
            let quits = Quits(sender.control());
            let control = &quits.0;
            for _ in 0..3 {
                assert_eq!(go(control, Run::StepBack), Stop::Step);
            }
            assert_eq!(control.processor().unwrap().registers, registers);
            let none = || (Vec::new(), Vec::new());
            let (breakpoints, watchpoints) = none();
            assert_eq!(go(control, Run::Back { breakpoints, watchpoints }), Stop::Beginning);
            let (breakpoints, watchpoints) = none();
            assert_eq!(go(control, Run::Until { breakpoints, watchpoints }), Stop::End);
        });
        let ready = || {};
        let ended = vm.replay_for_debugger(recording, options, &mut door, &mut console, ready);
        assert_eq!(ended.unwrap(), Ending::Quit);
        debugger.join().unwrap();
    });
    // Outputs have gone out once.
    assert_eq!(console.sent.matches(text).count(), 1);
    assert_eq!(vm.checkpoint(), end, "{}", vm.engine());
}
