//! Tests the VNC server with clients that others have written: vncdotool in Python, from PyPI, and
//! gvnccapture of gtk-vnc, if it is installed (Debian's package gvncviewer).
//!
//! vncdotool is installed below the target directory if it is missing. Where that is impossible for lack of
//! Python or a network, its tests report it and check nothing.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use ring3_core::display::{Picture, Pixels};
use ring3_core::input::{DeviceInput, Key, MouseMove};
use ring3_display::vnc::{self, Address, Listener, Server};

use crate::support::{FakeMachine, pattern, text};

/// Runs vncdotool with the encoding that its environment names.
const VNCDO: &str = r#"
import os
from vncdotool import client, command, rfb
client.VNCDoToolClient.encoding = rfb.Encoding[os.environ["VNC_ENCODING"]]
command.vncdo()
"#;

struct Served {
    machine: Arc<FakeMachine>,
    _server: Server,
    /// The display's number.
    display: u16,
}

fn serve(picture: Picture) -> Served {
    let machine = Arc::new(FakeMachine::showing(picture));
    let listener = (0..100)
        .find_map(|_| {
            // A port that nothing uses now; another program may take it before this test does.
            let free = TcpListener::bind("127.0.0.1:0").expect("there are ports");
            let display = free.local_addr().expect("it has a port").port().checked_sub(5900)?;
            drop(free);
            let address: Address = format!("127.0.0.1:{display}").parse().expect("an address");
            Listener::bind(&address).ok().map(|listener| (listener, display))
        })
        .expect("one of so many ports is free");
    let (listener, display) = listener;
    let server = vnc::serve(listener, Arc::clone(&machine) as _).expect("threads start");
    Served { machine, _server: server, display }
}

/// Returns a Python that has vncdotool, or None if it cannot be installed.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match PYTHON.get_or_init(install_vncdotool) {
        Ok(python) => Some(python),
        Err(error) => {
            ring3_skipped::package(format_args!("vncdotool cannot be installed: {error}"));
            None
        }
    }
}

fn install_vncdotool() -> Result<PathBuf, String> {
    let run = |command: &mut Command| match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Err(error.to_string()),
    };
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vncdotool");
    let python = directory.join("bin/python3");
    let has_it = || run(Command::new(&python).args(["-c", "import vncdotool"]));
    if has_it().is_err() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
        run(Command::new(&python).args(["-m", "pip", "install", "vncdotool>=1.3,<2"]))?;
        has_it()?;
    }
    Ok(python)
}

