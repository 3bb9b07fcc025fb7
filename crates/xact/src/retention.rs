//! Retention policies, which decide which snapshots are deleted. A policy keeps, for example, the
//! newest snapshot of each of the last hours, days, weeks, months or years.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use xact_types::{Error, units};

const DAY_SECONDS: u64 = 86_400;

/// Rules for the snapshots to keep, written as in `last=3,daily=7,within=2d`. A snapshot is kept if
/// any rule keeps it. Hours, days and so on are those of UTC. The default keeps none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionPolicy {
    /// Number of the newest ones.
    pub last: u32,
    /// Number of hours, from the last one that has a snapshot, of which the newest is kept.
    pub hourly: u32,
    /// Number of days, likewise.
    pub daily: u32,
    /// Number of weeks, likewise. Weeks begin on Monday.
    pub weekly: u32,
    /// Number of months, likewise.
    pub monthly: u32,
    /// Number of years, likewise.
    pub yearly: u32,
    /// Age up to which all are kept.
    pub within: Option<Duration>,
}

impl RetentionPolicy {
    /// Whether no rule keeps anything.
    pub fn is_empty(&self) -> bool {
        *self == RetentionPolicy::default()
    }

    /// Names of the snapshots (name, seconds since 1970) that begin with `prefix` and that no rule
    /// keeps at the time `now`, in the same order.
    ///
    /// # Errors
    /// [`Error::Usage`] for rules that keep nothing.
    pub fn expired(&self, snapshots: &[(String, u64)], prefix: &str, now: u64) -> Result<Vec<String>, Error> {
        if self.is_empty() {
            return Err(Error::Usage("these rules keep no snapshot: delete snapshots by name".into()));
        }
        let meant: Vec<_> = snapshots.iter().filter(|(name, _)| name.starts_with(prefix)).collect();
        let times: Vec<u64> = meant.iter().map(|(_, time)| *time).collect();
        let kept = self.kept(&times, now);
        Ok(meant.iter().zip(kept).filter(|(_, kept)| !kept).map(|((name, _), _)| name.clone()).collect())
    }

    /// Which of the snapshots made at `times` (seconds since 1970) are kept at the time `now`.
    pub fn kept(&self, times: &[u64], now: u64) -> Vec<bool> {
        let mut newest_first: Vec<usize> = (0..times.len()).collect();
        // The later one in the list is the newer one of the same second.
        newest_first.sort_by_key(|&at| std::cmp::Reverse((times[at], at)));
        let mut kept = vec![false; times.len()];
        for &at in newest_first.iter().take(self.last as usize) {
            kept[at] = true;
        }
        if let Some(within) = self.within {
            let since = now.saturating_sub(within.as_secs());
            newest_first.iter().filter(|&&at| times[at] >= since).for_each(|&at| kept[at] = true);
        }
        /// The number of the span that a time, in seconds since 1970, is in.
        type SpanOf = fn(u64) -> u64;
        let spans: [(u32, SpanOf); 5] = [
            (self.hourly, |time| time / 3600),
            (self.daily, |time| time / DAY_SECONDS),
            // The first of January 1970 was a Thursday.
            (self.weekly, |time| (time / DAY_SECONDS + 3) / 7),
            (self.monthly, |time| {
                let date = Date::of(time);
                date.year * 12 + date.month
            }),
            (self.yearly, |time| Date::of(time).year),
        ];
        for (count, span_of) in spans {
            let (mut left, mut last) = (count, None);
            for &at in &newest_first {
                let span = span_of(times[at]);
                if last == Some(span) {
                    continue;
                }
                if left == 0 {
                    break;
                }
                (left, last) = (left - 1, Some(span));
                kept[at] = true;
            }
        }
        kept
    }
}

impl FromStr for RetentionPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<RetentionPolicy, String> {
        let mut rules = RetentionPolicy::default();
        for rule in text.split(',').filter(|rule| !rule.is_empty()) {
            let known = "last, hourly, daily, weekly, monthly, yearly and within";
            let (name, value) = rule
                .split_once('=')
                .ok_or(format!("invalid rule '{rule}': expected a rule such as daily=7"))?;
            let count = || value.parse().map_err(|_| format!("invalid number '{value}' in '{rule}'"));
            match name {
                "last" => rules.last = count()?,
                "hourly" => rules.hourly = count()?,
                "daily" => rules.daily = count()?,
                "weekly" => rules.weekly = count()?,
                "monthly" => rules.monthly = count()?,
                "yearly" => rules.yearly = count()?,
                "within" => rules.within = Some(units::parse_duration(value)?),
                _ => return Err(format!("there is no rule '{name}'; there are {known}")),
            }
        }
        Ok(rules)
    }
}

/// A moment of UTC in the Gregorian calendar. Its text is as 2026-03-01T17:05:09Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date {
    /// Year.
    pub year: u64,
    /// Month, from 1.
    pub month: u64,
    /// Day of the month, from 1.
    pub day: u64,
    /// Second of the day, from 0.
    pub second: u64,
}

