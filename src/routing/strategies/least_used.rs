//! `LeastUsed`: the entry with the fewest recent requests; counts fade, so that a new entry is not flooded (routing spec 4.8; decisions 4.7).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bounded::Bounded;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};
use crate::api::time::EpochMs;

/// After this time a use counts half, milliseconds.
const HALF_LIFE_MS: f64 = 600_000.0;

/// Uses of the entries of one combo.
#[derive(Debug, Default)]
pub struct LeastUsed {
    uses: Mutex<Bounded<Uses>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    count: f64,
    at: EpochMs,
}

impl Uses {
    fn now(self, now: EpochMs) -> f64 {
        #[allow(clippy::cast_precision_loss)]
        let elapsed = now.since(self.at) as f64;
        self.count * (-elapsed / HALF_LIFE_MS * std::f64::consts::LN_2).exp()
    }
}

impl LeastUsed {
    fn uses(&self) -> MutexGuard<'_, Bounded<Uses>> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(uses: &mut Bounded<Uses>, key: u64, now: EpochMs) {
    let entry = uses.entry(key, |u| u.at);
    *entry = Uses { count: entry.now(now) + 1.0, at: now };
}

impl Strategy for LeastUsed {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        let mut uses = self.uses();
        let value = |i: &usize| candidates.get(*i).and_then(|c| uses.get(c.key)).map_or(0.0, |u| u.now(ctx.now));
        available.sort_by(|a, b| value(a).total_cmp(&value(b)));
        let order: Vec<Ranked> =
            available.into_iter().chain(rest).map(|i| Ranked { candidate: i, score: Some(value(&i)), note: None }).collect();
        if let Some(first) = order.first().and_then(|r| candidates.get(r.candidate)) {
            count(&mut uses, first.key, ctx.now);
        }
        order
    }

    fn observe(&self, event: &Event) {
        if event.kind == EventKind::Entered {
            count(&mut self.uses(), event.key, event.now);
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}
