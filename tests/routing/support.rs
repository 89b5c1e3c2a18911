//! A world for routing tests: snapshots in a few words, a present that rests what failed, upstreams that answer from a script.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use omniroute::api::time::EpochMs;
use omniroute::classify::{Failover, FailureKind, LevelChange, Reason, Scope, Terminal, Verdict, WaitSource};
use omniroute::routing::{
    Answer, Exclusion, ExclusionReason, Failure, Hop, KeyPolicy, Live, Load, Random, Request, Resolved, Router, Seeded, Step, Walk,
};
use omniroute::snapshot::{Attempts, Combo, Connection, Dialect, Model, Provider, Snapshot, Strategy, Target, TargetKind};

pub const START: EpochMs = EpochMs(1_800_000_000_000);

/// A provider with open model list that speaks chat.
pub fn provider(name: &str) -> Provider {
    Provider { name: name.to_owned(), dialects: vec![Dialect::ChatCompletions], open_model_list: true, ..Provider::default() }
}

pub fn connection(name: &str, provider: &str) -> Connection {
    Connection { name: name.to_owned(), provider: provider.to_owned(), weight: 1, ..Connection::default() }
}

/// `provider/model` or, without a slash, the name of a combo; `*9` at the end is a weight.
pub fn target(text: &str) -> Target {
    let (text, weight) = text.split_once('*').map_or((text, 1), |(t, w)| (t, w.parse().unwrap()));
    let kind = match text.split_once('/') {
        Some((provider, model)) => TargetKind::Model { provider: provider.to_owned(), model: model.to_owned(), connections: Vec::new() },
        None => TargetKind::Combo { combo: text.to_owned() },
    };
    Target { name: text.to_owned(), kind, weight, fallback_only_on_quota_exhaustion: false, prompt: None }
}

pub fn combo(name: &str, strategy: Strategy, targets: &[&str]) -> Combo {
    Combo {
        name: name.to_owned(),
        model_names: vec![name.to_owned()],
        strategy,
        targets: targets.iter().map(|t| target(t)).collect(),
        attempts: Attempts { per_target: 1, ..Attempts::default() },
        ..Combo::default()
    }
}

/// The combos, with one provider for each that they mention and one connection each, named like the provider.
pub fn snapshot(combos: Vec<Combo>) -> Snapshot {
    let mut names: Vec<String> = combos
        .iter()
        .flat_map(|c| &c.targets)
        .filter_map(|t| match &t.kind {
            TargetKind::Model { provider, .. } => Some(provider.clone()),
            TargetKind::Combo { .. } => None,
        })
        .collect();
    names.sort();
    names.dedup();
    let mut snapshot = Snapshot {
        providers: names.iter().map(|n| provider(n)).collect(),
        connections: names.iter().map(|n| connection(n, n)).collect(),
        combos,
        ..Snapshot::default()
    };
    snapshot.combos.sort_by(|a, b| a.name.cmp(&b.name));
    snapshot.settings.combo_cooldown_wait.enabled = false;
    snapshot.settings.wait_for_cooldown.enabled = false;
    snapshot
}

pub fn model(name: &str) -> Model {
    Model { name: name.to_owned(), ..Model::default() }
}

pub fn router(snapshot: Snapshot) -> Arc<Router> {
    Arc::new(Router::new(Arc::new(snapshot), None))
}

pub fn chat() -> Request {
    Request::new(Dialect::ChatCompletions, START)
}

/// A verdict of a reason with the usual consequences.
pub fn verdict(reason: Reason) -> Verdict {
    let failover = Failover::OtherConnection;
    Verdict {
        reason,
        error_type: None,
        scope: Scope::Connection,
        scope_declared: false,
        failover,
        cooldown_ms: 3_000,
        wait_source: Some(WaitSource::Scaled),
        level: LevelChange::Unchanged,
        terminal: None,
        strike: None,
        skip_breaker: false,
        counts_for_breaker: false,
        kind: FailureKind::Transient,
        daily_quota: false,
        quota_reset_ms: None,
        ambiguous_auth: false,
        restated_status: None,
        restated_wait_ms: None,
        decided_by: "test".into(),
        rule: None,
        shadow_rules: Vec::new(),
        exact_wait: false,
    }
}

/// What an upstream answers.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub verdict: Option<Verdict>,
    pub message: String,
    pub quality: bool,
    pub timeout: bool,
    pub takes_ms: u64,
}

pub fn ok() -> Reply {
    Reply { status: 200, verdict: None, message: String::new(), quality: false, timeout: false, takes_ms: 10 }
}

