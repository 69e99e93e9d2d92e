//! The network cards of the machine: their options, and the networks behind them.
//!
//! * [`backend`]: the networks;
//! * [`help`]: the text of "--nic help";
//! * [`later`]: networks that come while the machine runs;
//! * [`rom`]: boot ROMs;
//! * [`user`]: the NAT.

pub(crate) mod backend;
mod help;
mod later;
pub(crate) mod rom;
pub(crate) mod user;

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::Args;
use ring3_core::device::DeviceId;
use ring3_core::net::MacAddress;
use ring3_devices::ne2000::PORTS;
use ring3_devices::virtio::net::PAIRS_MAX;
use ring3_net::{Capture, Card, NetError};
use ring3_vm::networks::Network;
use ring3_vm::{BootDevice, Config, Nic, NicModel, Sender, VirtioNic, Vm};
use thiserror::Error;

use crate::args;
use crate::qemu::properties::{Properties, switch};
use backend::Behind;
pub(crate) use later::LaterNetworks;
use rom::{RomFileError, RomProperties};

/// The number of network cards that a machine can have.
pub(crate) const NICS_MAX: usize = DeviceId::NIC.len();

/// The ports that the jumpers of cards on the ISA bus can select (NE2000 manual), and the IRQ lines that are
/// free for them.
const PORTS_MIN: u16 = 0x200;
const PORTS_MAX: u16 = 0x3e0;
const IRQS: [u8; 6] = [3, 4, 5, 7, 10, 11];

/// The options for network cards.
#[derive(Debug, Args)]
#[command(next_help_heading = "Network")]
pub(crate) struct NicArguments {
    /// A network card and the network behind it, such as user, a NAT that needs no rights; "--nic help" lists
    /// the others. May be given up to eight times; by default there is no card
    #[arg(long, value_name = "PROPERTIES", long_help = help::NIC)]
    pub(crate) nic: Vec<NicProperties>,
}

/// The value of `--nic`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NicProperties {
    /// None if there is no card.
    pub(crate) card: Option<CardProperties>,
}

/// A card, and the network behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CardProperties {
    /// The card's name for people and tools.
    pub(crate) id: Option<String>,
    pub(crate) model: NicModel,
    pub(crate) mac: Option<MacAddress>,
    pub(crate) rom: RomProperties,
    pub(crate) network: NetworkProperties,
}

/// The network behind a card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NetworkProperties {
    /// The network's name for people and tools.
    pub(crate) id: Option<String>,
    pub(crate) behind: Behind,
    pub(crate) pcap: Option<PathBuf>,
    pub(crate) filter: Option<String>,
}

/// The reason why a `--nic` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct BadNic(pub(crate) String);

impl From<String> for BadNic {
    fn from(reason: String) -> BadNic {
        BadNic(reason)
    }
}

impl FromStr for NicProperties {
    type Err = BadNic;

    fn from_str(text: &str) -> Result<NicProperties, BadNic> {
        NicProperties::of(Properties::parse(text, Some("type")))
    }
}

impl NicProperties {
    /// Reads the properties of a card.
    pub(crate) fn of(mut properties: Properties) -> Result<NicProperties, BadNic> {
        let kind = properties.take("type").unwrap_or_default();
        if kind == "none" {
            // QEMU accepts an id even for no card.
            properties.take("id");
            properties.finish("no properties of none")?;
            return Ok(NicProperties { card: None });
        }
        let (model, mac) = (take_model(&mut properties)?, take_mac(&mut properties)?);
        let rom = RomProperties::take(&mut properties, model)?;
        let network = NetworkProperties::parse(&kind, properties)?;
        Ok(NicProperties { card: Some(CardProperties { id: None, model, mac, rom, network }) })
    }
}

impl NetworkProperties {
    /// Reads the properties of a network of this kind.
    pub(crate) fn parse(kind: &str, mut properties: Properties) -> Result<Self, BadNic> {
        let id = properties.take("id");
        let pcap = properties.take("pcap").map(PathBuf::from);
        let filter = properties.take("pcap-filter");
        if filter.is_some() && pcap.is_none() {
            return Err(BadNic("pcap-filter selects the packets of a file: add pcap=FILE".into()));
        }
        Ok(NetworkProperties { id, behind: Behind::parse(kind, properties)?, pcap, filter })
    }

    /// Opens the network behind the card `device` with this address; packets from it go to the door of `sender`.
    fn open(
        &self,
        device: DeviceId,
        address: MacAddress,
        sender: &Sender,
    ) -> Result<Box<dyn Network>, NicError> {
        let NetworkProperties { behind, pcap, filter, .. } = self;
        let capture = pcap.as_ref().map(|path| Capture::create(path, filter.as_deref()));
        let capture = capture.transpose()?.map(Arc::new);
        let card = Card::new(device, sender.clone(), capture).with_address(address);
        Ok(ring3_net::open(&behind.backend()?, &card)?)
    }
}

