//! `ResilienceSettings`: the gateway of a namespace, and how it deals with failing upstreams.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::common::{ModelRef, RetryHints, rule, yes};
use super::duration::Duration;
use super::gateway::{Gateway, StateStore};
use super::status::SettingsStatus;

/// The gateway of this namespace and how it deals with failing upstreams; an empty spec is a complete, sensible gateway.
#[derive(CustomResource, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "omniroute.dev",
    version = "v1alpha1",
    kind = "ResilienceSettings",
    plural = "resiliencesettings",
    namespaced,
    schema = "disabled"
)]
#[kube(status = "SettingsStatus", category = "omniroute", shortname = "ormset", derive = "PartialEq", derive = "Default")]
#[kube(printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#)]
#[kube(printcolumn = r#"{"name":"Pods","type":"string","jsonPath":".status.gateway.pods"}"#)]
#[kube(printcolumn = r#"{"name":"Snapshot","type":"string","jsonPath":".status.gateway.snapshotHash"}"#)]
#[kube(printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#)]
#[serde(rename_all = "camelCase", default)]
pub struct ResilienceSettingsSpec {
    /// The workload: pods, service, limits, client authentication.
    pub gateway: Gateway,
    /// Where pods share state. Without it: each pod keeps its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_store: Option<StateStore>,
    /// Circuit breaker of a provider, by the auth class of its accounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_breaker: Option<ProviderBreaker>,
    /// Opt-in rest of providers that failed often within a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_cooldown: Option<ProviderCooldown>,
    /// Backoff of a connection, by the auth class of its provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_cooldown: Option<ConnectionCooldowns>,
    /// Rest of one model on one connection.
    pub model_lockout: ModelLockout,
    /// Queueing of protected connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_queue: Option<RequestQueue>,
    /// Waiting of combos for the earliest timer instead of failing.
    pub combo_cooldown_wait: CooldownWait,
    /// Waiting of direct models for the earliest timer instead of failing.
    pub wait_for_cooldown: CooldownWait,
    /// Serialisation of requests of combos with `quotaShare`.
    pub quota_share_concurrency_limit: QuotaShareLimit,
    /// Pins of a session to a connection.
    pub session_affinity: SessionAffinity,
    /// Exclusive ownership of a connection by a session.
    pub session_leases: SessionLeases,
    /// Latency in the choice between two connections.
    pub p2c_latency: P2cLatency,
    /// RoundRobin: successes on a target before the next one, for combos without `stickyRoundRobinLimit`.
    #[schemars(range(min = 0, max = 1000))]
    pub combo_sticky_round_robin_limit: i32,
    /// Whether a stream that stalls before its content lets the connection rest.
    pub stream_stall_cooldown: StreamStallCooldown,
    /// Recovery of broken streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_recovery: Option<StreamRecovery>,
    /// Opt-in model of last resort for direct requests whose quota or money is spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub emergency_fallback: Option<EmergencyFallback>,
    /// Passing over connections whose known quota is nearly spent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota_preflight: Option<QuotaPreflight>,
    /// Cooldowns by class of status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// Built-in rows of the classifier that are switched off, by id (`omniroute explain` shows them).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), inner(length(min = 1, max = 200)), extend("x-kubernetes-list-type" = "set"))]
    pub disabled_builtins: Vec<String>,
    /// Additional literal texts, without regard to case, that mean that an account is closed for good.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(min = 3, max = 500)), extend("x-kubernetes-list-type" = "set"))]
    pub custom_banned_signals: Vec<String>,
}

impl Default for ResilienceSettingsSpec {
    fn default() -> Self {
        Self {
            gateway: Gateway::default(),
            state_store: None,
            provider_breaker: None,
            provider_cooldown: None,
            connection_cooldown: None,
            model_lockout: ModelLockout::default(),
            request_queue: None,
            combo_cooldown_wait: CooldownWait::default(),
            wait_for_cooldown: CooldownWait::default(),
            quota_share_concurrency_limit: QuotaShareLimit::default(),
            session_affinity: SessionAffinity::default(),
            session_leases: SessionLeases::default(),
            p2c_latency: P2cLatency::default(),
            combo_sticky_round_robin_limit: 1,
            stream_stall_cooldown: StreamStallCooldown::default(),
            stream_recovery: None,
            emergency_fallback: None,
            quota_preflight: None,
            rotation: None,
            disabled_builtins: Vec::new(),
            custom_banned_signals: Vec::new(),
        }
    }
}

/// Circuit breaker by auth class.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderBreaker {
    /// Providers with subscription accounts: defaults 5 failures to degrade, 8 to open, reset after 60s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<Breaker>,
    /// Providers with keys: defaults 7 failures to degrade, 12 to open, reset after 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Breaker>,
    /// Self-hosted providers: defaults 2 failures to open, reset after 15s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<Breaker>,
}

