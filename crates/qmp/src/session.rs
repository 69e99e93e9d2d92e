//! The conversation with one client: negotiation, and the answers to messages.

use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{CAPABILITIES, Machine};
use crate::framing::TooLong;
use crate::protocol::{self, Command, Failure};

/// The state of the conversation with a client.
#[derive(Debug, Default)]
pub(crate) struct Session {
    /// Whether the client has said which capabilities it wants. From then on it receives events.
    negotiated: bool,
    /// Whether the client has enabled out-of-band commands.
    out_of_band: bool,
}

impl Session {
    /// Returns whether the client should receive events.
    pub(crate) fn wants_events(&self) -> bool {
        self.negotiated
    }

    /// Executes `message`, and returns the answer.
    pub(crate) fn answer(&mut self, machine: &Machine, message: &[u8]) -> Value {
        let (id, command) = protocol::parse(message);
        let result = command.and_then(|command| self.execute(machine, command));
        protocol::answer(id, result)
    }

    fn execute(&mut self, machine: &Machine, command: Command) -> Result<Value, Failure> {
        if command.is_out_of_band && !self.out_of_band {
            return Err(Failure::generic("QMP input member 'exec-oob' is unexpected"));
        }
        match (self.negotiated, command.name == CAPABILITIES) {
            (false, true) => {
                self.out_of_band = negotiate(command)?;
                self.negotiated = true;
                Ok(json!({}))
            }
            (true, false) => machine.execute(command),
            (false, false) => Err(Failure::command_not_found(format!(
                "Expecting capabilities negotiation with '{CAPABILITIES}'"
            ))),
            (true, true) => Err(Failure::command_not_found(
                "Capabilities negotiation is already complete, command ignored",
            )),
        }
    }
}

/// Makes the last message to a client before it is disconnected.
pub(crate) fn too_long(error: TooLong) -> Value {
    protocol::answer(None, Err(Failure::generic(error.to_string())))
}

/// Returns whether the client wants to send out-of-band commands, the only capability that there is.
fn negotiate(command: Command) -> Result<bool, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Capabilities {
        #[serde(default)]
        enable: Vec<String>,
    }
    let wanted: Capabilities = protocol::read(command.arguments)?;
    match wanted.enable.iter().find(|name| *name != "oob") {
        Some(name) => Err(Failure::generic(format!("there is no capability '{name}'"))),
        None => Ok(!wanted.enable.is_empty()),
    }
}
