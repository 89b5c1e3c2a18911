//! The end of a pass and the end of the walk.

use std::sync::Arc;

use super::super::answers::{self, Ending, Excluded, FailureKind, FailureRecord, Why};
use super::super::exhaustion::Standing;
use super::super::live::{Exclusion, ExclusionReason, Live};
use super::super::resolve::Resolved;
use super::super::topology::{ConnectionNode, Leaf};
use super::{Failure, Hop, MAX_PASSES, MAX_SAME_SHAPE, Root, Running, Step, Walk};
use crate::api::time::EpochMs;

impl Walk {
    /// At the end of the list: what was put aside, one repetition, another pass, a wait; otherwise the end.
    pub(super) fn end_of_pass(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        if let Some(step) = self.put_aside(live, now) {
            return Some(step);
        }
        if self.ending.is_some() {
            return None;
        }
        if self.limits.per_target == 0 && self.last.as_ref().is_some_and(|last| self.count(&last.connection, &last.leaf) < 2) {
            self.again = Some(self.limits.retry_delay_ms);
            let step = self.repeat(live, now);
            if step.is_some() || self.ending.is_some() {
                return step;
            }
        }
        if let Some(step) = self.emergency(live, now) {
            return Some(step);
        }
        if self.passes_left() && self.someone_came_back(live, now) {
            self.begin_again();
            return None;
        }
        if self.dispatched > 0 && self.set_retries < self.limits.max_set_retries && !self.request_scoped && self.passes_left() {
            self.set_retries += 1;
            self.begin_again();
            let ms = self.limits.set_retry_delay_ms;
            return Some(Step::Wait { ms, until: now.plus(ms) });
        }
        let timers = self.seen.iter().filter_map(|(leaf, _, connection)| self.router.check(live, connection, &leaf.model, now).err());
        let earliest = timers.filter(Exclusion::is_transient).filter_map(|e| e.until).min();
        if let Some(step) = self.wait_for(earliest, now) {
            return Some(step);
        }
        self.ending = Some(Why::NothingLeft);
        None
    }

    pub(super) fn stop(&mut self, why: Why, live: &dyn Live, now: EpochMs) -> Step {
        if let Why::Protected { gate: Some(gate) } = &why
            && let Some(wait) = self.wait_for(gate.is_transient().then_some(gate.until).flatten(), now)
        {
            return wait;
        }
        let mut usable_now = false;
        // The walk may go on after this, when a slot comes: what it knows stays.
        let mut excluded = self.barred.clone();
        for (leaf, identity, connection) in &self.seen {
            let exclusion = match self.router.check(live, connection, &leaf.model, now) {
                Err(exclusion) => exclusion,
                Ok(()) if self.exhaustion.standing(leaf, connection) == Standing::Out => Exclusion::of(ExclusionReason::RequestExhaustion),
                Ok(()) => {
                    usable_now = true;
                    continue;
                }
            };
            let known = excluded.iter().any(|e| *e.target == **identity && e.connection.as_deref() == Some(&*connection.name));
            if !known {
                excluded.push(excluded_entry(leaf, identity, Some(connection), exclusion, None));
            }
        }
        let pool_size = match &self.root {
            Root::Direct(_) | Root::Part(..) => 1,
            Root::Combo(index) => self.router.combos.get(*index).map_or(0, |node| node.leaves.len()),
        };
        let answer = answers::after(Ending {
            name: &self.name,
            is_combo: !matches!(self.root, Root::Direct(_)),
            why,
            failures: &self.failures,
            excluded,
            usable_now,
            pool_size,
            attempted: self.dispatched,
            attempt_order: self.order.iter().map(ToString::to_string).collect(),
            local: self.local.clone(),
            now,
        });
        Step::Stop(Box::new(answer))
    }

    /// Waits for a timer, if the request's patience and time allow it.
    fn wait_for(&mut self, until: Option<EpochMs>, now: EpochMs) -> Option<Step> {
        let until = until?;
        let ms = self.patience.decide(until.since(now))?;
        let deadline = self.request.received.plus(self.total_ms);
        if now.plus(ms) >= deadline || !self.passes_left() || self.counted >= self.max_attempts() {
            return None;
        }
        self.patience.spend(ms);
        // From here on computed rests are respected: the request was patient once, it need not push.
        self.exhaustion.forget_own();
        self.begin_again();
        Some(Step::Wait { ms, until })
    }

    const fn passes_left(&self) -> bool {
        self.passes < MAX_PASSES
    }

    const fn begin_again(&mut self) {
        self.in_pass = false;
    }

