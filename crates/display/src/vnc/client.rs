//! Serves one client: the handshake and the messages that the client sends (RFC 6143, sections 7.1 to 7.5).

use std::io::{self, BufReader, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ring3_core::display::Pixels;
use ring3_core::input::DeviceInput;
use ring3_host::admission::Admitted;
use ring3_host::stream::Stream;
use thiserror::Error;
use tracing::debug;

use super::hub::{Abilities, Encoding, Hub, Notice};
use super::keyboard::{Change, Keyboard};
use super::pixel_format::{BadFormat, ENCODED_LENGTH, PixelFormat};
use super::pointer::Pointer;
use super::updates::{encodings, write_updates};
use super::view::Rect;
use crate::Machine;

/// How long each step of the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The time between two keys or movements that are sent to the machine. It gives the guest time to fetch
/// them, since a keyboard's buffer is small, and bounds the input from a client.
const SPACING: Duration = Duration::from_millis(5);

/// The security type without authentication.
const SECURITY_NONE: u8 = 1;

/// Numbers of messages that clients send (section 7.5; the last two are those of "The RFB Protocol"
/// of the rfbproto project).
mod messages {
    pub(super) const SET_PIXEL_FORMAT: u8 = 0;
    pub(super) const SET_ENCODINGS: u8 = 2;
    pub(super) const FRAMEBUFFER_UPDATE_REQUEST: u8 = 3;
    pub(super) const KEY_EVENT: u8 = 4;
    pub(super) const POINTER_EVENT: u8 = 5;
    pub(super) const CLIENT_CUT_TEXT: u8 = 6;
    pub(super) const SET_DESKTOP_SIZE: u8 = 251;
    pub(super) const QEMU: u8 = 255;
    /// The extended key event, one of QEMU's messages.
    pub(super) const QEMU_EXTENDED_KEY_EVENT: u8 = 0;
}

/// Why a connection has ended.
#[derive(Debug, Error)]
pub(crate) enum ClientError {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error("the client does not speak RFB 3: it says {0:?}")]
    Version(String),
    #[error("the client chose the security type {0}, which was not offered")]
    Security(u8),
    #[error("the client asked for {0}")]
    Format(#[from] BadFormat),
    #[error("the client sent a message of the unknown type {0}")]
    Message(u8),
    #[error("the client sent a QEMU message of the unknown type {0}")]
    QemuMessage(u8),
}

/// The versions of the protocol between which this server distinguishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Version {
    V3_3,
    V3_7,
    V3_8,
}

/// Serves the client with the number `id` until it disconnects.
pub(crate) fn serve(
    hub: &Arc<Hub>,
    id: u64,
    machine: &dyn Machine,
    mut connection: Stream,
    admitted: &Admitted,
) -> Result<(), ClientError> {
    connection.set_patience(Some(HANDSHAKE))?;
    let Some(screen) = handshake(hub, id, &mut connection)? else { return Ok(()) };
    admitted.is_active();
    connection.set_patience(None)?;

    let size = (screen.width, screen.height);
    let writer = {
        let (hub, connection) = (Arc::clone(hub), connection.try_clone()?);
        thread::Builder::new().name("vnc writer".into()).spawn(move || {
            if let Err(error) = write_updates(&hub, id, connection, size) {
                debug!("nothing more can be sent to VNC client {id}: {error}");
            }
            hub.leave(id);
        })?
    };
    let mut messages = Messages {
        hub,
        id,
        machine,
        from: BufReader::new(connection),
        keyboard: Keyboard::new(Arc::clone(&hub.caps_lock)),
        pointer: Pointer::default(),
    };
    let ended = messages.read_all();
    messages.release_all();
    hub.leave(id);
    // A writer that has panicked has already printed its message.
    let _ = writer.join();
    ended
}

