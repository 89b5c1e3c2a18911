//! Caps and pacing of connections as plain data (decisions 5): who may be dispatched now, who waits, who is next. No clock and no sockets;
//! [`super::queue`] puts tasks behind it.
//!
//! All gates of a request are taken or none: a waiting request holds nothing. A waiter that does not fit does not keep those behind it
//! from going on, until it has waited for long; then what it needs is kept free for it.
//!
//! Joining, leaving and giving up cost the same however many wait; letting pass who can is one walk along the queue, in which each set of
//! wants is looked at until it fails for the first time.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use crate::api::time::EpochMs;

/// A waiter older than this is not overtaken any more.
const AGED_MS: u64 = 5_000;
/// The rolling window of requests per minute.
const MINUTE_MS: u64 = 60_000;

/// What a gate stands for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum GateId {
    /// A provider as a whole.
    Provider(Arc<str>),
    /// A credential, by fingerprint: connections with the same secret value share it.
    Credential(Arc<str>),
    /// A model of a credential.
    Model(Arc<str>, Arc<str>),
    /// A target of a combo.
    Target(Arc<str>, Arc<str>),
    /// A credential, for combos that share its quota.
    Share(Arc<str>),
}

/// How much may pass a gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limit {
    /// Requests at the same time; 0 = no cap.
    pub slots: u32,
    /// Least time between two dispatches, milliseconds; 0 = none.
    pub min_interval_ms: u64,
    /// Dispatches in any 60 seconds; 0 = no cap.
    pub per_minute: u32,
}

impl Limit {
    /// True when it limits nothing.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.slots == 0 && self.min_interval_ms == 0 && self.per_minute == 0
    }
}

/// One gate that a request has to pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Which.
    pub gate: GateId,
    /// Its limit.
    pub limit: Limit,
}

/// Why a request does not pass now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocked {
    /// All slots are taken.
    Slots,
    /// It is too early; it would pass at this time if nobody else came.
    Pace(EpochMs),
}

#[derive(Debug, Default)]
struct Gate {
    used: u32,
    /// How many wait for it.
    waiting: u32,
    /// How many of them have waited for long.
    aged: u32,
    last: Option<EpochMs>,
    /// Dispatches of the last minute, oldest first; kept only while a per-minute cap is asked for.
    recent: VecDeque<EpochMs>,
    blocked_until: Option<EpochMs>,
    /// Least time between two dispatches as long as anybody waits; they came together, and must not go together.
    pace_ms: u64,
}

impl Gate {
    fn check(&mut self, limit: &Limit, reserved: u32, now: EpochMs) -> Result<(), Blocked> {
        while self.recent.front().is_some_and(|at| now.since(*at) >= MINUTE_MS) {
            self.recent.pop_front();
        }
        let mut earliest = self.blocked_until.unwrap_or(now);
        let interval = limit.min_interval_ms.max(self.pace());
        if let Some(last) = self.last.filter(|_| interval > 0) {
            earliest = earliest.max(last.plus(interval));
        }
        let cap = limit.per_minute as usize;
        if cap > 0 && self.recent.len() >= cap {
            let oldest_that_counts = self.recent.get(self.recent.len() - cap).copied().unwrap_or(now);
            earliest = earliest.max(oldest_that_counts.plus(MINUTE_MS));
        }
        if earliest > now {
            return Err(Blocked::Pace(earliest));
        }
        let taken = self.used.saturating_add(reserved);
        if limit.slots > 0 && taken >= limit.slots { Err(Blocked::Slots) } else { Ok(()) }
    }

    fn enter(&mut self, limit: &Limit, now: EpochMs) {
        self.used += 1;
        self.last = Some(now);
        self.relax();
        if limit.per_minute > 0 {
            self.recent.push_back(now);
        }
    }

    /// Only those who waited for the end of the block keep it, from the first of them on.
    fn pace(&self) -> u64 {
        if self.waiting > 0 && self.last >= self.blocked_until { self.pace_ms } else { 0 }
    }

    fn relax(&mut self) {
        if self.waiting == 0 {
            self.pace_ms = 0;
        }
    }

    /// Nothing is remembered that matters.
    fn is_idle(&self, now: EpochMs) -> bool {
        self.used == 0
            && self.waiting == 0
            && self.blocked_until.is_none_or(|until| until <= now)
            && self.last.is_none_or(|last| now.since(last) >= MINUTE_MS)
    }
}

