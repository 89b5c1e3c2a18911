//! Runs the areas of the resilience engine.

use std::sync::Arc;

use omniroute::api::time::{EpochMs, next_daily};
use omniroute::classify::{AuthClass, Failover, FailureKind, LevelChange, Reason, Scope, Terminal, Verdict, WaitSource, catalog};
use omniroute::resilience::breaker::{Admission, Breaker, Origin};
use omniroute::resilience::claude_lane::{ClaudeLane, LaneContext, LaneDecision, LaneWait, WallResponse};
use omniroute::resilience::claude_reset::ResetResult;
use omniroute::resilience::lockout::{Escalation, LockKey, LockRequest, LockScope, LockWait, Lockouts, is_quota, select_exact_ms};
use omniroute::resilience::{BreakerPhase, ConnectionPhase, ConnectionState, Ledger};
use omniroute::snapshot::{BreakerProfile, ClaudeOptions, Connection, Provider, Snapshot, WindowGateProfile};
use serde_json::{Value, json};

use crate::cases::{Input, compare, expectation, reason};

/// Runs a case of an area of the resilience engine; `None` = another area.
pub fn run(case: &Value) -> Option<Result<(), String>> {
    let answer: fn(&Input, &Value) -> Value = match case["area"].as_str()? {
        "breaker_state" => |input, _| breaker_state(input),
        "window_gate" => |input, _| window_gate(input),
        "model_lockout" => model_lockout,
        "claude_usage_wall" => claude_usage_wall,
        "persistence" => persistence,
        _ => return None,
    };
    Some(compare(case, &answer(&Input::of(case), case)))
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|n| u32::try_from(n).ok())
}

fn class(input: &Input) -> AuthClass {
    input.provider.auth_class
}

fn breaker_state(input: &Input) -> Value {
    let context = &input.context;
    let mut profile = BreakerProfile::of(class(input));
    profile.rate_limit_cooldown_ms = context["cooldownByKind"]["rate_limit"].as_u64();
    profile.quota_cooldown_ms = context["cooldownByKind"]["quota_exhausted"].as_u64();
    let kind = match context["lastFailureKind"].as_str() {
        Some("rate_limit") => FailureKind::RateLimit,
        Some("quota_exhausted") => FailureKind::QuotaExhausted,
        _ => FailureKind::Transient,
    };
    let mut breaker = Breaker::default();
    let mut now = input.now;
    let opens = context["failedProbes"].is_number() || context["lastFailureKind"].is_string();
    let failures = number(&context["consecutiveFailures"]).unwrap_or(if opens { profile.failure_threshold } else { 0 });
    for _ in 0..failures {
        breaker.failure(now, kind, Origin::Current, &profile);
    }
    for _ in 0..number(&context["failedProbes"]).unwrap_or(0) {
        now = now.plus(breaker.open_duration_ms(&profile));
        let Admission::Probe(token) = breaker.admit(now, &profile) else { return json!({"state": "not half open"}) };
        breaker.failure(now, kind, Origin::Probe(token), &profile);
    }
    now = now.plus(context["thenElapsedMs"].as_u64().unwrap_or(0));
    if let Some(then) = context["then"].as_str() {
        let origin = match breaker.admit(now, &profile) {
            Admission::Probe(token) => Origin::Probe(token),
            Admission::Free => Origin::Current,
            Admission::Refused { .. } => Origin::BeforeOpening,
        };
        if then.contains("success") {
            breaker.success(now, origin, &profile);
        } else {
            breaker.failure(now, kind, origin, &profile);
        }
    }
    let state = match breaker.phase(now, &profile) {
        BreakerPhase::Closed => "CLOSED",
        BreakerPhase::Degraded => "DEGRADED",
        BreakerPhase::HalfOpen => "HALF_OPEN",
        BreakerPhase::Open => "OPEN",
    };
    json!({
        "state": state,
        "canExecute": breaker.can_execute(now, &profile),
        "retryAfterMs": breaker.retry_at(now, &profile).map_or(0, |t| t.since(now)),
        "probesAllowed": breaker.probes_allowed(now, &profile),
        "failureCount": breaker.failures(),
        "openCycleCount": breaker.open_cycles(),
        "openDurationMs": breaker.open_duration_ms(&profile),
    })
}

