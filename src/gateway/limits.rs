//! Which gates a dispatch has to pass, worked out when a snapshot is loaded.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use smallvec::SmallVec;

use super::gates::{GateId, Limit, Want, joined};
use super::learned::Empty;
use super::queue::{Patience, Queue};
use crate::api::time::EpochMs;
use crate::classify::hints::Ceiling;
use crate::snapshot::{Combo, Connection, Provider, Settings, Snapshot, Strategy};

/// The gates of one connection.
#[derive(Debug)]
pub struct Limits {
    queue: Arc<Queue>,
    /// Gates of every dispatch; empty when nothing is limited.
    always: Arc<[Want]>,
    /// Gates of the models that have a cap of their own.
    by_model: BTreeMap<String, Arc<[Want]>>,
    patience: Patience,
    /// Longest execution of a protected connection.
    execution: Option<Duration>,
    /// The credential's name among gates, for protected connections.
    credential: Option<Arc<str>>,
    /// The settings or the connection say how many requests a minute may have.
    declared: bool,
    /// Where dispatches of combos that share the quota line up; empty when they need not.
    share: Arc<[Want]>,
    /// The last lists with learned gates.
    lists: Mutex<VecDeque<List>>,
}

/// Lists of a connection that are remembered.
const MAX_LISTS: usize = 8;

/// Gates, learned gates beside them, and both together.
#[derive(Debug)]
struct List {
    wants: Arc<[Want]>,
    learned: SmallVec<[Want; 2]>,
    joined: Arc<[Want]>,
}

/// What one dispatch has to pass.
#[derive(Clone, Debug)]
pub struct Gated {
    /// Where.
    pub queue: Arc<Queue>,
    /// What.
    pub wants: Arc<[Want]>,
    /// How long it may stand in the queue.
    pub patience: Patience,
}

impl Gated {
    /// The same for a request whose time is over at `ends`.
    #[must_use]
    pub fn until(mut self, ends: EpochMs, now: EpochMs) -> Self {
        self.patience.max_wait = self.patience.max_wait.min(Duration::from_millis(ends.since(now)));
        self
    }
}

impl Limits {
    /// Works out the gates of a connection.
    #[must_use]
    pub fn new(provider: &Provider, connection: &Connection, settings: &Settings, queue: Arc<Queue>) -> Self {
        let defaults = &settings.request_queue;
        let limits = &connection.rate_limits;
        let protected = connection.rate_limit_protection;
        let slots = |slots| Limit { slots, ..Limit::default() };
        let credential: Arc<str> = fingerprint(connection).into();
        let credential_gate = |limit| Want { gate: GateId::Credential(Arc::clone(&credential)), limit };
        let mut always = vec![
            Want { gate: GateId::Provider(provider.name.as_str().into()), limit: slots(provider.max_concurrent) },
            credential_gate(slots(connection.max_concurrent)),
        ];
        if protected {
            always.push(credential_gate(Limit {
                slots: defaults.concurrent_requests,
                min_interval_ms: limits.min_interval_ms.unwrap_or(0),
                per_minute: limits.requests_per_minute.unwrap_or(0),
            }));
        }
        let by_model = limits.model_concurrency.iter().map(|(model, cap)| {
            let gate = GateId::Model(Arc::clone(&credential), model.as_str().into());
            (model.clone(), joined([always.clone(), vec![Want { gate, limit: slots(*cap) }]].concat()))
        });
        let by_model = by_model.collect();
        let or = |own: u64, default: u64| Duration::from_millis(if own == 0 { default } else { own });
        let max_depth = if limits.max_queue_depth == 0 { defaults.max_queue_depth } else { limits.max_queue_depth };
        let share = slots(if settings.quota_share_concurrency_limit { connection.max_concurrent } else { 0 });
        Self {
            share: joined(vec![Want { gate: GateId::Share(Arc::clone(&credential)), limit: share }]),
            queue,
            always: joined(always),
            by_model,
            patience: Patience { max_wait: or(limits.max_wait_ms, defaults.max_wait_ms), max_depth: (max_depth > 0).then_some(max_depth) },
            execution: Some(or(limits.execution_max_wait_ms, defaults.execution_max_wait_ms)).filter(|d| protected && !d.is_zero()),
            credential: protected.then_some(credential),
            declared: limits.requests_per_minute.is_some(),
            lists: Mutex::default(),
        }
    }

