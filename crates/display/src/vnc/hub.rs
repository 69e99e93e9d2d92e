//! The state that the clients of a server share: the last picture of the screen, and the update that each
//! client waits for.
//!
//! One thread asks the machine for pictures ([`Hub::watch`]), and only while a client waits for an update.
//! Each client has a thread that reads its messages and one that writes updates. So a client that reads
//! nothing blocks only its own writer, and its requests meanwhile become one request.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ring3_core::display::{Picture, Pixels, TextScreen};
use ring3_host::stream::Stream;

use super::pixel_format::PixelFormat;
use super::view::Rect;
use crate::Machine;
use crate::rate::Rate;

/// The size of the screen, in pixels, before the machine has shown a picture.
const EMPTY: (usize, usize) = (640, 480);

/// The encoding in which a client wants rectangles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Encoding {
    /// Uncompressed pixels.
    #[default]
    Raw,
    /// The encoding of [`super::hextile`].
    Hextile,
    /// The encoding of [`super::zrle`].
    Zrle,
}

/// The encodings that a client says it understands.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Abilities {
    pub(crate) encoding: Encoding,
    /// Whether it understands the pseudo-encoding DesktopSize.
    pub(crate) desktop_size: bool,
    /// Whether it understands the pseudo-encoding ExtendedDesktopSize.
    pub(crate) extended_desktop_size: bool,
}

/// A message to a client that is not about the screen's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notice {
    /// The server understands extended key events.
    ExtendedKeys,
    /// The screen's size, for a client that has just announced that it understands ExtendedDesktopSize.
    Size,
    /// A client cannot set the screen's size.
    SizeIsFixed,
}

/// An update that a client waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    /// The part of the screen that the client asks for.
    pub(crate) area: Rect,
    /// The part that the client wants even if it has not changed.
    pub(crate) again: Option<Rect>,
    /// Only a picture with a higher number can answer the request.
    after: u64,
    /// Number of a picture. This picture and all before it contain nothing new for the request.
    compared: u64,
}

/// The next task of a client's writer.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) format: PixelFormat,
    pub(crate) abilities: Abilities,
    /// The notices to send first.
    pub(crate) notices: Vec<Notice>,
    /// The request to answer, and the screen to answer it with.
    pub(crate) update: Option<(Request, Arc<Pixels>)>,
}

/// One client.
#[derive(Debug)]
struct Client {
    connection: Stream,
    format: PixelFormat,
    abilities: Abilities,
    notices: Vec<Notice>,
    request: Option<Request>,
    /// Whether its writer is writing, in which case it is unknown whether the client reads.
    writing: bool,
}

#[derive(Debug)]
struct State {
    screen: Arc<Pixels>,
    /// The number of the last picture that was asked for, from 1.
    asked: u64,
    /// The number of the last picture received; `screen` is this picture or equals it.
    seen: u64,
    /// The number of the last picture that differed from the one before it.
    changed: u64,
    rate: Rate,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    ended: bool,
}

/// The state that a server's threads share.
#[derive(Debug)]
pub(crate) struct Hub {
    state: Mutex<State>,
    /// Signals any change of the state. There are few threads to wake up.
    news: Condvar,
    /// Whether Caps Lock is on in the guest.
    pub(crate) caps_lock: Arc<AtomicBool>,
}

impl Hub {
    pub(crate) fn new() -> Hub {
        let (width, height) = EMPTY;
        let screen = Arc::new(Pixels { width, height, colours: vec![0; width * height] });
        let state = State {
            screen,
            asked: 0,
            seen: 0,
            changed: 0,
            rate: Rate::default(),
            clients: BTreeMap::new(),
            next_client: 0,
            ended: false,
        };
        Hub { state: Mutex::new(state), news: Condvar::new(), caps_lock: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.news.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for pictures while a client waits, until the machine or the server ends.
    pub(crate) fn watch(&self, machine: &dyn Machine) {
        let mut last_look: Option<Instant> = None;
        while let Some(number) = self.time_to_look(last_look) {
            last_look = Some(Instant::now());
            match machine.picture() {
                Ok(picture) => self.look(number, picture),
                Err(crate::Ended) => self.end(),
            }
        }
    }

    /// Waits until the next picture should be asked for, and returns its number, or None at the end.
    fn time_to_look(&self, last_look: Option<Instant>) -> Option<u64> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let somebody_waits = |client: &Client| client.request.is_some() && !client.writing;
            if !state.clients.values().any(somebody_waits) {
                state = self.wait(state);
                continue;
            }
            let elapsed = last_look.map(|at| at.elapsed());
            let left = elapsed.map(|elapsed| state.rate.interval().saturating_sub(elapsed));
            match left {
                Some(left) if !left.is_zero() => {
                    let waited = self.news.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                _ => {
                    state.asked += 1;
                    return Some(state.asked);
                }
            }
        }
    }

    /// Takes a picture that the machine has returned.
    fn look(&self, number: u64, picture: Option<Picture>) {
        let mut state = self.state();
        let pixels = match picture {
            Some(Picture::Text(TextScreen { pixels, .. }) | Picture::Pixels(pixels)) => pixels,
            None => blank(&state.screen),
        };
        let changed = is_possible(&pixels) && *state.screen != pixels;
        if changed {
            state.screen = Arc::new(pixels);
            state.changed = number;
        }
        state.seen = number;
        state.rate.looked(changed);
        drop(state);
        self.news.notify_all();
    }

    /// Notes that something was typed, so that the screen is likely to change.
    pub(crate) fn hurry(&self) {
        self.state().rate.hurry();
        self.news.notify_all();
    }

    /// Ends all threads and connections.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        state.clients.values().for_each(|client| client.connection.hang_up());
        drop(state);
        self.news.notify_all();
    }

