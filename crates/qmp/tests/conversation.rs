//! Tests conversations with the server over its socket. A fake machine stands behind it and answers like a
//! real one.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{self, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use ring3_core::device::DeviceId;
use ring3_core::disk::{DriveId, Medium};
use ring3_core::display::{Picture, Pixels};
use ring3_core::input::{DeviceInput, Input, Key, MouseMove};
use ring3_host::listener::Listener;
use ring3_host::telnet::Filter;
use ring3_qmp::{Facts, Protocol, Server};
use ring3_vm::balloon::BalloonError;
use ring3_vm::control::{DriveInfo, Event, LinkError, MediumHeld, Request};
use ring3_vm::drives::{Cache, Counts, DetectZeroes, DriveNames, ErrorPolicy, Limits};
use ring3_vm::{Control, Door, Ending, Stats, door};
use serde_json::{Value, json};

/// A fake machine with a screen of two pixels and a CD-ROM drive, and a server for it.
struct Machine {
    control: Control,
    server: Option<Server>,
    directory: PathBuf,
    /// The inputs that arrive, except for the end.
    inputs: Receiver<Input>,
}

impl Machine {
    fn new() -> Machine {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", std::process::id());
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&directory).unwrap();
        let (sender, door) = door();
        let control = sender.control();
        let facts = Facts { name: Some("one".to_owned()), ..Facts::default() };
        let server = Server::on_socket(&control, &directory.join("qmp"), facts).unwrap();
        let (forward, inputs) = mpsc::channel();
        thread::spawn(move || serve(door, |input| forward.send(input).unwrap_or(())));
        Machine { control, server: Some(server), directory, inputs }
    }

    fn connect(&self) -> Client {
        let socket = UnixStream::connect(self.directory.join("qmp")).unwrap();
        Client { lines: BufReader::new(socket.try_clone().unwrap()), socket }
    }

    /// Connects a client and negotiates.
    fn client(&self) -> Client {
        let mut client = self.connect();
        assert!(client.receive()["QMP"]["version"]["qemu"]["major"].is_u64());
        assert_eq!(client.ask("qmp_capabilities", json!({})), json!({"return": {}}));
        client
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.control.quit();
        if let Some(server) = self.server.take() {
            server.finish();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The drive with the disc.
const DISC: DriveId = DriveId::new(DeviceId::IDE, 2);

/// Acts on the door as a machine does.
fn serve(mut door: Door, mut forward: impl FnMut(Input)) {
    let mut disc = DriveInfo {
        drive: DISC,
        id: None,
        names: DriveNames::default(),
        removable: true,
        locked: true,
        medium: Some(Medium { sectors: 8, read_only: true }),
        file: Some("cd.iso".into()),
        format: Some("raw"),
        cache: Cache::default(),
        detect_zeroes: DetectZeroes::default(),
        limits: Limits::default(),
        errors: ErrorPolicy::default(),
        stopped: None,
        counts: Counts::default(),
    };
    let first = DriveId::new(DeviceId::IDE, 0);
    let hard_disk =
        DriveInfo { drive: first, removable: false, locked: false, medium: None, ..disc.clone() };
    loop {
        door.wait(None, |_| true);
        for request in door.take_requests() {
            match request {
                Request::Pause(reply) => {
                    door.pause();
                    reply.answer(());
                }
                Request::Resume(reply) => {
                    door.resume();
                    reply.answer(());
                }
                Request::Nothing(reply) => reply.answer(()),
                Request::GoesBack(reply) => reply.answer(false),
                Request::Picture(reply) => {
                    let colours = vec![0x010203, 0x040506];
                    reply.answer(Some(Picture::Pixels(Pixels { width: 2, height: 1, colours })));
                }
                Request::Drives(reply) => reply.answer(vec![disc.clone(), hard_disk.clone()]),
                Request::ChangeMedium { at, drive, force, reply } => {
                    assert_eq!(at, DISC);
                    if disc.locked && !force {
                        reply.answer(Err(MediumHeld));
                        continue;
                    }
                    disc.locked = false;
                    disc.medium = drive.medium();
                    disc.file = drive.file().map(Path::to_owned);
                    reply.answer(Ok(()));
                }
                Request::LimitDrive { drive, limits, reply } => {
                    assert_eq!(drive, DISC);
                    let checked = limits.check();
                    if checked.is_ok() {
                        disc.limits = limits;
                    }
                    reply.answer(checked.map_err(Into::into));
                }
                Request::ResizeDrive { drive, bytes, reply } => {
                    assert_eq!(drive, DISC);
                    disc.medium = Some(Medium { sectors: bytes / 512, read_only: true });
                    reply.answer(Ok(()));
                }
                Request::Stats(reply) => {
                    let engine = vec![("blocks decoded", 1)];
                    let mut stats = Box::<Stats>::default();
                    stats.engine = engine;
                    reply.answer(stats);
                }
                Request::Processor(reply) => reply.answer(Box::default()),
                Request::Memory(_, reply) => reply.answer(None),
                Request::Physical(_, reply) => reply.answer(None),
                Request::PciFunctions(reply) => reply.answer(Vec::new()),
                Request::Describe(reply) => reply.answer(Box::default()),
                Request::SetLink { id, reply, .. } => {
                    let is_known = id == "net0";
                    reply.answer(if is_known { Ok(()) } else { Err(LinkError::NoCard) });
                }
                Request::ExtraMemory(_, reply) => {
                    reply.answer(Err(ring3_vm::extra_memory::ExtraMemoryError::NoDevice));
                }
                Request::Balloon(_, reply) => reply.answer(Err(BalloonError::NoBalloon)),
                Request::AreDrivesIdle(reply) => reply.answer(true),
                Request::PlugDisk(..)
                | Request::PlaceFor { .. }
                | Request::PlugNic(..)
                | Request::PlugSerial(..)
                | Request::Unplug(..)
                | Request::DriveFailed(_)
                | Request::DriveResized(_)
                | Request::Keep(..)
                | Request::KeepLast(..)
                | Request::Load(..)
                | Request::Registers(_)
                | Request::Tap(..)
                | Request::Visit(_)
                | Request::SetRegisters(..)
                | Request::WriteMemory(..)
                | Request::Debug(..)
                | Request::EndDebugging(_) => {}
            }
        }
        while let Some(input) = door.take(|_| true) {
            match &input {
                Input::Quit => return door.end(&Event::Ended(Ending::Quit)),
                Input::Reset => door.tell(&Event::Reset { by_guest: false }),
                Input::Device { input: DeviceInput::PowerButton, .. } => {
                    door.tell(&Event::PowerButton);
                }
                _ => {}
            }
            forward(input);
        }
    }
}

struct Client {
    socket: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    fn send(&mut self, text: &str) {
        self.socket.write_all(text.as_bytes()).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        assert!(line.ends_with("\r\n"), "{line:?}");
        serde_json::from_str(&line).unwrap()
    }

    #[allow(clippy::needless_pass_by_value)] // Calls read better with json!(..) as it is.
    fn ask(&mut self, command: &str, arguments: Value) -> Value {
        self.send(&json!({"execute": command, "arguments": arguments}).to_string());
        self.receive()
    }

    /// Asserts that a command fails with a description that contains `part`.
    #[track_caller]
    fn refused(&mut self, command: &str, arguments: Value, part: &str) {
        let answer = self.ask(command, arguments);
        let description = answer["error"]["desc"].as_str().unwrap_or_default();
        assert!(description.contains(part), "{answer}");
    }

    /// Asserts that the next message is event `name`, and returns its data.
    #[track_caller]
    fn event(&mut self, name: &str) -> Value {
        let mut message = self.receive();
        assert_eq!(message["event"], name, "{message}");
        message["data"].take()
    }

    fn is_hung_up_on(&mut self) -> bool {
        matches!(self.lines.read(&mut [0]), Ok(0) | Err(_))
    }
}

#[test]
fn negotiation_comes_first_and_once() {
    let machine = Machine::new();
    let mut client = machine.connect();
    assert_eq!(client.receive()["QMP"]["capabilities"], json!(["oob"]));
    let early = client.ask("query-status", json!({}));
    assert_eq!(early["error"]["class"], "CommandNotFound");
    client.refused("qmp_capabilities", json!({"enable": ["speed"]}), "capability 'speed'");
    assert_eq!(client.ask("qmp_capabilities", json!({"enable": []})), json!({"return": {}}));
    client.refused("qmp_capabilities", json!({}), "already complete");
    client.send(r#"{"exec-oob": "query-status"}"#);
    assert_eq!(client.receive()["error"]["class"], "GenericError");
}

#[test]
fn commands_out_of_band_need_to_be_enabled() {
    let machine = Machine::new();
    let mut client = machine.connect();
    client.receive();
    assert_eq!(client.ask("qmp_capabilities", json!({"enable": ["oob"]})), json!({"return": {}}));
    client.send(r#"{"exec-oob": "query-status", "id": 1}"#);
    let answer = client.receive();
    assert!(answer["return"]["status"].is_string() && answer["id"] == 1, "{answer}");
    client.send(r#"{"exec-oob": "stop", "execute": "stop"}"#);
    assert_eq!(client.receive()["error"]["class"], "GenericError");
}

#[test]
fn questions_are_answered() {
    let machine = Machine::new();
    let mut client = machine.client();
    let commands = client.ask("query-commands", json!({}));
    for (index, command) in commands["return"].as_array().unwrap().iter().enumerate() {
        let name = command["name"].as_str().unwrap();
        client.send(&json!({"execute": name, "arguments": {"bad": 1}, "id": index}).to_string());
        let answer = client.receive();
        assert_eq!(answer["id"], index);
        assert!(answer["error"]["desc"].is_string(), "{name}: {answer}");
    }
    assert!(client.ask("query-version", json!({}))["return"]["package"].is_string());
    assert_eq!(client.ask("query-name", json!({})), json!({"return": {"name": "one"}}));
    let drive = client.ask("query-block", json!({}))["return"][0].take();
    assert_eq!(drive["removable"], true);
    assert_eq!(drive["inserted"]["file"], "cd.iso");
    assert_eq!(drive["inserted"]["image"]["virtual-size"], 4096);
    let processors = client.ask("query-cpus-fast", json!({}))["return"].take();
    assert_eq!((&processors[0]["cpu-index"], &processors[1]), (&json!(0), &Value::Null));
    assert_eq!(client.ask("query-kvm", json!({}))["return"]["enabled"], false);
    let mut answer = client.ask("query-stats", json!({"target": "vm"}));
    assert!(answer["return"].is_array(), "{answer}");
    let stats = answer["return"][0].take();
    assert_eq!(stats["provider"], "ring3");
    let names: Vec<_> = stats["stats"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert!(names.contains(&&json!("instructions")) && names.contains(&&json!("exits-port-read")));
    assert!(names.contains(&&json!("engine-blocks-decoded")), "{names:?}");
    let of_processors = client.ask("query-stats", json!({"target": "vcpu"}));
    assert_eq!(of_processors, json!({"return": []}));
    for (wanted, count) in [
        (json!([{"provider": "ring3", "names": ["instructions"]}]), Some(1)),
        (json!([{"provider": "ring3", "names": []}]), Some(0)),
        (json!([{"provider": "ring3"}]), Some(names.len())),
        (json!([{"provider": "kvm", "names": ["halt_wait_ns"]}]), None),
    ] {
        let answer = client.ask("query-stats", json!({"target": "vm", "providers": wanted}));
        let found = answer["return"][0]["stats"].as_array().map(Vec::len);
        assert_eq!(found, count, "{answer}");
    }
    let balloon = client.ask("balloon", json!({"value": 1 << 20}));
    assert_eq!(balloon["error"]["class"], "DeviceNotActive");
    let unknown = client.ask("query-weather", json!({}));
    assert_eq!(unknown["error"]["class"], "CommandNotFound");
}

#[test]
fn the_machine_is_paused_reset_and_ended() {
    let machine = Machine::new();
    let mut client = machine.client();
    let paused = json!({"return": {"running": false, "status": "paused"}});
    let running = json!({"return": {"running": true, "status": "running"}});
    assert_eq!(client.ask("stop", json!({})), json!({"return": {}}));
    client.event("STOP");
    assert_eq!(client.ask("query-status", json!({})), paused);
    assert_eq!(client.ask("cont", json!({})), json!({"return": {}}));
    client.event("RESUME");
    assert_eq!(client.ask("query-status", json!({})), running);
    assert_eq!(client.ask("system_reset", json!({})), json!({"return": {}}));
    let reason = json!({"guest": false, "reason": "host-qmp-system-reset"});
    assert_eq!(client.event("RESET"), reason);
    assert_eq!(client.ask("system_powerdown", json!({})), json!({"return": {}}));
    client.event("POWERDOWN");
    assert_eq!(client.ask("quit", json!({})), json!({"return": {}}));
    assert_eq!(client.event("SHUTDOWN"), json!({"guest": false, "reason": "host-qmp-quit"}));
    assert!(client.is_hung_up_on());
}

#[test]
fn discs_are_changed() {
    let machine = Machine::new();
    let mut client = machine.client();
    let image = machine.directory.join("disc.iso");
    fs::write(&image, [0; 2048]).unwrap();
    let disc = |client: &mut Client| client.ask("query-block", json!({}))["return"][0].take();
    assert_eq!(disc(&mut client)["locked"], true);
    for (command, arguments) in [
        ("eject", json!({"device": "ide-2"})),
        ("blockdev-change-medium", json!({"id": "ide-2", "filename": image})),
        ("change", json!({"device": "ide-2", "target": image})),
    ] {
        client.refused(command, arguments, "'ide-2': the guest has locked the tray");
        assert_eq!(disc(&mut client)["inserted"]["file"], "cd.iso");
    }
    assert_eq!(
        client.ask("eject", json!({"device": "ide-2", "force": true})),
        json!({"return": {}})
    );
    let empty = disc(&mut client);
    assert_eq!((&empty["inserted"], &empty["tray_open"]), (&Value::Null, &json!(true)));
    // The second command names the image that is already in the drive.
    for (command, arguments) in [
        ("blockdev-change-medium", json!({"id": "ide-2", "filename": image, "format": "raw"})),
        ("change", json!({"device": "ide-2", "target": image})),
    ] {
        assert_eq!(client.ask(command, arguments), json!({"return": {}}));
        let full = disc(&mut client);
        assert_eq!(full["inserted"]["file"], image.to_str().unwrap());
        assert_eq!(full["tray_open"], false);
    }
    fs::write(&image, [0; 100]).unwrap();
    for (arguments, part) in [
        (json!({"device": "ide-2", "filename": image}), "not a whole number of 2048-byte sectors"),
        (json!({"device": "ide-2", "filename": "/no/such"}), "no image /no/such"),
        (json!({"device": "ide-2", "filename": "a", "format": "qcow9"}), "no image format"),
        (json!({"device": "ide-0", "filename": "a"}), "'ide-0' is not removable"),
        (json!({"device": "ide-7", "filename": "a"}), "'ide-7' not found"),
        (json!({"filename": "a"}), "'device' and 'id'"),
    ] {
        client.refused("blockdev-change-medium", arguments, part);
    }
    client.refused("eject", json!({"device": "ide-0"}), "not removable");
}

#[test]
fn exports_may_come_later() {
    let machine = Machine::new();
    let mut client = machine.client();
    // Characters with a meaning in URIs.
    let path = machine.directory.join("a?b&c=d %2f");
    let export = "x/y?z&open-timeout=1";
    let server = json!({"type": "unix", "path": path});
    let node = |name: &str, open_timeout: u32| {
        json!({
            "driver": "nbd", "node-name": name, "server": server, "export": export,
            "open-timeout": open_timeout, "reconnect-delay": 4_294_967_295_u32,
        })
    };
    client.refused("blockdev-add", node("early", 0), "No such file");
    client.send(&json!({"execute": "blockdev-add", "arguments": node("n", 600)}).to_string());
    let image = machine.directory.join("image");
    fs::write(&image, [0; 4096]).unwrap();
    let mut nbd = process::Command::new("qemu-nbd")
        .args(["-t", "-f", "raw", "-x", export, "-k"])
        .args([&path, &image])
        .stdout(Stdio::null())
        .spawn()
        .expect("qemu-nbd runs: Debian package qemu-utils");
    let added = client.receive();
    let nodes = client.ask("query-named-block-nodes", json!({}));
    nbd.kill().unwrap();
    nbd.wait().unwrap();
    assert_eq!(added, json!({"return": {}}));
    let node = nodes["return"].as_array().unwrap().iter().find(|node| node["node-name"] == "n");
    let node = node.unwrap();
    assert_eq!(node["image"]["virtual-size"], 4096);
    let file = node["file"].as_str().unwrap();
    assert!(file.ends_with("&reconnect-delay=4294967295&open-timeout=600"), "{file}");
}

#[test]
fn disks_get_another_size() {
    let machine = Machine::new();
    let mut client = machine.client();
    let resize = json!({"device": "ide-2", "size": 1 << 20});
    assert_eq!(client.ask("block_resize", resize), json!({"return": {}}));
    let disc = client.ask("query-block", json!({}))["return"][0]["inserted"].take();
    assert_eq!(disc["image"]["virtual-size"], 1 << 20);
    client.refused("block_resize", json!({"device": "ide-9", "size": 512}), "not found");
}

#[test]
fn links_are_set() {
    let machine = Machine::new();
    let mut client = machine.client();
    let set = |name: &str, up: Value| json!({"name": name, "up": up});
    assert_eq!(client.ask("set_link", set("net0", json!(false))), json!({"return": {}}));
    let unknown = client.ask("set_link", set("net1", json!(true)));
    assert_eq!(unknown["error"]["class"], "DeviceNotFound");
    assert_eq!(unknown["error"]["desc"], "Device 'net1' not found");
    client.refused("set_link", set("net0", json!("off")), "boolean");
}

#[test]
fn drives_are_limited() {
    let machine = Machine::new();
    let mut client = machine.client();
    let limits = |bps, bps_rd, bps_max| {
        json!({"device": "ide-2", "bps": bps, "bps_rd": bps_rd, "bps_wr": 0,
            "iops": 7, "iops_rd": 0, "iops_wr": 0, "bps_max": bps_max})
    };
    let set = "block_set_io_throttle";
    assert_eq!(client.ask(set, limits(1000, 0, 2000)), json!({"return": {}}));
    client.refused(set, limits(1000, 1000, 0), "but not both");
    client.refused(set, json!({"device": "ide-2", "bps": 1}), "missing field");
    let disc = client.ask("query-block", json!({}))["return"][0]["inserted"].take();
    for (name, limit) in [("bps", 1000), ("bps_max", 2000), ("bps_rd", 0), ("iops", 7)] {
        assert_eq!(disc[name], limit, "{name}");
    }
    assert_eq!(disc["iops_max"], Value::Null);
}

#[test]
fn keys_and_the_mouse_arrive_in_order() {
    let machine = Machine::new();
    let mut client = machine.client();
    let keys = [json!({"type": "qcode", "data": "shift"}), json!({"type": "number", "data": 0x1e})];
    let answer = client.ask("send-key", json!({"keys": keys, "hold-time": 1}));
    assert_eq!(answer, json!({"return": {}}));
    let events = json!([
        {"type": "rel", "data": {"axis": "x", "value": 5}},
        {"type": "key", "data": {"down": true, "key": {"type": "qcode", "data": "b"}}},
        {"type": "btn", "data": {"down": true, "button": "left"}},
        {"type": "abs", "data": {"axis": "x", "value": 0x7fff}},
    ]);
    let answer = client.ask("input-send-event", json!({"events": events}));
    assert_eq!(answer, json!({"return": {}}));
    let key = |code, pressed| DeviceInput::Key { key: Key(code), pressed };
    let at_rest = MouseMove::default();
    let held = MouseMove { left_button: true, ..at_rest };
    for expected in [
        key(0x2a, true),
        key(0x1e, true),
        key(0x1e, false),
        key(0x2a, false),
        DeviceInput::Mouse(MouseMove { right: 5, ..at_rest }),
        key(0x30, true),
        // The mouse moves into the corner, presses a button, then moves to the right edge of the two pixels.
        DeviceInput::Mouse(MouseMove { right: -4, down: -2, ..at_rest }),
        DeviceInput::Mouse(held),
        DeviceInput::Mouse(MouseMove { right: 1, ..held }),
    ] {
        let expected = Input::Device { device: DeviceId::I8042, input: expected };
        assert_eq!(machine.inputs.recv().unwrap(), expected);
    }
    let nonsense = [json!({"type": "qcode", "data": "any"})];
    client.refused("send-key", json!({"keys": nonsense}), "no key 'any'");
    client.refused("send-key", json!({"keys": [], "hold-time": -1}), "Invalid arguments");
    let touch = json!([{"type": "btn", "data": {"down": true, "button": "touch"}}]);
    client.refused("input-send-event", json!({"events": touch}), "touch");
}

#[test]
fn the_screen_is_dumped() {
    let machine = Machine::new();
    let mut client = machine.client();
    let file = machine.directory.join("screen");
    let answer = client.ask("screendump", json!({"filename": file}));
    assert_eq!(answer, json!({"return": {}}));
    assert_eq!(fs::read(&file).unwrap(), b"P6\n2 1\n255\n\x01\x02\x03\x04\x05\x06");
    let answer = client.ask("screendump", json!({"filename": file, "format": "png"}));
    assert_eq!(answer, json!({"return": {}}));
    assert!(fs::read(&file).unwrap().starts_with(b"\x89PNG"));
    client.refused("screendump", json!({"filename": file, "format": "jpeg"}), "jpeg");
    client.refused("screendump", json!({"filename": "/no/such/file"}), "/no/such/file");
    client.refused("screendump", json!({}), "filename");
}

#[test]
fn several_clients_are_served_at_once() {
    let machine = Machine::new();
    let mut clients = [(); 3].map(|()| machine.client());
    // A client that has not negotiated receives no events.
    let mut silent = machine.connect();
    silent.receive();
    for client in &mut clients {
        assert!(client.ask("query-status", json!({}))["return"]["running"].is_boolean());
    }
    clients[1].send(r#"{"execute": "stop"}"#);
    for (number, client) in clients.iter_mut().enumerate() {
        if number == 1 {
            assert_eq!(client.receive(), json!({"return": {}}));
        }
        assert_eq!(client.receive()["event"], "STOP");
    }
    assert_eq!(silent.ask("qmp_capabilities", json!({})), json!({"return": {}}));
    // A client that leaves does not affect the others.
    drop(silent);
    let [first, ..] = &mut clients;
    assert!(first.ask("query-status", json!({}))["return"].is_object());
}

#[test]
fn too_many_clients_are_hung_up_on() {
    let machine = Machine::new();
    let clients: Vec<_> = (0..32).map(|_| machine.client()).collect();
    assert!(machine.connect().is_hung_up_on());
    drop(clients);
    for _ in 0..1000 {
        let mut client = machine.connect();
        let mut byte = [0];
        if client.lines.read(&mut byte).is_ok_and(|length| length == 1) {
            return;
        }
    }
    panic!("those that have gone keep their places");
}

#[test]
fn people_have_a_monitor() {
    let machine = Machine::new();
    let socket = machine.directory.join("hmp");
    let server = machine.server.as_ref().unwrap();
    server.listen(Listener::unix(&socket).unwrap(), Protocol::Human, true).unwrap();
    let mut person = UnixStream::connect(&socket).unwrap();
    let mut filter = Filter::default();
    let mut seen = String::new();
    let mut wait = |person: &mut UnixStream, part: &str| {
        while !seen.contains(part) {
            let mut bytes = [0; 256];
            let length = person.read(&mut bytes).unwrap();
            assert_ne!(length, 0, "{seen}");
            seen.push_str(&String::from_utf8(filter.data(&bytes[..length])).unwrap());
        }
        std::mem::take(&mut seen)
    };
    assert!(wait(&mut person, "(qemu) ").contains("monitor"));
    // A terminal that answers telnet's options, and a line with a corrected mistake.
    person.write_all(b"\xff\xfd\x01info statux\x7fs\r\x00").unwrap();
    assert!(wait(&mut person, "(qemu) ").contains("VM status: running\r\n"));
    let mut tool = machine.client();
    person.write_all(b"stop\n").unwrap();
    assert_eq!(tool.receive()["event"], "STOP");
    wait(&mut person, "(qemu) ");
    for (line, part) in [
        ("info block", "cd.iso"),
        ("eject ide1-cd0", "Error: "),
        ("info nothing", "unknown"),
        ("nothing", "unknown command"),
        ("change \"", "unterminated"),
        ("sendkey ctrl-nothing", "there is no key"),
        ("x /4x 0", "Cannot access memory"),
        ("p 2+0x10-1", "0x11"),
        ("help stop", "stop|s"),
        ("migrate_set_parameter max-bandwidth 2", ""),
        ("migrate_set_parameter other 2", "unknown field `other`"),
        ("info migrate_parameters", "max-bandwidth: 2097152 bytes/second"),
        ("migrate_set_capability events on", ""),
        ("migrate_set_capability events yes", "on|off"),
        ("info migrate_capabilities", "events: on"),
        ("migrate -d nowhere", "names no place"),
        ("info migrate", ""),
        ("info snapshots", "ring3 snapshot info"),
    ] {
        let answer = tool.ask("human-monitor-command", json!({"command-line": line}));
        assert!(answer["return"].as_str().unwrap().contains(part), "{line}: {answer}");
        person.write_all(format!("{line}\n").as_bytes()).unwrap();
        let shown = wait(&mut person, "(qemu) ");
        assert!(shown.contains(part), "{line}: {shown}");
    }
    machine.control.quit();
    while person.read(&mut [0; 256]).is_ok_and(|length| length > 0) {}
}

#[test]
fn nonsense_is_answered_and_too_much_of_it_ends_the_conversation() {
    let machine = Machine::new();
    let mut client = machine.client();
    for nonsense in ["hello\n", "{]\n", "[]", "{}", "\"\n", "{\"execute\": \"stop\n"] {
        client.send(nonsense);
        assert_eq!(client.receive()["error"]["class"], "GenericError", "{nonsense:?}");
    }
    client.send(&"[".repeat(65536));
    client.send("[");
    let answer = client.receive();
    assert!(answer["error"]["desc"].as_str().unwrap().contains("longer than"), "{answer}");
    assert!(client.is_hung_up_on());
    drop(machine.client());
}

#[test]
fn the_socket_goes_with_the_server() {
    let mut machine = Machine::new();
    let path = machine.directory.join("qmp");
    assert!(path.exists());
    machine.control.quit();
    machine.server.take().unwrap().finish();
    assert!(!path.exists());
}

#[test]
fn streams_will_do_as_well() {
    let (sender, door) = door();
    let control = sender.control();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (input, output) = (theirs.try_clone().unwrap(), theirs);
    let server = Server::on_streams(&control, input, output, Facts::default()).unwrap();
    let machine = thread::spawn(move || serve(door, drop));
    let mut client = Client { lines: BufReader::new(ours.try_clone().unwrap()), socket: ours };
    client.receive();
    client.ask("qmp_capabilities", json!({}));
    assert_eq!(client.ask("query-name", json!({})), json!({"return": {}}));
    assert_eq!(client.ask("quit", json!({})), json!({"return": {}}));
    client.event("SHUTDOWN");
    machine.join().unwrap();
    server.finish();
}
