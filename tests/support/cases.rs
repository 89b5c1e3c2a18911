//! Runs the areas of the classifier.

use omniroute::api::time::EpochMs;
use omniroute::classify::{
    self, Attempt, AuthClass, CooldownProfile, FailureKind, History, LevelChange, ProviderTraits, QuotaReset, Reason, RetryHints, RuleSet,
    Scope, Terminal, WaitSource, catalog, hints, terminal,
};
use omniroute::snapshot::{Rule, RuleVerdict};
use serde_json::{Map, Value, json};

/// Runs a case of an area of the classifier; `None` = another area.
pub fn run(case: &Value) -> Option<Result<(), String>> {
    let input = Input::of(case);
    let got = match case["area"].as_str()? {
        "fallback" | "operator_default" => input.fallback(),
        "classify429" => json!({"failureKind": kind(classify::failure_kind(input.status, input.body.as_bytes(), &input.rules))}),
        "provider_error_type" => json!({"providerErrorType": input.verdict().error_type}),
        "terminal_status" => input.terminal_status(),
        "retry_hint" => json!({"retryHintMs": input.wait().map(|w| w.ms)}),
        "retry_after_header" => {
            let headers = input.headers();
            json!({"retryAfterSeconds": hints::from_headers(&headers, input.status, input.now).map(|w| w.ms.div_ceil(1000))})
        }
        "restatement" => input.restatement(),
        "provider_rule" => input.rule(true),
        "operator_rule" => input.rule(false),
        "breaker_trip" => json!({"countsAgainstProviderBreaker": input.verdict().counts_for_breaker}),
        "mark_exhausted_from_429" => input.mark_exhausted(),
        _ => return None,
    };
    Some(compare(case, &got))
}

/// What must hold: `better` of a weakness, or of a case that departs by a decision; else `expect`. A weakness without `better` only records
/// what the original does.
pub fn expectation(case: &Value) -> &Value {
    let weak = case["stance"] == "weakness" || case.get("departs").is_some();
    if weak { &case["better"] } else { &case["expect"] }
}

/// Compares the answer with the expectation of a case.
pub fn compare(case: &Value, got: &Value) -> Result<(), String> {
    let empty = Map::new();
    let expected = expectation(case).as_object().unwrap_or(&empty);
    let wrong: Vec<String> = expected
        .iter()
        .filter(|(key, wanted)| !holds(wanted, &got[key.as_str()]))
        .map(|(key, wanted)| format!("{key}: expected {wanted}, got {}", got[key.as_str()]))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}: {}", case["id"].as_str().unwrap_or("?"), wrong.join("; "))) }
}

fn holds(wanted: &Value, got: &Value) -> bool {
    let absent = |v: &Value| v.is_null() || *v == Value::Bool(false) || *v == "unchanged";
    match wanted {
        Value::Null | Value::Bool(false) => absent(got),
        Value::Object(range) if range.contains_key("min") || range.contains_key("max") => got.as_f64().is_some_and(|n| {
            range.get("min").and_then(Value::as_f64).is_none_or(|min| n >= min)
                && range.get("max").and_then(Value::as_f64).is_none_or(|max| n <= max)
        }),
        Value::Number(n) => got.as_f64() == n.as_f64(),
        _ => wanted == got,
    }
}

/// A case, ready to be asked.
pub struct Input {
    pub provider: ProviderTraits,
    pub model: Option<String>,
    pub status: u16,
    headers: Vec<(String, String)>,
    body: String,
    pub context: Value,
    pub now: EpochMs,
    pub history: History,
    rules: RuleSet,
}

