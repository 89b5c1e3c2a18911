//! Moving over the list: passes, frames of nested combos, targets, connections.

use std::sync::Arc;

use super::super::accounts::AccountContext;
use super::super::exhaustion::Standing;
use super::super::filter::{Barrier, Fit, WindowRules, fit};
use super::super::live::{Exclusion, ExclusionReason, Live};
use super::super::order::{Ordering, connection_barrier};
use super::super::random::Random;
use super::super::resolve::Part;
use super::super::strategies::{Event, EventKind};
use super::super::topology::{ConnectionNode, Leaf, Router, UnitKind};
use super::entered::Entry;
use super::finish::excluded_entry;
use super::{Current, Dispatch, Frame, Hop, MAX_ATTEMPTS, MAX_SEEN, Root, Running, Step, Visit, Walk, Why};
use crate::api::time::EpochMs;

impl Walk {
    /// Begins a pass over the whole list.
    pub(super) fn start_pass(&mut self, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) {
        self.leave_everything(now);
        self.in_pass = true;
        self.passes += 1;
        self.exhaustion.start_over();
        self.deferred.clear();
        self.counts.clear();
        self.seen.clear();
        self.barred.clear();
        self.visited.clear();
        self.slotless.clear();
        self.last = None;
        match self.root.clone() {
            Root::Direct(leaf) | Root::Part(_, Part::Model(leaf)) => {
                let identity = leaf.label.clone();
                // Named as it is, it is asked as it is, whatever it is known to be able to do.
                let counts = |b: &Barrier| matches!(b.reason, ExclusionReason::DialectNotSpoken | ExclusionReason::KeyPolicy);
                match self.scope.barrier(&leaf, &self.request).filter(counts) {
                    Some(barrier) => self.bar(&leaf, &identity, barrier),
                    None => self.enter_leaf(&leaf, identity, None, live, now, rng),
                }
            }
            Root::Combo(index) | Root::Part(index, Part::Entry(_)) => self.enter_combo(index, live, now, rng),
        }
    }

    /// The connection that failed last, once more.
    pub(super) fn repeat(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        let delay = self.again.take()?;
        let running = self.last.clone()?;
        let rests = match self.router.check(live, &running.connection, &running.leaf.model, now) {
            Ok(()) => false,
            Err(e) if !e.stated && matches!(e.reason, ExclusionReason::ConnectionCooldown | ExclusionReason::ModelLockout) => true,
            Err(_) => return None,
        };
        self.dispatch(running, Hop::SameConnection, delay, rests, now)
    }

    pub(super) fn next_connection(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        let mut visit = self.visit.take()?;
        while let Some(connection) = visit.pending.pop() {
            let combo = self.frames.last().map(|f| f.combo);
            let running = Running { leaf: visit.leaf.clone(), identity: visit.identity.clone(), connection, combo, emergency: false };
            if let Err(gate) = self.gate(&running, live, now) {
                visit.gate = visit.gate.or(gate);
                continue;
            }
            let hop = match (self.dispatched, visit.entering) {
                (0, _) => Hop::First,
                (_, true) => Hop::NextTarget,
                (_, false) => Hop::NextConnection,
            };
            let delay = if visit.entering { std::mem::take(&mut self.pause_ms) } else { 0 };
            visit.entering = false;
            self.visit = Some(visit);
            return self.dispatch(running, hop, delay, false, now);
        }
        self.leave_visit(&visit);
        None
    }

    /// Whether a pair may be dispatched now. What the request may use later is put aside. The error is the gate, unless it is a used-up quota.
    fn gate(&mut self, running: &Running, live: &dyn Live, now: EpochMs) -> Result<(), Option<Exclusion>> {
        let exhausted = Exclusion::of(ExclusionReason::RequestExhaustion);
        match self.exhaustion.standing(&running.leaf, &running.connection) {
            Standing::Out => return Err(Some(exhausted)),
            Standing::Soft => {
                self.deferred.push(running.clone());
                return Err(Some(exhausted));
            }
            Standing::Fresh => {}
        }
        match self.router.check(live, &running.connection, &running.leaf.model, now) {
            Ok(()) => Ok(()),
            Err(exclusion) if self.exhaustion.is_own(&exclusion, &running.leaf, &running.connection) => {
                self.deferred.push(running.clone());
                Err(Some(exclusion))
            }
            Err(exclusion) => Err((!exclusion.is_quota()).then_some(exclusion)),
        }
    }