/// Takes the card's model, with the properties of that model.
pub(crate) fn take_model(properties: &mut Properties) -> Result<NicModel, BadNic> {
    match properties.take("model").as_deref() {
        None | Some("virtio" | "virtio-net" | "virtio-net-pci") => {
            Ok(NicModel::Virtio(take_virtio(properties)?))
        }
        Some("e1000" | "e1000-82540em") => Ok(NicModel::E1000),
        Some("rtl8029" | "ne2k_pci") => Ok(NicModel::Rtl8029),
        Some("ne2000" | "ne2k_isa") => take_ne2000(properties),
        Some(_) => Err(BadNic(format!("model must be {MODELS}"))),
    }
}

/// The names of the models.
const MODELS: &str = "virtio, e1000, rtl8029 (ne2k_pci) or ne2000 (ne2k_isa)";

/// Takes the jumpers of a card on the ISA bus.
fn take_ne2000(properties: &mut Properties) -> Result<NicModel, BadNic> {
    let NicModel::Ne2000Isa { mut port, mut irq } = NicModel::NE2000_ISA else {
        return Ok(NicModel::NE2000_ISA);
    };
    if let Some(text) = properties.take("iobase") {
        let begins =
            |port: &u16| PORTS_MIN <= *port && *port <= PORTS_MAX && port.is_multiple_of(PORTS);
        let wrong = || BadNic("iobase must be a multiple of 0x20 from 0x200 to 0x3e0".into());
        port = args::port(&text).ok().filter(begins).ok_or_else(wrong)?;
    }
    if let Some(text) = properties.take("irq") {
        let wrong = || BadNic(format!("irq must be one of {IRQS:?}"));
        irq = text.parse().ok().filter(|irq| IRQS.contains(irq)).ok_or_else(wrong)?;
    }
    Ok(NicModel::Ne2000Isa { port, irq })
}

fn take_virtio(properties: &mut Properties) -> Result<VirtioNic, BadNic> {
    let mut card = VirtioNic::default();
    if let Some(mtu) = properties.take("mtu").or_else(|| properties.take("host_mtu")) {
        let mtu = mtu.parse().ok().filter(|mtu| (68..=65535).contains(mtu));
        card.mtu = Some(mtu.ok_or_else(|| BadNic("mtu must be a number from 68 to 65535".into()))?);
    }
    if let Some(pairs) = properties.take("num-queues") {
        let pairs = pairs.parse().ok().filter(|pairs| (1..=PAIRS_MAX).contains(pairs));
        let wrong = || BadNic(format!("num-queues must be a number from 1 to {PAIRS_MAX}"));
        card.pairs = pairs.ok_or_else(wrong)?;
    }
    for (key, place) in [
        ("disable-legacy", &mut card.interfaces.legacy),
        ("disable-modern", &mut card.interfaces.modern),
    ] {
        if let Some(value) = properties.take(key).filter(|value| value != "auto") {
            *place = !switch(key, &value)?;
        }
    }
    if !card.interfaces.legacy && !card.interfaces.modern {
        let reason = "a virtio card needs an interface for drivers: leave disable-legacy or disable-modern out";
        return Err(BadNic(reason.into()));
    }
    Ok(card)
}

/// Takes the card's address.
pub(crate) fn take_mac(properties: &mut Properties) -> Result<Option<MacAddress>, BadNic> {
    let Some(text) = properties.take("mac").or_else(|| properties.take("macaddr")) else {
        return Ok(None);
    };
    let mac: MacAddress = text.parse().map_err(|error| BadNic(format!("mac={text}: {error}")))?;
    if mac.is_group() {
        return Err(BadNic(format!(
            "mac={text} is an address of several cards; let it begin with 52"
        )));
    }
    Ok(Some(mac))
}

