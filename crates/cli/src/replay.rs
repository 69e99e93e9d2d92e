//! `ring3 run --replay`: repeats a recorded run, to its end, to an instruction, or for a debugger.

use std::io::Write;
use std::path::Path;

use ring3_vm::recording::Recording;
use ring3_vm::{ReplayOptions, Verified, Vm, VmError, door};

use crate::args::RunArguments;
use crate::channels::Channels;
use crate::characters::Characters;
use crate::output::stdout;
use crate::repetition;
use crate::run::{
    COMPARED, Outputs, RunError, debug_output, engine, explain, serve_qmp, show_stats,
};
use crate::sandbox;
use crate::serial::SerialPorts;
use crate::serial::cards::{self, SerialCards};
use crate::serial::terminals::Terminals;
use crate::signals::Signals;

/// Repeats the run that is recorded in the file at `path`. Returns None if it has stopped where `--to` says,
/// and the registers were printed.
pub(crate) fn replay(
    arguments: &RunArguments,
    path: &Path,
    signals: &mut Signals,
) -> Result<Option<Verified>, RunError> {
    let repetition = &arguments.repetition;
    let mut recording = repetition::open(path)?;
    let made = recording.machine(engine(arguments));
    let mut vm = made.map_err(|error| match error {
        source @ (VmError::Recording(_) | VmError::Restore(_)) => {
            RunError::Replay { path: path.to_owned(), source }
        }
        error => explain(error, path.to_owned()),
    })?;
    let begin = vm.stats().instructions;
    if let Some(to) = repetition.to.filter(|to| *to < begin) {
        return Err(RunError::BeginsAfter { path: path.to_owned(), to, begin });
    }
    let observations = arguments.observed.begin(&mut vm)?;
    if let Some(log) = repetition.event_log()? {
        vm.log_events(log);
    }
    arguments.trace.begin(&mut vm)?;
    // A machine that is repeated takes no inputs from outside.
    let (nobody, _) = door();
    let (characters, mut terminals) = (Characters::default(), Terminals::default());
    let targets = arguments.serial_targets();
    let serial = SerialPorts::open(&targets, &nobody, &characters, &mut terminals)?;
    let slots = cards::slots(arguments, &nobody);
    SerialCards::open(arguments, slots, &characters, &mut terminals)?.attach(&mut vm);
    let (debug_port, channels) = (debug_output(&arguments.debugcon)?, Channels::default());
    let mut output = Outputs { serial, debug: debug_port, channels };
    let failed = |source| RunError::Replay { path: path.to_owned(), source };
    sandbox::enter(arguments, &vm)?;
    let ended = if repetition.verify {
        vm.verify_replay(COMPARED, recording, &mut output).map(Some).map_err(failed)
    } else if arguments.gdb.is_some() {
        debug(arguments, &mut vm, recording, &mut output, signals)?.map(Some).map_err(failed)
    } else if let Some(to) = repetition.to {
        vm.replay_to_count(recording, to, &mut output).map_err(failed).and_then(|ended| {
            let instructions = vm.stats().instructions;
            if ended.is_none() {
                return Ok(None);
            }
            Err(RunError::EndedBefore { path: path.to_owned(), to, ended: instructions })
        })
    } else {
        let ended = vm.replay_from(recording, &mut output).map_err(failed);
        ended.map(|ending| Some(Verified::Same(ending)))
    };
    output.finish();
    if let Ok(None) = ended {
        print_registers(&vm).map_err(RunError::Print)?;
    }
    show_stats(arguments, &vm);
    let written = observations.finish(&mut vm);
    sandbox::report();
    let ended = ended?;
    written?;
    Ok(ended)
}

/// Repeats the run of `recording` for a debugger, for whom the machine waits.
fn debug(
    arguments: &RunArguments,
    vm: &mut Vm,
    recording: Recording,
    output: &mut Outputs,
    signals: &mut Signals,
) -> Result<Result<Verified, VmError>, RunError> {
    let repetition = &arguments.repetition;
    let options = ReplayOptions {
        stop_at: repetition.to.unwrap_or(0),
        checkpoints: repetition.checkpoints.unwrap_or(ReplayOptions::CHECKPOINTS),
    };
    let (sender, mut door) = door();
    let control = sender.control();
    *signals = Signals::end(control.clone()).map_err(RunError::Signals)?;
    let mut server = Ok(None);
    // A debugger that connects before would not wait for long.
    let ended = vm.replay_for_debugger(recording, options, &mut door, output, || {
        server = serve_qmp(&control, arguments, &Terminals::default());
        if server.is_err() {
            control.quit();
        }
    });
    // Tells everybody who still sends requests to the machine that it has ended.
    drop(door);
    if let Some(server) = server? {
        server.finish();
    }
    Ok(ended.map(Verified::Same))
}

/// Prints where the machine stands.
fn print_registers(vm: &Vm) -> std::io::Result<()> {
    let mut out = stdout()?;
    let instructions = vm.stats().instructions;
    writeln!(out, "after {instructions} instructions:\n{}", vm.processor().report)?;
    out.flush()
}
