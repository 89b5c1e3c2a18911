//! `P2C`: the better of two random ones, by load and speed (routing spec 4.6; decisions 4.7).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::latency::Faded;
use super::bounded::Bounded;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};

/// Latency of an entry when nothing is known about any, milliseconds: only the ratio to the load matters.
const UNKNOWN_MS: f64 = 1_000.0;
/// An entry whose every attempt fails counts as this many times slower.
const FAILURE_FACTOR: f64 = 10.0;

/// What is known about the entries of one combo.
#[derive(Debug, Default)]
pub struct PowerOfTwo {
    entries: Mutex<Bounded<Entry>>,
}

#[derive(Debug, Default)]
struct Entry {
    /// Requests of this combo on it. Requests from elsewhere come in through `measured`.
    running: u32,
    latency: Faded,
    failures: Faded,
    last_use: i64,
}

impl PowerOfTwo {
    fn entries(&self) -> MutexGuard<'_, Bounded<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The expected time on a candidate: lower is better. An unknown latency is that of the other one, so that load decides.
fn score(entries: &Bounded<Entry>, candidate: &Candidate, other: &Candidate) -> f64 {
    let known = |c: &Candidate| entries.get(c.key).and_then(|e| e.latency.get());
    let latency = known(candidate).or_else(|| known(other)).unwrap_or(UNKNOWN_MS);
    let entry = entries.get(candidate.key);
    let failures = entry.and_then(|e| e.failures.get()).unwrap_or(0.0);
    let running = entry.map_or(0, |e| e.running).max(candidate.measured.in_flight);
    let probing = if candidate.measured.probing { 2.0 } else { 1.0 };
    latency.max(1.0) * f64::from(running.saturating_add(1)) * (1.0 + failures * (FAILURE_FACTOR - 1.0)) * probing
}

impl Strategy for PowerOfTwo {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (available, rest) = split(candidates);
        let mut scores = vec![None; candidates.len()];
        let mut entries = self.entries();
        let mut winner = available.first().copied();
        if available.len() > 1 {
            let first = ctx.rng.below(available.len());
            let mut second = ctx.rng.below(available.len() - 1);
            second += usize::from(second >= first);
            let drawn = (available.get(first).copied(), available.get(second).copied());
            if let (Some(a), Some(b)) = drawn
                && let (Some(left), Some(right)) = (candidates.get(a), candidates.get(b))
            {
                let (x, y) = (score(&entries, left, right), score(&entries, right, left));
                winner = Some(if x <= y { a } else { b });
                for (at, value) in [(a, x), (b, y)] {
                    scores.get_mut(at).into_iter().for_each(|s| *s = Some(value));
                }
            }
        }
        let order: Vec<usize> = winner.into_iter().chain(available.into_iter().filter(|i| Some(*i) != winner)).chain(rest).collect();
        if let Some(first) = order.first().and_then(|i| candidates.get(*i)) {
            enter(&mut entries, first.key, ctx.now.0);
        }
        order.into_iter().map(|i| Ranked { candidate: i, score: scores.get(i).copied().flatten(), note: None }).collect()
    }

    fn observe(&self, event: &Event) {
        let mut entries = self.entries();
        match event.kind {
            EventKind::Entered => enter(&mut entries, event.key, event.now.0),
            kind => {
                let entry = entries.entry(event.key, |e| e.last_use);
                match kind {
                    EventKind::Left => entry.running = entry.running.saturating_sub(1),
                    EventKind::Succeeded { latency_ms } => {
                        #[allow(clippy::cast_precision_loss)]
                        entry.latency.push(latency_ms as f64, event.now);
                        entry.failures.push(0.0, event.now);
                    }
                    _ => entry.failures.push(1.0, event.now),
                }
            }
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, load: true, ..Traits::default() }
    }
}

fn enter(entries: &mut Bounded<Entry>, key: u64, now: i64) {
    let entry = entries.entry(key, |e| e.last_use);
    entry.running = entry.running.saturating_add(1);
    entry.last_use = now;
}