/// Performs the handshake of sections 7.1 to 7.3. Returns the screen whose size the client was told, or None
/// if the machine has ended.
fn handshake(
    hub: &Hub,
    id: u64,
    connection: &mut Stream,
) -> Result<Option<Arc<Pixels>>, ClientError> {
    connection.write_all(b"RFB 003.008\n")?;
    let version = version(&read_array(connection)?)?;
    if version == Version::V3_3 {
        connection.write_all(&u32::from(SECURITY_NONE).to_be_bytes())?;
    } else {
        connection.write_all(&[1, SECURITY_NONE])?;
        let [chosen] = read_array(connection)?;
        if chosen != SECURITY_NONE {
            if version >= Version::V3_8 {
                let reason = b"only the security type None is offered";
                connection.write_all(&1u32.to_be_bytes())?;
                connection.write_all(&(reason.len() as u32).to_be_bytes())?;
                connection.write_all(reason)?;
            }
            return Err(ClientError::Security(chosen));
        }
        if version >= Version::V3_8 {
            connection.write_all(&0u32.to_be_bytes())?;
        }
    }

    // A client may ask not to share the screen, but here it always shares.
    let [_shared] = read_array(connection)?;
    let Some(screen) = hub.fresh_screen(id) else { return Ok(None) };
    let name = b"ring3";
    let mut hello = Vec::new();
    hello.extend_from_slice(&(screen.width as u16).to_be_bytes());
    hello.extend_from_slice(&(screen.height as u16).to_be_bytes());
    hello.extend_from_slice(&PixelFormat::NATIVE.encode());
    hello.extend_from_slice(&(name.len() as u32).to_be_bytes());
    hello.extend_from_slice(name);
    connection.write_all(&hello)?;
    Ok(Some(screen))
}

/// Returns the version to speak with a client that has sent `greeting`. Versions that were never published
/// count as 3.3 (section 7.1.1), and those after 3.8 as 3.8.
fn version(greeting: &[u8; 12]) -> Result<Version, ClientError> {
    let wrong = || ClientError::Version(String::from_utf8_lossy(greeting).trim_end().to_owned());
    let minor = greeting.strip_prefix(b"RFB 003.").and_then(|rest| rest.strip_suffix(b"\n"));
    let minor = minor.filter(|minor| minor.iter().all(u8::is_ascii_digit)).ok_or_else(wrong)?;
    Ok(match minor {
        b"007" => Version::V3_7,
        minor if minor >= b"008".as_slice() => Version::V3_8,
        _ => Version::V3_3,
    })
}

fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut array = [0; N];
    from.read_exact(&mut array)?;
    Ok(array)
}

/// Reads the messages that a client sends.
struct Messages<'a> {
    hub: &'a Hub,
    id: u64,
    machine: &'a dyn Machine,
    from: BufReader<Stream>,
    keyboard: Keyboard,
    pointer: Pointer,
}

