//! Waits in headers (8.3 ranks 1 and 2, decisions 1.3).

use smallvec::SmallVec;

use super::{Clock, MAX_WAIT_MS, duration, instant};

/// Headers that state the wait itself in milliseconds; they win over seconds.
const MILLISECONDS: &[&str] = &["retry-after-ms", "x-ms-retry-after-ms"];
/// Reset headers that speak for the whole limit: name of the reset, name of the remainder.
const WHOLE: &[(&str, &str)] = &[("x-ratelimit-reset", "x-ratelimit-remaining"), ("ratelimit-reset", "ratelimit-remaining")];
/// Prefixes of reset headers that speak for one bucket each: `PREFIX` + `reset-BUCKET`, `PREFIX` + `remaining-BUCKET`.
const BUCKET_PREFIX: &str = "x-ratelimit-";
/// Anthropic writes `anthropic-ratelimit-BUCKET-reset` and `…-remaining`.
const ANTHROPIC_PREFIX: &str = "anthropic-ratelimit-";
/// Claude subscriptions: these speak for the account, see [`unified`].
const UNIFIED_PREFIX: &str = "anthropic-ratelimit-unified-";

/// Compares a header name with a lower-case one.
fn is(name: &str, wanted: &str) -> bool {
    name.eq_ignore_ascii_case(wanted)
}

/// The rest of a header name after a lower-case prefix.
fn after<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    name.get(..prefix.len()).filter(|head| head.eq_ignore_ascii_case(prefix)).and_then(|_| name.get(prefix.len()..))
}

/// The wait that the headers state, in milliseconds. Resets of buckets that are not known to be empty count on a 429 only: some vendors
/// send them with every answer.
pub(super) fn parse<'h>(headers: impl Iterator<Item = (&'h str, &'h str)> + Clone, status: u16, clock: Clock) -> Option<u64> {
    // Every header that matters has one of these in its name; most answers carry none and stop here.
    let relevant: SmallVec<[(&str, &str); 8]> =
        headers.clone().filter(|(n, _)| n.len() >= 10 && matches!(n.as_bytes()[0] | 0x20, b'r' | b'x' | b'a')).collect();
    if relevant.is_empty() {
        return None;
    }
    let find = |name: &str| relevant.iter().find(|(n, _)| is(n, name)).map(|(_, v)| v.trim());
    let milliseconds = MILLISECONDS.iter().find_map(|name| find(name)).and_then(|v| {
        let (value, len) = duration::number(v)?;
        (len == v.len()).then(|| duration::whole(value))?
    });
    let date = || headers.clone().find(|(n, _)| is(n, "date")).and_then(|(_, v)| instant::http_date(v));
    milliseconds
        .or_else(|| find("retry-after").and_then(|v| retry_after(v, date, clock)))
        .or_else(|| resets(&relevant, status, clock))
        .or_else(|| unified(&relevant, clock))
}

/// `Retry-After`: seconds, a duration, an HTTP date (measured from the answer's own `Date`, so that a wrong clock does no harm), an instant.
fn retry_after(value: &str, date: impl Fn() -> Option<i64>, clock: Clock) -> Option<u64> {
    if let Some(at) = instant::http_date(value) {
        let base = date().map_or(clock, |now| Clock { now: crate::api::time::EpochMs(now), ..clock });
        return base.until(at);
    }
    match duration::value(value) {
        // Nobody waits thirty years: this is an epoch.
        Some(ms) if ms > 10 * MAX_WAIT_MS => instant::reset_value(value, clock).or(Some(ms)),
        Some(ms) => Some(ms),
        None => instant::until_text(value, clock),
    }
}

/// The reset headers: of an empty bucket, else the latest.
fn resets(headers: &[(&str, &str)], status: u16, clock: Clock) -> Option<u64> {
    let remaining = |wanted: &dyn Fn(&str) -> bool| headers.iter().find(|(n, _)| wanted(n)).map(|(_, v)| v.trim());
    let (mut empty, mut latest): (Option<u64>, Option<u64>) = (None, None);
    for (name, value) in headers {
        let (left, whole) = if let Some((_, left)) = WHOLE.iter().find(|(reset, _)| is(name, reset)) {
            (remaining(&|n| is(n, left)), true)
        } else if let Some(bucket) = after(name, BUCKET_PREFIX).and_then(|rest| after(rest, "reset-")) {
            (remaining(&|n| after(n, BUCKET_PREFIX).and_then(|rest| after(rest, "remaining-")).is_some_and(|b| is(b, bucket))), false)
        } else if after(name, UNIFIED_PREFIX).is_some() {
            continue;
        } else if let Some(rest) = after(name, ANTHROPIC_PREFIX)
            && let Some(bucket) =
                rest.len().checked_sub(6).filter(|i| rest.get(*i..).is_some_and(|r| is(r, "-reset"))).and_then(|i| rest.get(..i))
        {
            let is_left = |n: &str| after(n, ANTHROPIC_PREFIX).and_then(|r| after(r, bucket)).is_some_and(|r| is(r, "-remaining"));
            (remaining(&is_left), false)
        } else {
            continue;
        };
        let Some(ms) = instant::reset_value(value, clock) else { continue };
        let is_empty = left.is_some_and(|l| l.parse::<f64>().is_ok_and(|n| n <= 0.0));
        if is_empty {
            empty = empty.max(Some(ms));
        } else if whole || status == 429 {
            latest = latest.max(Some(ms));
        }
    }
    empty.or(latest)
}

