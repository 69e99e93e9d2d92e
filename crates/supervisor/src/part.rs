//! The life of a part: a task that starts its process, watches it, carries out orders, and starts it again.

mod back_off;
mod log;
mod watch;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::select;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::{oneshot, watch as state_channel};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::command::{State, Status};
use crate::command_line::arguments;
use crate::definition::{Definition, Name, Restart};
use crate::error::Refusal;
use crate::link::Link;
use crate::memory::Account;
use crate::place::Place;
use crate::process::{End, Process};
use crate::record::{Entry, Wanted};
use crate::supervisor::House;
use back_off::BackOff;
pub(crate) use log::end as end_of_log;

/// How long a machine may take for an answer that is of use only at once.
const PATIENCE: Duration = Duration::from_millis(500);

/// How long a new process may take until it answers.
const START: Duration = Duration::from_secs(60);
/// The interval at which it is tried.
const RETRY: Duration = Duration::from_millis(2);

/// The answer to an order.
pub(crate) type Reply = oneshot::Sender<Result<Value, Refusal>>;

/// An order to a part.
#[derive(Debug)]
pub(crate) enum Order {
    /// Let its process start, and leave a machine's guest waiting. Answered when it is ready.
    Launch(Reply),
    /// Let it run. Answered when it does.
    Start(Reply),
    /// Let the guest of a machine wait.
    Pause(Reply),
    /// End it in an orderly manner.
    Stop,
    /// Kill it.
    Kill,
    /// Ask the process to execute a command.
    Ask { command: &'static str, arguments: Value, reply: Reply },
    /// End the task, if the process does not run.
    Forget(Reply),
}

/// The part of a part that others see.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) name: Name,
    pub(crate) definition: RefCell<Definition>,
    in_file: Option<Definition>,
    pub(crate) wanted: Cell<Wanted>,
    restarts: Cell<u64>,
    pid: Cell<Option<i32>>,
    ended: RefCell<Option<String>>,
    /// What a machine has of the host's memory, if there is a budget.
    pub(crate) account: Cell<Option<Account>>,
    state: state_channel::Sender<State>,
    orders: UnboundedSender<Order>,
}

/// The orders to a part, as its task receives them.
pub(crate) type Orders = UnboundedReceiver<Order>;

impl Part {
    /// Makes a part of which no process is known yet.
    pub(crate) fn new(name: Name, entry: Entry) -> (Rc<Part>, Orders) {
        let (orders, received) = mpsc::unbounded_channel();
        let is_over = entry.wanted == Wanted::Ended;
        let part = Part {
            name,
            definition: RefCell::new(entry.definition),
            in_file: entry.in_file,
            wanted: Cell::new(entry.wanted),
            restarts: Cell::new(entry.restarts),
            pid: Cell::new(None),
            ended: RefCell::new(None),
            account: Cell::new(None),
            state: state_channel::Sender::new(if is_over { State::Ended } else { State::Waiting }),
            orders,
        };
        (Rc::new(part), received)
    }

    /// Returns what is recorded of it.
    pub(crate) fn entry(&self) -> Entry {
        Entry {
            definition: self.definition.borrow().clone(),
            in_file: self.in_file.clone(),
            wanted: self.wanted.get(),
            restarts: self.restarts.get(),
        }
    }

    /// Returns its status, for users and tools.
    pub(crate) fn status(&self, place: &Place) -> Status {
        let definition = self.definition.borrow();
        let serial = match &*definition {
            Definition::Machine(machine) => machine.serial_sockets(&place.part(&self.name)),
            Definition::Server(_) => Vec::new(),
        };
        Status {
            name: self.name.clone(),
            kind: definition.kind().to_owned(),
            state: self.state(),
            pid: self.pid.get(),
            restarts: self.restarts.get(),
            ended: self.ended.borrow().clone(),
            restart: definition.common().restart,
            memory: self.account.get(),
            serial,
        }
    }

    /// Returns the number of its process, if there is one.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.pid.get()
    }

    /// Returns its state.
    pub(crate) fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits until its state is one that `is_wanted` accepts.
    pub(crate) async fn reaches(&self, is_wanted: impl Fn(State) -> bool) {
        // The sender lives as long as this.
        let _ = self.state.subscribe().wait_for(|state| is_wanted(*state)).await;
    }

    /// Gives it an order.
    pub(crate) fn order(&self, order: Order) {
        // A part that was forgotten has no orders.
        let _ = self.orders.send(order);
    }

    /// Asks its process to execute a command, and returns the answer.
    pub(crate) async fn ask(
        &self,
        command: &'static str,
        arguments: Value,
    ) -> Result<Value, Refusal> {
        self.answer(|reply| Order::Ask { command, arguments, reply }).await
    }

    /// Asks its process as [`Part::ask`] does, but waits for the answer only a moment. None if it refuses or does not
    /// answer.
    pub(crate) async fn ask_soon(&self, command: &'static str, arguments: Value) -> Option<Value> {
        match timeout(PATIENCE, self.ask(command, arguments)).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(refusal)) => debug!("{}: {command}: {refusal}", self.name),
            Err(_) => debug!("{} does not answer in time", self.name),
        }
        None
    }

    /// Tells its process what to do. Whether it does so shows when it is asked again.
    pub(crate) async fn tell(&self, command: &'static str, arguments: Value) {
        self.ask_soon(command, arguments).await;
    }

    /// Gives it an order that has an answer, and returns that.
    pub(crate) async fn answer(
        &self,
        order: impl FnOnce(Reply) -> Order,
    ) -> Result<Value, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.order(order(reply));
        answer.await.unwrap_or_else(|_| Err(Refusal::Ended(self.name.clone())))
    }

    /// Returns whether it is a machine.
    pub(crate) fn is_machine(&self) -> bool {
        matches!(*self.definition.borrow(), Definition::Machine(_))
    }
}

