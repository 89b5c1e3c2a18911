//! What an attempt shows: body, evidence, waits, and the conditions of rows on them. Nothing is decided here.

use std::cell::OnceCell;

use super::body::{self, Body};
use super::catalog;
use super::evidence::{Evidence, Seen};
use super::hints::{self, Clock, Wait};
use super::kind;
use super::restatement::RESTATEMENTS;
use super::row::{Only, Row};
use super::rules::{Facts, RuleSet};
use super::scan::Found;
use super::{Attempt, AuthClass, History, NearMiss, ProviderTraits, Reason, RetryHints, WaitSource};

/// What an attempt shows, before anything is decided.
pub(super) struct Sight<'a> {
    /// Evidence.
    pub seen: Seen,
    /// Traits of the provider.
    pub provider: &'a ProviderTraits,
    /// The provider is a subscription's, or unknown.
    pub oauth_or_unknown: bool,
}

impl Sight<'_> {
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
    pub(super) attempt: &'a Attempt<'a>,
    pub(super) history: &'a History,
    pub(super) rules: &'a RuleSet,
    pub(super) body: Body<'a>,
    pub(super) found: Found,
    pub(super) sight: Sight<'a>,
    /// Status that is classified: restated, or of an error inside a 200.
    pub(super) status: u16,
    pub(super) restated: Option<Restated>,
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

impl<'a> Context<'a> {
    /// Reads the attempt.
    pub(super) fn new(attempt: &'a Attempt<'a>, history: &'a History, rules: &'a RuleSet) -> Self {
        let body = body::read(attempt.body);
        let mut found = rules.scan(&body, attempt.body);
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
        let status = if attempt.status < 300 { body.status.unwrap_or(502) } else { attempt.status };
        let china = found.seen.has(Evidence::ChinaTime)
            || (has_wait_clause(&found) && catalog::facts(&provider.catalog_id).is_some_and(|f| f.china_time))
            || body.codes.iter().any(|c| c == "1308" || c == "1310");
        let oauth_or_unknown = provider.auth_class == AuthClass::OAuth || provider.is_unknown();
        let sight = Sight { seen: found.seen, provider, oauth_or_unknown };
        Self {
            attempt,
            history,
            rules,
            body,
            found,
            sight,
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
            let restated = self.rules.first_restating(self.facts()).and_then(|r| r.verdict.restate_status);
            if let Some(status) = restated {
                self.restated = Some(Restated { status, rule_id: None, wait_ms: None });
                self.status = status;
                return;
            }
        }
        let seen = self.sight.seen;
        let row = RESTATEMENTS.iter().find(|r| {
            seen.has(r.marker) && !seen.has(r.veto) && r.from.contains(&self.status) && self.sight.is(r.providers) && self.rules.acts(r.id)
        });
        if let Some(row) = row {
            let restated = Restated { status: row.to, rule_id: Some(row.rule_id), wait_ms: Some(row.default_wait_ms) };
            self.restated = Some(restated);
            self.status = row.to;
        }
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        Facts::of(self.attempt, self.status, &self.body, &self.found)
    }

    /// Whether every condition of a row holds.
    pub(super) fn holds(&self, row: &Row) -> bool {
        let seen = self.sight.seen;
        (row.seen.is_empty() || seen.any(row.seen))
            && !seen.any(row.unless)
            && row.on.has(self.status)
            && (!row.gate || self.gate())
            && row.only.iter().all(|only| self.only(*only))
            && self.rules.acts(row.id)
    }

    /// The quota gate (QS).
    pub(super) fn gate(&self) -> bool {
        kind::gate(self.attempt.provider, self.status, self.sight.seen)
    }

    /// One further condition.
    pub(super) fn only(&self, only: Only) -> bool {
        let seen = self.sight.seen;
        let provider = self.attempt.provider;
        match only {
            Only::Providers(ids) => self.sight.is(ids),
            Only::GoogleCloud => self.sight.google_cloud(),
            Only::GeminiMetric => seen.has(Evidence::GeminiMetric),
            Only::ApiKey => !self.sight.oauth_or_unknown,
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

    pub(super) fn declares_short(&self) -> bool {
        hints::declares_short(&self.body, &self.found, self.clock)
    }

    /// The wait of headers, RetryInfo and fields.
    pub(super) fn typed(&self) -> Option<Wait> {
        *self.typed.get_or_init(|| hints::typed(self.attempt.headers, &self.body, self.status, self.clock))
    }

    /// Any stated wait.
    pub(super) fn stated(&self) -> Option<Wait> {
        self.typed().or_else(|| self.worded())
    }

    /// The wait of the wording.
    pub(super) fn worded(&self) -> Option<Wait> {
        *self.worded.get_or_init(|| {
            if !has_wait_clause(&self.found) {
                return None;
            }
            hints::words(&self.body, &self.found, self.sight.seen.has(Evidence::Weekly), self.clock)
        })
    }

    /// The stated wait that counts for a reason: `retryHints` governs rate limits, a quota's reset always counts (decisions 9.5).
    pub(super) fn honoured(&self, reason: Reason) -> Option<Wait> {
        if matches!(reason, Reason::QuotaExhausted | Reason::CreditsExhausted) {
            return self.stated();
        }
        match self.history.profile.retry_hints {
            RetryHints::None => None,
            RetryHints::Typed => self.typed(),
            RetryHints::All => self.stated(),
        }
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
        if self.sight.seen.any(row.unless) {
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
    pub(super) fn near_rules(&self, decided: &str) -> Vec<NearMiss> {
        let facts = self.facts();
        let misses = self.rules.rules.iter().filter(|r| r.text_is_in(&self.found) && format!("rule.{}", r.name) != decided);
        misses
            .map(|r| NearMiss {
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