/// Claude's unified limit: its reset counts while it rejects; without one, the window that the answer names.
fn unified(headers: &[(&str, &str)], clock: Clock) -> Option<u64> {
    let find =
        |name: &str| headers.iter().find(|(n, _)| after(n, UNIFIED_PREFIX).is_some_and(|rest| is(rest, name))).map(|(_, v)| v.trim());
    if find("status").is_some_and(|s| !s.eq_ignore_ascii_case("rejected")) {
        return None;
    }
    let window = || match find("representative-claim") {
        Some("five_hour") => find("5h-reset"),
        Some("seven_day") => find("7d-reset"),
        // One window alone can only mean itself.
        _ => find("5h-reset").xor(find("7d-reset")),
    };
    find("reset").or_else(window).and_then(|v| instant::reset_value(v, clock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::time::EpochMs;

    fn wait(headers: &[(&str, &str)], status: u16) -> Option<u64> {
        parse(headers.iter().copied(), status, Clock { now: EpochMs(1_700_000_000_000), china: false })
    }

    #[test]
    fn retry_after_has_every_form() {
        for (value, ms) in [
            ("3600", Some(3_600_000)),
            ("60s", Some(60_000)),
            ("1H", Some(3_600_000)),
            ("5m", Some(300_000)),
            ("1.5", Some(1_500)),
            (" 30 ", Some(30_000)),
            ("", None),
            ("   ", None),
            ("not-a-date", None),
            ("0", None),
            ("-5", None),
            ("Tue, 14 Nov 2023 22:15:00 GMT", Some(100_000)),
            ("Tue, 14 Nov 2023 22:00:00 GMT", None),
            ("1700000090", Some(90_000)),
        ] {
            assert_eq!(wait(&[("Retry-After", value)], 429), ms, "{value}");
        }
        assert_eq!(wait(&[("retry-after", "300"), ("retry-after-ms", "274579000")], 429), Some(274_579_000));
        let skewed = [("date", "Tue, 14 Nov 2023 21:00:00 GMT"), ("retry-after", "Tue, 14 Nov 2023 21:01:00 GMT")];
        assert_eq!(wait(&skewed, 429), Some(60_000));
    }

    #[test]
    fn the_empty_bucket_wins_else_the_latest() {
        let buckets = [
            ("x-ratelimit-reset-requests", "1s"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-tokens", "6m0s"),
            ("x-ratelimit-remaining-tokens", "149984"),
        ];
        assert_eq!(wait(&buckets, 429), Some(1_000));
        assert_eq!(wait(&buckets[2..], 429), Some(360_000));
        assert_eq!(wait(&buckets[2..], 500), None);
        assert_eq!(wait(&[("X-RateLimit-Reset", "1700000090")], 503), Some(90_000));
        let anthropic = [
            ("anthropic-ratelimit-tokens-reset", "2023-11-14T22:14:20Z"),
            ("anthropic-ratelimit-tokens-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2023-11-14T22:20:00Z"),
            ("anthropic-ratelimit-requests-remaining", "10"),
        ];
        assert_eq!(wait(&anthropic, 429), Some(60_000));
    }

    #[test]
    fn the_unified_limit_speaks_while_it_rejects() {
        let rejected = [
            ("anthropic-ratelimit-unified-status", "rejected"),
            ("anthropic-ratelimit-unified-reset", "1700003600"),
            ("anthropic-ratelimit-unified-7d-reset", "1700500000"),
        ];
        assert_eq!(wait(&rejected, 429), Some(3_600_000));
        assert_eq!(wait(&[("anthropic-ratelimit-unified-status", "allowed"), rejected[1]], 429), None);
        assert_eq!(wait(&[("anthropic-ratelimit-unified-5h-reset", "1700003600")], 429), Some(3_600_000));
    }
}
