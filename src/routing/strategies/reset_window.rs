//! `ResetWindow`: the account whose weekly window starts again soonest goes first (routing spec 4.11).

use std::sync::atomic::AtomicUsize;

use super::super::quota::{Quota, WindowKind};
use super::reset_aware::rotate_band;
use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};
use crate::api::time::EpochMs;

/// The tie band and the turn within it.
#[derive(Debug)]
pub struct ResetWindow {
    /// Resets within this of the nearest take turns, milliseconds.
    band_ms: u64,
    turn: AtomicUsize,
}

impl ResetWindow {
    /// With a tie band, milliseconds.
    #[must_use]
    pub const fn new(band_ms: u64) -> Self {
        Self { band_ms, turn: AtomicUsize::new(0) }
    }
}

/// Milliseconds to the weekly reset, else to the nearest of any window; a past one is 0. `None` = unknown, or a limit is reached.
fn to_reset(quota: Option<&Quota>, now: EpochMs) -> Option<u64> {
    let quota = quota.filter(|q| !q.is_reached(now))?;
    let weekly = quota.windows.iter().find(|w| w.kind == WindowKind::Weekly).and_then(|w| w.resets);
    weekly.or_else(|| quota.windows.iter().filter_map(|w| w.resets).min()).map(|at| at.since(now))
}

impl Strategy for ResetWindow {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        let wait = |i: &usize| candidates.get(*i).and_then(|c| to_reset(c.measured.quota.as_ref(), ctx.now));
        available.sort_by_key(|i| wait(i).unwrap_or(u64::MAX));
        let ties = |best: &usize, i: &usize| matches!((wait(best), wait(i)), (Some(a), Some(b)) if b.abs_diff(a) <= self.band_ms);
        rotate_band(&mut available, ties, &self.turn);
        let ranked = available.into_iter().chain(rest).map(|i| {
            #[allow(clippy::cast_precision_loss)]
            let score = wait(&i).map(|ms| ms as f64);
            Ranked { candidate: i, score, note: score.is_none().then(|| "reset unknown".to_owned()) }
        });
        ranked.collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, quota: true, per_connection: true, ..Traits::default() }
    }
}
