//! Providers and connections.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{BreakerProfile, Dialect, Secret, WindowGateProfile};
use crate::api::time::EpochMs;
pub use crate::classify::QuotaFamily;
use crate::classify::{CooldownProfile, ProviderTraits};

/// One upstream vendor or gateway.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Provider {
    /// Name of the resource.
    pub name: String,
    /// Where requests go; the path of the dialect is appended. No trailing slash.
    pub base_url: String,
    /// Base URL of the Messages dialect where it differs (anthropic: chat on its OpenAI-compatible endpoint).
    pub base_urls: BTreeMap<Dialect, String>,
    /// How the credential is sent, by dialect where it differs.
    pub auth: UpstreamAuth,
    /// Exceptions of `auth` by dialect.
    pub auth_by_dialect: BTreeMap<Dialect, UpstreamAuth>,
    /// Query string appended to every request (`api-version=…`), without `?`.
    pub query: Option<String>,
    /// Dialects it speaks.
    pub dialects: Vec<Dialect>,
    /// Static headers to add, lower-case names.
    pub headers: BTreeMap<String, String>,
    /// Client headers to forward beyond the fixed list, lower-case names.
    pub forward_headers: Vec<String>,
    /// What the classifier and the ledger know about it.
    pub traits: ProviderTraits,
    /// Quota families: models that share one allowance.
    pub quota_families: Vec<QuotaFamily>,
    /// Known models.
    pub models: Vec<Model>,
    /// Whether models outside `models` may be asked for.
    pub open_model_list: bool,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// How a connection is chosen.
    pub account_strategy: AccountStrategy,
    /// PEM certificates to trust beside the built-in roots.
    pub ca_bundle: Option<String>,
    /// Breaker numbers for this provider.
    pub breaker: BreakerProfile,
    /// Window gate numbers for this provider.
    pub window_gate: WindowGateProfile,
    /// Concurrent requests to the provider over all connections; 0 = no cap.
    pub max_concurrent: u32,
}

/// How a credential is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum UpstreamAuth {
    /// `Authorization: Bearer …`.
    #[default]
    Bearer,
    /// A header of this name (`x-api-key`, `api-key`).
    Header(String),
    /// None at all.
    None,
}

/// A known model.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Model {
    /// Upstream id.
    pub name: String,
    /// Context window in tokens.
    pub context_window: Option<u64>,
    /// Longest output in tokens.
    pub max_output_tokens: Option<u64>,
    /// Features (`Tools`, `Vision`, `Reasoning`, `StructuredOutput`); `None` = unknown, a given list is complete.
    pub features: Option<Vec<Feature>>,
    /// Price in micro-USD per million tokens.
    pub price: Option<Price>,
}

/// What a model can do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Feature {
    /// Tool calls.
    Tools,
    /// Image input.
    Vision,
    /// Reasoning output.
    Reasoning,
    /// JSON schema output.
    StructuredOutput,
}

/// Micro-USD per million tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Price {
    /// Input tokens.
    pub input: u64,
    /// Output tokens.
    pub output: u64,
    /// Input tokens from the vendor's cache.
    pub cached_input: Option<u64>,
}

/// How a connection is chosen inside a provider.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub enum AccountStrategy {
    /// Lowest `priority` that is eligible.
    #[default]
    FillFirst,
    /// In turn.
    RoundRobin,
    /// The better of two random ones.
    P2C,
    /// By `weight`.
    Weighted,
    /// Uniformly random.
    Random,
    /// The one unused for longest.
    LeastUsed,
}

/// Deadlines of a provider, milliseconds; 0 = off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Timeouts {
    /// TCP and TLS.
    pub connect_ms: u64,
    /// Until the answer starts; `None` = 600 s, and for streams the adaptive readiness budget.
    pub response_start_ms: Option<u64>,
    /// Without progress in a stream.
    pub stream_idle_ms: u64,
    /// Without content at the start of a stream once it is ready; `None` = the readiness budget.
    pub stream_content_stall_ms: Option<u64>,
    /// The whole attempt; 0 = off.
    pub total_ms: u64,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect_ms: 10_000, response_start_ms: None, stream_idle_ms: 600_000, stream_content_stall_ms: None, total_ms: 0 }
    }
}

/// One credential of a provider.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Connection {
    /// Name of the resource.
    pub name: String,
    /// Its provider.
    pub provider: String,
    /// The credential; `None` for providers without one.
    pub credential: Option<Secret>,
    /// When an OAuth access token expires.
    pub token_expires: Option<EpochMs>,
    /// The token endpoint will issue no other tokens: the connection is `Expired` (decisions 8.5).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refresh_refused: bool,
    /// Keyed fingerprint of the credential's value as its owner wrote it (decisions 10.6); a change clears terminal state and strikes.
    pub credential_fingerprint: String,
    /// Lower first.
    pub priority: i32,
    /// Share in weighted choices.
    pub weight: u32,
    /// Tags.
    pub tags: Vec<String>,
    /// Concurrent requests; 0 = no cap.
    pub max_concurrent: u32,
    /// Pacing and caps.
    pub rate_limits: RateLimits,
    /// Whether the automatic protection acts (resolved from `rateLimitProtection` and the settings).
    pub rate_limit_protection: bool,
    /// Errors are recorded, nothing time-based rests.
    pub disable_cooling: bool,
    /// HTTP proxy to the upstream.
    pub proxy_url: Option<Secret>,
    /// Connections with the same group share an egress address.
    pub egress_group: Option<String>,
    /// Globs of models that it may serve; empty = all.
    pub models_allow: Vec<String>,
    /// Globs of models that it may not serve.
    pub models_deny: Vec<String>,
    /// Backoff numbers of its auth class after settings and overrides.
    pub cooldown: CooldownProfile,
    /// The Claude usage-wall lane.
    pub claude: ClaudeOptions,
    /// Hosts that its Secret may be sent to; empty = any (decisions 10.19).
    pub allowed_hosts: Vec<String>,
}

impl Default for CooldownProfile {
    fn default() -> Self {
        Self::of(crate::classify::AuthClass::ApiKey)
    }
}

/// Pacing and caps of a connection; `None` = not declared.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RateLimits {
    /// Requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Least time between two dispatches, milliseconds.
    pub min_interval_ms: Option<u64>,
    /// Longest time in the queue, milliseconds.
    pub max_wait_ms: u64,
    /// Longest execution, milliseconds.
    pub execution_max_wait_ms: u64,
    /// Longest queue; 0 = unbounded.
    pub max_queue_depth: u32,
    /// Concurrent requests by exact upstream model id.
    pub model_concurrency: BTreeMap<String, u32>,
    /// This connection's own wait for rate limits without a stated one, milliseconds.
    pub retry_delay_ms: Option<u64>,
}

/// Opt-ins of a Claude subscription connection (spec: resilience 13).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaudeOptions {
    /// Go on in the low-priority lane at the wall.
    pub low_priority_mode: bool,
    /// Use the weekly limit reset at the wall.
    pub auto_limit_reset: bool,
    /// Organization id for the reset.
    pub organization_uuid: Option<String>,
}

/// A connection that is out, and why.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnusableConnection {
    /// Name of the resource.
    pub name: String,
    /// Its provider.
    pub provider: String,
    /// Condition reason (`CredentialMissing`, `SecretNotFound`, …).
    pub reason: String,
}
