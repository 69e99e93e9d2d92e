//! What clients and the server of consoles say to each other.
//!
//! Messages are those of QMP, as for the supervisor: a JSON object on each line. The server greets, answers each
//! command by `return` or `error`, and sends events when it likes:
//!
//! | event | meaning |
//! | --- | --- |
//! | `OUTPUT` | what the console that the client sees has said: `length` bytes follow the line. `lost` bytes before them are no longer there |
//! | `SCREEN` | the screen that the client sees has changed |
//! | `OWNER` | somebody else types now, or nobody: `input` says whether this client may, and `owner` is the process that does |

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use ring3_supervisor::command::State;
use ring3_supervisor::definition::Name;
use serde::{Deserialize, Serialize};

/// The most bytes of a message, in both directions.
pub const MESSAGE_MAX: usize = 1 << 22;
/// The most bytes of output behind one message.
pub const OUTPUT_MAX: usize = 16 << 10;
/// The most serial lines of a machine.
pub const LINES: u8 = 4;

/// One of the consoles of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum View {
    /// A serial line, COM1 is 0.
    Serial(u8),
    /// The screen, with keyboard and mouse.
    Screen,
    /// What the machine's process has written to its standard output and error.
    Log,
}

impl Display for View {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            View::Serial(number) => write!(f, "serial{number}"),
            View::Screen => f.write_str("screen"),
            View::Log => f.write_str("log"),
        }
    }
}

impl FromStr for View {
    type Err = String;

    fn from_str(text: &str) -> Result<View, String> {
        match text {
            "screen" => return Ok(View::Screen),
            "log" => return Ok(View::Log),
            _ => {}
        }
        let number = text.strip_prefix("serial").and_then(|number| number.parse().ok());
        let number = number.filter(|number| *number < LINES);
        number.map(View::Serial).ok_or_else(|| {
            format!("\"{text}\" is no console; give serial0 to serial3, screen or log")
        })
    }
}

impl TryFrom<String> for View {
    type Error = String;

    fn try_from(text: String) -> Result<View, String> {
        text.parse()
    }
}

impl From<View> for String {
    fn from(view: View) -> String {
        view.to_string()
    }
}

/// Whether a client wants to type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wish {
    /// It only looks.
    Watch,
    /// It wants to, if nobody else does.
    #[default]
    Own,
    /// It wants to; whoever did so before looks on from now on.
    Take,
}

/// A change of a key: its number as in QMP (scan code of set 1, plus 80h for those behind E0h), and whether it is
/// pressed.
pub type KeyChange = (u8, bool);

/// A button of a mouse. The wheel turns by one step when its button is pressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Button {
    /// The left one.
    Left,
    /// The middle one.
    Middle,
    /// The right one.
    Right,
    /// The wheel, away from the person.
    WheelUp,
    /// The wheel, towards the person.
    WheelDown,
}

/// A change of the mouse.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PointerChange {
    /// It moves by so many counts to the right and down.
    By(i16, i16),
    /// It moves to a place on the screen, whose right and lower edges are 32767.
    To(u16, u16),
    /// A button is pressed, or released.
    Button(Button, bool),
}

/// A command of a client.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(
    tag = "execute",
    content = "arguments",
    rename_all = "kebab-case",
    rename_all_fields = "kebab-case"
)]
pub enum Command {
    /// Does nothing. The supervisor asks so whether the server answers.
    #[serde(rename = "qmp_capabilities")]
    Capabilities {},
    /// Lists the machines and their consoles.
    QueryConsoles {},
    /// Shows a console from now on, and no other one. Begins with the last of what it has said. Keys that the client
    /// held at another one are released there.
    Attach {
        /// The machine.
        machine: Name,
        /// The console.
        view: View,
        /// Whether to type there.
        #[serde(default)]
        wish: Wish,
        /// The most bytes of what it has said before.
        #[serde(default = "some")]
        tail: u32,
        /// Whether a screen's pictures are wanted. A client may have them from the machine's VNC.
        #[serde(default = "yes")]
        pictures: bool,
    },
    /// Shows no console.
    Detach {},
    /// Changes whether the client types.
    Own {
        /// The wish.
        wish: Wish,
    },
    /// Types at a serial line. The answer has the number of bytes that were `taken`: all or none.
    Input {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Presses and releases keys. The answer has the number that were `taken`: all or none.
    Keys {
        /// The changes, in their order.
        keys: Vec<KeyChange>,
    },
    /// Moves the mouse and presses its buttons. The answer has the number of changes that were `taken`: all or none.
    Pointer {
        /// The changes, in their order.
        changes: Vec<PointerChange>,
    },
    /// Says into how many pixels a screen of graphics is to be shrunk.
    Room {
        /// Columns.
        columns: u16,
        /// Rows.
        rows: u16,
    },
}

fn some() -> u32 {
    64 << 10
}

fn yes() -> bool {
    true
}

/// A machine in the answer to [`Command::QueryConsoles`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Machine {
    /// Its name.
    pub name: Name,
    /// Its state.
    pub state: State,
    /// Its consoles.
    pub consoles: Vec<Console>,
}

/// A console in the answer to [`Command::QueryConsoles`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Console {
    /// Which one it is.
    pub view: View,
    /// Whether the server is connected with it.
    pub connected: bool,
    /// How many bytes it has said since the server started.
    pub said: u64,
    /// How many of these are still there.
    pub kept: u64,
    /// The process that types there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<i32>,
}

/// Who types at the console that a client sees; the data of the event `OWNER`, and the answer to `attach` and `own`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// Whether this client does.
    pub input: bool,
    /// The process that does.
    pub owner: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_have_names() {
        for view in [View::Serial(0), View::Serial(3), View::Screen, View::Log] {
            assert_eq!(view.to_string().parse(), Ok(view));
        }
        for bad in ["", "serial", "serial4", "serial-1", "serial300", "Log"] {
            assert!(bad.parse::<View>().is_err(), "{bad}");
        }
    }
}
