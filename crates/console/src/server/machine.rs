//! A machine: its serial lines, and its screen with the keyboard.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use ring3_supervisor::command::State;
use ring3_supervisor::definition::Name;
use serde_json::{Value, json};
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use super::line::{self, Line};
use super::{AGAIN, House};
use crate::monitor::Monitor;
use crate::protocol::{self, Button, Console, KeyChange, LINES, Owner, PointerChange, View, Wish};

/// The most changes of keys and of the mouse that wait for the machine.
const CHANGES_MAX: usize = 256;
/// The reason of a machine for refusing input while earlier input waits.
const FULL: &str = "too much is waiting to be typed already";
/// The pause before such input is sent again.
const FULL_FOR: Duration = Duration::from_millis(20);

/// The client that may type at a console.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Its number, and its process.
    owner: Cell<Option<(u64, i32)>>,
}

impl Slot {
    /// Gives the right to type to a client, by its wish.
    pub(super) fn ask(&self, client: u64, process: i32, wish: Wish) {
        let is_free = self.owner.get().is_none_or(|(owner, _)| owner == client);
        match wish {
            Wish::Own if is_free => self.owner.set(Some((client, process))),
            Wish::Take => self.owner.set(Some((client, process))),
            Wish::Own | Wish::Watch => {}
        }
    }

    /// Takes the right from a client. Returns whether it had it.
    pub(super) fn leave(&self, client: u64) -> bool {
        let had = self.is_owner(client);
        if had {
            self.owner.set(None);
        }
        had
    }

    pub(super) fn is_owner(&self, client: u64) -> bool {
        self.owner.get().is_some_and(|(owner, _)| owner == client)
    }

    /// Returns who types, as a client sees it.
    pub(super) fn seen_by(&self, client: u64) -> Owner {
        Owner { input: self.is_owner(client), owner: self.owner.get().map(|(_, process)| process) }
    }
}

/// Something that the machine is asked for.
#[derive(Debug)]
struct Question {
    command: &'static str,
    arguments: Value,
    /// The changes of keys and of the mouse in it.
    changes: usize,
    reply: Option<oneshot::Sender<Value>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) name: Name,
    pub(super) state: Cell<State>,
    /// Who has the keyboard and the mouse.
    pub(super) slot: Slot,
    pub(super) lines: RefCell<BTreeMap<u8, Rc<Line>>>,
    connected: Cell<bool>,
    questions: UnboundedSender<Question>,
    /// The changes of keys and of the mouse that wait.
    changes_waiting: Cell<usize>,
    /// The keys that the owner holds.
    held: RefCell<BTreeSet<u8>>,
    /// The buttons that the owner holds.
    held_buttons: RefCell<BTreeSet<Button>>,
    changes: watch::Sender<u64>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
}

impl Machine {
    /// Makes a machine of `house`, of which nothing but the name is known.
    pub(super) fn new(house: &Rc<House>, name: Name) -> Rc<Machine> {
        let (questions, to_ask) = mpsc::unbounded_channel();
        let control = house.place.part(&name).control();
        let machine = Rc::new(Machine {
            name,
            state: Cell::new(State::Ended),
            slot: Slot::default(),
            lines: RefCell::default(),
            connected: Cell::new(false),
            questions,
            changes_waiting: Cell::new(0),
            held: RefCell::default(),
            held_buttons: RefCell::default(),
            changes: house.changes.clone(),
            tasks: RefCell::default(),
        });
        let asking = spawn_local(Rc::clone(&machine).ask_all(control, to_ask));
        machine.tasks.borrow_mut().push(asking);
        machine
    }

