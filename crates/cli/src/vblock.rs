//! `ring3 vblock`: a server of disk images, and commands to a running one.

use std::io::{self, Write};
use std::net::{IpAddr, ToSocketAddrs};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Subcommand};
use ring3_block::format::{Format, UnknownFormat};
use ring3_block::{forbid_external_files, parse_size};
use ring3_vblock::{
    Access, ControlSocket, DeviceOptions, NbdAddress, ProviderOptions, Right, Server, ShareOptions,
    VhostUserOptions,
};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use thiserror::Error;
use tracing::{info, warn};

use crate::args::{Arguments, rate};
use crate::qemu::properties::{Properties, switch};
use crate::sandbox;

/// How long the server waits for disks to close before it says which it waits for.
const PATIENCE: Duration = Duration::from_secs(1);

/// The text that `ring3 vblock --help` shows below the options.
const HELP: &str = "\
Examples:
  ring3 vblock --device disk,file=disk.qcow2 --client vm1=disk:rw,socket=vm1.sock
      for a machine: qemu-system-x86_64 -m 1G
        -object memory-backend-memfd,id=mem,size=1G,share=on -machine memory-backend=mem
        -chardev socket,id=c,path=vm1.sock,reconnect=1 -device vhost-user-blk-pci,chardev=c
  ring3 vblock --device disk,file=disk.qcow2 --client backup=disk:r --nbd backup=backup.sock
      for other programs: qemu-img convert 'nbd+unix:///disk?socket=backup.sock' copy.qcow2
  ring3 vblock --control vblock.sock
      and, while it runs:
      ring3 vblock ctl vblock.sock device-add name=disk file=disk.qcow2
      ring3 vblock ctl vblock.sock grant client=vm1 device=disk access=rw socket=vm1.sock

Exit status: 0 after quit, SIGTERM or SIGINT, 1 after an error, 2 if the command line is wrong";

/// The options of `ring3 vblock`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = HELP)]
pub(crate) struct VblockArguments {
    #[command(subcommand)]
    act: Option<VblockCommand>,

    /// Serve an image as a device:
    /// [name=]NAME,file=FILE|nbd:…[,format=raw|qcow2|…][,readonly=on|off][,external-files=on|off]
    #[arg(long, value_name = "PROPERTIES")]
    device: Vec<DeviceProperties>,

    /// Open no file that an image names: neither backing files nor files with parts of its data. Use it for
    /// images that a guest or a stranger has written; external-files=off does this for one device
    #[arg(long)]
    no_external_files: bool,

    /// Give a client a right to a device, and a socket for it:
    /// CLIENT=DEVICE:r|rw[,socket=PATH][,num-queues=N]
    #[arg(long, value_name = "RIGHT")]
    client: Vec<ClientProperties>,

    /// Serve a client's devices by NBD: CLIENT=PATH at a Unix socket, CLIENT=HOST:PORT by TCP at an address
    /// of this host
    #[arg(long, value_name = "CLIENT=ADDRESS")]
    nbd: Vec<NbdProperties>,

    /// Give a client a Unix socket at which it learns which devices it may use, and is connected with them, as the
    /// C library does: CLIENT=PATH
    #[arg(long, value_name = "CLIENT=PATH")]
    client_socket: Vec<ClientSocket>,

    /// Let a program add devices of its own, called NAME.DEVICE, and take them back, at this Unix socket:
    /// NAME=PATH[,clients=CLIENT:CLIENT][,reconnect-delay=SECONDS]. It may give rights to these clients; requests
    /// wait for one that is away
    #[arg(long, value_name = "NAME=PATH")]
    provider: Vec<ProviderProperties>,

    /// Let all clients together transfer at most so many bytes a second, such as 100M. Busy clients share them by their
    /// weights. A transfer counts as 4 KiB at least
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    bandwidth: Option<NonZero<u64>>,

    /// Give a client a weight among those that share --bandwidth, 100 by default, and a limit of its own:
    /// CLIENT=WEIGHT[,bandwidth=BYTES]
    #[arg(long, value_name = "CLIENT=WEIGHT")]
    share: Vec<ShareProperties>,

