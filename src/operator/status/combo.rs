//! Status of a Combo.

use super::conditions::{Said, conditions};
use super::connection::blocked;
use super::{Patience, Subject, World, count, is_blind, serving, time, unknown, verdict};
use crate::api;
use crate::api::conditions::AvailableReason;
use crate::api::status::{ComboStatus, TargetStatus};
use crate::api::time::EpochMs;
use crate::operator::object::ObjectKind;
use crate::resilience::lockout::{family_of, glob_matches};
use crate::resilience::{BreakerPhase, ConnectionState};
use crate::snapshot::{Combo, Connection, Provider, TargetKind};

/// Combos inside combos are followed this deep; the compiler refuses circles and deeper nesting.
const MAX_DEPTH: usize = 10;

/// The status of a Combo.
#[must_use]
pub fn combo(world: &World<'_>, patience: &mut Patience, object: &api::Combo) -> ComboStatus {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let fragment = format!("Combo/{name}");
    let compiled = world.snapshot.combos.iter().find(|c| c.name == name);
    let targets = compiled.map(|c| targets(world, c)).unwrap_or_default();
    let able = targets.iter().filter(|t| t.available).count();
    let available = unknown(world, &fragment, &before.conditions).unwrap_or_else(|| available(world, &targets, able));
    let generation = object.metadata.generation.unwrap_or(1);
    let subject = Subject { kind: ObjectKind::Combo, name, generation, before: &before.conditions, observed: before.observed_generation };
    let verdict = verdict(world, &subject, patience, available);
    let conditions = conditions(&before.conditions, &verdict, generation, world.now);
    if is_blind(world, &fragment) {
        return ComboStatus { observed_generation: generation, conditions, ..before };
    }
    ComboStatus {
        observed_generation: generation,
        conditions,
        strategy: compiled.map(|c| format!("{:?}", c.strategy)),
        targets_available: compiled.map(|_| count(able)),
        targets_total: compiled.map(|c| count(c.targets.len())),
        available: compiled.map(|_| format!("{able}/{}", targets.len())),
        targets,
    }
}

fn available(world: &World<'_>, targets: &[TargetStatus], able: usize) -> Said {
    if world.fleet.reporting == 0 {
        return serving(world, String::new());
    }
    let total = targets.len();
    if able > 0 {
        return serving(world, format!("{able} of {total} targets can serve"));
    }
    // RFC 3339 in UTC sorts by time.
    let earliest = targets.iter().filter_map(|t| t.until.as_deref()).min();
    let until = earliest.map_or_else(String::new, |u| format!("; the first one returns at {u}"));
    Said::no(AvailableReason::AllTargetsUnavailable, format!("none of {total} targets can serve{until}"))
}

/// Why something cannot serve, and until when.
type Block = (String, Option<EpochMs>);

fn targets(world: &World<'_>, combo: &Combo) -> Vec<TargetStatus> {
    combo
        .targets
        .iter()
        .map(|target| {
            let block = target_block(world, &target.kind, 0);
            TargetStatus {
                name: target.name.clone(),
                available: block.is_none(),
                until: time(block.as_ref().and_then(|b| b.1)),
                reason: block.map(|b| b.0),
            }
        })
        .collect()
}

fn target_block(world: &World<'_>, kind: &TargetKind, depth: usize) -> Option<Block> {
    match kind {
        TargetKind::Model { provider, model, connections } => model_block(world, provider, model, connections),
        TargetKind::Combo { combo } => {
            let inner = world.snapshot.combos.iter().find(|c| c.name == *combo).filter(|_| depth < MAX_DEPTH);
            let Some(inner) = inner else { return Some((AvailableReason::AllTargetsUnavailable.to_string(), None)) };
            least(inner.targets.iter().map(|t| target_block(world, &t.kind, depth + 1)), AvailableReason::AllTargetsUnavailable)
        }
    }
}

/// Nothing, if one of them can serve; otherwise the earliest that returns, or the common reason.
fn least(blocks: impl Iterator<Item = Option<Block>>, otherwise: AvailableReason) -> Option<Block> {
    let mut all = Vec::new();
    for block in blocks {
        all.push(block?);
    }
    let earliest = all.iter().filter(|(_, until)| until.is_some()).min_by_key(|(_, until)| *until).cloned();
    let common = all.first().filter(|first| all.iter().all(|b| b.0 == first.0)).cloned();
    Some(earliest.or(common).unwrap_or_else(|| (otherwise.to_string(), None)))
}

fn model_block(world: &World<'_>, provider: &str, model: &str, wanted: &[String]) -> Option<Block> {
    let Some(vendor) = world.snapshot.providers.iter().find(|p| p.name == provider) else {
        return Some((AvailableReason::AllConnectionsUnavailable.to_string(), None));
    };
    let candidates = world
        .snapshot
        .connections
        .iter()
        .filter(|c| c.provider == provider && (wanted.is_empty() || wanted.contains(&c.name)) && may_serve(c, model));
    least(candidates.map(|c| connection_block(world, vendor, c, model)), AvailableReason::AllConnectionsUnavailable)
}

fn may_serve(connection: &Connection, model: &str) -> bool {
    let model = model.to_lowercase();
    let hit = |globs: &[String]| globs.iter().any(|g| glob_matches(&g.to_lowercase(), &model));
    (connection.models_allow.is_empty() || hit(&connection.models_allow)) && !hit(&connection.models_deny)
}

fn connection_block(world: &World<'_>, vendor: &Provider, connection: &Connection, model: &str) -> Option<Block> {
    let Some(state) = world.fleet.connections.get(&connection.name) else {
        return Some((AvailableReason::Unknown.to_string(), None));
    };
    let provider = world.fleet.providers.get(&vendor.name);
    if let Some((reason, _)) = blocked(state, provider) {
        let until = match reason {
            AvailableReason::BreakerOpen => provider.and_then(|p| p.breaker.until),
            AvailableReason::CoolingDown => state.until.or_else(|| provider.and_then(|p| p.window.as_ref()?.until)),
            _ => None,
        };
        return Some((reason.to_string(), until));
    }
    debug_assert!(provider.is_none_or(|p| p.breaker.state != BreakerPhase::Open));
    lockout(state, vendor, model)
}

/// The lock of the model or of its quota family.
fn lockout(state: &ConnectionState, vendor: &Provider, model: &str) -> Option<Block> {
    let family = family_of(model, &vendor.quota_families);
    state
        .lockouts
        .iter()
        .filter(|lock| lock.model.eq_ignore_ascii_case(model) || (!lock.exact && family == Some(lock.model.as_str())))
        .max_by_key(|lock| lock.until)
        .map(|lock| (lock.reason.clone(), lock.until))
}
