//! Serial ports, monitors and the debug console, and their back-ends (QEMU, "Character device options").

use std::time::Duration;

use crate::args::{DebugTarget, Vga};
use crate::channels::{ChannelPlace, ChannelTarget};
use crate::display::DisplayTarget;
use crate::serial::SerialTarget;
use crate::serial::cards::SerialCardTarget;

use super::options::default_serial;
use super::properties::{switch, unknown};
use super::settings::{Address, Character, CharacterLog, Mode, Monitor, Place, SocketPlace};
use super::{Properties, Reason, Translation, reason, set};

/// Returns the number of the character device with the id `id`, which may be defined later.
fn named(all: &mut Translation, id: &str) -> usize {
    let characters = &mut all.run.qemu.characters;
    let found = characters.iter().position(|character| character.id.as_deref() == Some(id));
    found.unwrap_or_else(|| {
        characters.push(Character { id: Some(id.to_owned()), ..Character::default() });
        characters.len() - 1
    })
}

/// Adds a character device without an id.
fn new(all: &mut Translation, place: Place, is_shared: bool) -> usize {
    let characters = &mut all.run.qemu.characters;
    characters.push(Character { place, is_shared, ..Character::default() });
    characters.len() - 1
}

/// `-chardev`.
pub(super) fn chardev(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("backend"));
    let Some(id) = properties.take("id") else {
        return reason("other options name it by id; add id=NAME");
    };
    let defined = character(properties, &mut |warning| all.warn(warning))?;
    let index = named(all, &id);
    let character = &mut all.run.qemu.characters[index];
    if character.place != Place::Unknown {
        return Err(format!("two character devices have the id {id}"));
    }
    *character = Character { id: Some(id), ..defined };
    Ok(())
}

/// Returns the character device with these properties, but for its id. Warnings go to `warn`.
pub(crate) fn character(
    mut properties: Properties,
    warn: &mut dyn FnMut(&str),
) -> Result<Character, Reason> {
    let backend = properties.take("backend").unwrap_or_default();
    let is_shared = properties.take("mux").map_or(Ok(false), |value| switch("mux", &value))?;
    let append = properties.take("logappend");
    let append = append.map_or(Ok(false), |value| switch("logappend", &value))?;
    let log = properties.take("logfile").map(|path| CharacterLog { path: path.into(), append });
    let place = match backend.as_str() {
        "null" | "vc" | "ringbuf" | "memory" | "spicevmc" | "spiceport" | "msmouse" | "braille" => {
            if backend != "null" && backend != "vc" {
                warn(&format!("there is no {backend}, so this has no effect"));
            }
            for key in ["size", "width", "height", "cols", "rows", "name", "debug"] {
                properties.take(key);
            }
            Place::Null
        }
        "stdio" => {
            properties.take("signal");
            Place::Stdio
        }
        "pty" => {
            if properties.take("path").is_some() {
                warn("no link is created, but the name of the pseudoterminal is shown");
            }
            Place::Pty
        }
        "file" => {
            let append =
                properties.take("append").map_or(Ok(false), |value| switch("append", &value))?;
            let path = properties.take("path").ok_or("the file is missing: add path=FILE")?;
            Place::File { path: path.into(), append }
        }
        "pipe" => {
            Place::Pipe(properties.take("path").ok_or("the pipe is missing: add path=PIPE")?.into())
        }
        "socket" => Place::Socket(socket(&mut properties, false)?),
        "udp" => return reason("a serial port cannot use datagrams: give socket"),
        "serial" | "tty" | "parallel" | "parport" => {
            return reason(
                "ports of the host cannot be passed through: give pty, and connect the two with socat",
            );
        }
        _ => return reason("the kinds are null, stdio, file, pty, pipe, socket and vc"),
    };
    properties.finish("id, mux, logfile, logappend, and those of its kind: path, append, server, wait, telnet, host, port, fd and reconnect")?;
    Ok(Character { id: None, place, is_shared, log })
}