    /// What a dispatch of this model has to pass; `None` when nothing is limited. Targets of a round-robin combo have a gate of their own
    /// (routing spec 4.3), with that combo's patience. `learned` are further gates.
    #[must_use]
    pub fn of(&self, model: &str, target: &Arc<str>, combo: Option<&Combo>, learned: impl IntoIterator<Item = Want>) -> Option<Gated> {
        let mut wants = self.by_model.get(model).unwrap_or(&self.always).clone();
        let mut patience = self.patience;
        if let Some(combo) = combo.filter(|combo| combo.strategy == Strategy::RoundRobin && combo.options.concurrency_per_model > 0) {
            let limit = Limit { slots: combo.options.concurrency_per_model, ..Limit::default() };
            let gate = GateId::Target(combo.name.as_str().into(), Arc::clone(target));
            wants = joined([wants.to_vec(), vec![Want { gate, limit }]].concat());
            let max_wait = Duration::from_millis(combo.options.queue_timeout_ms);
            patience = Patience { max_wait, max_depth: Some(combo.options.queue_depth) };
        }
        let learned: SmallVec<[Want; 2]> = learned.into_iter().collect();
        if !learned.is_empty() {
            wants = self.joined(wants, learned);
        }
        (!wants.is_empty()).then(|| Gated { queue: Arc::clone(&self.queue), wants, patience })
    }

    /// Gates with learned ones beside them. Who wants the same gets the same list, by which the queue knows that it need not look twice.
    fn joined(&self, wants: Arc<[Want]>, learned: SmallVec<[Want; 2]>) -> Arc<[Want]> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lists.iter().find(|known| known.wants == wants && known.learned == learned) {
            return Arc::clone(&known.joined);
        }
        let all = joined(wants.iter().chain(&learned).cloned().collect());
        if lists.len() >= MAX_LISTS {
            lists.pop_front();
        }
        lists.push_back(List { wants, learned, joined: Arc::clone(&all) });
        all
    }

    /// Where a dispatch of a combo with `quotaShare` waits for its turn on this very connection instead of moving on to the next one; it
    /// goes on without it when the turn does not come (routing spec 8.4). `None` when nothing has to be waited for.
    #[must_use]
    pub fn turn(&self, combo: Option<&Combo>) -> Option<Gated> {
        let options = &combo.filter(|combo| combo.options.quota_share && !self.share.is_empty())?.options;
        let patience = Patience { max_wait: Duration::from_millis(options.queue_timeout_ms), max_depth: Some(options.queue_depth) };
        Some(Gated { queue: Arc::clone(&self.queue), wants: Arc::clone(&self.share), patience })
    }

    /// The gate that stays shut while a bucket of the provider is known to be empty, beside those of [`Self::of`]; `None` when that takes
    /// longer than anybody waits here: then the provider itself is asked.
    #[must_use]
    pub fn while_empty(&self, empty: Empty, now: EpochMs) -> Option<Want> {
        let patient = Duration::from_millis(empty.until.since(now)) <= self.patience.max_wait;
        let credential = self.credential.clone().filter(|_| patient)?;
        let gate = GateId::Credential(credential);
        self.queue.block(&gate, empty.until, empty.pace_ms);
        Some(open_gate(gate))
    }

    /// The same gate after that, as long as those who waited go through it at a pace: whoever comes now lines up behind them.
    #[must_use]
    pub fn while_paced(&self) -> Option<Want> {
        let gate = GateId::Credential(self.credential.clone()?);
        self.queue.is_paced(&gate).then(|| open_gate(gate))
    }

    /// The pace of a ceiling that the provider stated in words. `None` where the connection declares its own number, is not protected, or where
    /// keeping to it would take longer than anybody waits here.
    #[must_use]
    pub fn under(&self, ceiling: Ceiling) -> Option<Want> {
        let interval = ceiling.interval_ms();
        let honourable = !self.declared && Duration::from_millis(interval) <= self.patience.max_wait;
        let gate = GateId::Credential(self.credential.clone().filter(|_| honourable)?);
        let per_minute = if ceiling.window_ms == 60_000 { ceiling.requests } else { 0 };
        Some(Want { gate, limit: Limit { slots: 0, min_interval_ms: interval, per_minute } })
    }

    /// The provider has just said that its ceiling is reached: the next dispatch is one interval away. False when [`Self::under`] has nothing to say.
    pub fn reached(&self, ceiling: Ceiling, now: EpochMs) -> bool {
        let Some(Want { gate, limit }) = self.under(ceiling) else { return false };
        self.queue.block(&gate, now.plus(limit.min_interval_ms), limit.min_interval_ms);
        true
    }

    /// The provider has said that there is plenty again: nobody waits for a reset or keeps a pace any more.
    pub fn refilled(&self) {
        if let Some(credential) = self.credential.clone() {
            self.queue.unblock(&GateId::Credential(credential));
        }
    }

    /// Longest execution of a dispatch.
    #[must_use]
    pub const fn execution(&self) -> Option<Duration> {
        self.execution
    }
}

