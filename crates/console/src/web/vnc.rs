//! A machine's screen, from its VNC server (RFC 6143).
//!
//! The server compares pictures and sends only what has changed, and only when it is asked. It is not believed: what
//! it sends may come from a guest that has taken over the process of its machine.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use ring3_core::display::Pixels;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// How long the handshake may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most pixels of a screen.
const PIXELS_MAX: usize = 1 << 23;
/// The most bytes of a name.
const NAME_MAX: u32 = 256;
/// The bytes of a pixel.
const PIXEL: usize = 4;

/// SetPixelFormat: 32 bits a pixel, of which the first byte is red, then green, then blue, as a canvas has them.
const SET_PIXEL_FORMAT: [u8; 20] =
    [0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 0, 8, 16, 0, 0, 0];
/// SetEncodings: Raw, and that the size of the screen may change.
const SET_ENCODINGS: [u8; 12] = [2, 0, 0, 2, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x21];
const RAW: i32 = 0;
const DESKTOP_SIZE: i32 = -223;

/// A rectangle of a screen: column, row, width and height.
pub(super) type Rect = [u16; 4];

/// A change of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    /// Columns and rows of the whole screen.
    pub(super) size: (u16, u16),
    /// The parts that have changed, with their pixels: red, green, blue and 255.
    pub(super) parts: Vec<(Rect, Vec<u8>)>,
}

/// A connection with the server.
#[derive(Debug)]
pub(super) struct Connection {
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    size: (u16, u16),
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

impl Connection {
    /// Connects to the server at `socket`.
    pub(super) async fn open(socket: &Path) -> io::Result<Connection> {
        let (from, to) = UnixStream::connect(socket).await?.into_split();
        let mut connection = Connection { from: BufReader::new(from), to, size: (0, 0) };
        let answer = timeout(PATIENCE, connection.shake_hands()).await;
        answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))?;
        Ok(connection)
    }

    async fn shake_hands(&mut self) -> io::Result<()> {
        let mut version = [0; 12];
        self.from.read_exact(&mut version).await?;
        if version != *b"RFB 003.008\n" {
            return Err(wrong("it speaks another version"));
        }
        self.to.write_all(&version).await?;
        let mut kinds = vec![0; self.from.read_u8().await?.into()];
        self.from.read_exact(&mut kinds).await?;
        if !kinds.contains(&1) {
            return Err(wrong("it wants a password"));
        }
        // The security type None, and a shared screen.
        self.to.write_all(&[1]).await?;
        if self.from.read_u32().await? != 0 {
            return Err(wrong("it refuses"));
        }
        self.to.write_all(&[1]).await?;
        self.size = (self.from.read_u16().await?, self.from.read_u16().await?);
        self.check_size()?;
        // The format of its own, and its name.
        self.from.read_exact(&mut [0; 16]).await?;
        let length = self.from.read_u32().await?;
        if length > NAME_MAX {
            return Err(wrong("its name is too long"));
        }
        self.from.read_exact(&mut vec![0; length as usize]).await?;
        self.to.write_all(&SET_PIXEL_FORMAT).await?;
        self.to.write_all(&SET_ENCODINGS).await
    }

    fn check_size(&self) -> io::Result<()> {
        let pixels = usize::from(self.size.0) * usize::from(self.size.1);
        if pixels <= PIXELS_MAX { Ok(()) } else { Err(wrong("the screen is too large")) }
    }

    /// Asks for the whole screen, or for what has changed since the last answer.
    pub(super) async fn ask(&mut self, only_changes: bool) -> io::Result<()> {
        self.request(only_changes, self.size).await
    }

    /// Tells the server that the screen will change soon. It looks more often then. A small part is sent again.
    pub(super) async fn hurry(&mut self) -> io::Result<()> {
        self.request(false, (1, 1)).await
    }

    async fn request(&mut self, only_changes: bool, (width, height): (u16, u16)) -> io::Result<()> {
        let mut message = vec![3, u8::from(only_changes), 0, 0, 0, 0];
        message.extend(width.to_be_bytes());
        message.extend(height.to_be_bytes());
        self.to.write_all(&message).await
    }

    /// Waits until the server says something. This may be given up, and begun again.
    pub(super) async fn speaks(&mut self) -> io::Result<()> {
        let is_over = self.from.fill_buf().await?.is_empty();
        if is_over { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }

    /// Reads what the server says: a change, unless it is something that does not matter here.
    pub(super) async fn change(&mut self) -> io::Result<Option<Change>> {
        match self.from.read_u8().await? {
            0 => {}
            // Bell.
            2 => return Ok(None),
            _ => return Err(wrong("it sends a message that was not asked for")),
        }
        self.from.read_u8().await?;
        let mut parts = Vec::new();
        let mut total = 0;
        for _ in 0..self.from.read_u16().await? {
            let mut rect: Rect = [0; 4];
            for number in &mut rect {
                *number = self.from.read_u16().await?;
            }
            let [x, y, width, height] = rect;
            match self.from.read_i32().await? {
                DESKTOP_SIZE => {
                    self.size = (width, height);
                    self.check_size()?;
                    parts.clear();
                }
                RAW => {
                    let fits = |from: u16, length: u16, most: u16| {
                        from.checked_add(length).is_some_and(|end| end <= most)
                    };
                    total += usize::from(width) * usize::from(height);
                    // A server that sends the same twice in a message wants to fill memory.
                    if !fits(x, width, self.size.0)
                        || !fits(y, height, self.size.1)
                        || total > PIXELS_MAX
                    {
                        return Err(wrong("it draws beside the screen"));
                    }
                    let mut pixels = vec![0; usize::from(width) * usize::from(height) * PIXEL];
                    self.from.read_exact(&mut pixels).await?;
                    pixels.chunks_exact_mut(PIXEL).for_each(|pixel| pixel[3] = 255);
                    parts.push((rect, pixels));
                }
                _ => return Err(wrong("it sends an encoding that was not asked for")),
            }
        }
        Ok(Some(Change { size: self.size, parts }))
    }
}

