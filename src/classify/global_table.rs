//! After the detectors and the rules: concurrency, auth, text rows, status rows, the remaining statuses (5.6, 7.5).

use super::Reason::{AuthError, ConcurrencyLimited, ModelCapacity, QuotaExhausted, RateLimitExceeded, ServerError, Unknown};
use super::evidence::Evidence::*;
use super::evidence::Seen;
use super::row::Rest::{AuthStrike, Backoff, Base, DailyReset, Fixed, LevelKept, None as NoRest, RejectionStrike, StatedOr};
use super::row::{HOUR, MINUTE, Only, Row, SECOND, rest, row};
use super::status::Statuses::{Any, Of, ServerAnd};

/// Claude's subscriptions.
const CLAUDE: &[&str] = &["claude", "claude-code", "cc"];
/// Whatever status speaks of limits, and not of the request.
const LIMITS: super::status::Statuses = ServerAnd(&[402, 403, 429]);
/// Evidence of a bad key.
const KEY: Seen = Seen::of(&[KeyProblem, TokenProblem, NoCredentials]);
/// No evidence at all is asked for.
const NONE: Seen = Seen::of(&[]);

/// Rows that are more specific than a catch-all default.
pub static SPECIFIC: &[Row] = &[
    row("global.per-day", "interface 5", LIMITS, Seen::of(&[PerDay]), rest(QuotaExhausted, DailyReset))
        .unless(Seen::of(&[TokensPerDay, TpdLimit])),
    row("concurrency.quota", "5.6", Of(&[429]), Seen::of(&[QuotaPhrase, QuotaCaps, QuotaTerminal]), rest(QuotaExhausted, Backoff))
        .only(&[Only::Concurrent]),
    row("concurrency.limit", "5.6", Of(&[429]), Seen::of(&[Concurrency]), rest(ConcurrencyLimited, LevelKept(SECOND)).no_breaker()),
    row("resource.not-found", "6.4 row 1", Of(&[404]), NONE, rest(Unknown, NoRest).request()).only(&[Only::BothResourceAndNotFound]),
    row(
        "auth.model-not-supported",
        "6.7 row 7",
        Of(&[401]),
        Seen::of(&[ModelNotSupported]),
        rest(ModelCapacity, NoRest).request().other_model(),
    ),
    row("auth.unauthorized", "decisions 1.7", Of(&[401]), NONE, rest(AuthError, AuthStrike).strike()),
    row("auth.request-rejected", "5.7", Of(&[403]), Seen::of(&[RequestRejected]), rest(RateLimitExceeded, RejectionStrike).model())
        .only(&[Only::Providers(CLAUDE)]),
    row("auth.fingerprint", "7.2 p", Of(&[403]), Seen::of(&[Fingerprint]), rest(AuthError, NoRest)),
    row("auth.bad-key", "decisions 9.3", Of(&[403]), KEY, rest(AuthError, Backoff).strike()),
    row(
        "auth.model-denied",
        "decisions 9.2",
        Of(&[403]),
        Seen::of(&[ModelNotFoundCode, ModelAccess, ModelPermission]),
        rest(AuthError, Backoff).model().other_model(),
    ),
];

/// The text rows.
pub static TEXT_ROWS: &[Row] = &[
    row("text.request-not-allowed", "7.5 text row 2", Of(&[403]), Seen::of(&[RequestNotAllowed]), rest(AuthError, Backoff))
        .only(&[Only::ApiKey]),
    row(
        "text.request-not-allowed",
        "7.5 text row 2",
        ServerAnd(&[403, 429]),
        Seen::of(&[RequestNotAllowed]),
        rest(RateLimitExceeded, Fixed(5 * SECOND)),
    )
    .gated(),
    row("text.rate-limit", "7.5 text row 4", Any, Seen::of(&[RateLimit]), rest(RateLimitExceeded, Backoff)).gated(),
    row("text.too-many-requests", "7.5 text row 5", Any, Seen::of(&[TooManyRequests]), rest(RateLimitExceeded, Backoff)).gated(),
    row("text.quota", "7.5 text rows 6-12", Any, Seen::of(&[QuotaText]), rest(QuotaExhausted, Backoff)).gated(),
    row("text.capacity", "7.5 text rows 13-15", ServerAnd(&[429]), Seen::of(&[Capacity]), rest(ModelCapacity, Backoff)).gated(),
    row("text.quota-phrase", "8.1, W-33", LIMITS, Seen::of(&[QuotaPhrase, QuotaTerminal, QuotaCaps]), rest(QuotaExhausted, StatedOr(HOUR)))
        .gated()
        .only(&[Only::NoShortWait]),
];

/// The status rows and the remaining statuses. The last row always holds.
pub static STATUS_ROWS: &[Row] = &[
    row("status.402", "7.5 status row 402, 6.2", Of(&[402]), NONE, rest(QuotaExhausted, Fixed(2 * MINUTE)).model())
        .only(&[Only::PerModelQuota]),
    row("status.402", "7.5 status row 402, 6.2", Of(&[402]), NONE, rest(QuotaExhausted, NoRest).credits()),
    row("status.403", "decisions 9.3", Of(&[403]), NONE, rest(AuthError, Backoff)),
    row(
        "status.404",
        "7.5 status row 404",
        Of(&[404]),
        Seen::of(&[ModelNotFoundCode, ModelAccess]),
        rest(Unknown, Fixed(2 * MINUTE)).model().other_model(),
    ),
    row("status.404", "7.5 status row 404", Of(&[404]), NONE, rest(Unknown, Fixed(2 * MINUTE))),
    row("status.413", "7.5 remaining 413", Of(&[413]), NONE, rest(ModelCapacity, Backoff).model().other_model()),
    row("status.429", "7.5 status row 429", Of(&[429]), NONE, rest(RateLimitExceeded, Backoff)),
    row("status.432", "7.5 remaining 432", Of(&[432]), NONE, rest(QuotaExhausted, StatedOr(HOUR))),
    row("status.529", "decisions 3.1", Of(&[529]), NONE, rest(ModelCapacity, Backoff)),
    row("status.400", "7.5, 400 row 6", Of(&[400, 422]), NONE, rest(Unknown, NoRest).stop()),
    row("status.5xx", "7.5 status rows 406, 408, 5xx", Of(&[406, 408, 500, 502, 503, 504]), NONE, rest(ServerError, Backoff)),
    row("status.other", "7.5 remaining, anything else", Any, NONE, rest(Unknown, Base)),
];
