//! Combos: references, identity of targets, cycles, names.

use std::collections::{BTreeMap, BTreeSet};

use super::convert::unsigned;
use super::finding::hint;
use super::{Finding, Index, Severity, age, names};
use crate::api;
use crate::snapshot::{
    self, Attempts, Auto, AutoRouter, ContextRules, Fusion, Handoff, JsonCondition, JsonPredicate, Snapshot, Strategy, StrategyOptions,
    Target, TargetKind, ValidateResponse,
};

pub(super) const KIND: &str = "Combo";

pub(super) fn compile(index: &Index<'_>, snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    let cyclic = cycles(index);
    let taken = model_names(index, findings);
    for (name, resource) in &index.combos {
        let mut problems = Vec::new();
        if let Some(path) = cyclic.get(name.as_str()) {
            let message = format!("refers to itself ({}): remove one of these references", path.join(" -> "));
            problems.push(Finding::new((KIND, name), "spec.targets", "CycleDetected", Severity::Error, message));
        }
        let combo = one(name, &resource.spec, index, snapshot, taken.get(name.as_str()).cloned().unwrap_or_default(), &mut problems);
        // A combo with one bad target still serves with the others; one without any, or in a cycle, does not.
        if let Some(combo) = combo.filter(|c| !c.targets.is_empty() && !cyclic.contains_key(name.as_str())) {
            snapshot.combos.push(combo);
        }
        findings.append(&mut problems);
    }
    drop_too_deep(snapshot, findings);
    super::composed::drop_from_lists(snapshot, findings);
    drop_dead_references(snapshot, findings);
    super::composed::note_nested_relays(snapshot, findings);
}

/// Combos that nest deeper than they allow.
fn drop_too_deep(snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    let deep: BTreeSet<String> =
        crate::routing::too_deep(&snapshot.combos).into_iter().filter_map(|i| Some(snapshot.combos.get(i)?.name.clone())).collect();
    for combo in snapshot.combos.iter().filter(|c| deep.contains(&c.name)) {
        let limit = combo.options.max_depth;
        let message = format!("max combo nesting depth: its targets nest more than {limit} levels deep; nest less or raise maxComboDepth");
        findings.push(Finding::new((KIND, &combo.name), "spec.maxComboDepth", "InvalidSpec", Severity::Error, message));
    }
    snapshot.combos.retain(|c| !deep.contains(&c.name));
}

/// The names that each combo serves: of two combos with one name the older keeps it.
fn model_names<'a>(index: &Index<'a>, findings: &mut Vec<Finding>) -> BTreeMap<&'a str, Vec<String>> {
    let mut by_age: Vec<&&api::Combo> = index.combos.values().collect();
    by_age.sort_by_key(|c| age(**c));
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    let mut served: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for combo in by_age {
        let Some(name) = combo.metadata.name.as_deref() else { continue };
        let wanted = if combo.spec.model_names.is_empty() { vec![name.to_owned()] } else { combo.spec.model_names.clone() };
        for (i, model) in wanted.into_iter().enumerate() {
            match owners.get(&model.to_lowercase()) {
                Some(owner) if *owner != name => {
                    let field =
                        if combo.spec.model_names.is_empty() { "metadata.name".to_owned() } else { format!("spec.modelNames[{i}]") };
                    let message = format!("model name `{model}` already belongs to Combo `{owner}`, which is older: choose another name");
                    findings.push(Finding::new((KIND, name), field, "DuplicateName", Severity::Error, message));
                }
                _ => {
                    owners.insert(model.to_lowercase(), name);
                    served.entry(name).or_default().push(model);
                }
            }
        }
    }
    served
}

/// For every combo on a cycle: the way round.
fn cycles<'a>(index: &Index<'a>) -> BTreeMap<&'a str, Vec<&'a str>> {
    let children = |name: &str| index.combos.get(name).into_iter().flat_map(|c| c.spec.targets.iter().filter_map(|t| t.combo.as_deref()));
    let mut found = BTreeMap::new();
    for start in index.combos.values().filter_map(|c| c.metadata.name.as_deref()) {
        let mut seen = BTreeSet::new();
        let mut stack: Vec<Vec<&str>> = vec![vec![start]];
        while let Some(path) = stack.pop() {
            let Some(last) = path.last() else { continue };
            for child in children(last) {
                let mut longer = path.clone();
                longer.push(child);
                if child == start {
                    found.entry(start).or_insert(longer);
                } else if seen.insert(child) {
                    stack.push(longer);
                }
            }
        }
    }
    found
}

