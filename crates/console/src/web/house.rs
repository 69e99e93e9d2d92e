//! What all pages share: the list of machines with what they use, and small pictures of their screens.
//!
//! Nobody is asked for anything while no page is visible.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ring3_supervisor::command::{State, Usage};
use ring3_supervisor::definition::Name;
use ring3_supervisor::place::Place;
use serde::Serialize;
use serde_json::json;
use tokio::select;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::debug;

use super::token::Token;
use super::vnc::{Connection, Whole};
use crate::monitor::Monitor;
use crate::protocol::{LINES, View};
use crate::rates::{Rates, Sample};

/// The pause before something that has failed is tried again.
pub(super) const AGAIN: Duration = Duration::from_millis(200);
/// The time between two looks at what machines use, and at their screens.
const LOOK: Duration = Duration::from_secs(2);
/// Over how long a time the first rates are measured.
const FIRST: Duration = Duration::from_millis(250);
/// Events that come together are answered by one look.
const TOGETHER: Duration = Duration::from_millis(5);
/// The room for a small picture.
const SMALL: (usize, usize) = (192, 144);
/// The most pages at a time.
const PAGES: usize = 16;

/// Small pictures by their machines, each with a number that changes with it.
pub(super) type Pictures = BTreeMap<Name, (u64, Arc<[u8]>)>;

/// See the module.
#[derive(Debug)]
pub(super) struct House {
    pub(super) place: Place,
    pub(super) token: Token,
    /// The directory with images that may be put into drives.
    pub(super) media: Option<PathBuf>,
    /// The room for pages.
    pub(super) pages: Arc<Semaphore>,
    /// The list of machines, as pages get it. None as long as the supervisor does not answer.
    pub(super) list: watch::Sender<Option<Arc<str>>>,
    pub(super) pictures: watch::Sender<Pictures>,
    /// Held by the page that looks for the server of consoles.
    pub(super) looking: Arc<Mutex<()>>,
    /// How many pages are visible.
    visible: watch::Sender<usize>,
    /// How many of these show all machines.
    choosing: watch::Sender<usize>,
}

/// A machine in the list.
#[derive(Debug, Serialize)]
struct Machine<'a> {
    name: &'a Name,
    state: State,
    restarts: u64,
    ended: Option<&'a str>,
    views: Vec<View>,
    memory: u64,
    rates: Rates,
}

/// Says what a person can see of a page until this is dropped.
#[derive(Debug)]
pub(super) struct Visible {
    house: Arc<House>,
    shows_all: bool,
}

impl Visible {
    /// Says that a page is visible, and whether it shows all machines.
    pub(super) fn new(house: &Arc<House>, shows_all: bool) -> Visible {
        house.visible.send_modify(|count| *count += 1);
        house.choosing.send_modify(|count| *count += usize::from(shows_all));
        Visible { house: Arc::clone(house), shows_all }
    }
}

impl Drop for Visible {
    fn drop(&mut self) {
        self.house.visible.send_modify(|count| *count -= 1);
        self.house.choosing.send_modify(|count| *count -= usize::from(self.shows_all));
    }
}

impl House {
    pub(super) fn new(place: Place, token: Token, media: Option<PathBuf>) -> House {
        House {
            place,
            token,
            media,
            pages: Arc::new(Semaphore::new(PAGES)),
            list: watch::Sender::new(None),
            pictures: watch::Sender::new(Pictures::new()),
            looking: Arc::default(),
            visible: watch::Sender::new(0),
            choosing: watch::Sender::new(0),
        }
    }

    /// Brings the list and the pictures up to date while a page is visible, for ever.
    pub(super) async fn follow(self: Arc<House>) {
        let mut visible = self.visible.subscribe();
        loop {
            // The sender lives as long as this.
            let _ = visible.wait_for(|count| *count > 0).await;
            let mut painters = Painters::default();
            let followed = select! {
                followed = self.follow_supervisor(&mut painters) => followed,
                _ = visible.wait_for(|count| *count == 0) => Ok(()),
            };
            if let Err(error) = followed {
                debug!("the supervisor does not answer: {error}");
                self.list.send_if_modified(|list| list.take().is_some());
            }
            drop(painters);
            sleep(AGAIN).await;
        }
    }

