//! Machines in files: the commands `snapshot-save`, `snapshot-load` and `snapshot-delete`; and `record-save`, for the
//! last seconds of a run.
//!
//! QEMU keeps machines in a qcow2 image and names them by tags; here each is a file, which [`ring3_snapshot`]
//! describes. So the commands take a file, and are answered when they are done, not by a job.

use std::path::PathBuf;

use ring3_snapshot::{SaveOptions, Saved, Snapshot};
use ring3_vm::control::KeptLast;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::commands::{Machine, done};
use crate::protocol::{Arguments, Failure, read};

/// Saves the machine in a file.
pub(crate) fn save(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Save {
        file: PathBuf,
        #[serde(default)]
        compress: bool,
    }
    let Save { file, compress } = read(arguments)?;
    let saved = ring3_snapshot::save(&machine.control, &file, SaveOptions { compress });
    let Saved { memory, file } = saved.map_err(|error| Failure::generic(error.to_string()))?;
    Ok(json!({"memory-bytes": memory, "file-bytes": file}))
}

/// Writes the last seconds of the run as a recording.
pub(crate) fn save_last(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct SaveLast {
        file: Option<PathBuf>,
    }
    let SaveLast { file } = read(arguments)?;
    let kept = machine.control.keep_last(file);
    let KeptLast { file, time, instructions: (first, last) } =
        kept.map_err(|error| Failure::generic(error.to_string()))?;
    Ok(json!({
        "file": file,
        "nanoseconds": u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        "first-instruction": first,
        "last-instruction": last,
    }))
}

/// Lets the machine go on as the one in a file.
pub(crate) fn load(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Load {
        file: PathBuf,
    }
    let Load { file } = read(arguments)?;
    let loaded = ring3_snapshot::load(&machine.control, &file);
    loaded.map_err(|error| Failure::generic(error.to_string()))?;
    done()
}

/// Deletes a file, and the snapshots in the machine's disks that belong to it.
pub(crate) fn delete(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Delete {
        file: PathBuf,
    }
    let Delete { file } = read(arguments)?;
    Snapshot::open(&file)
        .and_then(|snapshot| snapshot.delete_with(&machine.control))
        .map_err(|error| Failure::generic(error.to_string()))?;
    done()
}
