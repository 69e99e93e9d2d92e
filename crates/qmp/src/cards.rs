//! The commands that put cards into PCI slots and remove them with the guest's consent: virtio disks here, network cards
//! in [`networks`], and serial cards in [`characters`].

use ring3_devices::virtio::block::{DiskModel, QUEUES_MAX};
use ring3_devices::virtio::pci::Interfaces;
use ring3_vm::VirtioDisk;
use ring3_vm::cards::{NewDisk, PlugError, UnplugError};
use ring3_vm::drives::{ErrorPolicy, OnError};
use serde::Deserialize;
use serde_json::Value;

use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};
use crate::{characters, networks, nodes};

/// QEMU's names of the device, which are those of its driver, and of the bus.
const DRIVERS: [&str; 2] = ["virtio-blk-pci", "virtio-blk"];
const BUS: &str = "pci.0";

/// A switch as clients write it; values from a command line are words.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub(crate) enum Switch {
    Bool(bool),
    Word(OnOffAuto),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnOffAuto {
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
pub(crate) enum Number {
    Number(u16),
    Text(String),
}

impl Number {
    /// Returns it, unless it is too large or none.
    pub(crate) fn value(&self) -> Option<u16> {
        match self {
            Number::Number(number) => Some(*number),
            Number::Text(text) => text.parse().ok(),
        }
    }
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

/// Puts a card into a slot.
pub(crate) fn add(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    match arguments.get("driver") {
        None => Err(Failure::generic("Parameter 'driver' is missing")),
        Some(Value::String(driver)) => match networks::model_of(driver) {
            Some(model) => networks::plug(machine, model, arguments),
            None if driver == characters::SERIAL_CARD => characters::plug(machine, arguments),
            None if DRIVERS.contains(&driver.as_str()) => add_disk(machine, arguments),
            None => Err(Failure::generic(format!(
                "'{driver}' is not a valid device model name; virtio-blk-pci, virtio-net-pci, e1000, ne2k_pci and \
                 pci-serial can be added"
            ))),
        },
        // The type is wrong.
        Some(_) => add_disk(machine, arguments),
    }
}

fn add_disk(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    let asked: DeviceAdd = read(arguments)?;
    let slot = slot(&asked.driver, asked.bus.as_deref(), asked.addr.as_ref())?;
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
    let interfaces = interfaces(asked.disable_legacy, asked.disable_modern)?;
    let disk = VirtioDisk { model, interfaces };
    let errors = asked.errors()?;
    let new = NewDisk { id: asked.id.clone(), slot, disk, drive, node: Some(node), errors };
    machine.control.plug_disk(new).map_err(|error| refused(error, asked.id.as_deref()))?;
    done()
}

/// Returns the answer to a client whose card with this id is not put in.
pub(crate) fn refused(error: PlugError, id: Option<&str>) -> Failure {
    match error {
        PlugError::Ended(ended) => ended.into(),
        PlugError::Id => {
            Failure::generic(format!("Duplicate device ID '{}'", id.unwrap_or_default()))
        }
        error => Failure::generic(error.to_string()),
    }
}

/// Returns the kinds of drivers of a virtio device with these properties.
pub(crate) fn interfaces(
    disable_legacy: Option<Switch>,
    disable_modern: Option<Switch>,
) -> Result<Interfaces, Failure> {
    let is_on = |switch: Option<Switch>| switch.is_some_and(Switch::is_on);
    let (legacy, modern) = (!is_on(disable_legacy), !is_on(disable_modern));
    if !legacy && !modern {
        let reason = "device cannot work as neither modern nor legacy mode is enabled";
        return Err(Failure::generic(reason));
    }
    Ok(Interfaces { legacy, modern })
}

/// Returns the device number of a card on `bus` from `addr`, such as `5`, `0x1f` or `5.0`, where the function number
/// follows the point.
pub(crate) fn slot(
    driver: &str,
    bus: Option<&str>,
    addr: Option<&Number>,
) -> Result<Option<u8>, Failure> {
    if let Some(bus) = bus.filter(|bus| *bus != BUS) {
        return Err(Failure::generic(format!("Bus '{bus}' not found")));
    }
    // QEMU reads text in hexadecimal, with or without 0x. A value that is a number in JSON counts as it is.
    let (slot, text) = match addr {
        None => return Ok(None),
        Some(Number::Number(slot)) => (u8::try_from(*slot).ok(), slot.to_string()),
        Some(Number::Text(text)) => {
            let slot = text.strip_suffix(".0").unwrap_or(text).trim_start_matches("0x");
            (u8::from_str_radix(slot, 16).ok(), text.clone())
        }
    };
    let failed =
        || Failure::generic(format!("Property '{driver}.addr' doesn't take value '{text}'"));
    slot.filter(|slot| *slot < 32).map(Some).ok_or_else(failed)
}

impl DeviceAdd {
    fn queues(&self) -> Result<u16, Failure> {
        let queues = self.num_queues.as_ref().map_or(Some(1), Number::value);
        queues.filter(|queues| (1..=QUEUES_MAX).contains(queues)).ok_or_else(|| {
            Failure::generic(format!(
                "Parameter 'num-queues' expects a number from 1 to {QUEUES_MAX}"
            ))
        })
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
