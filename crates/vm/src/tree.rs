//! The whole machine as a tree of names and values, for people and programs that look inside.
//!
//! No device describes itself for this: the tree is made of the states that they save (CBOR with named
//! fields), so it shows all of a device, and exactly what a saved machine has. Where the data sheet calls
//! something otherwise, or names what is a number in a list or bytes in an array, the table of
//! [`data_sheets`] says how. Saved files stay as they are.
//!
//! ```
//! use ring3_vm::tree::Tree;
//!
//! let counter = Tree::Branch(vec![("mode".to_owned(), Tree::Number(3))]);
//! let tree = Tree::Branch(vec![("counters".to_owned(), Tree::List(vec![counter]))]);
//! assert_eq!(tree.at("counters/0/mode"), Ok(&Tree::Number(3)));
//! assert_eq!(tree.to_string(), "counters/0/mode 0x3\n");
//! assert!(tree.at("counter").unwrap_err().to_string().contains("it has counters"));
//! ```

mod data_sheets;

use std::fmt::{self, Display, Formatter, Write as _};

use ciborium::Value;
use ring3_core::state::SavedState;
use thiserror::Error;

use crate::control::DriveInfo;
use crate::machine::Vm;
use data_sheets::DataSheets;

/// A part of a machine, with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    /// Parts with names.
    Branch(Vec<(String, Tree)>),
    /// Parts with numbers, from 0.
    List(Vec<Tree>),
    /// There is nothing.
    Nothing,
    /// Whether something is so.
    Flag(bool),
    /// A number, which may be a register.
    Number(i128),
    /// A word.
    Text(String),
    /// The contents of a memory or a buffer.
    Bytes(Vec<u8>),
}

/// Why there is nothing at a path.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no {name} in {place}: it has {}", .names.join(", "))]
pub struct NoSuchPart {
    /// The name that was asked for.
    pub name: String,
    /// The path at which it was looked for.
    pub place: String,
    /// The names that there are.
    pub names: Vec<String>,
}

/// The most names that a [`NoSuchPart`] mentions.
const NAMES_MAX: usize = 40;
/// The most bytes that are shown of a memory or a buffer.
pub const BYTES_MAX: usize = 256;

