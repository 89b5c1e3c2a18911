//! Which connection of a target goes first (routing spec 11). One state per provider, moved over at a reload.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::latency::Samples;
use super::live::Live;
use super::random::{self, Random};
use super::topology::ConnectionNode;
use crate::api::time::EpochMs;
use crate::snapshot::AccountStrategy;

/// Requests in a row that `RoundRobin` gives to one connection.
const STICKY_USES: u32 = 3;
/// Remembered connections per provider; the one unused for longest is forgotten first.
const MAX_REMEMBERED: usize = 4_096;

/// How the connections of one provider are chosen, with the state of that choice.
#[derive(Debug)]
pub struct Accounts {
    strategy: AccountStrategy,
    /// Weight of the latency term of P2C, 0 = off.
    latency_weight: u32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Counts uses: the order of last uses without a clock.
    uses: u64,
    /// The connection of the running batch and its uses so far.
    batch: Option<(u64, u32)>,
    /// The connection that was used last and how often in a row.
    streak: Option<(u64, u32)>,
    /// By connection key.
    remembered: HashMap<u64, Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    /// Value of the use counter at the last use; 0 = never.
    last_use: u64,
    /// When it was used last.
    used_at: Option<EpochMs>,
    samples: Samples,
}

/// What the order of one target's connections may look at.
pub struct AccountContext<'a> {
    /// Load of each connection.
    pub live: &'a dyn Live,
    /// The connection that the session is pinned to, by position in the snapshot.
    pub pinned: Option<usize>,
    /// Whether something was left out because it failed already in this request.
    pub after_failure: bool,
    /// Now.
    pub now: EpochMs,
    /// Randomness.
    pub rng: &'a mut dyn Random,
}

impl Accounts {
    /// No state yet.
    #[must_use]
    pub fn new(strategy: AccountStrategy, latency_weight: u32) -> Self {
        Self { strategy, latency_weight, state: Mutex::default() }
    }

    /// Whether it was made for these settings, so that a reload may keep it.
    #[must_use]
    pub fn is_for(&self, strategy: AccountStrategy, latency_weight: u32) -> bool {
        self.strategy == strategy && self.latency_weight == latency_weight
    }

    /// Puts eligible connections into the order in which they are tried. `connections` come lowest priority number first, then by name. A
    /// pinned connection goes first whatever the strategy says.
    #[must_use]
    pub fn order(&self, connections: Vec<Arc<ConnectionNode>>, ctx: &mut AccountContext<'_>) -> Vec<Arc<ConnectionNode>> {
        let mut order = connections;
        match self.strategy {
            _ if order.len() < 2 => {}
            AccountStrategy::FillFirst => {}
            AccountStrategy::Random => random::shuffle(&mut order, ctx.rng),
            AccountStrategy::Weighted => order = weighted(order, ctx.rng),
            AccountStrategy::RoundRobin => self.round_robin(&mut order, ctx),
            AccountStrategy::LeastUsed => {
                let state = self.state();
                order.sort_by_key(|c| (ctx.live.load(c.index).backoff_level, state.last_use(c.key)));
            }
            AccountStrategy::P2C => self.power_of_two(&mut order, ctx),
        }
        if let Some(at) = ctx.pinned.and_then(|pin| order.iter().position(|c| c.index == pin)) {
            order.get_mut(..=at).into_iter().for_each(|front| front.rotate_right(1));
        }
        order
    }

    /// Notes that a request was dispatched to a connection.
    pub fn dispatched(&self, connection: &ConnectionNode, now: EpochMs) {
        if !self.remembers() {
            return;
        }
        let mut state = self.state();
        state.uses += 1;
        let use_number = state.uses;
        if state.remembered.len() >= MAX_REMEMBERED && !state.remembered.contains_key(&connection.key) {
            let oldest = state.remembered.iter().min_by_key(|(_, m)| m.last_use).map(|(key, _)| *key);
            oldest.map(|key| state.remembered.remove(&key));
        }
        state.streak = match state.streak {
            Some((key, uses)) if key == connection.key => Some((key, uses.saturating_add(1))),
            _ => Some((connection.key, 1)),
        };
        let memory = state.remembered.entry(connection.key).or_default();
        memory.last_use = use_number;
        memory.used_at = Some(now);
    }

    /// Notes how an attempt on a connection ended, and after how long.
    pub fn observe(&self, connection: &ConnectionNode, latency_ms: u64, failed: bool, now: EpochMs) {
        if self.strategy == AccountStrategy::P2C && self.latency_weight > 0 {
            self.state().remembered.entry(connection.key).or_default().samples.push(latency_ms, failed, now);
        }
    }