/// Takes the properties of a socket. With `telnet`, it speaks that protocol.
fn socket(properties: &mut Properties, telnet: bool) -> Result<SocketPlace, Reason> {
    let mut on = |key: &str| properties.take(key).map_or(Ok(false), |value| switch(key, &value));
    let is_server = on("server")?;
    let telnet = on("telnet")? || on("tn3270")? || telnet;
    // The machine never waits for a client, which loses nothing by that.
    on("wait")?;
    on("nowait")?;
    on("nodelay")?;
    on("delay")?;
    on("ipv4")?;
    on("ipv6")?;
    on("keep-alive")?;
    if on("websocket")? || on("abstract")? || on("mptcp")? {
        return reason("there is no websocket, abstract or mptcp: leave it out");
    }
    on("tight")?;
    if properties.take("tls-creds").is_some() || properties.take("tls-authz").is_some() {
        return reason("there is no TLS: forward the socket with ssh");
    }
    properties.take("to");
    let seconds = properties.take("reconnect").map(|seconds| (seconds, 1000));
    let reconnect = properties.take("reconnect-ms").map(|millis| (millis, 1)).or(seconds);
    let reconnect = match reconnect {
        Some((text, unit)) => {
            let number: u32 = text.parse().map_err(|_| "reconnect is a number of seconds")?;
            (number > 0).then(|| Duration::from_millis(u64::from(number) * unit))
        }
        None => None,
    };
    let mut take =
        |key: &str| properties.take(key).or_else(|| properties.take(&format!("addr.{key}")));
    let address = match (take("path"), take("fd").or_else(|| take("str")), take("port")) {
        (Some(path), None, None) => Address::Unix(path.into()),
        (None, Some(number), None) => {
            let number = number.parse().map_err(|_| "fd must be the number of a descriptor")?;
            Address::Descriptor(number)
        }
        (None, None, Some(port)) => {
            let port = port.parse().map_err(|_| "port must be a number")?;
            Address::Tcp(take("host").unwrap_or_default(), port)
        }
        _ => {
            return reason(
                "the socket's address is missing: add path=PATH, or host=HOST and port=PORT",
            );
        }
    };
    take("type");
    let address = match address {
        Address::Tcp(host, port) if is_server => Address::Tcp(of_this_host(&host)?, port),
        Address::Tcp(host, port) if host.is_empty() => Address::Tcp("127.0.0.1".to_owned(), port),
        address => address,
    };
    Ok(SocketPlace { address, is_server, telnet, reconnect })
}

/// Returns the address at which clients of this host, and no others, can connect: a program that drives a
/// machine has the rights of its user.
fn of_this_host(host: &str) -> Result<String, Reason> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    match host {
        "" | "localhost" | "127.0.0.1" => Ok("127.0.0.1".to_owned()),
        "::1" => Ok("::1".to_owned()),
        _ if host.starts_with("127.") => Ok(host.to_owned()),
        _ => Err(format!(
            "ring3 accepts no clients from other hosts at {host}: leave the host out, and forward the port with ssh -L"
        )),
    }
}

/// Reads a place in the old form: `stdio`, `unix:PATH,server`, `telnet:HOST:PORT,server` and so on. Returns
/// None for `none`.
fn place(value: &str) -> Result<Option<Place>, Reason> {
    let (kind, rest) = value.split_once(':').unwrap_or((value, ""));
    let place = match (kind, rest) {
        ("none", "") => return Ok(None),
        ("null", "") | ("vc", _) => Place::Null,
        ("stdio", "") => Place::Stdio,
        ("pty", "") => Place::Pty,
        ("file", path) if !path.is_empty() => {
            let mut properties = Properties::parse(path, Some("path"));
            let append =
                properties.take("append").map_or(Ok(false), |value| switch("append", &value))?;
            let path = properties.take("path").unwrap_or_default();
            properties.finish("append")?;
            Place::File { path: path.into(), append }
        }
        ("pipe", path) if !path.is_empty() => Place::Pipe(path.into()),
        ("unix", path) if !path.is_empty() => {
            let mut properties = Properties::parse(path, Some("path"));
            let socket = socket(&mut properties, false)?;
            properties.finish("server, wait, reconnect and telnet")?;
            Place::Socket(socket)
        }
        ("tcp" | "telnet", address) if !address.is_empty() => {
            let mut properties = Properties::parse(address, Some("address"));
            let address = properties.take("address").unwrap_or_default();
            let (host, port) = address.rsplit_once(':').ok_or("give HOST:PORT")?;
            properties.add("host", host);
            properties.add("port", port);
            let socket = socket(&mut properties, kind == "telnet")?;
            properties.finish("server, wait, reconnect and telnet")?;
            Place::Socket(socket)
        }
        ("udp", _) => {
            return reason("a serial port cannot use datagrams: give tcp:HOST:PORT");
        }
        ("websocket", _) => return reason("there are no websockets: give tcp:HOST:PORT"),
        ("con" | "msmouse" | "braille", _) => return reason("there is no such device: give null"),
        _ if value.starts_with("/dev/") => {
            return reason(
                "ports of the host cannot be passed through: give pty, and connect the two with socat",
            );
        }
        _ => {
            return reason(
                "give stdio, null, none, file:PATH, pty, pipe:PATH, unix:PATH, tcp:HOST:PORT or telnet:HOST:PORT, \
                 the last three with server=on or without, or chardev:ID",
            );
        }
    };
    Ok(Some(place))
}

