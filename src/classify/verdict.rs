//! What a failed attempt means.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Why an attempt failed (spec: resilience 1.3).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Reason {
    /// The credential or its permissions.
    AuthError,
    /// A quota or allowance is used up.
    QuotaExhausted,
    /// The account has no money.
    CreditsExhausted,
    /// Too many requests in a short time.
    RateLimitExceeded,
    /// The model cannot take this request now, or at all.
    ModelCapacity,
    /// The upstream failed (5xx, timeouts, transport).
    ServerError,
    /// The model or endpoint does not exist.
    NotFound,
    /// Too many requests at the same time.
    ConcurrencyLimited,
    /// The vendor refuses requests of this client for this model (`Request not allowed`).
    RequestRejected,
    /// A supervisor says that the service is not running.
    ServiceNotRunning,
    /// The executor broke its contract; nothing upstream is to blame.
    ExecutorContractViolation,
    /// A response id that belongs to another account.
    InvalidPreviousResponseBinding,
    /// A stream broke after its first content.
    StreamInterrupted,
    /// Nothing known.
    Unknown,
}

impl Reason {
    /// The name of the specification (`quota_exhausted`), also used for metric labels.
    #[must_use]
    pub const fn snake(self) -> &'static str {
        match self {
            Self::AuthError => "auth_error",
            Self::QuotaExhausted => "quota_exhausted",
            Self::CreditsExhausted => "credits_exhausted",
            Self::RateLimitExceeded => "rate_limit_exceeded",
            Self::ModelCapacity => "model_capacity",
            Self::ServerError => "server_error",
            Self::NotFound => "not_found",
            Self::ConcurrencyLimited => "concurrency_limited",
            Self::RequestRejected => "request_rejected",
            Self::ServiceNotRunning => "service_not_running",
            Self::ExecutorContractViolation => "executor_contract_violation",
            Self::InvalidPreviousResponseBinding => "invalid_previous_response_binding",
            Self::StreamInterrupted => "stream_interrupted",
            Self::Unknown => "unknown",
        }
    }

    /// The name shown in status and `/state` (`QuotaExhausted`).
    #[must_use]
    pub const fn pascal(self) -> &'static str {
        match self {
            Self::AuthError => "AuthError",
            Self::QuotaExhausted => "QuotaExhausted",
            Self::CreditsExhausted => "CreditsExhausted",
            Self::RateLimitExceeded => "RateLimitExceeded",
            Self::ModelCapacity => "ModelCapacity",
            Self::ServerError => "ServerError",
            Self::NotFound => "NotFound",
            Self::ConcurrencyLimited => "ConcurrencyLimited",
            Self::RequestRejected => "RequestRejected",
            Self::ServiceNotRunning => "ServiceNotRunning",
            Self::ExecutorContractViolation => "ExecutorContractViolation",
            Self::InvalidPreviousResponseBinding => "InvalidPreviousResponseBinding",
            Self::StreamInterrupted => "StreamInterrupted",
            Self::Unknown => "Unknown",
        }
    }
}

/// How far a verdict reaches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Scope {
    /// Only this request: nothing rests.
    Request,
    /// The model on this connection.
    Model,
    /// The connection.
    Connection,
    /// Every connection of the provider.
    Provider,
}

/// Whether and where the request may go on (decisions 9.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Failover {
    /// The request itself is wrong: nothing else would help.
    Stop,
    /// A limit of this model: another model may take it, a sibling connection would not.
    OtherModel,
    /// Concerns account, provider or transport.
    OtherConnection,
}

/// A state that ends only by an operator or a changed credential.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Terminal {
    /// The vendor closed or suspended the account, or revoked the key.
    Banned,
    /// The credential is no longer accepted.
    Expired,
    /// The account has no money.
    CreditsExhausted,
}

impl Terminal {
    /// `banned`, `expired`, `credits_exhausted`.
    #[must_use]
    pub const fn snake(self) -> &'static str {
        match self {
            Self::Banned => "banned",
            Self::Expired => "expired",
            Self::CreditsExhausted => "credits_exhausted",
        }
    }
}

/// Where a wait comes from (decisions 1.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitSource {
    /// A response header.
    Header,
    /// Google RetryInfo.
    RetryInfo,
    /// A structured JSON field or the wording of the body.
    Body,
    /// An operator rule.
    Rule,
    /// A row of the built-in catalog.
    Catalog,
    /// An operator's override of the wait of rate limits (`retryDelay`).
    Override,
    /// Exponential backoff.
    Scaled,
    /// A fixed value of a detector or status row.
    Fixed,
    /// The provider's declared daily reset.
    DailyReset,
}