/// Numbers of a circuit breaker.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("degradationThreshold", "!has(self.degradationThreshold) || !has(self.failureThreshold) || self.degradationThreshold < self.failureThreshold",
        "must be less than `failureThreshold`"),
]))]
pub struct Breaker {
    /// Failures that open it. Environment `OMNIROUTE_CIRCUIT_BREAKER_{OAUTH,API_KEY,LOCAL}_THRESHOLD`; default 8, 12 and 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub failure_threshold: Option<i32>,
    /// Failures that show it as degraded. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY}_DEGRADATION_THRESHOLD`; default 5, 7 and 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub degradation_threshold: Option<i32>,
    /// How long it stays open. Environment `OMNIROUTE_CIRCUIT_BREAKER_{OAUTH,API_KEY,LOCAL}_RESET_MS`; default 60s, 30s and 15s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub reset_timeout: Option<Duration>,
    /// Cap of the growth of the open time. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY}_MAX_BACKOFF_MULTIPLIER`; default 8, 4 and 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_backoff_multiplier: Option<i32>,
    /// Failed probes before the open time grows. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY}_BACKOFF_ESCALATION_COUNT`; default 2, 3 and 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub backoff_escalation_count: Option<i32>,
    /// Concurrent probes while half open. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub half_open_requests: Option<i32>,
    /// Open time when the last failure was a rate limit. Default: `resetTimeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub rate_limit_cooldown: Option<Duration>,
    /// Open time when the last failure was a spent quota. Default: `resetTimeout`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub quota_cooldown: Option<Duration>,
}

/// The opt-in window gate.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxRetryCooldown", "!has(self.minRetryCooldown) || !has(self.maxRetryCooldown) || duration(self.maxRetryCooldown) >= duration(self.minRetryCooldown)",
        "must be at least `minRetryCooldown`"),
]))]
pub struct ProviderCooldown {
    /// Switch. Environment `PROVIDER_COOLDOWN_ENABLED`, default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// First rest of a provider and connection. Environment `PROVIDER_COOLDOWN_MIN_MS`, default 5s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "1h", "0s"]))]
    pub min_retry_cooldown: Option<Duration>,
    /// Longest rest of a provider and connection. Environment `PROVIDER_COOLDOWN_MAX_MS`, default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub max_retry_cooldown: Option<Duration>,
    /// Providers with subscription accounts: defaults 10 failures within 15m rest for 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<WindowGate>,
    /// Providers with keys: defaults 15 failures within 30m rest for 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<WindowGate>,
    /// Self-hosted providers: defaults 2 failures within 5m rest for 1m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<WindowGate>,
}

/// Numbers of the window gate of an auth class.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WindowGate {
    /// Failures inside the window. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY,LOCAL}_FAILURE_THRESHOLD`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub failure_threshold: Option<i32>,
    /// The window. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY,LOCAL}_FAILURE_WINDOW_MS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub failure_window: Option<Duration>,
    /// The rest after the last failure. Environment `OMNIROUTE_PROVIDER_BREAKER_{OAUTH,API_KEY,LOCAL}_COOLDOWN_MS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub cooldown: Option<Duration>,
}

/// Backoff by auth class.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionCooldowns {
    /// Subscription accounts: defaults 5s, 8 steps, `Typed` hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oauth: Option<ConnectionCooldown>,
    /// Keys: defaults 3s, 5 steps, `All` hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key: Option<ConnectionCooldown>,
    /// Self-hosted servers: defaults 2s, 3 steps, `Typed` hints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<ConnectionCooldown>,
}

/// Backoff numbers of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxCooldown", "!has(self.baseCooldown) || !has(self.maxCooldown) || duration(self.maxCooldown) >= duration(self.baseCooldown)",
        "must be at least `baseCooldown`"),
]))]
pub struct ConnectionCooldown {
    /// First cooldown; it doubles with every step. Default 5s for OAuth, 3s for ApiKey, 2s for Local.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h", "0s"]))]
    pub base_cooldown: Option<Duration>,
    /// Most doublings. Default 8 for OAuth, 5 for ApiKey, 3 for Local.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 32))]
    pub max_backoff_steps: Option<i32>,
    /// Longest computed cooldown. Default 30m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub max_cooldown: Option<Duration>,
    /// Which waits of the upstream a rate limit honours. Default `All` for ApiKey, otherwise `Typed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_hints: Option<RetryHints>,
}

