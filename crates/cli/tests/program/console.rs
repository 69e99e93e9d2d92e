//! The server of consoles, and `ring3 console`: all machines in one terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::supervisor::{Supervised, linux_lines};
use crate::support::guest::PROMPT;
use crate::support::screen::Screen;
use crate::support::{Directory, HALT_FOR_EVER, PATIENCE, kernel, output, ring3, wait_until};
use crate::terminal::ECHO;

const MACHINES: [&str; 3] = ["one", "two", "three"];

/// A guest that writes "0123456789" to COM1 again and again.
const CHATTER: &[u8] = &[
    0x66, 0xba, 0xf8, 0x03, // 00: MOV DX, 3F8h
    0xb0, 0x30, //             04: MOV AL, '0'
    0xee, //                   06: OUT DX, AL
    0xfe, 0xc0, //             07: INC AL
    0x3c, 0x3a, //             09: CMP AL, '9' + 1
    0x75, 0xf9, //             0B: JNE 06
    0xeb, 0xf5, //             0D: JMP 04
];

/// Starts machines with `code`, and a server of consoles that keeps 64 KiB of each.
fn three_machines(code: &[u8]) -> Supervised {
    let directory = Directory::new();
    let kernel = json!(directory.file("kernel", &kernel(code)));
    let machine = |name: &&str| {
        format!("[machine.{name}]\nmemory = \"4M\"\nkernel = {kernel}\nstop-timeout = 0\n")
    };
    let machines: String = MACHINES.iter().map(machine).collect();
    let server = "[server.eye]\nkind = \"console\"\nscroll-back = 64\n";
    let supervised = Supervised::in_directory(directory, &format!("{server}{machines}"));
    for part in MACHINES.iter().chain(&["eye"]) {
        supervised.reaches(part, "running");
    }
    supervised
}

/// A client of the server that speaks its protocol.
pub(crate) struct Client {
    to: UnixStream,
    from: BufReader<UnixStream>,
    last: u64,
    /// The output of the console that was attached last.
    output: Vec<u8>,
    lost: u64,
    /// Events other than output.
    events: Vec<Value>,
}

impl Client {
    pub(crate) fn connect(supervised: &Supervised, server: &str, socket: &str) -> Client {
        let socket = supervised.file(server, socket);
        let to = wait_until("there is no server", || UnixStream::connect(&socket).ok());
        to.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut from = BufReader::new(to.try_clone().unwrap());
        from.read_line(&mut String::new()).unwrap();
        Client { to, from, last: 0, output: Vec::new(), lost: 0, events: Vec::new() }
    }

    fn new(supervised: &Supervised) -> Client {
        Client::connect(supervised, "eye", "control")
    }

