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

/// Characters around a number that tell whether it is a limit or a count of what was used.
const CONTEXT: usize = 48;
/// One of them stands in front of a limit that does not begin its clause; so does "up to".
const LIMITS: &str = "limit limits limited limiting limitation limitations max maximum most allow allows allowed allowing allowance quota quotas \
    exceed exceeds exceeded exceeding ceiling ceilings cap caps capped";
/// What stands beside a count.
const USAGE: &str = "made sent use uses used using usage current currently received remaining already after detected observed were";
/// In front of a limit that somebody else has.
const OFFERS: &str = "upgrade upgrades upgraded upgrading";

/// Finds the first ceiling in a text. Counts of what was used are none, and neither are numbers without a word that makes them a limit.
#[must_use]
pub fn ceiling(text: &str) -> Option<Ceiling> {
    // Both have digits, words and a unit in a fixed order: what a client or vendor writes cannot make them slow.
    static PHRASE: LazyLock<Option<Regex>> = LazyLock::new(|| {
        let unit = "(?<unit>seconds?|secs?|minutes?|mins?|hours?|days?)";
        Regex::new(&format!(r"(?i){NUMBER} (?:api )?requests? ?(?:per|within|in|every|/) ?(?:(?<times>\d{{1,5}}) )?{unit}\b")).ok()
    });
    static SHORT: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(&format!(r"(?i){NUMBER} ?(?<unit>rps|rpm|rph|rpd)\b")).ok());
    [&PHRASE, &SHORT].into_iter().filter_map(|pattern| pattern.as_ref()).find_map(|pattern| {
        let mut found = pattern.captures_iter(text).filter(|found| is_limit(text, found));
        found.find_map(|found| read(&found))
    })
}

/// A number, perhaps with separators. What stands before it is looked at by [`is_limit`].
const NUMBER: &str = r"(?<n>\d{1,3}(?:,\d{3})+|\d{1,9})";

fn is_limit(text: &str, found: &Captures<'_>) -> bool {
    let Some(whole) = found.get(0) else { return false };
    let (before, after) = (text.get(..whole.start()).unwrap_or_default(), text.get(whole.end()..).unwrap_or_default());
    // The tail of another number or of a name: 0.5, 1.020, gpt-4.
    if before.chars().next_back().is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | ',' | '-' | '_')) {
        return false;
    }
    // A new sentence speaks of something else.
    let ends = ['.', ';', '\n', '(', ')', '"', '{'];
    let near: String = before.chars().rev().take(CONTEXT).collect();
    let near: String = near.chars().rev().collect::<String>().to_ascii_lowercase();
    let clause = near.rsplit(ends).next().unwrap_or_default();
    let rest: String = after.chars().take(CONTEXT).collect::<String>().to_ascii_lowercase();
    let rest = rest.split(ends).next().unwrap_or_default();
    let says = |part: &str, of: &str| words(part).any(|word| words(of).any(|one| one == word));
    let up_to = words(clause).zip(words(clause).skip(1)).any(|pair| pair == ("up", "to"));
    let begins = !clause.chars().any(char::is_alphanumeric);
    (begins || up_to || says(clause, LIMITS)) && !says(clause, OFFERS) && !says(clause, USAGE) && !says(rest, USAGE)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty())
}

fn read(found: &Captures<'_>) -> Option<Ceiling> {
    let requests = found.name("n")?.as_str().replace(',', "").parse::<u32>().ok().filter(|n| *n > 0)?;
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
        let table: [(&str, Option<(u32, u64)>); 40] = [
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
            ("Limit: 1,020 RPM", Some((1_020, 60_000))),
            ("limit 12,005 requests per minute", Some((12_005, 60_000))),
            ("limit: 0.5 requests per second", None),
            ("Rate limit reached for gpt-4 requests per minute", None),
            ("limit of gemini-2.5 requests per minute", None),
            ("Detected 3 requests in 1 minute", None),
            ("Your rate of 75 requests per minute exceeds the limit of 60 requests per minute", Some((60, 60_000))),
            ("Current rate, 5 RPM; limit 60 RPM", Some((60, 60_000))),
            ("75 requests per minute were sent", None),
            ("We saw 75 requests per minute", None),
            (r#"{"error":{"message":"20 requests per minute exceeded"}}"#, Some((20, 60_000))),
            (r#"{"error":{"message":"Rate limit reached (limit: 3 RPM, used: 3)"}}"#, None),
            ("Rate limit reached on requests per min (RPM): Limit 3, Used 3, Requested 1", None),
            ("Please upgrade for 500 requests per minute", None),
            ("Rate limit reached, upgrade to Pro for 500 requests per minute", None),
            ("You are limited to 5 requests per minute, upgrade for more", Some((5, 60_000))),
            ("You can make up to 5 requests per minute", Some((5, 60_000))),
            ("We set up 5 requests per minute", None),
            ("The limit of a user is 60 requests per minute", Some((60, 60_000))),
            ("limit: 60 requests per minute for each user", Some((60, 60_000))),
            ("limit 60 requests per minute, used 61", None),
            ("Exceeding 20 requests per minute is not allowed", Some((20, 60_000))),
            ("Your allowance of 3 requests per minute", Some((3, 60_000))),
            ("mostly 5 requests per minute", None),
            ("", None),
        ];
        for (text, expected) in table {
            assert_eq!(ceiling(text), expected.map(|(requests, window_ms)| Ceiling { requests, window_ms }), "{text}");
        }
        assert_eq!(ceiling("é: limit 5 requests per minute").map(Ceiling::interval_ms), Some(12_000));
    }
}
