//! The whole machine as a tree: the command `x-ring3-inspect`, which QEMU does not have. Its own `qom-get` shows
//! properties that tools set, and not what a device is doing.

use ring3_vm::tree::{self, NoSuchPart, Tree};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::commands::Machine;
use crate::protocol::{Arguments, Failure, read};

/// Executes `x-ring3-inspect`.
pub(crate) fn inspect(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inspect {
        #[serde(default)]
        path: String,
        #[serde(default)]
        text: bool,
    }
    let Inspect { path, text } = read(arguments)?;
    if text {
        return Ok(json!({"text": shown(machine, &path)?}));
    }
    let tree = machine.control.tree()?;
    let part = tree.at(&path).map_err(|error: NoSuchPart| Failure::generic(error.to_string()))?;
    Ok(json!({"value": value(part)}))
}

/// Returns the part at `path` as lines of text.
pub(crate) fn shown(machine: &Machine, path: &str) -> Result<String, Failure> {
    let tree = machine.control.tree()?;
    let part = tree.at(path).map_err(|error| Failure::generic(error.to_string()))?;
    Ok(part.to_string())
}

/// Returns a part as JSON.
fn value(part: &Tree) -> Value {
    match part {
        Tree::Branch(parts) => {
            let members = parts.iter().map(|(name, part)| (name.clone(), value(part)));
            Value::Object(members.collect::<Map<_, _>>())
        }
        Tree::List(parts) => parts.iter().map(value).collect(),
        Tree::Nothing => Value::Null,
        Tree::Flag(is_so) => json!(is_so),
        Tree::Number(number) => match (u64::try_from(*number), i64::try_from(*number)) {
            (Ok(number), _) => json!(number),
            (_, Ok(number)) => json!(number),
            _ => json!(number.to_string()),
        },
        Tree::Text(text) => json!(text),
        Tree::Bytes(bytes) => json!({"len": bytes.len(), "hex": tree::hex(bytes)}),
    }
}
