//! What a person sees of a machine and how he types into it.
//!
//! * [`terminal`]: the screen in the terminal, as QEMU's curses display has it;
//! * [`vnc`]: a server for VNC clients (RFC 6143, the Remote Framebuffer protocol);
//! * [`tty`]: the terminal itself, in raw mode and full of the guest's screen, and how it was before;
//! * [`escape`]: the escape key, by which the person at a terminal speaks to ring3 and not to the guest.
//!
//! Both displays ask a [`Machine`] for its [`Picture`] and send it what was typed. They run
//! on threads of their own, look at the host's clock and know nothing of how the machine is run.
//! Neither asks for pictures more than 30 times a second, and both ask more seldom while nothing changes.
//!
//! `cargo run --example fake_screen -- --help` shows a moving screen by either, without a machine.
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
    /// What the screen shows now; nothing when the machine has no display adapter, or when that shows nothing.
    fn picture(&self) -> Result<Option<Picture>, Ended>;

    /// Takes a key or a movement of the mouse to the keyboard controller.
    fn send(&self, input: DeviceInput);
}

/// There is no machine any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the machine has ended")]
pub struct Ended;
