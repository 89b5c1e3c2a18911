//! What the gateway pods of a namespace say, as one. Pure.
//!
//! Only ready pods count, because only they serve. A pod that is silent is unknown, never healthy.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::time::EpochMs;
use crate::resilience::{
    BreakerPhase, ConnectionPhase, ConnectionState, FindingState, ProviderState, RuleState, StateReport, merge_connections,
    merge_providers, merge_rules,
};

/// How long a passed deadline may still be shown: a look at the pod that comes right after it decides what follows, so that an account
/// that is refused again at once does not flap.
pub const GRACE_MS: u64 = 1_500;

/// One pod.
#[derive(Clone, Debug, Default)]
pub struct PodView {
    /// Serves, as the kubelet says.
    pub ready: bool,
    /// Is being deleted.
    pub terminating: bool,
    /// Has not answered for a while.
    pub silent: bool,
    /// Its last answer.
    pub state: Option<Arc<StateReport>>,
}

/// What runs where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Ready pods that run it.
    pub running: usize,
    /// Ready pods.
    pub ready: usize,
}

impl Spread {
    /// Whether every ready pod runs it, and there is one.
    #[must_use]
    pub fn everywhere(self) -> bool {
        self.ready > 0 && self.running == self.ready
    }
}

/// All pods as one.
#[derive(Clone, Debug, Default)]
pub struct Fleet {
    /// Ready pods that have been asked.
    pub ready: usize,
    /// Ready pods that answer.
    pub reporting: usize,
    /// Why a pod refused the newest snapshot.
    pub refused: Option<String>,
    /// Providers by name.
    pub providers: BTreeMap<String, ProviderState>,
    /// Connections by name.
    pub connections: BTreeMap<String, ConnectionState>,
    /// Rules by name.
    pub rules: BTreeMap<String, RuleState>,
    /// What pods find wrong by themselves, each once, with the number of pods that say so.
    pub findings: Vec<(FindingState, usize)>,
    /// When something changes by itself next.
    pub next_change: Option<EpochMs>,
    states: Vec<Arc<StateReport>>,
}

impl Fleet {
    /// Merges what pods say, as it is at `now`.
    #[must_use]
    pub fn of(pods: &[PodView], now: EpochMs) -> Self {
        // A pod that has only just become ready is asked within a second; until then it is as if it were not ready yet.
        let asked = |p: &&PodView| p.silent || p.state.is_some();
        let serving: Vec<&PodView> = pods.iter().filter(|p| p.ready && !p.terminating).filter(asked).collect();
        let states: Vec<Arc<StateReport>> = serving.iter().filter(|p| !p.silent).filter_map(|p| p.state.clone()).collect();
        let (mut providers, mut connections, mut rules) = (Vec::new(), Vec::new(), Vec::new());
        for state in &states {
            providers = merge_providers(&providers, &state.providers);
            connections = merge_connections(&connections, &state.connections);
            rules = merge_rules(&rules, &state.rules);
        }
        let mut clock = Clock { now, next: None };
        providers.iter_mut().for_each(|p| clock.provider(p));
        connections.iter_mut().for_each(|c| clock.connection(c));
        Self {
            ready: serving.len(),
            reporting: states.len(),
            // A pod that never got ready because it refuses the config is the one that has to be heard.
            refused: pods.iter().filter(|p| !p.silent).filter_map(|p| p.state.as_ref()).find_map(|s| s.refused.clone()),
            providers: providers.into_iter().map(|p| (p.name.clone(), p)).collect(),
            connections: connections.into_iter().map(|c| (c.name.clone(), c)).collect(),
            rules: rules.into_iter().map(|r| (r.name.clone(), r)).collect(),
            findings: merge_findings(&states),
            next_change: clock.next,
            states,
        }
    }

    /// Whether every ready pod answers, and there is one.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.ready > 0 && self.reporting == self.ready
    }

    /// Where a fragment (`Kind/name`) runs; without a hash: where it does not run any more.
    #[must_use]
    pub fn spread(&self, fragment: &str, hash: Option<&String>) -> Spread {
        let running = self.states.iter().filter(|s| s.fragments.get(fragment) == hash).count();
        Spread { running, ready: self.ready }
    }

    /// Ready pods that run the whole snapshot of this hash.
    #[must_use]
    pub fn running(&self, hash: &str) -> usize {
        self.states.iter().filter(|s| s.snapshot.hash == hash).count()
    }

    /// The value of a command that all ready pods have applied.
    #[must_use]
    pub fn confirmed(&self, command: &str) -> Option<String> {
        if !self.is_known() {
            return None;
        }
        let mut values = self.states.iter().map(|s| s.commands.get(command));
        let first = values.next()??;
        values.all(|v| v == Some(first)).then(|| first.clone())
    }
}

