//! `Priority` and `FillFirst`: the declared order (routing spec 4.1). What rests is skipped by the gates, not by the order.

use super::{Candidate, OrderContext, Ranked, Strategy, Traits};

/// The declared order. No state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Declared;

impl Strategy for Declared {
    fn order(&self, candidates: &[Candidate], _ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        (0..candidates.len()).map(Ranked::plain).collect()
    }

    fn traits(&self) -> Traits {
        Traits { protects_first: true, ..Traits::default() }
    }
}
