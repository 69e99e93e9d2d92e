//! `x-ring3-usage`: how much the guest has read and written.

use serde_json::{Value, json};

use crate::commands::{Machine, none};
use crate::protocol::{Arguments, Failure};

/// Returns the bytes that have gone between the guest and all of its drives and cards.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    let drives = machine.control.drives()?;
    let nics = machine.control.describe()?.nics;
    Ok(json!({
        "disk-read": drives.iter().map(|drive| drive.counts.reads.bytes).sum::<u64>(),
        "disk-written": drives.iter().map(|drive| drive.counts.writes.bytes).sum::<u64>(),
        "network-received": nics.iter().map(|nic| nic.counts.received.bytes).sum::<u64>(),
        "network-sent": nics.iter().map(|nic| nic.counts.sent.bytes).sum::<u64>(),
    }))
}
