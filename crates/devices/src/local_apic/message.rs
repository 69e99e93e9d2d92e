//! What travels between I/O APIC and local APICs (SDM vol. 3, 12.6 and 12.7).

/// A message of the I/O APIC or of a local APIC to local APICs (12.6.1, 12.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Whom it is for: an APIC ID, or with `logical` a message destination address. FFh is everybody.
    pub destination: u8,
    /// The logical destination mode (12.6.2.2).
    pub logical: bool,
    /// What is to be done.
    pub delivery: Delivery,
    /// The vector, for those deliveries that have one.
    pub vector: u8,
    /// From a level-triggered source, which waits for the end of the interrupt.
    pub level: bool,
}

impl Message {
    /// An edge-triggered interrupt `vector` for the local APIC `destination`.
    pub const fn fixed(vector: u8, destination: u8) -> Message {
        Message { destination, logical: false, delivery: Delivery::Fixed, vector, level: false }
    }
}

/// The delivery mode (12.5.1, 12.6.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// An interrupt with the vector given.
    Fixed,
    /// The same for one of several processors.
    LowestPriority,
    /// A system management interrupt.
    Smi,
    /// A nonmaskable interrupt.
    Nmi,
    /// A reset of the processor alone.
    Init,
    /// Start-up of a processor that waits after INIT.
    StartUp,
    /// An interrupt for which the 8259A names the vector.
    ExtInt,
}

impl Delivery {
    /// What bits 10 to 8 of an entry of the local vector table, of the interrupt command register or
    /// of a redirection entry mean; nothing for the reserved value 3.
    pub const fn from_register(value: u32) -> Option<Delivery> {
        match value >> 8 & 7 {
            0 => Some(Delivery::Fixed),
            1 => Some(Delivery::LowestPriority),
            2 => Some(Delivery::Smi),
            4 => Some(Delivery::Nmi),
            5 => Some(Delivery::Init),
            6 => Some(Delivery::StartUp),
            7 => Some(Delivery::ExtInt),
            _ => None,
        }
    }
}
