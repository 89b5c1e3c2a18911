//! The decision procedure: restatement, detectors, operator rules, catalog, tables. Pure.

use std::cell::OnceCell;
use std::sync::Arc;

use super::body::{self, Body};
use super::catalog::{self, CATALOG, CatalogCooldown, CatalogRule};
use super::detectors::DETECTORS;
use super::error_type::error_type;
use super::evidence::Evidence;
use super::evidence::Seen;
use super::global_table::{SPECIFIC, STATUS_ROWS, TEXT_ROWS};
use super::hints::{self, Clock, Wait};
use super::kind;
use super::request_shape::REQUEST_SHAPE;
use super::restatement::RESTATEMENTS;
use super::row::{self, Only, Outcome, Rest, Row};
use super::rules::{Facts, OperatorRule, RuleSet};
use super::scan::Found;
use super::terminal::{self, TerminalInput};
use super::{
    Attempt, AuthClass, Failover, History, LevelChange, ProviderTraits, Reason, RetryHints, Scope, Strike, TransportError, Verdict,
    WaitSource, transport,
};
use crate::api::time::EpochMs;

/// Shortest rest for a stated wait (decisions 9.5).
const SHORTEST_STATED_MS: u64 = 1_000;
/// First rest of a rejected model, doubled each time (5.7).
const FIRST_REJECTION_MS: u64 = 5_000;
/// Longest rest of a rejected model (decisions 1.8).
const LONGEST_REJECTION_MS: u64 = row::HOUR;

/// What an attempt shows, before anything is decided.
pub(super) struct Seen429<'a> {
    /// Evidence.
    pub seen: Seen,
    /// Traits of the provider.
    pub provider: &'a ProviderTraits,
    /// The provider is a subscription's, or unknown.
    pub oauth_or_unknown: bool,
}

impl Seen429<'_> {
    /// Whether the provider's catalog id is one of these.
    pub(super) fn is(&self, ids: &[&str]) -> bool {
        ids.iter().any(|id| self.provider.catalog_id.eq_ignore_ascii_case(id))
    }

    /// Whether the provider is one of Google's clouds.
    pub(super) fn google_cloud(&self) -> bool {
        catalog::facts(&self.provider.catalog_id).is_some_and(|f| f.google_cloud)
    }
}

/// Everything that a classification needs.
pub(super) struct Context<'a> {
    attempt: &'a Attempt<'a>,
    history: &'a History,
    rules: &'a RuleSet,
    body: Body<'a>,
    pub(super) found: Found,
    seen: Seen429<'a>,
    /// Status that is classified: restated, or of an error inside a 200.
    pub(super) status: u16,
    restated: Option<Restated>,
    clock: Clock,
    typed: OnceCell<Option<Wait>>,
    worded: OnceCell<Option<Wait>>,
}

/// A corrected status.
#[derive(Clone, Copy)]
pub(super) struct Restated {
    /// The right status.
    pub status: u16,
    /// Id as the specification writes it; `None` = an operator's rule.
    pub rule_id: Option<&'static str>,
    /// Wait when none is stated.
    pub wait_ms: Option<u64>,
}

/// What a wait is made of.
#[derive(Clone, Copy)]
struct Timer {
    ms: u64,
    source: Option<WaitSource>,
    level: LevelChange,
    daily: bool,
}

impl Timer {
    const NONE: Self = Self { ms: 0, source: None, level: LevelChange::Unchanged, daily: false };

    fn fixed(ms: u64, source: WaitSource) -> Self {
        Self { ms, source: Some(source), level: LevelChange::Set(0), daily: false }
    }
}