    /// Reads one message, and returns it if it is an answer.
    fn answer(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        let message: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("{line:?}"));
        if message["event"] == "OUTPUT" {
            let mut bytes = vec![0; message["data"]["length"].as_u64().unwrap() as usize];
            self.from.read_exact(&mut bytes).unwrap();
            self.output.extend(bytes);
            self.lost += message["data"]["lost"].as_u64().unwrap();
        } else if message["event"].is_string() {
            self.events.push(message);
        } else {
            return Some(message);
        }
        None
    }

    fn begin(&mut self, command: &str, arguments: &Value) {
        self.last += 1;
        let message = json!({ "execute": command, "arguments": arguments, "id": self.last });
        writeln!(self.to, "{message}").unwrap();
    }

    fn end(&mut self) -> Value {
        loop {
            if let Some(answer) = self.answer()
                && answer["id"] == self.last
            {
                return answer;
            }
        }
    }

    fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        self.begin(command, arguments);
        let answer = self.end();
        assert!(answer["error"].is_null(), "{command} {arguments}: {answer}");
        answer["return"].clone()
    }

    fn attach(&mut self, machine: &str, view: &str, wish: &str) -> Value {
        let arguments = json!({ "machine": machine, "view": view, "wish": wish });
        self.begin("attach", &arguments);
        self.output.clear();
        // What comes before the answer belongs to the console before.
        let answer = self.end();
        self.output.clear();
        answer
    }

    /// Attaches once the server knows the machine.
    fn attach_soon(&mut self, machine: &str, wish: &str) -> Value {
        wait_until("it is not known", || {
            let answer = self.attach(machine, "serial0", wish);
            answer["return"].is_object().then(|| answer["return"].clone())
        })
    }

    /// Returns what the server says of a console.
    pub(crate) fn console(&mut self, machine: &str, view: &str) -> Value {
        let list = self.ask("query-consoles", &json!({}));
        let machines = list.as_array().unwrap();
        let machine = machines.iter().find(|known| known["name"] == machine);
        let consoles = machine.map_or(&Value::Null, |machine| &machine["consoles"]);
        let mut consoles = consoles.as_array().into_iter().flatten();
        consoles.find(|console| console["view"] == view).cloned().unwrap_or_default()
    }

    fn is_connected(&mut self, machine: &str, view: &str) {
        wait_until(&format!("{machine} {view} is not connected"), || {
            (self.console(machine, view)["connected"] == true).then_some(())
        });
    }

    /// Reads until `wanted` comes, and returns what came before.
    fn wait_for(&mut self, wanted: &[u8]) -> Vec<u8> {
        loop {
            let found = self.output.windows(wanted.len()).position(|part| part == wanted);
            if let Some(at) = found {
                let before = self.output[..at].to_vec();
                self.output.drain(..at + wanted.len());
                return before;
            }
            self.answer();
        }
    }
}

/// Each key that is typed during 1000 switches reaches the machine that was chosen, once.
#[test]
fn keys_reach_exactly_one_machine() {
    let supervised = three_machines(ECHO);
    let mut client = Client::new(&supervised);
    for name in MACHINES {
        client.is_connected(name, "serial0");
    }
    let mut typed = [const { Vec::new() }; 3];
    for switch in 0..1000u32 {
        let chosen = (switch % 7 % 3) as usize;
        let owner = client.attach(MACHINES[chosen], "serial0", "own");
        assert_eq!(owner["return"]["input"], true, "{owner}");
        let bytes = format!("{switch:04}.").into_bytes();
        // Now and then somebody else looks on, and cannot type.
        if switch % 100 == 0 {
            let mut other = Client::new(&supervised);
            other.attach(MACHINES[chosen], "serial0", "own");
            other.begin("input", &json!({ "bytes": b"x" }));
            let refused = other.end();
            let reason = refused["error"]["desc"].as_str().unwrap();
            assert!(reason.contains("types here; this client looks on"), "{reason}");
        }
        let taken = client.ask("input", &json!({ "bytes": bytes }));
        assert_eq!(taken["taken"], bytes.len());
        typed[chosen].extend(bytes);
    }
    for (name, typed) in MACHINES.iter().zip(typed) {
        client.attach(name, "serial0", "own");
        client.ask("input", &json!({ "bytes": b"!" }));
        let echoed = client.wait_for(b"!");
        assert_eq!(String::from_utf8(echoed).unwrap(), String::from_utf8(typed).unwrap(), "{name}");
    }
}

