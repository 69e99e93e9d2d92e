//! `ring3 console --web`: all machines in a browser.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::json;

use crate::supervisor::{Supervised, linux_lines};
use crate::support::browser::Browser;
use crate::support::guest::{CONSOLE, PROMPT};
use crate::support::qmp::Qmp;
use crate::support::{Directory, PATIENCE, ring3, wait_until};

/// The process that serves the page. It is killed when this is dropped.
struct Page {
    child: Child,
    /// What it has said.
    said: String,
}

impl Page {
    fn serve(supervised: &Supervised, address: &str, arguments: &[&str]) -> Page {
        let mut command = ring3();
        command.args(["console", "--directory"]).arg(supervised.run.path().join("r"));
        command.args(["--web", address]).args(arguments).current_dir(supervised.directory.path(""));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        Page { child, said: said.trim_end().to_owned() }
    }

    /// Returns the address in a browser, with the token.
    fn url(&self) -> &str {
        self.said.rsplit(' ').next().unwrap()
    }

    /// Returns host and port, and the token.
    fn parts(&self) -> (&str, &str) {
        let (url, token) = self.url().split_once("/#token=").unwrap();
        (url.strip_prefix("http://").unwrap(), token)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends the head of a request, and returns that of the answer.
fn answer(mut stream: impl Read + Write, path: &str, headers: &[&str]) -> String {
    let first = format!("GET {path} HTTP/1.1");
    let head = [&[first.as_str()], headers, &["", ""]].concat().join("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    let lines: Vec<_> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    lines.join("\n")
}

const UPGRADE: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

/// Only a page of this server that knows the token gets anything, on TCP and on a Unix socket, and not by other hosts'
/// addresses.
#[test]
fn strangers_get_no_page() {
    let supervised = Supervised::new("");
    let page = Page::serve(&supervised, "127.0.0.1:0", &[]);
    let (place, token) = page.parts();
    let ask = |path: &str, headers: &[&str]| {
        let answer = answer(TcpStream::connect(place).unwrap(), path, headers);
        answer.split(' ').nth(1).unwrap().to_owned()
    };
    let (host, bearer) = (format!("Host: {place}"), format!("Authorization: Bearer {token}"));
    let protocol = format!("Sec-WebSocket-Protocol: ring3, token.{token}");
    let head = answer(TcpStream::connect(place).unwrap(), "/", &[&host]);
    for header in
        ["default-src 'none'; script-src 'self'", "frame-ancestors 'none'", "nosniff", "no-store"]
    {
        assert!(head.contains(header), "{head}");
    }
    assert!(!head.to_ascii_lowercase().contains("set-cookie"), "{head}");
    assert_eq!(ask("/", &["Host: evil.example"]), "403");
    assert_eq!(ask("/", &[]), "403");
    assert_eq!(ask("/check", &[&host]), "401");
    assert_eq!(ask("/check", &[&host, "Authorization: Bearer 0123"]), "401");
    assert_eq!(ask("/check", &[&host, &bearer]), "204");
    assert_eq!(ask("/nothing", &[&host, &bearer]), "404");
    let socket = |headers: &[&str]| ask("/socket", &[headers, &UPGRADE].concat());
    assert_eq!(socket(&[&host]), "401");
    assert_eq!(socket(&[&host, "Sec-WebSocket-Protocol: ring3, token.0"]), "401");
    assert_eq!(socket(&[&host, &protocol, "Origin: http://evil.example"]), "403");
    assert_eq!(socket(&[&host, &protocol, "Origin: http://127.0.0.1:1"]), "403");
    assert_eq!(socket(&["Host: evil.example", &protocol, "Origin: http://evil.example"]), "403");
    assert_eq!(socket(&[&host, &protocol, &format!("Origin: http://{place}")]), "101");

    // A page that says what makes no sense is left, and the server goes on. The frames have masks of zeros (RFC 6455, 5.2).
    let garbage: [&[u8]; 5] = [
        b"\x81\x82\0\0\0\0{}",
        b"\x81\x8d\0\0\0\0{\"do\":\"quit\"}",
        b"\x81\x82\0\0\0\0\xff\xfe",
        b"\x82\x82\0\0\0\0xx",
        b"\x81\xff\0\0\x01\0\0\0\0\0\0\0\0\0",
    ];
    for frame in garbage {
        let mut stream = TcpStream::connect(place).unwrap();
        let head =
            format!("GET /socket HTTP/1.1\r\n{host}\r\n{protocol}\r\n{}", UPGRADE.join("\r\n"));
        stream.write_all(format!("{head}\r\n\r\n").as_bytes()).unwrap();
        stream.write_all(frame).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let ended = stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind());
        assert!(matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)), "{ended:?} {frame:?}");
    }
    assert_eq!(ask("/check", &[&host, &bearer]), "204");

    let path = supervised.run.path().join("page");
    let by_socket = Page::serve(&supervised, &format!("unix:{}", path.display()), &[]);
    assert!(by_socket.said.contains("ssh -L 8080:"), "{}", by_socket.said);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let head = answer(UnixStream::connect(&path).unwrap(), "/", &["Host: localhost:8080"]);
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");