/// Rest of one model on one connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    rule("maxCooldown", "!has(self.baseCooldown) || !has(self.maxCooldown) || duration(self.maxCooldown) >= duration(self.baseCooldown)",
        "must be at least `baseCooldown`"),
]))]
pub struct ModelLockout {
    /// General switch; providers with `perModelQuota` lock models even when it is off.
    pub enabled: bool,
    /// Statuses that lock a model.
    #[schemars(length(max = 64), inner(range(min = 100, max = 599)), extend("x-kubernetes-list-type" = "set"))]
    pub error_codes: Vec<i32>,
    /// First lock; it doubles with every step.
    #[schemars(extend("x-duration" = ["5s", "10m"]))]
    pub base_cooldown: Duration,
    /// Longest computed lock.
    #[schemars(extend("x-duration" = ["5s", "1h"]))]
    pub max_cooldown: Duration,
    /// Longest lock of a quota that states no reset of its own.
    #[schemars(extend("x-duration" = ["5s", "720h"]))]
    pub quota_max_cooldown: Duration,
    /// Most doublings.
    #[schemars(range(min = 0, max = 20))]
    pub max_backoff_steps: i32,
    /// Off = every lock lasts as long as the first.
    pub use_exponential_backoff: bool,
    /// A failure this soon after a lock makes the next one longer.
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub escalation_window: Duration,
    /// Slow failures must repeat before the first lock.
    pub slow_start: SlowStart,
}

impl Default for ModelLockout {
    fn default() -> Self {
        Self {
            enabled: false,
            error_codes: vec![403, 404, 429, 502, 503, 504],
            base_cooldown: "2m".into(),
            max_cooldown: "30m".into(),
            quota_max_cooldown: "24h".into(),
            max_backoff_steps: 10,
            use_exponential_backoff: true,
            escalation_window: "30m".into(),
            slow_start: SlowStart::default(),
        }
    }
}

/// Slow failures must repeat before the first lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SlowStart {
    /// Switch.
    pub enabled: bool,
    /// Providers it applies to, by name.
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub providers: Vec<String>,
    /// A failure that takes longer than this is slow.
    #[schemars(extend("x-duration" = ["1s", "1h"]))]
    pub threshold: Duration,
    /// Slow failures inside the window before the first lock.
    #[schemars(range(min = 1, max = 100))]
    pub failures_before_cooldown: i32,
    /// The window.
    #[schemars(extend("x-duration" = ["10s", "24h"]))]
    pub observation_window: Duration,
    /// Lengths of the first, second and further locks.
    #[schemars(length(min = 1, max = 16))]
    pub steps: Vec<Duration>,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            enabled: false,
            providers: vec!["nvidia".to_owned()],
            threshold: "2m".into(),
            failures_before_cooldown: 3,
            observation_window: "10m".into(),
            steps: vec!["5m".into(), "10m".into(), "15m".into()],
        }
    }
}

/// Queueing of protected connections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RequestQueue {
    /// Protects every connection with a key whose `rateLimitProtection` is `Auto`. Environment `RATE_LIMIT_AUTO_ENABLE`, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_enable_api_key_providers: Option<bool>,
    /// Concurrent requests of a protected connection without `maxConcurrent`; 0 = no cap. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 10_000))]
    pub concurrent_requests: Option<i32>,
    /// Longest time in the queue. Environment `RATE_LIMIT_MAX_WAIT_MS`, default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub max_wait: Option<Duration>,
    /// Longest execution. Environment `RATE_LIMIT_EXECUTION_MAX_WAIT_MS`, default 10m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h"]))]
    pub execution_max_wait: Option<Duration>,
    /// Longest queue per connection; 0 = unbounded. Environment `RATE_LIMIT_MAX_QUEUE_DEPTH`, default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100_000))]
    pub max_queue_depth: Option<i32>,
}

/// Waiting for the earliest timer instead of failing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CooldownWait {
    /// Switch.
    pub enabled: bool,
    /// Longest single wait; `0s` = never wait.
    #[schemars(extend("x-duration" = ["1s", "5m", "0s"]))]
    pub max_wait: Duration,
    /// Waits per request; 0 = never wait.
    #[schemars(range(min = 0, max = 10))]
    pub max_attempts: i32,
    /// All waits of a request together.
    #[schemars(extend("x-duration" = ["1s", "5m", "0s"]))]
    pub budget: Duration,
}

impl Default for CooldownWait {
    fn default() -> Self {
        Self { enabled: true, max_wait: "90s".into(), max_attempts: 5, budget: "5m".into() }
    }
}

/// Serialisation of requests of combos with `quotaShare`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaShareLimit {
    /// Holds requests of a connection to its `maxConcurrent`.
    #[serde(default = "yes")]
    pub enabled: bool,
}

impl Default for QuotaShareLimit {
    fn default() -> Self {
        Self { enabled: true }
    }
}