    /// A pair that the list passed over because of a computed rest of this request's own making: a second model of the same account.
    fn put_aside(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        self.deferred.reverse();
        while let Some(running) = self.deferred.pop() {
            if self.count(&running.connection, &running.leaf) > 0
                || self.exhaustion.standing(&running.leaf, &running.connection) == Standing::Out
            {
                continue;
            }
            let rests = match self.router.check(live, &running.connection, &running.leaf.model, now) {
                Ok(()) => false,
                Err(e) if self.exhaustion.is_own(&e, &running.leaf, &running.connection) => true,
                Err(_) => continue,
            };
            self.deferred.reverse();
            return self.dispatch(running, Hop::NextTarget, 0, rests, now);
        }
        None
    }

    /// The one hop of the emergency fallback (decisions 4.8): direct requests without tools, structured evidence of used-up money or quota.
    fn emergency(&mut self, live: &dyn Live, now: EpochMs) -> Option<Step> {
        let used_up = self.failures.last().is_some_and(|f| f.quota);
        if self.emergency_used || !used_up || self.request.needs.tools || !matches!(self.root, Root::Direct(_)) {
            return None;
        }
        let target = self.router.snapshot().settings.emergency_fallback.clone()?;
        self.emergency_used = true;
        let Resolved::Direct(leaf) = self.router.resolve(&target) else { return None };
        if !leaf.provider.dialects.contains(&self.request.dialect) {
            return None;
        }
        let usable =
            |c: &&Arc<ConnectionNode>| self.request.key.allows_connection(c.index) && self.router.check(live, c, &leaf.model, now).is_ok();
        let connection = leaf.connections.iter().find(usable)?.clone();
        let running = Running { identity: leaf.label.clone(), leaf, connection, combo: None, emergency: true };
        self.dispatch(running, Hop::NextTarget, 0, false, now)
    }

    /// Whether something that was passed over can be used by now.
    fn someone_came_back(&self, live: &dyn Live, now: EpochMs) -> bool {
        self.seen.iter().any(|(leaf, _, connection)| {
            self.count(connection, leaf) == 0
                && self.exhaustion.standing(leaf, connection) == Standing::Fresh
                && self.router.check(live, connection, &leaf.model, now).is_ok()
        })
    }

    /// Dispatches of a pair in this pass.
    pub(super) fn count(&self, connection: &ConnectionNode, leaf: &Leaf) -> u32 {
        let same = |(c, m, _): &&(usize, Arc<str>, u32)| *c == connection.index && *m == leaf.model;
        self.counts.iter().find(same).map_or(0, |(.., count)| *count)
    }

    pub(super) fn record(&mut self, running: &Running, failure: &Failure<'_>, quota: bool) {
        let kind = FailureKind::of(failure.verdict, failure.status, failure.quality, failure.timeout);
        let status = match (kind, failure.status) {
            (FailureKind::Quality, _) => 502,
            (FailureKind::Timeout, 0) => 504,
            (_, 0) => 502,
            (_, status) => failure.verdict.restated_status.unwrap_or(status),
        };
        self.failures.push(FailureRecord {
            label: running.leaf.label.clone(),
            provider: running.leaf.provider.name.clone(),
            connection: running.connection.name.clone(),
            kind,
            status,
            reason: failure.verdict.reason,
            message: failure.message.chars().take(400).collect(),
            quota,
            passable: failure.passable,
            stop: failure.verdict.failover == crate::classify::Failover::Stop,
        });
    }

    /// Counts errors about the shape of the request; the same one from several targets means that the request is wrong.
    pub(super) fn same_shape_again(&mut self, failure: &Failure<'_>) -> bool {
        if failure.quality || failure.timeout || !matches!(failure.status, 400 | 413 | 415 | 422) {
            return false;
        }
        let shape: String = failure.message.chars().filter(|c| c.is_alphabetic()).collect::<String>().to_lowercase();
        let key = super::super::topology::stable_key(&shape);
        match self.shapes.iter_mut().find(|(status, k, _)| *status == failure.status && *k == key) {
            Some((.., count)) => {
                *count += 1;
                *count >= MAX_SAME_SHAPE
            }
            None => {
                self.shapes.push((failure.status, key, 1));
                false
            }
        }
    }
}

pub(in super::super) fn excluded_entry(
    leaf: &Leaf,
    identity: &Arc<str>,
    connection: Option<&Arc<ConnectionNode>>,
    exclusion: Exclusion,
    detail: Option<String>,
) -> Excluded {
    Excluded {
        target: identity.to_string(),
        provider: leaf.provider.name.to_string(),
        model: leaf.model.to_string(),
        connection: connection.map(|c| c.name.to_string()),
        reason: exclusion.reason,
        until: exclusion.until,
        detail,
        exclusion,
    }
}
