//! The Gregorian calendar: between days since 1 January 1970 and dates.

/// Days from 1 January of year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_528;
const DAYS_IN_400_YEARS: i64 = 146_097;

/// Days of a common year before the first of each month.
const DAYS_BEFORE_MONTH: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

/// A date; months and days count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Date {
    pub(super) year: i64,
    pub(super) month: i64,
    pub(super) day: i64,
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from 1 January of year 0 to 1 January of `year`, which is not negative.
fn days_before_year(year: i64) -> i64 {
    // Year 0 is a leap year; of the leap years before `year` it is the first.
    365 * year + (year + 3) / 4 - (year + 99) / 100 + (year + 399) / 400
}

fn days_before_month(year: i64, month: i64) -> i64 {
    let index = (month - 1).clamp(0, 11) as usize;
    DAYS_BEFORE_MONTH[index] + i64::from(index >= 2 && is_leap(year))
}

impl Date {
    /// The date `days` days after 1 January 1970, from year 0 on.
    pub(super) fn from_days(days: i64) -> Date {
        let days = (days + DAYS_TO_1970).max(0);
        // Too late by one year at most, for an average year is a bit longer than a common one.
        let mut year = days * 400 / DAYS_IN_400_YEARS + 1;
        while days_before_year(year) > days {
            year -= 1;
        }
        let day = days - days_before_year(year);
        let month =
            (1..=12).rev().find(|month| days_before_month(year, *month) <= day).unwrap_or(1);
        Date { year, month, day: day - days_before_month(year, month) + 1 }
    }

    /// Days since 1 January 1970. A month out of range counts as the nearest one, and days
    /// past the end of the month run into the next.
    pub(super) fn to_days(self) -> i64 {
        days_before_year(self.year) + days_before_month(self.year, self.month) + self.day
            - 1
            - DAYS_TO_1970
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        for (days, year, month, day) in [
            (0, 1970, 1, 1),
            (-1, 1969, 12, 31),
            (58, 1970, 2, 28),
            (59, 1970, 3, 1),
            (11_016, 2000, 2, 29),
            (11_017, 2000, 3, 1),
            (47_540, 2100, 2, 28),
            (47_541, 2100, 3, 1),
            (2_932_896, 9999, 12, 31),
            (-DAYS_TO_1970, 0, 1, 1),
        ] {
            let date = Date { year, month, day };
            assert_eq!(Date::from_days(days), date);
            assert_eq!(date.to_days(), days);
        }
    }

    #[test]
    fn every_day_of_400_years_follows_the_one_before() {
        let mut yesterday = Date::from_days(-1);
        for days in 0..DAYS_IN_400_YEARS {
            let today = Date::from_days(days);
            assert_eq!(today.to_days(), days);
            if today.day != 1 {
                assert_eq!(today, Date { day: yesterday.day + 1, ..yesterday });
            } else if today.month != 1 {
                assert_eq!(today, Date { day: 1, month: yesterday.month + 1, ..yesterday });
                assert!((28..=31).contains(&yesterday.day));
            } else {
                assert_eq!(today.year, yesterday.year + 1);
                assert_eq!((yesterday.month, yesterday.day), (12, 31));
            }
            yesterday = today;
        }
    }
}