/// Runs `vncdo`.
fn vncdo(python: &Path, served: &Served, encoding: &str, arguments: &[&str]) {
    let output = Command::new(python)
        .args(["-c", VNCDO, "--timeout=60", "-s"])
        .arg(format!("127.0.0.1:{}", served.display))
        .args(arguments)
        .env("VNC_ENCODING", encoding)
        .output()
        .expect("Python starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Returns the pixels of a PNG with 8 bits for each colour.
fn read_png(path: &Path) -> Pixels {
    let file = std::io::BufReader::new(fs::File::open(path).expect("the client has written it"));
    let mut reader = png::Decoder::new(file).read_info().expect("it is a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("it is small")];
    let info = reader.next_frame(&mut bytes).expect("it has a picture");
    let colours = bytes[..info.buffer_size()]
        .chunks_exact(info.color_type.samples())
        .map(|pixel| u32::from_be_bytes([0, pixel[0], pixel[1], pixel[2]]))
        .collect();
    Pixels { width: info.width as usize, height: info.height as usize, colours }
}

#[track_caller]
fn assert_same(got: &Pixels, wanted: &Pixels) {
    assert_eq!((got.width, got.height), (wanted.width, wanted.height));
    let differs = (0..wanted.colours.len()).find(|at| got.colours[*at] != wanted.colours[*at]);
    assert_eq!(differs.map(|at| (at % wanted.width, at / wanted.width)), None, "where they differ");
}

/// Makes a screen like those of guests: few colours, much of it empty, and a part with many colours.
fn desktop() -> Pixels {
    let mut pixels = Pixels { width: 333, height: 222, colours: vec![0x008080; 333 * 222] };
    for (y, row) in pixels.colours.chunks_mut(333).enumerate() {
        for (x, colour) in row.iter_mut().enumerate() {
            *colour = match (x, y) {
                (0..200, 0..100) if (x / 3 + y / 5) % 2 == 0 => 0xffffff,
                (0..200, 0..100) => 0x000080,
                (250.., 100..) => (x * 7919 + y * 104_729) as u32 & 0xffffff,
                (_, 150..160) => (x / 20 * 1000) as u32,
                _ => *colour,
            };
        }
    }
    pixels
}

#[test]
fn vncdotool_sees_the_screen_in_every_encoding() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().expect("there is room for a directory");
    for (encoding, screen) in [("RAW", desktop()), ("HEXTILE", desktop()), ("ZRLE", desktop())] {
        let served = serve(Picture::Pixels(screen.clone()));
        let file = directory.path().join(encoding).with_extension("png");
        let path = file.to_str().expect("the path is text");
        vncdo(python, &served, encoding, &["capture", path]);
        assert_same(&read_png(&file), &screen);
    }
}

#[test]
fn vncdotool_follows_a_screen_that_changes_its_size() {
    let Some(python) = python() else { return };
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let served = serve(Picture::Text(text(&["hello"])));
    let (first, second) = (directory.path().join("1.png"), directory.path().join("2.png"));
    let paths = [&first, &second].map(|file| file.to_str().expect("the path is text").to_owned());
    served.machine.show_after_a_key(Picture::Pixels(desktop()));
    let arguments = ["capture", &paths[0], "key", "a", "capture", &paths[1]];
    vncdo(python, &served, "ZRLE", &arguments);
    assert_same(&read_png(&first), &pattern(720, 400));
    assert_same(&read_png(&second), &desktop());
}

#[test]
fn vncdotool_types_and_moves_the_mouse() {
    let Some(python) = python() else { return };
    let served = serve(Picture::Pixels(pattern(320, 200)));
    let arguments =
        ["type", "aB", "key", "ctrl-c", "move", "10", "10", "move", "25", "5", "click", "1"];
    vncdo(python, &served, "RAW", &arguments);
    let inputs = served.machine.wait_for_inputs(12);
    let key = |code, pressed| DeviceInput::Key { key: Key(code), pressed };
    let typed: Vec<DeviceInput> =
        inputs.iter().filter(|input| matches!(input, DeviceInput::Key { .. })).cloned().collect();
    assert_eq!(typed[..2], [key(0x1e, true), key(0x1e, false)]);
    // A capital letter comes with Shift, whichever of the two sides adds it.
    let shift = typed.iter().position(|input| *input == key(0x2a, true)).expect("Shift");
    let b = typed.iter().position(|input| *input == key(0x30, true)).expect("B");
    let unshift = typed.iter().position(|input| *input == key(0x2a, false)).expect("no Shift");
    assert!(shift < b && b < unshift, "{typed:?}");
    let c = typed.iter().position(|input| *input == key(0x2e, true)).expect("C");
    assert_eq!(typed[c - 1], key(0x1d, true));
    let moved = MouseMove { right: 15, down: -5, ..MouseMove::default() };
    let pressed = MouseMove { left_button: true, ..MouseMove::default() };
    let mouse: Vec<MouseMove> = inputs
        .iter()
        .filter_map(|input| if let DeviceInput::Mouse(moved) = input { Some(*moved) } else { None })
        .filter(|moved| *moved != MouseMove::default())
        .collect();
    assert_eq!(mouse, [moved, pressed]);
}

#[test]
fn gvnccapture_sees_the_screen() {
    let directory = tempfile::tempdir().expect("there is room for a directory");
    let file = directory.path().join("screen.png");
    let served = serve(Picture::Pixels(desktop()));
    let captured = Command::new("gvnccapture")
        .args(["--quiet", &format!("127.0.0.1:{}", served.display)])
        .arg(&file)
        .output();
    match captured {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            ring3_skipped::package("gvnccapture is missing: install the package gvncviewer");
        }
        captured => {
            let output = captured.expect("it starts");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert_same(&read_png(&file), &desktop());
        }
    }
}
