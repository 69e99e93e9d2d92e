//! Network cards and what is behind them.

use ring3_core::net::MacAddress;
use ring3_vm::NicModel;

use crate::nics::rom::RomProperties;
use crate::nics::{self, BadNic, CardProperties, NetworkProperties, NicProperties};

use super::properties::Properties;
use super::{Reason, Translation, reason};

/// The cards of `-device`.
const CARDS: [&str; 6] =
    ["virtio-net-pci", "virtio-net", "e1000", "e1000-82540em", "ne2k_pci", "ne2k_isa"];

/// A card of `-device`.
#[derive(Debug)]
pub(super) struct Card {
    /// What is behind it.
    netdev: String,
    id: Option<String>,
    model: NicModel,
    mac: Option<MacAddress>,
    rom: RomProperties,
}

/// True for `-device` with a network card.
pub(super) fn is_card(driver: &str) -> bool {
    CARDS.contains(&driver)
}

fn said(error: BadNic) -> Reason {
    error.0
}

/// `-nic`.
pub(super) fn nic(all: &mut Translation, value: &str) -> Result<(), Reason> {
    all.run.nics.nic.push(value.parse().map_err(said)?);
    Ok(())
}

/// `-net`, QEMU's oldest way.
pub(super) fn net(all: &mut Translation, value: &str) -> Result<(), Reason> {
    match value {
        "none" => nic(all, value),
        _ => reason("only none is known; give -nic, or -netdev and -device"),
    }
}

/// `-netdev`. The card that names it may come later.
pub(super) fn netdev(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("type"));
    let kind = properties.take("type").unwrap_or_default();
    let Some(id) = properties.take("id") else {
        return reason("a device finds it by its id; add id=NAME");
    };
    let mut network = NetworkProperties::parse(&kind, properties).map_err(said)?;
    network.id = Some(id.clone());
    all.netdevs.push((id, network));
    Ok(())
}

/// `-device` with a network card.
pub(super) fn card(all: &mut Translation, value: &str) -> Result<(), Reason> {
    let mut properties = Properties::parse(value, Some("model"));
    let Some(netdev) = properties.take("netdev") else {
        return reason("what is behind the card is missing: add netdev=ID");
    };
    let id = properties.take("id");
    // A number of interrupts that the card chooses.
    properties.take("vectors");
    let model = nics::take_model(&mut properties).map_err(said)?;
    let mac = nics::take_mac(&mut properties).map_err(said)?;
    let rom = RomProperties::take(&mut properties, model).map_err(said)?;
    properties.finish(
        "id, netdev, mac, romfile and bootindex, for virtio host_mtu, disable-legacy and disable-modern, and for ne2k_isa iobase and irq",
    )?;
    all.cards.push(Card { netdev, id, model, mac, rom });
    Ok(())
}

/// Brings cards and what is behind them together. The reason says which is alone.
pub(super) fn finish(all: &mut Translation) -> Result<(), Reason> {
    for Card { netdev, id, model, mac, rom } in std::mem::take(&mut all.cards) {
        let Some(index) = all.netdevs.iter().position(|(name, _)| *name == netdev) else {
            return Err(format!(
                "there is no such network: give -netdev KIND,id={netdev} once for each card"
            ));
        };
        let (_, network) = all.netdevs.remove(index);
        let card = CardProperties { id, model, mac, rom, network };
        all.run.nics.nic.push(NicProperties { card: Some(card) });
    }
    match all.netdevs.first() {
        Some((id, _)) => {
            Err(format!("no card has the network {id}: add -device virtio-net-pci,netdev={id}"))
        }
        None => Ok(()),
    }
}
