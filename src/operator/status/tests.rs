use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::api;
use crate::api::status::ConnectionStatus;
use crate::compile::{Compiled, Options, compile};
use crate::operator::fleet::PodView;
use crate::resilience::{
    BreakerPhase, BreakerState, ConnectionPhase, ConnectionState, FindingState, LockoutState, ProviderState, RuleState, SnapshotInfo,
    StateReport, WindowState,
};

fn object<K: serde::de::DeserializeOwned>(kind: &str, name: &str, spec: Value) -> Arc<K> {
    let meta = json!({"name": name, "namespace": "a", "generation": 3, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"});
    let value = json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": kind, "metadata": meta, "spec": spec});
    Arc::new(serde_json::from_value(value).unwrap())
}

/// Two accounts of one vendor, a second vendor, a combo over both, a rule.
fn resources() -> api::Resources {
    let connection = |name: &str, provider: &str| {
        let spec = json!({"providerRef": {"name": provider}, "credentials": {"apiKey": {"secretRef": {"name": "llm", "key": name}}}});
        object("Connection", name, spec)
    };
    let secret = json!({"metadata": {"name": "llm"}, "data": {"a1": "c2stYTE=", "a2": "c2stYTI=", "b1": "c2stYjE="}});
    api::Resources {
        providers: vec![
            object("Provider", "openai", json!({"preset": "openai"})),
            object("Provider", "anthropic", json!({"preset": "anthropic"})),
        ],
        connections: vec![connection("a1", "openai"), connection("a2", "openai"), connection("b1", "anthropic")],
        combos: vec![object(
            "Combo",
            "assistant",
            json!({"targets": [{"provider": "openai", "model": "gpt-5.2"}, {"provider": "anthropic", "model": "claude-sonnet-5"}]}),
        )],
        settings: vec![object("ResilienceSettings", "default", json!({}))],
        rules: vec![object(
            "OperatorErrorRule",
            "r",
            json!({"match": {"text": "slow down"}, "verdict": {"reason": "RateLimitExceeded", "scope": "Connection"}}),
        )],
        secrets: vec![Arc::new(serde_json::from_value(secret).unwrap())],
        config_maps: Vec::new(),
    }
}

fn compiled(resources: &api::Resources) -> Compiled {
    compile(resources, &Options { now: EpochMs(1_000), ..Options::default() })
}

fn active(name: &str, provider: &str) -> ConnectionState {
    ConnectionState { name: name.into(), provider: provider.into(), ..ConnectionState::default() }
}

fn healthy(snapshot: &Snapshot) -> StateReport {
    StateReport {
        snapshot: SnapshotInfo { hash: "h".into(), loaded_time: None },
        fragments: snapshot.fragments.clone(),
        providers: ["anthropic", "openai"].map(|n| ProviderState { name: n.into(), ..ProviderState::default() }).to_vec(),
        connections: vec![active("a1", "openai"), active("a2", "openai"), active("b1", "anthropic")],
        rules: vec![RuleState { name: "r".into(), matches: 2, ..RuleState::default() }],
        ..StateReport::default()
    }
}

fn pod(state: StateReport) -> PodView {
    PodView { ready: true, state: Some(Arc::new(state)), ..PodView::default() }
}

fn cooling(name: &str, provider: &str, until: i64) -> ConnectionState {
    ConnectionState {
        state: ConnectionPhase::Cooling,
        reason: Some("RateLimitExceeded".into()),
        until: Some(EpochMs(until)),
        wait_source: Some("header".into()),
        last_status: Some(429),
        ..active(name, provider)
    }
}

struct Scene {
    resources: api::Resources,
    compiled: Compiled,
    fleet: Fleet,
    trouble: Option<Trouble>,
    deserted: bool,
    settling: bool,
    now: EpochMs,
    patience: Patience,
}

const NOW: EpochMs = EpochMs(1_000_000_500);

fn scene(resources: api::Resources, change: impl FnOnce(&mut StateReport)) -> Scene {
    let compiled = compiled(&resources);
    let mut state = healthy(&compiled.snapshot);
    change(&mut state);
    let fleet = Fleet::of(&[pod(state)], NOW);
    Scene { resources, compiled, fleet, trouble: None, deserted: true, settling: false, now: NOW, patience: Patience::default() }
}

impl Scene {
    fn world(&self) -> World<'_> {
        World {
            snapshot: &self.compiled.snapshot,
            findings: World::sort_findings(&self.compiled.findings),
            gateway: self.compiled.gateway.as_deref(),
            fleet: &self.fleet,
            trouble: self.trouble.as_ref(),
            deserted: self.deserted,
            settling: self.settling,
            now: self.now,
        }
    }

    fn connection(&mut self, name: &str) -> ConnectionStatus {
        let object = self.resources.connections.iter().find(|c| c.metadata.name.as_deref() == Some(name)).unwrap().clone();
        let mut patience = std::mem::take(&mut self.patience);
        let status = connection(&self.world(), &mut patience, &object);
        self.patience = patience;
        status
    }

    fn provider(&self, name: &str) -> api::status::ProviderStatus {
        let object = self.resources.providers.iter().find(|c| c.metadata.name.as_deref() == Some(name)).unwrap();
        provider(&self.world(), &mut Patience::default(), object)
    }

    fn combo(&self) -> api::status::ComboStatus {
        combo(&self.world(), &mut Patience::default(), &self.resources.combos[0])
    }

    fn settings(&self, rollout: Option<&Rollout>) -> api::status::SettingsStatus {
        let findings: Vec<&Finding> = self.compiled.findings.iter().filter(|f| f.kind == "ResilienceSettings").collect();
        settings(&self.world(), &mut Patience::default(), &self.resources.settings[0], rollout, Some("0123456789abcdef"), &findings)
    }
}

fn words(conditions: &[Condition], type_: &str) -> (String, String) {
    conditions.iter().find(|c| c.type_ == type_).map(|c| (c.status.clone(), c.reason.clone())).unwrap_or_default()
}

fn said(status: &str, reason: &str) -> (String, String) {
    (status.to_owned(), reason.to_owned())
}

#[test]
fn everything_is_ready_and_available_when_every_pod_runs_it() {
    let mut s = scene(resources(), |_| {});
    let c = s.connection("a1");
    assert_eq!(words(&c.conditions, "Ready"), said("True", "Accepted"));
    assert_eq!(words(&c.conditions, "Programmed"), said("True", "Programmed"));
    assert_eq!(words(&c.conditions, "Available"), said("True", "Active"));
    assert_eq!((c.state.as_deref(), c.observed_generation, c.until), (Some("Active"), 3, None));
    let p = s.provider("openai");
    assert_eq!(p.connections.map(|c| (c.total, c.active)), Some((2, 2)));
    let combo = s.combo();
    assert_eq!((combo.available.as_deref(), combo.strategy.as_deref()), (Some("2/2"), Some("Priority")));
    let rule = rule(&s.world(), &mut Patience::default(), &s.resources.rules[0]);
    assert_eq!((rule.matches, words(&rule.conditions, "Available").0.as_str()), (Some(2), "True"));
}

#[test]
fn a_vendors_outage_never_turns_ready_false() {
    let until = NOW.0 + 30_000;
    let mut s = scene(resources(), |state| state.connections[0] = cooling("a1", "openai", until));
    let c = s.connection("a1");
    assert_eq!(words(&c.conditions, "Ready").0, "True");
    assert_eq!(words(&c.conditions, "Available"), said("False", "CoolingDown"));
    assert_eq!(c.until, Some(EpochMs(until).rfc3339()));
    assert_eq!(
        (c.reason.as_deref(), c.wait_source.as_deref(), c.last_error_status),
        (Some("RateLimitExceeded"), Some("header"), Some(429))
    );
    assert_eq!(c.last_transition_time, Some(conditions::stamp(NOW)));
    assert_eq!(words(&s.provider("openai").conditions, "Available").0, "True", "the other account serves");
    assert_eq!(s.combo().targets_available, Some(2));
}

#[test]
fn a_combo_names_the_first_target_that_returns() {
    let s = scene(resources(), |state| {
        state.connections[0] = cooling("a1", "openai", NOW.0 + 90_000);
        state.connections[1] = cooling("a2", "openai", NOW.0 + 60_000);
        state.connections[2] =
            ConnectionState { state: ConnectionPhase::Expired, reason: Some("AuthError".into()), ..active("b1", "anthropic") };
    });
    let combo = s.combo();
    assert_eq!(words(&combo.conditions, "Available"), said("False", "AllTargetsUnavailable"));
    assert_eq!(words(&combo.conditions, "Ready").0, "True");
    let first = &combo.targets[0];
    assert_eq!((first.available, first.reason.as_deref()), (false, Some("CoolingDown")));
    assert_eq!(first.until, Some(EpochMs(NOW.0 + 60_000).rfc3339()), "the earlier of both accounts");
    assert_eq!((combo.targets[1].reason.as_deref(), combo.targets[1].until.as_deref()), (Some("Expired"), None));
    assert_eq!(words(&s.provider("openai").conditions, "Available"), said("False", "AllConnectionsUnavailable"));
}

#[test]
fn an_open_breaker_and_a_resting_provider_block_their_connections() {
    let until = Some(EpochMs(NOW.0 + 15_000));
    let mut s = scene(resources(), |state| {
        state.providers[1].breaker = BreakerState { state: BreakerPhase::Open, failures: 12, until, open_cycles: 1 };
        state.providers[0].window = Some(WindowState { until });
    });
    assert_eq!(words(&s.connection("a1").conditions, "Available"), said("False", "BreakerOpen"));
    assert_eq!(words(&s.connection("b1").conditions, "Available"), said("False", "CoolingDown"));
    let p = s.provider("openai");
    assert_eq!(words(&p.conditions, "Available"), said("False", "BreakerOpen"));
    let breaker = p.breaker.unwrap();
    assert_eq!((breaker.state.as_str(), breaker.until), ("Open", until.map(EpochMs::rfc3339)));
    assert_eq!(s.combo().targets[0].reason.as_deref(), Some("BreakerOpen"));
    assert_eq!(s.combo().targets[0].until, until.map(EpochMs::rfc3339));
}

#[test]
fn locked_models_block_targets_and_are_listed_longest_first() {
    let lock = |model: &str, ms: i64| LockoutState {
        model: model.into(),
        reason: "QuotaExhausted".into(),
        until: Some(EpochMs(NOW.0 + ms)),
        exact: true,
    };
    let mut s = scene(resources(), |state| {
        state.connections[0].lockouts = (0..40).map(|i| lock(&format!("m{i}"), 10_000 + i64::from(i) * 1_000)).collect();
        state.connections[0].lockouts.push(lock("gpt-5.2", 5_000));
        state.connections[1].lockouts = vec![lock("gpt-5.2", 9_000)];
    });
    let c = s.connection("a1");
    assert_eq!((c.lockouts.len(), c.lockouts_omitted), (32, Some(9)));
    assert_eq!(c.lockouts[0].model, "m39");
    assert_eq!(words(&c.conditions, "Available").0, "True", "other models of the account work");
    let target = &s.combo().targets[0];
    assert_eq!((target.reason.as_deref(), target.until.clone()), (Some("QuotaExhausted"), Some(EpochMs(NOW.0 + 5_000).rfc3339())));
}

#[test]
fn programmed_is_told_per_object() {
    let mut s = scene(resources(), |state| {
        state.fragments.insert("Combo/assistant".into(), "old".into());
    });
    assert_eq!(words(&s.connection("a1").conditions, "Programmed").0, "True");
    let combo = s.combo();
    assert_eq!(words(&combo.conditions, "Programmed"), said("False", "Pending"));
    assert_eq!(words(&combo.conditions, "Ready"), said("False", "Progressing"));
    assert_eq!(words(&combo.conditions, "Reconciling").0, "True");
    s.fleet.refused = Some("schema version 9".into());
    assert_eq!(words(&s.combo().conditions, "Programmed"), said("False", "SnapshotRefused"));
    assert_eq!(words(&s.connection("a1").conditions, "Ready").0, "True", "what runs already is not touched by a refusal");
}

#[test]
fn a_missing_secret_is_waited_for_and_then_handed_to_its_owner() {
    let mut missing = resources();
    missing.secrets.clear();
    let mut s = scene(missing, |_| {});
    let c = s.connection("a1");
    assert_eq!(words(&c.conditions, "Ready"), said("False", "SecretNotFound"));
    assert_eq!((words(&c.conditions, "Reconciling").0.as_str(), words(&c.conditions, "Available")), ("True", said("Unknown", "Unknown")));
    s.now = s.now.plus(PATIENCE_MS);
    let later = s.connection("a1");
    assert_eq!((words(&later.conditions, "Stalled").0.as_str(), words(&later.conditions, "Reconciling").0.as_str()), ("True", ""));
    assert_eq!(words(&s.provider("openai").conditions, "Ready").0, "True", "others are unaffected");
}

#[test]
fn an_error_of_the_object_itself_is_stalled_at_once() {
    let mut broken = resources();
    broken.combos = vec![object("Combo", "assistant", json!({"targets": [{"combo": "assistant"}]}))];
    let s = scene(broken, |_| {});
    let combo = s.combo();
    assert_eq!(words(&combo.conditions, "Ready"), said("False", "CycleDetected"));
    assert_eq!(words(&combo.conditions, "Stalled").0, "True");
}

#[test]
fn without_a_gateway_everything_says_so() {
    let mut lonely = resources();
    lonely.settings.clear();
    let mut s = scene(lonely, |_| {});
    s.fleet = Fleet::default();
    let c = s.connection("a1");
    assert_eq!(words(&c.conditions, "Ready"), said("False", "NoGateway"));
    assert_eq!(words(&c.conditions, "Programmed"), said("False", "NoReadyGateway"));
}

#[test]
fn a_restart_of_the_only_pod_changes_nothing_until_it_lasts() {
    let mut s = scene(resources(), |state| state.connections[0] = cooling("a1", "openai", NOW.0 + 30_000));
    let running = s.connection("a1");
    let mut object = api::Connection::clone(&s.resources.connections[0]);
    object.status = Some(running.clone());
    s.resources.connections[0] = Arc::new(object);
    s.fleet = Fleet::default();
    s.deserted = false;
    let soon = s.connection("a1");
    assert_eq!((soon.conditions.clone(), soon.state.clone(), soon.until.clone()), (running.conditions, running.state, running.until));
    s.deserted = true;
    let later = s.connection("a1");
    assert_eq!(words(&later.conditions, "Programmed"), said("False", "NoReadyGateway"));
    assert_eq!(words(&later.conditions, "Available"), said("Unknown", "Unknown"));
    assert_eq!(later.state.as_deref(), Some("Cooling"), "what was known last is kept");
}

#[test]
fn a_new_default_does_not_turn_objects_red_while_pods_load_it() {
    let mut s = scene(resources(), |_| {});
    let running = s.connection("a1");
    let mut object = api::Connection::clone(&s.resources.connections[0]);
    object.status = Some(running.clone());
    s.compiled.snapshot.fragments.insert("Connection/a1".into(), "new".into());
    s.resources.connections[0] = Arc::new(object.clone());
    s.settling = true;
    assert_eq!(s.connection("a1"), running);
    object.metadata.generation = Some(4);
    s.resources.connections[0] = Arc::new(object.clone());
    assert_eq!(words(&s.connection("a1").conditions, "Ready"), said("False", "Progressing"), "an edit of the object itself is told");
    object.metadata.generation = Some(3);
    s.resources.connections[0] = Arc::new(object);
    s.settling = false;
    assert_eq!(words(&s.connection("a1").conditions, "Programmed"), said("False", "Pending"), "pods had their time");
}

#[test]
fn a_silent_pod_makes_healthy_things_unknown_and_leaves_unhealthy_ones() {
    let mut s = scene(resources(), |_| {});
    let mut state = healthy(&s.compiled.snapshot);
    state.connections[0] = cooling("a1", "openai", NOW.0 + 30_000);
    s.fleet = Fleet::of(&[pod(state.clone()), PodView { silent: true, ..pod(state) }], NOW);
    assert_eq!(words(&s.connection("a1").conditions, "Available"), said("False", "CoolingDown"));
    let other = s.connection("a2");
    assert_eq!(words(&other.conditions, "Available"), said("Unknown", "Unknown"));
    assert_eq!(other.pods.map(|p| (p.reporting, p.total)), Some((1, 2)));
    assert_eq!(words(&other.conditions, "Programmed"), said("False", "Pending"));
}

#[test]
fn settings_show_the_gateway_and_what_keeps_it_from_working() {
    let rollout = Rollout { wanted: 1, ready: 1, updated: 1, observed: true, image: Some("r.example/omniroute:0.2.0".into()), stuck: None };
    let mut s = scene(resources(), |_| {});
    let good = s.settings(Some(&rollout));
    assert_eq!(words(&good.conditions, "Ready"), said("True", "Accepted"));
    let gateway = good.gateway.unwrap();
    assert_eq!(
        (gateway.pods.as_deref(), gateway.snapshot_hash.as_deref(), gateway.version.as_deref()),
        (Some("1/1"), Some("0123456789ab"), Some("0.2.0"))
    );
    let rolling = s.settings(Some(&Rollout { updated: 0, ..rollout.clone() }));
    assert_eq!(
        (words(&rolling.conditions, "Ready"), words(&rolling.conditions, "Reconciling").0.as_str()),
        (said("False", "Progressing"), "True")
    );
    let stuck = s.settings(Some(&Rollout { stuck: Some("no such image".into()), ..rollout.clone() }));
    assert_eq!(words(&stuck.conditions, "Stalled").0, "True");
    s.trouble = Some(Trouble { reason: "NameConflict".into(), message: "Service `omniroute-gateway` is not ours".into(), stalled: true });
    let conflict = s.settings(Some(&rollout));
    assert_eq!(
        (words(&conflict.conditions, "Ready"), words(&conflict.conditions, "Stalled").0.as_str()),
        (said("False", "NameConflict"), "True")
    );
    assert_eq!(words(&s.combo().conditions, "Ready").0, "True", "what runs is not touched by it");
}

#[test]
fn what_pods_find_themselves_stands_in_the_status_of_the_settings() {
    let rollout = Rollout { wanted: 1, ready: 1, updated: 1, observed: true, ..Rollout::default() };
    let s = scene(resources(), |state| {
        state.findings = vec![FindingState {
            kind: "ResilienceSettings".into(),
            name: "default".into(),
            field: "spec.stateStore".into(),
            reason: "StateStoreUnavailable".into(),
            message: "the state store does not answer".into(),
        }];
    });
    let status = s.settings(Some(&rollout));
    let found = &status.findings[0];
    assert_eq!((found.field.as_deref(), found.reason.as_str()), (Some("spec.stateStore"), "StateStoreUnavailable"));
    assert_eq!(found.message, "1 of 1 pods: the state store does not answer");
    assert_eq!(words(&status.conditions, "Ready").0, "True", "the configuration is good");
    assert_eq!(words(&status.conditions, "Available"), said("True", "Active"), "requests are served");
    let available = status.conditions.iter().find(|c| c.type_ == "Available").unwrap();
    assert!(available.message.contains("StateStoreUnavailable"), "{}", available.message);
    assert!(scene(resources(), |_| {}).settings(Some(&rollout)).findings.is_empty());
}

#[test]
fn a_second_settings_object_is_in_conflict() {
    let mut two = resources();
    let mut younger = api::ResilienceSettings::clone(&two.settings[0]);
    younger.metadata.name = Some("zweite".into());
    two.settings.insert(0, Arc::new(younger));
    let s = scene(two, |_| {});
    let second = s.settings(None);
    assert_eq!(words(&second.conditions, "Ready"), said("False", "Conflict"));
    assert_eq!((words(&second.conditions, "Stalled").0.as_str(), second.gateway), ("True", None));
}

#[test]
fn a_rollout_is_read_from_a_deployment() {
    let content =
        json!({"metadata": {"generation": 4}, "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": "x@sha256:abc"}]}}}});
    let status = json!({"observedGeneration": 4, "readyReplicas": 1, "updatedReplicas": 2, "conditions": [
        {"type": "Available", "status": "False"}, {"type": "Progressing", "status": "False", "message": "deadline"}]});
    let r = Rollout::of(&content, Some(&status));
    assert_eq!(
        r,
        Rollout { wanted: 2, ready: 1, updated: 2, observed: true, stuck: Some("deadline".into()), image: Some("x@sha256:abc".into()) }
    );
    assert!(!Rollout::of(&content, None).observed);
    let live = |status: Value| crate::operator::child::Live { content: content.clone(), status: Some(status), ..Default::default() };
    let done = json!({"observedGeneration": 4, "readyReplicas": 2, "updatedReplicas": 2});
    let under_way = json!({"observedGeneration": 4, "readyReplicas": 2, "updatedReplicas": 1});
    for (status, expected) in [(done, false), (under_way, true), (json!({"observedGeneration": 3}), true), (status, false)] {
        assert_eq!(Rollout::is_under_way(&live(status.clone())), expected, "{status}");
    }
}

