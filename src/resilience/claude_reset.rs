//! The weekly limit reset of a Claude subscription (spec: resilience 13.4): what to ask, how to read the answers, and when to ask again.

use serde::Deserialize;

use crate::api::time::EpochMs;

/// Path of the question whether a reset is available.
pub const USAGE_PATH: &str = "/api/oauth/usage?at_wall=1&skip_spend=1&cedar_ember=1";
/// Deadline of that question, milliseconds.
pub const USAGE_TIMEOUT_MS: u64 = 5_000;
/// Body of the claim.
pub const CLAIM_BODY: &str = r#"{"program":"juniper_tide"}"#;
/// Deadline of the claim, milliseconds.
pub const CLAIM_TIMEOUT_MS: u64 = 25_000;

/// How long siblings of a request that claimed a reset take it for theirs.
const RECENT_MS: u64 = 60_000;
/// When a failed claim is tried again.
const BACK_OFF_MS: u64 = 900_000;
/// When a used reset is available again, if nothing is announced.
const USED_MS: u64 = 7 * 86_400_000;
/// A claim that has not come back after this long is given up: both deadlines and the question for the organization.
const CLAIM_LOST_MS: u64 = USAGE_TIMEOUT_MS + CLAIM_TIMEOUT_MS + 5_000;

/// Path of the claim for an organization.
#[must_use]
pub fn claim_path(organization: &str) -> String {
    format!("/api/organizations/{organization}/reset_rate_limits")
}

/// The result of asking for a reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResetResult {
    /// The limit was reset, or there is none: go on at full speed.
    Granted,
    /// This week's reset is used up.
    AlreadyUsed {
        /// When the next one is available, if announced.
        next: Option<EpochMs>,
    },
    /// The account is not offered one.
    NotOffered {
        /// When to ask again, if announced.
        next: Option<EpochMs>,
    },
    /// Anything else: no answer, an unknown one.
    Failed,
}

#[derive(Deserialize)]
struct Usage {
    juniper_tide: Option<Offer>,
}

#[derive(Deserialize)]
struct Offer {
    #[serde(default)]
    eligible: bool,
    #[serde(default)]
    arm: String,
    #[serde(default)]
    available: bool,
    next_available_at: Option<Instant>,
}

#[derive(Deserialize)]
struct Claim {
    #[serde(default, alias = "status")]
    result: String,
    next_available_at: Option<Instant>,
}

/// An instant as the vendor writes it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Instant {
    Seconds(i64),
    Text(String),
}

impl Instant {
    fn at(&self) -> Option<EpochMs> {
        match self {
            Self::Seconds(s) => Some(EpochMs(s.saturating_mul(1_000))),
            Self::Text(text) => EpochMs::parse(text),
        }
    }
}

/// Reads the answer to the question; `Ok` means that a claim is worth making.
///
/// # Errors
/// The result to hand to the lane when it is not.
pub fn read_usage(status: u16, body: &[u8]) -> Result<(), ResetResult> {
    let offer = match serde_json::from_slice::<Usage>(body) {
        Ok(usage) if (200..300).contains(&status) => usage.juniper_tide,
        _ => return Err(ResetResult::Failed),
    };
    match offer {
        Some(offer) if offer.eligible && offer.arm == "reset" && offer.available => Ok(()),
        Some(offer) => Err(ResetResult::NotOffered { next: offer.next_available_at.as_ref().and_then(Instant::at) }),
        None => Err(ResetResult::NotOffered { next: None }),
    }
}

/// Reads the answer to the claim.
#[must_use]
pub fn read_claim(body: &[u8]) -> ResetResult {
    let Ok(claim) = serde_json::from_slice::<Claim>(body) else { return ResetResult::Failed };
    let next = claim.next_available_at.as_ref().and_then(Instant::at);
    match claim.result.as_str() {
        "reset" | "not_limited" => ResetResult::Granted,
        "already_used" | "granted_elsewhere" => ResetResult::AlreadyUsed { next },
        "not_offered" => ResetResult::NotOffered { next },
        _ => ResetResult::Failed,
    }
}

