//! A client: it sees one console at a time, and may type there.

use std::future;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedWriteHalf;
use tokio::select;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};

use super::House;
use super::line::Line;
use super::machine::{Machine, Slot};
use super::tail::Tail;
use crate::protocol::{Command, MESSAGE_MAX, Owner, View, Wish};

/// How often a screen is looked at that has changed lately.
const QUICK: Duration = Duration::from_millis(40);
/// How often one is looked at that does not change.
const SLOW: Duration = Duration::from_millis(200);
/// How long after a change a screen is looked at often.
const LATELY: Duration = Duration::from_secs(2);
/// The pixels of graphics for a client that has not said how many it has room for.
const ROOM: (u16, u16) = (80, 50);
/// The most columns or rows of pixels.
const ROOM_MAX: u16 = 500;

/// What a client sees.
#[derive(Debug)]
enum Seen {
    Line { line: Rc<Line>, at: u64, said: watch::Receiver<()> },
    Screen(Screen),
    Log(Tail),
}

/// A screen that a client sees.
#[derive(Debug)]
struct Screen {
    /// The one that was sent last.
    shown: Value,
    /// When it last changed.
    changed: Instant,
    /// When it is looked at next.
    next: Instant,
    /// Whether the client wants pictures.
    has_pictures: bool,
    /// The answer that is awaited.
    answer: Option<oneshot::Receiver<Value>>,
}

/// See the module.
struct Session {
    house: Rc<House>,
    number: u64,
    process: i32,
    may_own: bool,
    room: (u16, u16),
    seen: Option<(Rc<Machine>, Seen)>,
    /// Who types, as the client was told.
    told: Owner,
}

/// Talks with the client of `process` until it leaves.
pub(super) async fn talk(
    house: &Rc<House>,
    stream: UnixStream,
    process: i32,
    may_own: bool,
) -> io::Result<()> {
    house.last_client.set(house.last_client.get() + 1);
    let mut session = Session {
        house: Rc::clone(house),
        number: house.last_client.get(),
        process,
        may_own,
        room: ROOM,
        seen: None,
        told: Owner::default(),
    };
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    let version = json!({ "package": concat!("ring3 console ", env!("CARGO_PKG_VERSION")) });
    send(&mut to, &json!({ "QMP": { "version": version, "capabilities": [] } }), &[]).await?;
    let mut changes = house.changes.subscribe();
    let mut line = Vec::new();
    loop {
        let room = (MESSAGE_MAX - line.len()) as u64;
        let mut limited = (&mut from).take(room);
        select! {
            // Commands first: a console that says much does not keep its client from turning to another one.
            biased;
            read = limited.read_until(b'\n', &mut line) => {
                read?;
                if line.last() != Some(&b'\n') {
                    return Ok(());
                }
                let message = std::mem::take(&mut line);
                if !message.trim_ascii().is_empty() {
                    let answer = session.answer(&message);
                    send(&mut to, &answer, &[]).await?;
                }
            }
            _ = changes.changed() => {
                let owner = session.owner();
                if owner != session.told {
                    session.told = owner;
                    send(&mut to, &json!({ "event": "OWNER", "data": owner }), &[]).await?;
                }
            }
            (message, output) = session.next() => send(&mut to, &message, &output).await?,
        }
    }
}

