//! Network cards and the networks behind them.

use ring3_core::net::MacAddress;
use ring3_vm::NicModel;

use crate::nics::rom::RomProperties;
use crate::nics::{self, BadNic, CardProperties, NetworkProperties, NicProperties};

use super::properties::Properties;
use super::{Reason, Translation, reason};

/// A card of `-device`.
#[derive(Debug)]
pub(super) struct Card {
    /// The option, for messages.
    option: String,
    /// The id of the network behind it.
    netdev: Option<String>,
    id: Option<String>,
    model: NicModel,
    mac: Option<MacAddress>,
    rom: RomProperties,
}

/// A `-net`: a card or a network on a hub. A hub joins one card and one network here.
#[derive(Debug)]
pub(super) struct HubPort {
    option: String,
    /// The number of the hub.
    hub: String,
    end: HubEnd,
}

#[derive(Debug)]
enum HubEnd {
    Card { id: Option<String>, model: NicModel, mac: Option<MacAddress> },
    Network(NetworkProperties),
}

fn said(error: BadNic) -> Reason {
    error.0
}

/// The default card of QEMU's PC.
const DEFAULT_CARD: &str = "e1000";

/// Properties of QEMU's cards that a guest does not miss: their place, and how QEMU works.
const HARMLESS: [&str; 36] = [
    "addr",
    "bus",
    "vectors",
    "multifunction",
    "acpi-index",
    "rombar",
    "mq",
    "packed",
    "csum",
    "gso",
    "guest_csum",
    "guest_tso4",
    "guest_tso6",
    "guest_ecn",
    "guest_ufo",
    "host_tso4",
    "host_tso6",
    "host_ecn",
    "host_ufo",
    "mrg_rxbuf",
    "status",
    "ctrl_vq",
    "ctrl_rx",
    "ctrl_vlan",
    "ctrl_mac_addr",
    "rx_queue_size",
    "tx_queue_size",
    "tx",
    "x-txtimer",
    "iommu_platform",
    "ats",
    "event_idx",
    "indirect_desc",
    "ioeventfd",
    "speed",
    "duplex",
];

/// Takes the scripts and helpers by which QEMU sets up a tap interface. Here the interface must be up
/// already.
fn without_helpers(all: &mut Translation, kind: &str, properties: &mut Properties) {
    if kind != "tap" {
        return;
    }
    for key in ["script", "downscript"] {
        if properties.take(key).is_some_and(|script| script != "no") {
            all.warn("ring3 runs no scripts: the interface must be up already");
        }
    }
    for key in ["vhost", "vhostforce", "sndbuf", "queues"] {
        properties.take(key);
    }
}

/// Refuses the networks of QEMU that ring3 does not have.
fn check_kind(kind: &str) -> Result<(), Reason> {
    match kind {
        "bridge" => reason("there is no helper for bridges: give tap,ifname=NAME, or user"),
        "vde" | "l2tpv3" | "af-xdp" | "netmap" | "vmnet-host" | "vmnet-shared"
        | "vmnet-bridged" | "passt" => {
            Err(format!("there is no {kind}: give user, stream, dgram, socket, tap or switch"))
        }
        "vhost-user" | "vhost-vdpa" => Err(format!(
            "there is no {kind}: give stream, by which two machines of ring3 share memory"
        )),
        "hubport" => reason("there are no hubs: give each card its own -netdev"),
        _ => Ok(()),
    }
}

/// `-nic`.
pub(super) fn nic(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("type"));
    let kind = properties.take("type").unwrap_or_default();
    check_kind(&kind)?;
    without_helpers(all, &kind, &mut properties);
    if kind != "none" {
        let model = properties.take("model").unwrap_or_else(|| DEFAULT_CARD.to_owned());
        check_model(&model)?;
        properties.add("model", &model);
    }
    properties.add("type", &kind);
    all.run.nics.nic.push(NicProperties::of(properties).map_err(said)?);
    Ok(())
}

fn check_model(model: &str) -> Result<(), Reason> {
    match super::devices::find(model).map(|device| device.kind) {
        Some(super::devices::Kind::Missing(why)) => Err(format!("model={model}: {why}")),
        _ => Ok(()),
    }
}