/// What a connection remembers of its resets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LimitReset {
    claiming_since: Option<EpochMs>,
    granted: EpochMs,
    not_before: EpochMs,
}

impl LimitReset {
    /// True when a sibling's claim was granted a moment ago.
    #[must_use]
    pub fn was_recent(&self, now: EpochMs) -> bool {
        self.granted.0 > 0 && now.since(self.granted) < RECENT_MS
    }

    /// Starts a claim; false when one is running or it is too early for another.
    pub fn start(&mut self, now: EpochMs) -> bool {
        let running = self.claiming_since.is_some_and(|since| now.since(since) < CLAIM_LOST_MS);
        if running || now < self.not_before {
            return false;
        }
        self.claiming_since = Some(now);
        true
    }

    /// Ends a claim; true when it was granted.
    pub fn finish(&mut self, result: &ResetResult, now: EpochMs) -> bool {
        self.claiming_since = None;
        let not_before = match result {
            ResetResult::Granted => {
                self.granted = now;
                return true;
            }
            ResetResult::AlreadyUsed { next } => next.unwrap_or_else(|| now.plus(USED_MS)),
            ResetResult::NotOffered { next } => next.unwrap_or_else(|| now.plus(BACK_OFF_MS)),
            ResetResult::Failed => now.plus(BACK_OFF_MS),
        };
        self.not_before = not_before;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: EpochMs = EpochMs(1_800_000_000_000);

    #[test]
    fn a_claim_is_made_by_one_request_at_a_time() {
        let mut reset = LimitReset::default();
        assert!(reset.start(NOW));
        assert!(!reset.start(NOW.plus(1_000)), "single flight");
        assert!(reset.start(NOW.plus(CLAIM_LOST_MS)), "a claim that never came back does not wedge it");
    }

    #[test]
    fn each_result_says_when_to_ask_again() {
        let next = NOW.plus(5_000);
        for (result, again) in [
            (ResetResult::AlreadyUsed { next: None }, NOW.plus(USED_MS)),
            (ResetResult::AlreadyUsed { next: Some(next) }, next),
            (ResetResult::NotOffered { next: None }, NOW.plus(BACK_OFF_MS)),
            (ResetResult::NotOffered { next: Some(next) }, next),
            (ResetResult::Failed, NOW.plus(BACK_OFF_MS)),
        ] {
            let mut reset = LimitReset::default();
            assert!(reset.start(NOW) && !reset.finish(&result, NOW));
            assert!(!reset.start(EpochMs(again.0 - 1)), "{result:?}");
            assert!(reset.start(again), "{result:?}");
        }
    }

    #[test]
    fn siblings_take_a_granted_reset_for_theirs_for_a_minute() {
        let mut reset = LimitReset::default();
        assert!(!reset.was_recent(NOW));
        assert!(reset.start(NOW) && reset.finish(&ResetResult::Granted, NOW));
        assert!(reset.was_recent(NOW.plus(59_999)) && !reset.was_recent(NOW.plus(60_000)));
    }

    #[test]
    fn answers_are_read() {
        let offer = br#"{"juniper_tide":{"eligible":true,"arm":"reset","available":true}}"#;
        assert_eq!(read_usage(200, offer), Ok(()));
        assert_eq!(read_usage(500, offer), Err(ResetResult::Failed));
        assert_eq!(read_usage(200, b"{}"), Err(ResetResult::NotOffered { next: None }));
        let used = br#"{"juniper_tide":{"eligible":true,"arm":"reset","available":false,"next_available_at":"2027-01-15T08:00:00Z"}}"#;
        assert_eq!(read_usage(200, used), Err(ResetResult::NotOffered { next: EpochMs::parse("2027-01-15T08:00:00Z") }));
        assert_eq!(read_claim(br#"{"result":"reset"}"#), ResetResult::Granted);
        assert_eq!(read_claim(br#"{"result":"not_limited"}"#), ResetResult::Granted);
        assert_eq!(
            read_claim(br#"{"result":"already_used","next_available_at":1800000060}"#),
            ResetResult::AlreadyUsed { next: Some(NOW.plus(60_000)) }
        );
        assert_eq!(read_claim(b"<html>"), ResetResult::Failed);
    }
}
