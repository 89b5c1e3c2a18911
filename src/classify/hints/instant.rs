//! Instants: epochs, ISO date-times, HTTP dates, `MM-DD HH:MM`, English dates, times of day.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{Offset, TimeZone};

use super::{Clock, MAX_WAIT_MS};

/// Reads an epoch: above 10^10 milliseconds, else seconds.
pub(super) fn epoch(number: i64) -> Option<i64> {
    if number > 10_000_000_000 { Some(number) } else { number.checked_mul(1_000) }
}

/// The wait that the value of a reset header or field means: a duration with unit, an epoch (s or ms), a delta in seconds, an ISO instant
/// or an HTTP date. An epoch in the past that is at most 30 days as a delta is a delta (decisions 1.3).
pub(super) fn reset_value(text: &str, clock: Clock) -> Option<u64> {
    let text = text.trim();
    if let Some((value, len)) = super::duration::number(text) {
        let rest = text.get(len..).unwrap_or_default();
        if rest.is_empty() || rest.starts_with([',', ';']) {
            #[allow(clippy::cast_possible_truncation)] // at most 15 digits
            let whole = value as i64;
            if let Some(ms) = epoch(whole).and_then(|instant| clock.until(instant)) {
                return Some(ms);
            }
            return super::duration::whole(value * 1_000.0).filter(|ms| *ms <= MAX_WAIT_MS);
        }
    }
    super::duration::value(text).or_else(|| until_text(text, clock))
}

/// The wait until an instant that is the whole value: ISO or HTTP date.
pub(super) fn until_text(text: &str, clock: Clock) -> Option<u64> {
    let text = text.trim();
    iso(text, clock).map(|(instant, _)| instant).or_else(|| http_date(text)).and_then(|instant| clock.until(instant))
}

/// Two digits at the start.
fn two(text: &str) -> Option<(i8, &str)> {
    let digits = text.get(..2).filter(|d| d.bytes().all(|b| b.is_ascii_digit()))?;
    Some((digits.parse().ok()?, text.get(2..)?))
}

/// One or two digits at the start.
fn one_or_two(text: &str) -> Option<(i8, &str)> {
    let len = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    if text.as_bytes().get(len).is_some_and(u8::is_ascii_digit) {
        return None;
    }
    Some((text.get(..len)?.parse().ok()?, text.get(len..)?))
}

/// `HH:MM[:SS[.fff]]`.
fn time(text: &str) -> Option<(Time, &str)> {
    let (hour, rest) = one_or_two(text)?;
    let (minute, rest) = two(rest.strip_prefix(':')?)?;
    let (second, rest) = match rest.strip_prefix(':').and_then(two) {
        Some((second, rest)) => (second, rest),
        None => (0, rest),
    };
    let (nanos, rest) = match rest.strip_prefix(['.', ',']) {
        Some(after) if after.starts_with(|c: char| c.is_ascii_digit()) => {
            let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
            let digits = after.get(..(after.len() - rest.len()).min(9))?;
            (format!("{digits:0<9}").parse().ok()?, rest)
        }
        _ => (0, rest),
    };
    Some((Time::new(hour, minute, second, nanos).ok()?, rest))
}

/// A zone after a time: `Z`, `UTC`, `GMT`, an offset, or an IANA name in parentheses.
fn zone(text: &str) -> (Option<TimeZone>, &str) {
    let trimmed = text.trim_start_matches(' ');
    let named = |n: usize| (Some(TimeZone::UTC), trimmed.get(n..).unwrap_or_default());
    if trimmed.get(..3).is_some_and(|z| z.eq_ignore_ascii_case("utc") || z.eq_ignore_ascii_case("gmt")) {
        let rest = trimmed.get(3..).unwrap_or_default();
        return if rest.starts_with(['+', '-']) { offset(rest).unwrap_or((None, text)) } else { named(3) };
    }
    if text.starts_with(['Z', 'z']) {
        return named(1);
    }
    if let Some((inner, rest)) = trimmed.strip_prefix('(').and_then(|t| t.split_once(')')) {
        return match TimeZone::get(inner) {
            Ok(tz) => (Some(tz), rest),
            Err(_) if inner.starts_with("UTC") || inner.starts_with("GMT") => (zone(inner).0, rest),
            Err(_) => (None, text),
        };
    }
    offset(trimmed).unwrap_or((None, text))
}

/// `+08:00`, `+0800`, `+8`.
fn offset(text: &str) -> Option<(Option<TimeZone>, &str)> {
    let sign = match text.bytes().next()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = text.get(1..).and_then(|t| two(t).or_else(|| one_or_two(t)))?;
    let (minutes, rest) = two(rest.strip_prefix(':').unwrap_or(rest)).unwrap_or((0, rest));
    let offset = Offset::from_seconds(sign * (i32::from(hours) * 3600 + i32::from(minutes) * 60)).ok()?;
    Some((Some(TimeZone::fixed(offset)), rest))
}

/// The zone of instants without one.
fn default_zone(clock: Clock) -> TimeZone {
    if clock.china { TimeZone::fixed(jiff::tz::offset(8)) } else { TimeZone::UTC }
}