/// Why a process is no longer there, or was never ready.
#[derive(Debug)]
struct Over {
    /// The reason, in words.
    reason: String,
    /// Whether that was in order: it was told to, or the guest has switched off.
    is_orderly: bool,
}

/// The task.
struct Life {
    house: Rc<House>,
    part: Rc<Part>,
    orders: Orders,
    /// Those who wait until the part is ready.
    waiting: Vec<Reply>,
    back_off: BackOff,
    /// Whether somebody wants the process to be killed.
    kills: bool,
}

/// Leads the life of a part until it is forgotten.
pub(crate) async fn live(house: Rc<House>, part: Rc<Part>, orders: Orders) {
    let (waiting, back_off) = (Vec::new(), BackOff::default());
    let mut life = Life { house, part, orders, waiting, back_off, kills: false };
    // A former supervisor may have died before an end that it began.
    let mut may_run = true;
    loop {
        if life.part.wanted.get() == Wanted::Ended
            && (!std::mem::take(&mut may_run) || life.find().await.is_none())
        {
            life.enter(State::Ended);
            let Some(order) = life.orders.recv().await else { return };
            if let Order::Forget(reply) = order {
                let _ = reply.send(Ok(json!({})));
                return;
            }
            life.take(order);
        } else {
            life.run().await;
        }
    }
}

impl Life {
    fn enter(&self, state: State) {
        if self.part.state.send_replace(state) != state {
            let state = json!(state);
            self.house.tell("STATE", &self.part.name, &json!({ "state": state }));
        }
    }

    fn want(&self, wanted: Wanted) {
        if self.part.wanted.replace(wanted) != wanted {
            self.house.save();
        }
    }

    /// Takes an order at a time when no process answers.
    fn take(&mut self, order: Order) {
        match order {
            Order::Start(reply) => {
                self.want(Wanted::Running);
                self.waiting.push(reply);
            }
            Order::Launch(reply) => {
                let is_machine = self.part.is_machine();
                self.want(if is_machine { Wanted::Paused } else { Wanted::Running });
                self.waiting.push(reply);
            }
            Order::Stop => self.want(Wanted::Ended),
            Order::Kill => {
                self.kills = true;
                self.want(Wanted::Ended);
            }
            Order::Pause(reply) | Order::Ask { reply, .. } => {
                let _ = reply.send(Err(Refusal::Ended(self.part.name.clone())));
            }
            Order::Forget(reply) => {
                let _ = reply.send(Err(Refusal::Runs(self.part.name.clone())));
            }
        }
    }

    /// Takes orders until one of them wants an end.
    async fn until_told_to_end(&mut self) {
        while self.part.wanted.get() != Wanted::Ended {
            match self.orders.recv().await {
                Some(order) => self.take(order),
                None => self.want(Wanted::Ended),
            }
        }
    }

    /// Takes orders until one of them wants an end; of a process that `has_worked`, since a former supervisor has
    /// started it, an end without a stop before.
    async fn until_told_to_be_killed(&mut self, has_worked: bool) {
        self.until_told_to_end().await;
        while has_worked && !self.kills {
            match self.orders.recv().await {
                Some(order) => self.take(order),
                None => std::future::pending().await,
            }
        }
    }

    /// Finds the process that a former supervisor has started, if it is still there.
    async fn find(&self) -> Option<Process> {
        let place = self.house.place.part(&self.part.name);
        Process::find(&place.control()).await.ok().flatten()
    }

