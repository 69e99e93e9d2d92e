//! A page: it sees one console at a time, and may type there.
//!
//! | file | part |
//! | --- | --- |
//! | this one | the loop, and what pages say |
//! | `page/console.rs` | the console that it sees |
//! | `page/screen.rs` | the pictures of a screen |

mod console;
mod screen;

use std::collections::BTreeMap;
use std::future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use ring3_supervisor::definition::Name;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::select;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep_until, timeout};

use super::house::{House, Pictures, Visible};
use super::link::stay_connected;
use super::orders::{Order, carry_out};
use crate::protocol::{PointerChange, View, Wish};
use console::Console;

/// How long a browser may take to read a message.
const PATIENCE: Duration = Duration::from_secs(30);
/// Messages of the server of consoles that wait to be looked at.
const INCOMING: usize = 4;
/// What a binary message is.
const PICTURE_OF_SCREEN: u8 = 1;
const SMALL_PICTURE: u8 = 2;

/// Why a page is left.
#[derive(Debug, Error)]
pub(super) enum Left {
    #[error("{0}")]
    Socket(#[from] axum::Error),
    #[error("it reads nothing")]
    Slow,
    #[error("it sends what is no message: {0}")]
    Nonsense(#[from] serde_json::Error),
    #[error("it sends bytes")]
    Binary,
    #[error("it asks for more than can be done")]
    TooMuch,
}

/// What a page says.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
enum Said {
    /// Shows a console from now on. A terminal has so many columns and rows.
    See { machine: Name, view: View, columns: u16, rows: u16 },
    /// Shows none.
    Leave {},
    /// Changes whether the page types.
    Own { wish: Wish },
    /// A key at a place of the keyboard is pressed, or released.
    Key { place: String, down: bool },
    /// A key was typed at a terminal.
    Type { key: String, control: bool, alt: bool, shift: bool },
    /// Text is typed.
    Text { text: String },
    /// The mouse has changed.
    Pointer { changes: Vec<PointerChange> },
    /// The room for a terminal has changed.
    Size { columns: u16, rows: u16 },
    /// A terminal is to show lines that are so many further back.
    Scroll { lines: i32 },
    /// The last picture, or the last rows, are drawn.
    Drawn {},
    /// Whether a person can see the page.
    Visible { is: bool },
    /// Something is to be done to a machine.
    Do { what: Order },
}

/// A task that ends when this is dropped.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// See the module.
struct Page {
    house: Arc<House>,
    visible: Option<Visible>,
    console: Console,
    /// The numbers of the small pictures that it has.
    pictures: BTreeMap<Name, u64>,
    /// The order that is carried out, and what comes of it.
    order: Option<JoinHandle<Value>>,
    /// What is to be sent.
    out: Vec<Message>,
}

/// Talks with a page until it leaves.
pub(super) async fn talk(house: Arc<House>, mut socket: WebSocket) -> Result<(), Left> {
    let (to_us, mut incoming) = mpsc::channel(INCOMING);
    let _link =
        Task(tokio::spawn(stay_connected(house.place.clone(), Arc::clone(&house.looking), to_us)));
    let (mut list, mut pictures) = (house.list.subscribe(), house.pictures.subscribe());
    list.mark_changed();
    let mut page = Page {
        console: Console::new(house.place.clone()),
        house,
        visible: None,
        pictures: BTreeMap::new(),
        order: None,
        out: Vec::new(),
    };
    loop {
        let due = page.console.due();
        let is_visible = page.visible.is_some();
        let sees_none = page.console.sees_none();
        select! {
            // What a person does is first.
            biased;
            said = socket.recv() => match said {
                None => return Ok(()),
                Some(said) => match said? {
                    Message::Text(text) => page.hear(serde_json::from_str(&text)?)?,
                    Message::Binary(_) => return Err(Left::Binary),
                    Message::Close(_) => return Ok(()),
                    Message::Ping(_) | Message::Pong(_) => {}
                },
            },
            Some(incoming) = incoming.recv() => page.console.take(incoming, &mut page.out)?,
            done = finished(&mut page.order) => page.out.push(text(&done)),
            picture = page.console.picture() => page.out.push(picture),
            _ = list.changed(), if is_visible => {
                let list = list.borrow_and_update().clone();
                let none = || json!({ "is": "machines", "machines": null }).to_string().into();
                page.out.push(Message::Text(list.unwrap_or_else(none).as_ref().into()));
            }
            _ = pictures.changed(), if is_visible && sees_none => {
                page.show_pictures(&pictures.borrow_and_update());
            }
            () = sleep_until(due.unwrap_or_else(tokio::time::Instant::now)), if due.is_some() => {
                page.console.act(&mut page.out)?;
            }
        }
        for message in page.out.drain(..) {
            timeout(PATIENCE, socket.send(message)).await.map_err(|_| Left::Slow)??;
        }
    }
}

/// Waits until the order is carried out, if there is one. This may be given up, and begun again.
async fn finished(order: &mut Option<JoinHandle<Value>>) -> Value {
    let Some(running) = order else { return future::pending().await };
    let done = running.await;
    *order = None;
    done.unwrap_or_else(|_| json!({ "is": "note", "text": "this was not done" }))
}

/// Returns a message of text.
fn text(message: &Value) -> Message {
    Message::Text(message.to_string().into())
}

/// Returns a note for the person.
fn note(text_of_note: &str) -> Message {
    text(&json!({ "is": "note", "text": text_of_note }))
}

impl Page {
    fn hear(&mut self, said: Said) -> Result<(), Left> {
        match said {
            Said::Visible { is } => self.look(is),
            Said::Do { what } if self.order.is_none() => {
                let house = Arc::clone(&self.house);
                self.order = Some(tokio::spawn(async move {
                    carry_out(what, &house.place, house.media.as_deref()).await
                }));
            }
            Said::Do { .. } => self.out.push(note("wait until the order before is carried out")),
            said => {
                let is_visible = self.visible.is_some();
                let saw_none = self.console.sees_none();
                self.console.hear(said, &mut self.out)?;
                if self.console.sees_none() != saw_none {
                    self.look(is_visible);
                }
            }
        }
        Ok(())
    }

    /// Notes whether a person sees the page.
    fn look(&mut self, is_visible: bool) {
        let shows_all = self.console.sees_none();
        // The new one comes first, so that nobody believes that no page is visible.
        self.visible = is_visible.then(|| Visible::new(&self.house, shows_all));
    }

    /// Sends the small pictures that have changed.
    fn show_pictures(&mut self, pictures: &Pictures) {
        for (name, (number, bytes)) in pictures {
            if self.pictures.get(name) == Some(number) {
                continue;
            }
            self.pictures.insert(name.clone(), *number);
            // A name is short.
            let mut message = vec![SMALL_PICTURE, name.as_str().len() as u8];
            message.extend(name.as_str().as_bytes());
            message.extend(bytes.iter());
            self.out.push(Message::Binary(message.into()));
        }
        self.pictures.retain(|name, _| pictures.contains_key(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_say_only_what_is_known() {
        let said = |text: &str| serde_json::from_str::<Said>(text).ok();
        let key = said(r#"{"do":"key","place":"KeyA","down":true}"#);
        assert_eq!(key, Some(Said::Key { place: "KeyA".to_owned(), down: true }));
        let order = said(r#"{"do":"do","what":{"order":"kill","machine":"web"}}"#);
        let machine = "web".parse().unwrap();
        assert_eq!(order, Some(Said::Do { what: Order::Kill { machine } }));
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"do":"quit"}"#,
            r#"{"do":"key","place":"KeyA"}"#,
            r#"{"do":"key","place":"KeyA","down":true,"more":1}"#,
            r#"{"do":"see","machine":"../x","view":"screen","columns":80,"rows":25}"#,
            r#"{"do":"see","machine":"x","view":"serial9","columns":80,"rows":25}"#,
            r#"{"do":"see","machine":"x","view":"log","columns":-1,"rows":70000}"#,
            r#"{"do":"scroll","lines":99999999999}"#,
            r#"{"do":"pointer","changes":[{"to":[0,65536]}]}"#,
            r#"{"do":"do","what":{"order":"quit"}}"#,
            r#"{"do":"do","what":{"order":"kill","machine":"web","wait":true}}"#,
        ] {
            assert_eq!(said(bad), None, "{bad}");
        }
    }
}
