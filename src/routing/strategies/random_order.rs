//! `Random`: a uniformly random order for every request (routing spec 4.7).

use super::super::random::shuffle;
use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};

/// No state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RandomOrder;

impl Strategy for RandomOrder {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (mut available, rest) = split(candidates);
        shuffle(&mut available, ctx.rng);
        available.into_iter().chain(rest).map(Ranked::plain).collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}
