//! `ResetAware`: spends first what a near reset would take away (routing spec 4.10).

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::quota::reset_aware_score;
use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};

/// Settings and the turn within the tie band.
#[derive(Debug)]
pub struct ResetAware {
    /// Scores within this of the best take turns, 0–1.
    band: f64,
    /// Share of the session window below which an account is spared, 0–1.
    guard: f64,
    turn: AtomicUsize,
}

impl ResetAware {
    /// From percent.
    #[must_use]
    pub fn new(tie_band_percent: u32, guard_percent: u32) -> Self {
        let share = |percent: u32| f64::from(percent.min(100)) / 100.0;
        Self { band: share(tie_band_percent), guard: share(guard_percent), turn: AtomicUsize::new(0) }
    }
}

impl Strategy for ResetAware {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        let score = |i: &usize| candidates.get(*i).and_then(|c| reset_aware_score(c.measured.quota.as_ref(), self.guard, ctx.now));
        let value = |i: &usize| score(i).unwrap_or(f64::NEG_INFINITY);
        available.sort_by(|a, b| value(b).total_cmp(&value(a)));
        rotate_band(&mut available, |best, i| value(best) - value(i) <= self.band, &self.turn);
        let ranked = available.into_iter().chain(rest).map(|i| {
            let score = score(&i);
            Ranked { candidate: i, score, note: score.is_none().then(|| "a limit is reached".to_owned()) }
        });
        ranked.collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, quota: true, per_connection: true, ..Traits::default() }
    }
}

/// Lets those at the front that are as good as the best take turns.
pub(super) fn rotate_band(order: &mut [usize], ties: impl Fn(&usize, &usize) -> bool, turn: &AtomicUsize) {
    let Some(best) = order.first().copied() else { return };
    let band = order.iter().take_while(|i| ties(&best, i)).count();
    if band > 1 {
        let by = turn.fetch_add(1, Ordering::Relaxed) % band;
        order.get_mut(..band).into_iter().for_each(|front| front.rotate_left(by));
    }
}
