//! The memory balloon: how much memory the guest should keep, and what it says of it.

use ring3_vm::balloon::{BalloonError, BalloonInfo};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::commands::{Machine, done, none};
use crate::protocol::{Arguments, Class, Failure, read};

/// The type of the device.
pub(crate) const DRIVER: &str = "virtio-balloon-pci";
/// Its properties that tools read and write: the statistics, and how often the guest gives them.
pub(crate) const STATISTICS: &str = "guest-stats";
pub(crate) const INTERVAL: &str = "guest-stats-polling-interval";

/// The names of statistics by their tags (virtio 1.2, 5.5.6.3), as QEMU calls them.
const NAMES: [&str; 10] = [
    "stat-swap-in",
    "stat-swap-out",
    "stat-major-faults",
    "stat-minor-faults",
    "stat-free-memory",
    "stat-total-memory",
    "stat-available-memory",
    "stat-disk-caches",
    "stat-htlb-pgalloc",
    "stat-htlb-pgfail",
];

impl From<BalloonError> for Failure {
    fn from(error: BalloonError) -> Failure {
        match error {
            BalloonError::Ended(ended) => ended.into(),
            BalloonError::NoBalloon => Failure {
                class: Class::DeviceNotActive,
                description: "No balloon device has been activated".to_owned(),
            },
        }
    }
}

fn balloon(machine: &Machine) -> Result<BalloonInfo, Failure> {
    Ok(machine.control.balloon()?.ok_or(BalloonError::NoBalloon)?)
}

/// Returns how many bytes the guest has for itself.
pub(crate) fn guest_bytes(machine: &Machine) -> Result<u64, Failure> {
    Ok(balloon(machine)?.guest_bytes())
}

pub(crate) fn query(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    none(arguments)?;
    Ok(json!({"actual": guest_bytes(machine)?}))
}

/// Asks the guest to do with this many bytes.
pub(crate) fn set(machine: &Machine, arguments: Arguments) -> Result<Value, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Balloon {
        value: i64,
    }
    let Balloon { value } = read(arguments)?;
    balloon(machine)?;
    let bytes = u64::try_from(value).ok().filter(|bytes| *bytes > 0);
    let bytes = bytes
        .ok_or_else(|| Failure::generic("Parameter 'target' expects a size greater than zero"))?;
    machine.control.set_guest_bytes(bytes)?;
    done()
}

/// Returns the statistics as QEMU shows them: -1 stands for what the guest has not told.
pub(crate) fn statistics(info: &BalloonInfo) -> Value {
    let value = |tag: usize| {
        let found = info.status.statistics.iter().find(|(other, _)| usize::from(*other) == tag);
        found.map_or(json!(-1), |(_, value)| json!(value))
    };
    let all: Map<_, _> =
        (0..).zip(NAMES).map(|(tag, name)| (name.to_owned(), value(tag))).collect();
    json!({"stats": all, "last-update": info.updated().unwrap_or(0)})
}

/// Sets a property of the balloon.
pub(crate) fn set_property(machine: &Machine, name: &str, value: &Value) -> Result<(), Failure> {
    if name != INTERVAL {
        return Err(Failure::generic(format!("Property '{DRIVER}.{name}' cannot be set")));
    }
    let seconds = value.as_i64().and_then(|seconds| u32::try_from(seconds).ok());
    let seconds = seconds.ok_or_else(|| {
        Failure::generic("timer value must be a number of seconds that is not negative")
    })?;
    Ok(machine.control.poll_balloon(seconds)?)
}

#[cfg(test)]
mod tests {
    use ring3_core::balloon::BalloonStatus;
    use ring3_core::clock::Time;

    use super::*;

    #[test]
    fn statistics_have_names_and_a_time() {
        let status = BalloonStatus {
            statistics: vec![(4, 100), (5, 200), (77, 1)],
            updated: Some(Time::from_nanos(3_500_000_000)),
            ..BalloonStatus::default()
        };
        let info = BalloonInfo { status, rtc_base: 1000, ..BalloonInfo::default() };
        let shown = statistics(&info);
        assert_eq!(shown["last-update"], 1003);
        assert_eq!(shown["stats"]["stat-free-memory"], 100);
        assert_eq!(shown["stats"]["stat-total-memory"], 200);
        assert_eq!(shown["stats"]["stat-swap-in"], -1);
        assert_eq!(shown["stats"].as_object().map(Map::len), Some(NAMES.len()));
    }
}