/// `-net`, QEMU's oldest form.
pub(super) fn net(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("type"));
    let kind = properties.take("type").unwrap_or_default();
    if kind == "none" {
        return nic(all, "none");
    }
    check_kind(&kind)?;
    let hub = properties.take("vlan").unwrap_or_else(|| "0".to_owned());
    let name = properties.take("name");
    let id = properties.take("id").or(name);
    let end = if kind == "nic" {
        let model = properties.take("model").unwrap_or_else(|| DEFAULT_CARD.to_owned());
        check_model(&model)?;
        properties.add("model", &model);
        for key in ["addr", "vectors"] {
            properties.take(key);
        }
        if let Some(network) = properties.take("netdev") {
            properties.add("netdev", &network);
            return card(all, &mut properties);
        }
        let model = nics::take_model(&mut properties).map_err(said)?;
        let mac = nics::take_mac(&mut properties).map_err(said)?;
        properties.finish("model, macaddr, name, netdev and vlan")?;
        HubEnd::Card { id, model, mac }
    } else {
        without_helpers(all, &kind, &mut properties);
        let mut network = NetworkProperties::parse(&kind, properties).map_err(said)?;
        network.id = id;
        HubEnd::Network(network)
    };
    all.hubs.push(HubPort { option: all.current.clone(), hub, end });
    Ok(())
}

/// `-netdev`. The card that names it may come later.
pub(super) fn netdev(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse_either(value, Some("type"))?;
    let kind = properties.take("type").unwrap_or_default();
    check_kind(&kind)?;
    let Some(id) = properties.take("id") else {
        return reason("a device names its network by id; add id=NAME");
    };
    without_helpers(all, &kind, &mut properties);
    let mut network = NetworkProperties::parse(&kind, properties).map_err(said)?;
    network.id = Some(id.clone());
    all.netdevs.push((id, network));
    Ok(())
}

/// `-device` with a network card.
pub(super) fn card(all: &mut Translation, properties: &mut Properties) -> Result<(), Reason> {
    let netdev = properties.take("netdev");
    let id = properties.take("id");
    for key in HARMLESS {
        properties.take(key);
    }
    let model = nics::take_model(properties).map_err(said)?;
    let mac = nics::take_mac(properties).map_err(said)?;
    let rom = RomProperties::take(properties, model).map_err(said)?;
    properties.finish_all(
        "id, netdev, mac, romfile and bootindex, for virtio host_mtu, disable-legacy and disable-modern, and for ne2k_isa iobase and irq",
    )?;
    all.cards.push(Card { option: all.current.clone(), netdev, id, model, mac, rom });
    Ok(())
}

/// Gives the cards their networks. Returns the options that cannot be met, with the reasons.
pub(super) fn finish(all: &mut Translation) -> Vec<(String, Reason)> {
    let mut errors = Vec::new();
    for Card { option, netdev, id, model, mac, rom } in std::mem::take(&mut all.cards) {
        let Some(netdev) = netdev else {
            errors
                .push((option, "the network behind the card is missing: add netdev=ID".to_owned()));
            continue;
        };
        let Some(index) = all.netdevs.iter().position(|(name, _)| *name == netdev) else {
            let reason = format!(
                "there is no such network: give -netdev KIND,id={netdev} once for each card"
            );
            errors.push((option, reason));
            continue;
        };
        let (_, network) = all.netdevs.remove(index);
        let card = CardProperties { id, model, mac, rom, network };
        all.run.nics.nic.push(NicProperties { card: Some(card) });
    }
    for (id, _) in std::mem::take(&mut all.netdevs) {
        all.warn_of(
            &format!("-netdev {id}"),
            &format!("no card uses it: add -device e1000,netdev={id}"),
        );
    }
    while let Some(first) = all.hubs.first() {
        let hub = first.hub.clone();
        let ports: Vec<_> = all.hubs.extract_if(.., |port| port.hub == hub).collect();
        errors.extend(join(all, ports));
    }
    errors
}

/// Joins the card and the network on one hub.
fn join(all: &mut Translation, ports: Vec<HubPort>) -> Option<(String, Reason)> {
    let first = ports.first()?.option.clone();
    let (mut cards, mut networks) = (Vec::new(), Vec::new());
    for port in ports {
        match port.end {
            HubEnd::Card { id, model, mac } => cards.push((id, model, mac)),
            HubEnd::Network(network) => networks.push(network),
        }
    }
    match (cards.len(), networks.len()) {
        (1, 1) => {
            let (id, model, mac) = cards.remove(0);
            let (rom, network) = (RomProperties::default(), networks.remove(0));
            let card = CardProperties { id, model, mac, rom, network };
            all.run.nics.nic.push(NicProperties { card: Some(card) });
        }
        (0, _) => all.warn_of(&first, "no card uses it: add -net nic"),
        (_, 0) => {
            return Some((
                first,
                "there is no network behind the card: add -net user, or give -nic none".to_owned(),
            ));
        }
        _ => {
            let reason = "there are no hubs: give each card its own -netdev and -device";
            return Some((first, reason.to_owned()));
        }
    }
    None
}