#[derive(Debug)]
struct Waiter {
    wants: Arc<[Want]>,
    since: EpochMs,
}

/// The gates of some connections and those who wait for them.
#[derive(Debug, Default)]
pub struct Gates {
    gates: HashMap<GateId, Gate>,
    /// By ticket: in the order in which they came.
    waiters: BTreeMap<u64, Waiter>,
    next_ticket: u64,
    /// Waiters with smaller tickets have waited for long: each gate counts them.
    aged_before: u64,
    /// Idle gates are dropped when there are more gates than this: twice as many as the last sweep left, so that a sweep costs each gate that
    /// was made since the same.
    sweep_beyond: usize,
    /// How often a waiter's gates were looked at.
    #[cfg(test)]
    pub(super) looked: usize,
}

impl Gates {
    /// Passes all gates at once, if nobody who waits for long needs them.
    ///
    /// # Errors
    /// What is in the way.
    pub fn try_enter(&mut self, wants: &[Want], now: EpochMs) -> Result<(), Blocked> {
        self.age(now);
        #[cfg(test)]
        (self.looked += 1);
        enter(&mut self.gates, wants, |_, gate| gate.aged, now)
    }

    /// What is in the way now, without passing.
    pub fn blocked(&mut self, wants: &[Want], now: EpochMs) -> Option<Blocked> {
        wants.iter().find_map(|want| self.gates.get_mut(&want.gate)?.check(&want.limit, 0, now).err())
    }

    /// Joins the queue. The ticket is answered by [`Self::pump`] or given up by [`Self::give_up`].
    pub fn wait(&mut self, wants: Arc<[Want]>, now: EpochMs) -> u64 {
        for want in wants.iter() {
            self.gates.entry(want.gate.clone()).or_default().waiting += 1;
        }
        self.next_ticket += 1;
        self.waiters.insert(self.next_ticket, Waiter { wants, since: now });
        self.next_ticket
    }

    /// How many wait for this gate.
    #[must_use]
    pub fn waiting(&self, gate: &GateId) -> usize {
        self.gates.get(gate).map_or(0, |gate| gate.waiting as usize)
    }

    /// Leaves the queue without having passed; true when a slot was kept free for it that others wait for.
    pub fn give_up(&mut self, ticket: u64) -> bool {
        let Some(waiter) = self.waiters.remove(&ticket) else { return false };
        let aged = ticket < self.aged_before;
        forget(&mut self.gates, &waiter.wants, aged);
        let kept = |want: &Want| self.gates.get(&want.gate).is_some_and(|gate| gate.waiting > 0 && gate.used < want.limit.slots);
        aged && waiter.wants.iter().any(kept)
    }

    /// Gives the slots back.
    pub fn leave(&mut self, wants: &[Want], now: EpochMs) {
        for want in wants {
            if let Some(gate) = self.gates.get_mut(&want.gate) {
                gate.used = gate.used.saturating_sub(1);
            }
        }
        if self.gates.len() > self.sweep_beyond.max(MAX_IDLE) {
            #[cfg(test)]
            (self.looked += self.gates.len());
            self.gates.retain(|_, gate| !gate.is_idle(now));
            self.sweep_beyond = 2 * self.gates.len();
        }
    }

    /// Nobody passes this gate before `until`, and nobody less than `pace_ms` after another one as long as anybody waits for it. True when
    /// those who wait may now go earlier than they thought.
    pub fn block(&mut self, gate: &GateId, until: EpochMs, pace_ms: u64) -> bool {
        let gate = self.gates.entry(gate.clone()).or_default();
        let earlier = gate.waiting > 0 && pace_ms < gate.pace_ms;
        gate.pace_ms = pace_ms;
        gate.blocked_until = gate.blocked_until.max(Some(until));
        earlier
    }

    /// Undoes [`Self::block`]; true when anybody waits for this gate.
    pub fn unblock(&mut self, gate: &GateId) -> bool {
        let Some(gate) = self.gates.get_mut(gate) else { return false };
        (gate.pace_ms, gate.blocked_until) = (0, None);
        gate.waiting > 0
    }

