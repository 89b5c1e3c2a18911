//! The coarse kind of a failure (8.2) and what it means for the account; the breaker's predicate (3.5).

use super::evidence::Evidence::*;
use super::evidence::Seen;
use super::{AuthClass, FailureKind, ProviderTraits, Reason, Scope};

/// 8.1 without the ⁺ signals.
const QUOTA: Seen = Seen::of(&[QuotaPhrase, QuotaCaps]);
/// Phrases that open the quota gate (QS of 7) on a 429 of a provider with keys: one table for gate, detectors and kind (W-33).
const GATE: Seen = Seen::of(&[
    QuotaPhrase,
    QuotaCaps,
    QuotaTerminal,
    Credits,
    CreditsWeak,
    Balance,
    Daily,
    TpdLimit,
    Subscription,
    SubscriptionClaude,
    Weekly,
    Session,
    Rolling24h,
    QuotaText,
    QuotaWords,
]);

/// Whether the text of an answer may be read as a quota (QS).
pub(super) fn gate(provider: &ProviderTraits, status: u16, seen: Seen) -> bool {
    status != 429 || provider.is_unknown() || provider.auth_class == AuthClass::OAuth || seen.any(GATE)
}

/// `classify429`.
pub(super) fn kind(status: u16, seen: Seen, declares_short: impl FnOnce() -> bool) -> FailureKind {
    if status != 429 {
        return FailureKind::Transient;
    }
    if seen.any(Seen::of(&[QuotaTerminal])) {
        return FailureKind::QuotaExhausted;
    }
    if seen.any(QUOTA) && !declares_short() { FailureKind::QuotaExhausted } else { FailureKind::RateLimit }
}

/// Whether a 429 of that kind (`None` = not known) exhausts the whole account.
pub(super) fn exhausts_account(provider: &ProviderTraits, seen: Seen, kind: Option<FailureKind>) -> bool {
    match kind {
        Some(FailureKind::RateLimit | FailureKind::Transient) => false,
        Some(FailureKind::QuotaExhausted) | None => gate(provider, 429, seen) && !provider.per_model_quota,
    }
}

/// Statuses that trip the breaker.
const TRIP: [u16; 5] = [408, 500, 502, 503, 504];

/// What the breaker's predicate looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct BreakerInput {
    /// Status after restatement; `None` = transport failure that counts by itself.
    pub status: Option<u16>,
    /// Evidence.
    pub seen: Seen,
    /// Reason of the verdict.
    pub reason: Reason,
    /// Scope of the verdict.
    pub scope: Scope,
    /// The verdict says never.
    pub skip: bool,
    /// The provider is chatgpt-web.
    pub bridge: bool,
}

/// One predicate for all paths (W-10): only the provider's own failures count, never limits, credentials, overload or the request.
pub(super) fn counts_for_breaker(input: BreakerInput) -> bool {
    let account = matches!(
        input.reason,
        Reason::AuthError
            | Reason::QuotaExhausted
            | Reason::CreditsExhausted
            | Reason::RateLimitExceeded
            | Reason::ConcurrencyLimited
            | Reason::RequestRejected
    );
    let bystander = input.seen.any(Seen::of(&[Overload, ClientAbort, LocalFailure])) || (input.bridge && input.seen.has(BridgeFailure));
    let trips = input.status.is_none_or(|s| TRIP.contains(&s));
    trips && !input.skip && !account && !bystander && input.scope != Scope::Request
}
