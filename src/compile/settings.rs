//! Every setting of the gateway: its path in `ResilienceSettings.spec`, the environment variable that is its default, and the place in the
//! snapshot that it fills. One table feeds the compiler, `GET /api/resilience` and the reference page of variables.

use serde_json::Value;

use super::environment::Environment;
use crate::api::ResilienceSettingsSpec;
use crate::api::near::suggest;
use crate::api::time::parse_duration;
use crate::classify::{self, RetryHints};
use crate::snapshot::{AuthMode, Settings};

/// Where a setting goes, and so how its value is read.
pub enum Slot<'a> {
    /// Gateway API duration, stored as milliseconds.
    Ms(&'a mut u64),
    /// Gateway API duration, stored as milliseconds; absent stays absent.
    OptionMs(&'a mut Option<u64>),
    /// Signed integer in the API, not negative here.
    U32(&'a mut u32),
    /// Likewise.
    U64(&'a mut u64),
    /// Switch.
    Bool(&'a mut bool),
    /// `None`, `Typed` or `All`.
    Hints(&'a mut RetryHints),
    /// `ApiKey` or `None`.
    Auth(&'a mut AuthMode),
    /// List of statuses.
    Statuses(&'a mut Vec<u16>),
    /// List of texts.
    Texts(&'a mut Vec<String>),
    /// List of durations.
    Steps(&'a mut Vec<u64>),
}

/// How the value of an environment variable is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Milliseconds.
    Ms,
    /// Seconds.
    Seconds,
    /// A plain number or switch.
    Plain,
}

/// One setting.
pub struct Row {
    /// Dotted path below `spec`.
    pub path: &'static str,
    /// Environment variable that is its default.
    pub env: Option<(&'static str, Unit)>,
    /// The place in the snapshot.
    pub slot: fn(&mut Settings) -> Slot<'_>,
}

macro_rules! rows {
    ($($path:literal $(($env:literal, $unit:ident))? => $slot:ident($($field:tt)+);)+) => {
        &[$(Row { path: $path, env: rows!(@env $(($env, $unit))?), slot: |s| Slot::$slot(&mut s.$($field)+) }),+]
    };
    (@env) => { None };
    (@env ($env:literal, $unit:ident)) => { Some(($env, Unit::$unit)) };
}

/// The table.
pub const ROWS: &[Row] = rows! {
    "gateway.auth.mode" => Auth(auth);
    "gateway.maxConcurrentRequests" => U32(max_concurrent_requests);
    "gateway.maxRequestBytes" => U64(max_request_bytes);
    "gateway.maxBufferedBytes" => U64(max_buffered_bytes);
    "gateway.drain.deadline" => Ms(drain_deadline_ms);
    "gateway.heartbeat" => Ms(heartbeat_ms);

    "providerBreaker.oauth.failureThreshold" ("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_THRESHOLD", Plain) => U32(provider_breaker.oauth.failure_threshold);
    "providerBreaker.oauth.degradationThreshold" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_DEGRADATION_THRESHOLD", Plain) => U32(provider_breaker.oauth.degradation_threshold);
    "providerBreaker.oauth.resetTimeout" ("OMNIROUTE_CIRCUIT_BREAKER_OAUTH_RESET_MS", Ms) => Ms(provider_breaker.oauth.reset_timeout_ms);
    "providerBreaker.oauth.maxBackoffMultiplier" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_MAX_BACKOFF_MULTIPLIER", Plain) => U32(provider_breaker.oauth.max_backoff_multiplier);
    "providerBreaker.oauth.backoffEscalationCount" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_BACKOFF_ESCALATION_COUNT", Plain) => U32(provider_breaker.oauth.backoff_escalation_count);
    "providerBreaker.oauth.halfOpenRequests" => U32(provider_breaker.oauth.half_open_requests);
    "providerBreaker.oauth.rateLimitCooldown" => OptionMs(provider_breaker.oauth.rate_limit_cooldown_ms);
    "providerBreaker.oauth.quotaCooldown" => OptionMs(provider_breaker.oauth.quota_cooldown_ms);
    "providerBreaker.apiKey.failureThreshold" ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_THRESHOLD", Plain) => U32(provider_breaker.api_key.failure_threshold);
    "providerBreaker.apiKey.degradationThreshold" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_DEGRADATION_THRESHOLD", Plain) => U32(provider_breaker.api_key.degradation_threshold);
    "providerBreaker.apiKey.resetTimeout" ("OMNIROUTE_CIRCUIT_BREAKER_API_KEY_RESET_MS", Ms) => Ms(provider_breaker.api_key.reset_timeout_ms);
    "providerBreaker.apiKey.maxBackoffMultiplier" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_MAX_BACKOFF_MULTIPLIER", Plain) => U32(provider_breaker.api_key.max_backoff_multiplier);
    "providerBreaker.apiKey.backoffEscalationCount" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_BACKOFF_ESCALATION_COUNT", Plain) => U32(provider_breaker.api_key.backoff_escalation_count);
    "providerBreaker.apiKey.halfOpenRequests" => U32(provider_breaker.api_key.half_open_requests);
    "providerBreaker.apiKey.rateLimitCooldown" => OptionMs(provider_breaker.api_key.rate_limit_cooldown_ms);
    "providerBreaker.apiKey.quotaCooldown" => OptionMs(provider_breaker.api_key.quota_cooldown_ms);
    "providerBreaker.local.failureThreshold" ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_THRESHOLD", Plain) => U32(provider_breaker.local.failure_threshold);
    "providerBreaker.local.degradationThreshold" => U32(provider_breaker.local.degradation_threshold);
    "providerBreaker.local.resetTimeout" ("OMNIROUTE_CIRCUIT_BREAKER_LOCAL_RESET_MS", Ms) => Ms(provider_breaker.local.reset_timeout_ms);
    "providerBreaker.local.maxBackoffMultiplier" => U32(provider_breaker.local.max_backoff_multiplier);
    "providerBreaker.local.backoffEscalationCount" => U32(provider_breaker.local.backoff_escalation_count);
    "providerBreaker.local.halfOpenRequests" => U32(provider_breaker.local.half_open_requests);
    "providerBreaker.local.rateLimitCooldown" => OptionMs(provider_breaker.local.rate_limit_cooldown_ms);
    "providerBreaker.local.quotaCooldown" => OptionMs(provider_breaker.local.quota_cooldown_ms);

    "connectionCooldown.oauth.baseCooldown" => Ms(connection_cooldown.oauth.base_cooldown_ms);
    "connectionCooldown.oauth.maxBackoffSteps" => U32(connection_cooldown.oauth.max_backoff_steps);
    "connectionCooldown.oauth.maxCooldown" => Ms(connection_cooldown.oauth.max_cooldown_ms);
    "connectionCooldown.oauth.retryHints" => Hints(connection_cooldown.oauth.retry_hints);
    "connectionCooldown.apiKey.baseCooldown" => Ms(connection_cooldown.api_key.base_cooldown_ms);
    "connectionCooldown.apiKey.maxBackoffSteps" => U32(connection_cooldown.api_key.max_backoff_steps);
    "connectionCooldown.apiKey.maxCooldown" => Ms(connection_cooldown.api_key.max_cooldown_ms);
    "connectionCooldown.apiKey.retryHints" => Hints(connection_cooldown.api_key.retry_hints);
    "connectionCooldown.local.baseCooldown" => Ms(connection_cooldown.local.base_cooldown_ms);
    "connectionCooldown.local.maxBackoffSteps" => U32(connection_cooldown.local.max_backoff_steps);
    "connectionCooldown.local.maxCooldown" => Ms(connection_cooldown.local.max_cooldown_ms);
    "connectionCooldown.local.retryHints" => Hints(connection_cooldown.local.retry_hints);

    "providerCooldown.enabled" ("PROVIDER_COOLDOWN_ENABLED", Plain) => Bool(provider_cooldown.enabled);
    "providerCooldown.minRetryCooldown" ("PROVIDER_COOLDOWN_MIN_MS", Ms) => Ms(provider_cooldown.min_retry_cooldown_ms);
    "providerCooldown.maxRetryCooldown" ("PROVIDER_COOLDOWN_MAX_MS", Ms) => Ms(provider_cooldown.max_retry_cooldown_ms);
    "providerCooldown.oauth.failureThreshold" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_FAILURE_THRESHOLD", Plain) => U32(provider_window.oauth.failure_threshold);
    "providerCooldown.oauth.failureWindow" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_FAILURE_WINDOW_MS", Ms) => Ms(provider_window.oauth.failure_window_ms);
    "providerCooldown.oauth.cooldown" ("OMNIROUTE_PROVIDER_BREAKER_OAUTH_COOLDOWN_MS", Ms) => Ms(provider_window.oauth.cooldown_ms);
    "providerCooldown.apiKey.failureThreshold" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_THRESHOLD", Plain) => U32(provider_window.api_key.failure_threshold);
    "providerCooldown.apiKey.failureWindow" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_FAILURE_WINDOW_MS", Ms) => Ms(provider_window.api_key.failure_window_ms);
    "providerCooldown.apiKey.cooldown" ("OMNIROUTE_PROVIDER_BREAKER_API_KEY_COOLDOWN_MS", Ms) => Ms(provider_window.api_key.cooldown_ms);
    "providerCooldown.local.failureThreshold" ("OMNIROUTE_PROVIDER_BREAKER_LOCAL_FAILURE_THRESHOLD", Plain) => U32(provider_window.local.failure_threshold);
    "providerCooldown.local.failureWindow" ("OMNIROUTE_PROVIDER_BREAKER_LOCAL_FAILURE_WINDOW_MS", Ms) => Ms(provider_window.local.failure_window_ms);
    "providerCooldown.local.cooldown" ("OMNIROUTE_PROVIDER_BREAKER_LOCAL_COOLDOWN_MS", Ms) => Ms(provider_window.local.cooldown_ms);

    "modelLockout.enabled" => Bool(model_lockout.enabled);
    "modelLockout.errorCodes" => Statuses(model_lockout.error_codes);
    "modelLockout.baseCooldown" => Ms(model_lockout.base_cooldown_ms);
    "modelLockout.maxCooldown" => Ms(model_lockout.max_cooldown_ms);
    "modelLockout.quotaMaxCooldown" => Ms(model_lockout.quota_max_cooldown_ms);
    "modelLockout.maxBackoffSteps" => U32(model_lockout.max_backoff_steps);
    "modelLockout.useExponentialBackoff" => Bool(model_lockout.use_exponential_backoff);
    "modelLockout.escalationWindow" => Ms(model_lockout.escalation_window_ms);
    "modelLockout.slowStart.enabled" => Bool(model_lockout.slow_start.enabled);
    "modelLockout.slowStart.providers" => Texts(model_lockout.slow_start.providers);
    "modelLockout.slowStart.threshold" => Ms(model_lockout.slow_start.threshold_ms);
    "modelLockout.slowStart.failuresBeforeCooldown" => U32(model_lockout.slow_start.failures_before_cooldown);
    "modelLockout.slowStart.observationWindow" => Ms(model_lockout.slow_start.observation_window_ms);
    "modelLockout.slowStart.steps" => Steps(model_lockout.slow_start.steps_ms);

    "requestQueue.autoEnableApiKeyProviders" ("RATE_LIMIT_AUTO_ENABLE", Plain) => Bool(request_queue.auto_enable_api_key_providers);
    "requestQueue.concurrentRequests" => U32(request_queue.concurrent_requests);
    "requestQueue.maxWait" ("RATE_LIMIT_MAX_WAIT_MS", Ms) => Ms(request_queue.max_wait_ms);
    "requestQueue.executionMaxWait" ("RATE_LIMIT_EXECUTION_MAX_WAIT_MS", Ms) => Ms(request_queue.execution_max_wait_ms);
    "requestQueue.maxQueueDepth" ("RATE_LIMIT_MAX_QUEUE_DEPTH", Plain) => U32(request_queue.max_queue_depth);

    "comboCooldownWait.enabled" => Bool(combo_cooldown_wait.enabled);
    "comboCooldownWait.maxWait" => Ms(combo_cooldown_wait.max_wait_ms);
    "comboCooldownWait.maxAttempts" => U32(combo_cooldown_wait.max_attempts);
    "comboCooldownWait.budget" => Ms(combo_cooldown_wait.budget_ms);
    "waitForCooldown.enabled" => Bool(wait_for_cooldown.enabled);
    "waitForCooldown.maxWait" => Ms(wait_for_cooldown.max_wait_ms);
    "waitForCooldown.maxAttempts" => U32(wait_for_cooldown.max_attempts);
    "waitForCooldown.budget" => Ms(wait_for_cooldown.budget_ms);

    "sessionAffinity.ttl" => Ms(session_affinity_ttl_ms);
    "sessionLeases.ttl" => Ms(session_lease_ttl_ms);
    "p2cLatency.weight" => U32(p2c_latency_weight);
    "comboStickyRoundRobinLimit" => U32(combo_sticky_round_robin_limit);
    "streamStallCooldown.enabled" => Bool(stream_stall_cooldown);
    "streamRecovery.enabled" ("STREAM_RECOVERY_ENABLED", Plain) => Bool(stream_recovery.enabled);
    "streamRecovery.continueMidStream" ("STREAM_RECOVERY_MIDSTREAM_ENABLED", Plain) => Bool(stream_recovery.continue_mid_stream);
    "streamRecovery.throughputWatchdog.enabled" ("STREAM_THROUGHPUT_WATCHDOG_ENABLED", Plain) => Bool(stream_recovery.throughput_watchdog.enabled);
    "streamRecovery.throughputWatchdog.warmup" ("STREAM_THROUGHPUT_WATCHDOG_WARMUP_MS", Ms) => Ms(stream_recovery.throughput_watchdog.warmup_ms);
    "streamRecovery.throughputWatchdog.window" ("STREAM_THROUGHPUT_WATCHDOG_WINDOW_MS", Ms) => Ms(stream_recovery.throughput_watchdog.window_ms);
    "streamRecovery.throughputWatchdog.minBytesPerSecond" ("STREAM_THROUGHPUT_WATCHDOG_MIN_BYTES_PER_SECOND", Plain) => U64(stream_recovery.throughput_watchdog.min_bytes_per_second);
    "streamRecovery.throughputWatchdog.minUsefulBytes" ("STREAM_THROUGHPUT_WATCHDOG_MIN_USEFUL_BYTES", Plain) => U64(stream_recovery.throughput_watchdog.min_useful_bytes);
    "quotaShareConcurrencyLimit.enabled" => Bool(quota_share_concurrency_limit);
    "quotaPreflight.enabled" ("QUOTA_PREFLIGHT_CUTOFF_ENABLED", Plain) => Bool(quota_preflight.enabled);
    "quotaPreflight.cutoffPercent" => U32(quota_preflight.cutoff_percent);
    "quotaPreflight.warnPercent" => U32(quota_preflight.warn_percent);
    "disabledBuiltins" => Texts(disabled_builtins);
    "customBannedSignals" => Texts(custom_banned_signals);

    "rotation.enabled" ("OMNIROUTE_ROTATION_ENABLED", Plain) => Bool(rotation.enabled);
    "rotation.rateLimitReset" ("OMNIROUTE_ROTATION_RATE_LIMIT_RESET_SECONDS", Seconds) => Ms(rotation.rate_limit_reset_ms);
    "rotation.on429.enabled" ("OMNIROUTE_ROTATE_ON_429", Plain) => Bool(rotation.on_429.enabled);
    "rotation.on429.threshold" ("OMNIROUTE_ROTATE_429_THRESHOLD", Plain) => U32(rotation.on_429.threshold);
    "rotation.on429.window" ("OMNIROUTE_ROTATE_429_WINDOW_SECONDS", Seconds) => Ms(rotation.on_429.window_ms);
    "rotation.on500.enabled" ("OMNIROUTE_ROTATE_ON_500", Plain) => Bool(rotation.on_500.enabled);
    "rotation.on500.threshold" ("OMNIROUTE_ROTATE_500_THRESHOLD", Plain) => U32(rotation.on_500.threshold);
    "rotation.on500.window" ("OMNIROUTE_ROTATE_500_WINDOW_SECONDS", Seconds) => Ms(rotation.on_500.window_ms);
    "rotation.on502.enabled" ("OMNIROUTE_ROTATE_ON_502", Plain) => Bool(rotation.on_502.enabled);
    "rotation.on502.threshold" ("OMNIROUTE_ROTATE_502_THRESHOLD", Plain) => U32(rotation.on_502.threshold);
    "rotation.on502.window" ("OMNIROUTE_ROTATE_502_WINDOW_SECONDS", Seconds) => Ms(rotation.on_502.window_ms);
    "rotation.on400.enabled" ("OMNIROUTE_ROTATE_ON_400", Plain) => Bool(rotation.on_400.enabled);
    "rotation.on400.threshold" ("OMNIROUTE_ROTATE_400_THRESHOLD", Plain) => U32(rotation.on_400.threshold);
    "rotation.on400.window" ("OMNIROUTE_ROTATE_400_WINDOW_SECONDS", Seconds) => Ms(rotation.on_400.window_ms);
};

/// Defaults, then environment, then the spec (as JSON, only fields that are set). The source of each value is kept in `sources`.
/// Answers `(path, message)` of each value that cannot be used beside them; such a value keeps its default.
pub fn settings(spec: &Value, environment: &Environment) -> (Settings, Vec<(String, String)>) {
    let mut settings = defaults();
    let mut problems = Vec::new();
    // Fields with a default in the schema are always there: only a value that differs was chosen by somebody.
    let unset = serde_json::to_value(ResilienceSettingsSpec::default()).unwrap_or_default();
    let at = |spec: &Value, path: &str| path.split('.').try_fold(spec, |v, key| v.get(key)).filter(|v| !v.is_null()).cloned();
    for row in ROWS {
        let mut source = "default".to_owned();
        if let Some((name, unit)) = row.env
            && from_environment(environment, name, unit, (row.slot)(&mut settings))
        {
            source = format!("env:{name}");
        }
        if let Some(value) = at(spec, row.path) {
            match from_spec(&value, (row.slot)(&mut settings)) {
                Ok(()) if at(&unset, row.path).as_ref() == Some(&value) => {}
                Ok(()) => "settings".clone_into(&mut source),
                Err(message) => problems.push((format!("spec.{}", row.path), message)),
            }
        }
        settings.sources.insert(row.path.to_owned(), source);
    }
    problems.extend(unknown_builtins(&settings.disabled_builtins));
    settings.emergency_fallback = emergency_fallback(spec);
    let source = if settings.emergency_fallback.is_some() { "settings" } else { "default" };
    settings.sources.insert("emergencyFallback".to_owned(), source.to_owned());
    (settings, problems)
}

/// Built-in rows that do not exist cannot be switched off.
fn unknown_builtins(ids: &[String]) -> impl Iterator<Item = (String, String)> {
    let unknown = ids.iter().enumerate().filter(|(_, id)| !classify::builtin_ids().any(|known| known == *id));
    unknown.map(|(i, id)| {
        let hint = suggest(id, classify::builtin_ids()).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
        (format!("spec.disabledBuiltins[{i}]"), format!("`{id}` is the id of no built-in row{hint}"))
    })
}

/// The model of last resort as `PROVIDER/MODEL`, when it is switched on and named.
fn emergency_fallback(spec: &Value) -> Option<String> {
    let fallback = spec.get("emergencyFallback").filter(|fallback| fallback.get("enabled").and_then(Value::as_bool) == Some(true))?;
    let part = |name: &str| fallback.get("target")?.get(name)?.as_str();
    Some(format!("{}/{}", part("provider")?, part("model")?))
}

/// The defaults that are not the zero of their type.
fn defaults() -> Settings {
    Settings {
        max_concurrent_requests: 5_000,
        max_request_bytes: 33_554_432,
        max_buffered_bytes: 268_435_456,
        drain_deadline_ms: 300_000,
        session_lease_ttl_ms: 120_000,
        combo_sticky_round_robin_limit: 1,
        quota_share_concurrency_limit: true,
        ..Settings::default()
    }
}

fn from_environment(environment: &Environment, name: &str, unit: Unit, slot: Slot<'_>) -> bool {
    let factor = if unit == Unit::Seconds { 1_000 } else { 1 };
    let number = || environment.number(name).map(|n| n.saturating_mul(factor));
    let narrow = |n: u64| u32::try_from(n).ok();
    match slot {
        Slot::Bool(place) => environment.boolean(name).map(|v| *place = v),
        Slot::Ms(place) | Slot::U64(place) => number().map(|v| *place = v),
        Slot::OptionMs(place) => number().map(|v| *place = Some(v)),
        Slot::U32(place) => number().and_then(narrow).map(|v| *place = v),
        Slot::Hints(_) | Slot::Auth(_) | Slot::Statuses(_) | Slot::Texts(_) | Slot::Steps(_) => None,
    }
    .is_some()
}

fn from_spec(value: &Value, slot: Slot<'_>) -> Result<(), String> {
    let shape = |what: &str| format!("`{value}` is no {what}");
    let duration = |v: &Value| v.as_str().ok_or_else(|| shape("duration")).and_then(parse_duration);
    let list = || value.as_array().ok_or_else(|| shape("list"));
    match slot {
        Slot::Ms(place) => *place = duration(value)?,
        Slot::OptionMs(place) => *place = Some(duration(value)?),
        Slot::U32(place) => *place = value.as_u64().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| shape("number from 0"))?,
        Slot::U64(place) => *place = value.as_u64().ok_or_else(|| shape("number from 0"))?,
        Slot::Bool(place) => *place = value.as_bool().ok_or_else(|| shape("switch (true or false)"))?,
        Slot::Hints(place) => *place = serde_json::from_value(value.clone()).map_err(|_| shape("kind of hints (None, Typed, All)"))?,
        Slot::Auth(place) => *place = serde_json::from_value(value.clone()).map_err(|_| shape("auth mode (ApiKey, None)"))?,
        Slot::Statuses(place) => {
            let mut codes: Vec<u16> = list()?
                .iter()
                .map(|v| v.as_u64().and_then(|n| u16::try_from(n).ok()).ok_or_else(|| shape("list of statuses")))
                .collect::<Result<_, _>>()?;
            codes.sort_unstable();
            codes.dedup();
            *place = codes;
        }
        Slot::Texts(place) => {
            *place =
                list()?.iter().map(|v| v.as_str().map(str::to_owned).ok_or_else(|| shape("list of texts"))).collect::<Result<_, _>>()?
        }
        Slot::Steps(place) => *place = list()?.iter().map(duration).collect::<Result<_, _>>()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn settings_beat_the_environment_and_the_environment_beats_defaults() {
        let env =
            env(&[("RATE_LIMIT_MAX_WAIT_MS", "1500"), ("RATE_LIMIT_AUTO_ENABLE", "off"), ("OMNIROUTE_ROTATE_429_WINDOW_SECONDS", "7")]);
        let spec = serde_json::json!({"requestQueue": {"autoEnableApiKeyProviders": true, "maxQueueDepth": 9}, "connectionCooldown": {"oauth": {"retryHints": "All"}}});
        let (s, problems) = settings(&spec, &env);
        assert_eq!(problems, vec![]);
        assert_eq!(
            (s.request_queue.max_wait_ms, s.request_queue.auto_enable_api_key_providers, s.request_queue.max_queue_depth),
            (1_500, true, 9)
        );
        assert_eq!(s.connection_cooldown.oauth.retry_hints, RetryHints::All);
        assert_eq!(s.rotation.on_429.window_ms, 7_000);
        let source = |path: &str| s.sources.get(path).cloned().unwrap_or_default();
        assert_eq!(source("requestQueue.maxWait"), "env:RATE_LIMIT_MAX_WAIT_MS");
        assert_eq!(source("requestQueue.autoEnableApiKeyProviders"), "settings");
        assert_eq!(source("requestQueue.executionMaxWait"), "default");
    }

    #[test]
    fn an_emergency_fallback_is_opt_in() {
        let of = |spec: Value| settings(&spec, &Environment::default()).0.emergency_fallback;
        let target = serde_json::json!({"provider": "p", "model": "a/b"});
        assert_eq!(of(serde_json::json!({"emergencyFallback": {"enabled": true, "target": target}})).as_deref(), Some("p/a/b"));
        assert_eq!(of(serde_json::json!({"emergencyFallback": {"enabled": false, "target": target}})), None);
        assert_eq!(of(serde_json::json!({"emergencyFallback": {"target": target}})), None);
    }

    #[test]
    fn a_bad_value_keeps_the_default_and_is_named() {
        let (s, problems) = settings(&serde_json::json!({"requestQueue": {"maxWait": "soon"}}), &Environment::default());
        assert_eq!(s.request_queue.max_wait_ms, 30_000);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].0 == "spec.requestQueue.maxWait" && problems[0].1.contains("`soon`"), "{problems:?}");
    }

    #[test]
    fn only_rows_that_exist_can_be_switched_off() {
        let spec = serde_json::json!({"disabledBuiltins": ["detector.credits", "detector.credit"]});
        let (_, problems) = settings(&spec, &Environment::default());
        assert_eq!(problems.len(), 1);
        assert!(problems[0].0 == "spec.disabledBuiltins[1]" && problems[0].1.contains("did you mean `detector.credits`?"), "{problems:?}");
    }

    #[test]
    fn paths_are_unique() {
        let mut paths: Vec<_> = ROWS.iter().map(|r| r.path).collect();
        paths.sort_unstable();
        let n = paths.len();
        paths.dedup();
        assert_eq!(n, paths.len());
    }

    /// Fields that the operator's build of the workload reads.
    const WORKLOAD: &[&str] = &[
        "gateway.replicas",
        "gateway.autoscaling",
        "gateway.image",
        "gateway.resources",
        "gateway.service",
        "gateway.podDisruptionBudget",
        "gateway.networkPolicy",
        "gateway.podTemplate",
    ];

    /// The field that `store` reads.
    const STORE: &str = "stateStore";

    #[test]
    fn every_field_acts_or_is_refused() {
        fn leaves(schema: &Value, path: &str, out: &mut Vec<String>) {
            match schema.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    for (name, child) in properties {
                        leaves(child, &if path.is_empty() { name.clone() } else { format!("{path}.{name}") }, out);
                    }
                }
                None => match schema.get("anyOf").and_then(Value::as_array).and_then(|a| a.first()) {
                    Some(inner) => leaves(inner, path, out),
                    None => out.push(path.to_owned()),
                },
            }
        }
        let generator = schemars::generate::SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).into_generator();
        let schema = generator.into_root_schema_for::<ResilienceSettingsSpec>();
        let mut paths = Vec::new();
        leaves(schema.as_value(), "", &mut paths);
        assert!(paths.len() > 80, "{paths:?}");
        let acts = |path: &str| {
            let below = |prefix: &&str| path == *prefix || path.starts_with(&format!("{prefix}."));
            ROWS.iter().any(|r| r.path == path) || WORKLOAD.iter().any(below) || below(&STORE) || path.starts_with("emergencyFallback.")
        };
        let ignored: Vec<_> = paths.iter().filter(|p| !acts(p)).collect();
        assert!(ignored.is_empty(), "accepted and ignored: {ignored:?}");
        let gone: Vec<_> = ROWS.iter().map(|r| r.path).filter(|p| !paths.iter().any(|q| q == p)).collect();
        assert!(gone.is_empty(), "rows without a field: {gone:?}");
    }
}