impl Tree {
    /// Returns the part at `path`: names and numbers with slashes between them, in capitals or not. An empty
    /// path is the whole.
    pub fn at(&self, path: &str) -> Result<&Tree, NoSuchPart> {
        let mut part = self;
        let mut place = Vec::new();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let found = match part {
                Tree::Branch(parts) => {
                    let exact = parts.iter().find(|(known, _)| known == name);
                    exact
                        .or_else(|| {
                            parts.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))
                        })
                        .map(|(_, part)| part)
                }
                Tree::List(parts) => name.parse().ok().and_then(|index: usize| parts.get(index)),
                _ => None,
            };
            part = found.ok_or_else(|| NoSuchPart {
                name: name.to_owned(),
                place: if place.is_empty() { "the machine".to_owned() } else { place.join("/") },
                names: part.names(),
            })?;
            place.push(name);
        }
        Ok(part)
    }

    /// Returns the names of its parts, for people who have taken a wrong one.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = match self {
            Tree::Branch(parts) => parts.iter().map(|(name, _)| name.clone()).collect(),
            Tree::List(parts) if !parts.is_empty() => vec![format!("0 to {}", parts.len() - 1)],
            _ => vec!["no parts".to_owned()],
        };
        if names.len() > NAMES_MAX {
            names.truncate(NAMES_MAX);
            names.push("others".to_owned());
        }
        names
    }

    /// Makes the tree of a saved value at `path`.
    fn of(value: &Value, path: &mut Vec<String>, sheets: &DataSheets) -> Tree {
        let tree = match value {
            Value::Integer(number) => Tree::Number((*number).into()),
            Value::Bool(is_so) => Tree::Flag(*is_so),
            Value::Text(text) => Tree::Text(text.clone()),
            Value::Bytes(bytes) => Tree::Bytes(bytes.clone()),
            // A number of more than 64 bits.
            Value::Tag(2, inner) if inner.is_bytes() => {
                let bytes = inner.as_bytes().map_or(&[][..], Vec::as_slice);
                let number =
                    bytes.iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte));
                return Tree::Text(format!("{number:#x}"));
            }
            Value::Tag(_, inner) => return Tree::of(inner, path, sheets),
            Value::Float(number) => Tree::Text(number.to_string()),
            Value::Array(items) => {
                let mut tree = Tree::list(items, path, sheets);
                if let Tree::List(parts) = &mut tree {
                    tree = sheets.name_items(path, std::mem::take(parts));
                }
                tree
            }
            Value::Map(fields) => match saved_state(fields) {
                Some((_, body)) => return Tree::of(body, path, sheets),
                None => Tree::branch(fields, path, sheets),
            },
            _ => Tree::Nothing,
        };
        sheets.name_bytes(path, tree)
    }

    fn list(items: &[Value], path: &mut Vec<String>, sheets: &DataSheets) -> Tree {
        // A list of saved devices is a branch with their names.
        let states: Option<Vec<_>> = items.iter().map(|item| saved_state(item.as_map()?)).collect();
        if let Some(states) = states.filter(|states| !states.is_empty()) {
            let parts = states.into_iter().map(|(name, body)| {
                path.push(name.to_owned());
                let tree = Tree::of(body, path, sheets);
                path.pop();
                (name.to_owned(), tree)
            });
            return Tree::Branch(parts.collect());
        }
        let parts = items.iter().enumerate().map(|(index, item)| {
            path.push(index.to_string());
            let tree = Tree::of(item, path, sheets);
            path.pop();
            tree
        });
        Tree::List(parts.collect())
    }

    fn branch(fields: &[(Value, Value)], path: &mut Vec<String>, sheets: &DataSheets) -> Tree {
        let parts = fields.iter().map(|(key, value)| {
            let key = match key {
                Value::Text(name) => name.clone(),
                Value::Integer(number) => i128::from(*number).to_string(),
                other => format!("{other:?}"),
            };
            path.push(key);
            let tree = Tree::of(value, path, sheets);
            let name = sheets.name(path);
            path.pop();
            (name, tree)
        });
        Tree::Branch(parts.filter(|(name, _)| name != data_sheets::LEFT_OUT).collect())
    }

    /// Makes the tree of a saved state, whose path begins with its own name.
    fn of_state(state: &SavedState, sheets: &DataSheets) -> Tree {
        Tree::of(state.body(), &mut vec![state.name().to_owned()], sheets)
    }

    /// Takes out a part of a branch.
    fn take(&mut self, name: &str) -> Option<Tree> {
        let Tree::Branch(parts) = self else { return None };
        let at = parts.iter().position(|(known, _)| known == name)?;
        Some(parts.remove(at).1)
    }

    /// Writes a line for each value below `path`.
    fn show(&self, path: &str, f: &mut Formatter<'_>) -> fmt::Result {
        let below = |name: &dyn Display| match path {
            "" => name.to_string(),
            path => format!("{path}/{name}"),
        };
        match self {
            Tree::Branch(parts) if !parts.is_empty() => {
                parts.iter().try_for_each(|(name, part)| part.show(&below(name), f))
            }
            Tree::List(parts) if !parts.is_empty() && !self.fits_a_line() => {
                let mut parts = parts.iter().enumerate();
                parts.try_for_each(|(index, part)| part.show(&below(&index), f))
            }
            _ => {
                let gap = if path.is_empty() { "" } else { " " };
                writeln!(f, "{path}{gap}{}", Leaf(self))
            }
        }
    }

    /// Returns whether it is a list of values that need no names.
    fn fits_a_line(&self) -> bool {
        let fits = |part: &Tree| match part {
            Tree::Branch(_) => false,
            Tree::List(parts) => parts.len() <= 4 && part.fits_a_line(),
            _ => true,
        };
        matches!(self, Tree::List(parts) if parts.iter().all(fits))
    }
}

impl Display for Tree {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.show("", f)
    }
}

/// A value in a line of text.
struct Leaf<'a>(&'a Tree);

impl Display for Leaf<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Tree::Branch(_) | Tree::Nothing => f.write_str("none"),
            Tree::List(parts) => {
                f.write_str("[")?;
                for (place, part) in parts.iter().enumerate().take(BYTES_MAX) {
                    let gap = if place > 0 { " " } else { "" };
                    write!(f, "{gap}{}", Leaf(part))?;
                }
                let rest = if parts.len() > BYTES_MAX { " ...]" } else { "]" };
                f.write_str(rest)
            }
            Tree::Flag(is_so) => f.write_str(if *is_so { "yes" } else { "no" }),
            Tree::Number(number @ 0..) => write!(f, "{number:#x}"),
            Tree::Number(number) => write!(f, "{number}"),
            Tree::Text(text) => f.write_str(text),
            Tree::Bytes(bytes) => {
                write!(f, "{} bytes", bytes.len())?;
                if !bytes.is_empty() {
                    write!(f, ": {}", hex(bytes))?;
                }
                Ok(())
            }
        }
    }
}