pub fn fails(status: u16, verdict: Verdict) -> Reply {
    Reply { status, verdict: Some(verdict), message: format!("upstream says {status}"), ..ok() }
}

/// The usual answer of a status.
pub fn status(status: u16) -> Reply {
    let mut v = verdict(match status {
        401 | 403 => Reason::AuthError,
        402 => Reason::CreditsExhausted,
        404 => Reason::NotFound,
        429 => Reason::RateLimitExceeded,
        400..=499 => Reason::Unknown,
        _ => Reason::ServerError,
    });
    if matches!(status, 400 | 404 | 422) {
        (v.failover, v.scope, v.cooldown_ms, v.wait_source) = (Failover::OtherModel, Scope::Request, 0, None);
    }
    if status == 402 {
        v.terminal = Some(Terminal::CreditsExhausted);
    }
    if status == 200 { ok() } else { fails(status, v) }
}

pub fn stop() -> Reply {
    let mut v = verdict(Reason::Unknown);
    (v.failover, v.scope, v.cooldown_ms, v.wait_source) = (Failover::Stop, Scope::Request, 0, None);
    fails(400, v)
}

/// A rate limit that names its end.
pub fn stated(seconds: u64) -> Reply {
    let mut v = verdict(Reason::RateLimitExceeded);
    (v.cooldown_ms, v.wait_source) = (seconds * 1_000, Some(WaitSource::Header));
    fails(429, v)
}

pub fn quota() -> Reply {
    let mut v = verdict(Reason::QuotaExhausted);
    (v.cooldown_ms, v.wait_source) = (3_600_000, Some(WaitSource::Fixed));
    fails(429, v)
}

/// The present: what failed rests, as a ledger would have it; more can be set by hand.
#[derive(Default)]
pub struct World {
    pub resting: RefCell<Vec<(usize, Option<String>, Exclusion)>>,
    pub loads: RefCell<HashMap<usize, Load>>,
    pub pins: RefCell<HashMap<usize, usize>>,
    /// Failures leave no trace.
    pub forget: bool,
}

impl World {
    pub fn rest(&self, connection: usize, exclusion: Exclusion) {
        self.resting.borrow_mut().push((connection, None, exclusion));
    }

    fn note(&self, connection: usize, model: &str, v: &Verdict, now: EpochMs) {
        if self.forget || v.failover == Failover::Stop || v.scope == Scope::Request {
            return;
        }
        let (reason, model) = match v.scope {
            _ if v.terminal.is_some() => (ExclusionReason::Terminal, None),
            Scope::Model => (ExclusionReason::ModelLockout, Some(model.to_owned())),
            _ => (ExclusionReason::ConnectionCooldown, None),
        };
        let until = v.terminal.is_none().then(|| now.plus(v.cooldown_ms));
        let exclusion = Exclusion { reason, until, cause: Some(v.reason), stated: v.wait_is_stated() };
        self.resting.borrow_mut().push((connection, model, exclusion));
    }
}

impl Live for World {
    fn check(&self, connection: usize, model: &str, now: EpochMs) -> Result<(), Exclusion> {
        let resting = self.resting.borrow();
        let hit = resting
            .iter()
            .find(|(c, m, e)| *c == connection && m.as_ref().is_none_or(|m| m == model) && e.until.is_none_or(|until| until > now));
        hit.map_or(Ok(()), |(.., exclusion)| Err(*exclusion))
    }

    fn load(&self, connection: usize) -> Load {
        self.loads.borrow().get(&connection).copied().unwrap_or_default()
    }

    fn pinned(&self, provider: usize) -> Option<usize> {
        self.pins.borrow().get(&provider).copied()
    }
}

/// Scripts by connection or by `provider/model`; the last reply repeats, nothing scripted means 200.
#[derive(Default)]
pub struct Upstreams(BTreeMap<String, VecDeque<Reply>>);

impl Upstreams {
    pub fn on(mut self, key: &str, replies: &[Reply]) -> Self {
        self.0.insert(key.to_owned(), replies.iter().cloned().collect());
        self
    }

    fn reply(&mut self, connection: &str, label: &str) -> Reply {
        let key = if self.0.contains_key(label) { label } else { connection };
        match self.0.get_mut(key) {
            Some(replies) if replies.len() > 1 => replies.pop_front().unwrap(),
            Some(replies) => replies.front().cloned().unwrap_or_else(ok),
            None => ok(),
        }
    }
}

