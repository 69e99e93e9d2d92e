//! The command that limits the throughput of a drive (QMP Reference Manual, `block_set_io_throttle`).

use ring3_vm::drives::{Limit, LimitError, Limits};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done};
use crate::media::{self, Asked};
use crate::protocol::{Arguments, Failure, read};

/// Sets the limits of a drive; those that are not named are removed.
pub(crate) fn set(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Throttle {
        device: Option<String>,
        id: Option<String>,
        bps: u64,
        bps_rd: u64,
        bps_wr: u64,
        iops: u64,
        iops_rd: u64,
        iops_wr: u64,
        #[serde(default)]
        bps_max: u64,
        #[serde(default)]
        bps_rd_max: u64,
        #[serde(default)]
        bps_wr_max: u64,
        #[serde(default)]
        iops_max: u64,
        #[serde(default)]
        iops_rd_max: u64,
        #[serde(default)]
        iops_wr_max: u64,
    }
    let asked: Throttle = read(arguments)?;
    let limit = |average, max| Limit { average, max };
    let limits = Limits {
        bytes_total: limit(asked.bps, asked.bps_max),
        bytes_read: limit(asked.bps_rd, asked.bps_rd_max),
        bytes_write: limit(asked.bps_wr, asked.bps_wr_max),
        operations_total: limit(asked.iops, asked.iops_max),
        operations_read: limit(asked.iops_rd, asked.iops_rd_max),
        operations_write: limit(asked.iops_wr, asked.iops_wr_max),
    };
    let wanted = Asked { device: asked.device, id: asked.id, ..Asked::default() };
    let drive = media::find(machine, &wanted)?;
    let limited = machine.control.limit_drive(drive.drive, limits);
    limited.map_err(|error| match error {
        LimitError::Ended(ended) => ended.into(),
        error => Failure::generic(error.to_string()),
    })?;
    done()
}

/// Adds `limits` to the members of `inserted` (`BlockDeviceInfo`). Members for bursts exist only where bursts
/// are limited.
pub(crate) fn show(limits: &Limits, inserted: &mut Value) {
    for (name, limit) in [
        ("bps", limits.bytes_total),
        ("bps_rd", limits.bytes_read),
        ("bps_wr", limits.bytes_write),
        ("iops", limits.operations_total),
        ("iops_rd", limits.operations_read),
        ("iops_wr", limits.operations_write),
    ] {
        inserted[name] = json!(limit.average);
        if limit.max > 0 {
            inserted[format!("{name}_max")] = json!(limit.max);
        }
    }
}
