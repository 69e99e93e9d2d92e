//! The commands by which tools find out which machines, processors, devices and options exist.
//!
//! For features that do not exist here (TPMs, huge pages, I/O threads), the answer is the empty list that
//! QEMU gives without them.

use ring3_vm::Model;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::commands::{Machine, none};
use crate::protocol::{Arguments, EVENTS, Failure, read};
use crate::uuid;

/// The processor of a machine whose command line does not choose one.
const DEFAULT_CPU: &str = "qemu32-i386-cpu";

/// Defines a command whose answer is always the same.
macro_rules! constant {
    ($name:ident, $($answer:tt)+) => {
        pub(crate) fn $name(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
            none(arguments)?;
            Ok(json!($($answer)+))
        }
    };
}

constant!(target, {"arch": "i386"});
constant!(no_list, []);
constant!(machines, [
    {"name": "pc-i440fx-9.0", "alias": "pc", "is-default": true, "cpu-max": 1, "hotpluggable-cpus": false,
     "numa-mem-supported": false, "deprecated": false, "default-cpu-type": DEFAULT_CPU, "default-ram-id": "pc.ram",
     "acpi": true},
    {"name": "none", "cpu-max": 1, "hotpluggable-cpus": false, "numa-mem-supported": false, "deprecated": false,
     "acpi": false},
]);
constant!(mice, [{"name": "PS/2 Mouse", "index": 0, "current": true, "absolute": false}]);
constant!(replay, {"mode": "none", "icount": 0});

pub(crate) fn events(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(EVENTS.iter().map(|name| json!({"name": name})).collect())
}

pub(crate) fn uuid(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(json!({"UUID": uuid::text(machine.facts().uuid)}))
}

pub(crate) fn characters(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let all = machine.all_characters().into_iter();
    Ok(all
        .map(|(label, place)| json!({"label": label, "filename": place, "frontend-open": true}))
        .collect())
}

/// Returns family, host and service at which the screen is served, or None if it is not served.
fn screen(machine: &Machine) -> Option<Value> {
    let place = machine.facts().screen.as_deref()?;
    let (family, host, service) = if let Some(path) = place.strip_prefix("unix:") {
        ("unix", "", path)
    } else {
        let (host, service) = place.rsplit_once(':')?;
        (if host.contains(':') { "ipv6" } else { "ipv4" }, host, service)
    };
    Some(json!({"family": family, "host": host, "service": service, "auth": "none"}))
}

/// Describes the VNC server, if there is one.
pub(crate) fn vnc(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(match screen(machine) {
        Some(mut screen) => {
            screen["enabled"] = json!(true);
            screen
        }
        None => json!({"enabled": false}),
    })
}

/// Describes the VNC server as a list.
pub(crate) fn vnc_servers(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let servers = screen(machine).into_iter().map(|mut screen| {
        screen["websocket"] = json!(false);
        json!({"id": "default", "server": [screen], "clients": [], "auth": "none"})
    });
    Ok(servers.collect())
}

/// Returns the kinds of character devices.
pub(crate) fn character_backends(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let kinds = ["null", "stdio", "file", "pty", "pipe", "socket", "vc"];
    Ok(kinds.iter().map(|name| json!({"name": name})).collect())
}

pub(crate) fn current_machine(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(json!({"wakeup-suspend-support": false}))
}

pub(crate) fn pluggable_processors(
    machine: &Machine,
    arguments: Arguments,
) -> Result<Value, Failure> {
    none(arguments)?;
    let model = machine.control.describe()?.config.cpu;
    Ok(json!([{
        "type": format!("{model}-i386-cpu"),
        "vcpus-count": 1,
        "props": {"socket-id": 0, "core-id": 0, "thread-id": 0},
        "qom-path": "/machine/unattached/device[0]",
    }]))
}

/// Returns the models under their own names and those of similar models of QEMU.
fn models() -> impl Iterator<Item = (&'static str, Model)> {
    let own = Model::ALL.into_iter().map(|model| (model.name(), model));
    let others = [
        ("qemu32", Model::Pentium4),
        ("kvm32", Model::Pentium4),
        ("pentium2", Model::Pentium3),
        ("coreduo", Model::Pentium4),
        ("host", Model::Max),
    ];
    own.chain(others)
}

pub(crate) fn processors(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let definition = |(name, _): (&str, Model)| {
        json!({
            "name": name,
            "typename": format!("{name}-i386-cpu"),
            "static": false,
            "migration-safe": !["max", "host"].contains(&name),
            "unavailable-features": [],
            "deprecated": false,
        })
    };
    Ok(models().map(definition).collect())
}

