//! `--incoming`: the machine comes from another process.

use std::thread;

use ring3_snapshot::moving::{self, Arrived, Arriving, Incoming, MoveError, Place};
use ring3_vm::{Control, Door, Sender, Vm};
use tracing::warn;

use crate::args::RunArguments;
use crate::limits;
use crate::run::{RunError, check_for_machine, engine};

/// Begins to wait for a machine at `place`, until it is here or the run is to end.
pub(crate) fn wait_at(
    place: &Place,
    control: &Control,
    door: &mut Door,
) -> Result<Incoming, RunError> {
    door.expect_arrival();
    let control = control.clone();
    Ok(Incoming::at(place, move || !control.is_to_quit())?)
}

/// Receives the machine, with its disks, and attaches the networks of the command line to it. It still belongs to
/// the other end. Returns None if the run is to end before it is here.
pub(crate) fn receive(
    incoming: Incoming,
    arguments: &RunArguments,
    sender: &Sender,
) -> Result<Option<(Vm, Arrived)>, RunError> {
    let received = incoming.accept(arguments.qemu.incoming_memory).map_err(RunError::from);
    unless_cancelled(received.and_then(|arriving| complete(arriving, arguments, sender)))
}

fn complete(
    arriving: Arriving,
    arguments: &RunArguments,
    sender: &Sender,
) -> Result<(Vm, Arrived), RunError> {
    let config = arriving.machine().config();
    limits::check_for_machine(config.most_memory())?;
    check_for_machine(arguments, config, "the machine that comes")?;
    let mut vm = Vm::restore(arriving.machine(), engine(arguments)).map_err(MoveError::from)?;
    arguments.nics.attach(&mut vm, sender)?;
    arguments.board.name_devices(&mut vm);
    let arrived = arriving.receive(&mut vm)?;
    Ok((vm, arrived))
}

/// Takes the machine from the other end, and lets it go on here. Returns None if the run is to end instead.
pub(crate) fn take(
    arrived: Arrived,
    is_paused: bool,
    sender: &Sender,
    door: &mut Door,
) -> Result<Option<()>, RunError> {
    let Some(runs) = unless_cancelled(arrived.take().map_err(RunError::from))? else {
        return Ok(None);
    };
    // The machine is nowhere else now, so nothing may fail any more.
    door.arrive();
    if runs && !is_paused {
        door.resume();
    }
    let control = sender.control();
    let announces = thread::Builder::new().name("announcements".into());
    if let Err(error) = announces.spawn(move || moving::announce(&control)) {
        warn!("the host has no thread to announce the network cards at their new place: {error}");
    }
    Ok(Some(()))
}

fn unless_cancelled<T>(received: Result<T, RunError>) -> Result<Option<T>, RunError> {
    match received {
        Ok(received) => Ok(Some(received)),
        Err(RunError::Incoming(MoveError::Cancelled)) => Ok(None),
        Err(error) => Err(error),
    }
}
