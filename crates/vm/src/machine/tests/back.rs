//! Replays in which a debugger goes back: the machine stands there exactly as it did in the run, and gets there by
//! repeating little.

use std::num::NonZero;

use super::debugger::{
    COUNTING, Debugger, INC_OUTER, INNER, OUTER, Quits, TICKS, TIMER_HANDLER, config, watch,
};
use super::file::File;
use super::*;
use crate::debug::{Interrupts, Registers, Run, Stop, Watched};
use crate::machine::back::Travel;
use crate::recording::Recording;
use crate::stats::Travel as Counts;

const ENGINES: [EngineChoice; 2] = [EngineChoice::Interpreter, EngineChoice::Auto];

/// Instructions between two checkpoints.
const INTERVAL: u64 = 100_000;

/// Records a run of `code`, at which `keys` are typed, and returns the recording, the number of its
/// instructions, and what the guest has sent. Without keys it is ended after some hundred thousand instructions.
fn recorded(deterministic: bool, code: &[u8], keys: &'static [u8]) -> (File, u64, Vec<u8>) {
    let config = Config { deterministic, memory_bytes: 32 << 20, ..config() };
    let kernel = Kernel { image: kernel_of(code).into(), ..Kernel::default() };
    let software = Software::Kernel(kernel);
    let file = File::default();
    let recorder = RecordingWriter::new(file.clone(), &config, &software).unwrap();
    let mut vm = Vm::new(config, software).unwrap();
    vm.record_to(recorder);
    let (sender, mut door) = door();
    let person = thread::spawn(move || {
        let control = sender.control();
        for key in keys {
            thread::sleep(Duration::from_millis(3));
            sender.send(typed(*key));
        }
        while keys.is_empty() && control.stats().unwrap().instructions < 6 * INTERVAL {
            thread::yield_now();
        }
        if keys.is_empty() {
            sender.send(Input::Quit);
        }
    });
    let mut sent = Sent::default();
    vm.run(&mut door, &mut sent).unwrap();
    person.join().unwrap();
    (file, vm.stats().instructions, sent.0)
}

/// Returns the recording in `file`, and a machine of it.
fn machine_of(file: &File, engine: EngineChoice) -> (Vm, Recording) {
    let mut recording = Recording::read(io::Cursor::new(file.contents())).unwrap();
    (recording.machine(engine).unwrap(), recording)
}

/// Returns the machine after `instructions` instructions of the run in `file`, repeated from the beginning.
fn machine_at(file: &File, instructions: u64) -> Vm {
    let (mut vm, recording) = machine_of(file, EngineChoice::Interpreter);
    let ended = vm.replay_to_count(recording, instructions, &mut Sent::default()).unwrap();
    assert_eq!((ended, vm.cpu.instructions), (None, instructions));
    vm
}

/// Repeats the run in `file` for `debugger`, with the machine at `stop_at` at first. Returns its counters, and
/// what the guest has sent.
fn debugged(
    file: &File,
    engine: EngineChoice,
    stop_at: u64,
    debugger: impl FnOnce(&Debugger) + Send,
) -> (Counts, Vec<u8>) {
    let (mut vm, recording) = machine_of(file, engine);
    let (sender, mut door) = door();
    let mut sent = Sent::default();
    let checkpoints = NonZero::new(INTERVAL).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let quits = Quits(sender);
            debugger(&Debugger(quits.0.control()));
        });
        let options = ReplayOptions { stop_at, checkpoints };
        vm.replay_for_debugger(recording, options, &mut door, &mut sent, || {}).unwrap();
    });
    (vm.stats().travel, sent.0)
}

/// Calls `test` with a normal and a deterministic run of the counting guest, on each engine.
fn on_all_runs(test: impl Fn(&File, EngineChoice, u64)) {
    for deterministic in [false, true] {
        let (file, instructions, _) = recorded(deterministic, COUNTING, &[]);
        for engine in ENGINES {
            test(&file, engine, instructions);
        }
    }
}

impl Debugger {
    /// Goes back to a breakpoint or a watchpoint, as [`Debugger::until`] goes on.
    fn back(&self, breakpoints: &[u32], watchpoints: &[crate::debug::Watchpoint]) -> (Stop, u32) {
        let breakpoints = breakpoints.iter().copied().map(u64::from).collect();
        let watchpoints = watchpoints.to_vec();
        let stop = self.start(Run::Back { breakpoints, watchpoints }).recv().unwrap();
        (stop, self.registers().ip as u32)
    }

    fn step_back(&self) -> Stop {
        self.start(Run::StepBack).recv().unwrap()
    }

    /// Returns what a debugger sees.
    fn state(&self) -> (Registers, [u32; 3]) {
        (self.registers(), [INNER, OUTER, TICKS].map(|linear| self.dword(linear)))
    }
}

#[test]
fn the_machine_is_everywhere_as_it_was() {
    on_all_runs(|file, engine, instructions| {
        let places = [3, 1, 2, 0].map(|part| instructions * part / 4 + part * 7);
        let (mut vm, recording) = machine_of(file, engine);
        let (_sender, mut door) = door();
        let mut sent = Sent::default();
        let interval = NonZero::new(INTERVAL).unwrap();
        let mut travel = Travel::begin(&mut vm, recording, interval, &mut door, &mut sent);
        for place in places.into_iter().chain([places[0]]) {
            travel.go_to(place).unwrap();
            let mut there = machine_at(file, place);
            let vm = &mut *travel.vm;
            assert_eq!(vm.cpu.save(), there.cpu.save(), "{place}");
            assert_eq!(vm.board.save(), there.board.save(), "{place}");
            assert_eq!(vm.checkpoint(), there.checkpoint(), "{place}");
        }
    });
}

