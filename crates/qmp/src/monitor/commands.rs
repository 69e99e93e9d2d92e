//! The commands of the monitor.

use ring3_core::input::MouseMove;
use ring3_gdb::{BadPlace, Place};
use serde_json::{Map, Value, json};

use super::{info, memory, moving, qmp};
use crate::commands::Machine;
use crate::inspect;
use crate::protocol::Failure;
use crate::typist::Step;

/// Starts or ends the server for debuggers.
fn gdbserver(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let place = match arguments {
        [] => "tcp::1234",
        ["none"] => {
            machine.debuggers().stop();
            return Ok("Disabled gdbserver".to_owned());
        }
        [place] => place,
        _ => return Err(usage("gdbserver [unix:PATH|tcp::PORT|none]")),
    };
    let read: Place =
        place.parse().map_err(|error: BadPlace| Failure::generic(error.to_string()))?;
    if read == Place::Stdio {
        return Err(Failure::generic(
            "standard input and output are not free while the machine runs",
        ));
    }
    let served = machine.debuggers().serve(&machine.control, &read);
    served.map_err(|error| Failure::generic(error.to_string()))?;
    Ok(format!("Waiting for gdb connection on device '{place}'"))
}

/// The function of a command. It takes the arguments and returns the text to show.
type Handler = fn(&Machine, &[&str]) -> Result<String, Failure>;

/// A command: its names with a bar between them, its arguments, its description in the help, and its
/// function.
struct Command {
    names: &'static str,
    arguments: &'static str,
    help: &'static str,
    handler: Handler,
}

const fn command(
    names: &'static str,
    arguments: &'static str,
    help: &'static str,
    handler: Handler,
) -> Command {
    Command { names, arguments, help, handler }
}

