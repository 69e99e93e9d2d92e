//! `ring3 starter`: starts other processes of a machine, whose own process may not ([`ring3_net::starter`]).
//! Nobody but a machine runs it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;

use clap::Args;
use ring3_net::Program;
use ring3_net::starter::serve;

/// The options of `ring3 starter`.
#[derive(Debug, Args)]
pub(crate) struct StarterArguments {
    /// What is started outlives the machine
    #[arg(long)]
    outlives: bool,

    /// The arguments of the processes of ring3 that are started
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Returns the program that starts ring3 with these arguments whenever a machine asks for it. `outlives`
/// says whether what it starts goes on after the machine.
pub(crate) fn program<const N: usize>(
    outlives: bool,
    arguments: [OsString; N],
) -> io::Result<Program> {
    let outlives = outlives.then(|| "--outlives".into());
    let own = ["starter".into()].into_iter().chain(outlives).chain(["--".into()]);
    crate::own_program(own.chain(arguments).collect())
}

/// Starts processes until the machine has ended.
pub(crate) fn run(arguments: &StarterArguments) -> io::Result<()> {
    let program = crate::own_program(arguments.arguments.clone())?;
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    serve(&program, arguments.outlives, &socket)
}
