//! All parts together, and the commands that concern them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use ring3_host::socket::listen_at;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, broadcast};
use tokio::task::{LocalSet, spawn_local};
use tracing::{info, warn};

use crate::activation;
use crate::command::{Command, State};
use crate::control;
use crate::definition::Budgets;
use crate::definition::{self, Definition, Definitions, Disk, Name};
use crate::error::{Error, Refusal};
use crate::memory;
use crate::part::{self, Order, Part};
use crate::place::Place;
use crate::plugging;
use crate::processors::{self, Groups};
use crate::record::{self, Entry, Record, Wanted};
use crate::shares;
use crate::usage;

/// The events that a slow listener may be behind; it loses older ones, and is told so.
const EVENTS: usize = 1024;

/// The options of a supervisor.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its directory.
    pub place: Place,
    /// The file with definitions.
    pub configuration: Option<PathBuf>,
    /// The program `ring3`.
    pub program: PathBuf,
}

/// All parts, and what they share.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) place: Place,
    pub(crate) program: PathBuf,
    /// What the host may hold for the memory of all machines, if that is limited.
    pub(crate) budget: Option<u64>,
    parts: RefCell<BTreeMap<Name, Rc<Part>>>,
    /// Events, as lines.
    events: broadcast::Sender<String>,
    /// Whether to leave the parts as they are at the end.
    leaves: Cell<bool>,
    ends: Notify,
}

/// Runs a supervisor until it is told to end.
pub fn run(options: &Options) -> Result<(), Error> {
    let Options { place, configuration, program } = options;
    place.prepare()?;
    // While it exists, no other supervisor starts here.
    let (listener, file) = if let Some(listener) = activation::socket(&place.control())? {
        (listener, None)
    } else {
        let (listener, file) = listen_at(&place.control())?;
        (listener, Some(file))
    };
    let mut record = record::read(&place.record())
        .map_err(|source| Error::Read { path: place.record(), source })?;
    let budgets = match configuration {
        Some(path) => add_definitions(&mut record, path)?,
        None => Budgets::default(),
    };
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Host)?;
    let house = Rc::new(House {
        place: place.clone(),
        program: program.clone(),
        budget: budgets.memory.map(|memory| memory.budget.0),
        parts: RefCell::default(),
        events: broadcast::Sender::new(EVENTS),
        leaves: Cell::new(false),
        ends: Notify::new(),
    });
    let tasks = LocalSet::new();
    let result = tasks.block_on(&runtime, async {
        let listener = UnixListener::from_std(listener).map_err(Error::Host)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::Host)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Host)?;
        let mut hang_up = signal(SignalKind::hangup()).map_err(Error::Host)?;
        let groups = budgets.cpu.and_then(|_| Groups::find());
        for (name, entry) in record {
            house.add(name, entry);
        }
        house.save();
        spawn_local(control::serve(Rc::clone(&house), listener));
        spawn_local(shares::tell(Rc::clone(&house)));
        if let Some(budget) = house.budget {
            spawn_local(memory::share(Rc::clone(&house), budget));
        }
        if let Some(processors) = budgets.cpu {
            spawn_local(processors::share(Rc::clone(&house), processors, groups.clone()));
        }
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hang_up.recv() => house.leaves.set(true),
            () = house.ends.notified() => {}
        }
        if !house.leaves.get() {
            house.stop_all().await;
            if let Some(groups) = groups {
                house.machines().iter().for_each(|machine| groups.remove(&machine.name));
            }
            // The next supervisor begins with what its file says.
            let _ = fs::remove_file(house.place.record());
        }
        Ok(())
    });
    drop(file);
    result
}

