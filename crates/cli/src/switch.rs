//! `ring3 switch`: a network between machines, in a process of its own.

use std::env;
use std::io::{self, Read, Write};
use std::num::NonZero;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use clap::Args;
use ring3_net::switch::{SwitchStatus, VhostServer, take_commands, tell_status};
use ring3_net::{StreamAddress, Switch, SwitchOptions, SwitchProgram, SwitchServer};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::args::rate;
use crate::nat::Listen;
use crate::nics::{BadNic, NetworkProperties};
use crate::qemu::properties::Properties;
use crate::sandbox;
use crate::starter;

/// How long a switch that was started for machines runs without any.
const LINGER: Duration = Duration::from_secs(10);
/// The interval at which the switch counts its machines.
const LOOK: Duration = Duration::from_secs(1);

/// The text that `ring3 switch --help` shows below the options.
const HELP: &str = "\
A machine can send only from its card's own address, and receives only broadcasts and packets for that address.

Examples:
  ring3 run --nic switch …           two such machines are on one network:
  ring3 run --nic switch …           the first one starts the switch
  ring3 switch --uplink user         a switch with a way outside, started before them
  ring3 switch --status              the counters of its ports
  qemu-system-i386 -nic stream,addr.type=unix,addr.path=$XDG_RUNTIME_DIR/ring3-switch.sock
      a machine of QEMU on it
  ring3 switch --vhost-user s.sock
      with a socket for machines that share their memory, for example
  qemu-system-i386 -m 512 -object memory-backend-memfd,id=ram,size=512M,share=on -machine memory-backend=ram
      -chardev socket,id=s,path=s.sock,reconnect=1 -netdev vhost-user,id=n,chardev=s -device virtio-net-pci,netdev=n

Exit status: 0 after SIGTERM or SIGINT, 1 after an error, 2 if the command line is wrong";

/// The text that `--uplink help` shows.
const UPLINK: &str = "\
A connection to another network: KIND[,PROPERTY=VALUE]..., with the words of \"ring3 run --nic\". May be given again.

Kinds:
  user      a NAT that needs no rights; its properties are those of \"ring3 nat --help\"
  tap       an existing interface of the host: ifname=NAME
  stream    a connection with another switch or machine: addr=HOST:PORT|unix:PATH, server=on, reconnect=SECONDS
  dgram     packets to another machine or to several: local.type=, local.host=, local.port=, local.path=, and the same for remote
  switch    another switch: the one that starts with the first machine, or the one at path=SOCKET

Examples:
  --uplink user,hostfwd=tcp::2222-10.0.2.15:22
  --uplink tap,ifname=tap0
  --uplink stream,addr=192.0.2.1:5000";

/// The value of `--uplink`.
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
    /// Listen for machines at HOST:PORT or unix:PATH; may be given again. By default the switch listens where
    /// "--nic switch" looks for it: at ring3-switch.sock in $XDG_RUNTIME_DIR
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Listen>,

    /// Listen at this socket for machines that share their memory (vhost-user), so that a packet between two
    /// of them is copied once; may be given again
    #[arg(long, value_name = "PATH")]
    vhost_user: Vec<PathBuf>,

    /// Connect the switch to another network, with the words of "--nic": user, tap,ifname=NAME, stream,addr=…
    /// to another switch; may be given again
    #[arg(long, value_name = "PROPERTIES", long_help = UPLINK)]
    uplink: Vec<Uplink>,

    /// Let machines send from any address, and from any number of them, and send them packets for unknown
    /// addresses
    #[arg(long)]
    no_filter: bool,

    /// Send all packets through the switch. Without this option, two filtered machines that exchange much get
    /// a connection of their own, over which each takes only the packets that the filter would pass
    #[arg(long)]
    no_short_cuts: bool,

    /// The number of broadcasts that a machine may send in a second; 0 for no limit
    #[arg(long, value_name = "NUMBER", default_value_t = SwitchOptions::default().broadcasts)]
    broadcasts: u32,

    /// Let all machines together send at most so many bytes a second, such as 100M. Busy machines share them equally, or
    /// by the weights that the control socket gives them. There are no short cuts then, and what comes by uplinks does
    /// not count
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    bandwidth: Option<NonZero<u64>>,

    /// Take commands at this Unix socket, as tools send them in the form of QMP: query-ports and share
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// Send the counters of the ports, as JSON, to every program that connects to this Unix socket; by
    /// default PATH.status for the first address unix:PATH
    #[arg(long, value_name = "PATH")]
    status_socket: Option<PathBuf>,

    /// Show the counters of a running switch, from its status socket
    #[arg(long, conflicts_with_all = ["listen", "vhost_user", "uplink", "no_filter", "no_short_cuts", "broadcasts", "bandwidth", "control", "ends_when_unused"])]
    status: bool,

    /// End when no machine has been connected for some seconds
    #[arg(long)]
    ends_when_unused: bool,
}

