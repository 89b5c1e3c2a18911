//! Settings of the gateway as a whole, after environment defaults and `ResilienceSettings`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::classify::{AuthClass, CooldownProfile};

/// Everything that `ResilienceSettings` sets and a running gateway reads.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Settings {
    /// Whether clients need a key.
    pub auth: AuthMode,
    /// Requests in flight over the whole gateway; 0 = no cap.
    pub max_concurrent_requests: u32,
    /// Largest request body, bytes.
    pub max_request_bytes: u64,
    /// All held request and answer bodies together, bytes.
    pub max_buffered_bytes: u64,
    /// How long SIGTERM waits for running requests, milliseconds.
    pub drain_deadline_ms: u64,
    /// Breaker numbers by auth class (providers carry their effective copy).
    pub provider_breaker: ByClass<BreakerProfile>,
    /// Backoff numbers by auth class (connections carry their effective copy).
    pub connection_cooldown: ByClass<CooldownProfile>,
    /// The window gate.
    pub provider_cooldown: ProviderCooldown,
    /// Numbers of the window gate by auth class (providers carry their effective copy).
    pub provider_window: ByClass<WindowGateProfile>,
    /// Model lockout.
    pub model_lockout: ModelLockout,
    /// Queueing.
    pub request_queue: RequestQueue,
    /// Waiting of combos for a timer.
    pub combo_cooldown_wait: CooldownWait,
    /// Waiting of direct models for a timer.
    pub wait_for_cooldown: CooldownWait,
    /// Session pins: lifetime, milliseconds; 0 = off.
    pub session_affinity_ttl_ms: u64,
    /// Exclusive leases: lifetime, milliseconds.
    pub session_lease_ttl_ms: u64,
    /// Weight of the latency term of P2C, 0–20.
    pub p2c_latency_weight: u32,
    /// Round-robin batch of combos without their own.
    pub combo_sticky_round_robin_limit: u32,
    /// A content stall cools the connection.
    pub stream_stall_cooldown: bool,
    /// Stream recovery.
    pub stream_recovery: StreamRecovery,
    /// Emergency fallback `provider/model`, when switched on.
    pub emergency_fallback: Option<String>,
    /// Serialise quota-share requests per connection.
    pub quota_share_concurrency_limit: bool,
    /// Quota preflight.
    pub quota_preflight: QuotaPreflight,
    /// Built-in rows that are switched off, by id.
    pub disabled_builtins: Vec<String>,
    /// Additional account-dead signals.
    pub custom_banned_signals: Vec<String>,
    /// SSE comments to clients while a stream is silent, milliseconds; 0 = off.
    pub heartbeat_ms: u64,
    /// Rotation by status class.
    pub rotation: Rotation,
    /// Where the effective value of each setting comes from: dotted path -> `default`, `env:NAME` or `settings`.
    pub sources: BTreeMap<String, String>,
}

/// One value per auth class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ByClass<T> {
    /// Subscription accounts.
    pub oauth: T,
    /// Keys.
    pub api_key: T,
    /// Self-hosted servers.
    pub local: T,
}

impl<T> ByClass<T> {
    /// The value of a class.
    pub const fn get(&self, class: AuthClass) -> &T {
        match class {
            AuthClass::OAuth => &self.oauth,
            AuthClass::ApiKey => &self.api_key,
            AuthClass::Local => &self.local,
        }
    }
}

impl Default for ByClass<CooldownProfile> {
    fn default() -> Self {
        Self {
            oauth: CooldownProfile::of(AuthClass::OAuth),
            api_key: CooldownProfile::of(AuthClass::ApiKey),
            local: CooldownProfile::of(AuthClass::Local),
        }
    }
}

impl Default for ByClass<BreakerProfile> {
    fn default() -> Self {
        Self {
            oauth: BreakerProfile::of(AuthClass::OAuth),
            api_key: BreakerProfile::of(AuthClass::ApiKey),
            local: BreakerProfile::of(AuthClass::Local),
        }
    }
}

impl Default for ByClass<WindowGateProfile> {
    fn default() -> Self {
        Self {
            oauth: WindowGateProfile::of(AuthClass::OAuth),
            api_key: WindowGateProfile::of(AuthClass::ApiKey),
            local: WindowGateProfile::of(AuthClass::Local),
        }
    }
}

/// Whether clients need a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum AuthMode {
    /// Yes; no key at all means that nobody gets in.
    #[default]
    ApiKey,
    /// No.
    None,
}

