//! Shows a machine's screen to people and takes what they type.
//!
//! * [`terminal`]: the screen in the terminal, like QEMU's curses display;
//! * [`vnc`]: a server for VNC clients (RFC 6143, the Remote Framebuffer protocol);
//! * [`tty`]: puts the terminal into raw mode or fills it with the guest's screen, and restores it;
//! * [`escape`]: the escape key, by which a person at a terminal addresses ring3 instead of the guest.
//!
//! Both displays ask a [`Machine`] for its [`Picture`] and send it the keys that are typed. They run on
//! threads of their own, use the host's clock and do not know how the machine is run. They ask for at most 30
//! pictures a second, and for fewer while nothing changes.
//!
//! `cargo run --example fake_screen -- --help` shows a moving screen on either display, without a machine.
#![forbid(unsafe_code)]

use ring3_core::display::Picture;
use ring3_core::input::DeviceInput;
use thiserror::Error;

pub mod escape;
mod rate;
pub mod terminal;
pub mod tty;
pub mod vnc;

/// The machine, as displays see it.
pub trait Machine: Send + Sync {
    /// Returns the present picture, or None if the machine has no display adapter or the adapter shows
    /// nothing.
    fn picture(&self) -> Result<Option<Picture>, Ended>;

    /// Sends a key or a movement of the mouse to the keyboard controller.
    fn send(&self, input: DeviceInput);
}

/// The error for a machine that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the machine has ended")]
pub struct Ended;
