//! Tests the VNC server with clients that send any bytes they like.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use ring3_core::display::{Picture, Pixels};
use ring3_core::input::{DeviceInput, Key, MouseMove};
use ring3_display::vnc::{self, Address, Listener, Server};
use tempfile::TempDir;

use crate::support::{FakeMachine, PATIENCE, pattern, text};

const RAW: i32 = 0;
const DESKTOP_SIZE: i32 = -223;
const EXTENDED_DESKTOP_SIZE: i32 = -308;
const EXTENDED_KEY_EVENT: i32 = -258;

/// A server for a machine that consists only of a screen.
struct Served {
    machine: Arc<FakeMachine>,
    server: Server,
    socket: PathBuf,
    _directory: TempDir,
}

impl Served {
    fn new(pixels: Pixels) -> Served {
        let machine = Arc::new(FakeMachine::showing(Picture::Pixels(pixels)));
        let directory = tempfile::tempdir().expect("there is room for a directory");
        let socket = directory.path().join("vnc");
        let listener = Listener::bind(&Address::Unix(socket.clone())).expect("the path is free");
        let server = vnc::serve(listener, Arc::clone(&machine) as _).expect("threads start");
        Served { machine, server, socket, _directory: directory }
    }

    fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a minute is a time");
        Client { stream, size: (0, 0) }
    }

    fn client(&self) -> Client {
        let mut client = self.connect();
        client.greet(b"RFB 003.008\n");
        client
    }
}

/// One rectangle of an update.
#[derive(Debug, PartialEq, Eq)]
struct Rectangle {
    x: u16,
    y: u16,
    width: u16,
    height: u16,
    encoding: i32,
    /// The pixels of a rectangle in the encoding Raw.
    pixels: Vec<u32>,
}

struct Client {
    stream: UnixStream,
    size: (u16, u16),
}

