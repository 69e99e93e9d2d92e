//! The commands for QEMU's object model: types and their properties, and the few objects that tools look for.

use ring3_core::device::DeviceId;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done};
use crate::devices::{ABSTRACT, DEVICES};
use crate::protocol::{Arguments, Failure, read};
use crate::{balloon, extra_memory};

/// Types that are not devices: name and parent.
const OTHERS: [(&str, &str); 8] = [
    ("pc-i440fx-9.0-machine", "machine"),
    ("none-machine", "machine"),
    ("tcg-accel", "accel"),
    ("memory-backend-ram", "object"),
    ("memory-backend-file", "object"),
    ("memory-backend-memfd", "object"),
    ("secret", "object"),
    ("qemu32-i386-cpu", "cpu"),
];

/// Returns the parent of type `name`.
fn parent(name: &str) -> Option<&'static str> {
    let device = DEVICES.iter().find(|device| device.name == name).map(|device| device.parent);
    let others = || OTHERS.iter().chain(ABSTRACT).find(|(known, _)| *known == name);
    device.or_else(|| others().map(|(_, parent)| *parent))
}

/// Returns whether type `name` is `ancestor` or descends from it.
fn is_a(name: &str, ancestor: &str) -> bool {
    let mut name = Some(name);
    while let Some(known) = name.filter(|name| !name.is_empty()) {
        if known == ancestor {
            return true;
        }
        name = parent(known);
    }
    false
}

pub(crate) fn list_types(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Which {
        implements: Option<String>,
        #[serde(default, rename = "abstract")]
        is_abstract: bool,
    }
    let Which { implements, is_abstract } = read(arguments)?;
    let concrete = DEVICES.iter().map(|device| (device.name, device.parent));
    let concrete = concrete.chain(OTHERS).map(|(name, parent)| (name, parent, false));
    let others =
        ABSTRACT.iter().filter(|_| is_abstract).map(|(name, parent)| (*name, *parent, true));
    let wanted = concrete
        .chain(others)
        .filter(|(name, ..)| implements.as_deref().is_none_or(|wanted| is_a(name, wanted)));
    Ok(wanted
        .map(|(name, parent, is_abstract)| {
            let mut kind = json!({"name": name});
            if !parent.is_empty() {
                kind["parent"] = json!(parent);
            }
            if is_abstract {
                kind["abstract"] = json!(true);
            }
            kind
        })
        .collect())
}

fn property((name, kind): &(&str, &str)) -> Value {
    json!({"name": name, "type": kind})
}

/// Returns the properties of a device's type.
pub(crate) fn device_properties(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    let typename = typename(arguments)?;
    match DEVICES.iter().find(|device| device.name == typename) {
        Some(device) => Ok(device.properties.iter().map(property).collect()),
        None => Err(Failure::device_not_found(format!("Device '{typename}' not found"))),
    }
}

fn typename(arguments: Arguments) -> Result<String, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        typename: String,
    }
    let Which { typename } = read(arguments)?;
    Ok(typename)
}

/// Returns the properties of any type.
pub(crate) fn type_properties(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    const MACHINE: [(&str, &str); 5] = [
        ("accel", "string"),
        ("usb", "bool"),
        ("acpi", "OnOffAuto"),
        ("memory-backend", "string"),
        ("dump-guest-core", "bool"),
    ];
    const BACKEND: [(&str, &str); 4] =
        [("id", "string"), ("size", "int"), ("share", "bool"), ("prealloc", "bool")];
    let name = typename(arguments)?;
    if let Some(device) = DEVICES.iter().find(|device| device.name == name) {
        return Ok(device.properties.iter().map(property).collect());
    }
    let general = [("type", "string")];
    let special: &[(&str, &str)] = match name.as_str() {
        name if name.ends_with("-machine") => &MACHINE,
        name if name.starts_with("memory-backend") => &BACKEND,
        _ => &[],
    };
    match parent(&name) {
        Some(_) => Ok(general.iter().chain(special).map(property).collect()),
        None => Err(Failure::device_not_found(format!("Class '{name}' not found"))),
    }
}

/// An object with its children and properties.
struct Object {
    kind: &'static str,
    children: Vec<(String, String)>,
    properties: Vec<(&'static str, &'static str, Value)>,
}

