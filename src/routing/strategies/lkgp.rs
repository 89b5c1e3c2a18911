//! `Lkgp`: the last known good one first (routing spec 4.16).

use std::sync::{Mutex, PoisonError};

use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};

/// What served last.
#[derive(Debug, Default)]
pub struct LastKnownGood {
    key: Mutex<Option<u64>>,
}

impl LastKnownGood {
    /// The key of what served last.
    pub(super) fn key(&self) -> Option<u64> {
        *self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Strategy for LastKnownGood {
    fn order(&self, candidates: &[Candidate], _ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let good = self.key();
        let (mut available, rest) = split(candidates);
        let is_good = |i: &usize| candidates.get(*i).is_some_and(|c| Some(c.key) == good);
        available.sort_by_key(|i| !is_good(i));
        let ranked = available.into_iter().chain(rest).map(|i| {
            let note = is_good(&i).then(|| "served last".to_owned());
            Ranked { candidate: i, score: None, note }
        });
        ranked.collect()
    }

    fn observe(&self, event: &Event) {
        let mut key = self.key.lock().unwrap_or_else(PoisonError::into_inner);
        match event.kind {
            EventKind::Succeeded { .. } => *key = Some(event.key),
            EventKind::Failed { .. } if *key == Some(event.key) => *key = None,
            _ => {}
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, protects_first: true, ..Traits::default() }
    }
}