/// One request from start to end.
#[derive(Debug)]
pub struct Outcome {
    /// `connection` of each dispatch.
    pub calls: Vec<String>,
    /// `provider/model` of each dispatch.
    pub labels: Vec<String>,
    pub hops: Vec<Hop>,
    pub delays: Vec<u64>,
    pub waits: Vec<u64>,
    pub answer: Option<Answer>,
    pub ended: EpochMs,
}

impl Outcome {
    fn new(now: EpochMs) -> Self {
        Self { calls: vec![], labels: vec![], hops: vec![], delays: vec![], waits: vec![], answer: None, ended: now }
    }

    pub fn status(&self) -> u16 {
        self.answer.as_ref().map_or(200, |a| a.status)
    }

    pub fn code(&self) -> &str {
        self.answer.as_ref().map_or("", |a| &a.code)
    }
}

pub struct Bench {
    pub router: Arc<Router>,
    pub world: World,
    pub upstreams: Upstreams,
    pub rng: Seeded,
    pub now: EpochMs,
}

impl Bench {
    pub fn new(snapshot: Snapshot) -> Self {
        Self { router: router(snapshot), world: World::default(), upstreams: Upstreams::default(), rng: Seeded(7), now: START }
    }

    pub fn on(mut self, key: &str, replies: &[Reply]) -> Self {
        self.upstreams = std::mem::take(&mut self.upstreams).on(key, replies);
        self
    }

    pub fn connection(&self, name: &str) -> usize {
        self.router.snapshot().connections.iter().position(|c| c.name == name).unwrap()
    }

    pub fn send(&mut self, model: &str) -> Outcome {
        let request = Request { received: self.now, ..chat() };
        self.run(model, request)
    }

    /// With draws of the test's own.
    pub fn send_with(&mut self, model: &str, rng: &mut dyn Random) -> Outcome {
        let request = Request { received: self.now, ..chat() };
        self.walk(model, request, rng)
    }

    pub fn run(&mut self, model: &str, request: Request) -> Outcome {
        let mut rng = self.rng.clone();
        let outcome = self.walk(model, request, &mut rng);
        self.rng = rng;
        outcome
    }

    fn walk(&mut self, model: &str, request: Request, rng: &mut dyn Random) -> Outcome {
        match self.router.resolve_for(model, &request.key) {
            Ok(resolved) => self.follow(&resolved, model, request, rng),
            Err(answer) => Outcome { answer: Some(*answer), ..Outcome::new(self.now) },
        }
    }

    /// Walks something that was resolved.
    pub fn follow(&mut self, resolved: &Resolved, model: &str, request: Request, rng: &mut dyn Random) -> Outcome {
        let mut outcome = Outcome::new(self.now);
        let mut walk = Walk::new(&self.router, resolved, model, request).unwrap();
        for _ in 0..10_000 {
            match walk.next(&self.world, self.now, rng) {
                Step::Stop(answer) => {
                    outcome.answer = Some(*answer);
                    outcome.ended = self.now;
                    return outcome;
                }
                Step::Wait { ms, .. } => {
                    outcome.waits.push(ms);
                    self.now = self.now.plus(ms);
                }
                Step::Dispatch(dispatch) => {
                    self.now = self.now.plus(dispatch.delay_ms);
                    self.router.dispatched(&dispatch, self.now);
                    outcome.calls.push(dispatch.connection.name.to_string());
                    outcome.labels.push(dispatch.label.to_string());
                    outcome.hops.push(dispatch.hop);
                    outcome.delays.push(dispatch.delay_ms);
                    let reply = self.upstreams.reply(&dispatch.connection.name, &dispatch.label);
                    self.now = self.now.plus(reply.takes_ms);
                    let Some(v) = &reply.verdict else {
                        walk.succeeded(reply.takes_ms, self.now);
                        outcome.ended = self.now;
                        return outcome;
                    };
                    if !reply.timeout {
                        self.world.note(dispatch.connection.index, &dispatch.model, v, self.now);
                    }
                    let failure = Failure {
                        verdict: v,
                        status: reply.status,
                        message: &reply.message,
                        quality: reply.quality,
                        timeout: reply.timeout,
                        passable: !reply.quality && reply.status >= 400,
                        latency_ms: reply.takes_ms,
                    };
                    walk.failed(&failure, self.now);
                }
            }
        }
        panic!("the walk did not end: {outcome:?}");
    }
}

pub fn open_key() -> Arc<KeyPolicy> {
    Arc::new(KeyPolicy::default())
}