    /// Starts the process, watches it until it ends, and decides what comes then.
    async fn run(&mut self) {
        let began = Instant::now();
        self.kills = false;
        let over = self.run_once().await;
        let has_answered =
            matches!(self.part.state(), State::Running | State::Paused | State::Stopping);
        self.part.pid.set(None);
        self.part.account.set(None);
        let Over { reason, is_orderly } = over;
        let name = self.part.name.clone();
        for reply in self.waiting.drain(..) {
            let refusal = Refusal::NotStarted { name: name.clone(), reason: reason.clone() };
            let _ = reply.send(Err(refusal));
            // Whoever wanted it now knows.
            self.part.wanted.set(Wanted::Ended);
        }
        self.house.tell("ENDED", &name, &json!({ "reason": reason }));
        *self.part.ended.borrow_mut() = Some(reason.clone());
        let policy = self.part.definition.borrow().common().restart;
        let again = match policy {
            Restart::Always => true,
            Restart::OnFailure => !is_orderly,
            Restart::Never => false,
        };
        if self.part.wanted.get() == Wanted::Ended || !again {
            info!("{name} has ended: {reason}");
            self.part.wanted.set(Wanted::Ended);
            self.house.save();
            return;
        }
        let pause = self.back_off.after(began.elapsed(), has_answered);
        warn!("{name} has ended: {reason}; it starts again in {} ms", pause.as_millis());
        self.part.restarts.set(self.part.restarts.get() + 1);
        self.house.save();
        self.enter(State::BackingOff);
        select! {
            () = sleep(pause) => {}
            () = self.until_told_to_end() => {}
        }
    }

    /// Leads the process from its start to its end.
    async fn run_once(&mut self) -> Over {
        let told = Over { reason: "it was told to end".to_owned(), is_orderly: true };
        self.enter(State::Waiting);
        let (house, part) = (Rc::clone(&self.house), Rc::clone(&self.part));
        let found = self.find().await;
        let prepared = select! {
            prepared = prepare(&house, &part, found.is_some()) => prepared,
            () = self.until_told_to_end() => Ok(()),
        };
        if let Err(refusal) = prepared {
            return Over { reason: refusal.to_string(), is_orderly: false };
        }
        if found.is_none() && part.wanted.get() == Wanted::Ended {
            return told;
        }
        self.enter(State::Starting);
        let has_worked = found.is_some();
        if let Some(process) = &found {
            info!("{} runs already as process {}", part.name, process.id());
        }
        let mut process = match found.map_or_else(|| start(&house, &part), Ok) {
            Ok(process) => process,
            Err(error) => {
                return Over { reason: format!("it cannot start: {error}"), is_orderly: false };
            }
        };
        part.pid.set(Some(process.id()));
        let opened = select! {
            opened = timeout(START, connect(&house, &part)) => opened,
            end = process.ended() => return self.over(end, false),
            () = self.until_told_to_be_killed(has_worked) => {
                process.end_at_once().await;
                return told;
            }
        };
        let Ok(link) = opened else {
            process.end_at_once().await;
            let reason = format!("it did not answer within {} s of its start", START.as_secs());
            return Over { reason, is_orderly: false };
        };
        self.watch(process, link).await
    }

    /// Returns why the process has ended.
    fn over(&self, end: End, guest_switched_off: bool) -> Over {
        let is_machine = self.part.is_machine();
        let was_told = self.part.wanted.get() == Wanted::Ended;
        let reason_given = || log::last_reason(&self.house.place.part(&self.part.name).log());
        let (reason, is_orderly) = match end {
            _ if guest_switched_off => ("the guest has switched off".to_owned(), true),
            _ if was_told => ("it was told to end".to_owned(), true),
            End::Success if is_machine => ("the machine has ended".to_owned(), true),
            End::Success => ("it has ended".to_owned(), false),
            End::Status(status) => (format!("status {status}{}", reason_given()), false),
            End::Signal(signal) => (format!("killed by signal {signal}"), false),
            End::Unknown => ("its process is gone".to_owned(), false),
        };
        Over { reason, is_orderly }
    }
}

/// Waits for the parts that `part` needs, and gives a machine the rights to its disks. One that does not run yet
/// waits for disks that others bring, too.
async fn prepare(house: &House, part: &Part, runs: bool) -> Result<(), Refusal> {
    let needs = part.definition.borrow().needs();
    for name in needs {
        let needed = house.part(&name)?;
        while needed.state() != State::Running {
            if needed.wanted.get() != Wanted::Running {
                needed.answer(Order::Start).await?;
            }
            needed.reaches(|state| matches!(state, State::Running | State::Ended)).await;
        }
    }
    house.expect(part).await?;
    let definition = part.definition.borrow().clone();
    house.call_providers(&definition, !runs).await?;
    for disk in definition.disks() {
        house.grant(&part.name, disk).await?;
        if disk.is_direct() {
            house.introduce(&part.name, disk).await?;
        }
    }
    if runs { Ok(()) } else { house.wait_for_disks(&definition).await }
}

/// Starts the process of a part.
fn start(house: &House, part: &Part) -> std::io::Result<Process> {
    let place = house.place.part(&part.name);
    let all = house.definitions();
    let arguments = arguments(&part.name, &all, &house.place, house.budget.is_some());
    let directory = part.definition.borrow().common().directory.clone();
    let process = Process::start(&house.program, &arguments, directory.as_deref(), &place.log())?;
    info!("{} is process {}", part.name, process.id());
    Ok(process)
}

/// Connects to the process of a part once it listens.
async fn connect(house: &House, part: &Part) -> Link {
    let socket = house.place.part(&part.name).control();
    let definition = part.definition.borrow().clone();
    loop {
        if let Ok(link) = Link::open(&definition, &socket).await {
            return link;
        }
        sleep(RETRY).await;
    }
}
