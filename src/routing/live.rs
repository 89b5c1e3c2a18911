//! What routing asks about the present: who rests, how busy they are, where a session is pinned. The gateway answers from the ledger.

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;
use crate::classify::Reason;
use crate::resilience::{self, SkipReason};

/// Why a target or connection is not used (routing spec 3.2, 4.2, 5.2).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExclusionReason {
    /// The provider's breaker is open.
    CircuitOpen,
    /// The provider rests (window gate).
    ProviderCooldown,
    /// The connection rests.
    ConnectionCooldown,
    /// The connection is in a terminal state.
    Terminal,
    /// The model rests on this connection.
    ModelLockout,
    /// It failed already in this request.
    RequestExhaustion,
    /// Less of the quota is left than the cutoff.
    QuotaCutoff,
    /// The credential is unhealthy.
    CredentialGate,
    /// The connection has no free slot.
    ConcurrencyCap,
    /// The admission queue refuses.
    AdmissionLane,
    /// The target is too slow on average.
    PredictiveTtft,
    /// Another session owns the connection.
    Leased,
    /// The model cannot do what the request needs.
    CapabilityMismatch,
    /// The context window breaks the rules of the combo.
    ContextRequirements,
    /// The request does not fit into the context window.
    ContextWindow,
    /// The provider does not speak the client's dialect.
    DialectNotSpoken,
    /// The connection does not serve this model.
    ModelNotAllowed,
    /// The client's key does not allow it.
    KeyPolicy,
    /// The request is bound to another connection.
    BoundElsewhere,
    /// There is no usable connection.
    Unavailable,
}

impl ExclusionReason {
    /// The name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::CircuitOpen => "circuit_open",
            Self::ProviderCooldown => "provider_cooldown",
            Self::ConnectionCooldown => "connection_cooldown",
            Self::Terminal => "terminal",
            Self::ModelLockout => "model_lockout",
            Self::RequestExhaustion => "request_exhaustion",
            Self::QuotaCutoff => "quota_cutoff",
            Self::CredentialGate => "credential_gate",
            Self::ConcurrencyCap => "concurrency_cap",
            Self::AdmissionLane => "admission_lane",
            Self::PredictiveTtft => "predictive_ttft",
            Self::Leased => "leased",
            Self::CapabilityMismatch => "capability_mismatch",
            Self::ContextRequirements => "context_requirements",
            Self::ContextWindow => "context_window",
            Self::DialectNotSpoken => "dialect_not_spoken",
            Self::ModelNotAllowed => "model_not_allowed",
            Self::KeyPolicy => "key_policy",
            Self::BoundElsewhere => "bound_elsewhere",
            Self::Unavailable => "unavailable",
        }
    }

    /// True when the exclusion ends by itself (routing spec 4.2), whether or not the end is known.
    #[must_use]
    pub const fn is_timer(self) -> bool {
        matches!(self, Self::CircuitOpen | Self::ProviderCooldown | Self::ConnectionCooldown | Self::ModelLockout | Self::QuotaCutoff)
    }

    /// True when it follows from the configuration and the request alone: no state of the gateway is involved.
    #[must_use]
    pub const fn is_static(self) -> bool {
        matches!(
            self,
            Self::CapabilityMismatch
                | Self::ContextRequirements
                | Self::ContextWindow
                | Self::DialectNotSpoken
                | Self::ModelNotAllowed
                | Self::KeyPolicy
                | Self::BoundElsewhere
                | Self::Unavailable
        )
    }
}

/// The answer to "may this connection take this model now?" when it may not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exclusion {
    /// Why.
    pub reason: ExclusionReason,
    /// When it ends, if that is known.
    pub until: Option<EpochMs>,
    /// The reason of the failure that caused it, if one is known.
    pub cause: Option<Reason>,
    /// True when the upstream, a rule or a reset named the wait: no request may ignore it.
    pub stated: bool,
}

