//! Events that commands cause later, for all clients.

use std::sync::mpsc::{self, Receiver, Sender};

use serde_json::Value;

/// Where such events go. Without a server nobody hears of them.
#[derive(Debug, Clone, Default)]
pub(crate) struct News(Option<Sender<Value>>);

impl News {
    /// Returns a way for events, and its other end.
    pub(crate) fn new() -> (News, Receiver<Value>) {
        let (sender, receiver) = mpsc::channel();
        (News(Some(sender)), receiver)
    }

    /// Sends the message about an event.
    pub(crate) fn tell(&self, message: Value) {
        if let Some(sender) = &self.0 {
            // A server that has ended has no clients.
            let _ = sender.send(message);
        }
    }
}