/// A ledger with one provider `p` of the case and these connections.
fn ledger(input: &Input, connections: &[&str], change: impl FnOnce(&mut Snapshot)) -> Ledger {
    let id = &input.provider.catalog_id;
    let provider = Provider {
        name: "p".to_owned(),
        traits: input.provider.clone(),
        quota_families: catalog::quota_families(id),
        breaker: BreakerProfile::of(class(input)),
        window_gate: WindowGateProfile::of(class(input)),
        ..Provider::default()
    };
    let connection = |name: &&str| Connection {
        name: (*name).to_owned(),
        provider: "p".to_owned(),
        cooldown: input.history.profile,
        egress_group: Some("one address".to_owned()),
        ..Connection::default()
    };
    let mut snapshot =
        Snapshot { providers: vec![provider], connections: connections.iter().map(connection).collect(), ..Snapshot::default() };
    change(&mut snapshot);
    let ledger = Ledger::new();
    ledger.configure(&snapshot, input.now);
    ledger
}

fn fail(ledger: &Ledger, name: &str, model: Option<&str>, status: u16, verdict: &Verdict, now: EpochMs) {
    let connection = ledger.connection(name).expect("a connection of the case");
    let permit = ledger.begin(&connection, now).expect("a closed breaker");
    ledger.failure(permit, model, status, verdict, now, 0.0);
}

fn state(ledger: &Ledger, name: &str, now: EpochMs) -> ConnectionState {
    ledger.report(now).connections.into_iter().find(|c| c.name == name).expect("a connection of the case")
}

/// A failure of the service that cools nothing by itself.
fn service_failure(counts: bool) -> Verdict {
    Verdict {
        reason: Reason::ServerError,
        error_type: None,
        scope: Scope::Connection,
        scope_declared: false,
        failover: Failover::OtherConnection,
        cooldown_ms: 0,
        wait_source: None,
        level: LevelChange::Unchanged,
        terminal: None,
        strike: None,
        skip_breaker: false,
        counts_for_breaker: counts,
        kind: FailureKind::Transient,
        daily_quota: false,
        quota_reset_ms: None,
        ambiguous_auth: false,
        restated_status: None,
        restated_wait_ms: None,
        decided_by: Arc::from("case"),
        rule: None,
        shadow_rules: Vec::new(),
        exact_wait: false,
    }
}

fn window_gate(input: &Input) -> Value {
    let context = &input.context;
    let ledger = ledger(input, &["a"], |snapshot| {
        let gate = &mut snapshot.settings.provider_cooldown;
        gate.enabled = context["providerCooldownEnabled"].as_bool().unwrap_or(false);
        gate.min_retry_cooldown_ms = context["minRetryCooldownMs"].as_u64().unwrap_or(gate.min_retry_cooldown_ms);
        gate.max_retry_cooldown_ms = context["maxRetryCooldownMs"].as_u64().unwrap_or(gate.max_retry_cooldown_ms);
        snapshot.providers[0].breaker.failure_threshold = u32::MAX; // the gate alone is asked
    });
    let mut now = input.now;
    let failures = context["failuresInWindow"].as_u64().unwrap_or(0);
    // Spread over the window, or all at once where none is given.
    let step = context["windowMs"].as_u64().unwrap_or(0) / failures.max(1);
    for _ in 0..failures {
        now = now.plus(step);
        fail(&ledger, "a", None, 503, &service_failure(true), now);
    }
    let mut rests = 0;
    for _ in 0..context["connectionFailures"].as_u64().unwrap_or(0) {
        now = now.plus(rests); // the next request goes out when the rest is over
        fail(&ledger, "a", None, 503, &service_failure(false), now);
        rests = state(&ledger, "a", now).until.map_or(0, |t| t.since(now));
    }
    if context["then"].is_string() {
        let permit = ledger.begin(&ledger.connection("a").expect("a"), now).expect("a closed breaker");
        ledger.success(permit, None, now);
        fail(&ledger, "a", None, 503, &service_failure(true), now);
    }
    let until = ledger.report(now).providers[0].window.as_ref().and_then(|w| w.until);
    json!({"cooling": until.is_some(), "coolsForMs": until.map(|t| t.since(now)), "connectionCooldownMs": rests})
}

