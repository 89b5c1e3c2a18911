//! Why a target may not be used now (spec: routing 5.2), and until when.

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;
use crate::classify::{Reason, Terminal};

/// Reasons for passing over a target before it is tried. The ledger answers the first five, the engine the others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum SkipReason {
    /// The provider's breaker is open, or its probes are running.
    CircuitOpen,
    /// The window gate lets the provider, or this connection of it, rest.
    ProviderCooldown,
    /// The connection rests.
    ConnectionCooldown,
    /// The model rests on this connection.
    ModelLockout,
    /// The connection is banned, expired or out of credit.
    Terminal,
    /// Something in this request ruled it out already.
    RequestExhaustion,
    /// Too little quota is left.
    QuotaCutoff,
    /// No usable connection, or the model is not served.
    Unavailable,
    /// The credential is known to be bad.
    CredentialGate,
    /// The connection has as many requests in flight as it may.
    ConcurrencyCap,
    /// The admission queue refuses.
    AdmissionLane,
    /// It would answer too late.
    PredictiveTtft,
}

impl SkipReason {
    /// The name in answers and plans (`circuit_open`).
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit_open",
            Self::ProviderCooldown => "provider_cooldown",
            Self::ConnectionCooldown => "connection_cooldown",
            Self::ModelLockout => "model_lockout",
            Self::Terminal => "terminal",
            Self::RequestExhaustion => "request_exhaustion",
            Self::QuotaCutoff => "quota_cutoff",
            Self::Unavailable => "unavailable",
            Self::CredentialGate => "credential_gate",
            Self::ConcurrencyCap => "concurrency_cap",
            Self::AdmissionLane => "admission_lane",
            Self::PredictiveTtft => "predictive_ttft",
        }
    }
}

/// One exclusion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exclusion {
    /// Why.
    pub reason: SkipReason,
    /// End of the timer, when it is one.
    pub until: Option<EpochMs>,
    /// What the failure behind it was.
    pub cause: Option<Reason>,
    /// True when upstream, a rule or a reset named the wait: a request must not ignore it, not even its own (decisions 9.1).
    pub stated: bool,
    /// The terminal state, when that is the reason.
    pub terminal: Option<Terminal>,
}

impl Exclusion {
    /// An exclusion without a timer.
    #[must_use]
    pub const fn without_timer(reason: SkipReason) -> Self {
        Self { reason, until: None, cause: None, stated: false, terminal: None }
    }

    /// The one of both that holds back longer; the first of two that end together.
    pub(super) fn longer(self, other: Self) -> Self {
        match (self.until, other.until) {
            (None, _) => self,
            (Some(_), None) => other,
            (Some(mine), Some(others)) if others > mine => other,
            _ => self,
        }
    }

    /// True when time alone ends it.
    #[must_use]
    pub const fn is_timer(&self) -> bool {
        self.until.is_some()
    }

    /// True when a request may wait for it (spec: routing 7.1): timers of limits, overload and failures, not of quotas, credentials or
    /// missing models.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        self.until.is_some()
            && match self.cause {
                None => matches!(self.reason, SkipReason::CircuitOpen | SkipReason::ProviderCooldown),
                Some(cause) => matches!(
                    cause,
                    Reason::RateLimitExceeded
                        | Reason::ModelCapacity
                        | Reason::ServerError
                        | Reason::ConcurrencyLimited
                        | Reason::ServiceNotRunning
                        | Reason::StreamInterrupted
                ),
            }
    }

    /// Milliseconds until the timer ends; `None` without one.
    #[must_use]
    pub fn wait_ms(&self, now: EpochMs) -> Option<u64> {
        self.until.map(|until| until.since(now))
    }
}