impl Client {
    fn greet(&mut self, version: &[u8; 12]) {
        assert_eq!(&self.take(), b"RFB 003.008\n");
        self.send(version);
        if version == b"RFB 003.003\n" {
            assert_eq!(self.take(), [0, 0, 0, 1], "the security type None");
        } else {
            assert_eq!(self.take(), [1, 1], "one security type: None");
            self.send(&[1]);
            if version == b"RFB 003.008\n" {
                assert_eq!(self.take(), [0, 0, 0, 0], "it is all right");
            }
        }
        self.send(&[1]);
        self.size = (self.u16(), self.u16());
        let format: [u8; 16] = self.take();
        assert_eq!(format[..4], [32, 24, 0, 1]);
        let length = u32::from_be_bytes(self.take());
        let mut name = vec![0; length as usize];
        self.stream.read_exact(&mut name).expect("the name follows");
        assert_eq!(name, b"ring3");
    }

    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server is there");
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).expect("the server says something");
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take())
    }

    /// Waits for the server to end the connection.
    fn assert_ended(mut self) {
        let mut rest = Vec::new();
        // A connection that is reset has ended as well.
        if let Err(error) = self.stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }

    fn encodings(&mut self, encodings: &[i32]) {
        self.send(&[2, 0]);
        self.send(&(encodings.len() as u16).to_be_bytes());
        for encoding in encodings {
            self.send(&encoding.to_be_bytes());
        }
    }

    fn request(&mut self, incremental: bool) {
        self.send(&[3, u8::from(incremental), 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }

    fn key(&mut self, pressed: bool, keysym: u32) {
        self.send(&[4, u8::from(pressed), 0, 0]);
        self.send(&keysym.to_be_bytes());
    }

    fn pointer(&mut self, buttons: u8, x: u16, y: u16) {
        self.send(&[5, buttons]);
        self.send(&x.to_be_bytes());
        self.send(&y.to_be_bytes());
    }

    /// Reads an update without compressed rectangles, in the server's own pixel format.
    fn update(&mut self) -> Vec<Rectangle> {
        let [kind, _] = self.take();
        assert_eq!(kind, 0, "a framebuffer update");
        (0..self.u16())
            .map(|_| {
                let [x, y, width, height] = [self.u16(), self.u16(), self.u16(), self.u16()];
                let encoding = i32::from_be_bytes(self.take());
                let count = if encoding == RAW { width as usize * height as usize } else { 0 };
                let mut bytes = vec![0; 4 * count];
                self.stream.read_exact(&mut bytes).expect("the pixels follow");
                let (pixels, _) = bytes.as_chunks();
                let pixels = pixels.iter().copied().map(u32::from_le_bytes).collect();
                if encoding == EXTENDED_DESKTOP_SIZE {
                    let [screens, ..]: [u8; 4] = self.take();
                    assert_eq!(screens, 1);
                    let [_id, _x_y, _size, _flags] = [(); 4].map(|()| self.take::<4>());
                }
                Rectangle { x, y, width, height, encoding, pixels }
            })
            .collect()
    }

    /// Reads an update of the whole screen.
    fn screen(&mut self) -> Pixels {
        let mut update = self.update();
        assert_eq!(update.len(), 1, "one rectangle");
        let rectangle = update.remove(0);
        assert_eq!((rectangle.x, rectangle.y, rectangle.encoding), (0, 0, RAW));
        let (width, height) = (usize::from(rectangle.width), usize::from(rectangle.height));
        Pixels { width, height, colours: rectangle.pixels }
    }
}

#[test]
fn all_protocol_versions_are_supported() {
    let served = Served::new(pattern(100, 50));
    for version in [b"RFB 003.003\n", b"RFB 003.007\n", b"RFB 003.008\n"] {
        let mut client = served.connect();
        client.greet(version);
        assert_eq!(client.size, (100, 50));
        client.request(false);
        assert_eq!(client.screen(), pattern(100, 50));
    }
}

#[test]
fn a_client_with_another_security_type_gets_a_reason() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.connect();
    client.take::<12>();
    client.send(b"RFB 003.008\n");
    client.take::<2>();
    client.send(&[2]);
    assert_eq!(client.take(), [0, 0, 0, 1], "it has failed");
    let length = u32::from_be_bytes(client.take());
    let mut reason = vec![0; length as usize];
    client.stream.read_exact(&mut reason).expect("the reason follows");
    assert!(String::from_utf8_lossy(&reason).contains("None"));
    client.assert_ended();
}

#[test]
fn only_changed_areas_are_sent() {
    let mut picture = pattern(100, 50);
    let served = Served::new(picture.clone());
    let mut client = served.client();
    client.request(false);
    client.screen();

    client.request(true);
    picture.colours[20 * 100 + 50] ^= 0xffffff;
    served.machine.show(Picture::Pixels(picture.clone()));
    let update = client.update();
    assert_eq!(update.len(), 1);
    let Rectangle { x, y, width, height, ref pixels, .. } = update[0];
    assert_eq!((x, y, width, height), (48, 16, 16, 16));
    assert_eq!(pixels[4 * 16 + 2], picture.colours[20 * 100 + 50]);

    // A later request brings the changes that happened while no client was asking.
    picture.colours[0] ^= 0xffffff;
    served.machine.show(Picture::Pixels(picture.clone()));
    client.request(true);
    let update = client.update();
    assert_eq!((update[0].x, update[0].y, update[0].width), (0, 0, 16));

    client.request(false);
    assert_eq!(client.screen(), picture, "all of it, since it was asked for");
}

#[test]
fn pixels_come_in_the_format_that_the_client_wants() {
    let served = Served::new(pattern(40, 20));
    let mut client = served.client();
    // 16 bits, big-endian, 5, 6 and 5 bits.
    client.send(&[0, 0, 0, 0, 16, 16, 1, 1, 0, 31, 0, 63, 0, 31, 11, 5, 0, 0, 0, 0]);
    client.request(false);
    assert_eq!(client.take(), [0, 0, 0, 1, 0, 0, 0, 0, 0, 40, 0, 20, 0, 0, 0, 0]);
    for colour in pattern(40, 20).colours {
        let pixel = u32::from(client.u16());
        for (got, max, shift) in [(pixel >> 11, 31, 16), (pixel >> 5, 63, 8), (pixel, 31, 0)] {
            let (got, wanted) = ((got & max) * 255 / max, colour >> shift & 0xff);
            assert!(got.abs_diff(wanted) <= 128 / max + 1, "{pixel:x} is not {colour:x}");
        }
    }
}

