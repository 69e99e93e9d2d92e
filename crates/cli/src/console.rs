//! `ring3 console`: the consoles of all machines of a supervisor.

use clap::Args;
use ring3_console::Error;
use ring3_console::protocol::View;
use ring3_console::server;
use ring3_console::terminal::{self, Prefix};
use ring3_supervisor::definition::Name;

use crate::sandbox;
use crate::supervisor::At;

/// The text that `ring3 console --help` shows below the options.
const HELP: &str = "\
Keys after the prefix key, Ctrl-A:
  n, p            the next machine, the one before
  0 to 9          the machine of that number
  l               the list of machines; type a name there
  c, s, g         serial lines, screen, log
  w               type, or look on; one client at a time types at each console
  PageUp, PageDown  older and newer lines
  Delete          Ctrl-Alt-Delete, at a screen
  a               Ctrl-A for the guest
  d               leave; the machines go on

Exit status: 0 if you leave, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 console`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ConsoleArguments {
    /// The machine; by default the first one that runs
    #[arg(value_name = "NAME")]
    machine: Option<Name>,

    /// What to see of it: serial0 to serial3, screen or log; by default the first serial line
    #[arg(long, value_name = "CONSOLE")]
    view: Option<View>,

    /// Only look on
    #[arg(long)]
    watch: bool,

    /// The prefix key: ctrl-a (the default), or ctrl with another letter
    #[arg(long, value_name = "KEY", default_value_t)]
    prefix: Prefix,

    /// Be the server of consoles with this name; the supervisor starts it so
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["machine", "view", "watch"])]
    serve: Option<Name>,

    /// With --serve: how many KiB of what a serial line has said are kept
    #[arg(long, value_name = "KIB", default_value_t = 1024, requires = "serve")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    scroll_back: u32,

    #[command(flatten)]
    at: At,
}

/// Serves consoles, or shows them.
pub(crate) fn run(arguments: &ConsoleArguments) -> Result<(), Error> {
    let place = arguments.at.place();
    if let Some(name) = arguments.serve.clone() {
        let scroll_back = (arguments.scroll_back as usize) << 10;
        let own = place.part(&name);
        let options = server::Options { place: place.clone(), name, scroll_back };
        let give_up_rights = || sandbox::enter_as_console(&place.parts(), &own.control());
        let ended = server::run(&options, give_up_rights);
        sandbox::report();
        return ended;
    }
    terminal::run(&terminal::Options {
        place,
        machine: arguments.machine.clone(),
        view: arguments.view,
        watches: arguments.watch,
        prefix: arguments.prefix,
    })
}
