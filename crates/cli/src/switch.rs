//! `ring3 switch`: a network between machines, in a process of its own.

use std::env;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args;
use ring3_net::switch::{SwitchStatus, VhostServer, tell_status};
use ring3_net::{StreamAddress, Switch, SwitchOptions, SwitchProgram, SwitchServer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::nat::Listen;
use crate::nics::{BadNic, NetworkProperties};
use crate::qemu::properties::Properties;

/// How long a switch that was started for machines stays without any.
const LINGER: Duration = Duration::from_secs(10);
/// How often it looks.
const LOOK: Duration = Duration::from_secs(1);

/// What `ring3 switch --help` says below the options.
const HELP: &str = "\
Each machine is held to the address that its card has, and sees broadcasts and what is for it, and nothing else.

Examples:
  ring3 run --nic switch …           two such machines are on one network:
  ring3 run --nic switch …           the first one starts the switch
  ring3 switch --uplink user         one that leads outside as well, started before them
  ring3 switch --status              what its ports have had to do
  qemu-system-i386 -nic stream,addr.type=unix,addr.path=$XDG_RUNTIME_DIR/ring3-switch.sock
      a machine of QEMU on it
  ring3 switch --vhost-user s.sock
      with a socket for machines that share their memory, for example
  qemu-system-i386 -m 512 -object memory-backend-memfd,id=ram,size=512M,share=on -machine memory-backend=ram
      -chardev socket,id=s,path=s.sock,reconnect=1 -netdev vhost-user,id=n,chardev=s -device virtio-net-pci,netdev=n

Exit status: 0 after SIGTERM or SIGINT, 1 where something failed, 2 for a wrong command line";

/// What `--uplink help` shows.
const UPLINK: &str = "\
A way to others: KIND[,PROPERTY=VALUE]..., with the words of \"ring3 run --nic\". May be given again.

Kinds:
  user      a NAT that needs no rights; its properties are those of \"ring3 nat --help\"
  tap       an interface of the host that is there: ifname=NAME
  stream    a connection with another switch or machine: addr=HOST:PORT|unix:PATH, server=on, reconnect=SECONDS
  dgram     packets to another machine or to several: local.type=, local.host=, local.port=, local.path=, and the same of remote
  switch    the switch that starts with the first machine; path=SOCKET for another one

Examples:
  --uplink user,hostfwd=tcp::2222-10.0.2.15:22
  --uplink tap,ifname=tap0
  --uplink stream,addr=192.0.2.1:5000";

/// An `--uplink`.
#[derive(Debug, Clone)]
struct Uplink {
    kind: String,
    network: NetworkProperties,
}

impl FromStr for Uplink {
    type Err = BadNic;

    fn from_str(text: &str) -> Result<Uplink, BadNic> {
        let mut properties = Properties::parse(text, Some("type"));
        let kind = properties.take("type").unwrap_or_default();
        let network = NetworkProperties::parse(&kind, properties)?;
        Ok(Uplink { kind, network })
    }
}

/// The options of `ring3 switch`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct SwitchArguments {
    /// Where machines connect: HOST:PORT or unix:PATH; may be given again. If it is not given, it is where "--nic switch" looks: ring3-switch.sock
    /// in $XDG_RUNTIME_DIR
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Listen>,

    /// Where machines connect that share their memory (vhost-user), so that packets between two of them are copied once; may be given again
    #[arg(long, value_name = "PATH")]
    vhost_user: Vec<PathBuf>,

    /// A way to others, with the words of "--nic": user, tap,ifname=NAME, stream,addr=… to another switch; may be given again
    #[arg(long, value_name = "PROPERTIES", long_help = UPLINK)]
    uplink: Vec<Uplink>,

    /// Machines may send from any address, as many as they like, and hear what is for addresses that nobody knows
    #[arg(long)]
    no_filter: bool,

    /// All packets go through the switch. Without this, two filtered machines that send each other much get a connection of their own, over which each takes
    /// only what the filter would let through
    #[arg(long)]
    no_short_cuts: bool,

    /// How many packets to all a machine may send in a second, 0 for any number
    #[arg(long, value_name = "NUMBER", default_value_t = SwitchOptions::default().broadcasts)]
    broadcasts: u32,

    /// Tell what the ports have had to do, as JSON, to whoever connects to this Unix socket; PATH.status for the first address unix:PATH, if it is not
    /// given
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,

    /// Show what a running switch tells at its status socket
    #[arg(long, conflicts_with_all = ["listen", "vhost_user", "uplink", "no_filter", "no_short_cuts", "broadcasts", "ends_when_unused"])]
    status: bool,

    /// End when no machine has been connected for some seconds
    #[arg(long)]
    ends_when_unused: bool,
}

/// The socket where machines look for a switch.
pub(crate) fn default_socket() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) if !directory.is_empty() => {
            PathBuf::from(directory).join("ring3-switch.sock")
        }
        _ => {
            let user = rustix::process::geteuid().as_raw();
            env::temp_dir().join(format!("ring3-switch-{user}.sock"))
        }
    }
}