/// Ends what has passed, finds what passes next.
struct Clock {
    now: EpochMs,
    next: Option<EpochMs>,
}

impl Clock {
    /// Whether a deadline has passed; one that has not is a reason to look again then.
    fn passed(&mut self, until: Option<EpochMs>) -> bool {
        let Some(until) = until else { return false };
        let end = until.plus(GRACE_MS);
        if end <= self.now {
            return true;
        }
        self.next = Some(self.next.map_or(end, |n| n.min(end)));
        false
    }

    fn provider(&mut self, provider: &mut ProviderState) {
        if provider.breaker.state == BreakerPhase::Open && self.passed(provider.breaker.until) {
            provider.breaker.state = BreakerPhase::HalfOpen;
            provider.breaker.until = None;
        }
        if self.passed(provider.window.as_ref().and_then(|w| w.until)) {
            provider.window = None;
        }
    }

    fn connection(&mut self, connection: &mut ConnectionState) {
        let timed = matches!(connection.state, ConnectionPhase::Cooling | ConnectionPhase::RequestRejected);
        if timed && self.passed(connection.until) {
            connection.state = ConnectionPhase::Active;
            connection.until = None;
            connection.reason = None;
            connection.wait_source = None;
        }
        connection.lockouts.retain(|lock| !self.passed(lock.until));
    }
}

