//! The one wait parser (decisions 1.3, spec: resilience 8.3): what an upstream says about when to come back.
//!
//! First source that is present wins: headers, Google RetryInfo and ErrorInfo, structured JSON fields, wording. Zero, negative and past
//! values count as absent. Every wait keeps its provenance.

mod ceiling;
mod duration;
mod fields;
mod headers;
mod instant;
mod wording;

use super::WaitSource;
use crate::api::time::EpochMs;

pub use ceiling::{Ceiling, ceiling};
pub(super) use instant::until_hour;
pub(super) use wording::{TRIGGERS, words};

/// Longest wait that is believed: 30 days.
pub const MAX_WAIT_MS: u64 = 30 * DAY_MS;
/// One day.
pub(super) const DAY_MS: u64 = 86_400_000;

/// A wait that the upstream stated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Milliseconds from now, at least 1.
    pub ms: u64,
    /// Provenance.
    pub source: WaitSource,
    /// True for headers, RetryInfo and structured fields; false for wording (decisions 9.5: `Typed`).
    pub typed: bool,
}

/// What the parser needs to know beside the answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// Now.
    pub now: EpochMs,
    /// Zone-less instants are UTC+8 instead of UTC.
    pub china: bool,
}

impl Clock {
    /// Milliseconds until an instant; `None` when it is not in the future.
    fn until(self, instant: i64) -> Option<u64> {
        u64::try_from(instant.checked_sub(self.now.0)?).ok().filter(|ms| *ms > 0)
    }
}

/// The wait that headers state (`Retry-After` and relatives first, then the reset headers). `status` tells whether the reset of a
/// bucket that is not empty may count: only on a 429.
#[must_use]
pub fn from_headers(headers: &[(&str, &str)], status: u16, now: EpochMs) -> Option<Wait> {
    headers::parse(headers.iter().copied(), status, Clock { now, china: false }).map(|ms| Wait {
        ms,
        source: WaitSource::Header,
        typed: true,
    })
}

/// The time until the instant that the value of a reset header means, milliseconds: durations, epochs, deltas in seconds, ISO instants and
/// HTTP dates.
#[must_use]
pub fn until_reset(value: &str, now: EpochMs) -> Option<u64> {
    instant::reset_value(value, Clock { now, china: false })
}

/// The typed wait of an answer: headers, RetryInfo, fields.
pub(super) fn typed(headers: &[(&str, &str)], body: &super::body::Body<'_>, status: u16, clock: Clock) -> Option<Wait> {
    let wait = |ms, source| Wait { ms, source, typed: true };
    if let Some(ms) = headers::parse(headers.iter().copied(), status, clock) {
        return Some(wait(ms, WaitSource::Header));
    }
    if let Some(ms) = fields::google(body, clock) {
        return Some(wait(ms.min(DAY_MS), WaitSource::RetryInfo));
    }
    fields::other(body, status, clock).map(|ms| wait(ms.min(MAX_WAIT_MS), WaitSource::Body))
}

/// A wait below one hour that RetryInfo or `please retry in` declares: a sign of a short limit (spec: resilience 8.2 step 3).
pub(super) fn declares_short(body: &super::body::Body<'_>, found: &super::scan::Found, clock: Clock) -> bool {
    const HOUR: u64 = 3_600_000;
    fields::google(body, clock).or_else(|| wording::please_retry(body, found, clock)).is_some_and(|ms| ms < HOUR)
}

/// Everything in one call, for callers outside the classifier: the wait of an answer, or `None`. `china` = zone-less instants are UTC+8.
#[must_use]
pub fn parse(headers: &[(&str, &str)], raw_body: &[u8], status: u16, china: bool, now: EpochMs) -> Option<Wait> {
    let body = super::body::read(raw_body);
    let found = super::rules::builtin_scanner().scan(&body, None);
    let clock = Clock {
        now,
        china: china || found.seen.has(super::evidence::Evidence::ChinaTime) || body.codes.iter().any(|c| c == "1308" || c == "1310"),
    };
    typed(headers, &body, status, clock).or_else(|| words(&body, &found, false, clock))
}
