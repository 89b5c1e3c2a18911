//! Status of a Provider.

use super::conditions::{Said, conditions};
use super::connection::{blocked, commands};
use super::{Patience, Subject, World, count, is_blind, serving, time, unknown, verdict};
use crate::api;
use crate::api::conditions::AvailableReason;
use crate::api::status::{BreakerStatus, ConnectionCounts, ProviderStatus, WindowStatus};
use crate::operator::object::ObjectKind;
use crate::resilience::{BreakerPhase, ConnectionPhase};

/// The status of a Provider.
#[must_use]
pub fn provider(world: &World<'_>, patience: &mut Patience, object: &api::Provider) -> ProviderStatus {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let fragment = format!("Provider/{name}");
    let state = world.fleet.providers.get(name);
    let counts = counts(world, name);
    let available = unknown(world, &fragment, &before.conditions).unwrap_or_else(|| available(world, name, &counts));
    let generation = object.metadata.generation.unwrap_or(1);
    let subject =
        Subject { kind: ObjectKind::Provider, name, generation, before: &before.conditions, observed: before.observed_generation };
    let verdict = verdict(world, &subject, patience, available);
    let conditions = conditions(&before.conditions, &verdict, generation, world.now);
    if is_blind(world, &fragment) {
        return ProviderStatus { observed_generation: generation, conditions, ..before };
    }
    ProviderStatus {
        observed_generation: generation,
        conditions,
        breaker: state.map(|state| BreakerStatus {
            state: format!("{:?}", state.breaker.state),
            failures: count(state.breaker.failures),
            until: time(state.breaker.until),
            open_cycles: count(state.breaker.open_cycles),
        }),
        window: state.and_then(|s| s.window.as_ref()).map(|w| WindowStatus { until: time(w.until) }),
        connections: world.snapshot.fragments.contains_key(&fragment).then_some(counts),
        commands: commands(world, &fragment),
    }
}

/// Counts the connections of a provider that are part of the configuration, as the pods see them.
fn counts(world: &World<'_>, provider: &str) -> ConnectionCounts {
    let mut counts = ConnectionCounts::default();
    for connection in world.snapshot.connections.iter().filter(|c| c.provider == provider) {
        counts.total += 1;
        match world.fleet.connections.get(&connection.name).map(|c| c.state) {
            Some(ConnectionPhase::Active) => counts.active += 1,
            Some(ConnectionPhase::Cooling | ConnectionPhase::RequestRejected) => counts.cooling += 1,
            Some(ConnectionPhase::Banned | ConnectionPhase::Expired | ConnectionPhase::CreditsExhausted) => counts.terminal += 1,
            None => {}
        }
    }
    counts
}

fn available(world: &World<'_>, name: &str, counts: &ConnectionCounts) -> Said {
    if let Some(state) = world.fleet.providers.get(name) {
        // A connection without troubles of its own shows those of the provider.
        if let Some((reason, message)) = blocked(&crate::resilience::ConnectionState::default(), Some(state)) {
            return Said::no(reason, message);
        }
        if counts.active > 0 {
            let degraded = if state.breaker.state == BreakerPhase::Degraded { "; its breaker counts failures" } else { "" };
            return serving(world, format!("{} of {} connections in rotation{degraded}", counts.active, counts.total));
        }
    }
    if counts.total == 0 {
        return Said::no(AvailableReason::AllConnectionsUnavailable, "no usable Connection refers to it");
    }
    if counts.active + counts.cooling + counts.terminal == 0 {
        return Said::unknown(AvailableReason::Unknown, "no gateway pod reports its connections yet");
    }
    Said::no(
        AvailableReason::AllConnectionsUnavailable,
        format!("none of {} connections is in rotation: {} rest, {} need somebody", counts.total, counts.cooling, counts.terminal),
    )
}
