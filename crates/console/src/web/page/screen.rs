//! The pictures of the screen that a page sees.
//!
//! A change is asked for when the page has drawn the one before. So a page that draws slowly gets fewer pictures, and each
//! shows what is there by then.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::ws::Message;
use tokio::select;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::sleep;

use super::super::house::AGAIN;
use super::super::vnc::Connection;
use super::{PICTURE_OF_SCREEN, Task, note};

/// What a page does.
#[derive(Debug, Default)]
struct Signals {
    /// It has drawn the last change.
    drawn: Notify,
    /// A person does something, so the screen will change soon.
    acts: Notify,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Screen {
    messages: Receiver<Message>,
    signals: Arc<Signals>,
    _task: Task,
}

impl Screen {
    /// Shows the screen that a VNC server at `socket` serves.
    pub(super) fn new(socket: PathBuf) -> Screen {
        let (to_page, messages) = mpsc::channel(1);
        let signals = Arc::new(Signals::default());
        let watching = watch(socket, Arc::clone(&signals), to_page);
        Screen { messages, signals, _task: Task(tokio::spawn(watching)) }
    }

    /// Waits for the next message to the page. This may be given up, and begun again.
    pub(super) async fn message(&mut self) -> Option<Message> {
        self.messages.recv().await
    }

    /// The page has drawn the last change.
    pub(super) fn is_drawn(&self) {
        self.signals.drawn.notify_one();
    }

    /// A person does something.
    pub(super) fn hurry(&self) {
        self.signals.acts.notify_one();
    }
}

async fn watch(socket: PathBuf, signals: Arc<Signals>, to_page: Sender<Message>) {
    let mut told = String::new();
    loop {
        let Err(error) = show(&socket, &signals, &to_page, &mut told).await else { return };
        let reason = error.to_string();
        if reason != told {
            let text = format!("the screen is not there: {reason}");
            if to_page.send(note(&text)).await.is_err() {
                return;
            }
            told = reason;
        }
        sleep(AGAIN).await;
    }
}

/// Shows the screen until its server has gone, or nobody looks any more.
async fn show(
    socket: &Path,
    signals: &Signals,
    to_page: &Sender<Message>,
    told: &mut String,
) -> io::Result<()> {
    let mut connection = Connection::open(socket).await?;
    told.clear();
    connection.ask(false).await?;
    let mut is_asked = true;
    loop {
        select! {
            speaks = connection.speaks() => {
                speaks?;
                let Some(change) = connection.change().await? else { continue };
                if change.parts.is_empty() {
                    // Only the size has changed.
                    connection.ask(false).await?;
                    continue;
                }
                is_asked = false;
                let mut message = vec![PICTURE_OF_SCREEN];
                change.write(&mut message);
                if to_page.send(Message::Binary(message.into())).await.is_err() {
                    return Ok(());
                }
            }
            () = signals.drawn.notified(), if !is_asked => {
                connection.ask(true).await?;
                is_asked = true;
            }
            () = signals.acts.notified() => connection.hurry().await?,
        }
    }
}
