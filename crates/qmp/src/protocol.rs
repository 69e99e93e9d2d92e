//! The messages that clients send and receive ("QEMU Machine Protocol Specification", 2).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ring3_core::device::{DeviceId, GuestFailure};
use ring3_core::disk::DiskError;
use ring3_vm::control::{Ended, Event};
use ring3_vm::drives::{Action, DriveFailure};
use ring3_vm::{Ending, OnPanic};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::{extra_memory, media, memory};

/// The arguments of a command.
pub(crate) type Arguments = Map<String, Value>;

/// The classes of errors between which clients distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Any error without a class of its own.
    GenericError,
    /// The command does not exist, or is not possible now.
    CommandNotFound,
    /// The device does not exist.
    DeviceNotFound,
    /// The device that would be needed is not there.
    DeviceNotActive,
}

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) class: Class,
    /// An explanation for people.
    pub(crate) description: String,
}

impl Failure {
    pub(crate) fn generic(description: impl Into<String>) -> Failure {
        Failure { class: Class::GenericError, description: description.into() }
    }

    pub(crate) fn command_not_found(description: impl Into<String>) -> Failure {
        Failure { class: Class::CommandNotFound, description: description.into() }
    }

    pub(crate) fn device_not_found(description: impl Into<String>) -> Failure {
        Failure { class: Class::DeviceNotFound, description: description.into() }
    }
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Failure {
        Failure::generic(ended.to_string())
    }
}

/// A command of a client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) arguments: Arguments,
    /// Whether it may overtake other commands, if the client has enabled that.
    pub(crate) is_out_of_band: bool,
}

/// Parses a message. Returns the client's `id` of it, and the command or the error in it.
pub(crate) fn parse(message: &[u8]) -> (Option<Value>, Result<Command, Failure>) {
    let mut object = match serde_json::from_slice(message) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return (None, Err(Failure::generic("QMP input must be a JSON object"))),
        Err(error) => return (None, Err(Failure::generic(format!("JSON parse error, {error}")))),
    };
    let id = object.remove("id");
    (id, command(object))
}

fn command(mut object: Map<String, Value>) -> Result<Command, Failure> {
    // An out-of-band command may overtake others. No command takes long, so it need not.
    let (in_band, out_of_band) = (object.remove("execute"), object.remove("exec-oob"));
    if in_band.is_some() && out_of_band.is_some() {
        let reason = "QMP input members 'execute' and 'exec-oob' cannot be used together";
        return Err(Failure::generic(reason));
    }
    let is_out_of_band = out_of_band.is_some();
    let name = match in_band.or(out_of_band) {
        Some(Value::String(name)) => name,
        Some(_) => return Err(Failure::generic("QMP input member 'execute' must be a string")),
        None => return Err(Failure::generic("QMP input lacks member 'execute'")),
    };
    let arguments = match object.remove("arguments") {
        Some(Value::Object(arguments)) => arguments,
        Some(_) => return Err(Failure::generic("QMP input member 'arguments' must be an object")),
        None => Arguments::new(),
    };
    match object.keys().next() {
        Some(key) => Err(Failure::generic(format!("QMP input member '{key}' is unexpected"))),
        None => Ok(Command { name, arguments, is_out_of_band }),
    }
}

/// Converts the arguments to the type that a command expects.
pub(crate) fn read<T: DeserializeOwned>(arguments: Arguments) -> Result<T, Failure> {
    serde_json::from_value(Value::Object(arguments))
        .map_err(|error| Failure::generic(format!("Invalid arguments: {error}")))
}

/// Returns the first message to a client.
pub(crate) fn greeting() -> Value {
    json!({"QMP": {"version": version(), "capabilities": ["oob"]}})
}

/// Returns the version. Tools infer from its numbers which commands and arguments of QEMU may exist, so they
/// are the version of QEMU whose manual the commands here follow.
pub(crate) fn version() -> Value {
    let package = concat!("ring3 ", env!("CARGO_PKG_VERSION"));
    json!({"qemu": {"major": 9, "minor": 0, "micro": 0}, "package": package})
}

/// Makes the answer to a command.
pub(crate) fn answer(id: Option<Value>, result: Result<Value, Failure>) -> Value {
    let mut answer = match result {
        Ok(value) => json!({"return": value}),
        Err(Failure { class, description }) => {
            json!({"error": {"class": format!("{class:?}"), "desc": description}})
        }
    };
    if let Some(id) = id {
        answer["id"] = id;
    }
    answer
}

