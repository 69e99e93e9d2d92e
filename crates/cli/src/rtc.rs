//! The time that the machine's clock shows at power-on.

use std::str::FromStr;

use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use thiserror::Error;

/// The value of `--rtc`: the time that the clock shows when the machine is switched on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum RtcBase {
    /// The host's time in UTC.
    #[default]
    Utc,
    /// The host's local time, as DOS and Windows want it.
    LocalTime,
    /// This time, in seconds since 1970.
    At(u64),
}

impl RtcBase {
    /// 2000-01-01 00:00:00, the time in a deterministic run.
    pub(crate) const FIXED: RtcBase = RtcBase::At(946_684_800);
}

/// The reason why a `--rtc` is refused.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "give base=utc, base=localtime, or base=DATE, as in 2024-12-31 or 2024-12-31T23:59:59, from 1970 on"
)]
pub(crate) struct BadRtcBase;

impl FromStr for RtcBase {
    type Err = BadRtcBase;

    fn from_str(text: &str) -> Result<RtcBase, BadRtcBase> {
        match text.strip_prefix("base=").unwrap_or(text) {
            "utc" => Ok(RtcBase::Utc),
            "localtime" => Ok(RtcBase::LocalTime),
            date => at(date).map(RtcBase::At),
        }
    }
}

fn at(date: &str) -> Result<u64, BadRtcBase> {
    let day = || date.parse::<Date>().map(|day| day.at(0, 0, 0, 0));
    // `DateTime` also reads dates without a time, and times with a zone or a fraction, which are refused
    // here.
    let time = if date.contains('T') { date.parse::<DateTime>() } else { day() };
    let is_plain = date.bytes().all(|byte| byte.is_ascii_digit() || b"-:T".contains(&byte));
    time.ok().filter(|_| is_plain).and_then(seconds_of).ok_or(BadRtcBase)
}

/// Returns the seconds from 1970 to `time`, taken as UTC.
fn seconds_of(time: DateTime) -> Option<u64> {
    let seconds = time.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second();
    u64::try_from(seconds).ok()
}

impl RtcBase {
    /// Returns the time that the clock shows now, in seconds since 1970. If the host's clock is before 1970,
    /// that is 0.
    pub(crate) fn seconds(self) -> u64 {
        match self {
            RtcBase::Utc => u64::try_from(Timestamp::now().as_second()).unwrap_or(0),
            RtcBase::LocalTime => seconds_of(Zoned::now().datetime()).unwrap_or(0),
            RtcBase::At(seconds) => seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_read() {
        assert_eq!("base=utc".parse(), Ok(RtcBase::Utc));
        assert_eq!("localtime".parse(), Ok(RtcBase::LocalTime));
        assert_eq!("base=1970-01-02".parse(), Ok(RtcBase::At(86400)));
        assert_eq!("base=2000-01-01".parse(), Ok(RtcBase::FIXED));
        assert_eq!("base=2001-09-09T01:46:40".parse(), Ok(RtcBase::At(1_000_000_000)));
        for bad in ["", "base=", "1969-12-31", "2024-13-01", "2024-02-30", "now", "12:00:00"] {
            assert_eq!(bad.parse::<RtcBase>(), Err(BadRtcBase), "{bad}");
        }
        for bad in ["2024-01-01T00:00:00Z", "2024-01-01 00:00", "2024-01-01T00:00:00[UTC]"] {
            assert_eq!(bad.parse::<RtcBase>(), Err(BadRtcBase), "{bad}");
        }
    }

    #[test]
    fn a_given_date_is_exact_and_local_time_is_near() {
        assert_eq!(RtcBase::At(5).seconds(), 5);
        let apart = RtcBase::Utc.seconds().abs_diff(RtcBase::LocalTime.seconds());
        assert!(apart < 27 * 3600, "no zone is {apart} s from UTC");
    }
}
