//! The compiled configuration of one gateway: what `compile` answers, what the config Secret carries, what a gateway runs.
//!
//! Everything is resolved here: durations are milliseconds, references are names that exist, defaults are merged. Lists are sorted by
//! name, so that the same resources in any order give byte-identical canonical JSON.

mod secret;
mod settings;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use secret::Secret;
pub use settings::*;

use crate::api::time::EpochMs;
use crate::classify::{CooldownProfile, ProviderTraits, Reason, Scope};

/// The schema version that this binary writes; it reads this one and the one before (decisions 10.9).
pub const SCHEMA_VERSION: u32 = 1;

/// One immutable configuration. A gateway runs exactly one at a time.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Schema version of this document.
    pub schema_version: u32,
    /// Settings of the gateway as a whole.
    pub settings: Settings,
    /// Providers by name.
    pub providers: Vec<Provider>,
    /// Connections by name; those without a usable credential are absent.
    pub connections: Vec<Connection>,
    /// Connections that exist but cannot be used (missing credential, invalid), with the reason, so that answers can name them.
    pub unusable_connections: Vec<UnusableConnection>,
    /// Combos by name.
    pub combos: Vec<Combo>,
    /// Operator rules in the order in which they are asked.
    pub rules: Vec<Rule>,
    /// Client keys.
    pub api_keys: Vec<ApiKey>,
    /// Commands by annotation, applied once each (decisions 10.13).
    pub commands: Vec<Command>,
    /// SHA-256 (hex, 16 characters) of what each object contributes, by `Kind/name` (decisions 10.4).
    pub fragments: BTreeMap<String, String>,
}

impl Snapshot {
    /// Canonical JSON: fixed field order, sorted maps and lists, no white space.
    ///
    /// # Errors
    /// Only if a value cannot be represented in JSON, which no field of this type can be.
    pub fn canonical_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(self)
    }

    /// The hash by which a snapshot is known: hex SHA-256 of the canonical JSON.
    ///
    /// # Errors
    /// See [`Self::canonical_json`].
    pub fn hash(&self) -> Result<String, serde_json::Error> {
        Ok(hex(&Sha256::digest(self.canonical_json()?)))
    }

    /// Reads a snapshot.
    ///
    /// # Errors
    /// Says what is wrong: no JSON of this shape, or a schema version that this binary does not read.
    pub fn from_json(json: &[u8]) -> Result<Self, SnapshotError> {
        let snapshot: Self = serde_json::from_slice(json).map_err(SnapshotError::Parse)?;
        if !(SCHEMA_VERSION.saturating_sub(1)..=SCHEMA_VERSION).contains(&snapshot.schema_version) || snapshot.schema_version == 0 {
            return Err(SnapshotError::Version { found: snapshot.schema_version, reads: SCHEMA_VERSION });
        }
        Ok(snapshot)
    }
}

/// Why a snapshot was refused.
#[derive(thiserror::Error, Debug)]
pub enum SnapshotError {
    /// Not a snapshot.
    #[error("reading the snapshot: {0}")]
    Parse(#[source] serde_json::Error),
    /// Written by another version of the product.
    #[error(
        "reading the snapshot: schema version {found} is not supported, this gateway reads {reads} and the one before; upgrade the gateway image"
    )]
    Version {
        /// Version of the document.
        found: u32,
        /// Newest version that this binary reads.
        reads: u32,
    },
}

/// Lower-case hex of bytes.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        out.push(char::from_digit(u32::from(b >> 4), 16).unwrap_or('0'));
        out.push(char::from_digit(u32::from(b & 15), 16).unwrap_or('0'));
        out
    })
}

/// The wire protocols a provider speaks and a client may use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Dialect {
    /// OpenAI chat completions.
    ChatCompletions,
    /// OpenAI responses.
    Responses,
    /// Anthropic messages.
    Messages,
    /// OpenAI embeddings.
    Embeddings,
}

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

/// Models that share one allowance.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct QuotaFamily {
    /// Name of the family.
    pub name: String,
    /// Globs (`*` only) over model names.
    pub models: Vec<String>,
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

/// A named virtual model.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Combo {
    /// Name of the resource.
    pub name: String,
    /// Names that clients may send.
    pub model_names: Vec<String>,
    /// Strategy.
    pub strategy: Strategy,
    /// Declared order; nested combos are references here, the plan expands them.
    pub targets: Vec<Target>,
    /// Bounds of attempts.
    pub attempts: Attempts,
    /// Deadline of one target until the commit, milliseconds; 0 = off.
    pub target_timeout_ms: u64,
    /// Deadline of the request until the commit, milliseconds; 0 = the 10 min ceiling.
    pub total_timeout_ms: u64,
    /// Whether a request may wait for a timer.
    pub cooldown_wait: bool,
    /// Context window rules.
    pub context: ContextRules,
    /// Checks of a 2xx answer.
    pub validate_response: ValidateResponse,
    /// Composite tiers: target names in order of the tiers; empty = declared order.
    pub tier_order: Vec<String>,
    /// Options that only some strategies read.
    pub options: StrategyOptions,
}

/// The twenty strategies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the specification's; docs/reference describes each
pub enum Strategy {
    #[default]
    Priority,
    Weighted,
    RoundRobin,
    ContextRelay,
    FillFirst,
    P2C,
    Random,
    LeastUsed,
    CostOptimized,
    ResetAware,
    ResetWindow,
    Headroom,
    QuotaWeighted,
    StrictRandom,
    Auto,
    Lkgp,
    ContextOptimized,
    CacheOptimized,
    Fusion,
    Pipeline,
}