    pub(super) fn dispatch(&mut self, running: Running, hop: Hop, delay_ms: u64, ignores_rest: bool, now: EpochMs) -> Option<Step> {
        let spent = self.counted > 0 && self.request.inner.as_ref().is_some_and(|inner| inner.budget.is_spent());
        if self.counted >= self.max_attempts() || spent {
            self.ending = Some(Why::MaxAttempts);
            return None;
        }
        self.dispatched += 1;
        if let Some(inner) = &self.request.inner {
            inner.budget.dispatch();
        }
        self.order.push(running.leaf.label.clone());
        match self.counts.iter_mut().find(|(c, m, _)| *c == running.connection.index && *m == running.leaf.model) {
            Some((.., count)) => *count += 1,
            None => self.counts.push((running.connection.index, running.leaf.model.clone(), 1)),
        }
        let starts = now.plus(delay_ms);
        let ends = self.request.received.plus(self.total_ms).max(starts.plus(1));
        let deadline = starts.plus(self.target_timeout_ms).min(ends);
        // A model that a combo names beside its targets is asked under that combo's rules.
        let combo = running.combo.or_else(|| self.combo());
        let step = Dispatch {
            target: running.identity.clone(),
            label: running.leaf.label.clone(),
            provider: running.leaf.provider.index,
            provider_name: running.leaf.provider.name.clone(),
            model: running.leaf.model.clone(),
            connection: running.connection.clone(),
            attempt: self.dispatched,
            hop,
            delay_ms,
            deadline,
            ends,
            ignores_rest,
            emergency: running.emergency,
            combo,
        };
        self.running = Some(running);
        Some(Step::Dispatch(Box::new(step)))
    }

    /// Moves to the next target; false at the end of the list, or with `ending` set.
    pub(super) fn next_target(&mut self, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) -> bool {
        if let Some(visit) = self.visit.take() {
            self.leave_visit(&visit);
        }
        let router = self.router.clone();
        loop {
            let Some(frame) = self.frames.last_mut() else { return false };
            if let Some(current) = frame.current.take() {
                if let Some(gate) = current.blocked.filter(|_| current.protected) {
                    self.ending = Some(Why::Protected { gate });
                    return false;
                }
                tell(&router, frame, current.unit, current.key, EventKind::Left, now);
            }
            let Some(place) = frame.pending.pop() else {
                self.leave_frame(now);
                continue;
            };
            let Some(unit) = router.combos.get(frame.combo).and_then(|node| node.units.get(place.unit)) else { continue };
            if frame.reserved && frame.first == Some((place.unit, place.key)) {
                frame.reserved = false;
            } else {
                tell(&router, frame, place.unit, place.key, EventKind::Entered, now);
            }
            frame.current = Some(Current { unit: place.unit, key: place.key, protected: unit.protected, blocked: None });
            match &unit.kind {
                UnitKind::Nested(child) => self.enter_combo(*child, live, now, rng),
                UnitKind::Leaf(leaf) => {
                    let identity = if frame.path.is_empty() { leaf.name.clone() } else { format!("{}{}", frame.path, leaf.name).into() };
                    self.enter_leaf(leaf, identity, place.connection, live, now, rng);
                    return true;
                }
            }
        }
    }

    /// Orders a combo and goes down into it, unless the walk was there in this pass or is too deep.
    fn enter_combo(&mut self, index: usize, live: &dyn Live, now: EpochMs, rng: &mut dyn Random) {
        let router = self.router.clone();
        let Some((node, definition)) = router.combo(index) else { return };
        let depth = self.frames.len();
        let root = self.combo().and_then(|root| router.snapshot.combos.get(root));
        let allowed = root.map_or(0, |combo| usize::try_from(combo.options.max_depth).unwrap_or(0));
        if depth > allowed || self.visited.contains(&index) {
            return;
        }
        self.visited.push(index);
        let (rules, path) = self.frames.last().map_or_else(
            || (WindowRules::default(), String::new()),
            |parent| {
                let unit = parent.current.as_ref().and_then(|c| router.combos.get(parent.combo)?.units.get(c.unit));
                (parent.rules, unit.map_or_else(String::new, |unit| format!("{}{}>", parent.path, unit.name)))
            },
        );
        let rules = rules.and(&definition.context);
        let ordering = Ordering { router: &router, request: &self.request, scope: self.scope, rules, live, now };
        let mut ordered = ordering.order(node, definition, rng);
        if let Root::Part(_, Part::Entry(entry)) = self.root
            && self.frames.is_empty()
        {
            let called = node.units.get(entry).map(|unit| unit.name.clone());
            ordered.places.retain(|place| place.unit == entry);
            ordered.barred.retain(|(leaf, _)| called.as_ref() == Some(&leaf.name));
        }
        for (leaf, barrier) in std::mem::take(&mut ordered.barred) {
            let identity: Arc<str> = format!("{path}{}", leaf.name).into();
            self.bar(&leaf, &identity, barrier);
        }
        ordered.places.reverse();
        let frame = Frame {
            combo: index,
            rules,
            path,
            pending: ordered.places,
            first: ordered.first,
            reserved: ordered.first.is_some(),
            current: None,
        };
        self.frames.push(frame);
    }