/// `-serial`. Returns None for a missing port.
pub(super) fn serial(all: &mut Translation, value: &str) -> Result<Option<SerialTarget>, Reason> {
    if let Some(id) = value.strip_prefix("chardev:") {
        return Ok(Some(SerialTarget::Character(named(all, id))));
    }
    if let Some(value) = value.strip_prefix("mon:") {
        let Some(place) = place(value)? else { return Ok(None) };
        let character = new(all, place, true);
        all.run.qemu.monitors.push(Monitor { character, mode: Mode::Readline });
        all.has_monitor_option = true;
        return Ok(Some(SerialTarget::Character(character)));
    }
    Ok(match place(value)? {
        None => None,
        // `ring3 run` has these, too.
        Some(Place::Stdio) => Some(SerialTarget::Stdio),
        Some(Place::Null | Place::Unknown) => Some(SerialTarget::Null),
        Some(Place::Pty) => Some(SerialTarget::Pty),
        Some(Place::File { path, append: false }) => Some(SerialTarget::File(path)),
        Some(Place::Socket(SocketPlace {
            address: Address::Unix(path),
            is_server: true,
            telnet: false,
            ..
        })) => Some(SerialTarget::Socket(path)),
        Some(place) => Some(SerialTarget::Character(new(all, place, false))),
    })
}

/// `-device isa-serial`.
pub(super) fn serial_device(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let mut target = Some(SerialTarget::Null);
    let mut index = None;
    properties.for_each(|key, value| match key {
        "chardev" => set(&mut target, Some(SerialTarget::Character(named(all, value)))),
        "index" => {
            let number = value.parse::<usize>().ok().filter(|index| *index < 4);
            set(&mut index, Some(number.ok_or("index must be a number from 0 to 3")?))
        }
        // The ports and IRQ lines of a PC's serial ports are fixed.
        "id" | "irq" | "iobase" | "wakeup" => Ok(()),
        _ => unknown(key, "chardev, index and id"),
    })?;
    let index = index.unwrap_or(all.serial.len());
    if index >= all.serial.len() {
        all.serial.resize(index + 1, None);
    }
    all.serial[index] = target;
    Ok(())
}

/// `-device pci-serial`.
pub(super) fn serial_card(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let (mut target, mut id) = (SerialTarget::Null, None);
    properties.for_each(|key, value| match key {
        "chardev" => set(&mut target, SerialTarget::Character(named(all, value))),
        "id" => set(&mut id, Some(value.to_owned())),
        // The slots of the cards are fixed.
        "addr" | "bus" => Ok(()),
        _ => unknown(key, "chardev and id"),
    })?;
    all.run.serial_card.push(SerialCardTarget { target, id });
    Ok(())
}

pub(super) fn channel_device(all: &mut Translation, properties: &Properties) -> Result<(), Reason> {
    let (mut character, mut name, mut id) = (None, None, None);
    properties.for_each(|key, value| match key {
        "chardev" => set(&mut character, Some(named(all, value))),
        "name" => set(&mut name, Some(value.to_owned())),
        "id" => set(&mut id, Some(value.to_owned())),
        // The channels are at one controller, in their order.
        "bus" | "nr" => Ok(()),
        _ => unknown(key, "chardev, name, nr and id"),
    })?;
    let character = character.ok_or("the character device is missing: add chardev=ID")?;
    let channels = &mut all.run.board.channel;
    let name = name.or(id).unwrap_or_else(|| format!("channel{}", channels.len() + 1));
    channels.push(ChannelTarget { name, place: ChannelPlace::Character(character) });
    Ok(())
}

/// `-monitor`.
pub(super) fn monitor(all: &mut Translation, value: &str) -> Result<(), Reason> {
    add_monitor(all, value, Mode::Readline)
}

/// `-qmp`.
pub(super) fn qmp(all: &mut Translation, value: &str) -> Result<(), Reason> {
    add_monitor(all, value, Mode::Control)
}

fn add_monitor(all: &mut Translation, value: &str, mode: Mode) -> Result<(), Reason> {
    all.has_monitor_option |= mode == Mode::Readline;
    let value = value.strip_prefix("mon:").unwrap_or(value);
    let character = match value.strip_prefix("chardev:") {
        Some(id) => named(all, id),
        None => match place(value)? {
            None | Some(Place::Null) => return Ok(()),
            Some(place) => new(all, place, false),
        },
    };
    all.run.qemu.monitors.push(Monitor { character, mode });
    Ok(())
}

