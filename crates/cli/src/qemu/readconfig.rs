//! `-readconfig`: options in a file, with a section for each and a property in each line (QEMU,
//! "Invocation").

use std::fs;

use super::options::{Kind, OPTIONS};
use super::{Reason, Translation};

/// Reads the file at `path`.
pub(super) fn read(all: &mut Translation, path: &str) -> Result<(), Reason> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut sections: Vec<(String, Vec<String>)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let wrong = || format!("line {number} is neither [SECTION \"ID\"] nor KEY = \"VALUE\"");
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(section) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let mut words = section.splitn(2, ' ');
            let name = words.next().unwrap_or_default();
            let id = words.next().map(|id| format!("id={}", id.trim().trim_matches('"')));
            sections.push((name.to_owned(), id.into_iter().collect()));
            continue;
        }
        let (key, value) = line.split_once('=').ok_or_else(wrong)?;
        let value = value.trim().trim_matches('"').replace(',', ",,");
        let (_, properties) = sections.last_mut().ok_or_else(wrong)?;
        properties.push(format!("{}={value}", key.trim()));
    }
    for (name, properties) in sections {
        let name = if name == "boot-opts" { "boot".to_owned() } else { name };
        let value = properties.join(",");
        let option = OPTIONS.iter().find(|option| option.name == name && option.value.is_some());
        let kind = option.ok_or_else(|| format!("there are no options in [{name}]"))?.kind;
        all.current = format!("-{name} {value}");
        match kind {
            Kind::Taken(handler) => {
                handler(all, &value).map_err(|reason| format!("[{name}]: {reason}"))?;
            }
            Kind::Ignored => {}
            Kind::Warned(text) => all.warn(text),
            Kind::Missing(text) => return Err(format!("[{name}]: {text}")),
        }
    }
    Ok(())
}