fn one(
    name: &str,
    spec: &api::ComboSpec,
    index: &Index<'_>,
    snapshot: &Snapshot,
    model_names: Vec<String>,
    findings: &mut Vec<Finding>,
) -> Option<snapshot::Combo> {
    let strategy: Strategy = spec.strategy.into();
    let mut targets = Vec::new();
    // Names that are given keep others from being made like them, wherever they stand.
    let mut given: BTreeSet<&str> = BTreeSet::new();
    let mut used: BTreeSet<String> = spec.targets.iter().filter_map(|t| t.name.clone()).collect();
    for (i, target) in spec.targets.iter().enumerate() {
        let Some(kind) = kind(name, i, target, index, snapshot, findings) else { continue };
        if let Some(name_of_target) = target.name.as_deref().filter(|name| !given.insert(name)) {
            let message = format!("target name `{name_of_target}` stands twice: give each target its own `name`");
            findings.push(Finding::new((KIND, name), format!("spec.targets[{i}].name"), "DuplicateName", Severity::Error, message));
            continue;
        }
        targets.push(Target {
            name: target.name.clone().unwrap_or_else(|| made_name(&kind, &mut used)),
            kind,
            weight: unsigned(target.weight),
            fallback_only_on_quota_exhaustion: target.fallback_only_on_quota_exhaustion,
            prompt: target.prompt.clone(),
        });
    }
    // A step that is missing would be skipped in silence, and its successor would work on something else.
    if spec.strategy == api::combo::Strategy::Pipeline && targets.len() < spec.targets.len() {
        return None;
    }
    super::composed::check(name, spec, index, snapshot, findings)?;
    let ms = |d: &api::Duration| d.ms().unwrap_or(0);
    Some(snapshot::Combo {
        name: name.to_owned(),
        model_names,
        strategy,
        tier_order: tiers(name, spec, &targets, findings),
        targets,
        attempts: Attempts {
            max: unsigned(spec.attempts.max),
            per_target: spec.attempts.per_target.map_or(0, unsigned),
            retry_delay_ms: ms(&spec.attempts.retry_delay),
            max_set_retries: unsigned(spec.attempts.max_set_retries),
            set_retry_delay_ms: ms(&spec.attempts.set_retry_delay),
            fallback_delay_ms: ms(&spec.attempts.fallback_delay),
        },
        target_timeout_ms: ms(&spec.timeouts.target),
        total_timeout_ms: ms(&spec.timeouts.total),
        cooldown_wait: spec.cooldown_wait.enabled,
        context: context(spec),
        validate_response: validation(spec),
        options: options(spec),
    })
}

/// The name of a target that has none of its own: what it asks for, counted where that stands more than once.
fn made_name(kind: &TargetKind, used: &mut BTreeSet<String>) -> String {
    let base = match kind {
        TargetKind::Model { provider, model, .. } => format!("{provider}/{model}"),
        TargetKind::Combo { combo } => combo.clone(),
    };
    let mut name = base.clone();
    let mut count = 1_u32;
    while !used.insert(name.clone()) {
        count += 1;
        name = format!("{base}#{count}");
    }
    name
}

fn kind(
    name: &str,
    i: usize,
    target: &api::combo::Target,
    index: &Index<'_>,
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) -> Option<TargetKind> {
    let mut problem = |field: &str, reason: &str, severity: Severity, message: String| {
        findings.push(Finding::new((KIND, name), format!("spec.targets[{i}]{field}"), reason, severity, message));
    };
    if let Some(combo) = &target.combo {
        if !index.combos.contains_key(combo) {
            let hint = hint(combo, index.combos.keys().map(String::as_str));
            problem(".combo", "ComboNotFound", Severity::Unresolved, format!("Combo `{combo}` is not found in this namespace{hint}"));
            return None;
        }
        return Some(TargetKind::Combo { combo: combo.clone() });
    }
    let (Some(provider), Some(model)) = (&target.provider, &target.model) else {
        problem("", "InvalidSpec", Severity::Error, "must have `provider` and `model`, or `combo` alone".to_owned());
        return None;
    };
    known_model((KIND, name, &format!("spec.targets[{i}]")), (provider, model), index, snapshot, findings)?;
    let mut problem = |field: &str, reason: &str, severity: Severity, message: String| {
        findings.push(Finding::new((KIND, name), format!("spec.targets[{i}]{field}"), reason, severity, message));
    };
    let mut wanted: Vec<&String> = target.connections.iter().chain(&target.connection).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut connections = Vec::new();
    for connection in &wanted {
        match index.connections.get(*connection) {
            None => {
                let siblings = index.connections.iter().filter(|(_, c)| c.spec.provider_ref.name == *provider).map(|(n, _)| n.as_str());
                let hint = hint(connection, siblings);
                problem(
                    ".connections",
                    "ConnectionNotFound",
                    Severity::Unresolved,
                    format!("Connection `{connection}` is not found in this namespace{hint}"),
                );
            }
            Some(found) if found.spec.provider_ref.name != *provider => {
                let message = format!(
                    "Connection `{connection}` belongs to Provider `{}`, not to `{provider}`: name one of `{provider}`",
                    found.spec.provider_ref.name
                );
                problem(".connections", "InvalidSpec", Severity::Error, message);
            }
            Some(_) => connections.push((*connection).clone()),
        }
    }
    // All of the named ones missing must not mean "any": the target stays out until one is there.
    if !wanted.is_empty() && connections.is_empty() {
        return None;
    }
    Some(TargetKind::Model { provider: provider.clone(), model: model.clone(), connections })
}

