//! The network cards that are compared.

/// What may be at both ends.
#[derive(Debug)]
pub(in super::super) struct Card {
    pub(super) name: &'static str,
    /// The word of `-device`.
    pub(super) device: &'static str,
    /// Linux's modules for it.
    pub(super) modules: &'static str,
    /// How much of the work it does, in parts of [`SHARES`]: slow cards do less of it.
    pub(super) share: u32,
}

pub(super) const SHARES: u32 = 16;

pub(super) const CARDS: [Card; 3] = [
    Card {
        name: "virtio",
        device: "virtio-net-pci",
        modules: "virtio_pci virtio_net",
        share: SHARES,
    },
    Card { name: "e1000", device: "e1000", modules: "e1000", share: 6 },
    Card { name: "ne2k_pci", device: "ne2k_pci", modules: "ne2k-pci", share: 2 },
];

/// The card that users call so.
pub(in super::super) fn named(name: &str) -> Result<&'static Card, String> {
    let found = CARDS.iter().find(|card| card.name == name);
    let names = || CARDS.iter().map(|card| card.name).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("there is no such card to measure; there are {}", names()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_names() {
        assert_eq!(named("e1000").unwrap().modules, "e1000");
        let error = named("rtl8139").unwrap_err();
        assert!(error.ends_with("virtio, e1000, ne2k_pci"), "{error}");
    }
}