/// The status socket of a switch that listens at `socket`.
fn status_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// How a machine finds the switch at `socket`, or has one started.
pub(crate) fn program(socket: Option<&Path>) -> io::Result<SwitchProgram> {
    let socket = socket.map_or_else(default_socket, Path::to_owned);
    let mut address = std::ffi::OsString::from("unix:");
    address.push(&socket);
    let arguments = vec!["switch".into(), "--listen".into(), address, "--ends-when-unused".into()];
    Ok(SwitchProgram { socket, program: crate::own_program(arguments)? })
}

/// Is a switch until it is told to end, or shows what another one says.
pub(crate) fn run(arguments: &SwitchArguments) -> Result<(), String> {
    if arguments.status {
        let path = arguments.status_socket.clone();
        return show_status(&path.unwrap_or_else(|| status_socket(&default_socket())));
    }
    let mut addresses: Vec<_> =
        arguments.listen.iter().map(|Listen(address)| address.clone()).collect();
    if addresses.is_empty() {
        addresses.push(StreamAddress::Unix(default_socket()));
    }
    let (quit, told) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.map_err(|error| format!("signals cannot be taken: {error}"))?;
    let no_thread = |error| format!("no thread can be started: {error}");
    let waiting = thread::Builder::new().name("signals".into());
    let waiting = waiting.spawn(move || signals.forever().try_for_each(|_| quit.send(()).ok()));
    waiting.map_err(no_thread)?;
    let options = SwitchOptions {
        filtered: !arguments.no_filter,
        broadcasts: arguments.broadcasts,
        short_cuts: !arguments.no_short_cuts,
    };
    let switch = Switch::new(options);
    for uplink in &arguments.uplink {
        add_uplink(&switch, uplink)?;
    }
    let first = addresses.first().cloned();
    let mut servers = Vec::new();
    for address in addresses {
        let server = SwitchServer::listen(&address, switch.clone());
        let server = Arc::new(server.map_err(|error| error.to_string())?);
        servers.push(Arc::clone(&server));
        let listening = thread::Builder::new().name("machines".into());
        listening.spawn(move || server.serve()).map_err(no_thread)?;
        info!("machines can connect to {address}");
    }
    let mut shared = Vec::new();
    for path in &arguments.vhost_user {
        let server = VhostServer::listen(path, switch.clone());
        let server = Arc::new(server.map_err(|error| error.to_string())?);
        shared.push(Arc::clone(&server));
        let listening = thread::Builder::new().name("machines".into());
        listening.spawn(move || server.serve()).map_err(no_thread)?;
        info!("machines can share their memory at {}", path.display());
    }
    let status = arguments.status_socket.clone().or(match first {
        Some(StreamAddress::Unix(path)) => Some(status_socket(&path)),
        _ => None,
    });
    let status = status.map(|path| tell_status(&path, switch.clone()));
    let _status = status.transpose().map_err(|error| error.to_string())?;
    let mut unused = Duration::ZERO;
    while told.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        unused = if switch.guests() == 0 { unused + LOOK } else { Duration::ZERO };
        if arguments.ends_when_unused && unused >= LINGER {
            break;
        }
    }
    info!("the switch ends");
    for server in &servers {
        server.close();
    }
    for server in &shared {
        server.close();
    }
    Ok(())
}

/// Adds an uplink.
fn add_uplink(switch: &Switch, Uplink { kind, network }: &Uplink) -> Result<(), String> {
    let backend = network.behind.backend().map_err(|error| error.to_string())?;
    switch
        .add_uplink(kind, |card| ring3_net::open(&backend, &card))
        .map_err(|error| error.to_string())
}

/// Shows what the switch with the status socket `path` says.
fn show_status(path: &Path) -> Result<(), String> {
    let fails =
        |error: io::Error| format!("no switch tells its status at {}: {error}", path.display());
    let mut text = String::new();
    UnixStream::connect(path)
        .and_then(|mut stream| stream.read_to_string(&mut text))
        .map_err(fails)?;
    let status: SwitchStatus = serde_json::from_str(&text).map_err(|error| fails(error.into()))?;
    let mut lines = vec![format!(
        "{:<14}{:<19}{:>12}{:>16}{:>12}{:>16}  refused",
        "port", "address", "from", "bytes", "to", "bytes"
    )];
    for port in status.ports {
        let refused: Vec<_> =
            port.refused.iter().map(|(why, count)| format!("{why} {count}")).collect();
        let (name, address) = (&port.name, port.address.as_deref().unwrap_or("-"));
        lines.push(format!(
            "{name:<14}{address:<19}{:>12}{:>16}{:>12}{:>16}  {}",
            port.received,
            port.received_bytes,
            port.sent,
            port.sent_bytes,
            refused.join(", ")
        ));
    }
    lines.push(String::new());
    // Who closes standard output does not want to read it.
    let _ = io::stdout().write_all(lines.join("\n").as_bytes());
    Ok(())
}