/// Sends a message, and the output that belongs to it.
async fn send(to: &mut OwnedWriteHalf, message: &Value, output: &[u8]) -> io::Result<()> {
    let mut bytes = format!("{message}\n").into_bytes();
    bytes.extend(output);
    to.write_all(&bytes).await
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Session {
    fn answer(&mut self, message: &[u8]) -> Value {
        let mut message: Value = serde_json::from_slice(message).unwrap_or_default();
        let id = message.as_object_mut().and_then(|fields| {
            fields.entry("arguments").or_insert_with(|| json!({}));
            fields.remove("id")
        });
        let result = match serde_json::from_value(message) {
            Ok(command) => self.execute(command),
            Err(error) => Err(format!("the message is not a command: {error}")),
        };
        let mut answer = match result {
            Ok(value) => json!({ "return": value }),
            Err(reason) => json!({ "error": { "class": "GenericError", "desc": reason } }),
        };
        if let Some(id) = id {
            answer["id"] = id;
        }
        answer
    }

    fn execute(&mut self, command: Command) -> Result<Value, String> {
        match command {
            Command::Capabilities {} => {}
            Command::QueryConsoles {} => {
                let machines = self.house.machines.borrow();
                return Ok(machines.values().map(|machine| json!(machine.shown())).collect());
            }
            Command::Attach { machine, view, wish, tail, pictures } => {
                let found = self.house.machines.borrow().get(&machine).cloned();
                let found = found.ok_or_else(|| format!("there is no machine \"{machine}\""))?;
                let mut seen = self.look_at(&found, view, tail)?;
                if let Seen::Screen(screen) = &mut seen {
                    screen.has_pictures = pictures;
                }
                self.leave();
                self.seen = Some((found, seen));
                return Ok(json!(self.ask_to_type(wish)));
            }
            Command::Detach {} => {
                self.leave();
                self.seen = None;
            }
            Command::Own { wish } => {
                self.leave();
                return Ok(json!(self.ask_to_type(wish)));
            }
            Command::Input { bytes } => {
                let Some((_, Seen::Line { line, .. })) = &self.seen else {
                    return Err("the client sees no serial line".to_owned());
                };
                self.may_type(&line.slot)?;
                return Ok(json!({ "taken": line.offer(bytes) }));
            }
            Command::Keys { keys } => return self.act(|machine| machine.type_keys(&keys)),
            Command::Pointer { changes } => {
                return self.act(|machine| machine.move_pointer(&changes));
            }
            Command::Room { columns, rows } => {
                self.room = (columns.min(ROOM_MAX), rows.min(ROOM_MAX));
            }
        }
        Ok(json!({}))
    }

    /// Lets a client act on the machine whose screen it sees. The answer has the number that `act` returns.
    fn act(&mut self, act: impl FnOnce(&Machine) -> usize) -> Result<Value, String> {
        let Some((machine, Seen::Screen(screen))) = &mut self.seen else {
            return Err("the client sees no screen".to_owned());
        };
        // The answer is soon on the screen.
        screen.changed = Instant::now();
        screen.next = screen.next.min(Instant::now() + QUICK);
        let machine = Rc::clone(machine);
        self.may_type(&machine.slot)?;
        Ok(json!({ "taken": act(&machine) }))
    }

    fn may_type(&self, slot: &Slot) -> Result<(), String> {
        if slot.is_owner(self.number) {
            return Ok(());
        }
        Err(match slot.seen_by(self.number).owner {
            Some(owner) => format!("process {owner} types here; this client looks on"),
            None => "this client only looks on".to_owned(),
        })
    }

    fn look_at(&self, machine: &Rc<Machine>, view: View, tail: u32) -> Result<Seen, String> {
        Ok(match view {
            View::Serial(number) => {
                let lines = machine.lines.borrow();
                let line = lines
                    .get(&number)
                    .ok_or_else(|| format!("\"{}\" has no console {view}", machine.name))?;
                let ring = line.ring.borrow();
                let at = ring.end().saturating_sub(tail.into()).max(ring.start());
                Seen::Line { line: Rc::clone(line), at, said: line.said.subscribe() }
            }
            View::Screen => {
                let now = Instant::now();
                Seen::Screen(Screen {
                    shown: Value::Null,
                    changed: now,
                    next: now,
                    has_pictures: true,
                    answer: None,
                })
            }
            View::Log => Seen::Log(Tail::new(self.house.place.part(&machine.name).log(), tail)),
        })
    }

    /// Returns who types at what the client sees.
    fn owner(&self) -> Owner {
        self.slot().map_or(Owner::default(), |slot| slot.seen_by(self.number))
    }

    fn slot(&self) -> Option<&Slot> {
        match self.seen.as_ref()? {
            (_, Seen::Line { line, .. }) => Some(&line.slot),
            (machine, Seen::Screen(_)) => Some(&machine.slot),
            (_, Seen::Log(_)) => None,
        }
    }

    fn ask_to_type(&mut self, wish: Wish) -> Owner {
        let wish = if self.may_own { wish } else { Wish::Watch };
        if let Some((machine, Seen::Screen(_))) = &self.seen
            && wish == Wish::Take
        {
            machine.release_all();
        }
        if let Some(slot) = self.slot() {
            slot.ask(self.number, self.process, wish);
        }
        self.told = self.owner();
        self.house.tell();
        self.told
    }

    /// Gives up the right to type, and releases the keys that the client holds.
    fn leave(&mut self) {
        if self.slot().is_some_and(|slot| slot.leave(self.number)) {
            if let Some((machine, Seen::Screen(_))) = &self.seen {
                machine.release_all();
            }
            self.house.tell();
        }
    }

    /// Waits for the next thing that the client is to see. This may be given up, and begun again.
    async fn next(&mut self) -> (Value, Vec<u8>) {
        match &mut self.seen {
            None => future::pending().await,
            Some((_, Seen::Line { line, at, said })) => loop {
                let (bytes, lost) = line.said_since(*at);
                if !bytes.is_empty() {
                    *at += lost + bytes.len() as u64;
                    return output(bytes, lost);
                }
                // The sender lives as long as the line.
                let _ = said.changed().await;
            },
            Some((_, Seen::Log(tail))) => output(tail.next().await, 0),
            Some((_, Seen::Screen(screen))) if !screen.has_pictures => future::pending().await,
            Some((machine, Seen::Screen(screen))) => loop {
                sleep_until(screen.next).await;
                let answer = screen.answer.get_or_insert_with(|| machine.ask_for_screen(self.room));
                // A machine that gives no answer shows nothing.
                let picture = answer.await.unwrap_or_else(|_| json!({ "kind": "off" }));
                screen.answer = None;
                let has_changed = picture != screen.shown;
                if has_changed {
                    screen.changed = Instant::now();
                }
                let is_quick = screen.changed.elapsed() < LATELY;
                screen.next = Instant::now() + if is_quick { QUICK } else { SLOW };
                if has_changed {
                    screen.shown = picture.clone();
                    return (json!({ "event": "SCREEN", "data": picture }), Vec::new());
                }
            },
        }
    }
}

fn output(bytes: Vec<u8>, lost: u64) -> (Value, Vec<u8>) {
    let data = json!({ "length": bytes.len(), "lost": lost });
    (json!({ "event": "OUTPUT", "data": data }), bytes)
}