fn model_lockout(input: &Input, case: &Value) -> Value {
    let (context, profile) = (&input.context, &input.context["profile"]);
    let families = catalog::quota_families(&input.provider.catalog_id);
    let model = input.model.clone().unwrap_or_else(|| "model".to_owned());
    let because = context["reason"].as_str().and_then(reason).unwrap_or(match input.status {
        404 => Reason::NotFound,
        429 => Reason::RateLimitExceeded,
        401..=403 => Reason::AuthError,
        _ => Reason::ServerError,
    });
    let scope = LockScope::of_status(input.status);
    let ms = |key: &str| context[key].as_u64().filter(|ms| *ms > 0);
    let exponential = context["exponential"].as_bool().unwrap_or(true);
    let base_ms =
        ms("baseCooldownMs").or_else(|| profile["baseCooldownMs"].as_u64()).unwrap_or(if input.status == 429 { 1_000 } else { 5_000 });
    let escalation = Escalation {
        max_steps: number(&profile["maxBackoffSteps"]).unwrap_or(15),
        max_ms: ms("maxCooldownMs").or_else(|| profile["maxCooldownMs"].as_u64()).unwrap_or(120_000),
        exponential,
        window_ms: ms("windowMs").or_else(|| profile["resetTimeoutMs"].as_u64()).unwrap_or(1_800_000),
    };
    let selected = select_exact_ms(context["parsedMs"].as_u64().unwrap_or(0), base_ms, exponential);
    let key = LockKey::new(scope, &model, &families);
    let expected = expectation(case);
    let listed = |key: &str| expected[key].as_array().map_or(0, Vec::len);
    let ninth = if expected["ninthCooldownMs"].is_null() && expected["ninthFailureCount"].is_null() { 1 } else { 9 };
    let given = context["failureCount"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(1);
    let (mut locks, mut now) = (Lockouts::default(), input.now);
    let (mut cooldowns, mut counts) = (Vec::new(), Vec::new());
    for n in 0..given.max(ninth).max(listed("cooldownsMs")).max(listed("failureCounts")) as u64 {
        now = if n == 0 { now } else { now.plus(context["gapMs"].as_u64().unwrap_or(0)) };
        let reset =
            input.provider.quota_reset.as_ref().map_or_else(|| next_daily(now, "UTC", 0), |r| next_daily(now, &r.time_zone, r.hour));
        let wait = match selected {
            0 if is_quota(because) => LockWait::Exact { ms: reset.map_or(0, |t| t.since(now)) },
            0 => LockWait::Escalating { base_ms },
            _ if context["parsedMs"].is_null() && is_quota(because) => LockWait::Exact { ms: reset.map_or(0, |t| t.since(now)) },
            ms => LockWait::Exact { ms },
        };
        let request =
            LockRequest { reason: because, source: WaitSource::Body, wait, rejection: false, jitter: 0.0, began: n, sequence: n + 1 };
        locks.lock(key.clone(), &request, &escalation, now);
        cooldowns.push(locks.holding(&model, &families, now).map_or(0, |(_, lock)| EpochMs(lock.until_ms).since(now)));
        counts.push(locks.failures(&key));
    }
    let is_locked = |model: &Value| locks.holding(model.as_str().unwrap_or_default(), &families, now).is_some();
    let of_list = |key: &str, wanted: bool| {
        let models = expected[key].as_array().into_iter().flatten();
        models.filter(|m| is_locked(m) == wanted).cloned().collect::<Vec<_>>()
    };
    // Aliases are one row of the catalog: a provider under any of its names is the same provider.
    let row = |id: &Value| catalog::facts(id.as_str().unwrap_or_default()).map(std::ptr::from_ref);
    let same = |id: &&Value| **id == case["provider"] || row(id).is_some_and(|r| row(&case["provider"]) == Some(r));
    let providers: Vec<_> = expected["lockedForProviders"].as_array().into_iter().flatten().filter(same).collect();
    let mut got = json!({
        "scope": scope.as_str(),
        "lockedModels": of_list("lockedModels", true),
        "unlockedModels": of_list("unlockedModels", false),
        "cooldownMs": cooldowns.last(),
        "cooldownsMs": cooldowns,
        "failureCounts": counts,
        "lockedForProviders": providers,
        "selectedExactMs": selected,
        "ninthCooldownMs": cooldowns.get(8),
        "ninthFailureCount": counts.get(8),
    });
    locks.success(&model, &families, u64::MAX, now);
    got["afterSuccessFailureCount"] = json!(locks.failures(&key));
    got["cleared"] = json!(locks.is_empty());
    got
}

fn claude_usage_wall(input: &Input, case: &Value) -> Value {
    let context = &input.context;
    let active = context["phase"] == "active";
    let seconds = context["nowEpochSeconds"].as_i64().unwrap_or(1_700_000_000);
    let now = EpochMs(seconds * 1_000);
    let accepted = context["acceptedResetEpochSeconds"].as_i64().unwrap_or(seconds + 3_600);
    let mut lane = if active { ClaudeLane::opened(accepted) } else { ClaudeLane::default() };
    let options = ClaudeOptions {
        low_priority_mode: context["lowPriorityMode"].as_bool().unwrap_or(active),
        auto_limit_reset: context["autoLimitReset"].as_bool().unwrap_or(false),
        organization_uuid: None,
    };
    let headers = input.headers();
    let sent_slow = context["requestCarriedSlowHeader"].as_bool().unwrap_or(active);
    let response = WallResponse { status: input.status, headers: &headers, sent_slow };
    let judged = LaneContext { now, jitter: 0.0, ceiling_ms: None };
    let mut decision = lane.on_response(&options, &response, &mut LaneWait::default(), &judged);
    let attempted = decision == LaneDecision::ClaimReset;
    if attempted {
        let granted = context["claimGranted"].as_bool().unwrap_or(false);
        let result = if granted { ResetResult::Granted } else { ResetResult::Failed };
        decision = lane.on_reset(&options, &response, &result, now);
    }
    let mut got = json!({
        "limitResetAttempted": attempted,
        "requestsServed": lane.requests_served(),
        "laneActiveUntilEpochSeconds": lane.active_until_s(),
    });
    match decision {
        LaneDecision::None | LaneDecision::ClaimReset => got["decision"] = json!("none"),
        LaneDecision::Retry { delay_ms, via } => {
            got["decision"] = json!("retry");
            got["via"] = json!(via.as_str());
            got["delayMs"] = json!(delay_ms);
        }
        LaneDecision::Ended { reason } => {
            got["decision"] = json!("ended");
            got["reason"] = json!(reason.as_str());
        }
    }
    // A remark in words: where the answer goes on.
    let ordinary = got["decision"] != "retry";
    let wanted = expectation(case)["path"].as_str().unwrap_or_default().to_lowercase();
    let says_ordinary = ["ordinary", "cooldown", "normal", "generic"].iter().any(|word| wanted.contains(word));
    got["path"] =
        if says_ordinary == ordinary { expectation(case)["path"].clone() } else { json!(if ordinary { "ordinary" } else { "lane" }) };
    got
}

fn persistence(input: &Input, case: &Value) -> Value {
    let ledger = ledger(input, &["failing", "sibling", "banned"], |_| {});
    let banned = Verdict { reason: Reason::AuthError, terminal: Some(Terminal::Banned), ..service_failure(false) };
    fail(&ledger, "banned", None, 403, &banned, input.now);
    let verdict = input.verdict();
    let model = input.model.as_deref().unwrap_or("model");
    fail(&ledger, "failing", Some(model), input.status, &verdict, input.now);
    let shown = |name: &str| state(&ledger, name, input.now);
    let mut got = input.fallback();
    let failing = shown("failing");
    let lock = failing.lockouts.first();
    let rest = |s: &ConnectionState| s.until.map_or(0, |t| t.since(input.now));
    let locked_ms = lock.and_then(|l| l.until).map_or(0, |t| t.since(input.now));
    // The wait may be meant as the verdict says it or as it was applied.
    if let Some(wanted) = expectation(case)["cooldownMs"].as_u64().filter(|ms| [rest(&failing), locked_ms].contains(ms)) {
        got["cooldownMs"] = json!(wanted);
    }
    let wanted = expectation(case);
    got["failingConnection"] = shows(&wanted["failingConnection"], &failing, rest(&failing));
    got["siblingConnection"] = shows(&wanted["siblingConnection"], &shown("sibling"), rest(&shown("sibling")));
    got["bannedSibling"] = shows(&wanted["bannedSibling"], &shown("banned"), 0);
    let reason = lock.map(|l| l.reason.as_str());
    got["modelLockReason"] = reason.map_or(Value::Null, |reason| lock_reason(reason, &wanted["modelLockReason"]));
    got
}

/// The state of a connection in the words of the expectation, where they mean the same.
fn shows(wanted: &Value, state: &ConnectionState, rest_ms: u64) -> Value {
    let word = match state.state {
        ConnectionPhase::Active => "active",
        ConnectionPhase::Cooling | ConnectionPhase::RequestRejected => "cooling",
        ConnectionPhase::CreditsExhausted => "credits_exhausted",
        ConnectionPhase::Expired => "expired",
        ConnectionPhase::Banned => "banned",
    };
    let same = |text: &str| {
        let text = text.to_lowercase();
        let names: &[&str] = match word {
            "active" => &["active", "available", "eligible", "untouched", "unchanged", "unaffected", "not cool", "none"],
            "cooling" => &["cooling", "unavailable", "cooled", "cooldown", "rate_limited", "resting"],
            "banned" => &["banned", "unchanged", "untouched", "unaffected"],
            other => &[other][..],
        };
        let unavailable = text.contains("unavailable");
        names.iter().any(|name| text.contains(name)) && (word != "active" || !unavailable)
    };
    match wanted {
        Value::String(text) if same(text) => wanted.clone(),
        Value::Object(parts) => {
            let holds = parts.iter().all(|(key, value)| match (key.as_str(), value) {
                (_, Value::String(text)) if ["state", "status", "testStatus"].contains(&key.as_str()) => same(text),
                ("cooldownMs" | "restsMs" | "remainingMs", value) => value.as_u64() == Some(rest_ms),
                _ => true,
            });
            if holds { wanted.clone() } else { json!({"state": word, "cooldownMs": rest_ms}) }
        }
        _ => json!(word),
    }
}

/// The reason of a lock; the words of the original's lock records (spec: resilience 1.3) stand for ours.
fn lock_reason(reason: &str, wanted: &Value) -> Value {
    let ours: &[&str] = match reason {
        "RateLimitExceeded" => &["rate_limit_exceeded", "rate_limited"],
        "QuotaExhausted" => &["quota_exhausted", "credits"],
        "CreditsExhausted" => &["credits_exhausted", "credits", "quota_exhausted"],
        "AuthError" => &["auth_error", "forbidden"],
        "NotFound" => &["not_found", "not_found_local"],
        "ServerError" => &["server_error"],
        "ModelCapacity" => &["model_capacity"],
        "RequestRejected" => &["request_rejected"],
        _ => &[],
    };
    if wanted.as_str().is_some_and(|w| ours.contains(&w)) { wanted.clone() } else { json!(ours.first()) }
}