/// `-mon`.
pub(super) fn mon(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("chardev"));
    let mode = match properties.take("mode").as_deref() {
        None | Some("readline") => Mode::Readline,
        Some("control") => Mode::Control,
        Some(_) => return reason("mode must be readline or control"),
    };
    let id = properties.take("chardev").ok_or("the character device is missing: add chardev=ID")?;
    for key in ["id", "pretty", "default"] {
        properties.take(key);
    }
    properties.finish("chardev, mode and pretty")?;
    all.has_monitor_option |= mode == Mode::Readline;
    let character = named(all, &id);
    all.run.qemu.monitors.push(Monitor { character, mode });
    Ok(())
}

/// `-debugcon`.
pub(super) fn debugcon(all: &mut Translation, value: &str) -> Result<(), Reason> {
    match place(value)? {
        Some(Place::Stdio) => set(&mut all.debugcon, Some(DebugTarget::Stdio)),
        Some(Place::File { path, .. }) => set(&mut all.debugcon, Some(DebugTarget::File(path))),
        Some(Place::Null) | None => Ok(()),
        Some(_) => reason("give stdio, file:PATH or null"),
    }
}

/// `-device isa-debugcon`.
pub(super) fn debugcon_device(
    all: &mut Translation,
    properties: &mut Properties,
) -> Result<(), Reason> {
    match properties.take("iobase").as_deref() {
        Some("0x402" | "1026") => all.debugcon_at_402 = true,
        Some(_) => return reason("the debug console is at port 402h: give iobase=0x402"),
        None => {}
    }
    let chardev =
        properties.take("chardev").ok_or("the character device is missing: add chardev=ID")?;
    for key in ["id", "readback"] {
        properties.take(key);
    }
    properties.finish_all("iobase and chardev")?;
    let index = named(all, &chardev);
    set(&mut all.debugcon_character, Some(index))
}

/// `-display`.
pub(super) fn display(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let (kind, rest) = value.split_at(value.find([',', '=']).unwrap_or(value.len()));
    let display = match kind {
        "none" => DisplayTarget::None,
        "curses" => DisplayTarget::Terminal,
        "vnc" => vnc(all, rest.trim_start_matches('='))?,
        "gtk" | "sdl" | "default" | "cocoa" | "egl-headless" | "dbus" | "spice-app" => {
            all.warn("there is no window: the screen is shown in the terminal if there is one; -vnc :N shows it elsewhere");
            return Ok(());
        }
        _ => return reason("give curses for the terminal, vnc=:N or none"),
    };
    set(&mut all.display, Some(display))
}

/// `-vnc`.
pub(super) fn vnc(all: &mut Translation, value: &str) -> Result<DisplayTarget, Reason> {
    let mut properties = Properties::parse(value, Some("vnc"));
    let place = properties.take("vnc").unwrap_or_default();
    for key in
        ["password", "password-secret", "sasl", "tls-creds", "tls-authz", "reverse", "websocket"]
    {
        match properties.take(key).as_deref() {
            None | Some("off") => {}
            Some(_) => {
                return Err(format!(
                    "VNC has no {key} here; unix:PATH is a socket that only this user can reach"
                ));
            }
        }
    }
    // The socket decides who may connect, and pictures are not lossy.
    for key in [
        "to",
        "share",
        "lossy",
        "non-adaptive",
        "lock-key-sync",
        "key-delay-ms",
        "audiodev",
        "power-control",
        "display",
        "head",
        "id",
    ] {
        properties.take(key);
    }
    properties.finish("to, share and others without effect")?;
    if place == "none" {
        return Ok(DisplayTarget::None);
    }
    // These are all addresses of the host, which ring3 does not serve.
    if let Some(number) = place.strip_prefix("0.0.0.0:").or_else(|| place.strip_prefix("[::]:")) {
        all.warn(&format!(
            "ring3 accepts no clients from other hosts: the screen is at :{number} of this host"
        ));
        return Ok(DisplayTarget::Vnc(
            format!(":{number}").parse().map_err(|error| format!("{error}"))?,
        ));
    }
    Ok(DisplayTarget::Vnc(place.parse().map_err(|error| format!("{error}"))?))
}

/// Returns whether somebody could resume the machine.
pub(super) fn has_monitor(all: &Translation) -> bool {
    let no_other = all.serial.is_empty() && !all.no_defaults;
    !all.run.qemu.monitors.is_empty() || (all.no_graphic && no_other && !all.has_monitor_option)
}

