//! Limits that providers state in the headers of their answers (decisions 5.2): shown in `/api/rate-limits`, and a bucket that is empty keeps
//! a protected connection from being asked in vain.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use http::HeaderMap;
use serde::Serialize;

use crate::api::time::EpochMs;
use crate::classify::hints::{self, Ceiling};

/// One bucket as the provider described it last.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// `requests` or `tokens`.
    pub window: &'static str,
    /// Its size.
    pub limit: Option<u64>,
    /// What is left of it.
    pub remaining: Option<u64>,
    /// When it is full again.
    pub reset_time: Option<EpochMs>,
}

/// An empty bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Empty {
    /// When it is full again.
    pub until: EpochMs,
    /// What whoever waited for that leaves between one dispatch and the next, milliseconds: together they would empty it at once.
    pub pace_ms: u64,
}

/// Pace where the size of the bucket does not say it (routing spec 8.3).
const PACE_MS: u64 = 200;

/// How long a ceiling in words is believed: a limit may have been raised, and a pace that keeps to it lets no 429 come that would say so.
const BELIEVED_MS: u64 = 86_400_000;
/// What is read of an error body for the ceiling that it may state.
const MAX_WORDS: usize = 4096;

/// How all names in [`BUCKETS`] begin.
const PREFIXES: [&str; 2] = ["x-ratelimit-", "anthropic-ratelimit-"];
/// Header names of a bucket: limit, remaining, reset.
const BUCKETS: [(&str, [&str; 3]); 4] = [
    ("requests", ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"]),
    ("tokens", ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"]),
    ("requests", ["anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"]),
    ("tokens", ["anthropic-ratelimit-tokens-limit", "anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"]),
];

/// What is known about the limits of one connection.
#[derive(Debug, Default)]
pub struct Learned {
    buckets: Mutex<Vec<Bucket>>,
    /// Milliseconds since the epoch until which a bucket is empty; 0 = none is.
    empty_until: AtomicI64,
    /// See [`Empty::pace_ms`].
    pace_ms: AtomicU64,
    /// A bucket was empty, and no answer since has said that there is plenty.
    scarce: AtomicBool,
    /// The ceiling that the provider stated in words: requests above, milliseconds of the window below; 0 = none.
    ceiling: AtomicU64,
    /// When it was heard last.
    heard: AtomicI64,
}

impl Learned {
    /// Reads the headers of an answer. True for the first after an empty bucket that speaks of plenty: more than half of every bucket that it
    /// names (routing spec 8.3).
    #[must_use]
    pub fn read(&self, headers: &HeaderMap, now: EpochMs) -> bool {
        // Most answers of most vendors say nothing: then nothing is looked up.
        if !headers.keys().any(|name| PREFIXES.iter().any(|prefix| name.as_str().starts_with(prefix))) {
            return false;
        }
        let found: Vec<Bucket> = BUCKETS.iter().filter_map(|(window, names)| bucket(window, names, headers, now)).collect();
        if found.is_empty() {
            return false;
        }
        let empty =
            found.iter().filter(|b| b.remaining == Some(0)).filter_map(|b| Some((b.reset_time?, b))).max_by_key(|(until, _)| *until);
        self.pace_ms.store(empty.map_or(0, |(_, bucket)| bucket.pace_ms()), Ordering::Relaxed);
        self.empty_until.store(empty.map_or(0, |(until, _)| until.0), Ordering::Relaxed);
        let plenty = found.iter().all(Bucket::is_plenty);
        if empty.is_some() {
            self.scarce.store(true, Ordering::Relaxed);
        }
        *self.buckets.lock().unwrap_or_else(PoisonError::into_inner) = found;
        plenty && self.scarce.load(Ordering::Relaxed) && self.scarce.swap(false, Ordering::Relaxed)
    }

    /// Reads the words of a 429: the ceiling that they state, and whether it is news. One that `kept_to` refuses is not heard; of the others the last
    /// one counts, for a day, as long as the credential is the same.
    pub fn hear(&self, body: &[u8], now: EpochMs, kept_to: impl FnOnce(Ceiling) -> bool) -> Option<(Ceiling, bool)> {
        let words = String::from_utf8_lossy(body.get(..MAX_WORDS).unwrap_or(body));
        let ceiling = hints::ceiling(&words).filter(|ceiling| kept_to(*ceiling))?;
        let packed = (u64::from(ceiling.requests) << 32) | ceiling.window_ms;
        self.heard.store(now.0, Ordering::Relaxed);
        Some((ceiling, self.ceiling.swap(packed, Ordering::Relaxed) != packed))
    }

    /// The ceiling that the provider stated in words within the last day.
    #[must_use]
    pub fn ceiling(&self, now: EpochMs) -> Option<Ceiling> {
        let packed = self.ceiling.load(Ordering::Relaxed);
        let requests = u32::try_from(packed >> 32).ok().filter(|requests| *requests > 0)?;
        let recent = now < EpochMs(self.heard.load(Ordering::Relaxed)).plus(BELIEVED_MS);
        recent.then_some(Ceiling { requests, window_ms: packed & u64::from(u32::MAX) })
    }

    /// The bucket that is known to be empty.
    #[must_use]
    pub fn empty(&self, now: EpochMs) -> Option<Empty> {
        let until = Some(EpochMs(self.empty_until.load(Ordering::Relaxed))).filter(|until| *until > now)?;
        Some(Empty { until, pace_ms: self.pace_ms.load(Ordering::Relaxed) })
    }

    /// The buckets; those that were full again meanwhile are left out.
    #[must_use]
    pub fn buckets(&self, now: EpochMs) -> Vec<Bucket> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        buckets.iter().filter(|b| b.reset_time.is_none_or(|at| at > now)).cloned().collect()
    }
}

impl Bucket {
    fn is_plenty(&self) -> bool {
        self.limit.zip(self.remaining).is_some_and(|(limit, remaining)| remaining > limit / 2)
    }

    /// See [`Empty::pace_ms`]. A number of requests is one per minute, as far as anybody can tell.
    fn pace_ms(&self) -> u64 {
        match self.limit {
            Some(limit) if self.window == "requests" && limit > 0 => (60_000 / limit).saturating_sub(10),
            _ => PACE_MS,
        }
    }
}

fn bucket(window: &'static str, [limit, remaining, reset]: &[&str; 3], headers: &HeaderMap, now: EpochMs) -> Option<Bucket> {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
    let number = |name: &str| text(name).and_then(|v| v.parse::<u64>().ok());
    let (limit, remaining) = (number(limit), number(remaining));
    if limit.is_none() && remaining.is_none() {
        return None;
    }
    let wait = text(reset).and_then(|value| hints::from_headers(&[(reset, value)], 429, now));
    Some(Bucket { window, limit, remaining, reset_time: wait.map(|wait| now.plus(wait.ms)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const NOW: EpochMs = EpochMs(1_796_000_000_000);

    fn learned(pairs: &[(&'static str, &'static str)]) -> Learned {
        let learned = Learned::default();
        let headers = pairs.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect();
        assert!(!learned.read(&headers, NOW), "nothing was empty before");
        learned
    }

    #[test]
    fn a_ceiling_in_words_is_believed_for_a_day_and_only_if_it_is_kept_to() {
        let learned = Learned::default();
        let day = NOW.plus(BELIEVED_MS);
        let (slow, daily) = (Ceiling { requests: 5, window_ms: 60_000 }, Ceiling { requests: 9, window_ms: 86_400_000 });
        assert_eq!(learned.hear(b"limit: 5 requests per minute", NOW, |_| true), Some((slow, true)));
        assert_eq!(learned.hear(b"limit: 5 requests per minute", NOW.plus(1), |_| true), Some((slow, false)));
        assert_eq!(learned.hear(b"limit: 9 requests per day", NOW.plus(2), |heard| heard != daily), None);
        assert_eq!(learned.ceiling(day), Some(slow));
        assert_eq!(learned.ceiling(day.plus(1)), None);
    }

    #[test]
    fn buckets_are_read_in_the_words_of_each_vendor() {
        let openai = learned(&[
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "0"),
            ("x-ratelimit-reset-requests", "1m30s"),
            ("x-ratelimit-limit-tokens", "90000"),
            ("x-ratelimit-remaining-tokens", "12"),
        ]);
        let expected = [
            Bucket { window: "requests", limit: Some(60), remaining: Some(0), reset_time: Some(NOW.plus(90_000)) },
            Bucket { window: "tokens", limit: Some(90_000), remaining: Some(12), reset_time: None },
        ];
        assert_eq!(openai.buckets(NOW), expected);
        assert_eq!(openai.empty(NOW), Some(Empty { until: NOW.plus(90_000), pace_ms: 990 }));
        assert_eq!(openai.empty(NOW.plus(90_000)), None);
        assert_eq!(openai.buckets(NOW.plus(90_000)).len(), 1);
        let anthropic = learned(&[("anthropic-ratelimit-requests-limit", "5"), ("anthropic-ratelimit-requests-remaining", "4")]);
        assert_eq!(anthropic.buckets(NOW).first().map(|b| (b.limit, b.remaining)), Some((Some(5), Some(4))));
        assert_eq!(anthropic.empty(NOW), None);
    }

    #[test]
    fn an_answer_without_such_headers_changes_nothing() {
        let known = learned(&[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "30s")]);
        assert!(!known.read(&HeaderMap::new(), NOW));
        assert_eq!(known.empty(NOW), Some(Empty { until: NOW.plus(30_000), pace_ms: 200 }));
    }

    #[test]
    fn plenty_is_said_once_after_an_empty_bucket() {
        let known = learned(&[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "30s")]);
        let says = |requests: &'static str, tokens: &'static str| {
            let pairs = [("limit-requests", "60"), ("remaining-requests", requests), ("limit-tokens", "100"), ("remaining-tokens", tokens)];
            let name = |name: &str| HeaderName::try_from(format!("x-ratelimit-{name}")).unwrap();
            known.read(&pairs.iter().map(|(n, v)| (name(n), HeaderValue::from_static(v))).collect(), NOW)
        };
        assert_eq!([says("30", "100"), says("31", "50"), says("31", "51"), says("60", "100")], [false, false, true, false]);
    }
}
