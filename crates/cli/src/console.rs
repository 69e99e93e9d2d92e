//! `ring3 console`: the consoles of all machines of a supervisor.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use ring3_console::Error;
use ring3_console::protocol::View;
use ring3_console::server;
use ring3_console::terminal::{self, Prefix};
use ring3_console::web::{self, Address};
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

    /// Be the server of consoles with this name, or with --web that of the page; the supervisor starts them so
    #[arg(long, value_name = "SERVER", conflicts_with_all = ["machine", "view", "watch"])]
    serve: Option<Name>,

    /// With --serve: how many KiB of what a serial line has said are kept
    #[arg(
        long,
        value_name = "KIB",
        default_value_t = 1024,
        requires = "serve",
        conflicts_with = "web"
    )]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    scroll_back: u32,

    /// Serve a page with all machines at 127.0.0.1:PORT, [::1]:PORT or unix:PATH, and print its address
    #[arg(long, value_name = "ADDRESS")]
    #[arg(conflicts_with_all = ["machine", "view", "watch", "prefix"])]
    web: Option<Address>,

    /// With --web: keep the page's token in this file, so that pages stay open over a restart; by default each start has
    /// a new one
    #[arg(long, value_name = "FILE", requires = "web")]
    token_file: Option<PathBuf>,

    /// With --web: the directory with images that may be put into drives; by default none may
    #[arg(long, value_name = "DIRECTORY", requires = "web")]
    media: Option<PathBuf>,

    #[command(flatten)]
    at: At,
}

/// Serves consoles, or shows them.
pub(crate) fn run(arguments: &ConsoleArguments) -> Result<(), Error> {
    let place = arguments.at.place();
    if let Some(address) = &arguments.web {
        return serve_page(arguments, address);
    }
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

/// Serves the page.
fn serve_page(arguments: &ConsoleArguments, address: &Address) -> Result<(), Error> {
    // Machines have other working directories.
    let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let media = arguments.media.as_ref().map(absolute);
    let place = arguments.at.place();
    let control = arguments.serve.as_ref().map(|name| place.part(name).control());
    let options = web::Options {
        place,
        address: address.clone(),
        control: control.clone(),
        token_file: arguments.token_file.clone(),
        media: media.clone(),
    };
    let tell = |url: &str| {
        let text = match address {
            Address::Loopback(_) => format!("the page is at {url}"),
            Address::Unix(path) => format!(
                "the page is at {path}; after \"ssh -L 8080:{path} HOST\" it is at {}",
                url.replacen("localhost", "localhost:8080", 1),
                path = path.display(),
            ),
        };
        // The page is served to whoever knows the token, even if nobody reads this.
        let _ = writeln!(io::stdout(), "{text}");
    };
    let socket = match address {
        Address::Unix(path) => Some(path.as_path()),
        Address::Loopback(_) => None,
    };
    let sockets = socket.into_iter().chain(control.as_deref());
    let ended = web::run(&options, tell, || sandbox::enter_as_page(media.as_deref(), sockets));
    sandbox::report();
    ended
}
