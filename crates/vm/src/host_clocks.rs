//! The host's clocks, for guests that may read them.

use std::time::{Duration, SystemTime};

use ring3_core::input::HostClocks;

/// Returns the host's clocks at this moment.
pub(crate) fn read() -> HostClocks {
    // If the host's clock is before 1970, it was never set: then the time is unknown, which is zero.
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    // Where the processor has no such counter, the guest gets one that counts nanoseconds.
    let time_stamp = ring3_hostfpu::time_stamp();
    HostClocks {
        time_stamp: time_stamp.unwrap_or(time.as_nanos() as u64),
        seconds: time.as_secs() as u32,
        microseconds: time.subsec_micros(),
    }
}
