//! Before the text (7.1) and the text detectors (7.2), in the order of the specification. They are stronger than operator rules.

use super::Reason::{
    AuthError, ExecutorContractViolation, InvalidPreviousResponseBinding, NotFound, QuotaExhausted, RateLimitExceeded, ServiceNotRunning,
    Unknown,
};
use super::evidence::Evidence::*;
use super::evidence::Seen;
use super::row::Rest::{Backoff, DailyReset, Fixed, None as NoRest, PeerDeadline, StatedOr};
use super::row::{DAY, HOUR, MINUTE, Only, Row, SECOND, rest, row};
use super::status::Statuses::{AllBut, Any, Of};

/// The rows.
pub static DETECTORS: &[Row] = &[
    row(
        "contract.violation",
        "7.1 row 0",
        Any,
        Seen::of(&[ContractViolation]),
        rest(ExecutorContractViolation, NoRest).stop().no_breaker(),
    ),
    row(
        "contract.response-binding",
        "7.1 row 1",
        Any,
        Seen::of(&[ResponseBinding]),
        rest(InvalidPreviousResponseBinding, NoRest).stop().no_breaker(),
    ),
    row("contract.unknown-response", "decisions 9.12", Of(&[400, 404]), Seen::of(&[UnknownResponse]), rest(NotFound, NoRest).request()),
    row("supervisor.hint", "7.1 row 2", Of(&[503]), Seen::of(&[SupervisorHint]), rest(ServiceNotRunning, Fixed(5 * SECOND)).no_breaker()),
    row("peer.cooldown", "decisions 1.11", Of(&[429, 503]), Seen::of(&[PeerCooldown]), rest(RateLimitExceeded, PeerDeadline).model())
        .only(&[Only::WaitStated]),
    row("detector.account-dead", "7.2 a", Any, Seen::of(&[AccountDead]), rest(AuthError, Fixed(365 * DAY)).dead()),
    row("detector.retired-model", "7.2 b", Of(&[404, 410]), Seen::of(&[Retired]), rest(NotFound, Fixed(DAY)).model().other_model()),
    row("detector.endpoint-moved", "7.2 c", Any, Seen::of(&[Moved]), rest(NotFound, Fixed(DAY)).model().other_model()),
    row("detector.no-longer-works", "7.2 c", Of(&[404, 410]), Seen::of(&[NoLongerWorks]), rest(NotFound, Fixed(DAY)).model().other_model()),
    row("detector.suspended-billing", "7.2 d", Any, Seen::of(&[SuspendedBilling]), rest(QuotaExhausted, Fixed(2 * MINUTE)).credits()),
    row("detector.gemini-per-day", "7.2 e", Of(&[429]), Seen::of(&[GeminiPerDay]), rest(QuotaExhausted, Backoff)).only(&[
        Only::Providers(&["gemini"]),
        Only::ModelKnown,
        Only::GeminiMetric,
    ]),
    row("detector.gemini-per-minute", "7.2 e", Of(&[429]), Seen::of(&[GeminiShort]), rest(RateLimitExceeded, Backoff)).only(&[
        Only::Providers(&["gemini"]),
        Only::ModelKnown,
        Only::GeminiMetric,
    ]),
    row("detector.credits", "7.2 f", Any, Seen::of(&[Credits, Balance]), rest(QuotaExhausted, Fixed(2 * MINUTE)).credits())
        .only(&[Only::MoneyIsFinal]),
    row("detector.credits-of-model", "7.2 f", Any, Seen::of(&[Credits, Balance]), rest(QuotaExhausted, Fixed(2 * MINUTE))),
    row("detector.current-quota", "7.2 f", Any, Seen::of(&[CreditsWeak]), rest(QuotaExhausted, Fixed(2 * MINUTE)).credits())
        .only(&[Only::MoneyIsFinal, Only::NoShortWait]),
    row("detector.current-quota-of-model", "7.2 f", Any, Seen::of(&[CreditsWeak]), rest(QuotaExhausted, Fixed(2 * MINUTE)))
        .only(&[Only::NoShortWait]),
    row("detector.tokens-per-day", "7.4 1", Any, Seen::of(&[TpdLimit]), rest(QuotaExhausted, DailyReset)).gated().only(&[Only::ResetKnown]),
    row("detector.daily", "7.2 g", Any, Seen::of(&[Daily, Tomorrow]), rest(QuotaExhausted, DailyReset)).gated(),
    row("detector.subscription", "7.2 h", Any, Seen::of(&[Subscription]), rest(QuotaExhausted, StatedOr(HOUR)))
        .gated()
        .unless(Seen::of(&[Weekly, Session])),
    row("detector.subscription-claude", "7.2 h", Any, Seen::of(&[SubscriptionClaude]), rest(QuotaExhausted, StatedOr(HOUR)))
        .gated()
        .only(&[Only::Providers(&["claude", "claude-code", "cc"])]),
    row("detector.weekly", "7.2 i", Any, Seen::of(&[Weekly]), rest(QuotaExhausted, StatedOr(DAY))),
    row("detector.session", "7.2 j", Any, Seen::of(&[Session]), rest(QuotaExhausted, StatedOr(5 * HOUR))),
    row("detector.rolling-24h", "7.2 k", Any, Seen::of(&[Rolling24h]), rest(QuotaExhausted, StatedOr(DAY))),
    row(
        "detector.hinted-quota",
        "7.2 l",
        AllBut(&[400, 413, 422]),
        Seen::of(&[QuotaText, QuotaWords, QuotaPhrase, QuotaTerminal, QuotaCaps]),
        rest(QuotaExhausted, Backoff),
    )
    .gated()
    .only(&[Only::WaitStated, Only::NoShortWait]),
    row("detector.route-forbidden", "7.2 m", Of(&[403]), Seen::of(&[RouteForbidden]), rest(Unknown, NoRest).stop()),
];