    let refused = |arguments: &[&str]| {
        let mut command = ring3();
        command.args(["console", "--directory"]).arg(supervised.run.path().join("r"));
        let output = command.args(arguments).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, said) = refused(&["--web", "0.0.0.0:8080"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("reach it through ssh -L"), "{said}");
    let (status, said) = refused(&["--web", place]);
    assert_eq!((status, said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains("choose another port"), "{said}");
}

/// A person sees two machines in a browser, types in one and the other without a mouse, and goes on after the servers
/// were started again.
#[test]
fn machines_share_a_page() {
    let Some(mut browser) = Browser::start() else { return };
    let lines = linux_lines();
    let on_screen = lines.replace(CONSOLE, &CONSOLE.replace("ttyS0", "tty0"));
    let directory = Directory::new();
    let disc = json!(directory.file("one.iso", &vec![1; 1 << 16]));
    directory.file("two.iso", &vec![2; 1 << 16]);
    let rights = json!(format!("auto,files={}", directory.path("").display()));
    let supervised = Supervised::in_directory(
        directory,
        &format!(
            "[machine.alpha]\n{lines}cdrom = {disc}\nsandbox = {rights}\n[machine.beta]\n{on_screen}"
        ),
    );
    let serve = |address: &str| {
        Page::serve(&supervised, address, &["--token-file", "token", "--media", "."])
    };
    let page = serve("127.0.0.1:0");
    let place = page.parts().0.to_owned();
    browser.open(page.url());
    browser.wait_for("document.querySelectorAll('#list li').length === 2");
    // The token stays in no history.
    assert_eq!(browser.value("location.href"), format!("http://{place}/"));
    assert_eq!(browser.text("where"), "All machines");

    // The first key leads to the first machine.
    browser.press("Tab", "Tab", 0);
    browser.press("Enter", "Enter", 0);
    browser.wait_for_text("rows", PROMPT.trim_end());
    assert_eq!(browser.text("where"), "alpha serial0");
    browser.wait_for_text("who", "running, you type");
    browser.type_text("echo a-$((1 + 1))\n");
    browser.wait_for_text("rows", "a-2");
    // What a guest says is no markup, and stays below the line.
    browser.type_text("echo '<b>not bold</b>'\n");
    browser.wait_for_text("rows", "\n<b>not bold</b>");
    browser.wait_for("document.elementFromPoint(20, 10).closest('#line') !== null");

    // The only key that the guest does not get.
    browser.press("g", "KeyG", 1 | 2);
    assert_eq!(browser.value("document.activeElement.id"), "back");
    browser.press("Enter", "Enter", 0);
    assert_eq!(browser.text("where"), "All machines");
    // Behind it are four buttons for power.
    for _ in 0..5 {
        browser.press("Tab", "Tab", 0);
    }
    browser.press("Enter", "Enter", 0);
    browser.wait_for_text("where", "beta serial0");
    browser.value("document.querySelector('#views button').focus()");
    browser.press("Enter", "Enter", 0);
    browser.wait_for_text("where", "beta screen");
    browser.wait_for_text("who", "running, you type");
    let mut beta = Qmp::connect(&supervised.file("beta", "control"));
    let mut is_on_screen = |wanted: &str| {
        wait_until(&format!("the screen does not show {wanted:?}"), || {
            let screen = beta.done("x-ring3-screen", json!({ "columns": 80, "rows": 25 }));
            let cells = screen["cells"].as_array()?.iter();
            let text: String = cells.map(|cell| cell[0].as_u64().unwrap() as u8 as char).collect();
            text.contains(wanted).then_some(())
        });
    };
    is_on_screen(PROMPT.trim_end());
    // The canvas shows what the machine does.
    let lit = "(() => { const screen = document.getElementById('screen'); \
        const { data } = screen.getContext('2d').getImageData(0, 0, screen.width, screen.height); \
        return data.filter((byte, index) => index % 4 === 1 && byte > 100).length; })()";
    browser.wait_for(&format!("{lit} > 1000"));
    let dots = browser.value(lit).as_u64().unwrap();
    browser.type_text("echo b-$((2 + 2)) >/dev/ttyS0; echo seen-$((4 + 4))\n");
    is_on_screen("seen-8");
    browser.wait_for(&format!("{lit} > {dots}"));
    // The mouse moves to a place and presses a button there. The first byte of its packets says which ones are held.
    browser.type_text(
        "until grep -q mouse /proc/bus/input/devices; do modprobe -r psmouse; modprobe psmouse; sleep 1; done; \
         echo mouse-$((6 + 6))\n",
    );
    // Linux takes no keys while it looks for the mouse, and looks once: a host that runs it late has no mouse.
    is_on_screen("mouse-12");
    browser.type_text(
        "exec 3</dev/input/mice; while set -- $(dd bs=3 count=1 <&3 2>/dev/null | od -A n -t u1); do \
         test $(($1 & 1)) = 1 && echo held-$((7 + 7)); done &\n\
         echo ready-$((5 + 5))\n",
    );
    is_on_screen("ready-10");
    let corner = browser
        .value("(({ x, y }) => [x, y])(document.getElementById('screen').getBoundingClientRect())");
    for (kind, by) in [("mouseMoved", 30.0), ("mousePressed", 60.0), ("mouseReleased", 60.0)] {
        let at = |side: usize| corner[side].as_f64().unwrap() + by;
        let event =
            json!({ "type": kind, "x": at(0), "y": at(1), "button": "left", "clickCount": 1 });
        browser.command("Input.dispatchMouseEvent", event);
    }
    is_on_screen("held-14");
    browser.value("document.querySelectorAll('#views button')[1].click()");
    let shown = browser.wait_for_text("rows", "b-4");
    assert_eq!(browser.text("where"), "beta serial0");
    assert!(!shown.contains("a-2"), "{shown}");

    // The server of consoles dies, and then that of the page. Both pages and machines go on.
    let pids = ["alpha", "beta"].map(|name| supervised.pid(name));
    supervised.signal("console", Signal::KILL);
    supervised.was_replaced("console", 1);
    browser.wait_for_text("who", "you type");
    drop(page);
    browser.wait_for_text("who", "no connection");
    let page = serve(&place);
    browser.wait_for_text("who", "you type");
    assert_eq!(browser.text("where"), "beta serial0");
    browser.value("document.getElementById('back').click()");
    browser.value("document.querySelector('#list .open').click()");
    browser.wait_for_text("who", "you type");
    browser.type_text("echo again-$((3 + 3))\n");
    let shown = browser.wait_for_text("rows", "again-6");
    assert!(!shown.contains("b-4"), "{shown}");

    // Discs and power.
    browser.value("document.getElementById('look').click()");
    browser.wait_for("document.getElementById('drive').options.length === 1");
    let drive = "document.getElementById('drive').selectedOptions[0].text";
    assert!(browser.value(drive).as_str().unwrap().ends_with("one.iso"));
    browser.value("document.getElementById('image').value = 'two.iso'");
    browser.value("document.querySelector('#drives button').click()");
    browser.wait_for_text("note", "done");
    browser.value("document.getElementById('look').click()");
    browser.wait_for(&format!("{drive}.endsWith('two.iso')"));
    browser.value("document.querySelector('nav [data-order=pause]').click()");
    browser.wait_for_text("who", "paused");
    browser.value("document.querySelector('nav [data-order=start]').click()");
    browser.wait_for_text("who", "running");
    assert_eq!(["alpha", "beta"].map(|name| supervised.pid(name)), pids);

    // Everything came from this server, and nothing was against its rules.
    let (page_url, socket) = (format!("http://{place}/"), format!("ws://{place}/socket"));
    let strangers: Vec<_> =
        browser.asked.iter().filter(|url| !url.starts_with(&page_url) && **url != socket).collect();
    assert!(strangers.is_empty(), "{strangers:?}");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    drop(page);
}

/// The page is one of the supervisor's servers: it is replaced when it dies or hangs, and keeps its token.
#[test]
fn a_supervisor_serves_the_page() {
    let mut supervised = Supervised::new(
        "[server.page]\nkind = \"web\"\naddress = \"unix:page.socket\"\ndeadline = 1\n",
    );
    supervised.reaches("page", "running");
    let path = supervised.directory.path("page.socket");
    let token = std::fs::read_to_string(supervised.file("page", "token")).unwrap();
    let bearer = format!("Authorization: Bearer {}", token.trim_end());
    let is_served = || {
        let stream = wait_until("there is no page", || UnixStream::connect(&path).ok());
        let head = answer(stream, "/check", &["Host: localhost", &bearer]);
        assert!(head.starts_with("HTTP/1.1 204"), "{head}");
    };
    is_served();
    let url = format!("http://localhost:8080/#token={}", token.trim_end());
    assert!(supervised.execute(&["log", "page"]).contains(&url));
    supervised.signal("page", Signal::KILL);
    supervised.was_replaced("page", 1);
    is_served();
    supervised.signal("page", Signal::STOP);
    supervised.was_replaced("page", 2);
    is_served();
    let pid = supervised.pid("page");
    supervised.replace();
    supervised.reaches("page", "running");
    assert_eq!(supervised.pid("page"), pid);
    is_served();
    supervised.execute(&["stop", "page"]);
    assert!(!path.exists() && !supervised.file("page", "control").exists());
    let web = ["launch", "p", "--kind", "web"];
    let refused = |keys: &[&str]| supervised.refused(&[&web[..], keys].concat());
    assert!(refused(&[]).contains("missing field `address`"));
    assert!(refused(&["address=0.0.0.0:8080"]).contains("0.0.0.0:8080"));
    assert!(refused(&["address=unix:q", "media=/nowhere"]).contains("/nowhere"));
}