#[test]
fn steps_back_undo_steps() {
    on_all_runs(|file, engine, instructions| {
        let counts = debugged(file, engine, instructions / 2, |debugger| {
            debugger.until(&[TIMER_HANDLER], &[]);
            debugger.step(Interrupts::Taken);
            // The next interrupt would stop a step before it is complete.
            debugger.0.end_debugging().unwrap();
            let states: Vec<_> = (0..20)
                .map(|_| {
                    let state = debugger.state();
                    debugger.step(Interrupts::Taken);
                    state
                })
                .collect();
            for state in states.into_iter().rev() {
                assert_eq!(debugger.step_back(), Stop::Step);
                assert!(debugger.state() == state, "{:x}", debugger.registers().ip);
            }
        });
        let Counts { checkpoints, returns, repeated } = counts.0;
        // Where it has gone back once, the next steps are short.
        assert_eq!(returns, 20);
        assert!(repeated <= INTERVAL + 20 * 100_000, "{repeated} instructions");
        assert!(checkpoints <= 2 + instructions / INTERVAL + 20, "{checkpoints} checkpoints");
    });
}

#[test]
fn breakpoints_are_met_backwards_as_forwards() {
    on_all_runs(|file, engine, _| {
        debugged(file, engine, 0, |debugger| {
            let points = [INC_OUTER, TIMER_HANDLER];
            let mut states = Vec::new();
            for _ in 0..60 {
                assert_eq!(debugger.until(&points, &[]).0, Stop::Breakpoint);
                states.push(debugger.state());
            }
            let eips = states.iter().map(|(registers, _)| registers.ip as u32);
            assert_eq!(eips.filter(|eip| *eip == INC_OUTER).count().min(1), 1);
            for state in states.iter().rev().skip(1) {
                assert_eq!(debugger.back(&points, &[]).0, Stop::Breakpoint);
                assert!(debugger.state() == *state, "{:?}", debugger.state().1);
            }
            assert_eq!(debugger.back(&points, &[]).0, Stop::Beginning);
            assert_eq!(debugger.step_back(), Stop::Beginning);
            // And on again.
            assert_eq!(debugger.until(&points, &[]).0, Stop::Breakpoint);
            assert!(debugger.state() == states[0]);
        });
    });
}

#[test]
fn a_watchpoint_says_who_wrote_this() {
    on_all_runs(|file, engine, instructions| {
        debugged(file, engine, instructions, |debugger| {
            let writes = watch(OUTER, Watched::Writes);
            let mut value = debugger.dword(OUTER);
            assert!(value > 3, "{value}");
            for _ in 0..4 {
                assert_eq!(debugger.back(&[], &[writes]), (Stop::Watchpoint(writes), INC_OUTER));
                value -= 1;
                assert_eq!(debugger.dword(OUTER), value);
            }
            assert_eq!(debugger.back(&[], &[]).0, Stop::Beginning);
            // A step back over an access says so, too.
            assert_eq!(debugger.until(&[], &[writes]).0, Stop::Watchpoint(writes));
            assert_eq!(debugger.step_back(), Stop::Watchpoint(writes));
            assert_eq!(debugger.registers().ip, INC_OUTER.into());
            assert_eq!(debugger.step_back(), Stop::Step);
        });
    });
}

#[test]
fn outputs_go_out_once_and_the_end_is_a_place_to_go_back_from() {
    for deterministic in [false, true] {
        let (file, _, sent) = recorded(deterministic, CLOCKED_ECHO, b"typedq");
        assert_eq!(sent.len(), 5);
        for engine in ENGINES {
            let (_, again) = debugged(&file, engine, 0, |debugger| {
                // OUT DX, AL
                for _ in 0..2 {
                    assert_eq!(debugger.until(&[0x10_0042], &[]).0, Stop::Breakpoint);
                }
                assert_eq!(debugger.back(&[], &[]).0, Stop::Beginning);
                assert_eq!(debugger.until(&[], &[]).0, Stop::End);
                let end = debugger.registers();
                assert_eq!(debugger.until(&[], &[]).0, Stop::End);
                assert_eq!(debugger.registers(), end);
                let keys = (0..6).map(|_| {
                    assert_eq!(debugger.back(&[0x10_003e], &[]), (Stop::Breakpoint, 0x10_003e));
                    debugger.registers().general[0] as u8
                });
                assert_eq!(keys.collect::<Vec<_>>(), b"qdepyt");
                // Nothing is to be changed in the past.
                let registers = debugger.registers();
                let changed = debugger.0.set_registers(registers);
                assert_eq!(changed, Err(crate::debug::DebugError::Recorded));
                assert_eq!(debugger.until(&[], &[]).0, Stop::End);
            });
            assert_eq!(again, sent);
        }
    }
}

#[test]
fn a_run_that_is_no_replay_does_not_go_back() {
    let (sender, mut door) = door();
    door.pause();
    let mut vm = super::debugger::machine(config(), EngineChoice::Auto);
    thread::scope(|scope| {
        scope.spawn(move || {
            let quits = Quits(sender);
            let debugger = Debugger(quits.0.control());
            assert_eq!(debugger.0.goes_back(), Ok(false));
            assert_eq!(debugger.step_back(), Stop::Beginning);
            assert_eq!(debugger.back(&[INC_OUTER], &[]).0, Stop::Beginning);
        });
        vm.run(&mut door, &mut Sent::default()).unwrap();
    });
}