    /// Whether those who wait for this gate go at a pace: whoever comes then must not go between them.
    #[must_use]
    pub fn is_paced(&self, gate: &GateId) -> bool {
        self.gates.get(gate).is_some_and(|gate| gate.waiting > 0 && gate.pace_ms > 0)
    }

    /// Lets everybody pass who can, in the order in which they came. Answers their tickets, and when to ask again at the latest: only
    /// pacing opens by itself, a slot comes with a release.
    pub fn pump(&mut self, now: EpochMs) -> (Vec<u64>, Option<EpochMs>) {
        self.age(now);
        let (mut passed, mut again) = (Vec::new(), None::<EpochMs>);
        // Gates only fill up on the way along the queue: who wants the same as somebody who did not pass does not pass either.
        let mut failed: HashSet<*const Want> = HashSet::new();
        // What is kept free for those who have waited for long and stand further ahead.
        let mut kept: HashMap<GateId, u32> = HashMap::new();
        let (gates, aged_before) = (&mut self.gates, self.aged_before);
        #[cfg(test)]
        let looked = &mut self.looked;
        self.waiters.retain(|ticket, waiter| {
            let aged = *ticket < aged_before;
            if !failed.contains(&waiter.wants.as_ptr()) {
                #[cfg(test)]
                (*looked += 1);
                match enter(gates, &waiter.wants, |id, _| kept.get(id).copied().unwrap_or(0), now) {
                    Ok(()) => {
                        forget(gates, &waiter.wants, aged);
                        passed.push(*ticket);
                        return false;
                    }
                    Err(Blocked::Pace(at)) => again = Some(again.map_or(at, |again| again.min(at))),
                    Err(Blocked::Slots) => {}
                }
                failed.insert(waiter.wants.as_ptr());
            }
            if aged {
                for want in waiter.wants.iter() {
                    *kept.entry(want.gate.clone()).or_insert(0) += 1;
                }
            }
            true
        });
        (passed, again)
    }

    /// Counts those who have waited for long by now at the gates that they want.
    fn age(&mut self, now: EpochMs) {
        let newly = self.waiters.range(self.aged_before..).take_while(|(_, waiter)| now.since(waiter.since) >= AGED_MS);
        for (ticket, waiter) in newly {
            for want in waiter.wants.iter() {
                self.gates.entry(want.gate.clone()).or_default().aged += 1;
            }
            self.aged_before = ticket + 1;
        }
    }
}

/// Passes all gates or none. `kept` is how many slots of a gate are for others.
fn enter(gates: &mut HashMap<GateId, Gate>, wants: &[Want], kept: impl Fn(&GateId, &Gate) -> u32, now: EpochMs) -> Result<(), Blocked> {
    for want in wants {
        // A gate that nobody knows is empty.
        if let Some(gate) = gates.get_mut(&want.gate) {
            let kept = kept(&want.gate, gate);
            gate.check(&want.limit, kept, now)?;
        }
    }
    for want in wants {
        gates.entry(want.gate.clone()).or_default().enter(&want.limit, now);
    }
    Ok(())
}

/// Somebody waits no longer.
fn forget(gates: &mut HashMap<GateId, Gate>, wants: &[Want], aged: bool) {
    for want in wants {
        if let Some(gate) = gates.get_mut(&want.gate) {
            gate.waiting = gate.waiting.saturating_sub(1);
            gate.aged = gate.aged.saturating_sub(u32::from(aged));
            gate.relax();
        }
    }
}

/// Gates that may be idle before they are dropped.
const MAX_IDLE: usize = 1_024;

