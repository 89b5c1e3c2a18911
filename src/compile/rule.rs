//! Operator rules: the order in which they are asked, the providers they select, and those that can never fire.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::finding::hint;
use super::{Finding, Index, Severity};
use crate::api;
use crate::api::rule::{CooldownPolicy, LabelOperator, ProviderSelector, RuleMode, RuleReason, RuleScope, RuleTransport as ApiTransport};
use crate::classify::{Reason, Scope};
use crate::snapshot::{Rule, RuleTransport, RuleVerdict, Snapshot};

const KIND: &str = "OperatorErrorRule";

/// Failures have these statuses; 200 stands for an error inside a successful answer. A rule for others waits for what never comes.
fn can_fail(status: u16) -> bool {
    status == 200 || (400..=599).contains(&status)
}

pub(super) fn compile(index: &Index<'_>, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    let mut rules: Vec<Rule> = Vec::new();
    for resource in &index.rules {
        let name = resource.name_any();
        let mut problem = |field: &str, reason: &str, severity: Severity, message: String| {
            findings.push(Finding::new((KIND, &name), field, reason, severity, message))
        };
        let Some(providers) = providers(&resource.spec, index, &mut problem) else { continue };
        let Some(rule) = one(&name, &resource.spec, providers, &mut problem) else { continue };
        if let Some(earlier) = rules.iter().find(|earlier| covers(earlier, &rule)) {
            let message = format!(
                "never matches: `{}` comes first and matches everything that this rule does; raise `priority` of this one above it or make `{}` narrower",
                earlier.name, earlier.name
            );
            problem("spec.match", "NeverMatches", Severity::Error, message);
            continue;
        }
        rules.push(rule);
    }
    snapshot.rules = rules;
}

/// `None` = the rule cannot be used; `Some(None)` = all providers.
fn providers(
    spec: &api::OperatorErrorRuleSpec,
    index: &Index<'_>,
    problem: &mut impl FnMut(&str, &str, Severity, String),
) -> Option<Option<Vec<String>>> {
    if let Some(reference) = &spec.provider_ref {
        if !index.providers.contains_key(&reference.name) {
            let hint = hint(&reference.name, index.providers.keys().map(String::as_str));
            problem(
                "spec.providerRef.name",
                "ProviderNotFound",
                Severity::Unresolved,
                format!("Provider `{}` is not found in this namespace{hint}", reference.name),
            );
            return None;
        }
        return Some(Some(vec![reference.name.clone()]));
    }
    let Some(selector) = &spec.provider_selector else { return Some(None) };
    let selected: Vec<String> = index.providers.iter().filter(|(_, p)| selects(selector, p)).map(|(name, _)| name.clone()).collect();
    if selected.is_empty() {
        let message = "no Provider of this namespace has these labels: label one, or change the selector".to_owned();
        problem("spec.providerSelector", "ProviderNotFound", Severity::Unresolved, message);
        return None;
    }
    Some(Some(selected))
}

fn selects(selector: &ProviderSelector, provider: &api::Provider) -> bool {
    let labels = provider.labels();
    selector.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
        && selector.match_expressions.iter().all(|e| match (e.operator, labels.get(&e.key)) {
            (LabelOperator::In, value) => value.is_some_and(|v| e.values.contains(v)),
            (LabelOperator::NotIn, value) => value.is_none_or(|v| !e.values.contains(v)),
            (LabelOperator::Exists, value) => value.is_some(),
            (LabelOperator::DoesNotExist, value) => value.is_none(),
        })
}

