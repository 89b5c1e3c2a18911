//! Model lockout (spec: resilience 12; decisions 1.5, 3.4): timers on models, or families of models, of one connection.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::LockoutState;
use super::cooldown::{backoff_ms, jittered_ms};
use super::ended::Ended;
use crate::api::time::EpochMs;
use crate::classify::{Reason, WaitSource};
use crate::snapshot::{ModelLockout, QuotaFamily, SlowStart};

/// Locks remembered per connection. Clients choose model names, so the number is bounded; running locks are never dropped to make room.
pub const MAX_LOCKS: usize = 128;

/// Longest wait that anything can ask for, milliseconds (30 days).
pub const MAX_WAIT_MS: u64 = 30 * 86_400_000;

/// How far a lock reaches inside a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LockScope {
    /// All models of the quota family; the model itself where no family is declared.
    QuotaFamily,
    /// The model, as named.
    RawModel,
    /// One literal id, kept apart from quota locks of the same name.
    Exact,
}

impl LockScope {
    /// The scope that a status asks for (spec: resilience 12.3).
    #[must_use]
    pub const fn of_status(status: u16) -> Self {
        match status {
            402 | 403 | 429 => Self::QuotaFamily,
            404 => Self::RawModel,
            _ => Self::Exact,
        }
    }

    /// The name of the specification.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::QuotaFamily => "quota_family",
            Self::RawModel => "raw_model",
            Self::Exact => "exact",
        }
    }
}

/// What is locked. Names are compared without case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum LockKey {
    /// A declared family.
    Family(String),
    /// A model; shared by quota locks without a family and by locks of the raw name.
    Model(String),
    /// A literal id.
    Exact(String),
}

impl LockKey {
    /// The key of a model under a scope.
    #[must_use]
    pub fn new(scope: LockScope, model: &str, families: &[QuotaFamily]) -> Self {
        match (scope, family_of(model, families)) {
            (LockScope::Exact, _) => Self::Exact(normal(model)),
            (LockScope::QuotaFamily, Some(family)) => Self::Family(family.to_owned()),
            (LockScope::QuotaFamily | LockScope::RawModel, _) => Self::Model(normal(model)),
        }
    }

    /// The keys that hold a model back.
    pub(super) fn all_of(model: &str, families: &[QuotaFamily]) -> [Option<Self>; 3] {
        let name = normal(model);
        [family_of(model, families).map(|f| Self::Family(f.to_owned())), Some(Self::Model(name.clone())), Some(Self::Exact(name))]
    }

    /// The name to show.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Family(name) | Self::Model(name) | Self::Exact(name) => name,
        }
    }

    /// True for one literal id, false for a family.
    #[must_use]
    pub const fn is_literal(&self) -> bool {
        !matches!(self, Self::Family(_))
    }
}

fn normal(model: &str) -> String {
    model.trim().to_lowercase()
}

/// The first declared family that a model belongs to.
#[must_use]
pub fn family_of<'a>(model: &str, families: &'a [QuotaFamily]) -> Option<&'a str> {
    let model = normal(model);
    families.iter().find(|f| f.models.iter().any(|glob| glob_matches(&glob.to_lowercase(), &model))).map(|f| f.name.as_str())
}

/// `*` stands for any text; everything else is literal.
pub fn glob_matches(glob: &str, text: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    let mut rest = rest;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

/// How long a lock lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockWait {
    /// A wait that somebody named: used as it stands.
    Exact {
        /// Milliseconds.
        ms: u64,
    },
    /// Computed: grows with the failures in a row.
    Escalating {
        /// The first one, milliseconds.
        base_ms: u64,
    },
}

/// Numbers of the escalation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Escalation {
    /// Cap of the exponent.
    pub max_steps: u32,
    /// Longest computed lock, milliseconds.
    pub max_ms: u64,
    /// False = always the base.
    pub exponential: bool,
    /// A failure within this time after the last lock's end continues the count, milliseconds.
    pub window_ms: u64,
}

impl Escalation {
    /// The numbers of the settings for a reason (decisions 1.5: caps are per reason).
    #[must_use]
    pub fn of(settings: &ModelLockout, reason: Reason) -> Self {
        Self {
            max_steps: settings.max_backoff_steps,
            max_ms: if is_quota(reason) { settings.quota_max_cooldown_ms } else { settings.max_cooldown_ms },
            exponential: settings.use_exponential_backoff,
            window_ms: settings.escalation_window_ms,
        }
    }
}