const COMMANDS: &[Command] = &[
    command("block_resize", "device size", "give a disk another size", block_resize),
    command(
        "block_set_io_throttle",
        "device bps bps_rd bps_wr iops iops_rd iops_wr",
        "limit a drive",
        throttle,
    ),
    command("balloon", "size", "ask the guest to do with so many MiB", |machine, arguments| {
        let [size] = exactly(arguments)?;
        let bytes = number(size)?.saturating_mul(1 << 20);
        quiet(machine, "balloon", json!({"value": bytes}))
    }),
    command("boot_set", "letters", "change the order of boot devices", |_, _| {
        missing("the order is that of -boot")
    }),
    command(
        "change",
        "device filename [format [read-only-mode]]",
        "put another medium into a drive",
        change,
    ),
    command(
        "chardev-add",
        "kind,id=ID[,property=value…]",
        "open a character device for device_add",
        chardev_add,
    ),
    command("chardev-remove", "id", "close it", |machine, arguments| {
        let [id] = exactly(arguments)?;
        quiet(machine, "chardev-remove", json!({"id": id}))
    }),
    command("commit", "device|all", "write an overlay into its image", |_, _| {
        missing("\"ring3 img commit\" does it")
    }),
    command("cont|c", "", "let the machine go on", |machine, _| quiet(machine, "cont", json!({}))),
    command("cpu", "index", "choose the processor", |_, arguments| match arguments {
        ["0"] => Ok(String::new()),
        _ => Err(Failure::generic("there is one processor: 0")),
    }),
    command("delvm", "filename", "delete a saved machine", |machine, arguments| {
        let [file] = exactly(arguments)?;
        quiet(machine, "snapshot-delete", json!({"file": file}))
    }),
    command("device_add", "driver,property=value…", "put a card into a slot", device_add),
    command("device_del", "id", "ask the guest for a card", |machine, arguments| {
        let [id] = exactly(arguments)?;
        quiet(machine, "device_del", json!({"id": id}))
    }),
    command(
        "drive_add",
        "[-n] address file=FILE,id=ID[,format=FORMAT]",
        "open an image for device_add",
        drive_add,
    ),
    command("drive_del", "id", "close it", |machine, arguments| {
        let [id] = exactly(arguments)?;
        quiet(machine, "blockdev-del", json!({"node-name": id}))
    }),
    command(
        "dump-guest-memory",
        "[-p] [-d] file [begin length]",
        "write memory and registers into an ELF core, with -p at linear addresses",
        dump,
    ),
    command("eject", "[-f] device", "take the medium out of a drive", |machine, arguments| {
        let (force, device) = match arguments {
            ["-f", device] => (true, device),
            [device] => (false, device),
            _ => return Err(usage("eject [-f] device")),
        };
        quiet(machine, "eject", json!({"device": device, "force": force}))
    }),
    command(
        "gdbserver",
        "[unix:PATH|tcp::PORT|none]",
        "let debuggers connect, at tcp::1234 if nothing is said",
        gdbserver,
    ),
    command("gva2gpa", "address", "translate an address of the code that runs", memory::translate),
    command("help|?", "[command]", "this list", |_, arguments| Ok(help(arguments))),
    command("info", "subject", "tell of the machine", info::execute),
    command("inspect", "[path]", "show the registers of the machine", |machine, arguments| {
        match arguments {
            [] => inspect::shown(machine, ""),
            [path] => inspect::shown(machine, path),
            _ => Err(usage("inspect [path]")),
        }
    }),
    command("loadvm", "filename", "go on as a saved machine", |machine, arguments| {
        let [file] = exactly(arguments)?;
        quiet(machine, "snapshot-load", json!({"file": file}))
    }),
    command("log", "items", "choose log messages", |_, _| missing("RING3_LOG says what is logged")),
    command(
        "memsave",
        "address size file",
        "write memory of the code that runs into a file",
        |machine, arguments| memory::save(machine, arguments, true),
    ),
    command(
        "migrate",
        "[-d] uri",
        "move the machine to where one is awaited; \"info migrate\" tells how far it is",
        moving::migrate,
    ),
    command("migrate_cancel", "", "leave the machine here", |machine, _| {
        quiet(machine, "migrate_cancel", json!({}))
    }),
    command(
        "migrate_set_capability",
        "name on|off",
        "choose how machines move",
        moving::set_capability,
    ),
    command("migrate_set_parameter", "name value", "limit how they move", moving::set_parameter),
    command(
        "mouse_button",
        "state",
        "press buttons of the mouse: 1 left, 2 right, 4 middle",
        mouse_button,
    ),
    command("mouse_move", "dx dy [dz]", "move the mouse", mouse_move),
    command("mouse_set", "index", "choose the mouse", |_, _| Ok(String::new())),
    command(
        "netdev_add",
        "type,id=ID[,property=value…]",
        "describe a network for device_add",
        |machine, arguments| {
            let [text] = exactly(arguments)?;
            quiet(machine, "netdev_add", properties(text, "type").into())
        },
    ),
    command("netdev_del", "id", "forget it", |machine, arguments| {
        let [id] = exactly(arguments)?;
        quiet(machine, "netdev_del", json!({"id": id}))
    }),
    command("nmi", "", "interrupt the guest", |machine, _| quiet(machine, "inject-nmi", json!({}))),
    command(
        "pmemsave",
        "address size file",
        "write physical memory into a file",
        |machine, arguments| memory::save(machine, arguments, false),
    ),
    command("print|p", "/format expression", "compute", memory::print),
    command("quit|q", "", "end the machine", |machine, _| quiet(machine, "quit", json!({}))),
    command(
        "record_save",
        "[filename]",
        "write the last seconds of the run as a recording",
        |machine, arguments| match arguments {
            [] => quiet(machine, "record-save", json!({})),
            [file] => quiet(machine, "record-save", json!({"file": file})),
            _ => Err(usage("record_save [filename]")),
        },
    ),
    command("savevm", "filename", "save the machine in a file", |machine, arguments| {
        let [file] = exactly(arguments)?;
        quiet(machine, "snapshot-save", json!({"file": file}))
    }),
    command(
        "screendump",
        "filename [-f format]",
        "write what the screen shows into a file",
        screendump,
    ),
    command("sendkey", "keys [hold time in ms]", "press keys: ctrl-alt-delete", sendkey),
    command(
        "set_link",
        "name on|off",
        "plug the cable of a network card in or out",
        |machine, arguments| {
            let [name, state] = exactly(arguments)?;
            let up = match state {
                "on" => true,
                "off" => false,
                _ => return Err(usage("set_link name on|off")),
            };
            quiet(machine, "set_link", json!({"name": name, "up": up}))
        },
    ),
    command("stop|s", "", "let the machine stand still", |machine, _| {
        quiet(machine, "stop", json!({}))
    }),
    command("system_powerdown", "", "press the power button", |machine, _| {
        quiet(machine, "system_powerdown", json!({}))
    }),
    command("system_reset", "", "press the reset button", |machine, _| {
        quiet(machine, "system_reset", json!({}))
    }),
    command("system_wakeup", "", "wake a machine that sleeps", |_, _| {
        missing("the machine has no sleep")
    }),
    command("x", "/format address", "show memory of the code that runs", |machine, arguments| {
        memory::examine(machine, arguments, true)
    }),
    command("xp", "/format address", "show physical memory", |machine, arguments| {
        memory::examine(machine, arguments, false)
    }),
];

