//! The command for the statistics of drives (QMP Reference Manual, `query-blockstats`).

use ring3_vm::control::DriveInfo;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::Machine;
use crate::media;
use crate::protocol::{Arguments, Failure, read};

/// Returns the statistics of each drive, or with `query-nodes` of each node that is in a drive, which are the
/// same.
pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    struct Query {
        #[serde(default)]
        query_nodes: bool,
    }
    let Query { query_nodes } = read(arguments)?;
    let drives = machine.control.drives()?;
    let told = drives.iter().filter(|drive| !query_nodes || drive.medium.is_some());
    Ok(told
        .map(|drive| {
            let mut told = json!({"stats": stats(drive)});
            if drive.medium.is_some() {
                told["node-name"] = json!(media::node_name(drive));
            }
            if !query_nodes {
                told["device"] = json!(media::name(drive));
                told["qdev"] = json!(drive.device());
            }
            told
        })
        .collect())
}

/// Returns the counters of a drive (`BlockDeviceStats`). Requests are not merged here.
fn stats(drive: &DriveInfo) -> Value {
    let counts = &drive.counts;
    let mut stats = json!({
        "wr_highest_offset": counts.highest_written,
        "rd_bytes": counts.reads.bytes,
        "wr_bytes": counts.writes.bytes,
        "unmap_bytes": counts.discards.bytes,
        "account_invalid": false,
        "account_failed": false,
        "timed_stats": [],
    });
    for (name, counts) in [
        ("rd", &counts.reads),
        ("wr", &counts.writes),
        ("flush", &counts.flushes),
        ("unmap", &counts.discards),
    ] {
        stats[format!("{name}_operations")] = json!(counts.done);
        stats[format!("{name}_total_time_ns")] = json!(counts.nanos);
        stats[format!("failed_{name}_operations")] = json!(counts.failed);
        stats[format!("invalid_{name}_operations")] = json!(counts.invalid);
        if name != "flush" {
            stats[format!("{name}_merged")] = json!(0);
        }
    }
    if let Some(nanos) = counts.idle_nanos() {
        stats["idle_time_ns"] = json!(nanos);
    }
    stats
}

/// Returns a line of text for each drive.
pub(crate) fn lines(machine: &Machine) -> Result<String, Failure> {
    let drives = machine.control.drives()?;
    let lines = drives.iter().map(|drive| {
        let (name, stats) = (media::name(drive), stats(drive));
        let counters = [
            "rd_bytes",
            "wr_bytes",
            "rd_operations",
            "wr_operations",
            "flush_operations",
            "wr_total_time_ns",
            "rd_total_time_ns",
            "flush_total_time_ns",
            "rd_merged",
            "wr_merged",
            "idle_time_ns",
        ];
        let counters = counters.map(|counter| match &stats[counter] {
            Value::Null => String::new(),
            value => format!(" {counter}={value}"),
        });
        format!("{name}:{}", counters.concat())
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}