impl Messages<'_> {
    /// Reads messages until the client disconnects or sends an invalid one.
    fn read_all(&mut self) -> Result<(), ClientError> {
        loop {
            if self.from.buffer().is_empty() {
                self.move_mouse();
            }
            let kind = match read_array(&mut self.from) {
                Ok([kind]) => kind,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            self.read_message(kind)?;
        }
    }

    fn read_message(&mut self, kind: u8) -> Result<(), ClientError> {
        match kind {
            messages::SET_PIXEL_FORMAT => {
                let [_, _, _] = read_array(&mut self.from)?;
                let format: [u8; ENCODED_LENGTH] = read_array(&mut self.from)?;
                self.hub.set_format(self.id, PixelFormat::decode(&format)?);
            }
            messages::SET_ENCODINGS => self.set_encodings()?,
            messages::FRAMEBUFFER_UPDATE_REQUEST => {
                let [incremental] = read_array(&mut self.from)?;
                let [x, y, width, height] = self.read_u16s()?.map(usize::from);
                self.hub.request(self.id, Rect { x, y, width, height }, incremental == 0);
            }
            messages::KEY_EVENT => {
                let [pressed, _, _] = read_array(&mut self.from)?;
                let keysym = u32::from_be_bytes(read_array(&mut self.from)?);
                let changes = self.keyboard.keysym(keysym, pressed != 0);
                self.change_keys(&changes);
            }
            messages::POINTER_EVENT => {
                let [buttons] = read_array(&mut self.from)?;
                let [x, y] = self.read_u16s()?;
                if let Some(before) = self.pointer.event(buttons, x, y) {
                    self.send(DeviceInput::Mouse(before));
                }
            }
            messages::CLIENT_CUT_TEXT => {
                let [_, _, _] = read_array(&mut self.from)?;
                let length = u32::from_be_bytes(read_array(&mut self.from)?);
                self.skip(u64::from(length))?;
            }
            messages::SET_DESKTOP_SIZE => {
                let [_] = read_array(&mut self.from)?;
                let [_width, _height] = self.read_u16s()?;
                let [screens, _] = read_array(&mut self.from)?;
                self.skip(16 * u64::from(screens))?;
                self.hub.notify(self.id, Notice::SizeIsFixed);
            }
            messages::QEMU => {
                let [kind] = read_array(&mut self.from)?;
                if kind != messages::QEMU_EXTENDED_KEY_EVENT {
                    return Err(ClientError::QemuMessage(kind));
                }
                let [pressed] = self.read_u16s()?;
                let keysym = u32::from_be_bytes(read_array(&mut self.from)?);
                let keycode = u32::from_be_bytes(read_array(&mut self.from)?);
                let changes = match keycode {
                    // The client knows no code for the key.
                    0 => self.keyboard.keysym(keysym, pressed != 0),
                    _ => self.keyboard.keycode(keycode, pressed != 0),
                };
                self.change_keys(&changes);
            }
            unknown => return Err(ClientError::Message(unknown)),
        }
        Ok(())
    }

    /// Uses the first encoding that this server knows. Clients list encodings in the order of their
    /// preference.
    fn set_encodings(&mut self) -> Result<(), ClientError> {
        let [_] = read_array(&mut self.from)?;
        let [count] = self.read_u16s()?;
        let mut encoding = None;
        let mut abilities = Abilities::default();
        let mut extended_keys = false;
        for _ in 0..count {
            match i32::from_be_bytes(read_array(&mut self.from)?) {
                encodings::RAW => encoding = encoding.or(Some(Encoding::Raw)),
                encodings::HEXTILE => encoding = encoding.or(Some(Encoding::Hextile)),
                encodings::ZRLE => encoding = encoding.or(Some(Encoding::Zrle)),
                encodings::DESKTOP_SIZE => abilities.desktop_size = true,
                encodings::EXTENDED_DESKTOP_SIZE => abilities.extended_desktop_size = true,
                encodings::EXTENDED_KEY_EVENT => extended_keys = true,
                _ => {}
            }
        }
        abilities.encoding = encoding.unwrap_or_default();
        self.hub.set_abilities(self.id, abilities);
        if extended_keys {
            self.hub.notify(self.id, Notice::ExtendedKeys);
        }
        if abilities.extended_desktop_size {
            self.hub.notify(self.id, Notice::Size);
        }
        Ok(())
    }

    /// Skips bytes that have no meaning here.
    fn skip(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut (&mut self.from).take(bytes), &mut io::sink()).map(drop)
    }

    fn read_u16s<const N: usize>(&mut self) -> io::Result<[u16; N]> {
        let mut numbers = [0; N];
        for number in &mut numbers {
            *number = u16::from_be_bytes(read_array(&mut self.from)?);
        }
        Ok(numbers)
    }

    fn change_keys(&mut self, changes: &[Change]) {
        // The mouse was moved before the key was pressed.
        self.move_mouse();
        for (key, pressed) in changes {
            self.send(DeviceInput::Key { key: *key, pressed: *pressed });
        }
    }

    fn move_mouse(&mut self) {
        if let Some(moved) = self.pointer.take() {
            self.send(DeviceInput::Mouse(moved));
        }
    }

    /// Releases the keys and buttons that the client held when it disconnected.
    fn release_all(&mut self) {
        let keys = self.keyboard.release_all();
        self.change_keys(&keys);
        if let Some(released) = self.pointer.release_all() {
            self.send(DeviceInput::Mouse(released));
        }
    }

    fn send(&mut self, input: DeviceInput) {
        self.machine.send(input);
        self.hub.hurry();
        thread::sleep(SPACING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let known = |greeting: &[u8; 12]| version(greeting).ok();
        assert_eq!(known(b"RFB 003.003\n"), Some(Version::V3_3));
        assert_eq!(known(b"RFB 003.005\n"), Some(Version::V3_3));
        assert_eq!(known(b"RFB 003.007\n"), Some(Version::V3_7));
        assert_eq!(known(b"RFB 003.008\n"), Some(Version::V3_8));
        assert_eq!(known(b"RFB 003.889\n"), Some(Version::V3_8));
        for wrong in [b"RFB 004.000\n", b"RFB 003.0x8\n", b"GET / HTTP/1", b"RFB 003.0088"] {
            assert_eq!(known(wrong), None);
        }
    }
}
