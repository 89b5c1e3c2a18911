//! Status of a Connection.

use super::conditions::{Said, conditions, stamp};
use super::{Patience, Subject, World, count, is_blind, serving, time, unknown, verdict};
use crate::api;
use crate::api::conditions::AvailableReason;
use crate::api::status::{Commands, ConnectionStatus, LockoutStatus, MAX_LOCKOUTS, PodCounts};
use crate::operator::object::ObjectKind;
use crate::resilience::{BreakerPhase, ConnectionPhase, ConnectionState, ProviderState};

/// The status of a Connection.
#[must_use]
pub fn connection(world: &World<'_>, patience: &mut Patience, object: &api::Connection) -> ConnectionStatus {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let before = object.status.clone().unwrap_or_default();
    let fragment = format!("Connection/{name}");
    let state = world.fleet.connections.get(name);
    let provider = world.fleet.providers.get(&object.spec.provider_ref.name);
    let available = unknown(world, &fragment, &before.conditions).unwrap_or_else(|| available(world, state, provider));
    let generation = object.metadata.generation.unwrap_or(1);
    let subject =
        Subject { kind: ObjectKind::Connection, name, generation, before: &before.conditions, observed: before.observed_generation };
    let verdict = verdict(world, &subject, patience, available);
    let mut status = ConnectionStatus {
        observed_generation: generation,
        conditions: conditions(&before.conditions, &verdict, generation, world.now),
        pods: Some(PodCounts { reporting: count(world.fleet.reporting), total: count(world.fleet.ready) }),
        commands: commands(world, &fragment),
        ..ConnectionStatus::default()
    };
    match state {
        Some(state) => fill(&mut status, state),
        // Nobody reports: what was known last is better than nothing, as long as `Available` says that it is old.
        None if is_blind(world, &fragment) => keep(&mut status, &before),
        None => {}
    }
    status.last_transition_time = match (&status.state, &before.state) {
        (Some(new), Some(old)) if new == old => before.last_transition_time,
        (Some(_), _) => Some(stamp(world.now)),
        (None, _) => None,
    };
    status
}

fn fill(status: &mut ConnectionStatus, state: &ConnectionState) {
    status.state = Some(format!("{:?}", state.state));
    status.reason.clone_from(&state.reason);
    status.until = time(state.until);
    status.wait_source.clone_from(&state.wait_source);
    status.backoff_level = Some(count(state.backoff_level));
    status.strikes = Some(count(state.strikes));
    status.last_error_status = state.last_status.map(i32::from);
    let mut locks: Vec<LockoutStatus> = state
        .lockouts
        .iter()
        .filter_map(|l| Some(LockoutStatus { model: l.model.clone(), reason: l.reason.clone(), until: time(l.until)?, exact: l.exact }))
        .collect();
    // The longest first: when room runs out, those that end soonest are the ones to leave out.
    locks.sort_by(|a, b| b.until.cmp(&a.until).then_with(|| a.model.cmp(&b.model)).then_with(|| a.exact.cmp(&b.exact)));
    let omitted = locks.len().saturating_sub(MAX_LOCKOUTS).saturating_add(state.lockouts_omitted as usize);
    locks.truncate(MAX_LOCKOUTS);
    status.lockouts = locks;
    status.lockouts_omitted = (omitted > 0).then(|| count(omitted));
}

fn keep(status: &mut ConnectionStatus, before: &ConnectionStatus) {
    *status = ConnectionStatus {
        observed_generation: status.observed_generation,
        conditions: std::mem::take(&mut status.conditions),
        pods: status.pods.take(),
        commands: status.commands.take().or_else(|| before.commands.clone()),
        ..before.clone()
    };
}

/// The confirmed commands of an object.
pub(super) fn commands(world: &World<'_>, fragment: &str) -> Option<Commands> {
    let commands = Commands {
        clear_cooldown: world.fleet.confirmed(&format!("{fragment}/clearCooldown")),
        reset: world.fleet.confirmed(&format!("{fragment}/reset")),
    };
    (commands != Commands::default()).then_some(commands)
}

fn available(world: &World<'_>, state: Option<&ConnectionState>, provider: Option<&ProviderState>) -> Said {
    let Some(state) = state else { return serving(world, "no gateway pod reports it yet".to_owned()).downgrade() };
    if let Some((reason, message)) = blocked(state, provider) {
        return Said::no(reason, message);
    }
    let message = match state.lockouts.len() {
        0 => "in rotation".to_owned(),
        n => format!("in rotation; {n} model{} of it rest", if n == 1 { "" } else { "s" }),
    };
    serving(world, message)
}

/// Why a connection cannot serve anything now.
pub(super) fn blocked(state: &ConnectionState, provider: Option<&ProviderState>) -> Option<(AvailableReason, String)> {
    let until = |until: Option<api::time::EpochMs>| until.map_or_else(String::new, |u| format!(" until {u}"));
    let why = state.reason.as_deref().unwrap_or("unknown reason");
    let terminal = |reason: AvailableReason, help: &str| {
        Some((reason, format!("{why}: {help}; it takes no traffic until the credential changes or `{}` is set", api::ANNOTATION_RESET)))
    };
    match state.state {
        ConnectionPhase::Banned => return terminal(AvailableReason::Banned, "the account is closed or the key is revoked"),
        ConnectionPhase::Expired => return terminal(AvailableReason::Expired, "the credential is no longer accepted"),
        ConnectionPhase::CreditsExhausted => return terminal(AvailableReason::CreditsExhausted, "the account has no money left"),
        ConnectionPhase::Cooling | ConnectionPhase::RequestRejected => {
            return Some((AvailableReason::CoolingDown, format!("{why}: rests{}", until(state.until))));
        }
        ConnectionPhase::Active => {}
    }
    let provider = provider?;
    if provider.breaker.state == BreakerPhase::Open {
        return Some((
            AvailableReason::BreakerOpen,
            format!("the breaker of Provider `{}` is open{}", provider.name, until(provider.breaker.until)),
        ));
    }
    let window = provider.window.as_ref()?;
    Some((AvailableReason::CoolingDown, format!("Provider `{}` rests{}", provider.name, until(window.until))))
}

impl Said {
    /// Nothing is known although every pod answers.
    fn downgrade(self) -> Self {
        Self { status: super::conditions::Tri::Unknown, reason: AvailableReason::Unknown.to_string(), ..self }
    }
}