    const fn remembers(&self) -> bool {
        matches!(self.strategy, AccountStrategy::RoundRobin | AccountStrategy::LeastUsed | AccountStrategy::P2C)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn round_robin(&self, order: &mut [Arc<ConnectionNode>], ctx: &AccountContext<'_>) {
        let mut state = self.state();
        let running = state.batch.filter(|(_, uses)| *uses < STICKY_USES && !ctx.after_failure);
        let same = running.and_then(|(key, uses)| order.iter().position(|c| c.key == key).map(|at| (at, uses)));
        // Least recently used first; a connection that backed off comes after those that did not, unless something failed just now.
        order.sort_by_key(|c| {
            let backoff = if ctx.after_failure { 0 } else { ctx.live.load(c.index).backoff_level };
            (backoff, state.last_use(c.key), c.priority)
        });
        let uses = match same {
            Some((_, uses)) => {
                let key = running.map(|(key, _)| key);
                if let Some(at) = order.iter().position(|c| Some(c.key) == key) {
                    order.get_mut(..=at).into_iter().for_each(|front| front.rotate_right(1));
                }
                uses + 1
            }
            None => 1,
        };
        state.batch = order.first().map(|c| (c.key, uses));
        // Counted here already: a second request at the same instant must not take the same turn.
        state.uses += 1;
        let use_number = state.uses;
        if let Some(first) = order.first() {
            state.remembered.entry(first.key).or_default().last_use = use_number;
        }
    }

    fn power_of_two(&self, order: &mut [Arc<ConnectionNode>], ctx: &mut AccountContext<'_>) {
        let first = ctx.rng.below(order.len());
        let mut second = ctx.rng.below(order.len() - 1);
        second += usize::from(second >= first);
        let (Some(a), Some(b)) = (order.get(first), order.get(second)) else { return };
        let state = self.state();
        let mut scores = (state.score(a, ctx), state.score(b, ctx));
        if self.latency_weight > 0 {
            let empty = Samples::default();
            let samples = |c: &ConnectionNode| state.remembered.get(&c.key).map_or(&empty, |m| &m.samples);
            let (left, right) = samples(a).penalties(samples(b), self.latency_weight, ctx.now);
            scores = (scores.0 + left, scores.1 + right);
        }
        drop(state);
        let tie = (a.priority, &a.name).cmp(&(b.priority, &b.name));
        let better = if scores.0.total_cmp(&scores.1).then(tie).is_le() { first } else { second };
        order.get_mut(..=better).into_iter().for_each(|front| front.rotate_right(1));
    }
}

impl State {
    fn last_use(&self, key: u64) -> u64 {
        self.remembered.get(&key).map_or(0, |m| m.last_use)
    }

    /// The P2C score of the specification: lower is better. In-flight requests count like consecutive uses.
    fn score(&self, connection: &ConnectionNode, ctx: &AccountContext<'_>) -> f64 {
        let load = ctx.live.load(connection.index);
        let mut score = match load.last_status {
            None => 0,
            Some(429) => 6 + 24,
            Some(401 | 403) => 6 + 18,
            Some(500..) => 6 + 10,
            Some(_) => 6,
        };
        score += load.backoff_level.saturating_mul(8).min(40);
        score += load.in_flight.saturating_mul(2).min(40);
        score += quota_penalty(connection, ctx.now);
        score += self.streak.filter(|(key, _)| *key == connection.key).map_or(0, |(_, uses)| uses.saturating_mul(2).min(12));
        if let Some(memory) = self.remembered.get(&connection.key) {
            score += match memory.used_at.map(|at| ctx.now.since(at)) {
                Some(0..15_000) => 3,
                Some(15_000..60_000) => 2,
                Some(60_000..300_000) => 1,
                _ => 0,
            };
        }
        score += u32::try_from(connection.priority.saturating_sub(1).clamp(0, 6)).unwrap_or(0);
        f64::from(score)
    }
}

/// Penalty for what is left of the tightest allowance; 0 when nothing is known about any, since then it tells nobody apart.
fn quota_penalty(connection: &ConnectionNode, now: EpochMs) -> u32 {
    let Some(quota) = connection.quota.get() else { return 0 };
    if quota.is_reached(now) {
        return 200;
    }
    let left = quota.remaining(now);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0..=100
    let percent = (left * 100.0).round() as u32;
    let near = match percent {
        0..=10 => 10,
        11..=25 => 4,
        _ => 0,
    };
    (100 - percent).div_ceil(8) + near
}

/// Repeated weighted draws without putting back.
fn weighted(mut rest: Vec<Arc<ConnectionNode>>, rng: &mut dyn Random) -> Vec<Arc<ConnectionNode>> {
    let mut order = Vec::with_capacity(rest.len());
    while !rest.is_empty() {
        let weights: Vec<f64> = rest.iter().map(|c| f64::from(c.weight)).collect();
        let at = random::draw(&weights, rng).unwrap_or(0);
        order.push(rest.remove(at));
    }
    order
}
