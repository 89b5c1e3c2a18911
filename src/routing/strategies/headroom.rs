//! `Headroom`: the account with the most left of its tightest window goes first (routing spec 4.12).

use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};

/// No state. An account of which nothing is known counts as full.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Headroom;

impl Strategy for Headroom {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        let left = |i: &usize| candidates.get(*i).and_then(|c| c.measured.quota.as_ref()).map_or(1.0, |q| q.remaining(ctx.now));
        available.sort_by(|a, b| left(b).total_cmp(&left(a)));
        available.into_iter().chain(rest).map(|i| Ranked { candidate: i, score: Some(left(&i)), note: None }).collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, quota: true, per_connection: true, ..Traits::default() }
    }
}