/// A gate that has no cap, only times at which it is shut.
const fn open_gate(gate: GateId) -> Want {
    Want { gate, limit: Limit { slots: u32::MAX, min_interval_ms: 0, per_minute: 0 } }
}

/// What tells credentials apart; connections without one are told apart by name.
fn fingerprint(connection: &Connection) -> &str {
    if connection.credential_fingerprint.is_empty() { &connection.name } else { &connection.credential_fingerprint }
}

/// The queues of a gateway. Providers whose connections share a credential share a queue, since its gates are taken together.
#[derive(Debug, Default)]
pub struct Queues(HashMap<String, Arc<Queue>>);

impl Queues {
    /// The queue of each provider of a snapshot. Queues stay over a reload, so that running requests go on counting.
    pub fn of(&mut self, snapshot: &Snapshot) -> HashMap<String, Arc<Queue>> {
        let mut root: BTreeMap<&str, &str> = snapshot.providers.iter().map(|p| (p.name.as_str(), p.name.as_str())).collect();
        let mut first: HashMap<&str, &str> = HashMap::new();
        for connection in &snapshot.connections {
            let provider = connection.provider.as_str();
            let other = *first.entry(fingerprint(connection)).or_insert(provider);
            let (a, b) = (find(&root, provider), find(&root, other));
            root.insert(a.max(b), a.min(b));
        }
        let roots: HashMap<String, String> = root.keys().map(|name| ((*name).to_owned(), find(&root, name).to_owned())).collect();
        self.0.retain(|name, _| roots.values().any(|root| root == name));
        roots.into_iter().map(|(provider, root)| (provider, Arc::clone(self.0.entry(root).or_default()))).collect()
    }
}