/// Numbers of a provider's circuit breaker (spec: resilience 2.2, 3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BreakerProfile {
    /// Failures that show DEGRADED.
    pub degradation_threshold: u32,
    /// Failures that open it.
    pub failure_threshold: u32,
    /// Open window, milliseconds.
    pub reset_timeout_ms: u64,
    /// Cap of the growing open window.
    pub max_backoff_multiplier: u32,
    /// Failed probes before the open window grows.
    pub backoff_escalation_count: u32,
    /// Concurrent probes while half open.
    pub half_open_requests: u32,
    /// Open window after a rate limit, milliseconds; `None` = `reset_timeout_ms`.
    pub rate_limit_cooldown_ms: Option<u64>,
    /// Open window after a used-up quota, milliseconds; `None` = `reset_timeout_ms`.
    pub quota_cooldown_ms: Option<u64>,
}

impl BreakerProfile {
    /// The defaults of an auth class.
    #[must_use]
    pub const fn of(class: AuthClass) -> Self {
        let (degradation_threshold, failure_threshold, reset_timeout_ms, max_backoff_multiplier, backoff_escalation_count) = match class {
            AuthClass::OAuth => (5, 8, 60_000, 8, 2),
            AuthClass::ApiKey => (7, 12, 30_000, 4, 3),
            AuthClass::Local => (2, 2, 15_000, 16, 3),
        };
        Self {
            degradation_threshold,
            failure_threshold,
            reset_timeout_ms,
            max_backoff_multiplier,
            backoff_escalation_count,
            half_open_requests: 1,
            rate_limit_cooldown_ms: None,
            quota_cooldown_ms: None,
        }
    }
}

impl Default for BreakerProfile {
    fn default() -> Self {
        Self::of(AuthClass::ApiKey)
    }
}

/// Numbers of the window gate of a provider (spec: resilience 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WindowGateProfile {
    /// Failures inside the window that make the provider rest.
    pub failure_threshold: u32,
    /// The window, milliseconds.
    pub failure_window_ms: u64,
    /// The rest after the last failure, milliseconds.
    pub cooldown_ms: u64,
}

impl WindowGateProfile {
    /// The defaults of an auth class.
    #[must_use]
    pub const fn of(class: AuthClass) -> Self {
        let (failure_threshold, failure_window_ms, cooldown_ms) = match class {
            AuthClass::OAuth => (10, 900_000, 300_000),
            AuthClass::ApiKey => (15, 1_800_000, 600_000),
            AuthClass::Local => (2, 300_000, 60_000),
        };
        Self { failure_threshold, failure_window_ms, cooldown_ms }
    }
}

impl Default for WindowGateProfile {
    fn default() -> Self {
        Self::of(AuthClass::ApiKey)
    }
}

/// The opt-in window gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProviderCooldown {
    /// Switch.
    pub enabled: bool,
    /// First rest of a provider+connection, milliseconds.
    pub min_retry_cooldown_ms: u64,
    /// Longest rest of a provider+connection, milliseconds.
    pub max_retry_cooldown_ms: u64,
}

impl Default for ProviderCooldown {
    fn default() -> Self {
        Self { enabled: false, min_retry_cooldown_ms: 5_000, max_retry_cooldown_ms: 300_000 }
    }
}

/// Model lockout (spec: resilience 12).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModelLockout {
    /// General switch; providers with per-model quota lock even when it is off.
    pub enabled: bool,
    /// Statuses that lock.
    pub error_codes: Vec<u16>,
    /// First lock, milliseconds.
    pub base_cooldown_ms: u64,
    /// Longest computed lock, milliseconds.
    pub max_cooldown_ms: u64,
    /// Longest lock of a quota that states no reset of its own, milliseconds (decisions 1.5).
    pub quota_max_cooldown_ms: u64,
    /// Cap of the exponent.
    pub max_backoff_steps: u32,
    /// Grow, or stay at the base.
    pub use_exponential_backoff: bool,
    /// Failures within this many milliseconds after a lock grow the next one (decisions 3.4).
    pub escalation_window_ms: u64,
    /// Slow start.
    pub slow_start: SlowStart,
}

impl Default for ModelLockout {
    fn default() -> Self {
        Self {
            enabled: false,
            error_codes: vec![403, 404, 429, 502, 503, 504],
            base_cooldown_ms: 120_000,
            max_cooldown_ms: 1_800_000,
            quota_max_cooldown_ms: 86_400_000,
            max_backoff_steps: 10,
            use_exponential_backoff: true,
            escalation_window_ms: 1_800_000,
            slow_start: SlowStart::default(),
        }
    }
}