/// Pods may say the same in different words: the first ones count.
fn merge_findings(states: &[Arc<StateReport>]) -> Vec<(FindingState, usize)> {
    let mut all: BTreeMap<[&str; 4], (&FindingState, usize)> = BTreeMap::new();
    for finding in states.iter().flat_map(|state| &state.findings) {
        let (said, pods) = all.entry([&finding.kind, &finding.name, &finding.field, &finding.reason]).or_insert((finding, 0));
        *pods += 1;
        if finding.message < said.message {
            *said = finding;
        }
    }
    all.into_values().map(|(finding, pods)| (finding.clone(), pods)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resilience::{BreakerState, LockoutState, SnapshotInfo, WindowState};

    fn connection(state: ConnectionPhase, until: Option<i64>) -> ConnectionState {
        ConnectionState {
            name: "a".into(),
            state,
            until: until.map(EpochMs),
            reason: until.map(|_| "RateLimitExceeded".into()),
            ..ConnectionState::default()
        }
    }

    fn pod(connections: Vec<ConnectionState>) -> PodView {
        let state = StateReport {
            connections,
            fragments: [("Combo/x".to_owned(), "h1".to_owned())].into(),
            commands: [("Connection/a/reset".to_owned(), "v".to_owned())].into(),
            snapshot: SnapshotInfo { hash: "s".into(), loaded_time: None },
            ..StateReport::default()
        };
        PodView { ready: true, state: Some(Arc::new(state)), ..PodView::default() }
    }

    #[test]
    fn the_latest_deadline_of_ready_pods_wins_in_any_order() {
        use ConnectionPhase::*;
        let mut pods = vec![
            pod(vec![connection(Cooling, Some(50_000))]),
            pod(vec![connection(Cooling, Some(90_000))]),
            pod(vec![connection(Active, None)]),
            PodView { terminating: true, ..pod(vec![connection(Banned, None)]) },
            PodView { ready: false, ..pod(vec![connection(Banned, None)]) },
        ];
        for _ in 0..pods.len() {
            pods.rotate_left(1);
            let fleet = Fleet::of(&pods, EpochMs(0));
            assert_eq!((fleet.connections["a"].state, fleet.connections["a"].until), (Cooling, Some(EpochMs(90_000))));
            assert_eq!((fleet.ready, fleet.reporting, fleet.is_known()), (3, 3, true));
        }
    }

    #[test]
    fn what_several_pods_find_is_one_finding() {
        let finding = |why: &str| FindingState { reason: "StateStoreUnavailable".into(), message: why.into(), ..FindingState::default() };
        let says = |findings: Vec<FindingState>| {
            let state = StateReport { findings, ..StateReport::default() };
            PodView { ready: true, state: Some(Arc::new(state)), ..PodView::default() }
        };
        let mut pods = vec![says(vec![finding("refused")]), says(vec![]), says(vec![finding("no answer")])];
        for _ in 0..pods.len() {
            pods.rotate_left(1);
            assert_eq!(Fleet::of(&pods, EpochMs(0)).findings, [(finding("no answer"), 2)], "the same words in any order");
        }
        pods.iter_mut().for_each(|pod| pod.silent = true);
        assert_eq!(Fleet::of(&pods, EpochMs(0)).findings, []);
    }

    #[test]
    fn a_silent_pod_is_unknown_and_never_healthy() {
        let pods = [pod(vec![]), PodView { silent: true, ..pod(vec![connection(ConnectionPhase::Banned, None)]) }];
        let fleet = Fleet::of(&pods, EpochMs(0));
        assert!(!fleet.is_known() && fleet.connections.is_empty());
        assert_eq!(fleet.spread("Combo/x", Some(&"h1".to_owned())), Spread { running: 1, ready: 2 });
        assert_eq!(fleet.confirmed("Connection/a/reset"), None);
        assert!(!Fleet::of(&[], EpochMs(0)).is_known());
    }

    #[test]
    fn what_has_passed_ends_without_a_word_of_the_pod() {
        let lock = |until| LockoutState { model: "m".into(), until: Some(EpochMs(until)), ..LockoutState::default() };
        let mut p =
            pod(vec![ConnectionState { lockouts: vec![lock(10_000), lock(40_000)], ..connection(ConnectionPhase::Cooling, Some(20_000)) }]);
        let mut state = StateReport::clone(p.state.as_ref().unwrap());
        state.providers = vec![ProviderState {
            name: "p".into(),
            breaker: BreakerState { state: BreakerPhase::Open, until: Some(EpochMs(15_000)), ..BreakerState::default() },
            window: Some(WindowState { until: Some(EpochMs(30_000)) }),
        }];
        p.state = Some(Arc::new(state));
        let grace = i64::try_from(GRACE_MS).unwrap();
        let at = |now: i64| Fleet::of(std::slice::from_ref(&p), EpochMs(now));
        assert_eq!(at(0).next_change, Some(EpochMs(10_000 + grace)));
        let before = at(20_000 + grace - 1);
        assert_eq!((before.connections["a"].state, before.next_change), (ConnectionPhase::Cooling, Some(EpochMs(20_000 + grace))));
        let after = at(20_000 + grace);
        assert_eq!((after.connections["a"].state, &after.connections["a"].reason), (ConnectionPhase::Active, &None));
        assert_eq!(after.connections["a"].lockouts.len(), 1);
        assert_eq!((after.providers["p"].breaker.state, after.providers["p"].window.is_some()), (BreakerPhase::HalfOpen, true));
        assert_eq!((at(50_000).next_change, at(50_000).providers["p"].window.is_none()), (None, true));
    }

    #[test]
    fn terminal_states_have_no_end() {
        let fleet = Fleet::of(&[pod(vec![connection(ConnectionPhase::Banned, Some(1))])], EpochMs(i64::from(u32::MAX)));
        assert_eq!(fleet.connections["a"].state, ConnectionPhase::Banned);
    }

    #[test]
    fn a_fragment_is_everywhere_when_every_ready_pod_runs_it() {
        let pods = [pod(vec![]), pod(vec![])];
        let fleet = Fleet::of(&pods, EpochMs(0));
        assert!(fleet.spread("Combo/x", Some(&"h1".to_owned())).everywhere());
        assert!(!fleet.spread("Combo/x", Some(&"h2".to_owned())).everywhere());
        assert!(fleet.spread("Combo/gone", None).everywhere(), "a removed fragment is in force when nobody has it");
        assert_eq!((fleet.running("s"), fleet.confirmed("Connection/a/reset").as_deref()), (2, Some("v")));
        assert!(!Fleet::of(&[], EpochMs(0)).spread("Combo/gone", None).everywhere());
    }
}
