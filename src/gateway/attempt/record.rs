//! What is noted of an attempt once its outcome is known: in the ledger, the metrics and the session.

use http::HeaderMap;

use crate::api::time::EpochMs;
use crate::classify::{self, Attempt, Failover, Reason, Scope, TransportError, Verdict};
use crate::gateway::clock;
use crate::gateway::config::Account;
use crate::gateway::pipeline::Shared;
use crate::resilience::Permit;
use crate::routing::redact;
use crate::snapshot::Provider;

/// What a failed attempt left behind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence<'a> {
    pub status: u16,
    pub headers: Option<&'a HeaderMap>,
    pub body: &'a [u8],
    pub transport: Option<TransportError>,
    pub via_proxy: bool,
}

/// Classifies a failure and tells the ledger.
pub(super) fn record_failure(
    shared: &Shared,
    account: &Account,
    provider: &Provider,
    permit: Permit,
    model: &str,
    evidence: &Evidence<'_>,
) -> Verdict {
    let gateway = shared.gateway();
    let now = clock::now();
    let pairs: Vec<(&str, &str)> = evidence
        .headers
        .into_iter()
        .flat_map(|headers| headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?))))
        .collect();
    let attempt = Attempt {
        provider: &provider.traits,
        model: Some(model),
        status: evidence.status,
        headers: &pairs,
        body: evidence.body,
        transport: evidence.transport,
        via_proxy: evidence.via_proxy,
    };
    let history = permit.history(Some(model), now);
    let mut verdict = classify::classify(&attempt, &history, &shared.loaded.rules);
    gateway.ledger().complete(&mut verdict, evidence.status, &history);
    let effects = gateway.ledger().failure(permit, Some(model), evidence.status, &verdict, now, clock::random().mul_add(2.0, -1.0));
    gateway.apply(&effects);
    account.attempts.failure(gateway.metrics(), verdict.reason);
    // What is said about one model is no limit of the account.
    if evidence.status == 429 && verdict.scope != Scope::Model {
        hear(account, evidence.body, now);
    }
    if verdict.failover == Failover::OtherConnection {
        shared.unbind(account);
    }
    if let Some(rule) = &verdict.rule {
        gateway.metrics().rule_match(rule, false);
    }
    for rule in &verdict.shadow_rules {
        gateway.metrics().rule_match(rule, true);
    }
    verdict
}

/// Keeps to the ceiling that a 429 states in words, from now on.
fn hear(account: &Account, body: &[u8], now: EpochMs) {
    let heard = account.learned.hear(body, now, |ceiling| account.limits.reached(ceiling, now));
    if let Some((ceiling, true)) = heard {
        let (requests, window_ms) = (ceiling.requests, ceiling.window_ms);
        tracing::info!(connection = %account.cell.name(), requests, window_ms, "the provider states a ceiling: requests keep to it from now on");
    }
}

/// Tells the ledger and the session that an attempt went well.
pub(super) fn record_success(shared: &Shared, account: &Account, permit: Permit, model: &str, response_id: Option<&str>) {
    let (gateway, now) = (shared.gateway(), clock::now());
    gateway.apply(&gateway.ledger().success(permit, Some(model), now));
    shared.bind(account, response_id, now);
    account.attempts.success(gateway.metrics());
}

/// What a log may say of an upstream's message: vendors repeat the key in answers about keys, so of those only the reason is kept.
pub(super) fn shown(verdict: &Verdict, message: &str) -> String {
    if verdict.reason == Reason::AuthError { verdict.reason.pascal().to_owned() } else { redact(message) }
}