/// True for reasons that concern an allowance rather than a moment.
#[must_use]
pub const fn is_quota(reason: Reason) -> bool {
    matches!(reason, Reason::QuotaExhausted | Reason::CreditsExhausted)
}

/// Which wait an exact lock gets (spec: resilience 12.4): a parsed one that is longer than the base, else 0 = escalate, else the base.
#[must_use]
pub const fn select_exact_ms(parsed_ms: u64, base_ms: u64, exponential: bool) -> u64 {
    if parsed_ms > base_ms {
        parsed_ms
    } else if exponential {
        0
    } else {
        base_ms
    }
}

/// One failure that asks for a lock.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LockRequest {
    /// Why.
    pub reason: Reason,
    /// Where the wait comes from.
    pub source: WaitSource,
    /// How long.
    pub wait: LockWait,
    /// The vendor rejected this client: counted, because the next wait grows with it (decisions 1.8).
    pub rejection: bool,
    /// Jitter for computed waits, −1..=1.
    pub jitter: f64,
    /// Sequence at which the request began (herd guard).
    pub began: u64,
    /// Sequence of this failure.
    pub sequence: u64,
}

/// What became of a request for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locked {
    /// A lock began or became longer.
    Until(EpochMs),
    /// A lock that lasts at least as long is there already.
    Kept(EpochMs),
    /// No room: every remembered lock still runs.
    Omitted,
    /// Slow start: seen, not locked yet.
    Observed,
}

/// One lock. Ordered so that the later end wins a merge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lock {
    /// End, milliseconds since the epoch; in the past = only the count is remembered.
    pub until_ms: i64,
    /// Failures in a row.
    pub failures: u32,
    /// Rejections of this client in a row (decisions 1.8).
    pub rejections: u32,
    /// The last failure, milliseconds since the epoch.
    pub last_failure_ms: i64,
    /// Length of the last lock, milliseconds.
    pub length_ms: u64,
    /// Slow failures inside the observation window (slow start).
    pub slow_failures: u32,
    /// The first of them, milliseconds since the epoch.
    pub slow_since_ms: i64,
    /// Why.
    pub reason: Reason,
    /// Where the wait comes from.
    pub source: WaitSource,
    /// Sequence of the failure that was counted last; not kept over a restart.
    #[serde(skip)]
    counted_by: u64,
}

impl Lock {
    fn new(request: &LockRequest) -> Self {
        Self {
            until_ms: 0,
            failures: 0,
            rejections: 0,
            last_failure_ms: 0,
            length_ms: 0,
            slow_failures: 0,
            slow_since_ms: 0,
            reason: request.reason,
            source: request.source,
            counted_by: 0,
        }
    }

    /// True while it holds the model back.
    #[must_use]
    pub const fn active(&self, now: EpochMs) -> bool {
        self.until_ms > now.0
    }

    /// True when neither the lock nor its counts matter any more.
    fn forgettable(&self, now: EpochMs, window_ms: u64) -> bool {
        !self.active(now) && now.since(EpochMs(self.last_failure_ms)) > window_ms.saturating_add(self.length_ms)
    }

    /// Counts a failure once per herd; a long quiet time starts the count again.
    fn count(&mut self, request: &LockRequest, window_ms: u64, now: EpochMs) {
        if request.began < self.counted_by {
            return;
        }
        if self.forgettable(now, window_ms) {
            self.failures = 0;
            self.rejections = 0;
        }
        if request.rejection {
            self.rejections = self.rejections.saturating_add(1);
        }
        self.failures = self.failures.saturating_add(1);
        self.last_failure_ms = now.0;
        self.counted_by = request.sequence;
    }

    fn wait_ms(&self, request: &LockRequest, escalation: &Escalation) -> u64 {
        let computed = match request.wait {
            LockWait::Exact { ms } => return ms.min(MAX_WAIT_MS),
            LockWait::Escalating { base_ms } if escalation.exponential => {
                backoff_ms(base_ms, self.failures.saturating_sub(1), escalation.max_steps, escalation.max_ms)
            }
            LockWait::Escalating { base_ms } => base_ms.min(escalation.max_ms),
        };
        jittered_ms(computed, request.jitter)
    }
}

/// The locks of one connection.
#[derive(Clone, Debug, Default)]
pub struct Lockouts {
    locks: BTreeMap<LockKey, Lock>,
    omitted: u32,
}