    /// Adds the serial lines at `sockets`, COM1 first, that are not there yet.
    pub(super) fn add_lines(self: &Rc<Machine>, house: &House, sockets: &[Option<PathBuf>]) {
        let mut lines = self.lines.borrow_mut();
        for (number, socket) in (0..LINES).zip(sockets) {
            let Some(socket) = socket else { continue };
            if lines.get(&number).is_some_and(|line| line.socket == *socket) {
                continue;
            }
            let (line, to_type) = Line::new(socket.clone(), house.scroll_back);
            let serving = spawn_local(line::serve(Rc::clone(self), Rc::clone(&line), to_type));
            self.tasks.borrow_mut().push(serving);
            lines.insert(number, line);
        }
    }

    /// Ends its tasks. It has been forgotten by the supervisor.
    pub(super) fn end(&self) {
        self.tasks.borrow_mut().drain(..).for_each(|task| task.abort());
    }

    /// Waits until it has a process.
    pub(super) async fn has_process(&self) {
        // The sender lives as long as this.
        let _ = self.changes.subscribe().wait_for(|_| self.state.get() != State::Ended).await;
    }

    /// Returns what clients are told of it.
    pub(super) fn shown(&self) -> protocol::Machine {
        let lines = self.lines.borrow();
        let serial = lines.iter().map(|(number, line)| {
            let ring = line.ring.borrow();
            Console {
                view: View::Serial(*number),
                connected: line.connected.get(),
                said: ring.end(),
                kept: ring.end() - ring.start(),
                owner: line.slot.seen_by(0).owner,
            }
        });
        let connected = self.connected.get();
        let other = |view, owner| Console { view, connected, said: 0, kept: 0, owner };
        let rest = [other(View::Screen, self.slot.seen_by(0).owner), other(View::Log, None)];
        protocol::Machine {
            name: self.name.clone(),
            state: self.state.get(),
            consoles: serial.chain(rest).collect(),
        }
    }

    /// Presses and releases keys, all or none. Returns how many changes the machine takes.
    pub(super) fn type_keys(&self, keys: &[KeyChange]) -> usize {
        if !self.has_room(keys.len()) {
            return 0;
        }
        let mut held = self.held.borrow_mut();
        for (key, is_pressed) in keys {
            note(&mut held, *key, *is_pressed);
        }
        self.send_input(&keys.iter().copied().map(key_event).collect::<Vec<_>>());
        keys.len()
    }

    /// Moves the mouse and presses its buttons, all or none. Returns how many changes the machine takes.
    pub(super) fn move_pointer(&self, changes: &[PointerChange]) -> usize {
        if !self.has_room(changes.len()) {
            return 0;
        }
        let mut held = self.held_buttons.borrow_mut();
        for change in changes {
            if let PointerChange::Button(button, is_pressed) = change {
                note(&mut held, *button, *is_pressed);
            }
        }
        let events: Vec<_> = changes.iter().copied().flat_map(pointer_events).collect();
        self.send_input(&events);
        changes.len()
    }

    /// Releases the keys and buttons that the owner has held.
    pub(super) fn release_all(&self) {
        let keys = std::mem::take(&mut *self.held.borrow_mut());
        let buttons = std::mem::take(&mut *self.held_buttons.borrow_mut());
        let mut events: Vec<_> = keys.into_iter().map(|key| key_event((key, false))).collect();
        let released = buttons.into_iter().map(|button| PointerChange::Button(button, false));
        events.extend(released.flat_map(pointer_events));
        if !events.is_empty() {
            self.send_input(&events);
        }
    }

    fn has_room(&self, changes: usize) -> bool {
        self.connected.get() && self.changes_waiting.get() + changes <= CHANGES_MAX
    }

    fn send_input(&self, events: &[Value]) {
        let changes = events.len();
        self.changes_waiting.set(self.changes_waiting.get() + changes);
        let arguments = json!({ "events": events });
        self.put(Question { command: "input-send-event", arguments, changes, reply: None });
    }

    /// Asks for the screen, in at most so many pixels if it shows graphics. There is no answer if the machine has none.
    pub(super) fn ask_for_screen(&self, (columns, rows): (u16, u16)) -> oneshot::Receiver<Value> {
        let (reply, answer) = oneshot::channel();
        let arguments = json!({ "columns": columns, "rows": rows });
        self.put(Question { command: "x-ring3-screen", arguments, changes: 0, reply: Some(reply) });
        answer
    }