    fn enter_leaf(
        &mut self,
        leaf: &Arc<Leaf>,
        identity: Arc<str>,
        only: Option<Arc<ConnectionNode>>,
        live: &dyn Live,
        now: EpochMs,
        rng: &mut dyn Random,
    ) {
        if !matches!(self.root, Root::Direct(_)) && fit(leaf.window, &self.request.needs) == Fit::TooLarge {
            let detail = format!("a context window of {} is too small", leaf.window.unwrap_or(0));
            self.bar(leaf, &identity, Barrier { reason: ExclusionReason::ContextWindow, detail });
            return;
        }
        for (connection, why) in &leaf.barred {
            let mut entry = excluded_entry(leaf, &identity, None, Exclusion::of(ExclusionReason::Unavailable), Some(why.clone()));
            entry.connection = Some(connection.to_string());
            self.barred.push(entry);
        }
        if leaf.connections.is_empty() && leaf.barred.is_empty() {
            let detail = Some(format!("provider `{}` has no connection for it", leaf.provider.name));
            self.exclude(leaf, &identity, None, Exclusion::of(ExclusionReason::Unavailable), detail);
        }
        let mut visit = Visit { leaf: leaf.clone(), identity: identity.clone(), pending: Vec::new(), entering: true, gate: None };
        let mut after_failure = false;
        let chosen = leaf.connections.iter().filter(|c| only.as_ref().is_none_or(|o| o.index == c.index));
        for connection in chosen {
            if let Some(reason) = connection_barrier(connection, &self.request) {
                self.exclude(leaf, &identity, Some(connection), Exclusion::of(reason), None);
                continue;
            }
            if self.seen.len() < MAX_SEEN {
                self.seen.push((leaf.clone(), identity.clone(), connection.clone()));
            }
            let combo = self.frames.last().map(|f| f.combo);
            let (leaf, identity) = (leaf.clone(), identity.clone());
            let running = Running { leaf, identity, connection: connection.clone(), combo, emergency: false };
            match self.gate(&running, live, now) {
                Ok(()) => visit.pending.push(connection.clone()),
                Err(gate) => {
                    after_failure |= gate.is_some_and(|g| g.reason == ExclusionReason::RequestExhaustion);
                    visit.gate = visit.gate.or(gate);
                }
            }
        }
        if !visit.pending.is_empty() {
            let frame = self.frames.last().and_then(|f| self.router.snapshot.combos.get(f.combo));
            let pinned =
                if frame.is_some_and(|combo| combo.options.disable_session_stickiness) { None } else { live.pinned(leaf.provider.index) };
            let mut ctx = AccountContext { live, pinned, after_failure, now, rng };
            visit.pending = leaf.provider.accounts.order(std::mem::take(&mut visit.pending), &mut ctx);
            visit.pending.reverse();
        }
        self.visit = Some(visit);
    }

    pub(super) fn max_attempts(&self) -> u32 {
        self.limits.max.clamp(1, MAX_ATTEMPTS)
    }

    /// The siblings of a connection cannot help.
    pub(super) fn drop_connections(&mut self) {
        if let Some(visit) = &mut self.visit {
            visit.pending.clear();
        }
    }

    /// Something other than a used-up quota went wrong in every entry that the walk is in.
    pub(super) fn block(&mut self, gate: Option<Exclusion>) {
        for current in self.frames.iter_mut().filter_map(|f| f.current.as_mut()) {
            if current.protected {
                current.blocked.get_or_insert(gate);
            }
        }
    }

    /// A target that was left without a dispatch blocks protected entries by its gate.
    fn leave_visit(&mut self, visit: &Visit) {
        if let Some(gate) = visit.gate.filter(|_| visit.entering) {
            self.block(Some(gate));
        }
    }

    /// The combo at the end of the frames is done.
    fn leave_frame(&mut self, now: EpochMs) {
        let Some(frame) = self.frames.pop() else { return };
        Entry::of(&frame).for_each(|entry| entry.leave(&self.router, now));
    }

    pub(super) fn leave_everything(&mut self, now: EpochMs) {
        self.visit = None;
        while !self.frames.is_empty() {
            self.leave_frame(now);
        }
    }

    /// Tells the strategies of all combos that the walk is in.
    pub(super) fn tell_all(&self, kind: EventKind, now: EpochMs) {
        for frame in &self.frames {
            if let Some(current) = &frame.current {
                tell(&self.router, frame, current.unit, current.key, kind, now);
            }
        }
    }

    fn bar(&mut self, leaf: &Arc<Leaf>, identity: &Arc<str>, barrier: Barrier) {
        self.exclude(leaf, identity, None, Exclusion::of(barrier.reason), Some(barrier.detail));
    }

    pub(super) fn exclude(
        &mut self,
        leaf: &Leaf,
        identity: &Arc<str>,
        connection: Option<&Arc<ConnectionNode>>,
        exclusion: Exclusion,
        detail: Option<String>,
    ) {
        if self.barred.len() < MAX_SEEN {
            self.barred.push(excluded_entry(leaf, identity, connection, exclusion, detail));
        }
    }
}

fn tell(router: &Router, frame: &Frame, unit: usize, key: u64, kind: EventKind, now: EpochMs) {
    if let Some(node) = router.combos.get(frame.combo) {
        node.strategy.observe(&Event { unit, key, first: frame.first == Some((unit, key)), now, kind });
    }
}