/// Shows the first bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let shown = &bytes[..bytes.len().min(BYTES_MAX)];
    let mut digits = String::new();
    for byte in shown {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    if bytes.len() > BYTES_MAX { digits + "..." } else { digits }
}

/// Returns name and body, if these are the fields of a [`SavedState`].
fn saved_state(fields: &[(Value, Value)]) -> Option<(&str, &Value)> {
    match fields {
        [(name, is), (version, _), (body, state)]
            if name.as_text() == Some("name")
                && version.as_text() == Some("version")
                && body.as_text() == Some("body") =>
        {
            Some((is.as_text()?, state))
        }
        _ => None,
    }
}

fn number(value: impl Into<i128>) -> Tree {
    Tree::Number(value.into())
}

fn branch<const N: usize>(parts: [(&str, Tree); N]) -> Tree {
    Tree::Branch(parts.map(|(name, tree)| (name.to_owned(), tree)).into())
}

impl Vm {
    /// Returns the whole machine. This changes nothing.
    pub(crate) fn tree(&mut self) -> Tree {
        let sheets = DataSheets::new();
        let mut board = Tree::of_state(&self.board.save(), &sheets);
        let mut devices = match board.take("devices") {
            Some(Tree::Branch(devices)) => devices,
            _ => Vec::new(),
        };
        for name in ["interrupts", "dma", "fpu_error"] {
            devices.extend(board.take(name).map(|part| (name.to_owned(), part)));
        }
        let timers = board.take("timers").unwrap_or(Tree::Nothing);
        let (instructions, now) = (self.cpu.instructions, self.now());
        let next = self.board.next_timer();
        let cpu = self.save_processor();
        branch([
            ("processor", Tree::of_state(&cpu, &sheets)),
            ("devices", Tree::Branch(devices)),
            ("board", board),
            ("timers", timers),
            (
                "time",
                branch([
                    ("instructions", number(instructions)),
                    ("nanoseconds", number(now.as_nanos())),
                    ("next_timer", next.map_or(Tree::Nothing, |at| number(at.as_nanos()))),
                ]),
            ),
            ("memory", branch([("bytes", number(self.memory.size()))])),
            ("drives", self.drives_tree()),
            ("networks", self.networks_tree()),
            ("counters", self.counters_tree()),
        ])
    }

    fn drives_tree(&self) -> Tree {
        let of = |info: DriveInfo| {
            let text = |text: Option<String>| text.map_or(Tree::Nothing, Tree::Text);
            let name = format!("{}-{}", info.drive.device.name(), info.drive.unit);
            let counts = &info.counts;
            let kinds = [
                ("reads", &counts.reads),
                ("writes", &counts.writes),
                ("flushes", &counts.flushes),
            ];
            let counts = kinds.map(|(kind, counts)| {
                let parts = [("operations", number(counts.done)), ("bytes", number(counts.bytes))];
                (kind, branch(parts))
            });
            let [reads, writes, flushes] = counts;
            let tree = branch([
                ("id", text(info.id)),
                ("file", text(info.file.map(|file| file.display().to_string()))),
                ("format", text(info.format.map(str::to_owned))),
                ("sectors", info.medium.map_or(Tree::Nothing, |medium| number(medium.sectors))),
                ("read_only", info.medium.map_or(Tree::Nothing, |m| Tree::Flag(m.read_only))),
                ("locked", Tree::Flag(info.locked)),
                reads,
                writes,
                flushes,
            ]);
            (name, tree)
        };
        Tree::Branch(self.describe_drives().into_iter().map(of).collect())
    }

    fn networks_tree(&self) -> Tree {
        let cards = self.describe().nics.into_iter().map(|nic| {
            let text = |text: Option<String>| text.map_or(Tree::Nothing, Tree::Text);
            let parts = [("id", text(nic.id)), ("network", text(nic.network))];
            (nic.device.name().to_owned(), branch(parts))
        });
        Tree::Branch(cards.collect())
    }

    fn counters_tree(&self) -> Tree {
        let stats = self.stats();
        let engine = stats.engine.iter().map(|(name, value)| ((*name).to_owned(), number(*value)));
        let mut parts: Vec<_> = stats
            .counters()
            .into_iter()
            .map(|(name, value)| (name.to_owned(), number(value)))
            .collect();
        parts.push((self.engine().to_owned(), Tree::Branch(engine.collect())));
        Tree::Branch(parts)
    }
}

#[cfg(test)]
mod tests;
