//! `RoundRobin`: in turn, in batches of `stickyRoundRobinLimit` successes (routing spec 4.3).

use std::sync::{Mutex, PoisonError};

use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits};

/// The turn of one combo.
#[derive(Debug)]
pub struct RoundRobin {
    /// Entries of the combo.
    units: usize,
    /// Successes before the next entry; 0 and 1 = every request moves on.
    limit: u32,
    turn: Mutex<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    /// The entry whose turn is next.
    next: usize,
    /// The entry of the running batch and its successes so far.
    batch: Option<(usize, u32)>,
}

impl RoundRobin {
    /// A turn that starts at the first of `units` entries.
    #[must_use]
    pub fn new(units: usize, limit: u32) -> Self {
        Self { units: units.max(1), limit, turn: Mutex::default() }
    }

    fn turn(&self) -> std::sync::MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far an entry lies behind `start` in the circle.
    fn distance(&self, start: usize, unit: usize) -> usize {
        (unit % self.units + self.units - start % self.units) % self.units
    }

    /// The entry to start with.
    fn start(&self, candidates: &[Candidate]) -> usize {
        let mut turn = self.turn();
        let usable = |unit: usize| candidates.iter().any(|c| c.unit == unit && c.available);
        let mut wish = turn.next;
        if self.limit > 1 {
            match turn.batch {
                Some((unit, count)) if count < self.limit && usable(unit) => return unit,
                Some((unit, count)) if count >= self.limit => wish = unit + 1,
                Some(_) => turn.batch = None,
                None => {}
            }
        }
        // The nearest entry that can serve; the counter moves at once, so that a failure of everything moves on as well.
        let near = candidates.iter().filter(|c| c.available).map(|c| c.unit).min_by_key(|unit| self.distance(wish, *unit));
        let start = near.unwrap_or(wish) % self.units;
        turn.next = (start + 1) % self.units;
        start
    }
}

impl Strategy for RoundRobin {
    fn order(&self, candidates: &[Candidate], _ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let start = self.start(candidates);
        let mut order: Vec<usize> = (0..candidates.len()).collect();
        order.sort_by_key(|i| candidates.get(*i).map_or((true, usize::MAX), |c| (!c.available, self.distance(start, c.unit))));
        order.into_iter().map(Ranked::plain).collect()
    }

    fn observe(&self, event: &Event) {
        if !matches!(event.kind, EventKind::Succeeded { .. }) {
            return;
        }
        let mut turn = self.turn();
        if !event.first {
            turn.next = (event.unit + 1) % self.units;
        }
        if self.limit > 1 {
            turn.batch = match turn.batch {
                Some((unit, count)) if unit == event.unit => Some((unit, count.saturating_add(1))),
                _ => Some((event.unit, 1)),
            };
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, ..Traits::default() }
    }
}
