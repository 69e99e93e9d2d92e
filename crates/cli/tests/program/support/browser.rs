//! Chromium, driven by the DevTools protocol over pipes (<https://chromedevtools.github.io/devtools-protocol/>).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use serde_json::{Value, json};

use super::{PATIENCE, wait_until};

const PROGRAM: &str = "/usr/bin/chromium";

/// A browser without a window, with one page. Its profile is removed at the end.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    messages: Receiver<Value>,
    last: u64,
    page: Option<String>,
    /// The addresses of all that the page has asked for.
    pub(crate) asked: Vec<String>,
    /// What the page has complained about.
    pub(crate) complaints: Vec<String>,
    profile: tempfile::TempDir,
}

impl Browser {
    /// Starts it. If the host does not have it, this prints a note, and the test passes.
    pub(crate) fn start() -> Option<Browser> {
        if !Path::new(PROGRAM).exists() {
            ring3_skipped::package(format_args!(
                "{PROGRAM} is missing: install the package chromium"
            ));
            return None;
        }
        let profile = tempfile::tempdir().unwrap();
        // It reads commands from descriptor 3, and writes to descriptor 4.
        let mut child = Command::new("/bin/sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1", "sh", PROGRAM])
            .args(["--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--no-first-run"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"])
            .args(["--window-size=1200,900"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let (says, messages) = mpsc::channel();
        thread::spawn(move || {
            let mut message = Vec::new();
            while matches!(from.read_until(0, &mut message), Ok(1..)) && message.pop() == Some(0) {
                if says.send(serde_json::from_slice(&message).unwrap()).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Browser {
            child,
            to,
            messages,
            last: 0,
            page: None,
            asked: Vec::new(),
            complaints: Vec::new(),
            profile,
        };
        let target = browser.command("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.command("Target.attachToTarget", attach);
        browser.page = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Network", "Page", "Runtime", "Log"] {
            browser.command(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Has it execute a command, and returns the result.
    #[track_caller]
    #[allow(clippy::needless_pass_by_value)] // Calls read better with json!(..) as it is.
    pub(crate) fn command(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if let Some(page) = &self.page {
            message["sessionId"] = json!(page);
        }
        write!(self.to, "{message}\0").unwrap();
        loop {
            let mut message = self.messages.recv_timeout(PATIENCE).expect("the browser answers");
            if message["id"] == self.last {
                assert!(message["error"].is_null(), "{method} {parameters}: {message}");
                return message["result"].take();
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let parameters = &event["params"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                self.asked.push(text(&parameters["request"]["url"]));
            }
            Some("Network.webSocketCreated") => self.asked.push(text(&parameters["url"])),
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(parameters["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if parameters["entry"]["source"] == "security" => {
                self.complaints.push(text(&parameters["entry"]["text"]));
            }
            _ => {}
        }
    }

    /// Goes to an address.
    pub(crate) fn open(&mut self, url: &str) {
        self.command("Page.navigate", json!({ "url": url }));
    }

    /// Returns the value of a JavaScript expression on the page.
    #[track_caller]
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut result = self.command("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Returns the text that a person sees in the element `id`.
    #[track_caller]
    pub(crate) fn text(&mut self, id: &str) -> String {
        let text = self.value(&format!("document.getElementById('{id}').innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// Waits until the element `id` shows `wanted`, and returns all of its text.
    #[track_caller]
    pub(crate) fn wait_for_text(&mut self, id: &str, wanted: &str) -> String {
        let mut shown = String::new();
        for _ in 0..PATIENCE.as_millis() / 50 {
            shown = self.text(id);
            if shown.contains(wanted) {
                return shown;
            }
            thread::sleep(std::time::Duration::from_millis(50));
        }
        panic!("#{id} does not show {wanted:?}, but {shown:?}");
    }

    /// Waits until a JavaScript expression is true.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, expression: &str) {
        wait_until(expression, || (self.value(expression) == true).then_some(()));
    }

    /// Presses and releases a key, with modifiers held: 1 is Alt, 2 Ctrl and 8 Shift.
    pub(crate) fn press(&mut self, key: &str, code: &str, modifiers: u8) {
        for kind in ["rawKeyDown", "keyUp"] {
            let number = match key {
                "Enter" => 13,
                "Tab" => 9,
                _ => 0,
            };
            let event = json!({
                "type": if kind == "rawKeyDown" && key == "Enter" { "keyDown" } else { kind },
                "key": key, "code": code, "modifiers": modifiers,
                "windowsVirtualKeyCode": number, "text": if key == "Enter" { "\r" } else { "" },
            });
            self.command("Input.dispatchKeyEvent", event);
        }
    }

    /// Types text as a person with a US keyboard does.
    pub(crate) fn type_text(&mut self, text: &str) {
        for character in text.chars() {
            let shifted =
                "!@#$%^&*()_+{}|:\"<>?~".contains(character) || character.is_ascii_uppercase();
            if shifted {
                self.key_event("rawKeyDown", "Shift", "ShiftLeft", 8);
            }
            if character == '\n' {
                self.press("Enter", "Enter", 0);
                continue;
            }
            let (key, code) = (character.to_string(), code(character));
            let modifiers = if shifted { 8 } else { 0 };
            self.key_event("rawKeyDown", &key, &code, modifiers);
            self.key_event("keyUp", &key, &code, modifiers);
            if shifted {
                self.key_event("keyUp", "Shift", "ShiftLeft", 0);
            }
        }
    }

    fn key_event(&mut self, kind: &str, key: &str, code: &str, modifiers: u8) {
        let event = json!({ "type": kind, "key": key, "code": code, "modifiers": modifiers });
        self.command("Input.dispatchKeyEvent", event);
    }
}

/// Returns the place of the key that types a character.
fn code(character: char) -> String {
    match character.to_ascii_lowercase() {
        letter @ 'a'..='z' => format!("Key{}", letter.to_ascii_uppercase()),
        digit @ '0'..='9' => format!("Digit{digit}"),
        ' ' => "Space".to_owned(),
        '-' | '_' => "Minus".to_owned(),
        '=' | '+' => "Equal".to_owned(),
        '/' | '?' => "Slash".to_owned(),
        '.' | '>' => "Period".to_owned(),
        ',' | '<' => "Comma".to_owned(),
        '\'' | '"' => "Quote".to_owned(),
        ';' | ':' => "Semicolon".to_owned(),
        '!' => "Digit1".to_owned(),
        '$' => "Digit4".to_owned(),
        '&' => "Digit7".to_owned(),
        '|' => "Backslash".to_owned(),
        '(' => "Digit9".to_owned(),
        ')' => "Digit0".to_owned(),
        '*' => "Digit8".to_owned(),
        other => panic!("the test types no {other}"),
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Its other processes see that it has gone, and write to the profile until then.
        for _ in 0..100 {
            if fs::remove_dir_all(self.profile.path()).is_ok() {
                return;
            }
            thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