/// Slow failures must repeat before the first lock.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlowStart {
    /// Switch.
    pub enabled: bool,
    /// Providers, by name.
    pub providers: Vec<String>,
    /// A failure slower than this counts as slow, milliseconds.
    pub threshold_ms: u64,
    /// Slow failures inside the window before the first step.
    pub failures_before_cooldown: u32,
    /// The window, milliseconds.
    pub observation_window_ms: u64,
    /// Steps, milliseconds.
    pub steps_ms: Vec<u64>,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self {
            enabled: false,
            providers: vec!["nvidia".to_owned()],
            threshold_ms: 120_000,
            failures_before_cooldown: 3,
            observation_window_ms: 600_000,
            steps_ms: vec![300_000, 600_000, 900_000],
        }
    }
}

/// Queueing (spec: resilience 14.3, decisions 5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestQueue {
    /// Automatic protection for API-key providers.
    pub auto_enable_api_key_providers: bool,
    /// Concurrent requests per protected connection.
    pub concurrent_requests: u32,
    /// Longest time in the queue, milliseconds.
    pub max_wait_ms: u64,
    /// Longest execution, milliseconds.
    pub execution_max_wait_ms: u64,
    /// Longest queue per connection; 0 = unbounded.
    pub max_queue_depth: u32,
}

impl Default for RequestQueue {
    fn default() -> Self {
        Self {
            auto_enable_api_key_providers: true,
            concurrent_requests: 0,
            max_wait_ms: 30_000,
            execution_max_wait_ms: 600_000,
            max_queue_depth: 0,
        }
    }
}

/// Waiting for a timer instead of failing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CooldownWait {
    /// Switch.
    pub enabled: bool,
    /// Longest single wait, milliseconds.
    pub max_wait_ms: u64,
    /// Waits per request.
    pub max_attempts: u32,
    /// All waits of a request together, milliseconds.
    pub budget_ms: u64,
}

impl Default for CooldownWait {
    fn default() -> Self {
        Self { enabled: true, max_wait_ms: 90_000, max_attempts: 5, budget_ms: 300_000 }
    }
}

/// Stream recovery (routing spec 10).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamRecovery {
    /// Hold back the start of a stream, and open one that breaks until then again.
    pub enabled: bool,
    /// Continue a text stream that broke later.
    pub continue_mid_stream: bool,
    /// Throughput watchdog.
    pub throughput_watchdog: ThroughputWatchdog,
}

/// Throughput watchdog (routing spec 10.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ThroughputWatchdog {
    /// Switch.
    pub enabled: bool,
    /// Grace at the start, milliseconds.
    pub warmup_ms: u64,
    /// Window, milliseconds.
    pub window_ms: u64,
    /// Least useful bytes per second.
    pub min_bytes_per_second: u64,
    /// Below this many useful bytes in a window nothing is judged, except zero.
    pub min_useful_bytes: u64,
}

impl Default for ThroughputWatchdog {
    fn default() -> Self {
        Self { enabled: false, warmup_ms: 30_000, window_ms: 30_000, min_bytes_per_second: 4, min_useful_bytes: 1 }
    }
}

/// Quota preflight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct QuotaPreflight {
    /// Switch.
    pub enabled: bool,
    /// Percent left below which a connection is not used.
    pub cutoff_percent: u32,
    /// Percent left below which it is reported.
    pub warn_percent: u32,
}

impl Default for QuotaPreflight {
    fn default() -> Self {
        Self { enabled: false, cutoff_percent: 2, warn_percent: 20 }
    }
}

/// Rotation by status class (spec: resilience 5.4; decisions 1.10: thresholds affect cooldowns only, never failover).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rotation {
    /// Master switch: off = no cooldowns for the classes below.
    pub enabled: bool,
    /// Wait for rate limits without a stated one, milliseconds; 0 = engine default.
    pub rate_limit_reset_ms: u64,
    /// 429.
    pub on_429: RotationClass,
    /// 500 and other 5xx.
    pub on_500: RotationClass,
    /// 502.
    pub on_502: RotationClass,
    /// 400 (off by default: a plain 400 is the client's).
    pub on_400: RotationClass,
}

impl Default for Rotation {
    fn default() -> Self {
        let on = RotationClass { enabled: true, threshold: 1, window_ms: 120_000 };
        Self { enabled: true, rate_limit_reset_ms: 0, on_429: on, on_500: on, on_502: on, on_400: RotationClass { enabled: false, ..on } }
    }
}

