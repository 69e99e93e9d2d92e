//! Which packets a card takes (virtio 1.2, 5.1.6.5.1 and 5.1.6.5.2).

use ring3_core::net::MacAddress;
use serde::{Deserialize, Serialize};

/// Addresses of each kind that are remembered. Of more the card takes all of that kind.
pub(super) const TABLE_MAX: usize = 64;

/// What the driver has said of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Filter {
    address: MacAddress,
    pub(super) modes: Modes,
    /// Further addresses of this card, and of groups.
    cards: Table,
    groups: Table,
}

/// What is taken or refused whatever the tables say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Modes {
    pub(super) promiscuous: bool,
    pub(super) all_groups: bool,
    pub(super) all_cards: bool,
    pub(super) no_groups: bool,
    pub(super) no_cards: bool,
    pub(super) no_broadcast: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Table {
    addresses: Vec<MacAddress>,
    /// There were more of them.
    overflows: bool,
}

impl Table {
    fn new(addresses: &[[u8; 6]]) -> Table {
        let overflows = addresses.len() > TABLE_MAX;
        let addresses = if overflows { &[] } else { addresses };
        Table { addresses: addresses.iter().copied().map(MacAddress).collect(), overflows }
    }

    fn has(&self, address: MacAddress) -> bool {
        self.overflows || self.addresses.contains(&address)
    }
}

impl Filter {
    /// That of a card which nobody has told anything: a driver may know nothing of filters.
    pub(super) fn new(address: MacAddress) -> Filter {
        let modes = Modes { promiscuous: true, ..Modes::default() };
        Filter { address, modes, cards: Table::default(), groups: Table::default() }
    }

    /// The card's own address.
    pub(super) fn address(&self) -> MacAddress {
        self.address
    }

    pub(super) fn set_address(&mut self, address: MacAddress) {
        self.address = address;
    }

    /// Further addresses, and those of groups.
    pub(super) fn set_tables(&mut self, cards: &[[u8; 6]], groups: &[[u8; 6]]) {
        (self.cards, self.groups) = (Table::new(cards), Table::new(groups));
    }

    /// The card takes a packet that goes to `address`.
    pub(super) fn passes(&self, address: MacAddress) -> bool {
        let modes = self.modes;
        if modes.promiscuous {
            true
        } else if address == MacAddress::BROADCAST {
            !modes.no_broadcast
        } else if address.is_group() {
            modes.all_groups || !modes.no_groups && self.groups.has(address)
        } else {
            let is_ours = address == self.address || self.cards.has(address);
            modes.all_cards || !modes.no_cards && is_ours
        }
    }

    /// False for what no driver can have said.
    pub(super) fn is_possible(&self) -> bool {
        [&self.cards, &self.groups].iter().all(|table| table.addresses.len() <= TABLE_MAX)
    }
}