    /// Take commands at this Unix socket; see "ring3 vblock ctl"
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum VblockCommand {
    /// Send a command to a running server: query-devices, query-clients, query-providers, device-add, device-del,
    /// device-resize, grant, revoke, nbd-server-start, nbd-server-stop, client-socket-start, client-socket-stop,
    /// provider-start, provider-stop, share, quit
    Ctl {
        /// The server's control socket
        #[arg(value_name = "SOCKET")]
        socket: PathBuf,

        /// The command
        #[arg(value_name = "COMMAND")]
        command: String,

        /// Arguments of the command, KEY=VALUE
        #[arg(value_name = "KEY=VALUE")]
        arguments: Vec<String>,
    },
}

/// The reasons why the options are refused.
#[derive(Debug, Error)]
enum BadProperties {
    #[error("{0}")]
    Property(String),
    #[error("give [name=]NAME,file=FILE, and optionally format, readonly and external-files")]
    Device,
    #[error("give CLIENT=DEVICE:r or CLIENT=DEVICE:rw, and optionally socket and num-queues")]
    Client,
    #[error("num-queues must be a number, and needs a socket for the client")]
    Queues,
    #[error("give CLIENT=PATH, such as me=disks.sock")]
    ClientSocket,
    #[error("give NAME=PATH, and optionally clients and reconnect-delay")]
    Provider,
    #[error("give CLIENT=WEIGHT, such as vm1=400, and optionally bandwidth=BYTES, such as 50M")]
    Share,
    #[error("give CLIENT=PATH or CLIENT=HOST:PORT, such as me=nbd.sock or me=127.0.0.1:10809")]
    Nbd,
    #[error(transparent)]
    Format(#[from] UnknownFormat),
}

/// The value of `--device`.
#[derive(Debug, Clone)]
struct DeviceProperties {
    name: String,
    options: DeviceOptions,
}

impl FromStr for DeviceProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<DeviceProperties, BadProperties> {
        let (mut name, mut file, mut format) = (None, None, None);
        let (mut read_only, mut no_external_files) = (false, false);
        for (key, value) in Properties::parse(text, Some("name")).iter() {
            match key {
                "name" => name = Some(value.to_owned()),
                "file" => file = Some(PathBuf::from(value)),
                "format" => format = Some(value.parse::<Format>()?),
                "readonly" | "read-only" => {
                    read_only = switch(key, value).map_err(BadProperties::Property)?;
                }
                "external-files" => {
                    no_external_files = !switch(key, value).map_err(BadProperties::Property)?;
                }
                _ => return Err(BadProperties::Device),
            }
        }
        let (Some(name), Some(file)) = (name, file) else { return Err(BadProperties::Device) };
        Ok(DeviceProperties {
            name,
            options: DeviceOptions { file, format, read_only, no_external_files },
        })
    }
}

/// The value of `--client`.
#[derive(Debug, Clone)]
struct ClientProperties {
    client: String,
    device: String,
    access: Access,
    vhost_user: Option<VhostUserOptions>,
}

impl FromStr for ClientProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<ClientProperties, BadProperties> {
        let mut right = None;
        let (mut socket, mut queues) = (None, None);
        for (key, value) in Properties::parse(text, None).iter() {
            match key {
                "socket" => socket = Some(PathBuf::from(value)),
                "num-queues" => {
                    queues = Some(value.parse().map_err(|_| BadProperties::Queues)?);
                }
                client if right.is_none() => {
                    let (device, access) = value.split_once(':').ok_or(BadProperties::Client)?;
                    let access = match access {
                        "r" => Access::Read,
                        "rw" => Access::ReadWrite,
                        _ => return Err(BadProperties::Client),
                    };
                    right = Some((client.to_owned(), device.to_owned(), access));
                }
                _ => return Err(BadProperties::Client),
            }
        }
        let (client, device, access) = right.ok_or(BadProperties::Client)?;
        let vhost_user = match (socket, queues) {
            (None, None) => None,
            (None, Some(_)) => return Err(BadProperties::Queues),
            (Some(socket), queues) => {
                Some(VhostUserOptions { socket, queues: queues.unwrap_or(1) })
            }
        };
        Ok(ClientProperties { client, device, access, vhost_user })
    }
}

/// The value of `--nbd`.
#[derive(Debug, Clone)]
struct NbdProperties {
    client: String,
    address: NbdAddress,
}