/// Joins wants for the same gate: the smaller limits count.
#[must_use]
pub fn joined(mut wants: Vec<Want>) -> Arc<[Want]> {
    let smaller = |a: u32, b: u32| if a == 0 || (b != 0 && b < a) { b } else { a };
    wants.retain(|want| !want.limit.is_none());
    wants.sort_by(|a, b| a.gate.cmp(&b.gate));
    wants.dedup_by(|next, kept| {
        let same = next.gate == kept.gate;
        if same {
            kept.limit.slots = smaller(kept.limit.slots, next.limit.slots);
            kept.limit.per_minute = smaller(kept.limit.per_minute, next.limit.per_minute);
            kept.limit.min_interval_ms = kept.limit.min_interval_ms.max(next.limit.min_interval_ms);
        }
        same
    });
    wants.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: EpochMs = EpochMs(1_000_000);

    fn slots(name: &str, slots: u32) -> Want {
        Want { gate: GateId::Credential(name.into()), limit: Limit { slots, ..Limit::default() } }
    }

    fn wants<const N: usize>(list: [Want; N]) -> Arc<[Want]> {
        joined(list.to_vec())
    }

    #[test]
    fn all_gates_or_none() {
        let mut gates = Gates::default();
        let both = wants([slots("a", 1), slots("b", 1)]);
        assert_eq!(gates.try_enter(&wants([slots("b", 1)]), NOW), Ok(()));
        assert_eq!(gates.try_enter(&both, NOW), Err(Blocked::Slots));
        // `a` was not taken by the attempt that failed on `b`.
        assert_eq!(gates.try_enter(&wants([slots("a", 1)]), NOW), Ok(()));
    }

    #[test]
    fn a_waiter_that_does_not_fit_blocks_nobody_until_it_is_old() {
        let mut gates = Gates::default();
        let (a, b, both) = (wants([slots("a", 1)]), wants([slots("b", 1)]), wants([slots("a", 1), slots("b", 1)]));
        gates.try_enter(&a, NOW).unwrap();
        let first = gates.wait(both.clone(), NOW);
        let second = gates.wait(b.clone(), NOW);
        assert_eq!(gates.pump(NOW), (vec![second], None));
        let third = gates.wait(b.clone(), NOW.plus(1));
        let late = NOW.plus(AGED_MS);
        gates.leave(&b, late);
        // `b` is free, but the first has waited for long and needs it together with `a`.
        assert_eq!(gates.pump(late), (vec![], None));
        assert_eq!(gates.try_enter(&b, late), Err(Blocked::Slots));
        let fourth = gates.wait(b.clone(), late);
        assert!(!gates.give_up(fourth), "nothing was kept for it");
        gates.leave(&a, late);
        assert_eq!(gates.pump(late).0, vec![first]);
        gates.leave(&both, late);
        assert_eq!(gates.pump(late).0, vec![third]);
    }

    #[test]
    fn what_was_kept_for_an_old_waiter_is_for_others_when_it_gives_up() {
        let mut gates = Gates::default();
        let (a, b, both) = (wants([slots("a", 1)]), wants([slots("b", 1)]), wants([slots("a", 1), slots("b", 1)]));
        gates.try_enter(&a, NOW).unwrap();
        let (old, late) = (gates.wait(both, NOW), NOW.plus(AGED_MS));
        let next = gates.wait(b, late);
        assert_eq!(gates.pump(late), (vec![], None));
        assert!(gates.give_up(old), "nobody leaves `b`: the others must be asked now");
        assert_eq!(gates.pump(late), (vec![next], None));
    }

    #[test]
    fn a_waiter_that_gave_up_is_never_let_in() {
        let mut gates = Gates::default();
        let a = wants([slots("a", 1)]);
        gates.try_enter(&a, NOW).unwrap();
        let ticket = gates.wait(a.clone(), NOW);
        assert_eq!(gates.waiting(&GateId::Credential("a".into())), 1);
        gates.give_up(ticket);
        gates.leave(&a, NOW);
        assert_eq!(gates.pump(NOW), (vec![], None));
        assert_eq!(gates.try_enter(&a, NOW), Ok(()));
    }

    #[test]
    fn pacing_spaces_dispatches_and_bounds_every_minute() {
        let mut gates = Gates::default();
        let limit = Limit { slots: 0, min_interval_ms: 100, per_minute: 3 };
        let paced = wants([Want { gate: GateId::Credential("a".into()), limit }]);
        assert_eq!(gates.try_enter(&paced, NOW), Ok(()));
        assert_eq!(gates.try_enter(&paced, NOW.plus(40)), Err(Blocked::Pace(NOW.plus(100))));
        let ticket = gates.wait(paced.clone(), NOW.plus(40));
        assert_eq!(gates.pump(NOW.plus(40)), (vec![], Some(NOW.plus(100))));
        assert_eq!(gates.pump(NOW.plus(100)), (vec![ticket], None));
        assert_eq!(gates.try_enter(&paced, NOW.plus(250)), Ok(()));
        assert_eq!(gates.try_enter(&paced, NOW.plus(400)), Err(Blocked::Pace(NOW.plus(60_000))));
        assert_eq!(gates.try_enter(&paced, NOW.plus(60_000)), Ok(()));
    }

    #[test]
    fn a_release_looks_at_a_long_queue_once_and_a_newcomer_not_at_all() {
        const N: usize = 1_000;
        let mut gates = Gates::default();
        let (a, late) = (wants([slots("a", 1)]), NOW.plus(2 * AGED_MS));
        gates.try_enter(&a, NOW).unwrap();
        let all_alike: Vec<u64> = (0..N).map(|_| gates.wait(a.clone(), NOW)).collect();
        gates.looked = 0;
        gates.leave(&a, late);
        assert_eq!(gates.pump(late).0, all_alike[..1]);
        assert_eq!(gates.looked, 2, "the one that passes, and one for all the others");
        assert_eq!(gates.try_enter(&a, late), Err(Blocked::Slots));
        assert_eq!(gates.looked, 3);
        for _ in 1..N {
            gates.leave(&a, late);
            assert_eq!(gates.pump(late).0.len(), 1);
        }
        assert!(gates.looked <= 2 * N + 2, "{}", gates.looked);
        assert_eq!(gates.waiting(&GateId::Credential("a".into())), 0);

        // Each with wants of its own: one look per waiter and release.
        let tickets: Vec<u64> = (0..N).map(|_| gates.wait(wants([slots("a", 1)]), late)).collect();
        gates.looked = 0;
        gates.leave(&a, late);
        assert_eq!(gates.pump(late).0, tickets[..1]);
        assert_eq!(gates.looked, N);
    }

    #[test]
    fn idle_gates_are_dropped_at_a_cost_that_does_not_grow_with_their_number() {
        const N: usize = 8 * MAX_IDLE;
        let mut gates = Gates::default();
        let busy: Vec<_> = (0..N).map(|n| wants([slots(&n.to_string(), 2)])).collect();
        for want in &busy {
            gates.try_enter(want, NOW).unwrap();
        }
        gates.looked = 0;
        for want in &busy {
            gates.try_enter(want, NOW).unwrap();
            gates.leave(want, NOW);
        }
        assert!(gates.looked <= 3 * N, "{} for {N} requests", gates.looked);
        let late = NOW.plus(MINUTE_MS);
        busy.iter().for_each(|want| gates.leave(want, late));
        for n in N..3 * N {
            let other = wants([slots(&n.to_string(), 2)]);
            gates.try_enter(&other, late).unwrap();
            gates.leave(&other, late.plus(MINUTE_MS));
        }
        assert!(gates.gates.len() <= 2 * N + 1, "{}", gates.gates.len());
    }

    #[test]
    fn who_gives_up_after_a_long_wait_keeps_nothing_free() {
        let mut gates = Gates::default();
        let (a, b, both) = (wants([slots("a", 1)]), wants([slots("b", 1)]), wants([slots("a", 1), slots("b", 1)]));
        gates.try_enter(&a, NOW).unwrap();
        let first = gates.wait(both.clone(), NOW);
        let late = NOW.plus(AGED_MS);
        assert_eq!(gates.try_enter(&b, late), Err(Blocked::Slots));
        gates.give_up(first);
        assert_eq!(gates.try_enter(&b, late), Ok(()));
    }

    #[test]
    fn a_blocked_gate_opens_by_itself() {
        let mut gates = Gates::default();
        let a = wants([slots("a", 5)]);
        gates.block(&GateId::Credential("a".into()), NOW.plus(500), 0);
        gates.block(&GateId::Credential("a".into()), NOW.plus(100), 0);
        assert_eq!(gates.try_enter(&a, NOW.plus(499)), Err(Blocked::Pace(NOW.plus(500))));
        assert_eq!(gates.try_enter(&a, NOW.plus(500)), Ok(()));
    }

    #[test]
    fn who_waited_for_a_reset_goes_at_a_pace_and_nobody_overtakes() {
        let mut gates = Gates::default();
        let (gate, a) = (GateId::Credential("a".into()), wants([slots("a", 5)]));
        let at = |ms: u64| NOW.plus(500 + ms);
        gates.block(&gate, at(0), 100);
        let tickets: Vec<u64> = (0..3).map(|_| gates.wait(a.clone(), NOW)).collect();
        assert_eq!(gates.pump(at(0)), (vec![tickets[0]], Some(at(100))));
        assert_eq!(gates.try_enter(&a, at(50)), Err(Blocked::Pace(at(100))));
        assert_eq!(gates.pump(at(100)), (vec![tickets[1]], Some(at(200))));
        gates.give_up(tickets[2]);
        assert_eq!([gates.try_enter(&a, at(101)), gates.try_enter(&a, at(101))], [Ok(()), Ok(())], "nobody waits any more");
    }

    #[test]
    fn a_pace_counts_from_the_first_who_waited_and_only_while_anybody_does() {
        let mut gates = Gates::default();
        let (gate, a, reset) = (GateId::Credential("a".into()), wants([slots("a", 5)]), NOW.plus(500));
        gates.try_enter(&a, NOW).unwrap();
        gates.block(&gate, reset, 10_000);
        assert_eq!(gates.try_enter(&a, reset), Ok(()), "nobody waited, and the one before knew of no pace");
        gates.block(&gate, reset.plus(500), 10_000);
        let ticket = gates.wait(a, reset);
        assert_eq!(gates.pump(reset.plus(500)), (vec![ticket], None));
    }

    #[test]
    fn a_pace_that_is_lowered_or_lifted_is_news_for_those_who_wait() {
        let mut gates = Gates::default();
        let (gate, a) = (GateId::Credential("a".into()), wants([slots("a", 5)]));
        assert!(!gates.block(&gate, NOW, 10_000) && !gates.block(&gate, NOW, 9_000) && !gates.is_paced(&gate), "nobody waits");
        let tickets: Vec<u64> = (0..4).map(|_| gates.wait(a.clone(), NOW)).collect();
        assert_eq!(gates.pump(NOW), (tickets[..1].to_vec(), Some(NOW.plus(9_000))));
        assert!(gates.is_paced(&gate) && !gates.block(&gate, NOW, 9_000) && gates.block(&gate, NOW, 100));
        assert_eq!(gates.pump(NOW.plus(100)), (tickets[1..2].to_vec(), Some(NOW.plus(200))));
        assert!(gates.unblock(&gate) && !gates.is_paced(&gate));
        assert_eq!(gates.pump(NOW.plus(100)), (tickets[2..].to_vec(), None));
        assert!(!gates.unblock(&gate));
    }

    #[test]
    fn the_same_gate_twice_takes_the_smaller_cap_once() {
        let joined = wants([slots("a", 3), slots("a", 2), slots("b", 0)]);
        assert_eq!(joined.to_vec(), vec![slots("a", 2)]);
    }

    proptest! {
        /// Whatever happens in whatever order: no gate ever holds more than its cap, and when everybody has left, everybody can enter.
        #[test]
        fn caps_hold_and_nothing_leaks(steps in proptest::collection::vec((0u8..4, 0usize..3, 0u64..3_000), 1..120)) {
            let kinds = [wants([slots("a", 2)]), wants([slots("b", 1)]), wants([slots("a", 2), slots("b", 1)])];
            let mut gates = Gates::default();
            let (mut now, mut inside, mut queue) = (NOW, Vec::<usize>::new(), Vec::<(u64, usize)>::new());
            for (step, kind, pause) in steps {
                now = now.plus(pause);
                let want = kinds.get(kind).unwrap();
                match step {
                    0 => if gates.try_enter(want, now).is_ok() { inside.push(kind) },
                    1 => queue.push((gates.wait(want.clone(), now), kind)),
                    2 => if !inside.is_empty() {
                        let left = inside.remove(0);
                        gates.leave(kinds.get(left).unwrap(), now);
                    },
                    _ => if let Some((ticket, _)) = queue.pop() { gates.give_up(ticket); },
                }
                for ticket in gates.pump(now).0 {
                    let at = queue.iter().position(|(t, _)| *t == ticket).unwrap();
                    inside.push(queue.remove(at).1);
                }
                prop_assert!(inside.iter().filter(|k| **k != 1).count() <= 2);
                prop_assert!(inside.iter().filter(|k| **k != 0).count() <= 1);
            }
            for (ticket, _) in queue { gates.give_up(ticket); }
            for kind in inside { gates.leave(kinds.get(kind).unwrap(), now) }
            prop_assert_eq!(gates.try_enter(&kinds[2], now), Ok(()));
        }
    }
}
