//! `--incoming`: the machine comes from another process.

use std::thread;

use ring3_snapshot::moving::{self, Arriving, Incoming, MoveError, Place};
use ring3_vm::{Control, Door, Sender, Vm};

use crate::args::RunArguments;
use crate::limits;
use crate::run::{RunError, engine};

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

/// Receives the machine, with its disks, and attaches the networks of the command line to it. Returns None if
/// the run is to end before it is here.
pub(crate) fn receive(
    incoming: Incoming,
    arguments: &RunArguments,
    sender: &Sender,
    door: &mut Door,
) -> Result<Option<Vm>, RunError> {
    let received = incoming.accept(arguments.qemu.incoming_memory).map_err(RunError::from);
    let received = received.and_then(|arriving| complete(arriving, arguments, sender, door));
    match received {
        Ok(vm) => Ok(Some(vm)),
        Err(RunError::Incoming(MoveError::Cancelled)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn complete(
    arriving: Arriving,
    arguments: &RunArguments,
    sender: &Sender,
    door: &mut Door,
) -> Result<Vm, RunError> {
    let config = arriving.machine().config();
    limits::check_for_machine(config.memory_bytes)?;
    let (has, given) = (config.nics.len(), arguments.nics.cards().len());
    if given > has {
        return Err(RunError::IncomingCards { has, given });
    }
    let mut vm = Vm::restore(arriving.machine(), engine(arguments)).map_err(MoveError::from)?;
    arguments.nics.attach(&mut vm, sender)?;
    let arrived = arriving.receive(&mut vm)?;
    door.arrive();
    if arrived.runs && !arguments.paused {
        door.resume();
    }
    let control = sender.control();
    let announces = thread::Builder::new().name("announcements".into());
    announces.spawn(move || moving::announce(&control)).map_err(RunError::Announcements)?;
    Ok(vm)
}