/// Executes command `name`.
pub(super) fn execute(
    machine: &Machine,
    name: &str,
    arguments: &[&str],
) -> Result<String, Failure> {
    // A format may be attached to the command: x/16i.
    let (name, format) = match name.split_once('/') {
        Some((name, format)) => (name, Some(format!("/{format}"))),
        None => (name, None),
    };
    let with_format: Vec<_> =
        format.as_deref().into_iter().chain(arguments.iter().copied()).collect();
    let found = COMMANDS.iter().find(|command| command.names.split('|').any(|known| known == name));
    match found {
        Some(command) => (command.handler)(machine, &with_format),
        None => Ok(format!("unknown command: '{name}'")),
    }
}

fn help(arguments: &[&str]) -> String {
    let lines = COMMANDS
        .iter()
        .filter(|command| {
            arguments
                .first()
                .is_none_or(|name| command.names.split('|').any(|known| known == *name))
        })
        .map(|command| {
            let line = format!("{} {}", command.names, command.arguments);
            format!("{} -- {}\n", line.trim_end(), command.help)
        });
    let text: String = lines.collect();
    if arguments.first() == Some(&"info") { info::help() } else { text }
}

/// Executes a command of QMP that returns nothing.
pub(super) fn quiet(machine: &Machine, name: &str, arguments: Value) -> Result<String, Failure> {
    qmp(machine, name, arguments).map(|_| String::new())
}

/// Executes `dump-guest-memory`.
fn dump(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let (options, rest): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|word| word.starts_with('-'));
    let is_known = options.iter().all(|option| ["-p", "-d"].contains(*option));
    let (file, range) = match rest[..] {
        [file] if is_known => (file, None),
        [file, begin, length] if is_known => {
            (file, memory::number(begin).zip(memory::number(length)))
        }
        _ => return Err(usage("dump-guest-memory [-p] [-d] file [begin length]")),
    };
    if range.is_none() && rest.len() > 1 {
        return Err(Failure::generic("begin and length are numbers"));
    }
    let mut wanted = json!({
        "protocol": format!("file:{file}"),
        "paging": options.contains(&&"-p"),
        "detach": options.contains(&&"-d"),
    });
    if let Some((begin, length)) = range {
        wanted["begin"] = json!(begin);
        wanted["length"] = json!(length);
    }
    quiet(machine, "dump-guest-memory", wanted)
}

fn missing(why: &str) -> Result<String, Failure> {
    Err(Failure::generic(why))
}

pub(super) fn usage(text: &str) -> Failure {
    Failure::generic(format!("give {text}"))
}

/// Checks that there are exactly `N` arguments.
pub(super) fn exactly<'a, const N: usize>(arguments: &[&'a str]) -> Result<[&'a str; N], Failure> {
    arguments
        .try_into()
        .map_err(|_| Failure::generic(format!("{N} arguments are wanted; \"help\" tells which")))
}

pub(super) fn number(text: &str) -> Result<i64, Failure> {
    memory::number(text).ok_or_else(|| Failure::generic(format!("'{text}' is no number")))
}

/// Reads a size; without a unit it is in MiB. Returns the bytes.
pub(super) fn size(text: &str) -> Result<i64, Failure> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((end, 'k' | 'K')) => (&text[..end], 1 << 10),
        Some((end, 'g' | 'G')) => (&text[..end], 1 << 30),
        Some((end, 't' | 'T')) => (&text[..end], 1 << 40),
        Some((end, 'b' | 'B')) => (&text[..end], 1),
        Some((end, 'm' | 'M')) => (&text[..end], 1 << 20),
        _ => (text, 1_i64 << 20),
    };
    let bytes = number(digits)?.checked_mul(unit).filter(|bytes| *bytes >= 0);
    bytes.ok_or_else(|| Failure::generic(format!("'{text}' is no size")))
}

fn block_resize(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [device, size_text] = exactly(arguments)?;
    quiet(machine, "block_resize", json!({"device": device, "size": size(size_text)?}))
}

fn throttle(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [device, limits @ ..] = exactly::<7>(arguments)?;
    let mut wanted = Map::new();
    wanted.insert("device".to_owned(), json!(device));
    for (name, limit) in
        ["bps", "bps_rd", "bps_wr", "iops", "iops_rd", "iops_wr"].iter().zip(limits)
    {
        wanted.insert((*name).to_owned(), json!(number(limit)?));
    }
    quiet(machine, "block_set_io_throttle", wanted.into())
}

