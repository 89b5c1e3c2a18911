//! What the gateway itself could not dispatch, and how the walk goes on there once a slot is free.

use super::super::answers::{Answer, Why};
use super::super::exhaustion::Standing;
use super::super::live::{Exclusion, ExclusionReason, Live};
use super::super::strategies::EventKind;
use super::{Dispatch, Frame, Hop, Running, Step, Walk};
use crate::api::time::EpochMs;

/// A dispatch that lacked a slot, and where the walk was.
#[derive(Clone, Debug)]
pub(super) struct Slotless {
    running: Running,
    /// The combos around it, with nothing to come: the walk went past the rest already.
    frames: Vec<Frame>,
}

impl Walk {
    /// The gateway itself could not dispatch: the connection has no free slot, or a gate closed in the meantime. No attempt is counted and
    /// nobody is blamed. `answer` is what the client gets if nothing else can serve.
    pub fn refused_locally(&mut self, exclusion: Exclusion, answer: Option<Answer>) {
        let Some(running) = self.running.take() else { return };
        self.dispatched = self.dispatched.saturating_sub(1);
        if let Some(inner) = &self.request.inner {
            inner.budget.take_back();
        }
        if let Some(at) = self.order.iter().rposition(|label| *label == running.leaf.label) {
            self.order.remove(at);
        }
        self.exhaustion.refuse(&running.leaf, &running.connection);
        if let Some(visit) = &mut self.visit
            && !exclusion.is_quota()
        {
            visit.gate.get_or_insert(exclusion);
        }
        self.exclude(&running.leaf, &running.identity, Some(&running.connection), exclusion, None);
        if matches!(exclusion.reason, ExclusionReason::ConcurrencyCap | ExclusionReason::AdmissionLane) {
            // Of several limits, the one that ends first says when a retry makes sense.
            self.local = [self.local.take(), answer].into_iter().flatten().min_by_key(|a| a.retry_after_seconds);
            let here = |frame: &Frame| Frame { pending: Vec::new(), reserved: false, ..frame.clone() };
            self.slotless.push(Slotless { frames: self.frames.iter().map(here).collect(), running });
        }
    }

    /// The gateway itself ended the attempt: its longest execution is over. It counts as an attempt and blames nobody; `answer` is what the
    /// client gets if nothing else can serve.
    pub fn expired(&mut self, answer: Answer) {
        let Some(running) = self.running.take() else { return };
        self.spend();
        self.last = None;
        self.exhaustion.refuse(&running.leaf, &running.connection);
        self.block(None);
        let exclusion = Exclusion::of(ExclusionReason::ConcurrencyCap);
        self.exclude(&running.leaf, &running.identity, Some(&running.connection), exclusion, None);
        self.local = Some(answer);
        if self.request.single_call {
            self.ending = Some(Why::SingleCall);
        }
    }

    /// A slot came for a dispatch that was refused for want of one: the next step takes it up, if its gates are still open. Everything else
    /// stays as it is: failures, attempts, budgets. Allowed after a `Wait` and after a `Stop`. False when nothing of that kind was refused.
    pub fn slot_free(&mut self, refused: &Dispatch, now: EpochMs) -> bool {
        let same = |s: &Slotless| s.running.connection == refused.connection && s.running.identity == refused.target;
        let Some(at) = self.slotless.iter().position(same) else { return false };
        let Slotless { running, frames } = self.slotless.swap_remove(at);
        self.leave_everything(now);
        self.frames = frames;
        self.tell_all(EventKind::Entered, now);
        self.exhaustion.admit(&running.leaf, &running.connection);
        self.uncount(&running);
        let capped = |e: &super::Excluded| {
            e.reason == ExclusionReason::ConcurrencyCap
                && *e.target == *running.identity
                && e.connection.as_deref() == Some(&*running.connection.name)
        };
        self.barred.retain(|e| !capped(e));
        self.local = None;
        self.in_pass = true;
        let hop = match refused.hop {
            _ if self.dispatched == 0 => Hop::First,
            Hop::First => Hop::NextTarget,
            hop => hop,
        };
        self.granted = Some((running, hop));
        true
    }

    /// The dispatch that waited for its slot.
    pub(super) fn dispatch_granted(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        let (running, hop) = self.granted.take()?;
        if self.exhaustion.standing(&running.leaf, &running.connection) == Standing::Out {
            return None;
        }
        let rests = match self.router.check(live, &running.connection, &running.leaf.model, now) {
            Ok(()) => false,
            Err(exclusion) if self.exhaustion.is_own(&exclusion, &running.leaf, &running.connection) => true,
            Err(_) => return None,
        };
        self.dispatch(running, hop, 0, rests, now)
    }

    fn uncount(&mut self, running: &Running) {
        let same = |(c, m, _): &&mut (usize, std::sync::Arc<str>, u32)| *c == running.connection.index && *m == running.leaf.model;
        if let Some((.., count)) = self.counts.iter_mut().find(same) {
            *count = count.saturating_sub(1);
        }
    }
}