/// The objects that tools look for.
fn object(machine: &Machine, path: &str) -> Result<Object, Failure> {
    let child = |name: &str, kind: &str| (name.to_owned(), format!("child<{kind}>"));
    let container = |children| Object { kind: "container", children, properties: Vec::new() };
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/machine/{path}") };
    let path = if path == "/" { "" } else { path.trim_end_matches('/') };
    Ok(match path {
        "" => container(vec![
            child("machine", "pc-i440fx-9.0-machine"),
            child("objects", "container"),
        ]),
        "/objects" | "/machine/peripheral-anon" => container(Vec::new()),
        "/machine" => Object {
            kind: "pc-i440fx-9.0-machine",
            children: vec![
                child("peripheral", "container"),
                child("peripheral-anon", "container"),
                child("unattached", "container"),
            ],
            properties: vec![("rtc-time", "struct tm", Value::Null)],
        },
        "/machine/peripheral" => {
            container(named(machine)?.into_iter().map(|(name, kind)| child(&name, kind)).collect())
        }
        "/machine/unattached" => container(vec![child("device[0]", "qemu32-i386-cpu")]),
        "/machine/unattached/device[0]" => Object {
            kind: "qemu32-i386-cpu",
            children: Vec::new(),
            properties: vec![
                ("realized", "bool", json!(true)),
                ("hotplugged", "bool", json!(false)),
                ("unavailable-features", "strList", json!([])),
            ],
        },
        path => {
            let name = path.strip_prefix("/machine/peripheral/");
            let found = named(machine)?.into_iter().find(|(known, _)| Some(known.as_str()) == name);
            let Some((_, kind)) = found else {
                return Err(Failure::device_not_found(format!("Device '{path}' not found")));
            };
            if kind == balloon::DRIVER {
                return balloon_object(machine);
            }
            if kind == extra_memory::DRIVER {
                let info = machine.control.extra_memory()?.unwrap_or_default();
                let properties = extra_memory::properties(&info);
                return Ok(Object { kind, children: Vec::new(), properties });
            }
            let hotpluggable =
                DEVICES.iter().any(|device| device.name == kind && device.hotpluggable);
            Object {
                kind,
                children: Vec::new(),
                properties: vec![
                    ("realized", "bool", json!(true)),
                    ("hotpluggable", "bool", json!(hotpluggable)),
                ],
            }
        }
    })
}

/// Returns the memory balloon.
fn balloon_object(machine: &Machine) -> Result<Object, Failure> {
    let info = machine.control.balloon()?.unwrap_or_default();
    let seconds = info.status.poll_seconds;
    Ok(Object {
        kind: balloon::DRIVER,
        children: Vec::new(),
        properties: vec![
            ("realized", "bool", json!(true)),
            ("hotpluggable", "bool", json!(false)),
            (balloon::STATISTICS, "guest statistics", balloon::statistics(&info)),
            (balloon::INTERVAL, "int", json!(seconds)),
        ],
    })
}

/// The name in the object model of a memory balloon without an id.
const BALLOON: &str = "balloon0";

/// Returns the devices that have names, and their types.
fn named(machine: &Machine) -> Result<Vec<(String, &'static str)>, Failure> {
    let description = machine.control.describe()?;
    let nics = description
        .nics
        .iter()
        .filter_map(|card| Some((card.id.clone()?, crate::monitor::nic_driver(card.nic.model))));
    let serial = description.serial.iter();
    let serial = serial.filter_map(|card| Some((card.id.clone()?, crate::characters::SERIAL_CARD)));
    let drives = machine.control.drives()?;
    let drives = drives.iter().filter_map(|drive| {
        let kind = match (drive.drive.device, drive.removable) {
            (DeviceId::IDE, true) => "ide-cd",
            (DeviceId::IDE, false) => "ide-hd",
            (DeviceId::FLOPPY, _) => "floppy",
            (DeviceId::FLASH, _) => "cfi.pflash01",
            _ => "virtio-blk-pci",
        };
        Some((drive.id.clone()?, kind))
    });
    let balloon = machine.control.balloon()?;
    let balloon =
        balloon.map(|info| (info.id.unwrap_or_else(|| BALLOON.to_owned()), balloon::DRIVER));
    let extra = description.extra_memory.as_ref();
    let extra =
        extra.map(|info| (extra_memory::name(info.id.as_deref()).to_owned(), extra_memory::DRIVER));
    Ok(nics.chain(extra).chain(serial).chain(drives).chain(balloon).collect())
}

pub(crate) fn list(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        path: String,
    }
    let Which { path } = read(arguments)?;
    let Object { children, properties, .. } = object(machine, &path)?;
    let children = children.iter().map(|(name, kind)| json!({"name": name, "type": kind}));
    let properties = properties.iter().map(|(name, kind, _)| property(&(*name, *kind)));
    Ok([property(&("type", "string"))].into_iter().chain(children).chain(properties).collect())
}

pub(crate) fn get(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        path: String,
        property: String,
    }
    let Which { path, property } = read(arguments)?;
    let Object { kind, properties, .. } = object(machine, &path)?;
    if property == "type" {
        return Ok(json!(kind));
    }
    let found =
        properties.into_iter().find(|(name, _, value)| *name == property && !value.is_null());
    found
        .map(|(.., value)| value)
        .ok_or_else(|| Failure::generic(format!("Property '{kind}.{property}' not found")))
}

/// Sets a property, of those few that can be.
pub(crate) fn set(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        path: String,
        property: String,
        value: Value,
    }
    let Which { path, property, value } = read(arguments)?;
    let Object { kind, properties, .. } = object(machine, &path)?;
    if kind == balloon::DRIVER {
        balloon::set_property(machine, &property, &value)?;
        return done();
    }
    if kind == extra_memory::DRIVER {
        extra_memory::set_property(machine, &property, &value)?;
        return done();
    }
    let is_known = property == "type" || properties.iter().any(|(name, ..)| *name == property);
    let reason = if is_known { "cannot be set" } else { "not found" };
    Err(Failure::generic(format!("Property '{kind}.{property}' {reason}")))
}
