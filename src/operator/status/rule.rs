//! Status of an OperatorErrorRule.

use super::conditions::conditions;
use super::{Patience, Subject, World, serving, time, unknown, verdict};
use crate::api;
use crate::api::status::RuleStatus;
use crate::operator::object::ObjectKind;

/// The status of an OperatorErrorRule.
#[must_use]
pub fn rule(world: &World<'_>, patience: &mut Patience, object: &api::OperatorErrorRule) -> RuleStatus {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let fragment = format!("OperatorErrorRule/{name}");
    let available = unknown(world, &fragment, &before.conditions).unwrap_or_else(|| serving(world, "in force".to_owned()));
    let generation = object.metadata.generation.unwrap_or(1);
    let subject =
        Subject { kind: ObjectKind::OperatorErrorRule, name, generation, before: &before.conditions, observed: before.observed_generation };
    let verdict = verdict(world, &subject, patience, available);
    let counted = world.fleet.rules.get(name);
    let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    RuleStatus {
        observed_generation: generation,
        conditions: conditions(&before.conditions, &verdict, generation, world.now),
        matches: counted.map(|c| number(c.matches)).or(before.matches),
        shadow_matches: counted.map(|c| number(c.shadow_matches)).or(before.shadow_matches),
        last_match_time: counted.map_or(before.last_match_time, |c| time(c.last_match_time)),
    }
}
