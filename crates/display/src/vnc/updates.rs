//! Writes framebuffer updates to a client after the handshake (RFC 6143, section 7.6.1).

use std::io::{self, Write};

use ring3_core::display::Pixels;
use ring3_host::stream::Stream;
use thiserror::Error;

use super::hextile;
use super::hub::{Abilities, Encoding, Hub, Notice, Request};
use super::pixel_format::PixelWriter;
use super::view::{Rect, View, fitted, rows};
use super::zrle::{ZlibError, Zrle};

/// Numbers of encodings and pseudo-encodings (RFC 6143, sections 7.7 and 7.8; for ExtendedDesktopSize and
/// the extended key event, "The RFB Protocol" of the rfbproto project).
pub(crate) mod encodings {
    pub(crate) const RAW: i32 = 0;
    pub(crate) const HEXTILE: i32 = 5;
    pub(crate) const ZRLE: i32 = 16;
    pub(crate) const DESKTOP_SIZE: i32 = -223;
    pub(crate) const EXTENDED_DESKTOP_SIZE: i32 = -308;
    pub(crate) const EXTENDED_KEY_EVENT: i32 = -258;
}
use encodings::*;

/// The type of the message.
const FRAMEBUFFER_UPDATE: u8 = 0;

/// The values that ExtendedDesktopSize carries in place of a rectangle's x and y: the reason for the message,
/// and whether a client's request was granted.
const BY_THE_SERVER: usize = 0;
const BY_THIS_CLIENT: usize = 1;
const GRANTED: usize = 0;
const PROHIBITED: usize = 1;

/// Why the writer of a client has stopped.
#[derive(Debug, Error)]
pub(crate) enum UpdateError {
    #[error(transparent)]
    Connection(#[from] io::Error),
    #[error(transparent)]
    Zlib(#[from] ZlibError),
}

/// Writes updates to a client until it disconnects or the server ends. The client's screen has the size
/// `width` by `height` at first.
pub(crate) fn write_updates(
    hub: &Hub,
    id: u64,
    mut connection: Stream,
    (width, height): (usize, usize),
) -> Result<(), UpdateError> {
    let mut updates = Updates::new(width, height);
    while let Some(turn) = hub.turn(id) {
        updates.set_format(PixelWriter::new(turn.format));
        for notice in turn.notices {
            updates.notice(notice);
        }
        let mut unanswered = None;
        if let Some((request, screen)) = turn.update {
            let answered = updates.answer(&request, &screen, turn.abilities)?;
            unanswered = (!answered).then_some(request);
        }
        connection.write_all(&updates.take())?;
        hub.turn_is_over(id, unanswered);
    }
    Ok(())
}

/// Makes the updates for one client.
struct Updates {
    view: View,
    zrle: Zrle,
    writer: PixelWriter,
    out: Vec<u8>,
}

impl Updates {
    fn new(width: usize, height: usize) -> Updates {
        Updates {
            view: View::new(width, height),
            zrle: Zrle::new(),
            writer: PixelWriter::new(super::pixel_format::PixelFormat::NATIVE),
            out: Vec::new(),
        }
    }

    fn set_format(&mut self, writer: PixelWriter) {
        self.writer = writer;
    }

    /// Takes the bytes to be written, and their buffer with them: an update may be large, and the next one
    /// small.
    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::ExtendedKeys => {
                self.start(1);
                self.rectangle(Rect::all(0, 0), EXTENDED_KEY_EVENT);
            }
            Notice::Size => self.extended_size(BY_THE_SERVER, GRANTED),
            Notice::SizeIsFixed => self.extended_size(BY_THIS_CLIENT, PROHIBITED),
        }
    }

    /// Answers a request with the changes on `screen`. Returns false if there are none.
    fn answer(
        &mut self,
        request: &Request,
        screen: &Pixels,
        abilities: Abilities,
    ) -> Result<bool, UpdateError> {
        let mut area = request.area;
        if let Some(again) = request.again {
            self.view.spoil(again);
        }
        let new_size = (screen.width, screen.height) != self.view.size();
        if new_size && (abilities.extended_desktop_size || abilities.desktop_size) {
            self.view = View::new(screen.width, screen.height);
            area = Rect::all(screen.width, screen.height);
            if abilities.extended_desktop_size {
                self.extended_size(BY_THE_SERVER, GRANTED);
            } else {
                self.start(1);
                self.rectangle(area, DESKTOP_SIZE);
            }
        }
        // A client that cannot change its size sees the part that fits.
        let (width, height) = self.view.size();
        let screen = fitted(screen, width, height);
        let changes = self.view.update(&screen, area);
        if changes.is_empty() {
            return Ok(false);
        }
        self.start(changes.len() as u16);
        for rect in changes {
            self.contents(&screen, rect, abilities.encoding)?;
        }
        Ok(true)
    }

    fn contents(
        &mut self,
        screen: &Pixels,
        rect: Rect,
        encoding: Encoding,
    ) -> Result<(), UpdateError> {
        match encoding {
            Encoding::Raw => {
                self.rectangle(rect, RAW);
                for colour in rows(screen, rect).flatten() {
                    self.writer.pixel(*colour, &mut self.out);
                }
            }
            Encoding::Hextile => {
                self.rectangle(rect, HEXTILE);
                hextile::encode(screen, rect, &self.writer, &mut self.out);
            }
            Encoding::Zrle => {
                self.rectangle(rect, ZRLE);
                self.zrle.encode(screen, rect, &self.writer, &mut self.out)?;
            }
        }
        Ok(())
    }

    /// Adds an update of the size alone, with the one screen that exists.
    fn extended_size(&mut self, reason: usize, status: usize) {
        let (width, height) = self.view.size();
        self.start(1);
        self.rectangle(Rect { x: reason, y: status, width, height }, EXTENDED_DESKTOP_SIZE);
        self.out.extend_from_slice(&[1, 0, 0, 0]); // number of screens, padding
        self.out.extend_from_slice(&0u32.to_be_bytes()); // its number
        for number in [0, 0, width, height] {
            self.out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        self.out.extend_from_slice(&0u32.to_be_bytes()); // flags
    }

    /// Begins a message with `rectangles` rectangles.
    fn start(&mut self, rectangles: u16) {
        self.out.extend_from_slice(&[FRAMEBUFFER_UPDATE, 0]);
        self.out.extend_from_slice(&rectangles.to_be_bytes());
    }

    /// Begins a rectangle.
    fn rectangle(&mut self, rect: Rect, encoding: i32) {
        for number in [rect.x, rect.y, rect.width, rect.height] {
            self.out.extend_from_slice(&(number as u16).to_be_bytes());
        }
        self.out.extend_from_slice(&encoding.to_be_bytes());
    }
}
