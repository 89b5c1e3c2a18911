//! `StrictRandom`: a shuffled deck, dealt to its end before it is shuffled again (routing spec 4.14).

use std::sync::{Mutex, PoisonError};

use super::super::random::shuffle;
use super::{Candidate, OrderContext, Ranked, Strategy, Traits, split};

/// The deck of one combo.
#[derive(Debug, Default)]
pub struct StrictRandom {
    deck: Mutex<Deck>,
}

#[derive(Debug, Default)]
struct Deck {
    /// Entries that were not dealt yet, the next one last.
    cards: Vec<usize>,
    /// The entry that was dealt last.
    last: Option<usize>,
}

impl Strategy for StrictRandom {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let (available, rest) = split(candidates);
        let unit = |i: &usize| candidates.get(*i).map(|c| c.unit);
        let first = {
            let mut deck = self.deck.lock().unwrap_or_else(PoisonError::into_inner);
            // A card whose entry cannot serve now stays in the deck for the next request.
            let playable = |deck: &Deck| deck.cards.iter().rposition(|card| available.iter().any(|i| unit(i) == Some(*card)));
            let mut at = playable(&deck);
            if at.is_none() && !available.is_empty() {
                deck.cards = available.iter().filter_map(unit).collect();
                deck.cards.sort_unstable();
                deck.cards.dedup();
                shuffle(&mut deck.cards, ctx.rng);
                // The first of a new deck is never the last of the one before.
                if deck.cards.len() > 1 && deck.cards.last().copied() == deck.last {
                    deck.cards.rotate_right(1);
                }
                at = playable(&deck);
            }
            at.map(|at| {
                let card = deck.cards.remove(at);
                deck.last = Some(card);
                card
            })
        };
        let mut tail: Vec<usize> = available.iter().copied().filter(|i| unit(i) != first || first.is_none()).collect();
        shuffle(&mut tail, ctx.rng);
        let head = available.iter().copied().filter(|i| first.is_some() && unit(i) == first);
        head.chain(tail).chain(rest).map(Ranked::plain).collect()
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}
