//! The server of consoles.
//!
//! It learns from the supervisor which machines there are, connects to their serial lines, and reads these all the time
//! ([`mod@line`]). A client ([`session`]) sees one console at a time. What has been said is in one place, with a position
//! for each client: so a client that reads slowly costs no memory, and loses old output instead.
//!
//! All tasks run in one thread, so the state of one is never seen half changed by another.

mod line;
mod machine;
mod session;
mod tail;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ring3_host::socket::listen_at;
use ring3_supervisor::command::Status;
use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;
use rustix::process::geteuid;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;
use tracing::{debug, warn};

use crate::error::Error;
use crate::monitor::Monitor;
use machine::Machine;

/// The pause before something that has failed is tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How often the supervisor is asked for its machines if it tells of no change.
const LOOK: Duration = Duration::from_secs(2);
/// Events that come together are answered by one look.
const TOGETHER: Duration = Duration::from_millis(5);
/// The most clients at a time. Others wait.
const CLIENTS: usize = 64;

/// The options of a server of consoles.
#[derive(Debug, Clone)]
pub struct Options {
    /// The place of the supervisor whose machines it serves.
    pub place: Place,
    /// Its name there.
    pub name: Name,
    /// How many bytes of what a serial line has said are kept.
    pub scroll_back: usize,
}

/// What all clients share.
#[derive(Debug)]
struct House {
    place: Place,
    scroll_back: usize,
    machines: RefCell<BTreeMap<Name, Rc<Machine>>>,
    /// Counts changes of machines' states and of owners.
    changes: watch::Sender<u64>,
    /// The number of the last client.
    last_client: Cell<u64>,
}

impl House {
    /// Tells all clients that a state or an owner has changed.
    fn tell(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Brings the machines up to date.
    fn update(self: &Rc<House>, parts: Vec<Status>) {
        let mut machines = self.machines.borrow_mut();
        let parts: Vec<_> = parts.into_iter().filter(|part| part.kind == "machine").collect();
        machines.retain(|name, machine| {
            let is_there = parts.iter().any(|part| part.name == *name);
            if !is_there {
                machine.end();
            }
            is_there
        });
        let mut has_changed = false;
        for part in parts {
            let machine = machines.entry(part.name.clone()).or_insert_with(|| {
                has_changed = true;
                Machine::new(self, part.name.clone())
            });
            has_changed |= machine.state.replace(part.state) != part.state;
            machine.add_lines(self, &part.serial);
        }
        drop(machines);
        if has_changed {
            self.tell();
        }
    }
}

/// Serves the consoles of a supervisor's machines until it is told to end by a signal. Calls `give_up_rights` when all
/// is open that cannot be opened without them.
pub fn run(options: &Options, give_up_rights: impl FnOnce()) -> Result<(), Error> {
    let own = options.place.part(&options.name);
    let (control, _control_file) = listen_at(&own.control())?;
    let (watch, _watch_file) = listen_at(&own.watch())?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Error::Host)?;
    let house = Rc::new(House {
        place: options.place.clone(),
        scroll_back: options.scroll_back,
        machines: RefCell::default(),
        changes: watch::Sender::new(0),
        last_client: Cell::new(0),
    });
    LocalSet::new().block_on(&runtime, async {
        let control = UnixListener::from_std(control).map_err(Error::Host)?;
        let watch = UnixListener::from_std(watch).map_err(Error::Host)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(Error::Host)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(Error::Host)?;
        give_up_rights();
        spawn_local(serve(Rc::clone(&house), control, true));
        spawn_local(serve(Rc::clone(&house), watch, false));
        spawn_local(async move {
            loop {
                if let Err(error) = follow(&house).await {
                    debug!("the supervisor does not answer: {error}");
                }
                sleep(AGAIN).await;
            }
        });
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    })
}

/// Follows what the supervisor says of its machines.
async fn follow(house: &Rc<House>) -> std::io::Result<()> {
    let socket = house.place.control();
    let mut events = Monitor::open(&socket).await?;
    events.ask("events", &json!({})).await?;
    let mut questions = Monitor::open(&socket).await?;
    loop {
        let parts = questions.ask("query", &json!({})).await?;
        house.update(serde_json::from_value(parts)?);
        select! {
            event = events.message() => {
                event?;
                sleep(TOGETHER).await;
            }
            () = sleep(LOOK) => {}
        }
    }
}

/// Serves all of this user who connect. They may type if `may_own`.
async fn serve(house: Rc<House>, listener: UnixListener, may_own: bool) {
    let room = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let Some(process) = own_process(&stream) else { continue };
                let house = Rc::clone(&house);
                spawn_local(async move {
                    if let Err(error) = session::talk(&house, stream, process, may_own).await {
                        debug!("a client has left: {error}");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!("a client cannot connect: {error}");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Returns the process at the other end, if it is one of this user or of root.
pub(crate) fn own_process(stream: &UnixStream) -> Option<i32> {
    let peer = stream.peer_cred().ok()?;
    let is_own = peer.uid() == geteuid().as_raw() || peer.uid() == 0;
    is_own.then(|| peer.pid().unwrap_or_default())
}
