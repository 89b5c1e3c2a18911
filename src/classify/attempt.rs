//! The inputs of a classification: one failed attempt and what is known about where it happened.

use serde::{Deserialize, Serialize};

use crate::api::time::EpochMs;

/// How a provider's accounts authenticate; selects the defaults of a profile (spec: resilience 2.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum AuthClass {
    /// Subscription accounts.
    OAuth,
    /// Keys.
    #[default]
    ApiKey,
    /// Self-hosted servers.
    Local,
}

/// Which waits of the upstream a rate limit honours (decisions 1.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum RetryHints {
    /// None.
    None,
    /// Headers, Google RetryInfo and structured JSON fields.
    Typed,
    /// Also the wording of messages.
    All,
}

/// How the transport failed when there was no HTTP answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum TransportError {
    /// Name resolution or TCP connect.
    Connect,
    /// TLS handshake or certificate.
    Tls,
    /// The connection was reset or ended before the answer.
    Reset,
    /// No answer within the deadline.
    Timeout,
    /// A stream ended or broke before its end (after its first content: reason `StreamInterrupted`).
    StreamInterrupted,
    /// No content within the readiness budget.
    StreamNotReady,
    /// A stream that ended well but empty, or a 2xx that failed the quality check.
    Quality,
}

/// What the classifier must know about a provider: capabilities and data, never a name in code (decisions 3.7).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderTraits {
    /// Name of the Provider resource, by which operator rules refer to it.
    pub name: String,
    /// The id by which the catalog and the restatements are looked up: the preset's id; empty without a preset, because
    /// a provider that happens to be called like a vendor is not taken for it (interface 2). Lower case.
    pub catalog_id: String,
    /// Auth class.
    pub auth_class: AuthClass,
    /// Every model has an allowance of its own.
    pub per_model_quota: bool,
    /// The provider passes models of others through: one model without credit says nothing about the account.
    pub passthrough_models: bool,
    /// All models of an account draw on one wallet.
    pub shared_wallet: bool,
    /// Limits count per client address: the whole egress group of a connection rests with it.
    pub egress_bucketed: bool,
    /// An empty but regular end of an answer is valid (decisions 9.9).
    pub empty_stop_is_valid: bool,
    /// The daily reset: IANA zone and hour; `None` = UTC midnight for daily phrases, no guess for tokens-per-day bodies.
    pub quota_reset: Option<QuotaReset>,
    /// Wait for a rate limit that names no time of its own, in milliseconds (`Provider.spec.retryDelay`).
    pub retry_delay_ms: Option<u64>,
}

/// Models that share one allowance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaFamily {
    /// Name of the family.
    pub name: String,
    /// Globs (`*` only) over model names.
    pub models: Vec<String>,
}

/// When a provider's daily allowance starts again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaReset {
    /// IANA time zone name.
    pub time_zone: String,
    /// Hour of the day, 0–23.
    pub hour: u8,
}

/// Backoff numbers of an auth class (spec: resilience 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CooldownProfile {
    /// First cooldown, milliseconds.
    pub base_cooldown_ms: u64,
    /// Cap of the exponent.
    pub max_backoff_steps: u32,
    /// Cap of a scaled cooldown, milliseconds.
    pub max_cooldown_ms: u64,
    /// Which hints are honoured.
    pub retry_hints: RetryHints,
}

impl CooldownProfile {
    /// The defaults of an auth class.
    #[must_use]
    pub const fn of(class: AuthClass) -> Self {
        let (base_cooldown_ms, max_backoff_steps, retry_hints) = match class {
            AuthClass::OAuth => (5_000, 8, RetryHints::Typed),
            AuthClass::ApiKey => (3_000, 5, RetryHints::All),
            AuthClass::Local => (2_000, 3, RetryHints::Typed),
        };
        Self { base_cooldown_ms, max_backoff_steps, max_cooldown_ms: 1_800_000, retry_hints }
    }
}

/// One failed attempt, as it came back.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    /// Where it went.
    pub provider: &'a ProviderTraits,
    /// The model as sent upstream.
    pub model: Option<&'a str>,
    /// HTTP status; for an error inside a 200 that is 200; 0 when there was no answer.
    pub status: u16,
    /// Response headers, names in any case.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body, or the data of the error frame; any bytes.
    pub body: &'a [u8],
    /// How the transport failed, when it did.
    pub transport: Option<TransportError>,
    /// True when the failure belongs to the connection's own proxy: never the provider's fault.
    pub via_proxy: bool,
}

/// What is known about the failing connection and model before this attempt; read from the ledger.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Now.
    pub now: EpochMs,
    /// Backoff level of the connection.
    pub backoff_level: u32,
    /// Auth strikes of the connection so far.
    pub auth_strikes: u32,
    /// Rejections of this model on this connection so far.
    pub request_rejections: u32,
    /// Effective numbers of the connection.
    pub profile: CooldownProfile,
    /// When the access token expires, if it is known.
    pub token_expires: Option<EpochMs>,
    /// The connection's own wait for rate limits (`rateLimits.retryDelay`-like override), milliseconds.
    pub retry_override_ms: Option<u64>,
}

impl ProviderTraits {
    /// True when nothing at all is known about the provider, not even its name: then every text may be read (spec: resilience 7, QS).
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        self.name.is_empty() && self.catalog_id.is_empty()
    }
}

impl History {
    /// No failure before.
    #[must_use]
    pub const fn fresh(now: EpochMs, profile: CooldownProfile) -> Self {
        Self { now, backoff_level: 0, auth_strikes: 0, request_rejections: 0, profile, token_expires: None, retry_override_ms: None }
    }
}
