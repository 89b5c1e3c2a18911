//! `QuotaWeighted`: a draw by what is left and what would be lost, shared out over requests in flight (routing spec 4.13).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::quota::reset_aware_score;
use super::super::random::draw;
use super::bounded::Bounded;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};
use crate::api::time::EpochMs;

/// What was learned longer ago than this does not qualify for the first pool, milliseconds.
const FRESH_MS: u64 = 600_000;

/// Settings and requests in flight.
#[derive(Debug)]
pub struct QuotaWeighted {
    /// Percent that must be left for the first pool.
    floor_percent: u32,
    guard: f64,
    running: Mutex<Bounded<Running>>,
}

#[derive(Debug, Default)]
struct Running {
    requests: u32,
    last: EpochMs,
}

/// Where a candidate stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Pool {
    /// Enough is left, and that is known for certain.
    First,
    /// Little is left, or what is known is old.
    Second,
    /// Nothing is left.
    Empty,
}

impl QuotaWeighted {
    /// From percent.
    #[must_use]
    pub fn new(floor_percent: u32, guard_percent: u32) -> Self {
        let guard = f64::from(guard_percent.min(100)) / 100.0;
        Self { floor_percent: floor_percent.min(100), guard, running: Mutex::default() }
    }

    fn running(&self) -> MutexGuard<'_, Bounded<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing known counts as full and fresh.
    fn pool(&self, candidate: &Candidate, now: EpochMs) -> Pool {
        let Some(quota) = &candidate.measured.quota else { return Pool::First };
        let percent = quota.remaining(now) * 100.0;
        let above = self.floor_percent == 0 || percent > f64::from(self.floor_percent);
        if percent <= 0.0 {
            Pool::Empty
        } else if above && now.since(quota.observed) <= FRESH_MS {
            Pool::First
        } else {
            Pool::Second
        }
    }
}

fn enter(running: &mut Bounded<Running>, key: u64, now: EpochMs) {
    let entry = running.entry(key, |r| r.last);
    entry.requests = entry.requests.saturating_add(1);
    entry.last = now;
}

impl Strategy for QuotaWeighted {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let now = ctx.now;
        let (available, rest) = split(candidates);
        let score = |i: usize| candidates.get(i).and_then(|c| reset_aware_score(c.measured.quota.as_ref(), self.guard, now)).unwrap_or(0.0);
        let pool = |i: usize| candidates.get(i).map_or(Pool::Empty, |c| self.pool(c, now));
        let mut order = available;
        order.sort_by(|a, b| pool(*a).cmp(&pool(*b)).then(score(*b).total_cmp(&score(*a))));
        let mut running = self.running();
        let best = order.first().map(|i| pool(*i));
        let drawn: Vec<usize> = order.iter().copied().filter(|i| Some(pool(*i)) == best).collect();
        let weight = |i: usize| {
            let Some(c) = candidates.get(i) else { return 0.0 };
            let own = running.get(c.key).map_or(0, |r| r.requests).max(c.measured.in_flight);
            score(i).max(0.0) / (1.0 + f64::from(own))
        };
        let weights: Vec<f64> = drawn.iter().map(|i| weight(*i)).collect();
        // Nothing is left anywhere: nobody is drawn, the order is that of the scores.
        let winner = if best == Some(Pool::Empty) { None } else { draw(&weights, ctx.rng).and_then(|at| drawn.get(at).copied()) };
        order.sort_by_key(|i| Some(*i) != winner);
        let ranked: Vec<Ranked> = order
            .into_iter()
            .chain(rest)
            .map(|i| Ranked { candidate: i, score: Some(weight(i)), note: (pool(i) == Pool::Empty).then(|| "used up".to_owned()) })
            .collect();
        if let Some(first) = ranked.first().and_then(|r| candidates.get(r.candidate)) {
            enter(&mut running, first.key, now);
        }
        ranked
    }

    fn observe(&self, event: &Event) {
        let mut running = self.running();
        match event.kind {
            EventKind::Entered => enter(&mut running, event.key, event.now),
            EventKind::Left => {
                let entry = running.entry(event.key, |r| r.last);
                entry.requests = entry.requests.saturating_sub(1);
            }
            EventKind::Succeeded { .. } | EventKind::Failed { .. } => {}
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, load: true, quota: true, per_connection: true, protects_first: true, ..Traits::default() }
    }
}
