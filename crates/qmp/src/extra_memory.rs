//! Memory that comes and goes while the machine runs: how much should be there, and how much is (QMP Reference Manual,
//! "Machines").

use ring3_devices::virtio::memory::BLOCK;
use ring3_vm::extra_memory::{ExtraMemoryError, ExtraMemoryInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done, none};
use crate::protocol::{Arguments, Failure, read};

/// The type of the device.
pub(crate) const DRIVER: &str = "virtio-mem-pci";
/// Its name in the object model if it has no id.
pub(crate) const NAME: &str = "vmem0";
/// The property that tools write.
const REQUESTED: &str = "requested-size";

impl From<ExtraMemoryError> for Failure {
    fn from(error: ExtraMemoryError) -> Failure {
        match error {
            ExtraMemoryError::Ended(ended) => ended.into(),
            error => Failure::generic(error.to_string()),
        }
    }
}

/// Returns the name of the device in the object model.
pub(crate) fn name(id: Option<&str>) -> &str {
    id.unwrap_or(NAME)
}

/// Returns what the event of another size says.
pub(crate) fn size_change(id: Option<&str>, bytes: u64) -> Value {
    let path = format!("/machine/peripheral/{}", name(id));
    let mut data = json!({"size": bytes, "qom-path": path});
    if let Some(id) = id {
        data["id"] = json!(id);
    }
    data
}

/// Returns the properties of the device in the object model: names, types and values.
pub(crate) fn properties(info: &ExtraMemoryInfo) -> Vec<(&'static str, &'static str, Value)> {
    vec![
        ("size", "size", json!(info.status.plugged)),
        (REQUESTED, "size", json!(info.status.requested)),
        ("block-size", "size", json!(BLOCK)),
        ("memaddr", "uint64", json!(info.status.start)),
    ]
}

/// Sets a property of the device.
pub(crate) fn set_property(machine: &Machine, name: &str, value: &Value) -> Result<(), Failure> {
    if name != REQUESTED {
        return Err(Failure::generic(format!("Property '{DRIVER}.{name}' cannot be set")));
    }
    // On the monitor all values are text.
    let number = value.as_u64().or_else(|| value.as_str()?.parse().ok());
    let bytes = number.ok_or_else(|| {
        Failure::generic(format!("Property '{DRIVER}.{REQUESTED}' takes a number of bytes"))
    })?;
    Ok(machine.control.request_memory(bytes)?)
}

/// Lists the device, if there is one.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let info = machine.control.extra_memory()?;
    let device = info.map(|ExtraMemoryInfo { id, status }| {
        let data = json!({
            "id": name(id.as_deref()), "memaddr": status.start, "requested-size": status.requested,
            "size": status.plugged, "max-size": status.region, "block-size": BLOCK, "node": 0,
            "memdev": "/objects/vmem",
        });
        json!({"type": "virtio-mem", "data": data})
    });
    Ok(device.into_iter().collect())
}

/// Returns the bytes of memory that stay, and those that have come.
pub(crate) fn sizes(machine: &Machine) -> Result<(u64, u64), Failure> {
    let description = machine.control.describe()?;
    let plugged = description.extra_memory.map_or(0, |info| info.status.plugged);
    Ok((description.config.memory_bytes, plugged))
}

pub(crate) fn summary(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let (base, plugged) = sizes(machine)?;
    Ok(json!({"base-memory": base, "plugged-memory": plugged}))
}

/// Asks the guest to have so many bytes of memory, rounded up to whole blocks. Returns how many were requested.
pub(crate) fn resize(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Resize {
        value: u64,
    }
    let Resize { value } = read(arguments)?;
    let description = machine.control.describe()?;
    let base = description.config.memory_bytes;
    let info = description.extra_memory.ok_or(ExtraMemoryError::NoDevice)?;
    let most = base + info.status.region;
    if !(base..=most).contains(&value) {
        let (base, most) = (base >> 20, most >> 20);
        let reason =
            format!("the machine can have from {base} MiB (--memory) to {most} MiB (--max-memory)");
        return Err(Failure::generic(reason));
    }
    machine.control.request_memory((value - base).next_multiple_of(BLOCK))?;
    done()
}