/// One class of statuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RotationClass {
    /// Cool at all.
    pub enabled: bool,
    /// Failures inside the window before the first cooldown; 1 = at once.
    pub threshold: u32,
    /// The window, milliseconds.
    pub window_ms: u64,
}

/// Options that only some strategies read (interface.md: field names of routing).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StrategyOptions {
    /// Weighted: successes before a new draw.
    pub sticky_weighted_limit: u32,
    /// Round robin: successes before the next target; `None` = the setting.
    pub sticky_round_robin_limit: Option<u32>,
    /// Ignore session pins.
    pub disable_session_stickiness: bool,
    /// Serialise per account.
    pub quota_share: bool,
    /// Round robin and quota share: queue length; 0 = never queue.
    pub queue_depth: u32,
    /// Round robin and quota share: longest wait, milliseconds.
    pub queue_timeout_ms: u64,
    /// Round robin: concurrent requests per target.
    pub concurrency_per_model: u32,
    /// Start the next target after this many milliseconds without an answer; `None` = off.
    pub hedge_delay_ms: Option<u64>,
    /// Skip targets slower than this on average, milliseconds; 0 = off.
    pub predictive_ttft_ms: u64,
    /// Reset-aware: tie band in percent.
    pub reset_aware_tie_band_percent: u32,
    /// Reset-aware: exhaustion guard in percent.
    pub reset_aware_exhaustion_guard_percent: u32,
    /// Quota-weighted: floor in percent.
    pub quota_weighted_floor_percent: u32,
    /// Reset-window: tie band, milliseconds.
    pub reset_window_tie_band_ms: u64,
    /// Depth of nested combos.
    pub max_depth: u32,
    /// Fusion.
    pub fusion: Option<Fusion>,
    /// Context relay.
    pub handoff: Option<Handoff>,
    /// Auto.
    pub auto: Option<Auto>,
}

impl Default for StrategyOptions {
    fn default() -> Self {
        Self {
            sticky_weighted_limit: 1,
            sticky_round_robin_limit: None,
            disable_session_stickiness: false,
            quota_share: false,
            queue_depth: 20,
            queue_timeout_ms: 30_000,
            concurrency_per_model: 3,
            hedge_delay_ms: None,
            predictive_ttft_ms: 0,
            reset_aware_tie_band_percent: 5,
            reset_aware_exhaustion_guard_percent: 10,
            quota_weighted_floor_percent: 1,
            reset_window_tie_band_ms: 60_000,
            max_depth: 3,
            fusion: None,
            handoff: None,
            auto: None,
        }
    }
}

/// Fusion options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Fusion {
    /// `(provider, model)` that writes the final answer; `None` = the first target, or the first that answered.
    pub judge: Option<(String, String)>,
    /// Answers to wait for.
    pub min_panel: u32,
    /// Most panel members.
    pub max_panel: u32,
    /// Grace for the rest, milliseconds.
    pub straggler_grace_ms: u64,
    /// Hard limit, milliseconds.
    pub timeout_ms: u64,
}

impl Default for Fusion {
    fn default() -> Self {
        Self { judge: None, min_panel: 2, max_panel: 40, straggler_grace_ms: 8_000, timeout_ms: 90_000 }
    }
}

/// Context-relay options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handoff {
    /// Share of a quota in percent that must be used before a summary is made.
    pub threshold_percent: u32,
    /// `(provider, model)` that writes the summary; `None` = the model that served.
    pub model: Option<(String, String)>,
    /// Names or presets of the providers whose accounts hand over.
    pub providers: Vec<String>,
    /// Newest messages that the summary is made of.
    pub max_messages: u32,
}

impl Handoff {
    /// Whether the accounts of a provider hand over.
    #[must_use]
    pub fn covers(&self, provider: &str, preset: &str) -> bool {
        self.providers.iter().any(|wanted| wanted == provider || wanted == preset)
    }
}

/// Auto options.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Auto {
    /// `Rules`, `Cost`, `Latency`, `SlaAware`, `Lkgp`.
    pub router_strategy: AutoRouter,
    /// p95 target, milliseconds.
    pub sla_target_p95_ms: u64,
    /// Error rate target, percent.
    pub sla_max_error_rate_percent: u32,
    /// Violations go last.
    pub sla_hard_constraints: bool,
}

/// Router of the auto strategy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum AutoRouter {
    #[default]
    Rules,
    Cost,
    Latency,
    SlaAware,
    Lkgp,
}
