//! Single questions of the classifier, for callers that need no whole verdict.

use super::catalog::{CATALOG, CatalogCooldown};
use super::context::Context;
use super::evidence::Evidence;
use super::restatement::RESTATEMENTS;
use super::row::Row;
use super::{
    Attempt, FailureKind, History, ProviderTraits, Reason, RuleSet, Scope, detectors, global_table, kind, request_shape, transport,
};

/// The kind of a 429 (spec: resilience 8.2); any other status is transient.
#[must_use]
pub fn failure_kind(status: u16, raw_body: &[u8], rules: &RuleSet) -> FailureKind {
    let traits = ProviderTraits::default();
    with_context(&traits, status, raw_body, rules, |context| context.decide().kind)
}

/// Whether a 429 of that kind (`None` = not known) exhausts the whole account (spec: resilience 8.2).
#[must_use]
pub fn exhausts_account(provider: &ProviderTraits, raw_body: &[u8], failure: Option<FailureKind>, rules: &RuleSet) -> bool {
    with_context(provider, 429, raw_body, rules, |context| kind::exhausts_account(provider, context.found.seen, failure))
}

fn with_context<T>(provider: &ProviderTraits, status: u16, raw_body: &[u8], rules: &RuleSet, ask: impl FnOnce(&mut Context<'_>) -> T) -> T {
    let attempt = Attempt { provider, model: None, status, headers: &[], body: raw_body, transport: None, via_proxy: false };
    let history = History::fresh(crate::api::time::EpochMs(0), super::CooldownProfile::of(provider.auth_class));
    ask(&mut Context::new(&attempt, &history, rules))
}

/// A restated status.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestatedStatus {
    /// The right status.
    pub status: u16,
    /// The registry's id; `None` = an operator's rule.
    pub rule_id: Option<&'static str>,
    /// The wait for the client when the upstream states none, milliseconds.
    pub wait_ms: Option<u64>,
}

/// The restatement of an attempt, if its status is wrong (spec: resilience 10).
#[must_use]
pub fn restatement(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Option<RestatedStatus> {
    let mut context = Context::new(attempt, history, rules);
    context.restate();
    context.restated.map(|r| RestatedStatus { status: r.status, rule_id: r.rule_id, wait_ms: r.wait_ms })
}

/// What a rule says, before the engine computes anything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleMatch {
    /// `catalog.…`, or the name of the operator's rule.
    pub id: String,
    /// Reason.
    pub reason: Reason,
    /// Scope.
    pub scope: Scope,
    /// Its own cooldown, milliseconds.
    pub cooldown_ms: Option<u64>,
}

/// The catalog rule that holds for an attempt (lookup only).
#[must_use]
pub fn catalog_rule(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Option<RuleMatch> {
    let context = Context::new(attempt, history, rules);
    let rule = context.catalog_rule()?;
    let cooldown_ms = match rule.cooldown {
        CatalogCooldown::Normal => None,
        CatalogCooldown::Fixed(ms) => Some(ms),
        CatalogCooldown::Stated => context.worded().map(|w| w.ms),
    };
    Some(RuleMatch { id: rule.id.to_owned(), reason: rule.reason, scope: rule.scope, cooldown_ms })
}

/// The operator rule that holds for an attempt (lookup only).
#[must_use]
pub fn operator_rule(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Option<RuleMatch> {
    let context = Context::new(attempt, history, rules);
    let (rule, _) = rules.first(context.facts());
    rule.map(|r| RuleMatch {
        id: r.name.to_string(),
        reason: r.verdict.reason.unwrap_or(Reason::QuotaExhausted),
        scope: r.verdict.scope,
        cooldown_ms: r.verdict.cooldown_ms,
    })
}

/// Every table of rows, in the order in which they are asked.
#[must_use]
pub fn tables() -> [&'static [Row]; 5] {
    [detectors::DETECTORS, global_table::SPECIFIC, request_shape::REQUEST_SHAPE, global_table::TEXT_ROWS, global_table::STATUS_ROWS]
}

/// Every id of a built-in row that `disabledBuiltins` may name.
pub fn builtin_ids() -> impl Iterator<Item = &'static str> {
    let rows = tables().into_iter().flatten().map(|row| row.id);
    rows.chain(CATALOG.iter().map(|rule| rule.id)).chain(RESTATEMENTS.iter().map(|r| r.id))
}

/// Ids of verdicts that are not rows of a table: transport failures.
#[must_use]
pub fn transport_ids() -> &'static [&'static str] {
    transport::IDS
}

/// A built-in row that saw evidence and did not decide.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct NearMiss {
    /// Id of the row or name of the rule.
    pub id: String,
    /// Why it did not decide.
    pub why: String,
}

/// Rows whose evidence was seen but that did not decide, at most 20, in the order of the tables.
#[must_use]
pub fn near_misses(attempt: &Attempt<'_>, history: &History, rules: &RuleSet) -> Vec<NearMiss> {
    const LIMIT: usize = 20;
    if attempt.transport.is_some() {
        return Vec::new();
    }
    let mut context = Context::new(attempt, history, rules);
    context.restate();
    let decided = context.decide().decided_by;
    let seen = context.found.seen;
    let mut misses: Vec<NearMiss> = Vec::new();
    for row in tables().into_iter().flatten().filter(|row| seen.any(row.seen) && *row.id != *decided) {
        if let Some(why) = context.why_not(row, &decided)
            && !misses.iter().any(|m| m.id == row.id)
        {
            misses.push(NearMiss { id: row.id.to_owned(), why });
        }
    }
    for rule in CATALOG.iter().filter(|rule| rule.seen.is_some_and(|e: Evidence| seen.has(e)) && *rule.id != *decided) {
        let why = if rule.on.has(context.status) {
            "it is for other providers, or was asked too late".to_owned()
        } else {
            format!("it acts on {}", rule.on)
        };
        misses.push(NearMiss { id: rule.id.to_owned(), why });
    }
    misses.extend(context.near_rules(&decided));
    misses.truncate(LIMIT);
    misses
}
