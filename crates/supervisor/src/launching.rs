//! The commands of guests.
//!
//! A machine that [launches](crate::definition::Machine::launches) others has a channel by which its guest asks for them, in
//! the form of [`crate::command`]. All that a guest may ask is [`Request`], and [`House::serve_guest`] is the only place that grants
//! it: launch one of the machines that its definition names, as often as it says, and then control what it has launched, and
//! nothing else. A guest gives no paths or options, which come from the definition of the machine that it names, and no disks but
//! those that it [brings](crate::providing) itself.

use std::io;
use std::rc::Rc;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Duration, sleep};
use tracing::{debug, info};

use crate::command::Command;
use crate::control::{next_line, result_message};
use crate::definition::{Definition, Disk, Machine, Name};
use crate::error::Refusal;
use crate::supervisor::House;

/// The name of the channel.
pub const CHANNEL: &str = "org.ring3.supervisor";

/// Upper bound of the bytes in a guest's message.
const MESSAGE_MAX: u64 = 4096;
/// The pause after the machine's process could not be reached, or has hung up.
const PAUSE: Duration = Duration::from_millis(200);

/// What guests may ask.
#[derive(Debug, Deserialize)]
#[serde(tag = "execute", content = "arguments", rename_all = "kebab-case", deny_unknown_fields)]
enum Request {
    /// To make a machine like `template`, whose guest waits. The answer has its name.
    Launch {
        template: Name,
    },
    Start {
        name: Name,
    },
    Pause {
        name: Name,
    },
    Stop {
        name: Name,
    },
    Kill {
        name: Name,
    },
    Remove {
        name: Name,
    },
    /// To give a machine that it has launched a disk that it brings.
    Grant {
        name: Name,
        device: Name,
        #[serde(default)]
        access: Access,
    },
    /// To take this disk back.
    Revoke {
        name: Name,
        device: Name,
    },
    /// To list the machines that it has launched.
    Query {},
}

/// The accesses that are allowed.
#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
enum Access {
    #[serde(rename = "r")]
    Read,
    #[default]
    #[serde(rename = "rw")]
    ReadWrite,
}

/// Serves a guest, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Launcher(JoinHandle<()>);

impl Drop for Launcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Launcher {
    /// Serves the guest of `machine`, whose process runs, if it may launch machines.
    pub(crate) fn of(house: &Rc<House>, name: &Name, definition: &Definition) -> Option<Launcher> {
        let Definition::Machine(Machine { launches, .. }) = definition else { return None };
        if launches.is_empty() {
            return None;
        }
        let (house, name) = (Rc::clone(house), name.clone());
        Some(Launcher(spawn_local(async move {
            let socket = house.place.part(&name).launcher();
            loop {
                let talked = match UnixStream::connect(&socket).await {
                    Ok(stream) => talk(&house, &name, stream).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = talked {
                    debug!("the channel of {name}: {error}");
                }
                sleep(PAUSE).await;
            }
        })))
    }
}

async fn talk(house: &Rc<House>, guest: &Name, stream: UnixStream) -> io::Result<()> {
    let (from, mut to) = stream.into_split();
    let mut from = BufReader::new(from);
    while let Some(line) = next_line(&mut from, MESSAGE_MAX).await? {
        let result = house.serve_guest(guest, &line).await;
        if let Err(refusal) = &result {
            info!("the guest of {guest} is refused: {refusal}");
        }
        to.write_all(format!("{}\n", result_message(result)).as_bytes()).await?;
    }
    Ok(())
}

impl House {
    /// Does what the guest of machine `guest` asks for in `message`, if it may.
    async fn serve_guest(self: &Rc<House>, guest: &Name, message: &[u8]) -> Result<Value, Refusal> {
        let mut message: Value = serde_json::from_slice(message)?;
        if let Value::Object(fields) = &mut message {
            fields.entry("arguments").or_insert_with(|| json!({}));
        }
        let command = match serde_json::from_value(message)? {
            Request::Launch { template } => return self.launch_like(guest, &template).await,
            Request::Query {} => {
                let mut own = Vec::new();
                for name in self.launched_by(guest) {
                    own.push(json!({ "name": name, "state": self.part(&name)?.state() }));
                }
                return Ok(json!(own));
            }
            Request::Grant { name, device, access } => {
                let machine = self.own(guest, name)?;
                let disk = self.brought(guest, &device, access == Access::ReadWrite)?;
                self.must_be_there(&disk).await?;
                self.may_be_given(&machine, guest)?;
                Command::Grant { machine, disk }
            }
            Request::Revoke { name, device } => {
                let machine = self.own(guest, name)?;
                let Disk { server, device, .. } = self.brought(guest, &device, true)?;
                Command::Revoke { machine, server, device }
            }
            Request::Start { name } => Command::Start { name: self.own(guest, name)? },
            Request::Pause { name } => Command::Pause { name: self.own(guest, name)? },
            Request::Stop { name } => Command::Stop { name: self.own(guest, name)?, wait: false },
            Request::Kill { name } => Command::Kill { name: self.own(guest, name)? },
            Request::Remove { name } => Command::Remove { name: self.own(guest, name)? },
        };
        Box::pin(self.execute(command)).await
    }

    /// Returns the machines that `guest` has launched.
    fn launched_by(&self, guest: &Name) -> Vec<Name> {
        let is_own = |definition: &Definition| match definition {
            Definition::Machine(machine) => machine.launched_by.as_ref() == Some(guest),
            Definition::Server(_) => false,
        };
        let all = self.definitions().into_iter();
        all.filter(|(_, definition)| is_own(definition)).map(|(name, _)| name).collect()
    }

    /// Returns `name` if `guest` has launched this machine. It learns nothing of others, not even that they are there.
    fn own(&self, guest: &Name, name: Name) -> Result<Name, Refusal> {
        if self.launched_by(guest).contains(&name) { Ok(name) } else { Err(Refusal::Unknown(name)) }
    }

    async fn launch_like(
        self: &Rc<House>,
        guest: &Name,
        template: &Name,
    ) -> Result<Value, Refusal> {
        let all = self.definitions();
        let Some(Definition::Machine(own)) = all.get(guest) else {
            return Err(Refusal::NoMachine(guest.clone()));
        };
        let Some(Definition::Machine(like)) =
            all.get(template).filter(|_| own.launches.contains(template))
        else {
            return Err(Refusal::NotLaunched { guest: guest.clone(), template: template.clone() });
        };
        // Its guest, whose next command comes after this one, would wait for itself.
        for disk in &like.disk {
            self.must_be_there(disk).await?;
        }
        let limit = own.launch_limit;
        if self.launched_by(guest).len() >= limit as usize {
            return Err(Refusal::TooMany { guest: guest.clone(), limit });
        }
        let mut names = (1..=limit).map(|number| format!("{template}.{number}.{guest}"));
        let free = names.find_map(|name| {
            let name = Name::try_from(name);
            name.map(|name| (!all.contains_key(&name)).then_some(name)).transpose()
        });
        let name = free.ok_or(Refusal::TooMany { guest: guest.clone(), limit })??;
        // What it has launched does not launch others: there would be no end.
        let machine = Machine {
            launched_by: Some(guest.clone()),
            launches: Vec::new(),
            start: false,
            ..like.clone()
        };
        self.launch(name.clone(), Definition::Machine(machine)).await?;
        Ok(json!({ "name": name }))
    }
}