impl Lockouts {
    /// Applies a failure to a key. A longer running lock is kept; an end never moves to an earlier instant.
    pub fn lock(&mut self, key: LockKey, request: &LockRequest, escalation: &Escalation, now: EpochMs) -> Locked {
        if !self.make_room(&key, escalation.window_ms, now) {
            self.omitted = self.omitted.saturating_add(1);
            return Locked::Omitted;
        }
        let lock = self.locks.entry(key).or_insert_with(|| Lock::new(request));
        lock.count(request, escalation.window_ms, now);
        let wait = lock.wait_ms(request, escalation);
        let until = now.plus(wait);
        if until.0 <= lock.until_ms.max(now.0) {
            return Locked::Kept(EpochMs(lock.until_ms));
        }
        lock.until_ms = until.0;
        // Also of a herd that was counted already: what ended before this failure does not end it.
        lock.last_failure_ms = now.0;
        lock.length_ms = wait;
        lock.reason = request.reason;
        lock.source = request.source;
        Locked::Until(until)
    }

    /// Slow start (spec: resilience 12.4): a slow failure is only observed until enough of them fell into the window; then the lock
    /// takes the next of the declared steps.
    pub fn lock_slow(&mut self, key: LockKey, request: &LockRequest, slow: &SlowStart, escalation: &Escalation, now: EpochMs) -> Locked {
        if !self.make_room(&key, escalation.window_ms, now) {
            self.omitted = self.omitted.saturating_add(1);
            return Locked::Omitted;
        }
        let lock = self.locks.entry(key.clone()).or_insert_with(|| Lock::new(request));
        if lock.slow_failures == 0 || now.since(EpochMs(lock.slow_since_ms)) > slow.observation_window_ms {
            lock.slow_failures = 0;
            lock.slow_since_ms = now.0;
        }
        lock.slow_failures = lock.slow_failures.saturating_add(1);
        if lock.slow_failures < slow.failures_before_cooldown.max(1) {
            lock.last_failure_ms = now.0;
            return Locked::Observed;
        }
        lock.slow_failures = 0;
        let step = usize::try_from(lock.failures).unwrap_or(usize::MAX).min(slow.steps_ms.len().saturating_sub(1));
        let ms = slow.steps_ms.get(step).copied().unwrap_or(escalation.max_ms);
        let wait = LockWait::Exact { ms: jittered_ms(ms, request.jitter) };
        self.lock(key, &LockRequest { wait, ..*request }, escalation, now)
    }

    /// The lock that holds a model back longest.
    #[must_use]
    pub fn holding(&self, model: &str, families: &[QuotaFamily], now: EpochMs) -> Option<(&LockKey, &Lock)> {
        let keys = LockKey::all_of(model, families);
        keys.iter().flatten().filter_map(|k| self.locks.get_key_value(k)).filter(|(_, l)| l.active(now)).max_by_key(|(_, l)| l.until_ms)
    }

    /// Rejections of this client for a model before a failure of a request that began at `began`.
    #[must_use]
    pub fn rejections(&self, model: &str, began: u64) -> u32 {
        let lock = self.locks.get(&LockKey::Exact(normal(model)));
        lock.map_or(0, |l| if began < l.counted_by { l.rejections.saturating_sub(1) } else { l.rejections })
    }

    /// The keys of a model that are remembered, but not those that were counted after a request began.
    #[must_use]
    pub fn of_model(&self, model: &str, families: &[QuotaFamily], began: u64) -> Vec<LockKey> {
        let known = |key: &LockKey| self.locks.get(key).is_some_and(|lock| began >= lock.counted_by);
        LockKey::all_of(model, families).into_iter().flatten().filter(known).collect()
    }

    /// A success of a model: running locks of it end, counts are halved, and what reaches 0 is forgotten. Locks that were counted after
    /// the request began stay.
    pub fn success(&mut self, model: &str, families: &[QuotaFamily], began: u64, now: EpochMs) -> Vec<LockKey> {
        let mut ended = Vec::new();
        for key in LockKey::all_of(model, families).into_iter().flatten() {
            let Some(lock) = self.locks.get_mut(&key) else { continue };
            if began < lock.counted_by {
                continue;
            }
            if lock.active(now) {
                lock.until_ms = now.0;
                ended.push(key.clone());
            }
            lock.failures /= 2;
            lock.rejections /= 2;
            lock.slow_failures = 0;
            if lock.failures == 0 {
                self.locks.remove(&key);
            }
        }
        ended
    }

