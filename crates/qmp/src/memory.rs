//! What a machine has of the host's memory: `x-ring3-memory`, `x-ring3-limit-memory`, and the event of a shortage.

use ring3_vm::control::Shortage;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done, none};
use crate::protocol::{Arguments, Failure, read};

/// The tags of statistics (virtio 1.2, 5.5.6.3) that say what a guest needs, with their names here.
const STATISTICS: [(u16, &str); 2] = [(5, "total"), (6, "available")];

/// Describes a shortage.
pub(crate) fn shortage(shortage: &Shortage) -> Value {
    let Shortage { scarce, left } = shortage;
    json!({"scarce": scarce.name(), "left": left, "advice": scarce.advice()})
}

/// Returns all that a program must know that shares out memory between machines.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let memory = machine.control.memory_use()?;
    let mut answer = json!({"size": memory.size});
    if let Some(held) = memory.held {
        answer["held"] = held.into();
    }
    if let Some(limit) = memory.limit {
        answer["limit"] = limit.into();
    }
    if let Some(reason) = &memory.shortage {
        answer["shortage"] = shortage(reason);
    }
    let Some(balloon) = machine.control.balloon()? else { return Ok(answer) };
    answer["actual"] = balloon.guest_bytes().into();
    if let Some(updated) = balloon.updated() {
        answer["last-update"] = updated.into();
        for (tag, value) in &balloon.status.statistics {
            if let Some((_, name)) = STATISTICS.iter().find(|(known, _)| known == tag) {
                answer[*name] = (*value).into();
            }
        }
    }
    Ok(answer)
}

/// Limits what the host holds for the machine's memory, or ends the limit.
pub(crate) fn limit(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Limit {
        value: Option<u64>,
    }
    let Limit { value } = read(arguments)?;
    machine.control.limit_memory(value)?;
    done()
}