/// Pins of a session to a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinity {
    /// How long a pin lasts after its last use; `0s` = off.
    #[schemars(extend("x-duration" = ["1ms", "720h", "0s"]))]
    pub ttl: Duration,
}

impl Default for SessionAffinity {
    fn default() -> Self {
        Self { ttl: "0s".into() }
    }
}

/// Exclusive ownership of a connection by a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionLeases {
    /// How long a lease lasts after its last renewal.
    #[schemars(extend("x-duration" = ["1s", "30m"]))]
    pub ttl: Duration,
}

impl Default for SessionLeases {
    fn default() -> Self {
        Self { ttl: "2m".into() }
    }
}

/// Latency in the choice between two connections.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct P2cLatency {
    /// Weight of latency and error rate; 0 = not regarded.
    #[schemars(range(min = 0, max = 20))]
    pub weight: i32,
}

/// Whether a stream that stalls before its content lets the connection rest.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamStallCooldown {
    /// Switch.
    pub enabled: bool,
}

/// Recovery of broken streams. The provider bills every request that is sent again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StreamRecovery {
    /// Holds back the first 750 ms or 64 KiB of a stream, and opens a stream that breaks until then again, at the same account and up to four times.
    /// Environment `STREAM_RECOVERY_ENABLED`, default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Continues a Chat Completions text that broke later, up to four times: the same account is asked to go on behind what the client has. Environment
    /// `STREAM_RECOVERY_MIDSTREAM_ENABLED`, default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub continue_mid_stream: Option<bool>,
    /// Gives up streams that are too slow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_watchdog: Option<ThroughputWatchdog>,
}

/// Gives up streams that are too slow.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ThroughputWatchdog {
    /// Switch. Environment `STREAM_THROUGHPUT_WATCHDOG_ENABLED`, default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Grace at the start. Environment `STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS`, default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "10m", "0s"]))]
    pub warmup: Option<Duration>,
    /// Window. Environment `STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS`, default 30s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "10m"]))]
    pub window: Option<Duration>,
    /// Least useful bytes per second. Environment `STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND`, default 4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_bytes_per_second: Option<i32>,
    /// A window with fewer useful bytes than this is only judged when it has none. Environment `STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES`, default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub min_useful_bytes: Option<i32>,
}

/// Opt-in model of last resort.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("target", "!has(self.enabled) || !self.enabled || has(self.target)", "must name `provider` and `model` when `enabled` is true"),
]))]
pub struct EmergencyFallback {
    /// Switch; needs a `target`. Default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The model of last resort. Without it: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<ModelRef>,
}

/// Passing over connections whose known quota is nearly spent.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("warnPercent", "!has(self.warnPercent) || !has(self.cutoffPercent) || self.warnPercent > self.cutoffPercent", "must be greater than `cutoffPercent`"),
]))]
pub struct QuotaPreflight {
    /// Switch. Environment `QUOTA_PREFLIGHT_CUTOFF_ENABLED`, default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Percent left below which a connection is not used. Default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 99))]
    pub cutoff_percent: Option<i32>,
    /// Percent left below which it is reported. Default 20.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 99))]
    pub warn_percent: Option<i32>,
}

/// Cooldowns by class of status; they never keep a request from going on elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rotation {
    /// Off = none of the classes below cools a connection. Environment `OMNIROUTE_ROTATION_ENABLED`, default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Wait for rate limits without a stated one; `0s` = backoff. Environment `OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS`, default 0s.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1ms", "24h", "0s"]))]
    pub rate_limit_reset: Option<Duration>,
    /// Answers 429: environment `OMNIROUTE_ROTATE_ON_429`, `OMNIROUTE_ROTATE_429_…`; on by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on429: Option<RotationClass>,
    /// Answers 500 and other 5xx: environment `OMNIROUTE_ROTATE_ON_500`, `OMNIROUTE_ROTATE_500_…`; on by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on500: Option<RotationClass>,
    /// Answers 502: environment `OMNIROUTE_ROTATE_ON_502`, `OMNIROUTE_ROTATE_502_…`; on by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on502: Option<RotationClass>,
    /// Answers 400: environment `OMNIROUTE_ROTATE_ON_400`, `OMNIROUTE_ROTATE_400_…`; off by default, because a plain 400 is the client's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on400: Option<RotationClass>,
}

/// One class of statuses.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RotationClass {
    /// Whether it cools a connection. Environment `OMNIROUTE_ROTATE_ON_…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Failures inside the window before the first cooldown. Environment `OMNIROUTE_ROTATE_…_THRESHOLD`, default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub threshold: Option<i32>,
    /// The window. Environment `OMNIROUTE_ROTATE_…_WINDOW_SECONDS`, default 2m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-duration" = ["1s", "24h"]))]
    pub window: Option<Duration>,
}
