//! The screen of the machine: in the terminal, or for VNC clients.

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ring3_core::device::DeviceId;
use ring3_core::display::Picture;
use ring3_core::input::{DeviceInput, Input};
use ring3_display::{Ended, Machine, terminal, vnc};
use ring3_vm::Control;
use thiserror::Error;
use tracing::{info, warn};

/// The place where the screen is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DisplayTarget {
    /// The screen is not shown.
    None,
    /// In the terminal.
    Terminal,
    /// By VNC, to clients that connect to this address.
    Vnc(vnc::Address),
}

/// The reasons why a `--display` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum BadDisplay {
    #[error(
        "give none, terminal or vnc:WHERE, where WHERE is unix:PATH, or :N for display N of this host"
    )]
    Unknown,
    #[error(transparent)]
    Address(#[from] vnc::AddressError),
}

impl FromStr for DisplayTarget {
    type Err = BadDisplay;

    fn from_str(text: &str) -> Result<DisplayTarget, BadDisplay> {
        match text {
            "none" => Ok(DisplayTarget::None),
            "terminal" => Ok(DisplayTarget::Terminal),
            "vnc" => Ok(DisplayTarget::Vnc(":0".parse()?)),
            _ => match text.strip_prefix("vnc:") {
                // The address may begin with a colon, too: vnc::1.
                Some(address) => Ok(DisplayTarget::Vnc(address.parse()?)),
                None => Err(BadDisplay::Unknown),
            },
        }
    }
}

/// The reasons why there is no display.
#[derive(Debug, Error)]
pub(crate) enum DisplayError {
    #[error(transparent)]
    Listen(#[from] vnc::ListenError),
    #[error("cannot start the display: {0}")]
    Start(#[source] io::Error),
}

/// A display that runs.
pub(crate) enum Display {
    None,
    Terminal(JoinHandle<()>),
    Vnc { _server: vnc::Server },
}

impl Display {
    /// Shows the screen of the machine behind `control`.
    pub(crate) fn start(
        target: &DisplayTarget,
        control: &Control,
    ) -> Result<Display, DisplayError> {
        let machine = Controlled(control.clone());
        match target {
            DisplayTarget::None => Ok(Display::None),
            DisplayTarget::Terminal => {
                let run = move || match terminal::run(&machine) {
                    Ok(terminal::Ending::Quit) => machine.0.quit(),
                    Ok(terminal::Ending::MachineEnded) => {}
                    Err(error) => {
                        warn!("cannot show the screen in the terminal: {error}");
                        machine.0.quit();
                    }
                };
                let thread = thread::Builder::new().name("display".into()).spawn(run);
                Ok(Display::Terminal(thread.map_err(DisplayError::Start)?))
            }
            DisplayTarget::Vnc(address) => {
                let listener = vnc::Listener::bind(address)?;
                info!("the screen is at {:?}", listener.address());
                let server =
                    vnc::serve(listener, Arc::new(machine)).map_err(DisplayError::Start)?;
                Ok(Display::Vnc { _server: server })
            }
        }
    }

    /// Waits until the terminal is restored. The machine must have ended.
    pub(crate) fn finish(self) {
        if let Display::Terminal(thread) = self {
            // If the thread has panicked, its message has said why.
            let _ = thread.join();
        }
    }
}

/// The machine as displays see it.
struct Controlled(Control);

impl Machine for Controlled {
    fn picture(&self) -> Result<Option<Picture>, Ended> {
        self.0.picture().map_err(|_| Ended)
    }

    fn send(&self, input: DeviceInput) {
        // A guest that takes no keys must not stop the display.
        self.0.sender().offer(Input::Device { device: DeviceId::I8042, input });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read() {
        assert_eq!("none".parse(), Ok(DisplayTarget::None));
        assert_eq!("vnc".parse(), Ok(DisplayTarget::Vnc(":0".parse().unwrap())));
        let socket = "unix:/tmp/screen".parse().unwrap();
        assert_eq!("vnc:unix:/tmp/screen".parse(), Ok(DisplayTarget::Vnc(socket)));
        assert_eq!("sdl".parse::<DisplayTarget>(), Err(BadDisplay::Unknown));
        assert!("vnc:0.0.0.0:1".parse::<DisplayTarget>().is_err());
    }
}