/// Guests that write all the time go on although nobody reads, and what they have written is bounded. When the server
/// dies, no machine notices.
#[test]
fn a_console_that_nobody_reads_slows_no_guest_and_may_die() {
    let supervised = three_machines(CHATTER);
    let machines = MACHINES.map(|name| supervised.pid(name));
    let mut client = Client::new(&supervised);
    let is_busy = |client: &mut Client| {
        for name in MACHINES {
            let said = |client: &mut Client| {
                let console = client.console(name, "serial0");
                assert!(console["kept"].as_u64().unwrap_or(0) <= 64 << 10, "{console}");
                console["said"].as_u64().unwrap_or(0)
            };
            let before = said(client);
            wait_until(&format!("{name} does not go on"), || {
                (said(client) > before + (256 << 10)).then_some(())
            });
        }
    };
    is_busy(&mut client);
    // The last of it is shown, without a gap but for what was too old.
    let mut other = Client::new(&supervised);
    other.attach("two", "serial0", "watch");
    while other.output.len() < 1 << 20 {
        other.answer();
    }
    let output = &other.output;
    let gaps = output.windows(2).filter(|pair| pair[1] != pair[0] + 1 && *pair != b"90").count();
    assert!(gaps == 0 || other.lost > 0, "{gaps} gaps");
    supervised.signal("eye", Signal::KILL);
    supervised.was_replaced("eye", 1);
    let mut client = Client::new(&supervised);
    is_busy(&mut client);
    assert_eq!(MACHINES.map(|name| supervised.pid(name)), machines);
}

/// One client types; others look on, by the server's socket for that they always do. Keys that are held are released
/// when the client leaves.
#[test]
fn one_client_types_and_others_look_on() {
    let supervised = three_machines(HALT_FOR_EVER);
    let (mut first, mut second) = (Client::new(&supervised), Client::new(&supervised));
    let me = std::process::id();
    assert_eq!(first.attach_soon("one", "own"), json!({ "input": true, "owner": me }));
    assert_eq!(second.attach_soon("one", "own"), json!({ "input": false, "owner": me }));
    assert_eq!(second.ask("own", &json!({ "wish": "take" }))["input"], true);
    while first.events.is_empty() {
        first.answer();
    }
    assert_eq!(first.events[0]["event"], "OWNER");
    assert_eq!(first.events[0]["data"], json!({ "input": false, "owner": me }));
    let mut watcher = Client::connect(&supervised, "eye", "watch");
    drop(second);
    wait_until("the owner has not left", || {
        first.console("one", "serial0")["owner"].is_null().then_some(())
    });
    assert_eq!(watcher.attach_soon("one", "take")["input"], false);
    watcher.begin("input", &json!({ "bytes": [1] }));
    assert!(watcher.end()["error"]["desc"].as_str().unwrap().contains("only looks on"));
    // The machine has a screen. A key goes there and is held.
    first.is_connected("one", "screen");
    assert_eq!(first.attach("one", "screen", "own")["return"]["input"], true);
    assert_eq!(first.ask("keys", &json!({ "keys": [[0x1d, true], [0x2e, true]] }))["taken"], 2);
    while !first.events.iter().any(|event| event["event"] == "SCREEN") {
        first.answer();
    }
    assert_eq!(first.attach("two", "screen", "own")["return"]["input"], true);
    first.is_connected("two", "screen");
    let changes =
        json!({ "changes": [{ "by": [3, -4] }, { "to": [9, 9] }, { "button": ["left", true] }] });
    assert_eq!(first.ask("pointer", &changes)["taken"], 3);
    // Hostile messages end in an answer or in the end of the connection.
    for message in
        ["", "{}", "[]", "{\"execute\":\"attach\"}", "{\"execute\":1,\"id\":{}}", "\u{1}"]
    {
        writeln!(first.to, "{message}").unwrap();
    }
    let room = json!({ "columns": 65535, "rows": 65535 });
    first.ask("room", &room);
    for bad in [
        ("attach", json!({ "machine": "nobody", "view": "log" }), "no machine \"nobody\""),
        ("attach", json!({ "machine": "two", "view": "serial1" }), "no console serial1"),
        ("attach", json!({ "machine": "two", "view": "serial9" }), "is no console"),
        ("keys", json!({ "keys": [[300, true]] }), "not a command"),
        ("pointer", json!({ "changes": [{ "to": [-1, 0] }] }), "not a command"),
        ("input", json!({ "bytes": [1] }), "sees no serial line"),
    ] {
        first.begin(bad.0, &bad.1);
        let refused = first.end();
        assert!(refused["error"]["desc"].as_str().unwrap().contains(bad.2), "{refused}");
    }
}