/// Whether a provider can be used; says so when it or its model is not known. The first is the kind, the
/// name and the field that ask for it.
pub(super) fn known_model(
    (kind, name, field): (&str, &str, &str),
    (provider, model): (&str, &str),
    index: &Index<'_>,
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) -> Option<()> {
    let mut problem = |member: &str, reason: &str, severity: Severity, message: String| {
        findings.push(Finding::new((kind, name), format!("{field}.{member}"), reason, severity, message));
    };
    let Some(known) = snapshot.providers.iter().find(|p| p.name == *provider) else {
        let message = if index.providers.contains_key(provider) {
            format!("Provider `{provider}` has errors of its own: see its conditions")
        } else {
            format!("Provider `{provider}` is not found in this namespace{}", hint(provider, index.providers.keys().map(String::as_str)))
        };
        problem("provider", "ProviderNotFound", Severity::Unresolved, message);
        return None;
    };
    if !known.models.is_empty() && !known.models.iter().any(|m| m.name == *model) {
        let near = crate::api::near::suggest(model, known.models.iter().map(|m| m.name.as_str()));
        let message = match near {
            Some(near) => {
                format!("model `{model}` is not known to Provider `{provider}`; did you mean `{near}`? It is asked for as written")
            }
            None => format!(
                "model `{model}` is not known to Provider `{provider}`: add it to `models` there if it exists. It is asked for as written"
            ),
        };
        // Vendors add models every week: a name outside an open list is worth a word only if it looks like a slip.
        if near.is_some() || !known.open_model_list {
            problem("model", "InvalidSpec", Severity::Warning, message);
        }
    }
    Some(())
}

/// Nested references to combos that did not compile are dropped, until nothing changes.
fn drop_dead_references(snapshot: &mut Snapshot, findings: &mut Vec<Finding>) {
    loop {
        let alive: BTreeSet<String> = snapshot.combos.iter().map(|c| c.name.clone()).collect();
        for combo in &mut snapshot.combos {
            let (name, before) = (combo.name.clone(), combo.targets.len());
            combo.targets.retain(|t| match &t.kind {
                TargetKind::Combo { combo } if !alive.contains(combo) => {
                    let message = format!("Combo `{combo}` cannot be used: see its conditions");
                    findings.push(Finding::new((KIND, &name), "spec.targets", "ComboNotFound", Severity::Unresolved, message));
                    false
                }
                _ => true,
            });
            // Steps are not alternatives: a pipeline serves with all of them or not at all.
            if combo.strategy == Strategy::Pipeline && combo.targets.len() < before {
                combo.targets.clear();
            }
        }
        let before = snapshot.combos.len();
        snapshot.combos.retain(|c| !c.targets.is_empty());
        if snapshot.combos.len() == before {
            return;
        }
    }
}

/// Composite tiers: the default tier, its chain of fallbacks, then the remaining tiers; targets of no tier follow in declared order.
fn tiers(name: &str, spec: &api::ComboSpec, targets: &[Target], findings: &mut Vec<Finding>) -> Vec<String> {
    let Some(tiers) = &spec.composite_tiers else { return Vec::new() };
    let known: BTreeSet<&str> = targets.iter().map(|t| t.name.as_str()).collect();
    let mut order: Vec<String> = Vec::new();
    let mut next = tiers.tiers.iter().find(|t| t.name == tiers.default_tier);
    let mut visited = BTreeSet::new();
    while let Some(tier) = next.filter(|t| visited.insert(t.name.as_str())) {
        order.push(tier.target.clone());
        next = tier.fallback_tier.as_ref().and_then(|f| tiers.tiers.iter().find(|t| t.name == *f));
    }
    order.extend(tiers.tiers.iter().filter(|t| !visited.contains(t.name.as_str())).map(|t| t.target.clone()));
    for (i, tier) in tiers.tiers.iter().enumerate().filter(|(_, t)| !known.contains(t.target.as_str())) {
        let message = format!("target `{}` is not one of this combo; its targets are {}", tier.target, names(&known));
        findings.push(Finding::new(
            (KIND, name),
            format!("spec.compositeTiers.tiers[{i}].target"),
            "InvalidSpec",
            Severity::Error,
            message,
        ));
    }
    let mut seen = BTreeSet::new();
    order.retain(|t| known.contains(t.as_str()) && seen.insert(t.clone()));
    order
}

