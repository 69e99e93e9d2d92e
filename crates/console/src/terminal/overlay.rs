//! What covers the console for a moment: the list of machines, or help.

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use ratatui_core::style::{Modifier, Style};

use super::prefix::Prefix;
use crate::protocol::Machine;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Overlay {
    /// Nothing covers the console.
    None,
    Help,
    /// The list of machines, one of which is chosen, and what was typed to choose it.
    List {
        chosen: usize,
        typed: String,
    },
}

/// Returns the keys, as a text for people.
fn help(prefix: Prefix) -> Vec<String> {
    let letter = prefix.letter();
    [
        ("n, p".to_owned(), "next machine, the one before"),
        ("0-9".to_owned(), "the machine of that number"),
        ("l".to_owned(), "list of machines; type a name there"),
        ("c".to_owned(), "serial lines, one after the other"),
        ("s".to_owned(), "screen, with the keyboard"),
        ("g".to_owned(), "log"),
        ("w".to_owned(), "type, or look on"),
        ("PageUp, PageDown".to_owned(), "older lines, newer lines"),
        ("Delete".to_owned(), "Ctrl-Alt-Delete, at a screen"),
        (format!("{letter}, {prefix}"), "the same key for the guest"),
        ("d".to_owned(), "leave; the machines go on"),
    ]
    .map(|(keys, meaning)| format!("  {prefix} {keys:<18} {meaning}"))
    .to_vec()
}

/// Draws an overlay.
pub(super) fn render(
    overlay: &Overlay,
    machines: &[Machine],
    prefix: Prefix,
    area: Rect,
    buffer: &mut Buffer,
) {
    let (lines, chosen) = match overlay {
        Overlay::None => return,
        Overlay::Help => (help(prefix), None),
        Overlay::List { .. } if machines.is_empty() => {
            (vec!["  there are no machines".to_owned()], None)
        }
        Overlay::List { chosen, .. } => (
            machines.iter().enumerate().map(|(number, machine)| line(number, machine)).collect(),
            Some(*chosen),
        ),
    };
    let room = usize::from(area.height);
    // The chosen line is visible.
    let first = chosen.map_or(0, |chosen| (chosen + 1).saturating_sub(room));
    for (row, line) in lines.iter().skip(first).take(room).enumerate() {
        let is_chosen = chosen == Some(first + row);
        let style = Style::new().add_modifier(if is_chosen {
            Modifier::REVERSED
        } else {
            Modifier::empty()
        });
        buffer.set_stringn(area.x, area.y + row as u16, line, area.width.into(), style);
    }
}

fn line(number: usize, machine: &Machine) -> String {
    let consoles = machine.consoles.iter().filter(|console| console.connected);
    let consoles: Vec<_> = consoles.map(|console| console.view.to_string()).collect();
    let state = word(machine.state);
    format!("  {number:>3} {:<24} {state:<12} {}", machine.name, consoles.join(" "))
}

/// Returns a state as a word.
pub(crate) fn word(state: ring3_supervisor::command::State) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}