/// Classifies one failed attempt.
#[must_use]
pub fn classify(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Verdict {
    let mut context = Context::new(attempt, history, rules);
    context.restate();
    context.decide()
}

impl<'a> Context<'a> {
    /// Reads the attempt.
    pub(super) fn new(attempt: &'a Attempt<'a>, history: &'a History, rules: &'a RuleSet) -> Self {
        let body = body::read(attempt.body);
        let mut found = rules.scanner.scan(&body);
        let provider = attempt.provider;
        if !found.glm.is_empty() && catalog::facts(&provider.catalog_id).is_some_and(|f| f.china_time) {
            let glm = found.glm;
            found.seen.extend(glm);
        }
        if body.error_code_1010 {
            found.seen.add(Evidence::Fingerprint);
        }
        if body.bare_usage_limit {
            found.seen.add(Evidence::QuotaPhrase);
        }
        header_evidence(attempt.headers, &mut found.seen);
        let status = if attempt.status < 400 { body.status.unwrap_or(502) } else { attempt.status };
        let china = found.seen.has(Evidence::ChinaTime)
            || (has_wait_clause(&found) && catalog::facts(&provider.catalog_id).is_some_and(|f| f.china_time))
            || body.codes.iter().any(|c| c == "1308" || c == "1310");
        let oauth_or_unknown = provider.auth_class == AuthClass::OAuth || provider.is_unknown();
        let seen = Seen429 { seen: found.seen, provider, oauth_or_unknown };
        Self {
            attempt,
            history,
            rules,
            body,
            found,
            seen,
            status,
            restated: None,
            clock: Clock { now: history.now, china },
            typed: OnceCell::new(),
            worded: OnceCell::new(),
        }
    }

    /// Corrects the status: operator rules with `restateStatus` first, then the registry.
    pub(super) fn restate(&mut self) {
        if self.rules.restates {
            self.scan_whole_body();
            let restated = self.rules.first_restating(self.facts()).and_then(|r| r.verdict.restate_status);
            if let Some(status) = restated {
                self.restated = Some(Restated { status, rule_id: None, wait_ms: None });
                self.status = status;
                return;
            }
        }
        let seen = self.seen.seen;
        let row = RESTATEMENTS.iter().find(|r| {
            seen.has(r.marker) && !seen.has(r.veto) && r.from.contains(&self.status) && self.seen.is(r.providers) && self.rules.acts(r.id)
        });
        if let Some(row) = row {
            let restated = Restated { status: row.to, rule_id: Some(row.rule_id), wait_ms: Some(row.default_wait_ms) };
            self.restated = Some(restated);
            self.status = row.to;
        }
    }

    /// The restatement that was made.
    pub(super) fn restated(&self) -> Option<Restated> {
        self.restated
    }

    fn scan_whole_body(&mut self) {
        if self.body.json {
            self.rules.scan_whole_body(self.attempt.body, &mut self.found);
        }
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts::of(self.attempt, self.status, &self.body, &self.found)
    }

    /// The ordered procedure.
    pub(super) fn decide(&mut self) -> Verdict {
        if let Some(kind) = self.attempt.transport {
            return self.transport(kind);
        }
        if let Some(row) = self.first(DETECTORS) {
            return self.by_row(row, Vec::new());
        }
        if !self.rules.restates {
            self.scan_whole_body();
        }
        let (rule, shadows) = self.rules.first(self.facts());
        if let Some(rule) = rule {
            return self.by_rule(rule, shadows);
        }
        if let Some(rule) = self.catalog_rule() {
            return self.by_catalog(rule, shadows);
        }
        if let Some(row) = self.first(SPECIFIC) {
            return self.by_row(row, shadows);
        }
        self.by_table(shadows)
    }

    /// Request shape, text rows, status rows; a catch-all default of the operator replaces what the last two say.
    fn by_table(&self, mut shadows: Vec<Arc<str>>) -> Verdict {
        if let Some(row) = self.first(REQUEST_SHAPE) {
            return self.by_row(row, shadows);
        }
        let text = self.first(TEXT_ROWS);
        let (rule, more) = self.rules.first_catch_all(self.facts());
        shadows.extend(more);
        if let Some(rule) = rule {
            let derived = text.map_or_else(|| reason_of_status(self.status), |row| row.outcome.reason);
            return self.by_catch_all(rule, derived, shadows);
        }
        // The last status row holds always, unless the operator switched it off.
        let row = text.or_else(|| self.first(STATUS_ROWS)).or_else(|| STATUS_ROWS.last());
        match row {
            Some(row) => self.by_row(row, shadows),
            None => self.verdict("status.other", row::rest(Reason::Unknown, Rest::Base), Timer::NONE, shadows),
        }
    }

    /// The first row of a table that holds.
    fn first(&self, table: &'static [Row]) -> Option<&'static Row> {
        table.iter().find(|row| self.holds(row))
    }

    /// Whether every condition of a row holds.
    pub(super) fn holds(&self, row: &Row) -> bool {
        let seen = self.seen.seen;
        (row.seen.is_empty() || seen.any(row.seen))
            && !seen.any(row.unless)
            && row.on.has(self.status)
            && (!row.gate || self.gate())
            && row.only.iter().all(|only| self.only(*only))
            && self.rules.acts(row.id)
    }

    /// The quota gate (QS).
    pub(super) fn gate(&self) -> bool {
        kind::gate(self.attempt.provider, self.status, self.seen.seen)
    }

    /// One further condition.
    pub(super) fn only(&self, only: Only) -> bool {
        let seen = self.seen.seen;
        let provider = self.attempt.provider;
        match only {
            Only::Providers(ids) => self.seen.is(ids),
            Only::GoogleCloud => self.seen.google_cloud(),
            Only::GeminiMetric => seen.has(Evidence::GeminiMetric),
            Only::ApiKey => !self.seen.oauth_or_unknown,
            Only::ModelKnown => self.attempt.model.is_some_and(|m| !m.is_empty()),
            Only::MoneyIsFinal => !provider.passthrough_models || (provider.shared_wallet && seen.has(Evidence::Balance)),
            Only::NoShortWait => seen.has(Evidence::QuotaTerminal) || !self.declares_short(),
            Only::ResetKnown => provider.quota_reset.is_some() || self.typed().is_some_and(|w| w.source == WaitSource::Header),
            Only::WaitStated => self.stated().is_some(),
            Only::Concurrent => seen.has(Evidence::Concurrency),
            Only::BothResourceAndNotFound => seen.has(Evidence::RequestResource) && seen.has(Evidence::NotFoundText),
            Only::PerModelQuota => provider.per_model_quota,
            Only::PermissionBesideModel => seen.any(Seen::of(&[Evidence::ModelAccess, Evidence::ModelPermission])),
        }
    }

    fn declares_short(&self) -> bool {
        hints::declares_short(&self.body, &self.found, self.clock)
    }

    /// The wait of headers, RetryInfo and fields.
    pub(super) fn typed(&self) -> Option<Wait> {
        *self.typed.get_or_init(|| hints::typed(self.attempt.headers, &self.body, self.status, self.clock))
    }

    /// Any stated wait.
    pub(super) fn stated(&self) -> Option<Wait> {
        self.typed().or_else(|| {
            *self.worded.get_or_init(|| {
                if !has_wait_clause(&self.found) {
                    return None;
                }
                hints::words(&self.body, &self.found, self.seen.seen.has(Evidence::Weekly), self.clock)
            })
        })
    }

    /// The stated wait that counts for a reason: `retryHints` governs rate limits, a quota's reset always counts (decisions 9.5).
    fn honoured(&self, reason: Reason) -> Option<Wait> {
        if reason == Reason::QuotaExhausted {
            return self.stated();
        }
        match self.history.profile.retry_hints {
            RetryHints::None => None,
            RetryHints::Typed => self.typed(),
            RetryHints::All => self.stated(),
        }
    }

    /// A stated wait as a timer.
    fn stated_timer(&self, reason: Reason) -> Option<Timer> {
        self.honoured(reason).map(stated_wait)
    }

    /// retryable(R) of section 7 with the ranks of 5.3.
    fn backoff(&self, reason: Reason) -> Timer {
        if let Some(timer) = self.stated_timer(reason) {
            return timer;
        }
        if let Some(wait) = self.restated.and_then(|r| r.wait_ms) {
            return Timer::fixed(wait, WaitSource::Catalog);
        }
        let own = self.history.retry_override_ms.or(self.attempt.provider.retry_delay_ms).filter(|ms| *ms > 0);
        if let Some(ms) = own.filter(|_| reason == Reason::RateLimitExceeded) {
            return Timer::fixed(ms, WaitSource::Override);
        }
        let profile = self.history.profile;
        let level = self.history.backoff_level;
        let factor = 1u64.checked_shl(level.min(profile.max_backoff_steps)).unwrap_or(u64::MAX);
        let ms = profile.base_cooldown_ms.saturating_mul(factor).min(profile.max_cooldown_ms);
        let level = level.saturating_add(1).min(profile.max_backoff_steps);
        Timer { ms, source: Some(WaitSource::Scaled), level: LevelChange::Set(level), daily: false }
    }

    /// Until the daily reset: a stated wait, else the provider's clock, else midnight UTC (decisions 1.6).
    fn daily(&self, reason: Reason) -> Timer {
        if let Some(timer) = self.stated_timer(reason) {
            return Timer { daily: true, ..timer };
        }
        let now = self.history.now;
        let declared = self.attempt.provider.quota_reset.as_ref().and_then(|r| hints::until_hour(&r.time_zone, r.hour, now));
        let ms = declared.or_else(|| hints::until_hour("UTC", 0, now)).unwrap_or(row::DAY);
        Timer { ms, source: Some(WaitSource::DailyReset), level: LevelChange::Set(0), daily: true }
    }

    /// The engine's own computation for a rule without a cooldown.
    fn normal(&self, reason: Reason) -> Timer {
        let per_day = reason == Reason::QuotaExhausted
            && self.seen.seen.has(Evidence::PerDay)
            && !self.seen.seen.any(Seen::of(&[Evidence::TokensPerDay, Evidence::TpdLimit]));
        if per_day { self.daily(reason) } else { self.backoff(reason) }
    }

    fn timer(&self, reason: Reason, rest: Rest) -> Timer {
        let stated = || self.stated_timer(reason);
        match rest {
            Rest::None => Timer::NONE,
            Rest::Fixed(ms) => Timer::fixed(ms, WaitSource::Fixed),
            Rest::Backoff => self.backoff(reason),
            // The deadline of another gateway is its own, whatever `retryHints` says of a vendor's.
            Rest::PeerDeadline => self.stated().map_or_else(|| self.backoff(reason), stated_wait),
            Rest::StatedOr(ms) => stated().unwrap_or_else(|| Timer::fixed(ms, WaitSource::Fixed)),
            Rest::DailyReset => self.daily(reason),
            Rest::Base => stated().unwrap_or(Timer {
                ms: self.history.profile.base_cooldown_ms,
                source: Some(WaitSource::Fixed),
                level: LevelChange::Unchanged,
                daily: false,
            }),
            Rest::LevelKept(ms) => {
                Timer { level: LevelChange::Unchanged, ..stated().unwrap_or_else(|| Timer::fixed(ms, WaitSource::Fixed)) }
            }
            Rest::AuthStrike => {
                let ms = (5 * row::MINUTE) << self.history.auth_strikes.min(2);
                Timer { level: LevelChange::Unchanged, ..Timer::fixed(ms, WaitSource::Fixed) }
            }
            Rest::RejectionStrike => {
                let factor = 1u64.checked_shl(self.history.request_rejections.min(32)).unwrap_or(u64::MAX);
                let ms = FIRST_REJECTION_MS.saturating_mul(factor).min(LONGEST_REJECTION_MS);
                Timer { level: LevelChange::Unchanged, ..Timer::fixed(ms, WaitSource::Fixed) }
            }
        }
    }

    fn by_row(&self, row: &'static Row, shadows: Vec<Arc<str>>) -> Verdict {
        let mut outcome = row.outcome;
        if outcome.rest == Rest::PeerDeadline && self.stated().is_some_and(|w| w.ms >= row::HOUR) {
            outcome.reason = Reason::QuotaExhausted;
        }
        let timer = self.timer(outcome.reason, outcome.rest);
        let mut verdict = self.verdict(row.id, outcome, timer, shadows);
        verdict.scope_declared = outcome.rest == Rest::PeerDeadline;
        if outcome.rest == Rest::RejectionStrike {
            verdict.strike = Some(Strike::RequestRejected);
        }
        if verdict.reason == Reason::NotFound && timer.ms > 0 {
            verdict.quota_reset_ms = Some(timer.ms);
        }
        verdict
    }

    /// The catalog rule that holds.
    pub(super) fn catalog_rule(&self) -> Option<&'static CatalogRule> {
        CATALOG.iter().find(|rule| {
            rule.seen.is_none_or(|e| self.seen.seen.has(e))
                && rule.on.has(self.status)
                && self.seen.is(rule.providers)
                && (rule.cooldown != CatalogCooldown::Stated || self.stated().is_some())
                && self.rules.acts(rule.id)
        })
    }

    fn by_catalog(&self, rule: &'static CatalogRule, shadows: Vec<Arc<str>>) -> Verdict {
        let timer = match rule.cooldown {
            CatalogCooldown::Normal | CatalogCooldown::Stated => self.normal(rule.reason),
            CatalogCooldown::Fixed(ms) => Timer::fixed(ms, WaitSource::Catalog),
        };
        let outcome = declared(rule.reason, rule.scope);
        Verdict { scope_declared: true, ..self.verdict(rule.id, outcome, timer, shadows) }
    }

    fn by_rule(&self, rule: &OperatorRule, shadows: Vec<Arc<str>>) -> Verdict {
        let reason = rule.verdict.reason.unwrap_or(Reason::QuotaExhausted);
        self.by_operator(rule, reason, shadows)
    }

    fn by_catch_all(&self, rule: &OperatorRule, derived: Reason, shadows: Vec<Arc<str>>) -> Verdict {
        self.by_operator(rule, rule.verdict.reason.unwrap_or(derived), shadows)
    }

    fn by_operator(&self, rule: &OperatorRule, reason: Reason, shadows: Vec<Arc<str>>) -> Verdict {
        let timer = match rule.verdict.cooldown_ms {
            None => self.normal(reason),
            Some(ms) => {
                let own = Timer::fixed(ms, WaitSource::Rule);
                let stated = if rule.verdict.at_least { self.stated_timer(reason) } else { None };
                stated.filter(|s| s.ms > ms).unwrap_or(own)
            }
        };
        let outcome = declared(reason, rule.verdict.scope);
        let id = format!("rule.{}", rule.name);
        let mut verdict = self.verdict(&id, outcome, timer, shadows);
        verdict.scope_declared = true;
        verdict.exact_wait = timer.source == Some(WaitSource::Rule);
        verdict.rule = Some(Arc::clone(&rule.name));
        verdict
    }

    fn transport(&self, kind: TransportError) -> Verdict {
        let (rule, shadows) = self.rules.first(self.facts());
        if let Some(rule) = rule {
            let verdict = self.by_rule(rule, shadows);
            let counts = verdict.counts_for_breaker && !self.attempt.via_proxy;
            return Verdict { counts_for_breaker: counts, ..verdict };
        }
        let (id, outcome) = transport::outcome(kind);
        let timer = self.timer(outcome.reason, outcome.rest);
        self.verdict(id, outcome, timer, shadows)
    }

    /// Puts a verdict together.
    fn verdict(&self, id: &str, outcome: Outcome, timer: Timer, shadow_rules: Vec<Arc<str>>) -> Verdict {
        let seen = self.seen.seen;
        let is_transport = self.attempt.transport.is_some();
        let error_type = if is_transport { None } else { error_type(self.status, &self.seen) };
        let by_rule = !(id.starts_with("rule.") || id.starts_with("catalog.")) && !is_transport;
        let terminal = if by_rule { self.terminal(error_type, &outcome) } else { None };
        let quota_reset = outcome.reason == Reason::QuotaExhausted && (timer.daily || timer.source.is_some_and(WaitSource::stated));
        let counts = kind::counts_for_breaker(kind::BreakerInput {
            status: if is_transport { None } else { Some(self.status) },
            seen,
            reason: outcome.reason,
            scope: outcome.scope,
            skip: outcome.skip_breaker || self.attempt.via_proxy,
            bridge: self.seen.is(&["chatgpt-web"]),
        });
        Verdict {
            reason: outcome.reason,
            error_type,
            scope: outcome.scope,
            scope_declared: false,
            failover: outcome.failover,
            cooldown_ms: timer.ms,
            wait_source: timer.source.filter(|_| timer.ms > 0),
            level: timer.level,
            terminal,
            strike: outcome.strike.then_some(Strike::Auth),
            skip_breaker: outcome.skip_breaker,
            counts_for_breaker: counts,
            kind: kind::kind(if is_transport { 0 } else { self.status }, seen, || self.declares_short()),
            daily_quota: timer.daily,
            quota_reset_ms: quota_reset.then_some(timer.ms),
            ambiguous_auth: self.ambiguous_auth(),
            restated_status: self.restated.map(|r| r.status).or((!is_transport && self.attempt.status < 400).then_some(self.status)),
            restated_wait_ms: self.restated.and_then(|r| r.wait_ms).filter(|_| self.stated().is_none()),
            decided_by: Arc::from(id),
            rule: None,
            shadow_rules,
            exact_wait: false,
        }
    }

    fn terminal(&self, error_type: Option<&'static str>, outcome: &Outcome) -> Option<super::Terminal> {
        let input = TerminalInput {
            status: if outcome.strike { 401 } else { 0 },
            error_type: error_type.filter(|t| *t != "unauthorized" && *t != "account_deactivated"),
            dead: outcome.dead,
            credits: outcome.credits,
            per_model_quota: self.attempt.provider.per_model_quota,
            web_cookie: outcome.strike && catalog::facts(&self.attempt.provider.catalog_id).is_some_and(|f| f.web_cookie),
            token_expires_in_ms: self.history.token_expires.map(|EpochMs(at)| at.saturating_sub(self.history.now.0)),
            strikes: self.history.auth_strikes,
        };
        terminal::resolve(input)
    }

    /// Mistral's body that says nothing (6.6).
    fn ambiguous_auth(&self) -> bool {
        self.attempt.status == 401
            && self.seen.is(&["mistral"])
            && serde_json::from_slice::<std::collections::BTreeMap<String, String>>(self.attempt.body)
                .is_ok_and(|m| m.len() == 1 && m.get("detail").is_some_and(|d| d == "Unauthorized"))
    }
}

/// A stated wait as it stands, within its bounds.
fn stated_wait(wait: Wait) -> Timer {
    Timer::fixed(wait.ms.clamp(SHORTEST_STATED_MS, hints::MAX_WAIT_MS), wait.source)
}

/// The outcome of a declared reason and scope.
fn declared(reason: Reason, scope: Scope) -> Outcome {
    let of_model = scope == Scope::Model && matches!(reason, Reason::ModelCapacity | Reason::NotFound | Reason::AuthError);
    let failover = if of_model { Failover::OtherModel } else { Failover::OtherConnection };
    Outcome { scope, failover, ..row::rest(reason, Rest::Backoff) }
}

/// The reason that a status alone suggests (7.6).
fn reason_of_status(status: u16) -> Reason {
    match status {
        401 | 403 => Reason::AuthError,
        402 | 432 => Reason::QuotaExhausted,
        429 => Reason::RateLimitExceeded,
        503 | 529 => Reason::ModelCapacity,
        500.. => Reason::ServerError,
        _ => Reason::Unknown,
    }
}

/// Whether a clause of the wait parser is there.
fn has_wait_clause(found: &Found) -> bool {
    !found.triggers.is_empty()
}

/// Evidence in headers.
fn header_evidence(headers: &[(&str, &str)], seen: &mut Seen) {
    for (name, value) in headers {
        if name.len() < 20 || name.as_bytes()[0] | 0x20 != b'x' {
            continue;
        }
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        let value = value.trim();
        if is("x-omni-fallback-hint") && value.eq_ignore_ascii_case("connection_cooldown") {
            seen.add(Evidence::SupervisorHint);
        } else if is("x-omniroute-local-cooldown") {
            seen.add(Evidence::PeerCooldown);
        } else if is("x-ratelimit-remaining-requests") && value == "0" {
            seen.add(Evidence::NoRequestsLeft);
        } else if is("x-ratelimit-remaining-tokens") && value == "0" {
            seen.add(Evidence::NoTokensLeft);
        } else if is("x-model-quota-remaining") {
            let spent = value.split(',').filter_map(|pair| pair.split_once('=')).any(|(_, n)| n.trim() == "0");
            if spent {
                seen.add(Evidence::ModelQuotaSpent);
            }
        }
    }
}

impl Context<'_> {
    /// Why a row with evidence did not decide.
    pub(super) fn why_not(&self, row: &Row, decided: &str) -> Option<String> {
        if !self.rules.acts(row.id) {
            return Some("it is switched off".to_owned());
        }
        if !row.on.has(self.status) {
            return Some(format!("status {} is not among its statuses ({})", self.status, row.on));
        }
        if self.seen.seen.any(row.unless) {
            return Some("other evidence vetoes it".to_owned());
        }
        if row.gate && !self.gate() {
            return Some("a 429 of a provider with keys needs an explicit quota phrase".to_owned());
        }
        match row.only.iter().find(|only| !self.only(**only)) {
            Some(only) => Some(format!("its condition {only:?} does not hold")),
            None => Some(format!("{decided} was asked first")),
        }
    }

    /// Operator rules whose text is present but that did not decide.
    pub(super) fn near_rules(&self, decided: &str) -> Vec<super::NearMiss> {
        let facts = self.facts();
        let misses = self.rules.rules.iter().filter(|r| r.text_is_in(&self.found) && format!("rule.{}", r.name) != decided);
        misses
            .map(|r| super::NearMiss {
                id: format!("rule.{}", r.name),
                why: if !r.holds(facts) {
                    format!("another of its conditions does not hold (statuses: {:?})", r.statuses)
                } else if r.shadow {
                    "it is in Shadow mode".to_owned()
                } else {
                    format!("{decided} was asked first")
                },
            })
            .collect()
    }
}