impl Input {
    pub fn of(case: &Value) -> Self {
        let context = case.get("context").cloned().unwrap_or(Value::Null);
        let now = EpochMs(context["nowMs"].as_i64().unwrap_or(1_700_000_000_000));
        let provider = provider(case, &context);
        let mut profile = profile(&provider);
        override_profile(&mut profile, &context["profile"]);
        override_profile(&mut profile, &context);
        let history = History {
            backoff_level: context["backoffLevel"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            auth_strikes: context["softStrikesUsed"].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
            ..History::fresh(now, profile)
        };
        let headers =
            case["headers"].as_object().into_iter().flatten().map(|(n, v)| (n.clone(), v.as_str().unwrap_or_default().to_owned()));
        let rules = operator_rules(case, &context);
        Self {
            model: context["model"].as_str().map(str::to_owned),
            status: case["status"].as_u64().and_then(|s| u16::try_from(s).ok()).unwrap_or(0),
            headers: headers.collect(),
            body: body(case, &context),
            rules: RuleSet::new(&rules, &[], &[]),
            provider,
            context,
            now,
            history,
        }
    }

    pub fn headers(&self) -> Vec<(&str, &str)> {
        self.headers.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }

    fn with_attempt<T>(&self, ask: impl FnOnce(&Attempt<'_>) -> T) -> T {
        let headers = self.headers();
        ask(&Attempt {
            provider: &self.provider,
            model: self.model.as_deref(),
            status: self.status,
            headers: &headers,
            body: self.body.as_bytes(),
            transport: None,
            via_proxy: false,
        })
    }

    pub fn verdict(&self) -> classify::Verdict {
        self.with_attempt(|attempt| classify::classify(attempt, &self.history, &self.rules))
    }

    fn wait(&self) -> Option<hints::Wait> {
        let china = catalog::facts(&self.provider.catalog_id).is_some_and(|f| f.china_time);
        hints::parse(&self.headers(), self.body.as_bytes(), self.status, china, self.now)
    }

    pub fn fallback(&self) -> Value {
        let v = self.verdict();
        let declared = v.decided_by.starts_with("rule.") || v.decided_by.starts_with("catalog.");
        let stated = v.wait_source.filter(|s| s.stated());
        json!({
            "shouldFallback": v.failover != classify::Failover::Stop,
            "reason": v.reason.snake(),
            "cooldownMs": v.cooldown_ms,
            "newBackoffLevel": match v.level { LevelChange::Unchanged => json!("unchanged"), LevelChange::Set(n) => json!(n) },
            "terminal": v.terminal.map(Terminal::snake),
            "creditsExhausted": v.terminal == Some(Terminal::CreditsExhausted),
            "dailyQuotaExhausted": v.daily_quota,
            "permanent": v.terminal.is_some_and(|t| t != Terminal::CreditsExhausted),
            "skipProviderBreaker": v.skip_breaker,
            "ruleScope": if declared { json!(scope(v.scope)) } else { Value::Null },
            "scope": scope(v.scope),
            "usedUpstreamRetryHint": stated.is_some(),
            "retryHintSource": stated.map(source),
            "quotaResetHintMs": v.quota_reset_ms,
            "ambiguousAuth": v.ambiguous_auth,
            "operatorDefaultApplied": v.rule.as_deref().is_some_and(|r| r.starts_with("default-")),
            "failover": format!("{:?}", v.failover),
            "decidedBy": &*v.decided_by,
            "errorType": v.error_type,
            "restatedStatus": v.restated_status,
            "failureKind": kind(v.kind),
            "countsAgainstProviderBreaker": v.counts_for_breaker,
        })
    }

    fn terminal_status(&self) -> Value {
        let flag = |key: &str| self.context[key].as_bool().unwrap_or(false);
        let state = terminal::resolve(terminal::TerminalInput {
            status: self.status,
            error_type: self.context["providerErrorType"].as_str(),
            dead: flag("permanent"),
            credits: flag("creditsExhausted"),
            per_model_quota: self.context["perModelQuotaProvider"].as_bool().unwrap_or(self.provider.per_model_quota),
            web_cookie: flag("webCookieProvider"),
            token_expires_in_ms: self.context["tokenExpiresInMs"].as_i64(),
            strikes: self.history.auth_strikes,
        });
        json!({"terminal": state.map(Terminal::snake)})
    }

    fn restatement(&self) -> Value {
        let restated = self.with_attempt(|attempt| classify::restatement(attempt, &self.history, &self.rules));
        let parsed = self.context["parsedRetryAfterMs"].as_u64();
        json!({
            "status": restated.map_or(self.status, |r| r.status),
            "fromStatus": restated.map(|_| self.status),
            "ruleId": restated.and_then(|r| r.rule_id),
            "retryAfterMs": parsed.or(restated.and_then(|r| r.wait_ms)),
        })
    }

    fn rule(&self, catalog: bool) -> Value {
        let ask = if catalog { classify::catalog_rule } else { classify::operator_rule };
        let found = self.with_attempt(|attempt| ask(attempt, &self.history, &self.rules));
        json!({
            "match": found.is_some(),
            "reason": found.as_ref().map(|m| m.reason.snake()),
            "scope": found.as_ref().map(|m| scope(m.scope)),
            "cooldownMs": found.as_ref().and_then(|m| m.cooldown_ms),
        })
    }

    fn mark_exhausted(&self) -> Value {
        let failure = match self.context["failureKind"].as_str() {
            Some("rate_limit") => Some(FailureKind::RateLimit),
            Some("quota_exhausted") => Some(FailureKind::QuotaExhausted),
            Some("transient") => Some(FailureKind::Transient),
            _ => None,
        };
        json!({"markAccountExhausted": classify::exhausts_account(&self.provider, self.body.as_bytes(), failure, &self.rules)})
    }
}

/// The traits of the provider of a case.
pub fn provider(case: &Value, context: &Value) -> ProviderTraits {
    let auth = match case["authClass"].as_str() {
        Some("oauth") => Some(AuthClass::OAuth),
        Some("apikey") => Some(AuthClass::ApiKey),
        Some("local") => Some(AuthClass::Local),
        _ => None,
    };
    let mut traits = catalog::traits(case["provider"].as_str().unwrap_or_default(), auth);
    if context["passthroughModels"].as_bool() == Some(true) {
        traits.passthrough_models = true;
        traits.per_model_quota = true;
    }
    if let Some(zone) = context["nodeDailyReset"]["timezone"].as_str() {
        let hour = context["nodeDailyReset"]["hour"].as_u64().and_then(|h| u8::try_from(h).ok()).unwrap_or(0);
        traits.quota_reset = Some(QuotaReset { time_zone: zone.to_owned(), hour });
    }
    traits
}

/// The profile of a provider; one that is unknown has the generic one (spec: resilience 5.2).
fn profile(provider: &ProviderTraits) -> CooldownProfile {
    if provider.catalog_id.is_empty() {
        return CooldownProfile { base_cooldown_ms: 5_000, max_backoff_steps: 15, max_cooldown_ms: 120_000, retry_hints: RetryHints::All };
    }
    CooldownProfile::of(provider.auth_class)
}

fn override_profile(profile: &mut CooldownProfile, given: &Value) {
    if let Some(ms) = given["baseCooldownMs"].as_u64() {
        profile.base_cooldown_ms = ms;
    }
    if let Some(steps) = given["maxBackoffSteps"].as_u64().and_then(|n| u32::try_from(n).ok()) {
        profile.max_backoff_steps = steps;
    }
    if let Some(ms) = given["maxCooldownMs"].as_u64() {
        profile.max_cooldown_ms = ms;
    }
    match given["useUpstreamRetryHints"].as_bool() {
        Some(true) => profile.retry_hints = RetryHints::All,
        Some(false) => profile.retry_hints = RetryHints::None,
        None => {}
    }
}

/// The body; structured codes that a case gives apart stand in it as a provider would send them.
fn body(case: &Value, context: &Value) -> String {
    let text = match &case["body"] {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    let code = context["structuredError"]["code"].as_str().or(context["errorCode"].as_str());
    let kind = context["structuredError"]["type"].as_str();
    if code.is_none() && kind.is_none() {
        return text;
    }
    match serde_json::from_str::<Value>(&text) {
        Ok(Value::Object(mut object)) => {
            let error = object.entry("error").or_insert_with(|| json!({}));
            if let Some(error) = error.as_object_mut() {
                error.insert("code".to_owned(), json!(code));
                error.insert("type".to_owned(), json!(kind));
            }
            Value::Object(object).to_string()
        }
        _ => json!({"error": {"message": text, "code": code, "type": kind}}).to_string(),
    }
}

/// The operator's rules and catch-all defaults of a case.
fn operator_rules(case: &Value, context: &Value) -> Vec<Rule> {
    let given = case["operatorRules"].as_array().into_iter().flatten().enumerate();
    let mut rules: Vec<Rule> = given.map(|(i, rule)| operator_rule(i, rule)).collect();
    for (provider, default) in context["operatorDefaults"].as_object().into_iter().flatten() {
        let mut rule = operator_rule(rules.len(), default);
        rule.name = format!("default-{provider}");
        rule.providers = Some(vec![case["provider"].as_str().filter(|p| p.eq_ignore_ascii_case(provider)).unwrap_or(provider).to_owned()]);
        rule.catch_all = true;
        rule.verdict.at_least = true;
        rule.verdict.reason = default["reason"].as_str().and_then(reason);
        rules.push(rule);
    }
    rules
}

fn operator_rule(i: usize, rule: &Value) -> Rule {
    let text = |key: &str| rule[key].as_str().map(str::to_owned);
    let statuses = match &rule["status"] {
        Value::Array(list) => list.iter().filter_map(Value::as_u64).filter_map(|s| u16::try_from(s).ok()).collect(),
        one => one.as_u64().and_then(|s| u16::try_from(s).ok()).into_iter().collect(),
    };
    Rule {
        name: format!("case-{i}"),
        providers: None,
        statuses,
        text: text("match"),
        not_text: text("notText"),
        code: text("code"),
        error_type: text("type"),
        header: rule["header"]["name"].as_str().map(|n| (n.to_owned(), rule["header"]["value"].as_str().map(str::to_owned))),
        transport: None,
        shadow: rule["mode"] == "Shadow",
        catch_all: false,
        verdict: RuleVerdict {
            reason: Some(rule["reason"].as_str().and_then(reason).unwrap_or(Reason::QuotaExhausted)),
            scope: match rule["scope"].as_str() {
                Some("model") => Scope::Model,
                Some("provider") => Scope::Provider,
                _ => Scope::Connection,
            },
            cooldown_ms: rule["cooldownMs"].as_u64(),
            at_least: rule["cooldownPolicy"] == "AtLeast",
            restate_status: rule["restateStatus"].as_u64().and_then(|s| u16::try_from(s).ok()),
        },
    }
}

pub fn reason(name: &str) -> Option<Reason> {
    let pascal: String = name.split('_').map(|w| w[..1].to_uppercase() + &w[1..]).collect();
    serde_json::from_value(Value::String(pascal)).ok()
}

fn kind(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::RateLimit => "rate_limit",
        FailureKind::QuotaExhausted => "quota_exhausted",
        FailureKind::Transient => "transient",
    }
}

fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Request => "request",
        Scope::Model => "model",
        Scope::Connection => "connection",
        Scope::Provider => "provider",
    }
}

/// Provenance as the case file writes it.
fn source(source: WaitSource) -> &'static str {
    match source {
        WaitSource::RetryInfo => "google_rpc_retry_info",
        other => other.as_str(),
    }
}