fn change(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let (force, arguments) = match arguments {
        ["-f", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let [device, filename, rest @ ..] = arguments else {
        return Err(usage("change device filename [format [read-only-mode]]"));
    };
    let mut wanted = json!({"device": device, "filename": filename, "force": force});
    if let Some(format) = rest.first() {
        wanted["format"] = json!(format);
    }
    if let Some(mode) = rest.get(1) {
        wanted["read-only-mode"] = json!(mode);
    }
    quiet(machine, "blockdev-change-medium", wanted)
}

/// Parses a list of properties; in the first one the name may be left out.
fn properties(text: &str, first: &str) -> Map<String, Value> {
    let parts = text.split(',').filter(|part| !part.is_empty()).enumerate();
    let property = |(index, part): (usize, &str)| match part.split_once('=') {
        Some((key, value)) => (key.to_owned(), json!(value)),
        None if index == 0 => (first.to_owned(), json!(part)),
        None => (part.to_owned(), json!("on")),
    };
    parts.map(property).collect()
}

fn chardev_add(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [text] = exactly(arguments)?;
    let mut data = properties(text, "type");
    let (kind, id) = (data.remove("type"), data.remove("id"));
    let backend = json!({"type": kind, "data": data});
    let answer = qmp(machine, "chardev-add", json!({"id": id, "backend": backend}))?;
    let name = answer.get("pty").and_then(Value::as_str);
    Ok(name.map(|name| format!("char device redirected to {name}\n")).unwrap_or_default())
}

fn device_add(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [text] = exactly(arguments)?;
    quiet(machine, "device_add", properties(text, "driver").into())
}

fn drive_add(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    // The first argument, the address of a PCI slot or a dummy, is not used.
    let ([_, text] | ["-n", _, text]) = arguments else {
        return Err(usage("drive_add 0 file=FILE,id=ID"));
    };
    let mut given = properties(text, "file");
    given.remove("if");
    let file = given
        .remove("file")
        .ok_or_else(|| Failure::generic("the file is missing: add file=FILE"))?;
    let id = given
        .remove("id")
        .ok_or_else(|| Failure::generic("a device finds it by its id: add id=ID"))?;
    let format = given.remove("format").unwrap_or_else(|| json!("raw"));
    let read_only = given.remove("readonly").or_else(|| given.remove("read-only"));
    let read_only = read_only.is_some_and(|word| word == "on");
    if let Some(key) = given.keys().next() {
        return Err(Failure::generic(format!(
            "'{key}' is not known; there are file, id, format and readonly"
        )));
    }
    let file = json!({"driver": "file", "filename": file});
    let node = json!({"driver": format, "node-name": id, "read-only": read_only, "file": file});
    qmp(machine, "blockdev-add", node)?;
    Ok("OK".to_owned())
}

fn mouse_move(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let numbers = arguments.iter().map(|text| number(text)).collect::<Result<Vec<_>, _>>()?;
    let (dx, dy, dz) = match numbers.as_slice() {
        [dx, dy] => (*dx, *dy, 0),
        [dx, dy, dz] => (*dx, *dy, *dz),
        _ => return Err(usage("mouse_move dx dy [dz]")),
    };
    let mut events = vec![
        json!({"type": "rel", "data": {"axis": "x", "value": dx}}),
        json!({"type": "rel", "data": {"axis": "y", "value": dy}}),
    ];
    if dz != 0 {
        let button = if dz > 0 { "wheel-up" } else { "wheel-down" };
        events.extend(
            [true, false]
                .map(|down| json!({"type": "btn", "data": {"button": button, "down": down}})),
        );
    }
    quiet(machine, "input-send-event", json!({"events": events}))
}

fn mouse_button(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [state] = exactly(arguments)?;
    let state = number(state)?;
    let moved = MouseMove {
        left_button: state & 1 != 0,
        right_button: state & 2 != 0,
        middle_button: state & 4 != 0,
        ..MouseMove::default()
    };
    machine.typist().queue(vec![Step::Mouse(moved)])?;
    Ok(String::new())
}

fn screendump(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let wanted = match arguments {
        [filename] => json!({"filename": filename}),
        [filename, "-f", format] | ["-f", format, filename] => {
            json!({"filename": filename, "format": format})
        }
        _ => return Err(usage("screendump filename [-f png]")),
    };
    quiet(machine, "screendump", wanted)
}

fn sendkey(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let (keys, hold) = match arguments {
        [keys] => (keys, None),
        [keys, hold] => (keys, Some(number(hold)?)),
        _ => return Err(usage("sendkey keys [hold time in ms]")),
    };
    let key = |name: &str| match memory::number(name).filter(|_| name.starts_with("0x")) {
        Some(number) => json!({"type": "number", "data": number}),
        None if name == "<" => json!({"type": "qcode", "data": "less"}),
        None => json!({"type": "qcode", "data": name}),
    };
    let keys: Vec<_> = keys.split('-').map(key).collect();
    let mut wanted = json!({"keys": keys});
    if let Some(hold) = hold {
        wanted["hold-time"] = json!(hold);
    }
    quiet(machine, "send-key", wanted)
}
