//! The commands for character devices that come while the machine runs, and the serial cards that are added to them (QMP
//! Reference Manual, "Character devices").

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_vm::cards::{Kind, NewSerial};
use ring3_vm::serial_lines::SerialLine;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::cards::{self, Number};
use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// QEMU's name of the card.
pub(crate) const SERIAL_CARD: &str = "pci-serial";

/// Makes the character devices of clients, as the program makes those of its command line.
pub trait Characters: Debug + Send + Sync {
    /// Opens the character device with these properties: a JSON object with those of QEMU's `-chardev`, of which `backend`
    /// is the kind, but for its id.
    ///
    /// # Errors
    /// Returns the reason, for people, if there can be no such device, or the host cannot open it.
    fn open(&self, properties: &str) -> Result<Arc<dyn Character>, String>;
}

/// A character device. When it is dropped, it is closed.
pub trait Character: Debug + Send + Sync {
    /// Returns where it is, in QEMU's notation.
    fn place(&self) -> &str;

    /// Returns whether a card uses it.
    fn is_used(&self) -> bool;

    /// Connects it to the card `device` until the line is dropped. Returns None if another card uses it.
    fn connect(&self, device: DeviceId) -> Option<Box<dyn SerialLine>>;
}

/// The character devices of clients, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Chardevs(BTreeMap<String, Arc<dyn Character>>);

impl Chardevs {
    /// Returns the ids and places of all.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(id, device)| (id.as_str(), device.place()))
    }
}

/// Upper bound of the character devices of clients.
const MOST: usize = 64;

/// The kind of a character device, and its properties.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Backend {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Map<String, Value>,
}

impl Backend {
    /// Returns the properties in the form of a command line, where nothing is nested but the address, and a file that is
    /// written is its `path`. A socket listens unless it is said otherwise.
    fn flat(self) -> Value {
        let Backend { kind, mut data } = self;
        if let Some(path) = data.remove("out") {
            data.insert("path".to_owned(), path);
        }
        if let Some(Value::Object(mut address)) = data.remove("addr") {
            if let Some(Value::Object(inner)) = address.remove("data") {
                address.extend(inner);
            }
            address.remove("type");
            data.extend(address);
            data.entry("server").or_insert(Value::Bool(true));
        }
        data.insert("backend".to_owned(), kind.into());
        Value::Object(data)
    }
}

/// Opens a character device.
pub(crate) fn add(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ChardevAdd {
        id: String,
        backend: Backend,
    }
    let ChardevAdd { id, backend } = read(arguments)?;
    let maker = machine
        .characters()
        .ok_or_else(|| Failure::generic("this machine takes no character devices while it runs"))?;
    let mut chardevs = machine.chardevs();
    let mut known = machine.facts().characters.iter();
    if chardevs.0.contains_key(&id) || known.any(|known| known.label == id) {
        return Err(Failure::generic(format!("Chardev with id '{id}' already exists")));
    }
    if chardevs.0.len() >= MOST {
        let reason =
            format!("a machine has at most {MOST} such devices: remove some by chardev-remove");
        return Err(Failure::generic(reason));
    }
    let device = maker.open(&backend.flat().to_string()).map_err(Failure::generic)?;
    let terminal = device.place().strip_prefix("pty:").map(str::to_owned);
    chardevs.0.insert(id, device);
    match terminal {
        Some(name) => Ok(json!({"pty": name})),
        None => done(),
    }
}

/// Closes a character device that no card uses.
pub(crate) fn remove(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ChardevRemove {
        id: String,
    }
    let ChardevRemove { id } = read(arguments)?;
    let mut chardevs = machine.chardevs();
    match chardevs.0.get(&id) {
        None => Err(Failure::generic(format!("Chardev '{id}' not found"))),
        Some(device) if device.is_used() => Err(Failure::generic(format!(
            "Chardev '{id}' is busy: remove the card that uses it by device_del"
        ))),
        Some(_) => {
            chardevs.0.remove(&id);
            done()
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardAdd {
    driver: String,
    id: Option<String>,
    bus: Option<String>,
    addr: Option<Number>,
    chardev: Option<String>,
}

/// Puts a serial card into a slot.
pub(crate) fn plug(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    let CardAdd { driver, id, bus, addr, chardev } = read(arguments)?;
    let slot = cards::slot(&driver, bus.as_deref(), addr.as_ref())?;
    let name =
        chardev.ok_or_else(|| Failure::generic("Can't create serial device, empty char device"))?;
    let property = format!("Property '{driver}.chardev'");
    let device = machine.chardevs().0.get(&name).cloned();
    let device =
        device.ok_or_else(|| Failure::generic(format!("{property} can't find value '{name}'")))?;
    let refused = |error| cards::refused(error, id.as_deref());
    let place = machine.control.place_for(Kind::Serial, id.clone(), slot).map_err(refused)?;
    let line = device.connect(place).ok_or_else(|| {
        Failure::generic(format!("{property} can't take value '{name}', it's in use"))
    })?;
    let new = NewSerial { device: place, id: id.clone(), line, character: Some(name) };
    machine.control.plug_serial(new).map_err(refused)?;
    done()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(backend: Value) -> Value {
        serde_json::from_value::<Backend>(backend).unwrap().flat()
    }

    #[test]
    fn back_ends_are_read_as_of_a_command_line() {
        let unix = json!({"addr": {"type": "unix", "data": {"path": "/a"}}, "wait": false});
        assert_eq!(
            flat(json!({"type": "socket", "data": unix})),
            json!({"backend": "socket", "path": "/a", "server": true, "wait": false})
        );
        let inet = json!({"addr": {"type": "inet", "host": "h", "port": "7"}, "server": false});
        assert_eq!(
            flat(json!({"type": "socket", "data": inet})),
            json!({"backend": "socket", "host": "h", "port": "7", "server": false})
        );
        assert_eq!(
            flat(json!({"type": "file", "data": {"out": "/a", "append": true}})),
            json!({"backend": "file", "path": "/a", "append": true})
        );
        assert_eq!(flat(json!({"type": "null"})), json!({"backend": "null"}));
    }
}