/// The representative of a set.
fn find<'a>(root: &BTreeMap<&'a str, &'a str>, mut name: &'a str) -> &'a str {
    while let Some(next) = root.get(name).filter(|next| **next != name) {
        name = next;
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(provider: &str, name: &str, credential: &str) -> Connection {
        Connection {
            name: name.to_owned(),
            provider: provider.to_owned(),
            credential_fingerprint: credential.to_owned(),
            ..Connection::default()
        }
    }

    fn provider(name: &str) -> Provider {
        Provider { name: name.to_owned(), ..Provider::default() }
    }

    #[test]
    fn without_limits_there_is_no_gate() {
        let limits = Limits::new(&provider("p"), &connection("p", "a", "x"), &Settings::default(), Arc::default());
        assert!(limits.of("m", &"p/m".into(), None, None).is_none());
        assert!(limits.of("m", &"p/m".into(), Some(&Combo::default()), None).is_none());
        assert_eq!(limits.execution(), None);
    }

    #[test]
    fn the_narrowest_cap_counts_and_only_protected_connections_are_paced() {
        let mut settings = Settings::default();
        settings.request_queue.concurrent_requests = 4;
        let mut one = connection("p", "a", "x");
        one.max_concurrent = 6;
        one.rate_limits.requests_per_minute = Some(60);
        let slots_and_pace = |connection: &Connection| {
            let gated = Limits::new(&provider("p"), connection, &settings, Arc::default()).of("m", &"p/m".into(), None, None).unwrap();
            gated.wants.iter().map(|w| (w.limit.slots, w.limit.per_minute)).collect::<Vec<_>>()
        };
        assert_eq!(slots_and_pace(&one), [(6, 0)]);
        one.rate_limit_protection = true;
        assert_eq!(slots_and_pace(&one), [(4, 60)]);
    }

    #[test]
    fn models_and_targets_have_gates_of_their_own() {
        let mut one = connection("p", "a", "x");
        one.rate_limits.model_concurrency.insert("big".to_owned(), 1);
        let limits = Limits::new(&provider("p"), &one, &Settings::default(), Arc::default());
        assert!(limits.of("small", &"t".into(), None, None).is_none());
        assert_eq!(limits.of("big", &"t".into(), None, None).unwrap().wants.len(), 1);
        let mut turns = Combo { strategy: Strategy::RoundRobin, ..Combo::default() };
        turns.options.queue_timeout_ms = 5;
        let gated = limits.of("big", &"t".into(), Some(&turns), None).unwrap();
        assert_eq!((gated.wants.len(), gated.patience.max_wait), (2, Duration::from_millis(5)));
    }

    #[test]
    fn an_empty_bucket_is_one_gate_more_and_lifts_no_cap() {
        let mut one = connection("p", "a", "x");
        one.rate_limit_protection = true;
        one.rate_limits.model_concurrency.insert("big".to_owned(), 1);
        let mut settings = Settings::default();
        settings.request_queue.max_wait_ms = 30_000;
        let queue = Arc::new(Queue::default());
        let limits = Limits::new(&provider("p"), &one, &settings, Arc::clone(&queue));
        let now = EpochMs(1_800_000_000_000);
        let empty = |ms| Empty { until: now.plus(ms), pace_ms: 0 };
        assert!(limits.while_empty(empty(30_001), now).is_none(), "nobody waits for that long");
        let gated = limits.of("big", &"t".into(), None, limits.while_empty(empty(30_000), now)).unwrap();
        let slots: Vec<u32> = gated.wants.iter().map(|want| want.limit.slots).collect();
        assert_eq!((slots, queue.try_pass(&gated.wants).is_err()), (vec![u32::MAX, 1], true));
    }

    #[test]
    fn a_ceiling_in_words_sets_the_pace_unless_a_number_is_declared_or_nobody_would_wait_for_it() {
        let now = EpochMs(1_800_000_000_000);
        let per_minute = |requests| Ceiling { requests, window_ms: 60_000 };
        let mut settings = Settings::default();
        settings.request_queue.max_wait_ms = 30_000;
        let mut one = Connection { rate_limit_protection: true, ..connection("p", "a", "x") };
        let queue = Arc::new(Queue::default());
        let limits = |one: &Connection| Limits::new(&provider("p"), one, &settings, Arc::clone(&queue));
        let pace = |limits: &Limits, ceiling| {
            let gated = limits.of("m", &"t".into(), None, limits.under(ceiling))?;
            gated.wants.first().map(|want| (want.limit.min_interval_ms, want.limit.per_minute))
        };
        let plain = limits(&one);
        assert_eq!(pace(&plain, per_minute(5)), Some((12_000, 5)));
        assert!(plain.reached(per_minute(5), now));
        let gated = plain.of("m", &"t".into(), None, plain.under(per_minute(5))).unwrap();
        assert!(queue.try_pass(&gated.wants).is_err(), "the provider said no a moment ago");
        let again = plain.of("m", &"t".into(), None, plain.under(per_minute(5))).unwrap();
        assert!(Arc::ptr_eq(&gated.wants, &again.wants), "the queue looks at what they want once");
        assert_eq!(pace(&plain, Ceiling { requests: 1, window_ms: 86_400_000 }), None, "nobody waits for a day");
        one.rate_limits.min_interval_ms = Some(200);
        assert_eq!(pace(&limits(&one), per_minute(1_000)), Some((200, 1_000)), "the declared floor holds");
        one.rate_limits.requests_per_minute = Some(100);
        assert_eq!(pace(&limits(&one), per_minute(5)), Some((200, 100)), "the declared number counts");
        one.rate_limit_protection = false;
        assert_eq!(pace(&limits(&one), per_minute(5)), None);
    }

    #[tokio::test]
    async fn whoever_comes_after_a_reset_lines_up_until_there_is_plenty() {
        let one = Connection { rate_limit_protection: true, ..connection("p", "a", "x") };
        let mut settings = Settings::default();
        (settings.request_queue.concurrent_requests, settings.request_queue.max_wait_ms) = (0, 60_000);
        let limits = Limits::new(&provider("p"), &one, &settings, Arc::default());
        let now = crate::gateway::clock::now();
        let shut = limits.while_empty(Empty { until: now.plus(60_000), pace_ms: 60_000 }, now);
        let gated = limits.of("m", &"p/m".into(), None, shut).unwrap();
        assert!(limits.while_paced().is_none(), "nobody waits yet");
        let mut waiting = Box::pin(gated.queue.pass(&gated.wants, gated.patience));
        assert!(futures::poll!(&mut waiting).is_pending());
        let newcomer = limits.of("m", &"p/m".into(), None, limits.while_paced()).expect("the gate of those who wait");
        assert!(newcomer.queue.try_pass(&newcomer.wants).is_err());
        limits.refilled();
        assert!(waiting.await.is_ok());
        assert!(limits.while_paced().is_none());
    }

    #[test]
    fn a_shared_quota_is_taken_in_turns_where_there_is_a_cap() {
        let mut one = connection("p", "a", "x");
        let mut shared = Combo::default();
        (shared.options.quota_share, shared.options.queue_depth, shared.options.queue_timeout_ms) = (true, 3, 7);
        let settings = Settings { quota_share_concurrency_limit: true, ..Settings::default() };
        let turn = |connection: &Connection, settings: &Settings, combo: &Combo| {
            Limits::new(&provider("p"), connection, settings, Arc::default()).turn(Some(combo))
        };
        assert!(turn(&one, &settings, &shared).is_none());
        one.max_concurrent = 2;
        let gated = turn(&one, &settings, &shared).unwrap();
        assert_eq!((gated.wants.len(), gated.wants[0].limit.slots), (1, 2));
        assert_eq!(gated.patience, Patience { max_wait: Duration::from_millis(7), max_depth: Some(3) });
        assert!(turn(&one, &settings, &Combo::default()).is_none());
        assert!(turn(&one, &Settings { quota_share_concurrency_limit: false, ..settings }, &shared).is_none());
    }

    #[test]
    fn a_shared_credential_shares_the_queue_and_queues_survive_a_reload() {
        let snapshot = Snapshot {
            providers: vec![provider("a"), provider("b"), provider("c")],
            connections: vec![connection("c", "1", "x"), connection("b", "2", "x"), connection("a", "3", "y")],
            ..Snapshot::default()
        };
        let mut queues = Queues::default();
        let first = queues.of(&snapshot);
        assert!(Arc::ptr_eq(&first["b"], &first["c"]) && !Arc::ptr_eq(&first["a"], &first["b"]));
        assert!(Arc::ptr_eq(&first["b"], &queues.of(&snapshot)["b"]));
    }
}
