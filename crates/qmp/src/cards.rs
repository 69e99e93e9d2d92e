//! The commands that put virtio disks into PCI slots and remove them with the guest's consent.

use ring3_devices::virtio::block::{DiskModel, QUEUES_MAX};
use ring3_devices::virtio::pci::Interfaces;
use ring3_vm::VirtioDisk;
use ring3_vm::cards::{NewDisk, PlugError, UnplugError};
use ring3_vm::drives::{ErrorPolicy, OnError};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::{Machine, done};
use crate::nodes;
use crate::protocol::{Arguments, Failure, read};

/// QEMU's names of the device, which are those of its driver, and of the bus.
const DRIVERS: [&str; 2] = ["virtio-blk-pci", "virtio-blk"];
const BUS: &str = "pci.0";

/// A switch as clients write it; values from a command line are words.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Switch {
    Bool(bool),
    Word(OnOffAuto),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnOffAuto {
    On,
    Off,
    Auto,
}

impl Switch {
    fn is_on(self) -> bool {
        matches!(self, Switch::Bool(true) | Switch::Word(OnOffAuto::On))
    }
}

/// A number as clients write it.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u16),
    Text(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct DeviceAdd {
    driver: String,
    id: Option<String>,
    bus: Option<String>,
    addr: Option<Number>,
    drive: Option<String>,
    serial: Option<String>,
    num_queues: Option<Number>,
    disable_legacy: Option<Switch>,
    disable_modern: Option<Switch>,
    rerror: Option<String>,
    werror: Option<String>,
}

/// Puts a virtio disk into a slot.
pub(crate) fn add(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    match arguments.get("driver") {
        None => return Err(Failure::generic("Parameter 'driver' is missing")),
        Some(Value::String(driver)) if !DRIVERS.contains(&driver.as_str()) => {
            return Err(Failure::generic(format!(
                "'{driver}' is not a valid device model name; virtio-blk-pci can be added"
            )));
        }
        Some(_) => {}
    }
    let asked: DeviceAdd = read(arguments)?;
    if let Some(bus) = asked.bus.as_ref().filter(|bus| *bus != BUS) {
        return Err(Failure::generic(format!("Bus '{bus}' not found")));
    }
    let node = asked.drive.clone().ok_or_else(|| Failure::generic("drive property not set"))?;
    let property = format!("Property '{}.drive'", asked.driver);
    let drive = machine
        .nodes()
        .drive(&node)?
        .ok_or_else(|| Failure::generic(format!("{property} can't find value '{node}'")))?;
    if machine.control.drives()?.iter().any(|other| nodes::is(other, &node)) {
        return Err(Failure::generic(format!("{property} can't take value '{node}', it's in use")));
    }
    let medium =
        drive.medium().ok_or_else(|| Failure::generic("Device needs media, but drive is empty"))?;
    let model = DiskModel {
        medium,
        serial: asked.serial.clone().unwrap_or_default(),
        queues: asked.queues()?,
    };
    let disk = VirtioDisk { model, interfaces: asked.interfaces()? };
    let (slot, errors) = (asked.slot()?, asked.errors()?);
    let new = NewDisk { id: asked.id.clone(), slot, disk, drive, node: Some(node), errors };
    machine.control.plug_disk(new).map_err(|error| match error {
        PlugError::Ended(ended) => ended.into(),
        PlugError::Id => {
            let id = asked.id.unwrap_or_default();
            Failure::generic(format!("Duplicate device ID '{id}'"))
        }
        error => Failure::generic(error.to_string()),
    })?;
    done()
}

impl DeviceAdd {
    fn queues(&self) -> Result<u16, Failure> {
        let queues = match &self.num_queues {
            None => Some(1),
            Some(Number::Number(queues)) => Some(*queues),
            Some(Number::Text(text)) => text.parse().ok(),
        };
        queues.filter(|queues| (1..=QUEUES_MAX).contains(queues)).ok_or_else(|| {
            Failure::generic(format!(
                "Parameter 'num-queues' expects a number from 1 to {QUEUES_MAX}"
            ))
        })
    }

    fn interfaces(&self) -> Result<Interfaces, Failure> {
        let is_on = |switch: Option<Switch>| switch.is_some_and(Switch::is_on);
        let (legacy, modern) = (!is_on(self.disable_legacy), !is_on(self.disable_modern));
        if !legacy && !modern {
            let reason = "device cannot work as neither modern nor legacy mode is enabled";
            return Err(Failure::generic(reason));
        }
        Ok(Interfaces { legacy, modern })
    }

    /// Returns the device number from text such as `5`, `0x1f` or `5.0`, where the function number follows
    /// the point.
    fn slot(&self) -> Result<Option<u8>, Failure> {
        let text = match &self.addr {
            None => return Ok(None),
            Some(Number::Number(slot)) => slot.to_string(),
            Some(Number::Text(text)) => text.clone(),
        };
        let (slot, function) = text.split_once('.').unwrap_or((&text, "0"));
        // QEMU reads this text in hexadecimal, with or without 0x. A value that is a number in JSON counts as
        // it is.
        let slot = match &self.addr {
            Some(Number::Number(slot)) => u8::try_from(*slot).ok(),
            _ => u8::from_str_radix(slot.trim_start_matches("0x"), 16).ok(),
        };
        match slot.filter(|slot| *slot < 32 && function == "0") {
            Some(slot) => Ok(Some(slot)),
            None => Err(Failure::generic(format!(
                "Property '{}.addr' doesn't take value '{text}'",
                self.driver
            ))),
        }
    }

    fn errors(&self) -> Result<ErrorPolicy, Failure> {
        let on_error = |name: &str, word: &Option<String>, default| {
            let Some(word) = word else { return Ok(default) };
            let known = OnError::WORDS.iter().find(|(known, _)| known == word);
            let is_possible =
                |on_error: &OnError| name == "werror" || *on_error != OnError::StopWithoutRoom;
            let found = known.map(|(_, on_error)| *on_error).filter(is_possible);
            match found {
                Some(on_error) => Ok(on_error),
                // This word selects the default.
                None if word == "auto" => Ok(default),
                None => {
                    Err(Failure::generic(format!("Parameter '{name}' does not accept '{word}'")))
                }
            }
        };
        let ErrorPolicy { read, write } = ErrorPolicy::default();
        Ok(ErrorPolicy {
            read: on_error("rerror", &self.rerror, read)?,
            write: on_error("werror", &self.werror, write)?,
        })
    }
}

/// Asks the guest to release a card.
pub(crate) fn remove(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct DeviceDel {
        id: String,
    }
    let DeviceDel { id } = read(arguments)?;
    machine.control.unplug(&id).map_err(|error| match error {
        UnplugError::Ended(ended) => ended.into(),
        UnplugError::NoCard => Failure::device_not_found(format!("Device '{id}' not found")),
    })?;
    done()
}