/// Epoch milliseconds of a civil time.
fn millis(at: DateTime, zone: TimeZone) -> Option<i64> {
    at.to_zoned(zone).ok().map(|z| z.timestamp().as_millisecond())
}

/// `YYYY-MM-DD[(T| )HH:MM[:SS[.fff]][zone]]` at the start: epoch milliseconds and length.
pub(super) fn iso(text: &str, clock: Clock) -> Option<(i64, usize)> {
    let year = text.get(..4).filter(|y| y.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    let rest = text.get(4..)?.strip_prefix(['-', '/'])?;
    let (month, rest) = two(rest)?;
    let (day, rest) = two(rest.strip_prefix(['-', '/'])?)?;
    let date = Date::new(year, month, day).ok()?;
    let (at, rest) = match rest.strip_prefix(['T', 't', ' ']).and_then(|t| time(t.trim_start_matches(' '))) {
        Some((time, rest)) => (time, rest),
        None => (Time::midnight(), rest),
    };
    let (zone, rest) = zone(rest);
    let instant = millis(date.to_datetime(at), zone.unwrap_or_else(|| default_zone(clock)))?;
    Some((instant, text.len() - rest.len()))
}

/// `MM-DD HH:MM[:SS] [UTC]`: the next time that comes.
pub(super) fn month_day(text: &str, clock: Clock) -> Option<i64> {
    let (month, rest) = two(text)?;
    let (day, rest) = two(rest.strip_prefix('-')?)?;
    let (at, rest) = time(rest.strip_prefix([' ', 'T'])?.trim_start_matches(' '))?;
    let zone = zone(rest).0.unwrap_or_else(|| default_zone(clock));
    next_yearly(month, day, at, &zone, clock)
}

/// The next `month`-`day` at a time.
fn next_yearly(month: i8, day: i8, at: Time, zone: &TimeZone, clock: Clock) -> Option<i64> {
    let year = today(clock, zone)?.year();
    [year, year.saturating_add(1)].into_iter().find_map(|year| {
        let instant = millis(Date::new(year, month, day).ok()?.to_datetime(at), zone.clone())?;
        (instant > clock.now.0).then_some(instant)
    })
}

/// Today in a zone.
fn today(clock: Clock, zone: &TimeZone) -> Option<Date> {
    jiff::Timestamp::from_millisecond(clock.now.0).ok().map(|t| t.to_zoned(zone.clone()).date())
}

/// The number of an English month name.
fn month_name(word: &str) -> Option<i8> {
    const NAMES: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    let head = word.get(..3)?;
    NAMES.iter().position(|n| head.eq_ignore_ascii_case(n)).and_then(|i| i8::try_from(i + 1).ok())
}

/// `3 PM`, `3:05 PM`, `15:05`, each with an optional zone.
fn clock_time(text: &str) -> Option<(Time, Option<TimeZone>)> {
    let (hour, minute, rest) = match time(text) {
        Some((at, rest)) => (at.hour(), at.minute(), rest),
        None => one_or_two(text).map(|(hour, rest)| (hour, 0, rest))?,
    };
    let rest = rest.trim_start_matches(' ');
    let (hour, rest) = match rest.get(..2) {
        Some(half) if half.eq_ignore_ascii_case("pm") => (if hour < 12 { hour + 12 } else { hour }, rest.get(2..)?),
        Some(half) if half.eq_ignore_ascii_case("am") => (if hour == 12 { 0 } else { hour }, rest.get(2..)?),
        _ if time(text).is_some() => (hour, rest),
        _ => return None,
    };
    Some((Time::new(hour, minute, 0, 0).ok()?, zone(rest).0))
}

/// `Oct 7th, 2026 3:05 PM`, `October 7 at 15:00 UTC`: the next time that comes when no year is named.
pub(super) fn english_date(text: &str, clock: Clock) -> Option<i64> {
    let word = text.split(|c: char| !c.is_ascii_alphabetic()).next()?;
    let month = month_name(word)?;
    let rest = text.get(word.len()..)?.trim_start_matches(['.', ' ']);
    let (day, rest) = one_or_two(rest)?;
    let suffix = rest.get(..2).is_some_and(|s| ["st", "nd", "rd", "th"].iter().any(|o| s.eq_ignore_ascii_case(o)));
    let rest = rest.get(if suffix { 2 } else { 0 }..)?.trim_start_matches([',', ' ']);
    let year: Option<i16> = rest.get(..4).filter(|y| y.bytes().all(|b| b.is_ascii_digit())).and_then(|y| y.parse().ok());
    let rest = rest.get(if year.is_some() { 4 } else { 0 }..)?.trim_start_matches([',', ' ']);
    let rest = rest.strip_prefix("at ").unwrap_or(rest);
    let (at, zone) = clock_time(rest).unwrap_or((Time::midnight(), None));
    let zone = zone.unwrap_or_else(|| default_zone(clock));
    match year {
        Some(year) => millis(Date::new(year, month, day).ok()?.to_datetime(at), zone),
        None => next_yearly(month, day, at, &zone, clock),
    }
}

/// A time of day: the next time that comes.
pub(super) fn time_of_day(text: &str, clock: Clock) -> Option<i64> {
    let (at, zone) = clock_time(text)?;
    let zone = zone.unwrap_or_else(|| default_zone(clock));
    let today = today(clock, &zone)?;
    [Some(today), today.tomorrow().ok()].into_iter().flatten().find_map(|date| {
        let instant = millis(date.to_datetime(at), zone.clone())?;
        (instant > clock.now.0).then_some(instant)
    })
}

/// RFC 9110 dates: IMF-fixdate, RFC 850, asctime. Epoch milliseconds.
pub(super) fn http_date(text: &str) -> Option<i64> {
    let text = text.trim();
    let mut words: [&str; 6] = [""; 6];
    let mut count = 0;
    for word in text.split([' ', ',', '-']).filter(|w| !w.is_empty()) {
        *words.get_mut(count)? = word;
        count += 1;
    }
    let [_, a, b, c, d, e] = words;
    let (day, month, year, at) = if count == 6 { (a, b, c, d) } else { (b, a, d, c) };
    if count == 6 && !(e.eq_ignore_ascii_case("gmt") || e.eq_ignore_ascii_case("utc")) {
        return None;
    }
    if !(5..=6).contains(&count) {
        return None;
    }
    let year: i16 = year.parse().ok()?;
    let year = match (year, count) {
        (0..=69, 6) => year + 2000,
        (70..=99, 6) => year + 1900,
        _ => year,
    };
    let (at, rest) = time(at)?;
    if !rest.is_empty() {
        return None;
    }
    millis(Date::new(year, month_name(month)?, day.parse().ok()?).ok()?.to_datetime(at), TimeZone::UTC)
}

/// Milliseconds until the next `hour` o'clock in a zone; `None` when the zone is unknown.
pub(in super::super) fn until_hour(zone: &str, hour: u8, now: crate::api::time::EpochMs) -> Option<u64> {
    let clock = Clock { now, china: false };
    let zone = if zone.is_empty() || zone.eq_ignore_ascii_case("utc") { TimeZone::UTC } else { TimeZone::get(zone).ok()? };
    let at = Time::new(i8::try_from(hour).ok()?, 0, 0, 0).ok()?;
    let today = today(clock, &zone)?;
    [Some(today), today.tomorrow().ok()].into_iter().flatten().find_map(|date| clock.until(millis(date.to_datetime(at), zone.clone())?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::time::EpochMs;

    const CLOCK: Clock = Clock { now: EpochMs(1_700_000_000_000), china: false };

    #[test]
    fn dates_of_rfc_9110_are_read() {
        for text in ["Tue, 14 Nov 2023 22:15:00 GMT", "Tuesday, 14-Nov-23 22:15:00 GMT", "Tue Nov 14 22:15:00 2023"] {
            assert_eq!(http_date(text), Some(1_700_000_100_000), "{text}");
        }
        for text in ["", "not-a-date", "Tue, 14 Foo 2023 22:15:00 GMT", "Tue, 99 Nov 2023 22:15:00 GMT", "a b c d e f g"] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    #[test]
    fn reset_values_are_epochs_or_deltas() {
        for (text, ms) in [
            ("1700000090", Some(90_000)),
            ("1700000060000", Some(60_000)),
            ("60", Some(60_000)),
            ("6m0s", Some(360_000)),
            ("2023-11-14T22:15:00Z", Some(100_000)),
            ("1699999000", None),
            ("0", None),
            ("", None),
            ("junk", None),
            ("2592001", None),
            ("0.5", Some(500)),
        ] {
            assert_eq!(reset_value(text, CLOCK), ms, "{text}");
        }
    }

    #[test]
    fn written_dates_are_read() {
        assert_eq!(english_date("Nov 14th, 2023 10:15 PM", CLOCK), Some(1_700_000_100_000));
        assert_eq!(time_of_day("10:15 PM", CLOCK), Some(1_700_000_100_000));
        assert_eq!(time_of_day("5:15pm (America/New_York)", CLOCK), Some(1_700_000_100_000));
        assert_eq!(month_day("11-14 22:15 UTC", CLOCK), Some(1_700_000_100_000));
        assert_eq!(month_day("01-01 00:00", CLOCK), Some(1_704_067_200_000));
        assert_eq!(iso("2023-11-15 06:15:00", Clock { china: true, ..CLOCK }).map(|(i, _)| i), Some(1_700_000_100_000));
    }

    #[test]
    fn the_daily_reset_knows_zones_and_their_jumps() {
        assert_eq!(until_hour("Asia/Shanghai", 0, EpochMs(1_788_334_200_000)), Some(30_600_000));
        // 2026-03-08 in New York has 23 hours.
        let midnight = EpochMs::parse("2026-03-08T05:00:00Z").unwrap_or_default();
        assert_eq!(until_hour("America/New_York", 0, midnight), Some(23 * 3_600_000));
        assert_eq!(until_hour("No/Such", 0, midnight), None);
    }
}