impl FromStr for NbdProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<NbdProperties, BadProperties> {
        let (client, address) = text.split_once('=').ok_or(BadProperties::Nbd)?;
        let is_port =
            |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        // Half of a TCP address is not taken for the name of a socket.
        let is_half = is_port(address)
            || address.starts_with(':')
            || address == "localhost"
            || address.parse::<IpAddr>().is_ok();
        if is_half {
            return Err(BadProperties::Nbd);
        }
        let address = address.strip_prefix("unix:").unwrap_or(address);
        let is_tcp = !address.contains('/')
            && address.rsplit_once(':').is_some_and(|(_, port)| is_port(port));
        let address = if is_tcp {
            let mut found = address.to_socket_addrs().map_err(|_| BadProperties::Nbd)?;
            NbdAddress::Tcp(found.next().ok_or(BadProperties::Nbd)?)
        } else if address.is_empty() {
            return Err(BadProperties::Nbd);
        } else {
            NbdAddress::Unix(address.into())
        };
        Ok(NbdProperties { client: client.to_owned(), address })
    }
}

/// The value of `--client-socket`.
#[derive(Debug, Clone)]
struct ClientSocket {
    client: String,
    path: PathBuf,
}

impl FromStr for ClientSocket {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<ClientSocket, BadProperties> {
        match text.split_once('=') {
            Some((client, path)) if !path.is_empty() => {
                Ok(ClientSocket { client: client.to_owned(), path: path.into() })
            }
            _ => Err(BadProperties::ClientSocket),
        }
    }
}

/// The value of `--provider`.
#[derive(Debug, Clone)]
struct ProviderProperties(ProviderOptions);

impl FromStr for ProviderProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<ProviderProperties, BadProperties> {
        let (mut name, mut clients, mut delay) = (None, String::new(), None);
        for (key, value) in Properties::parse(text, None).iter() {
            match key {
                "clients" => value.clone_into(&mut clients),
                "reconnect-delay" => {
                    delay = Some(value.parse().map_err(|_| BadProperties::Provider)?);
                }
                provider if name.is_none() && !value.is_empty() => {
                    name = Some((provider.to_owned(), PathBuf::from(value)));
                }
                _ => return Err(BadProperties::Provider),
            }
        }
        let (name, socket) = name.ok_or(BadProperties::Provider)?;
        Ok(ProviderProperties(ProviderOptions::new(name, socket, &clients, delay)))
    }
}

/// The value of `--share`.
#[derive(Debug, Clone)]
struct ShareProperties {
    client: String,
    options: ShareOptions,
}

impl FromStr for ShareProperties {
    type Err = BadProperties;

    fn from_str(text: &str) -> Result<ShareProperties, BadProperties> {
        let (mut given, mut bandwidth) = (None, None);
        for (key, value) in Properties::parse(text, None).iter() {
            match key {
                "bandwidth" => bandwidth = Some(rate(value).map_err(BadProperties::Property)?),
                client if given.is_none() => {
                    let weight = value.parse().map_err(|_| BadProperties::Share)?;
                    given = Some((client.to_owned(), weight));
                }
                _ => return Err(BadProperties::Share),
            }
        }
        let (client, weight) = given.ok_or(BadProperties::Share)?;
        let options = ShareOptions { weight: Some(weight), bandwidth };
        Ok(ShareProperties { client, options })
    }
}

/// Serves until the server is told to end, or sends a command to another server.
pub(crate) fn run(arguments: &VblockArguments) -> Result<(), String> {
    match &arguments.act {
        Some(VblockCommand::Ctl { socket, command, arguments }) => tell(socket, command, arguments),
        None => {
            arguments.check().unwrap_or_else(|reason| {
                Arguments::command().error(ErrorKind::MissingRequiredArgument, reason).exit()
            });
            serve(arguments)
        }
    }
}

impl VblockArguments {
    /// Refuses a server that nobody could use.
    fn check(&self) -> Result<(), String> {
        if self.control.is_some() || !self.provider.is_empty() {
            return Ok(());
        }
        let Some(device) = self.device.first() else {
            return Err(
                "there is nothing to serve: give --device, --provider, or --control to add devices later"
                    .to_owned(),
            );
        };
        let Some(right) = self.client.first() else {
            let name = &device.name;
            return Err(format!(
                "no client has a right to a device: add --client CLIENT={name}:rw, or --control to grant rights later"
            ));
        };
        let has_right =
            |nbd: &&NbdProperties| self.client.iter().any(|right| right.client == nbd.client);
        if let Some(NbdProperties { client, .. }) = self.nbd.iter().find(|nbd| !has_right(nbd)) {
            let name = &device.name;
            return Err(format!(
                "{client} has no right to a device: add --client {client}={name}:rw"
            ));
        }
        let has_way = |right: &ClientProperties| {
            right.vhost_user.is_some()
                || self.nbd.iter().any(|nbd| nbd.client == right.client)
                || self.client_socket.iter().any(|socket| socket.client == right.client)
        };
        if !self.client.iter().any(has_way) {
            let ClientProperties { client, .. } = right;
            return Err(format!(
                "no client has an address to connect to: add socket=PATH to its --client for a machine, or --nbd {client}=PATH for NBD"
            ));
        }
        Ok(())
    }
}

