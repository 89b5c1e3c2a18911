//! `Weighted`: a draw by weight, kept for `stickyWeightedLimit` successes (routing spec 4.2).

use std::sync::{Mutex, PoisonError};

use super::super::random;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};

/// The running batch of one combo.
#[derive(Debug)]
pub struct Weighted {
    /// Successes before a new draw; 0 and 1 = every request draws.
    limit: u32,
    /// The combo has tiers: the rest of an order follows them, otherwise the weights.
    tiers: bool,
    /// The entry that is kept, and its successes so far.
    kept: Mutex<Option<(usize, u32)>>,
}

impl Weighted {
    /// Without a batch.
    #[must_use]
    pub const fn new(limit: u32, tiers: bool) -> Self {
        Self { limit, tiers, kept: Mutex::new(None) }
    }

    /// The entry that the batch keeps, if it can serve.
    fn kept(&self, candidates: &[Candidate]) -> Option<usize> {
        if self.limit < 2 {
            return None;
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (unit, count) = (*kept)?;
        let at = candidates.iter().position(|c| c.unit == unit && c.available).filter(|_| count < self.limit);
        if at.is_none() {
            *kept = None;
        }
        at
    }
}

impl Strategy for Weighted {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (available, _) = split(candidates);
        let weight = |i: usize| candidates.get(i).map_or(0, |c| c.weight);
        let first = self.kept(candidates).or_else(|| {
            let weights: Vec<f64> = available.iter().map(|i| f64::from(weight(*i))).collect();
            random::draw(&weights, ctx.rng).and_then(|at| available.get(at).copied())
        });
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        let out = |i: usize| candidates.get(i).is_none_or(|c| !c.available);
        if self.tiers {
            order.sort_by_key(|i| (Some(*i) != first, out(*i)));
        } else {
            order.sort_by_key(|i| (Some(*i) != first, out(*i), std::cmp::Reverse(weight(*i))));
        }
        order.into_iter().map(|i| Ranked { candidate: i, score: Some(f64::from(weight(i))), note: None }).collect()
    }

    fn observe(&self, event: &Event) {
        if self.limit > 1 && matches!(event.kind, EventKind::Succeeded { .. }) {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            *kept = Some(match *kept {
                Some((unit, count)) if unit == event.unit => (unit, count.saturating_add(1)),
                _ => (event.unit, 1),
            });
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, protects_first: true, ..Traits::default() }
    }
}
