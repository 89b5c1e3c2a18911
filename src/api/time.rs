//! Points in time and Gateway API durations.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time: milliseconds since the Unix epoch. Serialised as RFC 3339 in UTC with whole seconds, rounded up,
/// so that a deadline shown to people is never earlier than the real one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EpochMs(pub i64);

/// The largest instant that RFC 3339 with a four-digit year can say (9999-12-30T22:00:00Z).
const MAX_MS: i64 = 253_402_207_200_000;

impl EpochMs {
    /// This instant plus `ms` milliseconds, saturating at the year 9999.
    #[must_use]
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(i64::try_from(ms).unwrap_or(i64::MAX)).min(MAX_MS))
    }

    /// Milliseconds from `earlier` to this instant; 0 when it does not lie after `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0)
    }

    /// RFC 3339 in UTC, whole seconds, rounded up.
    #[must_use]
    pub fn rfc3339(self) -> String {
        let seconds = self.0.clamp(0, MAX_MS).saturating_add(999) / 1000;
        jiff::Timestamp::from_second(seconds).map(|t| t.to_string()).unwrap_or_default()
    }

    /// Parses RFC 3339.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        text.parse::<jiff::Timestamp>().ok().map(|t| Self(t.as_millisecond()))
    }
}

impl fmt::Display for EpochMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rfc3339())
    }
}

impl Serialize for EpochMs {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.rfc3339())
    }
}

impl<'de> Deserialize<'de> for EpochMs {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(d)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("`{text}` is no RFC 3339 time")))
    }
}

/// The next time after `now` at which a clock in this IANA zone shows `hour`:00 (0–23): a provider's daily reset. Where that hour is
/// skipped by a change to summer time, the hour after the gap. `None` for an unknown zone.
#[must_use]
pub fn next_daily(now: EpochMs, time_zone: &str, hour: u8) -> Option<EpochMs> {
    let zone = jiff::tz::TimeZone::get(time_zone).ok()?;
    let today = jiff::Timestamp::from_millisecond(now.0).ok()?.to_zoned(zone.clone()).date();
    let hour = i8::try_from(hour).ok().filter(|h| *h < 24)?;
    let at = |date: jiff::civil::Date| Some(EpochMs(date.at(hour, 0, 0, 0).to_zoned(zone.clone()).ok()?.timestamp().as_millisecond()));
    at(today).filter(|t| *t > now).or_else(|| at(today.tomorrow().ok()?))
}

/// Parses a Gateway API duration (`500ms`, `30s`, `5m`, `1h30m`): one to four groups of at most five digits, each unit
/// (`h`, `m`, `s`, `ms`) with a number in front. Answers milliseconds.
///
/// # Errors
/// A sentence that quotes the value and shows valid ones.
pub fn parse_duration(text: &str) -> Result<u64, String> {
    let fail = || format!("`{text}` is no duration: write it like 500ms, 30s, 5m or 1h30m");
    let mut rest = text;
    let (mut total, mut groups) = (0u64, 0);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        groups += 1;
        if digits == 0 || digits > 5 || groups > 4 {
            return Err(fail());
        }
        let number: u64 = rest[..digits].parse().map_err(|_| fail())?;
        rest = &rest[digits..];
        let (factor, unit) = match rest {
            r if r.starts_with("ms") => (1, 2),
            r if r.starts_with('s') => (1_000, 1),
            r if r.starts_with('m') => (60_000, 1),
            r if r.starts_with('h') => (3_600_000, 1),
            _ => return Err(fail()),
        };
        total += number * factor;
        rest = &rest[unit..];
    }
    if groups == 0 { Err(fail()) } else { Ok(total) }
}

/// Writes milliseconds as the shortest Gateway API duration (`90s` becomes `1m30s`).
#[must_use]
pub fn format_duration(ms: u64) -> String {
    let mut out = String::new();
    let mut rest = ms;
    for (factor, unit) in [(3_600_000, "h"), (60_000, "m"), (1_000, "s"), (1, "ms")] {
        if rest >= factor {
            out.push_str(&format!("{}{unit}", rest / factor));
            rest %= factor;
        }
    }
    if out.is_empty() { "0s".to_owned() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_trip() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("1m30s", 90_000)] {
            assert_eq!(parse_duration(text), Ok(ms));
            assert_eq!(format_duration(ms), text);
        }
        for bad in ["", "5", "s", "1d", "-1s", "1.5s", "123456s", "1 s"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert_eq!(format_duration(0), "0s");
    }

    #[test]
    fn the_daily_reset_follows_its_own_clock() {
        let next = |now: &str, zone, hour| next_daily(EpochMs::parse(now).unwrap(), zone, hour).map(EpochMs::rfc3339);
        let is = |text: &str| Some(text.to_owned());
        assert_eq!(next("2026-11-30T12:00:00Z", "UTC", 0), is("2026-12-01T00:00:00Z"));
        assert_eq!(next("2026-11-30T00:00:00Z", "UTC", 0), is("2026-12-01T00:00:00Z"), "strictly after now");
        assert_eq!(next("2026-11-30T07:59:59Z", "America/Los_Angeles", 0), is("2026-11-30T08:00:00Z"));
        assert_eq!(next("2026-11-30T12:00:00Z", "Asia/Shanghai", 0), is("2026-11-30T16:00:00Z"));
        // 2026-03-29 02:00 does not exist in Berlin.
        assert_eq!(next("2026-03-29T00:30:00Z", "Europe/Berlin", 2), is("2026-03-29T01:00:00Z"));
        assert_eq!(next("2026-11-30T12:00:00Z", "Mars/Olympus", 0), None);
        assert_eq!(next("2026-11-30T12:00:00Z", "UTC", 24), None);
    }

    #[test]
    fn a_deadline_is_never_shown_too_early() {
        assert_eq!(EpochMs(1_500).rfc3339(), "1970-01-01T00:00:02Z");
        assert_eq!(EpochMs::parse("1970-01-01T00:00:02Z"), Some(EpochMs(2_000)));
    }
}
