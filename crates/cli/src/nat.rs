//! `ring3 nat`: a NAT, in a process of its own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::str::FromStr;

use clap::Args;
use ring3_net::hostnet::sandbox::close_inherited;
use ring3_net::nat::{commands, serve, serve_at};
use ring3_net::{NetError, StreamAddress};
use rustix::net::sockopt::socket_type;
use thiserror::Error;

use crate::nics::user::NatProperties;
use crate::status::Status;

/// The text that `ring3 nat --help` shows below the options.
const HELP: &str = "\
Properties, separated by commas:
  net=ADDRESS/BITS     the guest's network, 10.0.2.0/24 by default
  host=ADDRESS         this host, by default the network's second address
  dns=ADDRESS          this host's name server, by default the third
  dhcpstart=ADDRESS    the first address for guests, by default the fifteenth
  ipv6-net=PREFIX/BITS, ipv6-host=ADDRESS, ipv6-dns=ADDRESS
                       the same for IPv6, fec0::/64 by default
  ipv4=off, ipv6=off   a network without this protocol
  restrict=on          guests reach nothing outside, except by forwards
  hostfwd=tcp|udp:[ADDRESS]:PORT-[ADDRESS]:PORT
                       a port of this host, by default of 127.0.0.1,
                       that leads to a port of the guest; may be given several times
  guestfwd=tcp:ADDRESS:PORT-unix:PATH, guestfwd=tcp:ADDRESS:PORT-cmd:COMMAND
                       an address that only the guest sees, and the socket or
                       command behind it; may be given several times
  tftp=DIRECTORY       files for the guest, at the host's address
  bootfile=NAME        the file among them that it boots
  hostname=NAME, domainname=NAME, dnssearch=NAME, tftp-server-name=NAME
                       names that the guest gets by DHCP

The NAT needs libslirp (Debian and Ubuntu: libslirp0).

Examples:
  ring3 run --nic user,hostfwd=tcp::2222-:22      starts a NAT by itself
  ring3 nat --listen unix:nat.sock                for other machines:
      qemu-system-i386 -nic stream,addr.type=unix,addr.path=nat.sock

Exit status: 0 when the machine has disconnected, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 nat`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct NatArguments {
    /// Listen at HOST:PORT or unix:PATH for machines, one at a time, that send frames as with "--nic stream".
    /// Without this option, standard input is a socket to a machine
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// Start this command for each connection to the socket that is standard input, until the other end of
    /// standard output is closed. The NAT has this done by another process, since it gives up its own rights
    #[arg(long, value_name = "COMMAND", hide = true, allow_hyphen_values = true)]
    serve_command: Option<String>,

    /// The properties of the network
    #[arg(value_name = "PROPERTIES", default_value = "", hide_default_value = true)]
    properties: NatProperties,
}

/// An address to listen at.
#[derive(Debug, Clone)]
pub(crate) struct Listen(pub(crate) StreamAddress);

/// The reason why a `--listen` is refused.
#[derive(Debug, Error)]
#[error("give HOST:PORT, such as 127.0.0.1:5000, or unix:PATH")]
pub(crate) struct BadListen;

impl FromStr for Listen {
    type Err = BadListen;

    fn from_str(text: &str) -> Result<Listen, BadListen> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => {
                Ok(Listen(StreamAddress::Unix(path.into())))
            }
            // QEMU's form.
            Some(("tcp", address)) => address.parse(),
            Some((host, _)) if !host.is_empty() && host != "unix" => {
                Ok(Listen(StreamAddress::Tcp(text.to_owned())))
            }
            _ => Err(BadListen),
        }
    }
}

/// Runs the NAT until the machine disconnects.
pub(crate) fn run(arguments: &NatArguments) -> Result<Status, String> {
    if let Some(command) = &arguments.serve_command {
        return serve_command(command);
    }
    // Descriptors that the NAT's parent has left open are no business of the guest.
    close_inherited().map_err(|error| format!("cannot close inherited descriptors: {error}"))?;
    let options = &arguments.properties.options;
    let commands = crate::own_program(vec!["nat".into(), "--serve-command".into()])
        .map_err(|error| format!("cannot find the file of this program: {error}"))?;
    if let Some(Listen(address)) = &arguments.listen {
        return match serve_at(options, &commands, address) {
            Ok(()) => Ok(Status::Ended),
            Err(error) => Err(error.to_string()),
        };
    }
    let socket = socket_of(io::stdin().as_fd(), "input; give --listen ADDRESS")?;
    match serve(options, &commands, socket) {
        Ok(()) => Ok(Status::Ended),
        // The machine has received this error, and reports it.
        Err(NetError::Slirp(_)) => Ok(Status::HostError),
        Err(error) => Err(error.to_string()),
    }
}

/// Starts the command for each client that connects.
fn serve_command(command: &str) -> Result<Status, String> {
    let listener = socket_of(io::stdin().as_fd(), "input")?;
    let alive = socket_of(io::stdout().as_fd(), "output")?;
    let served = commands::serve(command, listener, &alive);
    served.map(|()| Status::Ended).map_err(|error| format!("cannot serve \"{command}\": {error}"))
}

/// Returns one of the standard streams, which must be a socket.
fn socket_of(stream: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, String> {
    let socket = stream.try_clone_to_owned();
    let socket = socket.map_err(|error| format!("cannot use standard {name}: {error}"))?;
    if socket_type(&socket).is_err() {
        return Err(format!("standard {name} is not a socket to a machine"));
    }
    Ok(socket)
}