/// A person sees one machine after the other in a terminal, types there, and is not deceived by a guest.
#[test]
fn machines_share_a_terminal() {
    let lines = linux_lines();
    let supervised = Supervised::new(&format!(
        "[machine.alpha]\n{lines}[machine.beta]\n{lines}restart = \"never\"\n"
    ));
    let console = |arguments: &[&str]| {
        let mut command = ring3();
        command.args(["console", "--directory"]).arg(supervised.run.path().join("r"));
        command.args(arguments);
        command
    };
    supervised.reaches("alpha", "running");
    // The supervisor gets a server of consoles.
    let mut screen = Screen::of(console(&["alpha"]));
    screen.wait_for(PROMPT.trim_end());
    assert!(screen.last_line().contains(" 0 alpha serial0: running, you type"));
    screen.type_keys("echo a-$((1 + 1)); (while :; do echo busy; done) & sleep 1\r");
    screen.wait_for("busy");
    screen.type_keys("\u{1}n");
    screen.wait_for("1 beta serial0");
    screen.wait_for(PROMPT.trim_end());
    let shown = screen.wait_for("beta");
    assert!(!shown.contains("busy"), "{shown}");
    // A guest paints the last line, changes the title and the clipboard, and asks the terminal.
    screen.type_keys("clear; printf '\\033[25;1HFA''KE\\033]0;FA''KE\\007\\033]52;c;eA==\\007\\033[6n\\033[99B%s' EN''D\r");
    screen.wait_for("END");
    assert!(screen.last_line().contains("1 beta serial0"), "{}", screen.last_line());
    for sequence in [&b"\x1b]"[..], b"\x1b[6n", b"\x1b[c"] {
        let is_there = screen.written().windows(sequence.len()).any(|part| part == sequence);
        assert!(!is_there, "{:?}", String::from_utf8_lossy(sequence));
    }
    // The server dies; the terminal finds the next one.
    supervised.signal("console", Signal::KILL);
    supervised.was_replaced("console", 1);
    let mut client = Client::connect(&supervised, "console", "control");
    wait_until("the terminal does not come back", || {
        client.console("beta", "serial0")["owner"].is_number().then_some(())
    });
    screen.type_until("echo b-$((2 + 2))\r", "b-4");
    screen.type_keys("\u{1}l");
    screen.wait_for("  0 alpha");
    screen.type_keys("al\r");
    screen.wait_for("0 alpha serial0");
    screen.wait_for("busy");
    screen.type_keys("\u{1}g");
    screen.wait_for("0 alpha log");
    screen.type_keys("\u{1}?");
    screen.wait_for("the same key for the guest");
    screen.type_keys("\u{1}d");
    assert_eq!(screen.status(), Some(0));
    assert!(screen.written().ends_with(b"\x1b[?1049l"), "the terminal is not restored");
    let said = |command: &mut std::process::Command| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let missing = said(&mut console(&["gamma"]));
    assert!(missing.contains("there is no machine \"gamma\""), "{missing}");
    let no_terminal = said(&mut console(&[]));
    assert!(no_terminal.contains("there is no terminal to show this"), "{no_terminal}");
    let absent = said(ring3().args(["console", "--directory", "/nowhere"]));
    assert!(absent.contains("start one with \"ring3 supervisor\""), "{absent}");
}