    async fn follow_supervisor(self: &Arc<House>, painters: &mut Painters) -> io::Result<()> {
        let socket = self.place.control();
        let mut events = Monitor::open(&socket).await?;
        events.ask("events", &json!({})).await?;
        let mut questions = Monitor::open(&socket).await?;
        let mut before: Option<Sample> = None;
        let mut choosing = self.choosing.subscribe();
        loop {
            let parts: Vec<Usage> =
                serde_json::from_value(questions.ask("usage", &json!({})).await?)?;
            let parts = parts.into_iter().filter(|part| part.status.kind == "machine").collect();
            let now = Sample { at: Instant::now(), parts };
            let is_first = before.is_none();
            self.tell(before.as_ref().unwrap_or(&now), &now);
            let paints = *choosing.borrow_and_update() > 0;
            painters.update(self, &now, paints);
            // Rates over a moment say nothing.
            if before.as_ref().is_none_or(|before| now.at - before.at >= FIRST) {
                before = Some(now);
            }
            select! {
                event = events.message() => {
                    event?;
                    sleep(TOGETHER).await;
                }
                _ = choosing.changed() => {}
                () = sleep(if is_first { FIRST } else { LOOK }) => {}
            }
        }
    }

    /// Returns how many pages are open.
    pub(super) fn open_pages(&self) -> usize {
        PAGES - self.pages.available_permits()
    }

    /// Tells pages of the machines.
    fn tell(&self, before: &Sample, now: &Sample) {
        let machine = |(part, rates): (&'_ Usage, Rates)| {
            let status = &part.status;
            let lines = (0..LINES).zip(&status.serial).filter(|(_, socket)| socket.is_some());
            let lines = lines.map(|(number, _)| View::Serial(number));
            json!(Machine {
                name: &status.name,
                state: status.state,
                restarts: status.restarts,
                ended: status.ended.as_deref(),
                views: [View::Screen].into_iter().chain(lines).chain([View::Log]).collect(),
                memory: part.memory,
                rates,
            })
        };
        let machines: Vec<_> = now.rates(before).map(machine).collect();
        let list = json!({ "is": "machines", "machines": machines }).to_string();
        self.list.send_if_modified(|present| {
            let is_new = present.as_deref() != Some(&list);
            *present = Some(list.into());
            is_new
        });
    }
}

/// The tasks that paint small pictures. They end when this is dropped.
#[derive(Debug, Default)]
struct Painters(BTreeMap<Name, JoinHandle<()>>);

impl Painters {
    /// Starts those of machines that have begun to run, and ends those of machines that no longer do: all, unless
    /// somebody `looks`.
    fn update(&mut self, house: &Arc<House>, now: &Sample, looks: bool) {
        let runs = |name: &Name| {
            now.parts.iter().any(|part| {
                part.status.name == *name
                    && matches!(part.status.state, State::Running | State::Paused)
            })
        };
        self.0.retain(|name, task| {
            let stays = looks && runs(name);
            if !stays {
                task.abort();
            }
            if !runs(name) {
                house.pictures.send_if_modified(|pictures| pictures.remove(name).is_some());
            }
            stays
        });
        for part in &now.parts {
            let name = &part.status.name;
            if looks && runs(name) && !self.0.contains_key(name) {
                let task = tokio::spawn(paint_again(Arc::clone(house), name.clone()));
                self.0.insert(name.clone(), task);
            }
        }
    }
}

impl Drop for Painters {
    fn drop(&mut self) {
        self.0.values().for_each(JoinHandle::abort);
    }
}

/// Paints small pictures of a machine's screen, for ever.
async fn paint_again(house: Arc<House>, name: Name) {
    loop {
        if let Err(error) = paint(&house, &name).await {
            debug!("\"{name}\" shows no screen: {error}");
        }
        sleep(LOOK).await;
    }
}

async fn paint(house: &House, name: &Name) -> io::Result<()> {
    let mut connection = Connection::open(&house.place.part(name).screen()).await?;
    let mut whole = Whole::new();
    connection.ask(false).await?;
    loop {
        let Some(change) = connection.change().await? else { continue };
        whole.apply(&change);
        if change.parts.is_empty() {
            // Only the size has changed.
            connection.ask(false).await?;
            continue;
        }
        let mut bytes = Vec::new();
        whole.shrunk(SMALL).write(&mut bytes);
        house.pictures.send_modify(|pictures| {
            let number = pictures.get(name).map_or(0, |(number, _)| number + 1);
            pictures.insert(name.clone(), (number, bytes.into()));
        });
        sleep(LOOK).await;
        connection.ask(true).await?;
    }
}
