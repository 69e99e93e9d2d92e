//! The commands for networks that exist before a card uses them, and the cards that are added to them (QMP Reference
//! Manual, "Net devices").
//!
//! A network is opened when a card is added to it, since only then it is known which card and address it
//! is for, and closed when the card is gone. So errors of the host come with `device_add`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use ring3_core::device::DeviceId;
use ring3_core::net::MacAddress;
use ring3_vm::cards::{Kind, NewNic};
use ring3_vm::inspect::NicInfo;
use ring3_vm::networks::Network;
use ring3_vm::{Nic, NicModel, VirtioNic};
use serde::Deserialize;
use serde_json::Value;

use crate::cards::{self, Number, Switch};
use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// Returns the model of card that can be added by QEMU's name of its driver.
pub(crate) fn model_of(driver: &str) -> Option<NicModel> {
    match driver {
        "virtio-net-pci" | "virtio-net" => Some(NicModel::Virtio(VirtioNic::default())),
        "e1000" | "e1000-82540em" => Some(NicModel::E1000),
        "ne2k_pci" => Some(NicModel::Rtl8029),
        _ => None,
    }
}

/// Makes the networks of clients, as the program makes those of its command line.
pub trait Networks: Debug + Send + Sync {
    /// Reads the properties of a network, without its id: a JSON object in the form of QMP's `netdev_add`.
    ///
    /// # Errors
    /// Returns the reason, for people, if there can be no such network.
    fn describe(&self, properties: &str) -> Result<Arc<dyn NewNetwork>, String>;
}

/// A network that is not open yet.
pub trait NewNetwork: Debug + Send + Sync {
    /// Returns the address of the card `device` behind which it is, if nobody gives one.
    fn default_address(&self, device: DeviceId) -> MacAddress;

    /// Opens the network for the card `device` with the address `address`.
    ///
    /// # Errors
    /// Returns the reason, for people, if the host cannot do that.
    fn open(&self, device: DeviceId, address: MacAddress) -> Result<Box<dyn Network>, String>;
}

/// The networks of clients, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Netdevs(BTreeMap<String, Arc<dyn NewNetwork>>);

/// Upper bound of the networks of clients.
const MOST: usize = 64;

/// Adds a network.
pub(crate) fn add(machine: &Machine, mut arguments: Arguments) -> Result<Value, Failure> {
    let id = match arguments.remove("id") {
        Some(Value::String(id)) => id,
        Some(_) => {
            return Err(Failure::generic("Invalid parameter type for 'id', expected: string"));
        }
        None => return Err(Failure::generic("Parameter 'id' is missing")),
    };
    if !arguments.contains_key("type") {
        return Err(Failure::generic("Parameter 'type' is missing"));
    }
    let maker = machine
        .networks()
        .ok_or_else(|| Failure::generic("this machine takes no networks while it runs"))?;
    let network =
        maker.describe(&Value::Object(arguments).to_string()).map_err(Failure::generic)?;
    let is_card = machine.control.describe()?.nics.iter().any(|card| is_behind(card, &id));
    let mut netdevs = machine.netdevs();
    if is_card || netdevs.0.contains_key(&id) {
        return Err(Failure::generic(format!("Duplicate ID '{id}' for netdev")));
    }
    if netdevs.0.len() >= MOST {
        let reason =
            format!("a machine has at most {MOST} such networks: remove some by netdev_del");
        return Err(Failure::generic(reason));
    }
    netdevs.0.insert(id, network);
    done()
}

fn is_behind(card: &NicInfo, network: &str) -> bool {
    card.network.as_deref() == Some(network)
}