/// `ring3 top` tells what parts use, on the terminal and as text, and its keys start and end them.
#[test]
fn top_shows_what_parts_use_and_ends_them() {
    let supervised = three_machines(CHATTER);
    let top = |arguments: &[&str]| {
        let mut command = ring3();
        command.args(["top", "--directory"]).arg(supervised.run.path().join("r")).args(arguments);
        command
    };
    let text = String::from_utf8(output(&mut top(&["-b", "-n", "2", "-d", "0.3"]))).unwrap();
    let lists: Vec<_> = text.split("\n\n").collect();
    assert_eq!(lists.len(), 2, "{text}");
    for list in lists {
        let names: Vec<_> = list.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names, ["name", "one", "three", "two", "eye"], "{list}");
        let line = list.lines().nth(1).unwrap();
        let fields: Vec<_> = line.split_whitespace().collect();
        assert_eq!(fields[..3], ["one", "machine", "running"], "{line}");
        // It has used a processor, and has memory. It has no disk and no network.
        assert!(fields[3].parse::<f64>().unwrap() > 0.0, "{line}");
        assert!(fields[4].ends_with('M') && fields[5..] == ["0", "0", "0"], "{line}");
    }
    let mut screen = Screen::of(top(&["-d", "0.2"]));
    screen.wait_for("machines 3, servers 1");
    screen.type_keys("p");
    let is_paused = |shown: &str| {
        shown.lines().any(|line| line.starts_with("one ") && line.contains(" paused "))
    };
    screen.wait_until("one is paused", is_paused);
    screen.type_keys("s");
    screen.wait_until("one runs", |shown| !is_paused(shown));
    screen.type_keys("\x1b[Bk");
    screen.wait_for("kill three? y, or any other key");
    screen.type_keys("n");
    screen.wait_for("machines 3");
    screen.type_keys("ky");
    screen.wait_for("three has ended last: it was told to end");
    assert_eq!(supervised.query("three")["state"], "ended");
    screen.type_keys("q");
    assert_eq!(screen.status(), Some(0));
    let absent = ring3().args(["top", "-b", "--directory", "/nowhere"]).output().unwrap();
    let said = String::from_utf8(absent.stderr).unwrap();
    assert!(
        said.contains("start one with \"ring3 supervisor\"") && said.lines().count() == 1,
        "{said}"
    );
}

/// Measures how long a client waits for the first output of a machine to which it turns, while three guests write.
#[test]
#[ignore = "it measures; run it alone, with --nocapture"]
fn switching_takes_this_long() {
    let supervised = three_machines(CHATTER);
    let mut client = Client::new(&supervised);
    for name in MACHINES {
        client.is_connected(name, "serial0");
    }
    let switch = |number: usize| {
        let began = Instant::now();
        client.attach(MACHINES[number % 3], "serial0", "own");
        while client.output.len() < 60_000 {
            client.answer();
        }
        began.elapsed()
    };
    let mut times: Vec<Duration> = (0..300).map(switch).collect();
    times.sort();
    println!(
        "a switch takes {:?} (median), {:?} (99 %), {:?} at most",
        times[150], times[297], times[299]
    );
}

/// The same for a person at a terminal: until the last line and the output are those of the next machine.
#[test]
#[ignore = "it measures; run it alone, with --nocapture"]
fn switching_at_a_terminal_takes_this_long() {
    let supervised = three_machines(CHATTER);
    let mut command = ring3();
    command.args(["console", "one", "--directory"]).arg(supervised.run.path().join("r"));
    let mut screen = Screen::of(command);
    screen.wait_for("one serial0: running, you type");
    let mut switch = |number: usize| {
        let wanted = format!("{} serial0: running, you type", ["one", "three", "two"][number % 3]);
        let began = Instant::now();
        screen.type_keys("\u{1}n");
        screen.wait_until(&wanted, |shown| {
            shown.contains(&wanted)
                && shown.lines().next().unwrap_or_default().contains("0123456789")
        });
        began.elapsed()
    };
    let mut times: Vec<Duration> = (1..=100).map(&mut switch).collect();
    times.sort();
    println!(
        "a switch takes {:?} (median), {:?} (95 %), {:?} at most",
        times[50], times[95], times[99]
    );
}