fn serve(arguments: &VblockArguments) -> Result<(), String> {
    if arguments.no_external_files {
        forbid_external_files();
    }
    let said = |error: ring3_vblock::Error| error.to_string();
    let (quit, told) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.map_err(|error| format!("cannot handle signals: {error}"))?;
    let handle = signals.handle();
    let (at_signal, at_end) = (quit.clone(), quit.clone());
    let waiting = thread::Builder::new().name("signals".into()).spawn(move || {
        for _ in signals.forever() {
            if at_signal.send(()).is_err() {
                return;
            }
        }
    });
    waiting.map_err(|error| format!("cannot start a thread: {error}"))?;
    let server = Arc::new(Server::new(arguments.bandwidth));
    for ShareProperties { client, options } in &arguments.share {
        server.share(client, *options).map_err(said)?;
    }
    for DeviceProperties { name, options } in &arguments.device {
        server.add_device(name, options).map_err(said)?;
    }
    let mut providers: Vec<_> = arguments.provider.iter().map(|given| given.0.clone()).collect();
    for ClientProperties { client, device, access, vhost_user } in &arguments.client {
        if let Some(provider) = providers.iter_mut().find(|provider| provider.is_for(device)) {
            let (client, device) = (client.clone(), device.clone());
            provider.rights.push(Right {
                client,
                device,
                access: *access,
                vhost_user: vhost_user.clone(),
            });
            continue;
        }
        server.grant(client, device, *access, vhost_user.as_ref()).map_err(said)?;
    }
    for ClientSocket { client, path } in &arguments.client_socket {
        server.start_lobby(client, path).map_err(said)?;
    }
    for provider in &providers {
        server.start_provider(provider).map_err(said)?;
    }
    for NbdProperties { client, address } in &arguments.nbd {
        server.start_nbd(client, address).map_err(said)?;
    }
    let path = arguments.control.as_deref();
    let control = path.map(|path| ControlSocket::start(&server, path, quit)).transpose();
    let control = control.map_err(said)?;
    let vhost_user = arguments.client.iter().filter_map(|client| client.vhost_user.as_ref());
    let nbd = arguments.nbd.iter().filter_map(|nbd| match &nbd.address {
        NbdAddress::Unix(path) => Some(path.as_path()),
        NbdAddress::Tcp(_) => None,
    });
    let brought = providers.iter().map(|provider| provider.socket.as_path());
    let sockets = vhost_user.map(|options| options.socket.as_path());
    let lobbies = arguments.client_socket.iter().map(|socket| socket.path.as_path());
    let sockets = sockets.chain(nbd).chain(brought).chain(lobbies).chain(path);
    let rights = providers.iter().flat_map(|provider| &provider.rights);
    let later = rights.filter_map(|right| right.vhost_user.as_ref());
    let later = later.map(|options| options.socket.as_path());
    sandbox::enter_as_disk_server(sockets, later, server.reconnects(), path.is_some());
    // `told` never fails: the thread for signals keeps a sender.
    let _ = told.recv();
    info!("the server ends");
    let ended = close(&server, &told, &at_end);
    handle.close();
    drop(control);
    sandbox::report();
    ended
}