impl Date {
    /// The date of a time in seconds since 1970. It counts days from the first of March of the year
    /// 0, so that leap days are at the end of a year.
    pub fn of(time: u64) -> Date {
        let days = time / DAY_SECONDS + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        Date {
            year: era * 400 + year_of_era + u64::from(month <= 2),
            month,
            day: of_year - (153 * from_march + 2) / 5 + 1,
            second: time % DAY_SECONDS,
        }
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Date { year, month, day, second } = self;
        let (hours, minutes, seconds) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // By date -u -d @N.
        for (time, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Date::of(time).to_string(), text);
        }
    }

    /// Each day of the calendar's cycle of 400 years, by counting the days of the months.
    #[test]
    fn dates_of_a_whole_cycle() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..146_097 + 366 {
            let time = days * DAY_SECONDS + days % DAY_SECONDS;
            assert_eq!(Date::of(time), Date { year, month, day, second: days % DAY_SECONDS });
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + u64::from(is_leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > length {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!(Date::of(2 * DAY_SECONDS - 1).to_string(), "1970-01-02T23:59:59Z");
        assert_eq!(Date::of(3661).to_string(), "1970-01-01T01:01:01Z");
    }

    #[test]
    fn the_expired_are_named_in_their_order() {
        let snapshots: Vec<(String, u64)> =
            [("auto-3", 300), ("by hand", 50), ("auto-1", 100), ("auto-2", 200)]
                .map(|(n, t)| (n.into(), t))
                .into();
        let expired = |rules: &str, prefix: &str, now: u64| {
            rules.parse::<RetentionPolicy>().unwrap().expired(&snapshots, prefix, now)
        };
        assert_eq!(expired("last=1", "auto-", 300).unwrap(), ["auto-1", "auto-2"]);
        assert_eq!(expired("last=1", "", 300).unwrap(), ["by hand", "auto-1", "auto-2"]);
        assert_eq!(expired("within=100s", "", 300).unwrap(), ["by hand", "auto-1"]);
        assert!(expired("last=4", "", 300).unwrap().is_empty());
        // Rules that keep nothing would delete all snapshots.
        assert!(expired("", "", 300).is_err() && expired("last=0", "", 300).is_err());
    }

    /// Two snapshots on either side of a bound are in two spans, and the same two within one of
    /// them are in one.
    #[test]
    fn spans_begin_where_the_calendar_says() {
        let day = |days: u64| days * DAY_SECONDS;
        // 5 January 1970 was a Monday; 1972 is a leap year.
        let bounds = [
            ("hourly", day(9) + 7 * 3600, 3600),
            ("daily", day(9), DAY_SECONDS),
            ("weekly", day(4), day(7)),
            ("monthly", day(31), day(28)),
            ("monthly", day(365), day(31)),
            ("monthly", day(365 + 365 + 31), day(29)),
            ("yearly", day(365), day(365)),
            ("yearly", day(2 * 365), day(366)),
        ];
        for (rule, bound, length) in bounds {
            let two = format!("{rule}=2");
            let times = [bound - 1, bound, bound + length - 1, bound + length];
            assert_eq!(kept(&two, &times, 0), [bound + length - 1, bound + length], "{rule} {bound}");
            assert_eq!(kept(&two, &times[..3], 0), [bound - 1, bound + length - 1], "{rule} {bound}");
            assert_eq!(kept(&format!("{rule}=1"), &times[..3], 0), [bound + length - 1], "{rule} {bound}");
            assert_eq!(kept(&format!("{rule}=3"), &times, 0).len(), 3, "{rule} {bound}");
        }
    }

    fn kept(rules: &str, times: &[u64], now: u64) -> Vec<u64> {
        let kept = rules.parse::<RetentionPolicy>().unwrap().kept(times, now);
        times.iter().zip(kept).filter(|(_, kept)| *kept).map(|(time, _)| *time).collect()
    }

    #[test]
    fn rules() {
        let hour = 3600;
        // Every half hour for four days, from a midnight on.
        let start = 20_000 * DAY_SECONDS;
        let times: Vec<u64> = (0..4 * 48).map(|n| start + n * hour / 2).collect();
        let now = *times.last().unwrap();
        assert_eq!(kept("last=2", &times, now), times[times.len() - 2..]);
        assert_eq!(kept("daily=2", &times, now), [now - DAY_SECONDS, now]);
        assert_eq!(kept("hourly=3", &times, now), [now - 2 * hour, now - hour, now]);
        assert_eq!(kept("within=1h", &times, now), [now - hour, now - hour / 2, now]);
        assert_eq!(kept("last=1,daily=9", &times, now).len(), 4);
        assert!(kept("", &times, now).is_empty());
        // One each month: weeks, months and years have the newest of each.
        let days = |n: u64| n * DAY_SECONDS;
        let times = [days(0), days(40), days(364), days(365), days(366), days(371)];
        assert_eq!(kept("yearly=9", &times, days(371)), [days(364), days(371)]);
        assert_eq!(kept("monthly=2", &times, days(371)), [days(364), days(371)]);
        // The first of January 1971 was a Friday.
        assert_eq!(kept("weekly=2", &times, days(371)), [days(366), days(371)]);
        // The order of the list does not count, except for snapshots of one second.
        assert_eq!(
            "last=1".parse::<RetentionPolicy>().unwrap().kept(&[7, 9, 9, 3], 9),
            [false, false, true, false]
        );
    }

    #[test]
    fn rules_as_text() {
        let rules: RetentionPolicy = "last=3,weekly=2,within=2w".parse().unwrap();
        assert_eq!((rules.last, rules.weekly, rules.within), (3, 2, Some(Duration::from_secs(14 * 86_400))));
        assert!("".parse::<RetentionPolicy>().unwrap().is_empty() && !rules.is_empty());
        let rules: RetentionPolicy = "hourly=1,daily=2,,monthly=4,yearly=5,weekly=3,".parse().unwrap();
        let numbers = [rules.last, rules.hourly, rules.daily, rules.weekly, rules.monthly, rules.yearly];
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        for wrong in ["daily", "daily=x", "often=3", "within=3", "within=9999999999999999999w", "within="] {
            assert!(wrong.parse::<RetentionPolicy>().is_err(), "{wrong}");
        }
    }
}
