//! What is left of a walk that has its answer: a few numbers instead of everything that it knew, for answers can last for hours.

use std::sync::Arc;

use smallvec::SmallVec;

use super::super::strategies::{Event, EventKind};
use super::super::topology::Router;
use super::{Frame, Walk};
use crate::api::time::EpochMs;

/// One entry that a strategy counts as entered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    combo: usize,
    unit: usize,
    key: u64,
    first: bool,
}

impl Entry {
    /// What a combo's strategy still counts for the request.
    pub(super) fn of(frame: &Frame) -> impl Iterator<Item = Self> {
        let current = frame.current.as_ref().map(|current| (current.unit, current.key));
        let reserved = frame.first.filter(|_| frame.reserved);
        let entry = |(unit, key)| Self { combo: frame.combo, unit, key, first: frame.first == Some((unit, key)) };
        current.into_iter().chain(reserved).map(entry)
    }

    /// Gives it back.
    pub(super) fn leave(self, router: &Router, now: EpochMs) {
        if let Some(node) = router.combos.get(self.combo) {
            node.strategy.observe(&Event { unit: self.unit, key: self.key, first: self.first, now, kind: EventKind::Left });
        }
    }
}

/// The entries that the request is in: the strategies count it there until this is dropped.
#[derive(Debug)]
pub struct Entered {
    router: Arc<Router>,
    /// One for each combo; few are nested.
    entries: SmallVec<[Entry; 1]>,
    /// When the request came. The instant of leaving is of no interest to the strategies.
    now: EpochMs,
}

impl Drop for Entered {
    fn drop(&mut self) {
        for entry in self.entries.iter().rev() {
            entry.leave(&self.router, self.now);
        }
    }
}

impl Walk {
    /// What must live as long as the answer; the walk itself is over. `None` when no strategy counts anything.
    pub fn entered(&mut self) -> Option<Entered> {
        let now = self.request.received;
        self.decide(false, now);
        let entries: SmallVec<[Entry; 1]> = std::mem::take(&mut self.frames).iter().flat_map(Entry::of).collect();
        (!entries.is_empty()).then(|| Entered { router: Arc::clone(&self.router), entries, now })
    }
}