/// Makes the decisions that depend on several options, and chooses the display. Returns the options that
/// cannot be met, with the reasons.
pub(super) fn finish(all: &mut Translation, has_terminal: bool) -> Vec<(String, Reason)> {
    let mut errors = Vec::new();
    let is_daemon = all.run.qemu.daemonize;
    let no_graphic = all.no_graphic && !is_daemon;
    let wants_monitor = no_graphic && !all.has_monitor_option && !all.no_defaults;
    let monitors = all.run.qemu.monitors.len();
    if all.serial.is_empty() && !all.no_defaults {
        let target = if wants_monitor {
            let character = new(all, Place::Stdio, true);
            all.run.qemu.monitors.push(Monitor { character, mode: Mode::Readline });
            SerialTarget::Character(character)
        } else {
            default_serial(no_graphic)
        };
        all.serial.push(Some(target));
    } else if wants_monitor && stdio_users(all) == 0 {
        let character = new(all, Place::Stdio, false);
        all.run.qemu.monitors.push(Monitor { character, mode: Mode::Readline });
    }
    all.run.qemu.has_implied_monitor = all.run.qemu.monitors.len() > monitors;
    let ports = std::mem::take(&mut all.serial);
    all.run.serial = match ports.iter().rposition(Option::is_some) {
        None => vec![SerialTarget::None],
        Some(last) => {
            let ports = ports.into_iter().take(last + 1);
            ports.map(|target| target.unwrap_or(SerialTarget::Null)).collect()
        }
    };
    if let Some(index) = all.debugcon_character.take() {
        match &all.run.qemu.characters[index].place {
            Place::Stdio => all.run.debugcon = DebugTarget::Stdio,
            Place::File { path, .. } => all.run.debugcon = DebugTarget::File(path.clone()),
            Place::Null => {}
            _ => errors.push((
                "-device isa-debugcon".to_owned(),
                "the target must be stdio, file or null".to_owned(),
            )),
        }
    }
    for character in &all.run.qemu.characters {
        if let (Place::Unknown, Some(id)) = (&character.place, &character.id) {
            errors.push((
                format!("chardev {id}"),
                format!("there is no such character device: give -chardev KIND,id={id}"),
            ));
        }
    }
    for (index, character) in all.run.qemu.characters.iter().enumerate() {
        let ports = all.run.serial_lines().filter(|port| **port == SerialTarget::Character(index));
        let users = ports.count()
            + all.run.qemu.monitors.iter().filter(|monitor| monitor.character == index).count();
        if users > 1 && !character.is_shared && character.place != Place::Null {
            let name = character.id.clone().unwrap_or_default();
            errors.push((
                format!("-chardev {name}"),
                "several options use it: add mux=on".to_owned(),
            ));
        }
    }
    let users = stdio_users(all);
    if users > 1 {
        errors.push((
            "stdio".to_owned(),
            "several options use standard input and output; give them to one only, or to both with -serial mon:stdio".to_owned(),
        ));
    }
    if is_daemon && users > 0 {
        errors.push((
            "-daemonize".to_owned(),
            "a daemon has no standard input and output: give -serial, -monitor and -qmp another place".to_owned(),
        ));
    }
    all.run.display = match all.display.take() {
        Some(DisplayTarget::Terminal) if users > 0 => {
            errors.push((
                "-display curses".to_owned(),
                "the screen needs the terminal: send -serial, -monitor and -qmp elsewhere"
                    .to_owned(),
            ));
            DisplayTarget::Terminal
        }
        Some(display) => display,
        // QEMU would open a window here.
        None if has_terminal
            && users == 0
            && !all.no_graphic
            && !is_daemon
            && all.run.vga == Vga::Std =>
        {
            DisplayTarget::Terminal
        }
        None => DisplayTarget::None,
    };
    errors
}

/// Returns how many users standard input and output have.
fn stdio_users(all: &Translation) -> usize {
    let qemu = &all.run.qemu;
    let ports = || all.serial.iter().flatten().chain(all.run.serial_lines());
    let is_used = |index: usize| {
        ports().any(|port| *port == SerialTarget::Character(index))
            || qemu.monitors.iter().any(|monitor| monitor.character == index)
    };
    let characters = qemu.characters.iter().enumerate();
    ports().filter(|port| **port == SerialTarget::Stdio).count()
        + characters.filter(|(n, character)| character.place == Place::Stdio && is_used(*n)).count()
        + usize::from(all.run.debugcon == DebugTarget::Stdio)
}
