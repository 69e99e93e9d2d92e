//! One debugger: from its connection to its end.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;

use gdbstub::common::Signal;
use gdbstub::conn::Connection;
use gdbstub::stub::state_machine::GdbStubStateMachine as State;
use gdbstub::stub::{
    DisconnectReason, GdbStub, GdbStubBuilderError, GdbStubError, SingleThreadStopReason,
};
use gdbstub::target::ext::base::reverse_exec::ReplayLogPosition;
use gdbstub::target::ext::breakpoints::WatchKind;
use ring3_vm::control::Ended;
use ring3_vm::debug::{Stop, Watched};
use thiserror::Error;
use tracing::{debug, warn};

use crate::machine::Machine;
use crate::packets::{self, Framer, PACKET_MAX, TooLong};
use crate::server::Monitor;
use crate::target::Debugged;

/// What happens to a session.
#[derive(Debug)]
pub(crate) enum Event {
    /// The debugger has sent something. The reader waits until it is handled.
    Bytes(Vec<u8>),
    /// The connection is closed.
    Closed,
    /// The machine stands still after the run with this number.
    Stopped(u64, Stop),
    /// The machine has ended in the run with this number.
    Gone(u64),
}

/// The reasons why a session ends without the debugger's wish.
#[derive(Debug, Error)]
enum Broken {
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error("the debugger breaks the protocol: {0}")]
    Protocol(#[from] GdbStubError<Ended, io::Error>),
    #[error("there is no memory for packets: {0}")]
    Setup(#[from] GdbStubBuilderError),
    #[error(transparent)]
    Machine(#[from] Ended),
    #[error("the debugger cannot be written to: {0}")]
    Output(#[from] io::Error),
}

/// How a session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The debugger lets the machine go.
    Detached,
    /// The debugger ends the machine.
    Killed,
    /// The connection is gone, or the machine has ended.
    Lost,
}

/// The way to the debugger.
struct Output<W: Write>(io::BufWriter<W>);

impl<W: Write> Connection for Output<W> {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.0.write_all(&[byte])
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Serves the debugger that writes to `input` and reads from `output`. The machine stands still at first.
pub(crate) fn serve<M: Machine>(
    mut machine: M,
    monitor: Monitor,
    input: impl Read + Send + 'static,
    output: impl Write,
) {
    let was_running = machine.is_running();
    let (sender, events) = mpsc::channel();
    let (go_on, wait) = mpsc::sync_channel(0);
    let reader = sender.clone();
    let spawned =
        thread::Builder::new().name("gdb input".into()).spawn(move || read(input, &reader, &wait));
    if let Err(error) = spawned {
        warn!("the host has no thread for a debugger: {error}");
        return;
    }
    if machine.pause().is_err() {
        return;
    }
    debug!("a debugger is connected");
    let Ok(mut target) = Debugged::new(machine, monitor, sender) else { return };
    let end = talk(&mut target, &events, &go_on, output).unwrap_or_else(|error| {
        debug!("the debugger is disconnected: {error}");
        End::Lost
    });
    let machine = &mut target.machine;
    // Requests to a machine that has ended fail, and then there is nothing left to do.
    let _ = machine.forget_debugger();
    match end {
        End::Killed => machine.quit(),
        End::Detached => drop(machine.resume()),
        End::Lost if was_running => drop(machine.resume()),
        End::Lost => {}
    }
    debug!(?end, "the debugger is gone");
}

/// Passes on what comes from `input`, piece by piece: the next one is read when the last one is handled.
fn read(mut input: impl Read, events: &Sender<Event>, wait: &Receiver<()>) {
    let mut buffer = [0; 4096];
    loop {
        let event = match input.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => Event::Closed,
            Ok(length) => Event::Bytes(buffer[..length].to_vec()),
        };
        let is_last = matches!(event, Event::Closed);
        if events.send(event).is_err() || is_last || wait.recv().is_err() {
            return;
        }
    }
}

/// Handles events until the session ends.
fn talk<M: Machine>(
    target: &mut Debugged<M>,
    events: &Receiver<Event>,
    go_on: &SyncSender<()>,
    output: impl Write,
) -> Result<End, Broken> {
    let stub = GdbStub::builder(Output(io::BufWriter::new(output)))
        .packet_buffer_size(PACKET_MAX)
        .build()?;
    let mut state = stub.run_state_machine(target)?;
    let mut framer = Framer::default();
    let mut acknowledges = true;
    while let Ok(event) = events.recv() {
        match event {
            Event::Closed => return Ok(End::Lost),
            Event::Bytes(bytes) => {
                for byte in bytes {
                    let Some(packet) = framer.push(byte)? else { continue };
                    let body = packets::body(&packet);
                    if let Some(answer) = body.and_then(|body| target.settings.answer(body)) {
                        let ack = if acknowledges { "+" } else { "" };
                        let answer = format!("{ack}{}", packets::packet(&answer));
                        let output = connection(&mut state);
                        output.write_all(answer.as_bytes())?;
                        output.flush()?;
                        continue;
                    }
                    acknowledges &= body != Some("QStartNoAckMode");
                    for byte in packet {
                        state = take(state, target, byte)?;
                    }
                    if let State::Disconnected(ended) = &state {
                        return Ok(match ended.get_reason() {
                            DisconnectReason::Kill => End::Killed,
                            DisconnectReason::Disconnect => End::Detached,
                            _ => End::Lost,
                        });
                    }
                }
                if go_on.send(()).is_err() {
                    return Ok(End::Lost);
                }
            }
            Event::Stopped(run, stop) if run == target.run => {
                let reason = reason(target, stop)?;
                state = match state {
                    State::Running(running) => running.report_stop(target, reason)?,
                    state => state,
                };
            }
            Event::Gone(run) if run == target.run => {
                if let State::Running(running) = state {
                    running.report_stop(target, SingleThreadStopReason::Exited(0))?;
                }
                return Ok(End::Lost);
            }
            Event::Stopped(..) | Event::Gone(_) => {}
        }
    }
    Ok(End::Lost)
}

/// Takes one byte of the debugger.
fn take<'a, M: Machine, C: Connection<Error = io::Error>>(
    state: State<'a, Debugged<M>, C>,
    target: &mut Debugged<M>,
    byte: u8,
) -> Result<State<'a, Debugged<M>, C>, Broken> {
    let state = match state {
        State::Idle(idle) => idle.incoming_data(target, byte)?,
        State::Running(running) => running.incoming_data(target, byte)?,
        state => state,
    };
    Ok(match state {
        // The machine tells when it stands still.
        State::CtrlCInterrupt(interrupt) => {
            target.machine.pause()?;
            interrupt.interrupt_handled(target, None::<SingleThreadStopReason<u64>>)?
        }
        state => state,
    })
}

