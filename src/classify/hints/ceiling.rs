//! Ceilings in the words of a 429: "maximum 5 requests within 1 minutes", "60 requests per minute", "20 RPM" (decisions 5.2, routing spec 8.3).

use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::DAY_MS;

/// How many requests a provider allows in a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ceiling {
    /// At least 1.
    pub requests: u32,
    /// In this time, milliseconds; from a second to a day.
    pub window_ms: u64,
}

impl Ceiling {
    /// The time between two requests that keeps to it, milliseconds, rounded up.
    #[must_use]
    pub const fn interval_ms(self) -> u64 {
        self.window_ms.div_ceil(self.requests as u64)
    }
}

/// Characters before a number that tell whether it is a limit or a count of what was used.
const CONTEXT: usize = 32;
/// What stands before a count.
const USAGE: [&str; 10] = ["made", "sent", "used", "using", "usage", "current", "received", "remaining", "already", "after"];

/// Finds the first ceiling in a text. Counts of what was used are none.
#[must_use]
pub fn ceiling(text: &str) -> Option<Ceiling> {
    // Both have digits, words and a unit in a fixed order: what a client or vendor writes cannot make them slow.
    static PHRASE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let unit = "(?<unit>seconds?|secs?|minutes?|mins?|hours?|days?)";
        Regex::new(&format!(r"(?i)\b(?<n>\d{{1,9}}) (?:api )?requests? ?(?:per|within|in|every|/) ?(?:(?<times>\d{{1,5}}) )?{unit}\b")).ok()
    });
    static SHORT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?i)\b(?<n>\d{1,9}) ?(?<unit>rps|rpm|rph|rpd)\b").ok());
    [&PHRASE, &SHORT].into_iter().filter_map(|pattern| pattern.as_ref()).find_map(|pattern| {
        let mut found = pattern.captures_iter(text).filter(|found| !is_usage(text, found));
        found.find_map(|found| read(&found))
    })
}

fn is_usage(text: &str, found: &Captures<'_>) -> bool {
    let at = found.get(0).map_or(0, |whole| whole.start());
    let before: String = text.get(..at).unwrap_or_default().chars().rev().take(CONTEXT).collect();
    let before = before.chars().rev().collect::<String>().to_ascii_lowercase();
    // A new sentence or clause speaks of something else.
    let clause = before.rsplit(['.', ';', ',', '\n', '(']).next().unwrap_or_default();
    clause.split_whitespace().any(|word| USAGE.contains(&word.trim_matches(|c: char| !c.is_ascii_alphabetic())))
}

fn read(found: &Captures<'_>) -> Option<Ceiling> {
    let requests = found.name("n")?.as_str().parse::<u32>().ok().filter(|n| *n > 0)?;
    let unit_ms = match found.name("unit")?.as_str().to_ascii_lowercase().as_str() {
        "rps" => 1_000,
        "rpm" => 60_000,
        "rph" => 3_600_000,
        "rpd" => DAY_MS,
        unit if unit.starts_with("sec") => 1_000,
        unit if unit.starts_with("min") => 60_000,
        unit if unit.starts_with("hour") => 3_600_000,
        _ => DAY_MS,
    };
    let times = found.name("times").map_or(Some(1), |times| times.as_str().parse::<u64>().ok())?;
    let window_ms = times.checked_mul(unit_ms).filter(|ms| (1..=DAY_MS).contains(ms))?;
    Some(Ceiling { requests, window_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_are_read_and_counts_are_not() {
        let table: [(&str, Option<(u32, u64)>); 16] = [
            ("20 RPM exceeded", Some((20, 60_000))),
            ("Rate limit: maximum 5 requests within 1 minutes", Some((5, 60_000))),
            ("You are limited to 60 requests per minute.", Some((60, 60_000))),
            ("limit of 10 requests / 30 seconds", Some((10, 30_000))),
            ("at most 3 API requests per second", Some((3, 1_000))),
            ("1000 requests every 24 hours", Some((1000, DAY_MS))),
            ("your plan allows 2rps", Some((2, 1_000))),
            ("You have made 75 requests per minute; the limit is 60 requests per minute", Some((60, 60_000))),
            ("You have made 75 requests in 1 minute", None),
            ("current usage: 41 RPM", None),
            ("0 requests per minute", None),
            ("5 requests per 3 days", None),
            ("99999999999 requests per minute", None),
            ("3 requests", None),
            ("rate limited, retry in 20 seconds", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(ceiling(text), expected.map(|(requests, window_ms)| Ceiling { requests, window_ms }), "{text}");
        }
        assert_eq!(ceiling("é 5 requests per minute").map(Ceiling::interval_ms), Some(12_000));
    }
}
