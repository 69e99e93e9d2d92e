//! The monitor for people: each line of text is a command, and its answer is text (QEMU, "QEMU Monitor").
//!
//! The commands are those of QMP in another form ([`commands`], [`moving`]), the descriptions of [`info`] and [`paging`],
//! and access to [`memory`].

mod commands;
mod editor;
mod info;
mod memory;
mod moving;
mod paging;

pub(crate) use editor::Editor;
pub(crate) use info::{class_name, nic_driver};
pub(crate) use memory::write_to as write_memory;

use serde_json::{Map, Value};

use crate::commands::Machine;
use crate::protocol::{Command, Failure};

/// The prompt for a command. Scripts that drive monitors wait for it.
pub(crate) const PROMPT: &str = "(qemu) ";

/// Returns the text that a new client sees first.
pub(crate) fn banner() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "ring3 {version} monitor, with commands of QEMU's - type 'help' for more information\r\n{PROMPT}"
    )
}

/// Executes `line`. The answer consists of whole lines, or is empty.
pub(crate) fn execute(machine: &Machine, line: &str) -> String {
    let words = match split(line) {
        Ok(words) => words,
        Err(unfinished) => return unfinished,
    };
    let Some((name, arguments)) = words.split_first() else { return String::new() };
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut text = commands::execute(machine, name, &arguments)
        .unwrap_or_else(|failure| format!("Error: {}", failure.description));
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Splits a line into words; words with spaces are in quotation marks.
fn split(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.trim().chars();
    let mut quoted = false;
    while let Some(character) = characters.next() {
        match character {
            '"' => {
                quoted = !quoted;
                word.get_or_insert_default();
            }
            '\\' if quoted => word.get_or_insert_default().extend(characters.next()),
            ' ' | '\t' if !quoted => words.extend(word.take()),
            character => word.get_or_insert_default().push(character),
        }
    }
    if quoted {
        return Err("unterminated string".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Executes a command of QMP.
fn qmp(machine: &Machine, name: &str, arguments: Value) -> Result<Value, Failure> {
    let arguments = match arguments {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    machine.execute(Command { name: name.to_owned(), arguments, is_out_of_band: false })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read() {
        let split = |line| split(line).map(|words| words.join("|"));
        assert_eq!(
            split("  change  ide1-cd0 \"a b\\\"c\" raw "),
            Ok("change|ide1-cd0|a b\"c|raw".to_owned())
        );
        assert_eq!(split(""), Ok(String::new()));
        assert_eq!(split("eject \"\""), Ok("eject|".to_owned()));
        assert!(split("change \"a").is_err());
    }
}