    /// Adds a client and returns its number, or None if the machine has ended.
    pub(crate) fn join(&self, connection: Stream) -> Option<u64> {
        let mut state = self.state();
        if state.ended {
            return None;
        }
        let id = state.next_client;
        state.next_client += 1;
        let client = Client {
            connection,
            format: PixelFormat::NATIVE,
            abilities: Abilities::default(),
            notices: Vec::new(),
            request: None,
            writing: false,
        };
        state.clients.insert(id, client);
        Some(id)
    }

    /// Removes a client and ends its connection.
    pub(crate) fn leave(&self, id: u64) {
        if let Some(client) = self.state().clients.remove(&id) {
            client.connection.hang_up();
        }
        self.news.notify_all();
    }

    /// Changes the state of a client that is still connected.
    fn client(&self, id: u64, change: impl FnOnce(&mut Client)) {
        if let Some(client) = self.state().clients.get_mut(&id) {
            change(client);
        }
        self.news.notify_all();
    }

    pub(crate) fn set_format(&self, id: u64, format: PixelFormat) {
        self.client(id, |client| client.format = format);
    }

    pub(crate) fn set_abilities(&self, id: u64, abilities: Abilities) {
        self.client(id, |client| client.abilities = abilities);
    }

    /// Queues a notice for a client, unless the same notice is still waiting.
    pub(crate) fn notify(&self, id: u64, notice: Notice) {
        self.client(id, |client| {
            if !client.notices.contains(&notice) {
                client.notices.push(notice);
            }
        });
    }

    /// Notes that a client waits for an update of `area`: of its changes, or (`again`) of all of it.
    pub(crate) fn request(&self, id: u64, area: Rect, again: bool) {
        let mut state = self.state();
        let asked = state.asked;
        if again {
            state.rate.hurry();
        }
        if let Some(client) = state.clients.get_mut(&id) {
            let new = Request {
                area,
                again: again.then_some(area),
                after: if again { asked } else { 0 },
                compared: 0,
            };
            client.request = Some(client.request.map_or(new, |old| old.and(new)));
        }
        drop(state);
        self.news.notify_all();
    }

    /// Returns the present screen for a client that has just come, or None if the client or the machine has
    /// gone.
    pub(crate) fn fresh_screen(&self, id: u64) -> Option<Arc<Pixels>> {
        self.request(id, Rect::all(0, 0), true);
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let (seen, screen) = (state.seen, Arc::clone(&state.screen));
            let client = state.clients.get_mut(&id)?;
            if client.request.is_none_or(|request| request.after < seen) {
                client.request = None;
                return Some(screen);
            }
            state = self.wait(state);
        }
    }

    /// Waits until there is something to send to the client. Returns None when the client has gone or the
    /// server has ended.
    pub(crate) fn turn(&self, id: u64) -> Option<Turn> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let (seen, changed, screen) = (state.seen, state.changed, Arc::clone(&state.screen));
            let client = state.clients.get_mut(&id)?;
            let ready = |request: &mut Request| {
                let fresh = seen > request.after;
                let new = request.compared == 0 || changed > request.compared;
                request.compared = if fresh && new { seen } else { request.compared };
                fresh && new
            };
            let update = client.request.take_if(ready).map(|request| (request, screen));
            if update.is_some() || !client.notices.is_empty() {
                client.writing = true;
                return Some(Turn {
                    format: client.format,
                    abilities: client.abilities,
                    notices: std::mem::take(&mut client.notices),
                    update,
                });
            }
            state = self.wait(state);
        }
    }

    /// Ends the turn. `unanswered` is a request that could not be answered yet; the part that it wants again
    /// is already marked in the client's view.
    pub(crate) fn turn_is_over(&self, id: u64, unanswered: Option<Request>) {
        self.client(id, |client| {
            client.writing = false;
            if let Some(old) = unanswered {
                let old = Request { again: None, ..old };
                client.request = Some(client.request.map_or(old, |new| old.and(new)));
            }
        });
    }
}

impl Request {
    /// Combines both requests into one.
    fn and(self, new: Request) -> Request {
        let again = match (self.again, new.again) {
            (Some(old), Some(new)) => Some(old.union(new)),
            (old, new) => old.or(new),
        };
        Request {
            area: self.area.union(new.area),
            again,
            after: self.after.max(new.after),
            compared: self.compared.min(new.compared),
        }
    }
}

/// Returns whether a picture can be served: its size is that of its pixels and fits into a message.
fn is_possible(pixels: &Pixels) -> bool {
    let sides = 1..=usize::from(u16::MAX);
    sides.contains(&pixels.width)
        && sides.contains(&pixels.height)
        && pixels.colours.len() == pixels.width * pixels.height
}

/// Returns a black screen of the same size.
fn blank(screen: &Pixels) -> Pixels {
    let Pixels { width, height, .. } = *screen;
    Pixels { width, height, colours: vec![0; width * height] }
}
