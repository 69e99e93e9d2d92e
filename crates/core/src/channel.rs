//! What passes between the two ends of a channel: a program in the guest, and one outside.
//!
//! A channel is a stream of bytes in both directions, which the guest's programs know by a name, and which is no terminal. Neither
//! end sends more than [`WINDOW`] bytes that the other one has not taken, so nothing is lost, and nobody has to keep more.

use serde::{Deserialize, Serialize};

/// Upper bound of the bytes that one end has sent and the other one has not yet taken.
pub const WINDOW: usize = 64 << 10;
/// Upper bound of the channels of a machine.
pub const CHANNELS_MAX: usize = 15;
/// Upper bound of the bytes of a name. Linux shows it in a file of one page.
pub const NAME_MAX: usize = 255;

/// What one end of a channel does, for the other end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChannelEvent {
    /// A program is there.
    Opened,
    /// It has gone. What was sent to it and not taken is lost.
    Closed,
    /// It sends bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// It has taken so many bytes more.
    Taken(u32),
    /// The guest's end knows that a program outside is there, for which all is that it sends from now on.
    Heard,
}

/// What is known of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelStatus {
    /// Its name.
    pub name: String,
    /// Whether a program in the guest has it open.
    pub is_open: bool,
    /// Whether a program outside is there, as far as the guest knows.
    pub is_connected: bool,
    /// The bytes from outside that the guest has not taken.
    pub waiting: usize,
    /// The bytes that the guest has sent and those outside have not taken.
    pub sent: u32,
}