#[test]
fn a_new_size_is_sent_to_clients_that_support_it() {
    let served = Served::new(pattern(100, 50));
    let mut resizable = served.client();
    resizable.encodings(&[RAW, DESKTOP_SIZE]);
    let mut fixed = served.client();
    for client in [&mut resizable, &mut fixed] {
        client.request(false);
        client.screen();
        client.request(true);
    }
    served.machine.show(Picture::Pixels(pattern(64, 80)));

    let update = resizable.update();
    assert_eq!(update.len(), 1, "the size alone");
    assert_eq!((update[0].width, update[0].height, update[0].encoding), (64, 80, DESKTOP_SIZE));
    assert_eq!(resizable.screen(), pattern(64, 80));

    fixed.request(false);
    // One update answers the incremental request, unless both requests became one.
    let mut update = fixed.update();
    if update[0].width != 100 {
        update = fixed.update();
    }
    assert_eq!((update[0].width, update[0].height), (100, 50));
    let row: Vec<u32> = pattern(64, 80).colours[..64].iter().copied().chain([0; 36]).collect();
    assert_eq!(update[0].pixels[..100], row, "black beside it");
}

#[test]
fn clients_learn_of_extensions_and_cannot_set_the_size() {
    let served = Served::new(pattern(32, 16));
    let mut client = served.client();
    client.encodings(&[RAW, EXTENDED_KEY_EVENT, EXTENDED_DESKTOP_SIZE]);
    assert_eq!(client.update()[0].encoding, EXTENDED_KEY_EVENT);
    let size = client.update();
    assert_eq!((size[0].x, size[0].y, size[0].encoding), (0, 0, EXTENDED_DESKTOP_SIZE));
    assert_eq!((size[0].width, size[0].height), (32, 16));

    // SetDesktopSize with one screen.
    client.send(&[251, 0, 1, 0, 1, 0, 1, 0]);
    client.send(&[0; 16]);
    let refused = client.update();
    assert_eq!((refused[0].x, refused[0].y), (1, 1), "the client asked; it is prohibited");
    assert_eq!((refused[0].width, refused[0].height), (32, 16));

    client.send(&[255, 0, 0, 1, 0, 0, 0xff, 0xe4, 0, 0, 0, 0x9d]);
    let inputs = served.machine.wait_for_inputs(1);
    assert_eq!(inputs, [DeviceInput::Key { key: Key(0xe01d), pressed: true }]);
}

#[test]
fn keys_and_mouse_reach_the_machine_in_their_order() {
    let served = Served::new(pattern(100, 50));
    let mut client = served.client();
    client.key(true, u32::from('a'));
    client.key(false, u32::from('a'));
    client.pointer(0, 10, 10);
    client.key(true, 0xff0d);
    client.pointer(1, 15, 8);
    client.key(false, 0xff0d);
    let key = |code, pressed| DeviceInput::Key { key: Key(code), pressed };
    let mouse = |right, down, left_button| {
        DeviceInput::Mouse(MouseMove { right, down, left_button, ..MouseMove::default() })
    };
    let expected = [
        key(0x1e, true),
        key(0x1e, false),
        mouse(0, 0, false),
        key(0x1c, true),
        mouse(5, -2, true),
        key(0x1c, false),
    ];
    assert_eq!(served.machine.wait_for_inputs(6), expected);
}

#[test]
fn keys_that_a_client_held_are_released_when_it_leaves() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.client();
    client.key(true, 0xffe3);
    served.machine.wait_for_inputs(1);
    drop(client);
    let inputs = served.machine.wait_for_inputs(2);
    assert_eq!(inputs[1], DeviceInput::Key { key: Key(0x1d), pressed: false });
}

