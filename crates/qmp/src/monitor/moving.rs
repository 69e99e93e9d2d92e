//! Machines that move, for people: the commands about `migrate`, in the form of QEMU's.

use std::fmt::Write;

use serde_json::{Value, json};

use super::commands::{exactly, number, quiet, size, usage};
use super::qmp;
use crate::commands::Machine;
use crate::protocol::Failure;

/// Bytes of a kilobyte, in which QEMU shows memory.
const KBYTE: u64 = 1024;

/// Executes `migrate`. It is answered at once, so that `-d`, which asks for this, means nothing.
pub(super) fn migrate(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let ([uri] | ["-d", uri]) = arguments else { return Err(usage("migrate [-d] uri")) };
    quiet(machine, "migrate", json!({"uri": uri}))
}

/// Executes `migrate_set_parameter`.
pub(super) fn set_parameter(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [name, value] = exactly(arguments)?;
    let value = if name == "max-bandwidth" { size(value)? } else { number(value)? };
    let mut wanted = serde_json::Map::new();
    wanted.insert(name.to_owned(), json!(value));
    quiet(machine, "migrate-set-parameters", wanted.into())
}

/// Executes `migrate_set_capability`.
pub(super) fn set_capability(machine: &Machine, arguments: &[&str]) -> Result<String, Failure> {
    let [name, state @ ("on" | "off")] = arguments else {
        return Err(usage("migrate_set_capability name on|off"));
    };
    let capability = json!({"capability": name, "state": *state == "on"});
    quiet(machine, "migrate-set-capabilities", json!({"capabilities": [capability]}))
}

/// Tells how far the machine has moved.
pub(super) fn progress(machine: &Machine) -> Result<String, Failure> {
    let info = qmp(machine, "query-migrate", json!({}))?;
    let Some(status) = info["status"].as_str() else { return Ok(String::new()) };
    let mut text = format!("Migration status: {status}");
    // Writing to a string cannot fail.
    if let Some(why) = info["error-desc"].as_str() {
        let _ = write!(text, " ({why})");
    }
    text.push('\n');
    for (name, key) in [
        ("total time", "total-time"),
        ("expected downtime", "expected-downtime"),
        ("downtime", "downtime"),
        ("setup", "setup-time"),
    ] {
        if let Some(time) = info[key].as_u64() {
            let _ = writeln!(text, "{name}: {time} ms");
        }
    }
    let ram = &info["ram"];
    for (name, key) in
        [("transferred ram", "transferred"), ("remaining ram", "remaining"), ("total ram", "total")]
    {
        if let Some(bytes) = ram[key].as_u64() {
            let _ = writeln!(text, "{name}: {} kbytes", bytes / KBYTE);
        }
    }
    for (name, key) in [("duplicate", "duplicate"), ("normal", "normal")] {
        if let Some(pages) = ram[key].as_u64() {
            let _ = writeln!(text, "{name}: {pages} pages");
        }
    }
    Ok(text)
}

/// Tells the parameters.
pub(super) fn parameters(machine: &Machine) -> Result<String, Failure> {
    let all = qmp(machine, "query-migrate-parameters", json!({}))?;
    Ok(format!(
        "downtime-limit: {} milliseconds\nmax-bandwidth: {} bytes/second",
        all["downtime-limit"], all["max-bandwidth"]
    ))
}

/// Tells the capabilities.
pub(super) fn capabilities(machine: &Machine) -> Result<String, Failure> {
    let all = qmp(machine, "query-migrate-capabilities", json!({}))?;
    let line = |one: &Value| {
        let state = if one["state"] == true { "on" } else { "off" };
        Some(format!("{}: {state}", one["capability"].as_str()?))
    };
    let lines = all.as_array().into_iter().flatten().filter_map(line);
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