/// A whole screen, brought up to date by its changes.
#[derive(Debug)]
pub(super) struct Whole {
    pixels: Pixels,
}

impl Whole {
    /// Makes an empty one.
    pub(super) fn new() -> Whole {
        Whole { pixels: Pixels { width: 0, height: 0, colours: Vec::new() } }
    }

    /// Applies a change.
    pub(super) fn apply(&mut self, change: &Change) {
        let (width, height) = (usize::from(change.size.0), usize::from(change.size.1));
        if (self.pixels.width, self.pixels.height) != (width, height) {
            self.pixels = Pixels { width, height, colours: vec![0; width * height] };
        }
        for ([x, y, columns, _], bytes) in &change.parts {
            let (x, y, columns) = (usize::from(*x), usize::from(*y), usize::from(*columns));
            for (row, bytes) in bytes.chunks_exact((columns * PIXEL).max(PIXEL)).enumerate() {
                let to = &mut self.pixels.colours[(y + row) * width + x..][..columns];
                for (to, pixel) in to.iter_mut().zip(bytes.chunks_exact(PIXEL)) {
                    *to = u32::from_be_bytes([0, pixel[0], pixel[1], pixel[2]]);
                }
            }
        }
    }

    /// Returns it in at most so many columns and rows, as a change of everything.
    pub(super) fn shrunk(&self, room: (usize, usize)) -> Change {
        let small = self.pixels.shrunk(room);
        let size = (small.width as u16, small.height as u16);
        let bytes = small.colours.iter().flat_map(|colour| {
            let [_, red, green, blue] = colour.to_be_bytes();
            [red, green, blue, 255]
        });
        Change { size, parts: vec![([0, 0, size.0, size.1], bytes.collect())] }
    }
}

impl Change {
    /// Writes it for a page: the size of the screen, the number of parts, and each part's place and pixels. Numbers have
    /// two bytes, the higher first.
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let head = [self.size.0, self.size.1, self.parts.len() as u16];
        to.extend(head.iter().flat_map(|number| number.to_be_bytes()));
        for (rect, pixels) in &self.parts {
            to.extend(rect.iter().flat_map(|number| number.to_be_bytes()));
            to.extend(pixels);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;
    use tokio::runtime;

    use super::*;

    /// Returns what a client makes of a server that says `said` on a screen of 4 by 2 pixels.
    fn heard(said: &[u8]) -> io::Result<Option<Change>> {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vnc");
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = UnixListener::bind(&socket).unwrap();
            let mut greeting = b"RFB 003.008\n\x01\x01\0\0\0\0\0\x04\0\x02".to_vec();
            greeting.extend([0; 16]);
            greeting.extend(b"\0\0\0\x01x");
            greeting.extend(said);
            let client = tokio::spawn(async move {
                let mut connection = Connection::open(&socket).await?;
                connection.ask(false).await?;
                connection.speaks().await?;
                connection.change().await
            });
            let (mut server, _) = listener.accept().await.unwrap();
            server.write_all(&greeting).await.unwrap();
            let mut heard = [0; 12 + 1 + 1 + 20 + 12 + 10];
            server.read_exact(&mut heard).await.unwrap();
            assert_eq!(heard[46..], [3, 0, 0, 0, 0, 0, 0, 4, 0, 2]);
            drop(server);
            client.await.unwrap()
        })
    }

    #[test]
    fn changes_are_pixels_of_a_canvas() {
        let said = [0, 0, 0, 1, 0, 3, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 2, 3, 0];
        let change = heard(&said).unwrap().unwrap();
        assert_eq!(
            change,
            Change { size: (4, 2), parts: vec![([3, 1, 1, 1], vec![1, 2, 3, 255])] }
        );
        let mut whole = Whole::new();
        whole.apply(&change);
        assert_eq!(whole.pixels.colours, [0, 0, 0, 0, 0, 0, 0, 0x010203]);
        assert_eq!(whole.shrunk((2, 2)).parts[0].1[4..], [0, 0, 0, 255]);
        let mut written = Vec::new();
        change.write(&mut written);
        assert_eq!(written, [0, 4, 0, 2, 0, 1, 0, 3, 0, 1, 0, 1, 0, 1, 1, 2, 3, 255]);
        let resized = heard(&[0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 255, 255, 255, 0x21]);
        assert_eq!(resized.unwrap().unwrap(), Change { size: (1, 1), parts: vec![] });
        assert_eq!(heard(&[2]).unwrap(), None);
    }

    #[test]
    fn a_hostile_server_is_left() {
        let hostile: [&[u8]; 7] = [
            &[],
            &[0],
            &[9],
            // Beside the screen, and beyond all numbers.
            &[0, 0, 0, 1, 0, 4, 0, 1, 0, 1, 0, 1, 0, 0, 0, 0, 1, 2, 3, 0],
            &[0, 0, 0, 1, 255, 255, 0, 1, 255, 255, 0, 1, 0, 0, 0, 0],
            // A size that takes too much memory, and an encoding that nobody has asked for.
            &[0, 0, 0, 1, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 0x21],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 16],
        ];
        for said in hostile {
            assert!(heard(said).is_err(), "{said:?}");
        }
    }

    #[test]
    fn parts_of_no_width_change_nothing() {
        let mut whole = Whole::new();
        whole.apply(&Change { size: (2, 1), parts: vec![([2, 1, 0, 0], vec![])] });
        assert_eq!(whole.pixels.colours, [0, 0]);
    }
}