/// The events that are sent to clients.
pub(crate) const EVENTS: [&str; 15] = [
    "BALLOON_CHANGE",
    "BLOCK_IO_ERROR",
    "DEVICE_DELETED",
    "DUMP_COMPLETED",
    "GUEST_CRASHLOADED",
    "GUEST_PANICKED",
    "MEMORY_DEVICE_SIZE_CHANGE",
    "MIGRATION",
    "MIGRATION_PASS",
    "POWERDOWN",
    "RESET",
    "RESUME",
    "SHUTDOWN",
    "STOP",
    "X_RING3_MEMORY_SHORT",
];

/// The events that a client of this server has asked for; other events have other causes.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Whether a client has asked for the next reset that does not come from the guest.
    pub(crate) reset: AtomicBool,
    /// Whether a client has asked for the end of the run.
    pub(crate) quit: AtomicBool,
    /// Whether a signal, and no client, has asked for the end of the run.
    pub(crate) signal: AtomicBool,
}

impl Asked {
    /// Returns why the machine was reset, if the guest did not do it.
    fn why_reset(&self) -> &'static str {
        let asked = self.reset.swap(false, Ordering::Relaxed);
        if asked { "host-qmp-system-reset" } else { "host-ui" }
    }
}

/// Makes the message about `event`, which happens now.
pub(crate) fn event(event: &Event, asked: &Asked) -> Value {
    let ended = |guest, reason| Some(json!({"guest": guest, "reason": reason}));
    let (name, data) = match event {
        Event::DriveFailed(failure) => ("BLOCK_IO_ERROR", Some(block_error(failure))),
        Event::Paused => ("STOP", None),
        Event::Resumed => ("RESUME", None),
        Event::PowerButton => ("POWERDOWN", None),
        Event::GuestFailed(failure, action) => {
            let name = match failure {
                GuestFailure::Panic => "GUEST_PANICKED",
                GuestFailure::CrashLoaded => "GUEST_CRASHLOADED",
            };
            let action = match action {
                OnPanic::Continue => "run",
                OnPanic::Pause => "pause",
                OnPanic::End => "poweroff",
            };
            (name, Some(json!({"action": action})))
        }
        Event::ExtraMemory { id, bytes } => {
            ("MEMORY_DEVICE_SIZE_CHANGE", Some(extra_memory::size_change(id.as_deref(), *bytes)))
        }
        Event::Balloon { guest_bytes } => ("BALLOON_CHANGE", Some(json!({"actual": guest_bytes}))),
        Event::MemoryShort(shortage) => ("X_RING3_MEMORY_SHORT", Some(memory::shortage(shortage))),
        Event::Arrived => ("MIGRATION", Some(json!({"status": "completed"}))),
        Event::CardGone { device, id } => {
            ("DEVICE_DELETED", Some(card_gone(*device, id.as_deref())))
        }
        Event::Reset { by_guest } => {
            let reason = if *by_guest { "guest-reset" } else { asked.why_reset() };
            ("RESET", ended(*by_guest, reason))
        }
        Event::Ended(Ending::Quit) => {
            let reason = match (&asked.quit, &asked.signal) {
                (quit, _) if quit.load(Ordering::Relaxed) => "host-qmp-quit",
                (_, signal) if signal.load(Ordering::Relaxed) => "host-signal",
                _ => "host-ui",
            };
            ("SHUTDOWN", ended(false, reason))
        }
        Event::Off | Event::Ended(Ending::PowerOff | Ending::Exit(_)) => {
            ("SHUTDOWN", ended(true, "guest-shutdown"))
        }
        // A reset that ends the run, by the guest or from outside.
        Event::Ended(Ending::Reset) if asked.reset.load(Ordering::Relaxed) => {
            ("SHUTDOWN", ended(false, "host-qmp-system-reset"))
        }
        Event::Ended(Ending::Reset) => ("SHUTDOWN", ended(true, "guest-reset")),
        Event::Ended(
            Ending::Panicked | Ending::Stopped(_) | Ending::Stuck(_) | Ending::For64Bits,
        ) => ("SHUTDOWN", ended(true, "guest-panic")),
        Event::Ended(Ending::NothingToBoot) => ("SHUTDOWN", ended(true, "guest-shutdown")),
        Event::Failed(_) => ("SHUTDOWN", ended(false, "host-error")),
    };
    news(name, data)
}

/// Makes the message about the event `name`, which happens now.
pub(crate) fn news(name: &str, data: Option<Value>) -> Value {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut message = json!({
        "event": name,
        "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
    });
    if let Some(data) = data {
        message["data"] = data;
    }
    message
}