/// Closes the server. A user who does not want to wait for unreachable disks tells the server to end once
/// more.
fn close(server: &Arc<Server>, told: &Receiver<()>, at_end: &Sender<()>) -> Result<(), String> {
    let is_closed = Arc::new(AtomicBool::new(false));
    let (closing, closed, at_end) = (Arc::clone(server), Arc::clone(&is_closed), at_end.clone());
    let thread = thread::Builder::new().name("close".into()).spawn(move || {
        closing.close();
        closed.store(true, Ordering::Release);
        let _ = at_end.send(());
    });
    thread.map_err(|error| format!("cannot start a thread: {error}"))?;
    let left = || {
        let name = |(name, file): (String, PathBuf)| format!("{name} ({})", file.display());
        server.not_closed().into_iter().map(name).collect::<Vec<_>>().join(", ")
    };
    // Requests to end do not count before the user has read what the server waits for: timeout(1) sends its
    // signal twice.
    let deadline = Instant::now() + PATIENCE;
    while !is_closed.load(Ordering::Acquire)
        && told.recv_timeout(deadline.saturating_duration_since(Instant::now())).is_ok()
    {}
    if !is_closed.load(Ordering::Acquire) {
        warn!(
            "waiting until {} can keep the last writes; to give them up, end this server again",
            left()
        );
        let _ = told.recv();
    }
    if is_closed.load(Ordering::Acquire) {
        return Ok(());
    }
    Err(format!("ended before the last writes to {} were kept", left()))
}

/// Sends a command, and prints the result.
fn tell(socket: &Path, command: &str, arguments: &[String]) -> Result<(), String> {
    let mut object = Map::new();
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("give KEY=VALUE, not \"{argument}\""))?;
        object.insert(key.to_owned(), value_of(key, value));
    }
    let result = ring3_vblock::ask(socket, command, &Value::Object(object));
    let result = result.map_err(|error| error.to_string())?;
    let is_nothing = result.as_object().is_some_and(Map::is_empty);
    if !is_nothing {
        // A reader that closes standard output does not want the rest.
        let _ = writeln!(io::stdout(), "{result:#}");
    }
    Ok(())
}

/// Returns the argument `value` of a command as a boolean or a number, if `key` takes one, or else as text.
fn value_of(key: &str, value: &str) -> Value {
    match (key, value) {
        ("read-only" | "external-files" | "shrink", "on" | "true") => Value::Bool(true),
        ("read-only" | "external-files" | "shrink", "off" | "false") => Value::Bool(false),
        ("size" | "bandwidth", _) => {
            parse_size(value).map_or_else(|| Value::String(value.to_owned()), Value::from)
        }
        ("num-queues" | "reconnect-delay" | "weight", _) => {
            value.parse::<u64>().map_or_else(|_| Value::String(value.to_owned()), Value::from)
        }
        _ => Value::String(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_rights_are_read() {
        let device: DeviceProperties = "disk,file=a,,b.img,format=raw,readonly=on".parse().unwrap();
        assert_eq!(device.name, "disk");
        assert_eq!(device.options.file, PathBuf::from("a,b.img"));
        assert_eq!(device.options.format, Some(Format::Raw));
        assert!(device.options.read_only);
        let right: ClientProperties = "vm1=disk:rw,socket=/run/vm1,num-queues=4".parse().unwrap();
        assert_eq!((right.client.as_str(), right.device.as_str()), ("vm1", "disk"));
        assert_eq!(right.access, Access::ReadWrite);
        let socket = PathBuf::from("/run/vm1");
        assert_eq!(right.vhost_user, Some(VhostUserOptions { socket, queues: 4 }));
        let nbd: NbdProperties = "b=127.0.0.1:10809".parse().unwrap();
        assert_eq!(nbd.address, NbdAddress::Tcp(([127, 0, 0, 1], 10809).into()));
        let nbd: NbdProperties = "b=/run/a:1".parse().unwrap();
        assert_eq!(nbd.address, NbdAddress::Unix("/run/a:1".into()));
        let share: ShareProperties = "vm1=400,bandwidth=2M".parse().unwrap();
        let bandwidth = NonZero::new(2 << 20);
        assert_eq!(share.options, ShareOptions { weight: Some(400), bandwidth });
        for bad in ["", "vm1", "vm1=", "vm1=x", "vm1=1,bandwidth=0", "vm1=1,vm2=2"] {
            assert!(bad.parse::<ShareProperties>().is_err(), "{bad}");
        }
        for bad in ["", "disk", "file=x", "disk,file=x,size=1"] {
            assert!(bad.parse::<DeviceProperties>().is_err(), "{bad}");
        }
        for bad in ["", "vm1", "vm1=disk", "vm1=disk:w", "vm1=disk:r,num-queues=2", "a=b:r,c=d:r"] {
            assert!(bad.parse::<ClientProperties>().is_err(), "{bad}");
        }
        for bad in ["", "b", "b="] {
            assert!(bad.parse::<NbdProperties>().is_err(), "{bad}");
        }
    }
}
