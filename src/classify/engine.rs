//! The decision procedure: restatement, detectors, operator rules, catalog, tables. Pure.

use std::sync::Arc;

use super::catalog::{self, CATALOG, CatalogCooldown, CatalogRule};
use super::context::Context;
use super::detectors::DETECTORS;
use super::error_type::error_type;
use super::global_table::{SPECIFIC, STATUS_ROWS, TEXT_ROWS};
use super::kind;
use super::request_shape::REQUEST_SHAPE;
use super::row::{self, Outcome, Rest, Row};
use super::rules::{OperatorRule, RuleSet};
use super::terminal::{self, TerminalInput};
use super::timer::Timer;
use super::{Attempt, Failover, History, Reason, Scope, Strike, Terminal, TransportError, Verdict, WaitSource, transport};
use crate::api::time::EpochMs;

/// Classifies one failed attempt.
#[must_use]
pub fn classify(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Verdict {
    let mut context = Context::new(attempt, history, rules);
    context.restate();
    context.decide()
}

impl Context<'_> {
    /// The ordered procedure.
    pub(super) fn decide(&mut self) -> Verdict {
        if let Some(kind) = self.attempt.transport {
            return self.transport(kind);
        }
        if let Some(row) = self.first(DETECTORS) {
            return self.by_row(row, Vec::new());
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
            rule.seen.is_none_or(|e| self.sight.seen.has(e))
                && rule.on.has(self.status)
                && self.sight.is(rule.providers)
                && (rule.cooldown != CatalogCooldown::Stated || self.worded().is_some())
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
        // A rule that says that the money is gone, and not for how long, means what the reason means.
        let money_is_gone = reason == Reason::CreditsExhausted && rule.verdict.cooldown_ms.is_none();
        if money_is_gone && matches!(rule.verdict.scope, Scope::Connection | Scope::Provider) {
            verdict.terminal = Some(Terminal::CreditsExhausted);
        }
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
        let seen = self.sight.seen;
        let is_transport = self.attempt.transport.is_some();
        let error_type = if is_transport { None } else { error_type(self.status, outcome.reason, &self.sight) };
        let declared = id.starts_with("rule.") || id.starts_with("catalog.");
        let terminal = if !declared && !is_transport { self.terminal(error_type, &outcome) } else { None };
        let quota_reset = outcome.reason == Reason::QuotaExhausted && (timer.daily || timer.source.is_some_and(WaitSource::stated));
        let counts = kind::counts_for_breaker(kind::BreakerInput {
            status: if is_transport { None } else { Some(self.status) },
            seen,
            reason: outcome.reason,
            scope: outcome.scope,
            skip: outcome.skip_breaker || self.attempt.via_proxy,
            bridge: self.sight.is(&["chatgpt-web"]),
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
            restated_status: self.restated.map(|r| r.status).or((!is_transport && self.attempt.status < 300).then_some(self.status)),
            restated_wait_ms: self.restated.and_then(|r| r.wait_ms).filter(|_| self.stated().is_none()),
            decided_by: Arc::from(id),
            rule: None,
            shadow_rules,
            exact_wait: false,
        }
    }

    fn terminal(&self, error_type: Option<&'static str>, outcome: &Outcome) -> Option<Terminal> {
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
            && self.sight.is(&["mistral"])
            && serde_json::from_slice::<std::collections::BTreeMap<String, String>>(self.attempt.body)
                .is_ok_and(|m| m.len() == 1 && m.get("detail").is_some_and(|d| d == "Unauthorized"))
    }
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