#[test]
fn cut_text_is_ignored() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.client();
    client.send(&[6, 0, 0, 0]);
    client.send(&300_000u32.to_be_bytes());
    client.send(&vec![4; 300_000]);
    client.request(false);
    assert_eq!(client.screen(), pattern(16, 16));
}

#[test]
fn a_client_that_sends_nonsense_is_disconnected_and_the_others_are_not() {
    let served = Served::new(pattern(16, 16));
    let mut good = served.client();
    let nonsense: [&[u8]; 5] = [
        b"\x63",                                                             // an unknown message
        b"\xff\x07", // an unknown message of QEMU
        b"\x00\x00\x00\x00\x08\x08\x00\x00\0\0\0\0\0\0\0\0\0\0\0\0", // a colour map
        b"\x00\x00\x00\x00\x00\x00\x00\x01\0\xff\0\xff\0\xff\0\0\0\0\0\0", // pixels without bits
        b"\x00\x00\x00\x00\x20\x18\x00\x01\0\xff\0\xff\0\xff\xff\0\0\0\0\0", // a shift of 255
    ];
    for message in nonsense {
        let mut client = served.client();
        client.send(message);
        client.assert_ended();
    }
    let mut client = served.connect();
    client.send(b"GET / HTTP/1.1\r\n");
    client.assert_ended();
    good.request(false);
    assert_eq!(good.screen(), pattern(16, 16));
}

#[test]
fn a_client_that_reads_nothing_does_not_delay_the_others() {
    let mut picture = pattern(800, 600);
    let served = Served::new(picture.clone());
    let mut lazy = served.client();
    let mut other = served.client();
    for step in 0..20 {
        // This is far more than a socket holds, and each answer is the whole screen.
        for _ in 0..50 {
            lazy.request(false);
        }
        picture.colours[0] = step;
        served.machine.show(Picture::Pixels(picture.clone()));
        other.request(false);
        assert_eq!(other.screen(), picture);
    }
}

#[test]
fn pictures_are_not_taken_while_no_client_waits() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.client();
    client.request(false);
    client.screen();
    let before = served.machine.looks();
    // The keys are sent one after the other, which takes as long as a few pictures.
    for _ in 0..20 {
        client.key(true, u32::from('a'));
        client.key(false, u32::from('a'));
    }
    served.machine.wait_for_inputs(40);
    assert_eq!(served.machine.looks(), before);
}

#[test]
fn the_number_of_clients_is_limited() {
    let served = Served::new(pattern(16, 16));
    let mut clients: Vec<Client> = (0..16).map(|_| served.client()).collect();
    served.connect().assert_ended();
    let mut last = clients.pop().expect("there are some");
    last.request(false);
    last.screen();
}

#[test]
fn text_screens_are_shown_by_their_pixels() {
    let served = Served::new(pattern(16, 16));
    let screen = text(&["hello"]);
    served.machine.show(Picture::Text(screen.clone()));
    let mut client = served.client();
    assert_eq!(client.size, (720, 400));
    client.request(false);
    assert_eq!(client.screen(), screen.pixels);
}

#[test]
fn a_picture_that_contradicts_itself_is_not_shown() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.client();
    for (width, height) in [(0, 0), (16, 17), (70_000, 1)] {
        let wrong = Pixels { width, height, colours: vec![0; 70_000] };
        served.machine.show(Picture::Pixels(wrong));
        client.request(false);
        assert_eq!(client.screen(), pattern(16, 16));
    }
}

#[test]
fn connections_end_with_the_machine_and_with_the_server() {
    let served = Served::new(pattern(16, 16));
    let mut client = served.client();
    client.request(true);
    client.screen();
    served.machine.end();
    client.request(true);
    client.assert_ended();

    let served = Served::new(pattern(16, 16));
    let client = served.client();
    drop(served.server);
    client.assert_ended();
    assert!(!served.socket.exists());
}