/// Returns the socket where machines look for a switch.
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

/// Returns the status socket of a switch that listens at `socket`.
fn status_socket(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".status");
    path.into()
}

/// Returns how a machine finds the switch at `socket`, or, if it `starts` switches, makes one there.
pub(crate) fn program(socket: Option<&Path>, starts: bool) -> io::Result<SwitchProgram> {
    let socket = socket.map_or_else(default_socket, Path::to_owned);
    if !starts {
        return Ok(SwitchProgram { socket, starter: None });
    }
    let mut address = std::ffi::OsString::from("unix:");
    address.push(&socket);
    let arguments = ["switch".into(), "--listen".into(), address, "--ends-when-unused".into()];
    Ok(SwitchProgram { socket, starter: Some(starter::program(true, arguments)?) })
}

/// Runs a switch until it is told to end, or shows the status of another one.
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
    let mut signals = signals.map_err(|error| format!("cannot handle signals: {error}"))?;
    let no_thread = |error| format!("cannot start a thread: {error}");
    let waiting = thread::Builder::new().name("signals".into());
    let waiting = waiting.spawn(move || signals.forever().try_for_each(|_| quit.send(()).ok()));
    waiting.map_err(no_thread)?;
    let options = SwitchOptions {
        filtered: !arguments.no_filter,
        broadcasts: arguments.broadcasts,
        short_cuts: !arguments.no_short_cuts,
        bandwidth: arguments.bandwidth,
    };
    let switch = Switch::new(options);
    for uplink in &arguments.uplink {
        add_uplink(&switch, uplink)?;
    }
    let first = addresses.first().cloned();
    let paths: Vec<PathBuf> = addresses.iter().filter_map(path_of).collect();
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
    let telling = status.as_ref().map(|path| tell_status(path, switch.clone()));
    let _status = telling.transpose().map_err(|error| error.to_string())?;
    let control = arguments.control.as_ref().map(|path| take_commands(path, switch.clone()));
    let _control = control.transpose().map_err(|error| error.to_string())?;
    let sockets = paths.iter().chain(&arguments.vhost_user).chain(&status);
    let sockets = sockets.chain(&arguments.control).map(PathBuf::as_path);
    sandbox::enter_as_switch(sockets, arguments.uplink.iter().map(|to| &to.network.behind));
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
    sandbox::report();
    Ok(())
}

/// Returns the path of a Unix socket.
fn path_of(address: &StreamAddress) -> Option<PathBuf> {
    match address {
        StreamAddress::Unix(path) => Some(path.clone()),
        StreamAddress::Tcp(_) => None,
    }
}

/// Adds an uplink.
fn add_uplink(switch: &Switch, Uplink { kind, network }: &Uplink) -> Result<(), String> {
    let backend = network.behind.backend().map_err(|error| error.to_string())?;
    switch
        .add_uplink(kind, |card| ring3_net::open(&backend, &card))
        .map_err(|error| error.to_string())
}

/// Shows the status of the switch with the status socket `path`.
fn show_status(path: &Path) -> Result<(), String> {
    let fails = |error: io::Error| {
        format!("no switch answers at the status socket {}: {error}", path.display())
    };
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
    // A reader that closes standard output does not want the rest.
    let _ = io::stdout().write_all(lines.join("\n").as_bytes());
    Ok(())
}