/// Returns a model as the list of its features.
pub(crate) fn expand_processor(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Expansion {
        #[serde(rename = "type")]
        kind: Kind,
        model: CpuModel,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Static,
        Full,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct CpuModel {
        name: String,
        #[serde(default, rename = "props")]
        _props: Map<String, Value>,
    }
    let Expansion { kind, model: CpuModel { name, .. } } = read(arguments)?;
    let (_, model) = models()
        .find(|(known, _)| *known == name)
        .ok_or_else(|| Failure::generic(format!("The CPU definition '{name}' is unknown.")))?;
    let all = Model::Max.features();
    let props: Map<String, Value> = all
        .iter_names()
        .map(|(name, feature)| {
            let spelled = match name {
                "SSE3" => "pni".to_owned(),
                "CLFSH" => "clflush".to_owned(),
                name => name.to_ascii_lowercase().replace("sse4_", "sse4-"),
            };
            (spelled, json!(model.features().contains(feature)))
        })
        .collect();
    // A static model leaves nothing to be guessed.
    let name = match kind {
        Kind::Static => "base",
        Kind::Full => &name,
    };
    Ok(json!({"model": {"name": name, "props": props}}))
}

/// Returns the parameters of the options that tools query.
pub(crate) fn command_line_options(_: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        option: Option<String>,
    }
    const OPTIONS: &[(&str, &[&str])] = &[
        ("accel", &["accel"]),
        ("boot-opts", &["order", "once", "menu", "strict"]),
        (
            "chardev",
            &[
                "backend",
                "path",
                "host",
                "port",
                "fd",
                "server",
                "wait",
                "telnet",
                "reconnect",
                "mux",
                "append",
            ],
        ),
        ("device", &["driver", "id", "bus", "addr"]),
        (
            "drive",
            &[
                "file",
                "if",
                "index",
                "bus",
                "unit",
                "media",
                "format",
                "snapshot",
                "readonly",
                "cache.direct",
                "cache.no-flush",
                "discard",
                "detect-zeroes",
                "rerror",
                "werror",
            ],
        ),
        ("machine", &["type", "accel", "acpi", "usb", "memory-backend", "dump-guest-core"]),
        ("memory", &["size", "slots", "maxmem"]),
        ("mon", &["mode", "chardev", "pretty"]),
        ("msg", &["timestamp"]),
        ("name", &["guest", "process", "debug-threads"]),
        ("netdev", &["type", "id"]),
        ("object", &["qom-type", "id"]),
        ("overcommit", &["mem-lock", "cpu-pm"]),
        ("rtc", &["base", "clock", "driftfix"]),
        ("smp-opts", &["cpus", "sockets", "dies", "clusters", "cores", "threads", "maxcpus"]),
        ("uuid", &["uuid"]),
    ];
    let Which { option } = read(arguments)?;
    let wanted =
        OPTIONS.iter().filter(|(name, _)| option.as_deref().is_none_or(|wanted| wanted == *name));
    let found: Vec<_> = wanted
        .map(|(name, parameters)| {
            let parameters: Vec<_> =
                parameters.iter().map(|name| json!({"name": name, "type": "string"})).collect();
            json!({"option": name, "parameters": parameters})
        })
        .collect();
    match option {
        Some(option) if found.is_empty() => {
            Err(Failure::generic(format!("invalid option name: {option}")))
        }
        _ => Ok(found.into()),
    }
}

/// Returns the receive filters of network cards, as far as they are known outside the machine.
pub(crate) fn filters(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Which {
        name: Option<String>,
    }
    let Which { name } = read(arguments)?;
    let description = machine.control.describe()?;
    let is_meant = |id: &str| name.as_deref().is_none_or(|name| name == id);
    let cards = description.nics.iter().filter_map(|card| {
        let id = card.name();
        is_meant(id).then(|| {
            json!({
                "name": id, "promiscuous": false, "multicast": "normal", "unicast": "normal", "vlan": "all",
                "broadcast-allowed": true, "multicast-overflow": false, "unicast-overflow": false,
                "main-mac": card.nic.mac.to_string(), "vlan-table": [], "unicast-table": [], "multicast-table": [],
            })
        })
    });
    let cards: Vec<_> = cards.collect();
    match name {
        Some(name) if cards.is_empty() => {
            Err(Failure::generic(format!("invalid net client name: {name}")))
        }
        _ => Ok(cards.into()),
    }
}

/// Describes the cards on PCI.
pub(crate) fn pci(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let functions = machine.control.pci_functions()?;
    let devices = functions.iter().map(|function| {
        let header = &function.header;
        let word = |offset: usize| u16::from_le_bytes([header[offset], header[offset + 1]]);
        let bars = header[0x10..0x28].chunks_exact(4).enumerate();
        let regions = bars.filter_map(|(index, bar)| {
            let bar = u32::from_le_bytes(bar.try_into().ok()?);
            match bar {
                0 => None,
                bar if bar & 1 != 0 => {
                    Some(json!({"bar": index, "type": "io", "address": bar & !3, "size": 0}))
                }
                bar => {
                    Some(json!({"bar": index, "type": "memory", "address": bar & !0xf, "size": 0,
                    "prefetch": bar & 8 != 0, "mem_type_64": bar & 4 != 0}))
                }
            }
        });
        let mut device = json!({
            "bus": 0,
            "slot": function.slot,
            "function": function.function,
            "class_info": {"class": word(0x0a), "desc": crate::monitor::class_name(word(0x0a))},
            "id": {"vendor": word(0), "device": word(2)},
            "irq_pin": header[0x3d],
            "qdev_id": "",
            "regions": regions.collect::<Vec<_>>(),
        });
        if header[0x3d] != 0 {
            device["irq"] = json!(header[0x3c]);
        }
        device
    });
    Ok(json!([{"bus": 0, "devices": devices.collect::<Vec<_>>()}]))
}
