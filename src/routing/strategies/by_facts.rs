//! `CostOptimized` and `ContextOptimized`: by what is known about the models (routing spec 4.9, 4.17; decisions 4.7).

use super::super::request::Needs;
use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};
use crate::snapshot::Price;

/// Input of a request whose size is not known, tokens.
const TYPICAL_INPUT: u64 = 1_000;
/// Output of a request that asks for no length, tokens.
const TYPICAL_OUTPUT: u64 = 500;

/// The cheapest first, by what this request will probably cost; unknown prices last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CostOptimized;

/// The largest context window first; unknown windows last. Nothing known: the declared order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ContextOptimized;

/// Expected cost of a request in micro-USD, times a million.
#[must_use]
pub fn expected_cost(price: Price, needs: &Needs) -> u128 {
    let input = if needs.input_tokens == 0 { TYPICAL_INPUT } else { needs.input_tokens };
    let output = needs.output_tokens.unwrap_or(TYPICAL_OUTPUT);
    u128::from(price.input) * u128::from(input) + u128::from(price.output) * u128::from(output)
}

impl Strategy for CostOptimized {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let needs = ctx.request.needs;
        let cost = |i: &usize| candidates.get(*i).and_then(|c| c.price).map(|price| expected_cost(price, &needs));
        let (mut available, rest) = split(candidates);
        available.sort_by_key(|i| cost(i).unwrap_or(u128::MAX));
        let ranked = available.into_iter().chain(rest).map(|i| {
            #[allow(clippy::cast_precision_loss)]
            let score = cost(&i).map(|c| c as f64 / 1e12);
            Ranked { candidate: i, score, note: score.is_none().then(|| "price unknown".to_owned()) }
        });
        ranked.collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}

impl Strategy for ContextOptimized {
    fn order(&self, candidates: &[Candidate], _ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let window = |i: &usize| candidates.get(*i).and_then(|c| c.window);
        let (mut available, rest) = split(candidates);
        available.sort_by_key(|i| std::cmp::Reverse(window(i).unwrap_or(0)));
        #[allow(clippy::cast_precision_loss)]
        let ranked = available.into_iter().chain(rest).map(|i| Ranked { candidate: i, score: window(&i).map(|w| w as f64), note: None });
        ranked.collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}