/// The reasons why there is no network.
#[derive(Debug, Error)]
pub(crate) enum NicError {
    #[error(transparent)]
    Network(#[from] NetError),
    #[error(transparent)]
    Rom(#[from] RomFileError),
    #[error("cannot find this program, to start a network: {0}")]
    Program(#[source] io::Error),
    #[error("two {what} have the id \"{id}\"; give each its own id")]
    Id { what: &'static str, id: String },
}

impl NicArguments {
    /// Returns the cards of the machine.
    pub(crate) fn cards(&self) -> Vec<&CardProperties> {
        self.nic.iter().filter_map(|nic| nic.card.as_ref()).collect()
    }

    /// Adds the cards to `config`, for a machine with or without firmware. Returns the cards that firmware
    /// tries before the devices of the boot order, with their positions.
    pub(crate) fn describe(
        &self,
        config: &mut Config,
        has_firmware: bool,
    ) -> Result<Vec<(u32, BootDevice)>, NicError> {
        let cards = self.cards();
        no_two("network cards", cards.iter().filter_map(|card| card.id.as_ref()))?;
        no_two("networks", cards.iter().filter_map(|card| card.network.id.as_ref()))?;
        let mut boot = Vec::new();
        for (index, card) in (0..).zip(cards) {
            let CardProperties { model, mac, rom, network, .. } = card;
            let mac = mac.unwrap_or_else(|| network.behind.default_address(index));
            boot.extend(rom.boot_index.map(|place| (place, BootDevice::Network(index))));
            let rom = rom.read(*model, has_firmware)?;
            config.nics.push(Some(Nic { mac, model: *model, rom }));
        }
        Ok(boot)
    }

    /// Opens the networks behind the cards of `vm`; packets from them go to the door of `sender`.
    pub(crate) fn attach(&self, vm: &mut Vm, sender: &Sender) -> Result<(), NicError> {
        let places: Vec<_> = vm.config().cards().map(|(device, nic)| (device, nic.mac)).collect();
        for ((device, address), properties) in places.into_iter().zip(self.cards()) {
            let network = properties.network.open(device, address, sender)?;
            if let Some(id) = &properties.id {
                vm.name_card(device, id.clone());
            }
            vm.attach_network(device, properties.network.id.clone(), network);
        }
        Ok(())
    }
}

/// Refuses an id that two of them have, since it must name one.
fn no_two<'a>(what: &'static str, ids: impl Iterator<Item = &'a String>) -> Result<(), NicError> {
    let mut all = HashSet::new();
    for id in ids {
        if !all.insert(id) {
            return Err(NicError::Id { what, id: id.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ring3_devices::virtio::pci::Interfaces;

    use super::*;

    fn refused(text: &str) -> String {
        text.parse::<NicProperties>().expect_err(text).to_string()
    }

    #[test]
    fn cards_are_read() {
        let nic: NicProperties =
            "user,model=virtio,mac=52:54:00:00:00:01,mtu=9000,pcap=a,,b,num-queues=2,disable-legacy=on"
                .parse()
                .unwrap();
        let card = nic.card.unwrap();
        assert_eq!(card.mac, Some(MacAddress([0x52, 0x54, 0, 0, 0, 1])));
        assert_eq!(card.network.pcap, Some("a,b".into()));
        let named: NicProperties = "user,id=lan".parse().unwrap();
        assert_eq!(named.card.unwrap().network.id.as_deref(), Some("lan"));
        let interfaces = Interfaces { legacy: false, modern: true };
        let virtio = VirtioNic { mtu: Some(9000), pairs: 2, interfaces };
        assert_eq!(card.model, NicModel::Virtio(virtio));
        assert_eq!("none".parse(), Ok(NicProperties { card: None }));
        let model = |text: &str| text.parse::<NicProperties>().unwrap().card.unwrap().model;
        assert_eq!(model("user,model=e1000"), NicModel::E1000);
        assert_eq!(model("user,model=ne2k_pci"), NicModel::Rtl8029);
        assert_eq!(model("user,model=ne2000"), NicModel::NE2000_ISA);
        let moved = NicModel::Ne2000Isa { port: 0x320, irq: 10 };
        assert_eq!(model("user,model=ne2k_isa,iobase=0x320,irq=10"), moved);
    }

    #[test]
    fn impossible_cards_are_refused_with_a_reason() {
        assert!(refused("").contains("user"));
        assert!(refused("vde").contains("user"));
        assert!(refused("none,model=virtio").contains("model"));
        assert!(refused("user,model=rtl8139").contains("virtio"));
        assert!(refused("user,iobase=0x300").contains("iobase"));
        for port in ["0x310", "0x1e0", "0x400", "x"] {
            assert!(refused(&format!("user,model=ne2000,iobase={port}")).contains("0x3e0"));
        }
        assert!(refused("user,model=ne2000,irq=2").contains("10"));
        assert!(refused("user,mac=1:2").contains("six bytes"));
        assert!(refused("user,mac=01:00:5e:00:00:01").contains("several cards"));
        assert!(refused("user,mtu=67").contains("68"));
        assert!(refused("user,num-queues=0").contains("1 to 8"));
        assert!(refused("user,disable-legacy=on,disable-modern=on").contains("for drivers"));
        assert!(refused("user,pcap-filter=arp").contains("pcap=FILE"));
        assert!(refused("user,colour=red").contains("colour"));
    }
}
