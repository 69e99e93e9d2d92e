//! Answers about `ring3 qemu`, in the forms in which people and programs know them from QEMU.

use std::fmt::Write;

use super::devices::{self, DEVICES};
use super::options::{HIDDEN, Kind, OPTIONS};
use super::{Program, models};

/// The version of QEMU whose manual the options follow.
pub(crate) const VERSION: &str = "9.0.0";

/// Returns the answer if the command line asks a question, or None if it wants a machine.
pub(super) fn asked_for(arguments: &[&str], program: Program) -> Option<String> {
    let mut words = arguments.iter().peekable();
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            continue;
        };
        match name {
            "h" | "help" => return Some(options()),
            "version" => return Some(version()),
            _ => {}
        }
        let known = OPTIONS.iter().find(|option| option.name == name);
        if known.is_none_or(|option| option.value.is_none()) {
            continue;
        }
        let value = words.next()?;
        let asks =
            *value == "help" || *value == "?" || value.ends_with(",help") || value.ends_with(",?");
        match name {
            _ if !asks => {}
            "machine" | "M" => return Some(machines()),
            "cpu" => return Some(models::help(program)),
            "device" => return Some(device(value)),
            "accel" => {
                return Some("Accelerators supported in QEMU binary:\ntcg\ntranslator\ninterpreter\n".to_owned());
            }
            "netdev" | "nic" | "net" => return Some(networks(program == Program::For64Bits)),
            "chardev" => {
                let kinds = ["null", "stdio", "file", "pty", "pipe", "socket", "vc"];
                return Some(format!("Available chardev backend types: \n  {}\n", kinds.join("\n  ")));
            }
            "display" => return Some("Available display backend types:\nnone\ncurses\nvnc\n".to_owned()),
            "vga" => return Some("none                 no graphic card\nstd                  standard VGA (default)\n".to_owned()),
            "object" => {
                let kinds = ["memory-backend-file", "memory-backend-memfd", "memory-backend-ram"];
                return Some(format!("List of user creatable objects:\n  {}\n", kinds.join("\n  ")));
            }
            "soundhw" | "audiodev" | "audio" => return Some("There is no sound card.\n".to_owned()),
            "d" | "trace" => return Some("RING3_LOG selects what is logged, such as RING3_LOG=info.\n".to_owned()),
            _ => {}
        }
    }
    None
}

/// Returns the text of `-version`. It begins with the version of QEMU whose command line this is, where
/// programs look for it.
pub(super) fn version() -> String {
    format!(
        "QEMU emulator version {VERSION} (ring3 {})\n\
         This is ring3, which takes the command line of that version of QEMU; it is not QEMU.\n",
        env!("CARGO_PKG_VERSION")
    )
}

fn machines() -> String {
    let pc = "Standard PC (i440FX + PIIX, 1996)";
    format!(
        "Supported machines are:\n\
         pc                   {pc} (alias of pc-i440fx-9.0)\n\
         pc-i440fx-9.0        {pc} (default)\n\
         none                 the same machine as pc\n"
    )
}

fn networks(_: bool) -> String {
    "Available netdev backend types:\nsocket\nstream\ndgram\ntap\nuser\nswitch\n".to_owned()
}

/// Returns the list of all devices, or the properties of one, as `value` asks.
fn device(value: &str) -> String {
    if let Some((driver, _)) = value.split_once(',') {
        let Some(device) = devices::find(driver) else {
            return format!("Device '{driver}' not found\n");
        };
        return match device.kind {
            devices::Kind::Taken(_) => {
                let properties = ring3_qmp::device_properties(driver);
                let lines = properties.iter().map(|(name, kind)| format!("  {name}=<{kind}>\n"));
                format!("{driver} options:\n{}", lines.collect::<String>())
            }
            devices::Kind::Warned(why) | devices::Kind::Missing(why) => {
                format!("{driver}: {why}\n")
            }
        };
    }
    let mut text = String::new();
    for device in DEVICES {
        if let devices::Kind::Taken(_) = device.kind {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "name \"{}\", bus {}, desc \"{}\"",
                device.name, device.bus, device.about
            );
        }
    }
    text
}

/// Returns the text of `-help`.
pub(super) fn options() -> String {
    let mut text = format!(
        "{}usage: ring3 qemu [qemu-system-i386] [options] [disk_image]\n\n\
         'disk_image' is a raw or other hard disk image for IDE hard disk 0\n\n\
         Accepted, with the meaning that QEMU's manual gives them:\n",
        version()
    );
    let mut list = |title: &str, wanted: fn(&Kind) -> Option<&'static str>| {
        text += title;
        for option in OPTIONS.iter().filter(|option| !HIDDEN.contains(&option.name)) {
            if let Some(why) = wanted(&option.kind) {
                let line = format!("-{} {}", option.name, option.value.unwrap_or_default());
                let line = format!("{:<15} {why}", line.trim_end());
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
    };
    list("", |kind| matches!(kind, Kind::Taken(_)).then_some(""));
    list("\nAccepted without effect:\n", |kind| matches!(kind, Kind::Ignored).then_some(""));
    list("\nAccepted with a warning:\n", |kind| match kind {
        Kind::Warned(why) => Some(why),
        _ => None,
    });
    list("\nRefused:\n", |kind| match kind {
        Kind::Missing(why) => Some(why),
        _ => None,
    });
    text + "\nTo list values, give -machine help, -cpu help, -device help, -accel help or -netdev help.\n"
}
