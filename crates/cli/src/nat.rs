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

/// What `ring3 nat --help` says below the options.
const HELP: &str = "\
Properties, with a comma between two of them:
  net=ADDRESS/BITS     the guest's network, 10.0.2.0/24 if it is not given
  host=ADDRESS         what stands for this host, its second address
  dns=ADDRESS          what stands for this host's server of names, the third
  dhcpstart=ADDRESS    the first address that is given to guests, the fifteenth
  ipv6-net=PREFIX/BITS, ipv6-host=ADDRESS, ipv6-dns=ADDRESS
                       the same of IPv6, fec0::/64 if it is not given
  ipv4=off, ipv6=off   there is none
  restrict=on          guests reach nothing outside, but for what is forwarded
  hostfwd=tcp|udp:[ADDRESS]:PORT-[ADDRESS]:PORT
                       a port of this host, 127.0.0.1 if no address is given,
                       that leads to one of the guest; can be given several times
  guestfwd=tcp:ADDRESS:PORT-unix:PATH, guestfwd=tcp:ADDRESS:PORT-cmd:COMMAND
                       an address that only the guest sees, and the socket or
                       command behind it; can be given several times
  tftp=DIRECTORY       files for the guest, at the host's address
  bootfile=NAME        which of them it is to boot
  hostname=NAME, domainname=NAME, dnssearch=NAME, tftp-server-name=NAME
                       what DHCP tells the guest

It needs libslirp (Debian and Ubuntu: libslirp0).

Examples:
  ring3 run --nic user,hostfwd=tcp::2222-:22      starts one by itself
  ring3 nat --listen unix:nat.sock                for other machines:
      qemu-system-i386 -nic stream,addr.type=unix,addr.path=nat.sock

Exit status: 0 when the machine has closed its standard input, 1 where something failed, 2 for a wrong command line";

/// The options of `ring3 nat`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct NatArguments {
    /// Listen for machines, one at a time, that send frames as with "--nic stream": at HOST:PORT or unix:PATH. If it is not given, standard input is
    /// a socket to one
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<Listen>,

    /// Start this for each connection to the socket that is standard input, until the other end of standard output is closed: what a NAT that gives up its
    /// rights has another process do
    #[arg(long, value_name = "COMMAND", hide = true, allow_hyphen_values = true)]
    serve_command: Option<String>,

    /// What the network is like
    #[arg(value_name = "PROPERTIES", default_value = "", hide_default_value = true)]
    properties: NatProperties,
}

/// An address to listen at.
#[derive(Debug, Clone)]
pub(crate) struct Listen(pub(crate) StreamAddress);

/// Why a `--listen` is refused.
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
            // As QEMU has it.
            Some(("tcp", address)) => address.parse(),
            Some((host, _)) if !host.is_empty() && host != "unix" => {
                Ok(Listen(StreamAddress::Tcp(text.to_owned())))
            }
            _ => Err(BadListen),
        }
    }
}

/// Is the NAT until the machine has gone.
pub(crate) fn run(arguments: &NatArguments) -> Result<Status, String> {
    if let Some(command) = &arguments.serve_command {
        return serve_command(command);
    }
    // Whatever else whoever started this had open is not the guest's.
    close_inherited().map_err(|error| format!("descriptors cannot be closed: {error}"))?;
    let options = &arguments.properties.options;
    let commands = crate::own_program(vec!["nat".into(), "--serve-command".into()])
        .map_err(|error| format!("this program is not found: {error}"))?;
    if let Some(Listen(address)) = &arguments.listen {
        return match serve_at(options, &commands, address) {
            Ok(()) => Ok(Status::Ended),
            Err(error) => Err(error.to_string()),
        };
    }
    let socket = socket_of(io::stdin().as_fd(), "input; give --listen ADDRESS")?;
    match serve(options, &commands, socket) {
        Ok(()) => Ok(Status::Ended),
        // The machine was told, and tells it.
        Err(NetError::Slirp(_)) => Ok(Status::HostError),
        Err(error) => Err(error.to_string()),
    }
}

/// Starts a command for those who connect.
fn serve_command(command: &str) -> Result<Status, String> {
    let listener = socket_of(io::stdin().as_fd(), "input")?;
    let alive = socket_of(io::stdout().as_fd(), "output")?;
    let served = commands::serve(command, listener, &alive);
    served.map(|()| Status::Ended).map_err(|error| format!("\"{command}\" is not served: {error}"))
}

/// One of the standard streams, which must be a socket.
fn socket_of(stream: BorrowedFd<'_>, name: &str) -> Result<OwnedFd, String> {
    let socket = stream.try_clone_to_owned();
    let socket = socket.map_err(|error| format!("standard {name} cannot be used: {error}"))?;
    if socket_type(&socket).is_err() {
        return Err(format!("there is no socket to a machine at standard {name}"));
    }
    Ok(socket)
}