impl Exclusion {
    /// An exclusion without an end.
    #[must_use]
    pub const fn of(reason: ExclusionReason) -> Self {
        Self { reason, until: None, cause: None, stated: false }
    }

    /// Whether waiting for its end may help this request (routing spec 7.1): transient causes only, never quota, credentials or a missing model.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self.reason {
            ExclusionReason::CircuitOpen | ExclusionReason::ProviderCooldown => true,
            ExclusionReason::ConnectionCooldown | ExclusionReason::ModelLockout => self.cause.is_some_and(transient),
            _ => false,
        }
    }

    /// Whether it says that an allowance is used up (routing spec 5.7: an authoritative local quota cutoff).
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.reason == ExclusionReason::QuotaCutoff || matches!(self.cause, Some(Reason::QuotaExhausted | Reason::CreditsExhausted))
    }

    /// Whether it is a rate limit or a used-up quota: the client is told 429 rather than 503.
    #[must_use]
    pub fn is_limit(&self) -> bool {
        self.is_quota() || matches!(self.cause, Some(Reason::RateLimitExceeded | Reason::ConcurrencyLimited))
    }
}

impl From<SkipReason> for ExclusionReason {
    fn from(reason: SkipReason) -> Self {
        match reason {
            SkipReason::CircuitOpen => Self::CircuitOpen,
            SkipReason::ProviderCooldown => Self::ProviderCooldown,
            SkipReason::ConnectionCooldown => Self::ConnectionCooldown,
            SkipReason::ModelLockout => Self::ModelLockout,
            SkipReason::Terminal => Self::Terminal,
            SkipReason::RequestExhaustion => Self::RequestExhaustion,
            SkipReason::QuotaCutoff => Self::QuotaCutoff,
            SkipReason::Unavailable => Self::Unavailable,
            SkipReason::CredentialGate => Self::CredentialGate,
            SkipReason::ConcurrencyCap => Self::ConcurrencyCap,
            SkipReason::AdmissionLane => Self::AdmissionLane,
            SkipReason::PredictiveTtft => Self::PredictiveTtft,
        }
    }
}

impl From<resilience::Exclusion> for Exclusion {
    fn from(exclusion: resilience::Exclusion) -> Self {
        let resilience::Exclusion { reason, until, cause, stated, .. } = exclusion;
        Self { reason: reason.into(), until, cause, stated }
    }
}

/// Reasons that pass by themselves within a request's patience.
#[must_use]
pub const fn transient(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::RateLimitExceeded
            | Reason::ServerError
            | Reason::ModelCapacity
            | Reason::ConcurrencyLimited
            | Reason::ServiceNotRunning
            | Reason::StreamInterrupted
    )
}

/// How busy and how healthy a connection is; everything 0 or `None` when nothing is known.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Load {
    /// Requests in flight.
    pub in_flight: u32,
    /// Backoff level.
    pub backoff_level: u32,
    /// Status of the last failure, while no success came after it.
    pub last_status: Option<u16>,
    /// The provider's breaker is half open.
    pub probing: bool,
}

/// The present, as routing sees it. `connection` is the position in `Snapshot::connections`, `provider` that in `Snapshot::providers`.
pub trait Live {
    /// May this connection take this model now?
    ///
    /// # Errors
    /// The exclusion, when it may not.
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion>;

    /// How busy the connection is.
    fn load(&self, _connection: usize) -> Load {
        Load::default()
    }

    /// The connection of this provider that the request's session is pinned to.
    fn pinned(&self, _provider: usize) -> Option<usize> {
        None
    }
}

/// Nobody rests: what `omniroute plan` assumes without a running gateway.
#[derive(Clone, Copy, Debug, Default)]
pub struct AllWell;

impl Live for AllWell {
    fn check(&self, _connection: usize, _model: &str, _now: EpochMs) -> Result<(), Exclusion> {
        Ok(())
    }
}