/// Removes a network that no card uses.
pub(crate) fn remove(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct NetdevDel {
        id: String,
    }
    let NetdevDel { id } = read(arguments)?;
    let cards = machine.control.describe()?.nics;
    if let Some(card) = cards.iter().find(|card| is_behind(card, &id)) {
        let name = card.name();
        let reason =
            format!("network '{id}' is in use by the card '{name}': remove that by device_del");
        return Err(Failure::generic(reason));
    }
    match machine.netdevs().0.remove(&id) {
        Some(_) => done(),
        None => Err(Failure::device_not_found(format!("Device '{id}' not found"))),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CardAdd {
    driver: String,
    id: Option<String>,
    bus: Option<String>,
    addr: Option<Number>,
    netdev: Option<String>,
    mac: Option<String>,
    host_mtu: Option<Number>,
    #[serde(rename = "disable-legacy")]
    disable_legacy: Option<Switch>,
    #[serde(rename = "disable-modern")]
    disable_modern: Option<Switch>,
    /// Firmware has started before such a card comes, and so its ROM is of no use.
    #[serde(rename = "romfile")]
    _rom: Option<String>,
}

/// Puts a network card of this model into a slot.
pub(crate) fn plug(
    machine: &Machine,
    model: NicModel,
    arguments: Arguments,
) -> Result<Value, Failure> {
    let asked: CardAdd = read(arguments)?;
    let slot = cards::slot(&asked.driver, asked.bus.as_deref(), asked.addr.as_ref())?;
    let model = asked.model(model)?;
    let netdev = asked.netdev.clone().ok_or_else(|| Failure::generic("netdev property not set"))?;
    let property = format!("Property '{}.netdev'", asked.driver);
    if machine.control.describe()?.nics.iter().any(|card| is_behind(card, &netdev)) {
        return Err(Failure::generic(format!(
            "{property} can't take value '{netdev}', it's in use"
        )));
    }
    let network = machine.netdevs().0.get(&netdev).cloned();
    let network = network
        .ok_or_else(|| Failure::generic(format!("{property} can't find value '{netdev}'")))?;
    let refused = |error| cards::refused(error, asked.id.as_deref());
    let device = machine.control.place_for(Kind::Nic, asked.id.clone(), slot).map_err(refused)?;
    let mac = match &asked.mac {
        Some(text) => asked.address(text)?,
        None => network.default_address(device),
    };
    let new = NewNic {
        device,
        id: asked.id.clone(),
        nic: Nic { mac, model, rom: None },
        network: network.open(device, mac).map_err(Failure::generic)?,
        network_id: Some(netdev),
    };
    machine.control.plug_nic(new).map_err(refused)?;
    done()
}

impl CardAdd {
    /// Returns `model` with the properties that are asked for.
    fn model(&self, model: NicModel) -> Result<NicModel, Failure> {
        let NicModel::Virtio(card) = model else {
            let has = [
                ("host_mtu", self.host_mtu.is_some()),
                ("disable-legacy", self.disable_legacy.is_some()),
                ("disable-modern", self.disable_modern.is_some()),
            ];
            return match has.into_iter().find(|(_, is_given)| *is_given) {
                Some((name, _)) => {
                    Err(Failure::generic(format!("Property '{}.{name}' not found", self.driver)))
                }
                None => Ok(model),
            };
        };
        let mtu = match self.host_mtu.as_ref().map(Number::value) {
            None | Some(Some(0)) => None,
            Some(Some(mtu @ 68..)) => Some(mtu),
            Some(_) => {
                let reason = "Parameter 'host_mtu' expects a number from 68 to 65535";
                return Err(Failure::generic(reason));
            }
        };
        let interfaces = cards::interfaces(self.disable_legacy, self.disable_modern)?;
        Ok(NicModel::Virtio(VirtioNic { mtu, interfaces, ..card }))
    }

    fn address(&self, text: &str) -> Result<MacAddress, Failure> {
        let address: Option<MacAddress> = text.parse().ok();
        address.filter(|address| !address.is_group()).ok_or_else(|| {
            Failure::generic(format!("Property '{}.mac' doesn't take value '{text}'", self.driver))
        })
    }
}