impl WaitSource {
    /// The wire name, as in `/state` and status.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::RetryInfo => "retryInfo",
            Self::Body => "body",
            Self::Rule => "rule",
            Self::Catalog => "catalog",
            Self::Override => "override",
            Self::Scaled => "scaled",
            Self::Fixed => "fixed",
            Self::DailyReset => "dailyReset",
        }
    }

    /// True for waits that the upstream stated: they are applied without jitter and never shortened or ignored.
    #[must_use]
    pub const fn stated(self) -> bool {
        matches!(self, Self::Header | Self::RetryInfo | Self::Body)
    }

    /// True for waits that the product computed: jitter is applied to these only (decisions 1.12).
    #[must_use]
    pub const fn computed(self) -> bool {
        matches!(self, Self::Scaled | Self::Fixed)
    }
}

/// What happens to the connection's backoff level.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum LevelChange {
    /// Left as it is.
    #[default]
    Unchanged,
    /// Set to this value (0 after a stated or fixed wait, level + 1 after a scaled one).
    Set(u32),
}

/// The coarse class of a failure that the breaker's `cooldownByKind` knows (spec: resilience 8.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum FailureKind {
    /// A short limit.
    RateLimit,
    /// A used-up allowance.
    QuotaExhausted,
    /// Anything else.
    Transient,
}

/// A repeated failure that is counted before it becomes final or grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Strike {
    /// One auth failure of the connection; the third without a success in between is terminal.
    Auth,
    /// One rejection of this client for this model: counted per connection and model, never terminal.
    RequestRejected,
}

/// The meaning of one failed attempt. Pure data: [`crate::resilience`] turns it into state.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// Why.
    pub reason: Reason,
    /// The fine type of spec: resilience 6.7 (`rate_limited`, `forbidden`, …), where one is known.
    pub error_type: Option<&'static str>,
    /// How far it reaches. With per-model quota the ledger narrows `Connection` to `Model` unless `scope_declared`.
    pub scope: Scope,
    /// True when an operator rule or catalog row declared the scope: it is acted upon as it stands.
    pub scope_declared: bool,
    /// May the request go on, and where.
    pub failover: Failover,
    /// How long the failing thing should rest, in milliseconds before jitter; 0 = no rest.
    pub cooldown_ms: u64,
    /// Where `cooldown_ms` comes from; `None` when it is 0.
    pub wait_source: Option<WaitSource>,
    /// What happens to the backoff level of the connection.
    pub level: LevelChange,
    /// A terminal state to enter.
    pub terminal: Option<Terminal>,
    /// A strike to count.
    pub strike: Option<Strike>,
    /// Never count this failure against the provider breaker.
    pub skip_breaker: bool,
    /// True when this failure counts against the provider breaker (one predicate for all paths).
    pub counts_for_breaker: bool,
    /// The breaker's failure kind.
    pub kind: FailureKind,
    /// The cooldown reaches to the daily reset.
    pub daily_quota: bool,
    /// A quota reset that was seen, in milliseconds from now, also when `retryHints` keep it from the connection cooldown; used by locks.
    pub quota_reset_ms: Option<u64>,
    /// Mistral's ambiguous 401.
    pub ambiguous_auth: bool,
    /// The status to go on with when the original one was wrong: restated, or that of an error inside a 2xx.
    pub restated_status: Option<u16>,
    /// The wait that goes with a restated status when the upstream stated none.
    pub restated_wait_ms: Option<u64>,
    /// The id of the table row or rule that decided (`detector.credits`, `rule.NAME`, `status.429`).
    pub decided_by: Arc<str>,
    /// The operator rule that matched and acted, by name.
    pub rule: Option<Arc<str>>,
    /// Operator rules in Shadow mode that would have matched first, by name.
    pub shadow_rules: Vec<Arc<str>>,
    /// A `cooldownPolicy: Exact` rule or catch-all default: the ledger applies the cooldown without jitter and without changing it.
    pub exact_wait: bool,
}

impl Verdict {
    /// A wait in the middle of applying: `true` if the upstream, a rule or a reset named it, so that no jitter is added.
    #[must_use]
    pub fn wait_is_stated(&self) -> bool {
        self.wait_source.is_some_and(|s| !s.computed())
    }
}