fn one(
    name: &str,
    spec: &api::OperatorErrorRuleSpec,
    providers: Option<Vec<String>>,
    problem: &mut impl FnMut(&str, &str, Severity, String),
) -> Option<Rule> {
    let given = spec.matches.clone().unwrap_or_default();
    let statuses: Vec<u16> = given.statuses.iter().filter_map(|s| u16::try_from(*s).ok()).collect::<BTreeSet<_>>().into_iter().collect();
    let never: Vec<String> = statuses.iter().filter(|s| !can_fail(**s)).map(u16::to_string).collect();
    if !never.is_empty() && never.len() == statuses.len() {
        let message =
            format!("never matches: only 200 (an error inside the answer) and 400 to 599 can be failures, not {}", never.join(", "));
        problem("spec.match.statuses", "NeverMatches", Severity::Error, message);
        return None;
    }
    if !never.is_empty() {
        let message = format!(
            "{} can never match: only 200 (an error inside the answer) and 400 to 599 can be failures; remove what cannot",
            never.join(", ")
        );
        problem("spec.match.statuses", "NeverMatches", Severity::Warning, message);
    }
    if given.transport.is_some()
        && (!statuses.is_empty() || given.code.is_some() || given.error_type.is_some() || given.header.is_some() || given.text.is_some())
    {
        let message = "never matches: a failed transport has no status, code, type, header or text; give `transport` alone".to_owned();
        problem("spec.match.transport", "NeverMatches", Severity::Error, message);
        return None;
    }
    if let (Some(text), Some(not)) = (&given.text, &given.not_text)
        && text.to_lowercase().contains(&not.to_lowercase())
    {
        let message = format!("never matches: `text` contains `notText` (`{not}`), so a match always excludes itself");
        problem("spec.match.notText", "NeverMatches", Severity::Error, message);
        return None;
    }
    let verdict = &spec.verdict;
    let catch_all = spec.catch_all;
    Some(Rule {
        name: name.to_owned(),
        providers,
        statuses,
        text: given.text,
        not_text: given.not_text,
        code: given.code,
        error_type: given.error_type,
        header: given.header.map(|h| (h.name.to_ascii_lowercase(), h.value)),
        transport: given.transport.map(|t| match t {
            ApiTransport::Connect => RuleTransport::Connect,
            ApiTransport::Timeout => RuleTransport::Timeout,
            ApiTransport::Reset => RuleTransport::Reset,
            ApiTransport::Tls => RuleTransport::Tls,
        }),
        shadow: spec.mode == RuleMode::Shadow,
        catch_all,
        verdict: RuleVerdict {
            reason: verdict.reason.map(reason).or((!catch_all).then_some(Reason::QuotaExhausted)),
            scope: match verdict.scope {
                RuleScope::Model => Scope::Model,
                RuleScope::Connection => Scope::Connection,
                RuleScope::Provider => Scope::Provider,
            },
            cooldown_ms: verdict.cooldown.as_ref().and_then(|d| d.ms().ok()),
            at_least: catch_all || verdict.cooldown_policy == Some(CooldownPolicy::AtLeast),
            restate_status: verdict.restate_status.and_then(|s| u16::try_from(s).ok()),
        },
    })
}

fn reason(reason: RuleReason) -> Reason {
    match reason {
        RuleReason::AuthError => Reason::AuthError,
        RuleReason::QuotaExhausted => Reason::QuotaExhausted,
        RuleReason::CreditsExhausted => Reason::CreditsExhausted,
        RuleReason::RateLimitExceeded => Reason::RateLimitExceeded,
        RuleReason::ModelCapacity => Reason::ModelCapacity,
        RuleReason::ServerError => Reason::ServerError,
        RuleReason::NotFound => Reason::NotFound,
        RuleReason::ConcurrencyLimited => Reason::ConcurrencyLimited,
        RuleReason::RequestRejected => Reason::RequestRejected,
        RuleReason::ServiceNotRunning => Reason::ServiceNotRunning,
        RuleReason::Unknown => Reason::Unknown,
    }
}

/// Whether every failure that `later` matches is taken by `earlier`. A shadow rule takes nothing from one that acts.
fn covers(earlier: &Rule, later: &Rule) -> bool {
    fn same(a: &Option<String>, b: &Option<String>) -> bool {
        a.as_ref().is_none_or(|a| b.as_ref().is_some_and(|b| a.eq_ignore_ascii_case(b)))
    }
    let contains = |part: &Option<String>, whole: &Option<String>| {
        part.as_ref().is_none_or(|part| whole.as_ref().is_some_and(|whole| whole.to_lowercase().contains(&part.to_lowercase())))
    };
    earlier.shadow == later.shadow
        && earlier.catch_all == later.catch_all
        && match (&earlier.providers, &later.providers) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(a), Some(b)) => b.iter().all(|p| a.contains(p)),
        }
        && (earlier.statuses.is_empty() || (!later.statuses.is_empty() && later.statuses.iter().all(|s| earlier.statuses.contains(s))))
        && contains(&earlier.text, &later.text)
        // What `earlier` excludes must be excluded by `later` as well, or it leaves something for it.
        && earlier.not_text.as_ref().is_none_or(|a| later.not_text.as_ref().is_some_and(|b| a.to_lowercase().contains(&b.to_lowercase())))
        && same(&earlier.code, &later.code)
        && same(&earlier.error_type, &later.error_type)
        && match (&earlier.header, &later.header) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some((a, value)), Some((b, other))) => a == b && (value.is_none() || value == other),
        }
        && (earlier.transport.is_none() || earlier.transport == later.transport)
}