fn context(spec: &api::ComboSpec) -> ContextRules {
    let Some(given) = &spec.context else { return ContextRules::default() };
    let size = |n: i32| u64::from(unsigned(n));
    ContextRules {
        min_window: given.min_window.map(size),
        max_window: given.max_window.map(size),
        drop_unknown: given.unknown == api::combo::UnknownWindow::Drop,
        prefer_large: given.prefer_large,
    }
}

fn validation(spec: &api::ComboSpec) -> ValidateResponse {
    let Some(given) = &spec.validate_response else { return ValidateResponse::default() };
    ValidateResponse {
        min_content_length: u64::from(unsigned(given.min_content_length)),
        forbidden: given.forbidden.clone(),
        required: given.required.clone(),
        json: given
            .json
            .iter()
            .map(|p| JsonPredicate {
                path: p.path.clone(),
                condition: match p.condition {
                    api::combo::JsonCondition::Exists => JsonCondition::Exists,
                    api::combo::JsonCondition::NonEmpty => JsonCondition::NonEmpty,
                    api::combo::JsonCondition::Equals => JsonCondition::Equals,
                    api::combo::JsonCondition::NotEquals => JsonCondition::NotEquals,
                },
                value: p.value.clone(),
            })
            .collect(),
    }
}

fn options(spec: &api::ComboSpec) -> StrategyOptions {
    let ms = |d: &api::Duration| d.ms().unwrap_or(0);
    StrategyOptions {
        sticky_weighted_limit: unsigned(spec.sticky_weighted_limit),
        sticky_round_robin_limit: spec.sticky_round_robin_limit.map(unsigned),
        disable_session_stickiness: spec.disable_session_stickiness,
        quota_share: spec.quota_share,
        queue_depth: unsigned(spec.queue_depth),
        queue_timeout_ms: ms(&spec.queue_timeout),
        concurrency_per_model: unsigned(spec.concurrency_per_model),
        hedge_delay_ms: (spec.hedging && spec.zero_latency_optimizations_enabled).then(|| ms(&spec.hedge_delay)),
        predictive_ttft_ms: if spec.zero_latency_optimizations_enabled { ms(&spec.predictive_ttft) } else { 0 },
        reset_aware_tie_band_percent: unsigned(spec.reset_aware_tie_band_percent),
        reset_aware_exhaustion_guard_percent: unsigned(spec.reset_aware_exhaustion_guard_percent),
        quota_weighted_floor_percent: unsigned(spec.quota_weighted_floor_percent),
        reset_window_tie_band_ms: ms(&spec.reset_window_tie_band),
        max_depth: unsigned(spec.max_combo_depth),
        handoff: (spec.strategy == api::combo::Strategy::ContextRelay).then(|| Handoff {
            threshold_percent: unsigned(spec.handoff_threshold_percent),
            model: spec.handoff_model.as_ref().map(|m| (m.provider.clone(), m.model.clone())),
            providers: spec.handoff_providers.clone(),
            max_messages: unsigned(spec.max_messages_for_summary),
        }),
        fusion: spec.fusion.as_ref().map(|f| Fusion {
            judge: f.judge.as_ref().map(|j| (j.provider.clone(), j.model.clone())),
            min_panel: unsigned(f.min_panel),
            max_panel: unsigned(f.max_panel),
            straggler_grace_ms: ms(&f.straggler_grace),
            timeout_ms: ms(&f.timeout),
        }),
        auto: spec.auto.as_ref().map(|a| Auto {
            router_strategy: match a.router_strategy {
                api::combo::RouterStrategy::Rules => AutoRouter::Rules,
                api::combo::RouterStrategy::Cost => AutoRouter::Cost,
                api::combo::RouterStrategy::Latency => AutoRouter::Latency,
                api::combo::RouterStrategy::SlaAware => AutoRouter::SlaAware,
                api::combo::RouterStrategy::Lkgp => AutoRouter::Lkgp,
            },
            sla_target_p95_ms: ms(&a.sla.target_p95),
            sla_max_error_rate_percent: unsigned(a.sla.max_error_rate_percent),
            sla_hard_constraints: a.sla.hard_constraints,
        }),
    }
}
