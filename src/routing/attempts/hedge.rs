//! A second attempt beside a first one that is slow (routing spec 5.9). The walk goes on to the next target while the first attempt is set
//! aside; whichever outcome comes first is told like any other, and of the attempt that is dropped nothing is noted.

use super::super::live::Live;
use super::super::random::Random;
use super::super::strategies::EventKind;
use super::{Dispatch, Frame, Running, Step, Walk};
use crate::api::time::EpochMs;

/// An attempt that was joined by another one, and where the walk was then.
#[derive(Debug)]
pub(super) struct Aside {
    running: Option<Running>,
    frames: Vec<Frame>,
}

impl Walk {
    /// A dispatch on the next target while the outcome of the last one is awaited; call it again when it was refused locally. From then on
    /// the first attempt is the one *aside*. `None`, with the walk where it was, when there is no other target, when the attempts are used
    /// up, its own or those of the composed request, and when a protected target is involved: nothing moves past one before its outcome is
    /// known.
    pub fn hedge(&mut self, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) -> Option<Box<Dispatch>> {
        // A second attempt of a call is beyond the one that each call of a composed request may make.
        let spent = self.request.inner.as_ref().is_some_and(|inner| inner.budget.is_spent());
        if self.request.single_call || self.ending.is_some() || spent || self.counted + 1 >= self.max_attempts() {
            return None;
        }
        if self.aside.is_some() {
            return self.next_connection(live, now).and_then(dispatch_of).or_else(|| self.other_target(live, now, rng));
        }
        if self.frames.is_empty() || self.is_protected() {
            return None;
        }
        let running = self.running.take()?;
        let (frames, visited, visit) = (self.frames.clone(), self.visited.clone(), self.visit.take());
        // Both attempts are under way from here on.
        self.tell_all(EventKind::Entered, now);
        let found = self.other_target(live, now, rng);
        if found.is_some() {
            let frames = frames.into_iter().map(|frame| Frame { pending: Vec::new(), reserved: false, ..frame }).collect();
            self.aside = Some(Aside { running: Some(running), frames });
        } else {
            // What was reserved for places to come ended with the places that were left.
            self.leave_everything(now);
            self.frames = frames.into_iter().map(|frame| Frame { reserved: false, ..frame }).collect();
            (self.visited, self.visit, self.running, self.ending) = (visited, visit, Some(running), None);
        }
        found
    }

    /// Tells the outcome of the attempt aside, unless it is the answer; the other one stays the one whose outcome is awaited. Where nothing
    /// was started beside it, it is the only attempt.
    pub fn settle_aside(&mut self, now: EpochMs, settle: impl FnOnce(&mut Self)) {
        let Some(aside) = self.aside.take() else { return settle(self) };
        let place = (std::mem::replace(&mut self.running, aside.running), std::mem::replace(&mut self.frames, aside.frames));
        let (visit, again, last, pause_ms) = (self.visit.take(), self.again.take(), self.last.take(), self.pause_ms);
        settle(self);
        self.leave_everything(now);
        (self.running, self.frames) = place;
        (self.visit, self.again, self.last, self.pause_ms) = (visit, again, last, pause_ms);
    }

    /// One of two attempts is the answer: the other one is dropped and blames nobody.
    pub fn decide(&mut self, aside_wins: bool, now: EpochMs) {
        let Some(mut aside) = self.aside.take() else { return };
        if aside_wins {
            std::mem::swap(&mut self.running, &mut aside.running);
            std::mem::swap(&mut self.frames, &mut aside.frames);
        }
        // Left by its strategies, whichever it is.
        aside.running = None;
        self.aside = Some(aside);
        self.settle_aside(now, |_| {});
    }

    fn other_target(&mut self, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) -> Option<Box<Dispatch>> {
        while self.next_target(live, now, rng) && !self.is_protected() {
            if let Some(step) = self.next_connection(live, now) {
                return dispatch_of(step);
            }
        }
        None
    }

    fn is_protected(&self) -> bool {
        self.frames.iter().filter_map(|frame| frame.current.as_ref()).any(|current| current.protected)
    }
}

fn dispatch_of(step: Step) -> Option<Box<Dispatch>> {
    match step {
        Step::Dispatch(dispatch) => Some(dispatch),
        Step::Wait { .. } | Step::Stop(_) => None,
    }
}