/// One entry of a combo.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Stable name inside the combo: given, else `PROVIDER/MODEL` or the combo's name, made unique with `#2`.
    pub name: String,
    /// What it is.
    pub kind: TargetKind,
    /// Share in weighted choices; 0 allowed.
    pub weight: u32,
    /// Move past this target only when every failure on it was quota exhaustion.
    pub fallback_only_on_quota_exhaustion: bool,
}

/// A target is a model of a provider or another combo.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum TargetKind {
    /// One model.
    #[serde(rename_all = "camelCase")]
    Model {
        /// Provider name.
        provider: String,
        /// Upstream model id.
        model: String,
        /// Connections that may serve it, by name; empty = all of the provider.
        connections: Vec<String>,
    },
    /// Another combo.
    Combo {
        /// Its name.
        combo: String,
    },
}

/// Bounds of attempts (decisions 9.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Attempts {
    /// Dispatches per request, at most 30.
    pub max: u32,
    /// Dispatches on the same connection; 0 = 1 while anything else is left, otherwise 2.
    pub per_target: u32,
    /// Pause before a retry on the same connection, milliseconds.
    pub retry_delay_ms: u64,
    /// Extra passes over the whole list.
    pub max_set_retries: u32,
    /// Pause between passes, milliseconds.
    pub set_retry_delay_ms: u64,
    /// Longest pause before the next target after 502, 503, 504, milliseconds.
    pub fallback_delay_ms: u64,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { max: 30, per_target: 0, retry_delay_ms: 2_000, max_set_retries: 0, set_retry_delay_ms: 2_000, fallback_delay_ms: 0 }
    }
}

/// Context window rules of a combo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContextRules {
    /// Drop targets with a known smaller window.
    pub min_window: Option<u64>,
    /// Drop targets with a known larger window.
    pub max_window: Option<u64>,
    /// Drop targets whose window is unknown (`unknown: Drop`).
    pub drop_unknown: bool,
    /// Larger windows first.
    pub prefer_large: bool,
}

/// Checks of a 2xx answer (routing spec 5.4).
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ValidateResponse {
    /// Least characters of content.
    pub min_content_length: u64,
    /// Literal texts that must not appear.
    pub forbidden: Vec<String>,
    /// Literal texts that must appear.
    pub required: Vec<String>,
    /// Predicates on the JSON answer.
    pub json: Vec<JsonPredicate>,
}

/// One predicate on a JSON answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JsonPredicate {
    /// Dotted path with optional indexes (`choices[0].message.content`).
    pub path: String,
    /// Condition.
    pub condition: JsonCondition,
    /// Value of `Equals` and `NotEquals`, as JSON text.
    pub value: Option<String>,
}

/// Condition of a [`JsonPredicate`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum JsonCondition {
    Exists,
    NonEmpty,
    Equals,
    NotEquals,
}

/// One operator rule, ready to be matched.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Name of the resource.
    pub name: String,
    /// Providers it applies to, by name; `None` = all.
    pub providers: Option<Vec<String>>,
    /// Statuses; empty = any. Match the original or the restated one.
    pub statuses: Vec<u16>,
    /// Literal, case-insensitive text that must appear.
    pub text: Option<String>,
    /// Literal, case-insensitive text that must not appear.
    pub not_text: Option<String>,
    /// Structured error code, case-insensitive.
    pub code: Option<String>,
    /// Structured error type, case-insensitive.
    pub error_type: Option<String>,
    /// Header name (lower case) and, optionally, its exact value.
    pub header: Option<(String, Option<String>)>,
    /// Transport kind: `Connect`, `Timeout`, `Reset`, `Tls`.
    pub transport: Option<RuleTransport>,
    /// True = count, do not act.
    pub shadow: bool,
    /// True = the provider default of spec 9.5.
    pub catch_all: bool,
    /// What it says.
    pub verdict: RuleVerdict,
}

/// Transport failures that a rule can match.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum RuleTransport {
    Connect,
    Timeout,
    Reset,
    Tls,
}

/// What an operator rule says.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleVerdict {
    /// Reason; `None` = derived from the status (catch-all only).
    pub reason: Option<Reason>,
    /// Scope.
    pub scope: Scope,
    /// Rest, milliseconds; `None` = the engine's own computation.
    pub cooldown_ms: Option<u64>,
    /// True = a longer typed hint of the upstream wins (`AtLeast`).
    pub at_least: bool,
    /// Status to continue with.
    pub restate_status: Option<u16>,
}

/// A client key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Name of the Secret.
    pub name: String,
    /// Hex SHA-256 of the key.
    pub sha256: String,
    /// Scopes it grants.
    pub scopes: Vec<KeyScope>,
    /// Connections it may use; `None` = all, an empty list = none.
    pub allowed_connections: Option<Vec<String>>,
    /// Combos and models (`PROVIDER/MODEL`, globs with `*`) it may ask for; `None` = all.
    pub allowed_models: Option<Vec<String>>,
}

/// What a client key may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum KeyScope {
    /// Send requests.
    Inference,
    /// Own a connection exclusively.
    LeaseExclusive,
    /// Read and clear state on the management port.
    Management,
    /// The operator's own token.
    Internal,
}

/// A command to the running gateway (annotation on a user object).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Command {
    /// Kind of the object.
    pub kind: CommandKind,
    /// Name of the object.
    pub name: String,
    /// What to do.
    pub command: CommandVerb,
    /// The annotation's value; a new value is a new command.
    pub value: String,
    /// When the compiler first saw this value; a pod ignores restored state older than this for the object.
    pub accepted_time: EpochMs,
}

/// Kinds that take commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CommandKind {
    Connection,
    Provider,
}

/// Commands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum CommandVerb {
    /// `omniroute.dev/clear-cooldown`: timers end; terminal states stay.
    ClearCooldown,
    /// `omniroute.dev/reset`: also terminal states, strikes, breaker.
    Reset,
}