    fn put(&self, question: Question) {
        // The receiver lives as long as the machine is known.
        let _ = self.questions.send(question);
    }

    /// Asks the machine all questions, for ever. Those that come while it does not answer are forgotten.
    async fn ask_all(
        self: Rc<Machine>,
        control: PathBuf,
        mut questions: UnboundedReceiver<Question>,
    ) {
        loop {
            self.has_process().await;
            if let Ok(mut monitor) = Monitor::open(&control).await {
                self.connected.set(true);
                self.ask_while_connected(&mut monitor, &mut questions).await;
                self.connected.set(false);
                self.held.borrow_mut().clear();
                self.held_buttons.borrow_mut().clear();
            }
            let until = sleep(AGAIN);
            tokio::pin!(until);
            loop {
                select! {
                    () = &mut until => break,
                    question = questions.recv() => self.count(question.as_ref()),
                }
            }
        }
    }

    /// Notes that a question no longer waits.
    fn count(&self, question: Option<&Question>) {
        let changes = question.map_or(0, |question| question.changes);
        self.changes_waiting.set(self.changes_waiting.get() - changes);
    }

    async fn ask_while_connected(
        &self,
        monitor: &mut Monitor,
        questions: &mut UnboundedReceiver<Question>,
    ) {
        // Keys may have to wait, for example while the machine is paused, and other questions do not wait for them.
        let mut inputs = VecDeque::new();
        let mut next_input = Instant::now();
        loop {
            let asked = select! {
                question = questions.recv() => match question {
                    None => break,
                    Some(question) if question.changes > 0 => {
                        inputs.push_back(question);
                        continue;
                    }
                    Some(Question { command, arguments, reply, .. }) => {
                        monitor.ask(command, &arguments).await.map(|answer| {
                            // The client may have turned to something else.
                            let _ = reply.map(|reply| reply.send(answer));
                        })
                    }
                },
                event = monitor.message() => match event {
                    Ok(_) => continue,
                    Err(_) => break,
                },
                () = sleep_until(next_input), if !inputs.is_empty() => {
                    let Some(Question { command, arguments, .. }) = inputs.front() else { continue };
                    let asked = monitor.ask(command, arguments).await;
                    if asked.as_ref().is_err_and(|error| error.to_string() == FULL) {
                        next_input = Instant::now() + FULL_FOR;
                        continue;
                    }
                    self.count(inputs.pop_front().as_ref());
                    asked.map(drop)
                }
            };
            match asked {
                Ok(()) => {}
                // The machine refuses it.
                Err(error) if error.kind() == ErrorKind::Other => {}
                Err(_) => break,
            }
        }
        for question in &inputs {
            self.count(Some(question));
        }
    }
}

/// Notes in `held` that something is pressed, or released.
fn note<T: Ord>(held: &mut BTreeSet<T>, what: T, is_pressed: bool) {
    if is_pressed {
        held.insert(what);
    } else {
        held.remove(&what);
    }
}

/// Returns the event of QMP for a change of a key.
fn key_event((key, down): KeyChange) -> Value {
    json!({ "type": "key", "data": { "key": { "type": "number", "data": key }, "down": down } })
}

/// Returns the events of QMP for a change of the mouse.
fn pointer_events(change: PointerChange) -> Vec<Value> {
    let both = |kind: &str, (x, y): (i32, i32)| {
        [("x", x), ("y", y)]
            .map(|(axis, value)| json!({ "type": kind, "data": { "axis": axis, "value": value } }))
            .to_vec()
    };
    match change {
        PointerChange::By(right, down) => both("rel", (right.into(), down.into())),
        PointerChange::To(x, y) => both("abs", (x.into(), y.into())),
        PointerChange::Button(button, down) => {
            vec![json!({ "type": "btn", "data": { "button": button, "down": down } })]
        }
    }
}
