//! Who rests, as a running gateway reports it.

use crate::api::time::EpochMs;
use crate::classify::Reason;
use crate::resilience::{BreakerPhase, ConnectionPhase, ConnectionState, ProviderState, StateReport};
use crate::routing::{Exclusion, ExclusionReason, Live, Load, glob_matches};
use crate::snapshot::{QuotaFamily, Snapshot};

/// The states of a report, in the order of a snapshot's connections.
#[derive(Debug)]
pub(super) struct Reported {
    connections: Vec<(Option<ConnectionState>, Option<ProviderState>, Vec<QuotaFamily>)>,
}

impl Reported {
    /// Looks the connections of a snapshot up in a report; what it does not mention rests nowhere.
    pub(super) fn new(snapshot: &Snapshot, report: &StateReport) -> Self {
        let state = |connection: &crate::snapshot::Connection| {
            let own = report.connections.iter().find(|c| c.name == connection.name).cloned();
            let provider = report.providers.iter().find(|p| p.name == connection.provider).cloned();
            let families = snapshot.providers.iter().find(|p| p.name == connection.provider).map(|p| p.quota_families.clone());
            (own, provider, families.unwrap_or_default())
        };
        Self { connections: snapshot.connections.iter().map(state).collect() }
    }
}

/// Reasons are reported by their names.
fn cause(name: Option<&str>) -> Option<Reason> {
    serde_json::from_value(name?.into()).ok()
}

fn stated(source: Option<&str>) -> bool {
    source.is_some_and(|s| !matches!(s, "scaled" | "fixed"))
}

fn of_provider(provider: &ProviderState, now: EpochMs) -> Option<Exclusion> {
    let out = |reason, until| Some(Exclusion { reason, until, cause: None, stated: false });
    if provider.breaker.state == BreakerPhase::Open && provider.breaker.until.is_none_or(|u| u > now) {
        return out(ExclusionReason::CircuitOpen, provider.breaker.until);
    }
    let until = provider.window.as_ref()?.until.filter(|u| *u > now)?;
    out(ExclusionReason::ProviderCooldown, Some(until))
}

fn of_connection(connection: &ConnectionState, families: &[QuotaFamily], model: &str, now: EpochMs) -> Option<Exclusion> {
    let cause = cause(connection.reason.as_deref());
    let own = match connection.state {
        ConnectionPhase::Active | ConnectionPhase::RequestRejected => None,
        ConnectionPhase::Cooling => connection.until.is_none_or(|u| u > now).then_some(ExclusionReason::ConnectionCooldown),
        ConnectionPhase::CreditsExhausted | ConnectionPhase::Expired | ConnectionPhase::Banned => Some(ExclusionReason::Terminal),
    };
    if let Some(reason) = own {
        let until = connection.until.filter(|_| reason.is_timer());
        return Some(Exclusion { reason, until, cause, stated: stated(connection.wait_source.as_deref()) });
    }
    let in_family = |name: &str| families.iter().any(|f| f.name == name && f.models.iter().any(|glob| glob_matches(glob, model)));
    let locked = connection
        .lockouts
        .iter()
        .find(|lock| lock.until.is_none_or(|u| u > now) && (lock.model == model || (!lock.exact && in_family(&lock.model))))?;
    let cause = self::cause(Some(&locked.reason));
    Some(Exclusion { reason: ExclusionReason::ModelLockout, until: locked.until, cause, stated: true })
}

impl Live for Reported {
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        let Some((own, provider, families)) = self.connections.get(connection) else { return Ok(()) };
        let terminal_first = own.as_ref().and_then(|c| of_connection(c, families, model, now));
        match terminal_first.or_else(|| provider.as_ref().and_then(|p| of_provider(p, now))) {
            Some(exclusion) => Err(exclusion),
            None => Ok(()),
        }
    }

    fn load(&self, connection: usize) -> Load {
        let Some((Some(own), provider, _)) = self.connections.get(connection) else { return Load::default() };
        let probing = provider.as_ref().is_some_and(|p| p.breaker.state == BreakerPhase::HalfOpen);
        Load { in_flight: own.in_flight, backoff_level: own.backoff_level, last_status: own.last_status, probing }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resilience::{BreakerState, LockoutState};
    use crate::snapshot::{Connection, Provider};

    #[test]
    fn every_state_has_its_exclusion() {
        let now = EpochMs(1_000_000);
        let soon = Some(now.plus(5_000));
        let family = QuotaFamily { name: "pro".into(), models: vec!["*-pro".into()] };
        let provider = Provider { name: "p".into(), quota_families: vec![family], ..Provider::default() };
        let connection = Connection { name: "c".into(), provider: "p".into(), ..Connection::default() };
        let snapshot = Snapshot { providers: vec![provider], connections: vec![connection], ..Snapshot::default() };
        let check = |connection: ConnectionState, provider: ProviderState, model: &str| {
            let report = StateReport {
                connections: vec![ConnectionState { name: "c".into(), ..connection }],
                providers: vec![ProviderState { name: "p".into(), ..provider }],
                ..StateReport::default()
            };
            Reported::new(&snapshot, &report).check(0, model, now).err().map(|e| (e.reason, e.until, e.cause))
        };
        let idle = || (ConnectionState::default(), ProviderState::default());
        assert_eq!(check(idle().0, idle().1, "m"), None);
        let cooling = |until| ConnectionState {
            state: ConnectionPhase::Cooling,
            reason: Some("RateLimitExceeded".into()),
            until,
            ..ConnectionState::default()
        };
        let expected = Some((ExclusionReason::ConnectionCooldown, soon, Some(Reason::RateLimitExceeded)));
        assert_eq!(check(cooling(soon), idle().1, "m"), expected);
        assert_eq!(check(cooling(Some(EpochMs(1))), idle().1, "m"), None, "a past deadline keeps nobody out");
        let banned = ConnectionState { state: ConnectionPhase::Banned, ..ConnectionState::default() };
        assert_eq!(check(banned, idle().1, "m"), Some((ExclusionReason::Terminal, None, None)));
        let open = ProviderState {
            breaker: BreakerState { state: BreakerPhase::Open, until: soon, ..BreakerState::default() },
            ..ProviderState::default()
        };
        assert_eq!(check(idle().0, open, "m"), Some((ExclusionReason::CircuitOpen, soon, None)));
        let locked = |model: &str, exact| ConnectionState {
            lockouts: vec![LockoutState { model: model.into(), reason: "QuotaExhausted".into(), until: soon, exact }],
            ..ConnectionState::default()
        };
        let lock = Some((ExclusionReason::ModelLockout, soon, Some(Reason::QuotaExhausted)));
        assert_eq!(check(locked("m", true), idle().1, "m"), lock);
        assert_eq!(check(locked("m", true), idle().1, "n"), None);
        assert_eq!(check(locked("pro", false), idle().1, "gemini-pro"), lock);
        assert_eq!(check(locked("pro", false), idle().1, "gemini-flash"), None);
    }
}