fn phase() -> impl Strategy<Value = ConnectionPhase> {
    use ConnectionPhase::*;
    prop_oneof![Just(Active), Just(Cooling), Just(RequestRejected), Just(CreditsExhausted), Just(Expired), Just(Banned)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Whatever pods say and whatever was written before, every status keeps the rules, and writing it once is enough.
    #[test]
    fn every_status_keeps_the_rules(
        pods in proptest::collection::vec((any::<bool>(), any::<bool>(), any::<bool>(), phase(), proptest::option::of(-60_000i64..60_000), any::<bool>()), 0..4),
        secret in any::<bool>(),
        gateway in any::<bool>(),
        trouble in proptest::option::of(any::<bool>()),
        deserted in any::<bool>(),
        settling in any::<bool>(),
        breaker in prop_oneof![Just(BreakerPhase::Closed), Just(BreakerPhase::Open), Just(BreakerPhase::HalfOpen)],
        refused in any::<bool>(),
    ) {
        let mut objects = resources();
        if !secret { objects.secrets.clear(); }
        if !gateway { objects.settings.clear(); }
        let mut s = scene(objects, |_| {});
        let views: Vec<PodView> = pods.into_iter().map(|(ready, silent, terminating, phase, until, stale)| {
            let mut state = healthy(&s.compiled.snapshot);
            state.connections[0] = ConnectionState { state: phase, until: until.map(|u| EpochMs(NOW.0 + u)), ..active("a1", "openai") };
            state.providers[1].breaker = BreakerState { state: breaker, until: until.map(|u| EpochMs(NOW.0 + u)), ..BreakerState::default() };
            if stale { state.fragments.clear(); }
            state.refused = refused.then(|| "newer".to_owned());
            PodView { ready, silent, terminating, state: Some(Arc::new(state)) }
        }).collect();
        s.fleet = Fleet::of(&views, NOW);
        s.trouble = trouble.map(|stalled| Trouble { reason: "NameConflict".into(), message: "m".into(), stalled });
        s.deserted = deserted;
        s.settling = settling;
        let mut all: Vec<(i64, Vec<Condition>)> = Vec::new();
        let first = s.connection("a1");
        all.push((first.observed_generation, first.conditions.clone()));
        let mut object = api::Connection::clone(&s.resources.connections[0]);
        object.status = Some(first.clone());
        s.resources.connections[0] = Arc::new(object);
        s.now = s.now.plus(900);
        prop_assert_eq!(s.connection("a1"), first, "the same state writes nothing");
        for name in ["openai", "anthropic"] {
            let p = s.provider(name);
            all.push((p.observed_generation, p.conditions));
        }
        let c = s.combo();
        all.push((c.observed_generation, c.conditions));
        let r = rule(&s.world(), &mut Patience::default(), &s.resources.rules[0]);
        all.push((r.observed_generation, r.conditions));
        if gateway {
            let g = s.settings(Some(&Rollout { wanted: 1, ..Rollout::default() }));
            all.push((g.observed_generation, g.conditions));
        }
        for (observed, conditions) in all {
            prop_assert_eq!(violations(3, observed, &conditions), Vec::<String>::new(), "{:?}", conditions);
        }
    }
}