/// Adds the definitions in the file `path`. One that is as it was when the file was last read keeps the changes that
/// commands have made since. Returns what is shared out.
fn add_definitions(record: &mut Record, path: &PathBuf) -> Result<Budgets, Error> {
    let failed = |source| Error::Read { path: path.clone(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let absolute = std::path::absolute(path).map_err(failed)?;
    let directory = absolute.parent().unwrap_or(&absolute);
    let (definitions, budgets) = definition::parse_with_budgets(&text, directory)
        .map_err(|reason| Error::Configuration { path: path.clone(), reason })?;
    for (name, definition) in definitions {
        let wanted = if definition.starts() { Wanted::Running } else { Wanted::Ended };
        let entry = record.entry(name).or_insert(Entry::new(definition.clone(), wanted));
        if entry.in_file.as_ref() != Some(&definition) {
            entry.definition = definition.clone();
            entry.in_file = Some(definition);
        }
    }
    Ok(budgets)
}

impl House {
    /// Returns the part `name`.
    pub(crate) fn part(&self, name: &Name) -> Result<Rc<Part>, Refusal> {
        let parts = self.parts.borrow();
        parts.get(name).cloned().ok_or_else(|| Refusal::Unknown(name.clone()))
    }

    /// Returns the machines.
    pub(crate) fn machines(&self) -> Vec<Rc<Part>> {
        self.parts.borrow().values().filter(|part| part.is_machine()).cloned().collect()
    }

    /// Returns the servers.
    pub(crate) fn servers(&self) -> Vec<Rc<Part>> {
        self.parts.borrow().values().filter(|part| !part.is_machine()).cloned().collect()
    }

    /// Returns all definitions.
    pub(crate) fn definitions(&self) -> Definitions {
        let parts = self.parts.borrow();
        let definition =
            |(name, part): (&Name, &Rc<Part>)| (name.clone(), part.definition.borrow().clone());
        parts.iter().map(definition).collect()
    }

    /// Writes the record.
    pub(crate) fn save(&self) {
        let parts = self.parts.borrow();
        let record = parts.iter().map(|(name, part)| (name.clone(), part.entry())).collect();
        if let Err(error) = record::write(&self.place.record(), &record) {
            warn!(
                "the record cannot be written, so another supervisor will not know of changes: {error}"
            );
        }
    }

    /// Tells all who listen of an event.
    pub(crate) fn tell(&self, event: &str, name: &Name, data: &Value) {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut data = if data.is_object() { data.clone() } else { json!({}) };
        data["name"] = json!(name);
        let line = json!({
            "event": event,
            "data": data,
            "timestamp": { "seconds": time.as_secs(), "microseconds": time.subsec_micros() },
        });
        // This fails if nobody listens.
        let _ = self.events.send(line.to_string());
    }

    /// Returns the events from now on.
    pub(crate) fn events(&self) -> broadcast::Receiver<String> {
        self.events.subscribe()
    }

    fn add(self: &Rc<House>, name: Name, entry: Entry) -> Rc<Part> {
        // A server makes sockets in the directories of its machines.
        if let Err(error) = self.place.part(&name).prepare() {
            warn!("the directory of {name} cannot be made: {error}");
        }
        let (part, orders) = Part::new(name.clone(), entry);
        self.parts.borrow_mut().insert(name, Rc::clone(&part));
        spawn_local(part::live(Rc::clone(self), Rc::clone(&part), orders));
        part
    }

    /// Executes a command.
    pub(crate) async fn execute(self: &Rc<House>, command: Command) -> Result<Value, Refusal> {
        match command {
            Command::Capabilities {} | Command::Events {} => {}
            Command::Query { name: None } => {
                let parts = self.parts.borrow();
                return Ok(parts.values().map(|part| json!(part.status(&self.place))).collect());
            }
            Command::Query { name: Some(name) } => {
                return Ok(json!(self.part(&name)?.status(&self.place)));
            }
            Command::Usage {} => {
                let parts: Vec<_> = self.parts.borrow().values().cloned().collect();
                return Ok(json!(usage::of_all(self, parts).await));
            }
            Command::Launch { name, definition } => return self.launch(name, *definition).await,
            Command::Start { name } => return self.part(&name)?.answer(Order::Start).await,
            Command::Pause { name } => return self.part(&name)?.answer(Order::Pause).await,
            Command::Stop { name, wait } => {
                let part = self.part(&name)?;
                part.order(Order::Stop);
                if wait {
                    part.reaches(|state| state == State::Ended).await;
                }
            }
            Command::Kill { name } => self.part(&name)?.order(Order::Kill),
            Command::Remove { name } => self.remove(&name).await?,
            Command::Grant { machine, disk } => {
                if self.part(&machine)?.pid().is_some() {
                    self.must_be_there(&disk).await?;
                }
                self.define(&machine, |definition| {
                    definition.disk.push(disk.clone());
                    Ok(())
                })?;
                self.grant(&machine, &disk).await?;
                plugging::plug(self, &machine, &disk).await?;
            }
            Command::Revoke { machine, server, device } => {
                let is_this = |disk: &Disk| disk.server == server && disk.device == device;
                let disk = self.define(&machine, |definition| {
                    let index = definition.disk.iter().position(is_this);
                    let no_right = || Refusal::NoRight {
                        machine: machine.clone(),
                        server: server.clone(),
                        device: device.clone(),
                    };
                    Ok(definition.disk.remove(index.ok_or_else(no_right)?))
                })?;
                plugging::unplug(self, &machine, &disk).await?;
            }
            Command::Connect { machine, network } => {
                self.define(&machine, |definition| {
                    let cards = &mut definition.network;
                    if cards.iter().any(|other| other.switch == network.switch) {
                        let (machine, switch) = (machine.clone(), network.switch.clone());
                        return Err(Refusal::HasCard { machine, switch });
                    }
                    cards.push(network.clone());
                    Ok(())
                })?;
                plugging::connect(self, &machine, &network).await?;
            }
            Command::Disconnect { machine, switch } => {
                let network = self.define(&machine, |definition| {
                    let cards = &mut definition.network;
                    let index = cards.iter().position(|network| network.switch == switch);
                    let (machine, switch) = (machine.clone(), switch.clone());
                    Ok(cards.remove(index.ok_or(Refusal::NoCard { machine, switch })?))
                })?;
                plugging::disconnect(self, &machine, &network).await?;
            }
            Command::Resize { server, device, size, shrink } => {
                let device = json!({ "name": device, "size": size, "shrink": shrink });
                self.part(&server)?.ask("device-resize", device).await?;
            }
            Command::Memory { machine, size } => {
                let size = json!({ "value": size });
                self.part(&machine)?.ask("x-ring3-resize-memory", size).await?;
            }
            Command::RestartPolicy { name, policy } => {
                self.part(&name)?.definition.borrow_mut().common_mut().restart = policy;
                self.save();
            }
            Command::Log { name } => {
                self.part(&name)?;
                let text = part::end_of_log(&self.place.part(&name).log()).map_err(Refusal::Log)?;
                return Ok(json!(text));
            }
            Command::Quit { leave } => {
                self.leaves.set(leave);
                self.ends.notify_one();
            }
        }
        Ok(json!({}))
    }

    pub(crate) async fn launch(
        self: &Rc<House>,
        name: Name,
        definition: Definition,
    ) -> Result<Value, Refusal> {
        if self.part(&name).is_ok() {
            return Err(Refusal::Exists(name));
        }
        let mut all = self.definitions();
        all.insert(name.clone(), definition.clone());
        definition::check(&name, &all)?;
        let part = self.add(name.clone(), Entry::new(definition, Wanted::Ended));
        let launched = part.answer(Order::Launch).await;
        if launched.is_err() {
            // There is nothing to be removed by the user.
            let _ = part.answer(Order::Forget).await;
            let definition = part.definition.borrow().clone();
            self.release(&name, &definition).await;
            self.parts.borrow_mut().remove(&name);
            self.save();
        }
        launched
    }

    /// Changes the definition of a machine, and returns what `change` returns.
    fn define<T>(
        &self,
        name: &Name,
        change: impl FnOnce(&mut definition::Machine) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let part = self.part(name)?;
        let mut all = self.definitions();
        let Some(Definition::Machine(machine)) = all.get_mut(name) else {
            return Err(Refusal::NoMachine(name.clone()));
        };
        let changed = change(machine)?;
        definition::check(name, &all)?;
        *part.definition.borrow_mut() = all[name].clone();
        self.save();
        Ok(changed)
    }

    async fn remove(&self, name: &Name) -> Result<(), Refusal> {
        let part = self.part(name)?;
        let all = self.definitions();
        let needing = all.iter().find(|(_, other)| other.leans_on(&all).contains(name));
        if let Some((by, _)) = needing {
            return Err(Refusal::Needed { name: name.clone(), by: by.clone() });
        }
        part.answer(Order::Forget).await?;
        self.release(name, &all[name]).await;
        self.parts.borrow_mut().remove(name);
        self.save();
        if let Err(error) = self.place.part(name).remove() {
            info!("the directory of {name} stays: {error}");
        }
        Ok(())
    }

    /// Ends all parts, those that others need after those others.
    async fn stop_all(&self) {
        loop {
            let parts: Vec<Rc<Part>> = self.parts.borrow().values().cloned().collect();
            let alive = parts
                .iter()
                .filter(|part| part.state() != State::Ended || part.wanted.get() != Wanted::Ended);
            let alive: Vec<_> = alive.collect();
            let all = self.definitions();
            let is_needed = |name: &Name| {
                alive.iter().any(|part| all[&part.name].leans_on(&all).contains(name))
            };
            let round: Vec<_> = alive.iter().filter(|part| !is_needed(&part.name)).collect();
            if round.is_empty() {
                return;
            }
            for part in &round {
                part.order(Order::Stop);
            }
            for part in round {
                part.reaches(|state| state == State::Ended).await;
            }
        }
    }
}