    /// Removes the locks of one model; answers those that were running.
    pub fn clear_model(&mut self, model: &str, families: &[QuotaFamily], now: EpochMs) -> Vec<LockKey> {
        let keys = LockKey::all_of(model, families).into_iter().flatten();
        // A family may also be cleared by its own name, which is what lists show.
        let keys = keys.chain([LockKey::Family(model.to_owned())]);
        keys.filter(|k| self.locks.remove(k).is_some_and(|l| l.active(now))).collect()
    }

    /// Removes all locks; answers those that were running.
    pub fn clear(&mut self, now: EpochMs) -> Vec<LockKey> {
        self.omitted = 0;
        std::mem::take(&mut self.locks).into_iter().filter(|(_, l)| l.active(now)).map(|(k, _)| k).collect()
    }

    /// Removes locks that a condition names (changed credential).
    pub fn remove_if(&mut self, condition: impl Fn(&Lock) -> bool) {
        self.locks.retain(|_, lock| !condition(lock));
    }

    /// The latest end of any running lock.
    #[must_use]
    pub fn latest(&self, now: EpochMs) -> Option<EpochMs> {
        self.running(now).map(|(_, l)| EpochMs(l.until_ms)).max()
    }

    /// The earliest end of any running lock.
    #[must_use]
    pub fn earliest(&self, now: EpochMs) -> Option<EpochMs> {
        self.running(now).map(|(_, l)| EpochMs(l.until_ms)).min()
    }

    /// True when nothing at all is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.locks.is_empty()
    }

    /// Failures in a row of a key.
    #[must_use]
    pub fn failures(&self, key: &LockKey) -> u32 {
        self.locks.get(key).map_or(0, |l| l.failures)
    }

    /// Failures that found no room for a lock since the last reset.
    #[must_use]
    pub const fn omitted(&self) -> u32 {
        self.omitted
    }

    /// Running locks as `/state` shows them, the last to expire first.
    #[must_use]
    pub fn states(&self, now: EpochMs) -> Vec<LockoutState> {
        let mut states: Vec<_> = self
            .running(now)
            .map(|(key, lock)| LockoutState {
                model: key.name().to_owned(),
                reason: lock.reason.pascal().to_owned(),
                until: Some(EpochMs(lock.until_ms)),
                exact: key.is_literal(),
            })
            .collect();
        states.sort_by(|a, b| b.until.cmp(&a.until).then_with(|| a.model.cmp(&b.model)));
        states
    }

    /// What a checkpoint keeps: running locks, and counts that still matter.
    pub fn memory(&self, window_ms: u64, now: EpochMs) -> impl Iterator<Item = (LockKey, Lock)> + '_ {
        self.locks.iter().filter(move |(_, l)| !l.forgettable(now, window_ms)).map(|(k, l)| (k.clone(), Lock { counted_by: 0, ..*l }))
    }

    /// Takes over a remembered lock; the later end wins. To requests that began before `sequence` it is news.
    pub fn restore(&mut self, key: LockKey, lock: Lock, window_ms: u64, now: EpochMs, sequence: u64) {
        if lock.forgettable(now, window_ms) || !self.make_room(&key, window_ms, now) {
            return;
        }
        let held = self.locks.get(&key).copied();
        let best = held.map_or(lock, |held| Lock { counted_by: held.counted_by, ..held.max(lock) });
        if held != Some(best) {
            self.locks.insert(key, Lock { counted_by: sequence, ..best });
        }
    }

    /// Removes the locks that ended elsewhere.
    pub fn end(&mut self, ended: &Ended) {
        self.locks.retain(|key, lock| !ended.ends_lock(key, lock.last_failure_ms));
    }

    fn running(&self, now: EpochMs) -> impl Iterator<Item = (&LockKey, &Lock)> + '_ {
        self.locks.iter().filter(move |(_, l)| l.active(now))
    }

    /// Makes room for a key: what is over goes first, then the count that is oldest; a running lock never.
    fn make_room(&mut self, key: &LockKey, window_ms: u64, now: EpochMs) -> bool {
        if self.locks.len() < MAX_LOCKS || self.locks.contains_key(key) {
            return true;
        }
        self.locks.retain(|_, l| !l.forgettable(now, window_ms));
        if self.locks.len() < MAX_LOCKS {
            return true;
        }
        let idle = self.locks.iter().filter(|(_, l)| !l.active(now)).min_by_key(|(_, l)| l.last_failure_ms).map(|(k, _)| k.clone());
        idle.is_some_and(|k| self.locks.remove(&k).is_some())
    }
}