/// Makes the data of DEVICE_DELETED. A device without a name has a path all the same.
fn card_gone(device: DeviceId, id: Option<&str>) -> Value {
    match id {
        Some(id) => json!({"device": id, "path": format!("/machine/peripheral/{id}")}),
        None => json!({"path": format!("/machine/peripheral-anon/{device}")}),
    }
}

/// Makes the data of BLOCK_IO_ERROR.
fn block_error(failure: &DriveFailure) -> Value {
    let name = media::place(failure.drive);
    let is_full = failure.error == DiskError::NoSpace;
    json!({
        "device": name,
        "qom-path": name,
        "operation": if failure.is_read { "read" } else { "write" },
        "action": match failure.action {
            Action::Report => "report",
            Action::Ignore => "ignore",
            Action::Stop => "stop",
        },
        "nospace": is_full,
        "reason": if is_full { "No space left on device" } else { "Input/output error" },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read() {
        let (id, command) = parse(br#"{"execute": "a", "arguments": {"b": 1}, "id": {"c": []}}"#);
        assert_eq!(id, Some(json!({"c": []})));
        let command = command.unwrap();
        assert_eq!(command.name, "a");
        assert_eq!(Value::Object(command.arguments), json!({"b": 1}));
        let (id, command) = parse(br#"{"execute": "a"}"#);
        assert_eq!((id, command.unwrap().arguments.len()), (None, 0));
    }

    #[test]
    fn an_invalid_command_is_answered_with_its_id() {
        for (message, id, part) in [
            ("{", None, "JSON parse error"),
            ("[1]", None, "must be a JSON object"),
            (r#"{"id": 1}"#, Some(1), "lacks member 'execute'"),
            (r#"{"execute": 1, "id": 2}"#, Some(2), "'execute' must be a string"),
            (r#"{"execute": "a", "arguments": []}"#, None, "'arguments' must be an object"),
            (r#"{"execute": "a", "x": 0, "id": 3}"#, Some(3), "member 'x' is unexpected"),
        ] {
            let (found, command) = parse(message.as_bytes());
            assert_eq!(found, id.map(Value::from), "{message}");
            let failure = command.unwrap_err();
            assert!(failure.description.contains(part), "{failure:?}");
            assert_eq!(failure.class, Class::GenericError);
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let message = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(parse(message.as_bytes()).1.is_err());
    }

    #[test]
    fn answers_carry_the_id() {
        assert_eq!(answer(Some(json!(7)), Ok(json!({}))), json!({"return": {}, "id": 7}));
        let failure = Failure::command_not_found("no");
        let expected = json!({"error": {"class": "CommandNotFound", "desc": "no"}});
        assert_eq!(answer(None, Err(failure)), expected);
    }

    #[test]
    fn events_state_their_cause() {
        let tell = |what: Event, asked: &Asked| {
            let message = event(&what, asked);
            assert!(message["timestamp"]["seconds"].is_u64());
            assert!(message["timestamp"]["microseconds"].as_u64().unwrap() < 1_000_000);
            (message["event"].clone(), message["data"].clone())
        };
        let asked = Asked { reset: true.into(), quit: true.into(), ..Asked::default() };
        let signalled = Asked { signal: true.into(), ..Asked::default() };
        let nobody = Asked::default();
        assert_eq!(tell(Event::Paused, &nobody), (json!("STOP"), Value::Null));
        for (what, asked, name, guest, reason) in [
            (Event::Reset { by_guest: true }, &asked, "RESET", true, "guest-reset"),
            (Event::Reset { by_guest: false }, &asked, "RESET", false, "host-qmp-system-reset"),
            (Event::Reset { by_guest: false }, &asked, "RESET", false, "host-ui"),
            (Event::Ended(Ending::Reset), &nobody, "SHUTDOWN", true, "guest-reset"),
            (Event::Ended(Ending::Quit), &asked, "SHUTDOWN", false, "host-qmp-quit"),
            (Event::Ended(Ending::Quit), &nobody, "SHUTDOWN", false, "host-ui"),
            (Event::Ended(Ending::Quit), &signalled, "SHUTDOWN", false, "host-signal"),
            (Event::Off, &nobody, "SHUTDOWN", true, "guest-shutdown"),
            (Event::Ended(Ending::PowerOff), &asked, "SHUTDOWN", true, "guest-shutdown"),
            (Event::Failed("full".into()), &asked, "SHUTDOWN", false, "host-error"),
        ] {
            let data = json!({"guest": guest, "reason": reason});
            assert_eq!(tell(what, asked), (json!(name), data));
        }
    }
}