/// Returns the way to the debugger.
fn connection<'s, M: Machine, C: Connection>(
    state: &'s mut State<'_, Debugged<M>, C>,
) -> &'s mut C {
    match state {
        State::Idle(state) => state.borrow_conn(),
        State::Running(state) => state.borrow_conn(),
        State::CtrlCInterrupt(state) => state.borrow_conn(),
        State::Disconnected(state) => state.borrow_conn(),
    }
}

/// Returns how the debugger is told of `stop`.
fn reason<M: Machine>(
    target: &mut Debugged<M>,
    stop: Stop,
) -> Result<SingleThreadStopReason<u64>, Ended> {
    Ok(match stop {
        Stop::Step => SingleThreadStopReason::DoneStep,
        Stop::Beginning | Stop::End if target.goes_back => {
            let is_end = stop == Stop::End;
            let pos = if is_end { ReplayLogPosition::End } else { ReplayLogPosition::Begin };
            SingleThreadStopReason::ReplayLog { tid: None, pos }
        }
        Stop::Paused | Stop::Beginning | Stop::End => {
            SingleThreadStopReason::Signal(Signal::SIGINT)
        }
        Stop::Breakpoint if target.is_at_hardware_breakpoint()? => {
            SingleThreadStopReason::HwBreak(())
        }
        Stop::Breakpoint => SingleThreadStopReason::SwBreak(()),
        Stop::Watchpoint(point) => SingleThreadStopReason::Watch {
            tid: (),
            kind: match point.watched {
                Watched::Writes => WatchKind::Write,
                Watched::Reads => WatchKind::Read,
                Watched::Accesses => WatchKind::ReadWrite,
            },
            addr: point.linear,
        },
    })
}
