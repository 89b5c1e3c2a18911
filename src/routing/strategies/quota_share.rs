//! The turns of a combo with `quotaShare`: every account gets its share by weight, the less busy one of the next two goes first, and what
//! is used up or full goes behind (routing spec 4.21).

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bounded::Bounded;
use super::{Candidate, Event, EventKind, OrderContext, Ranked, Strategy, Traits, split};
use crate::api::time::EpochMs;

/// Turns that a member can save up while others go before it, or owe.
const MOST_TURNS: f64 = 2.0;

/// The turns that members are owed, and their requests in flight.
#[derive(Debug, Default)]
pub struct QuotaShare {
    members: Mutex<Bounded<Member>>,
}

#[derive(Debug, Default)]
struct Member {
    /// Turns that it is owed; negative when it had more than its share.
    deficit: f64,
    /// Requests of this combo on it. Requests from elsewhere come in through `measured`.
    running: u32,
    last: EpochMs,
}

impl QuotaShare {
    fn members(&self) -> MutexGuard<'_, Bounded<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those for which `is_last` holds, taken out of the list; all stay when it holds for all.
fn behind(list: &mut Vec<usize>, is_last: impl Fn(usize) -> bool) -> Vec<usize> {
    let (last, first): (Vec<usize>, Vec<usize>) = list.iter().partition(|i| is_last(**i));
    if first.is_empty() {
        return Vec::new();
    }
    *list = first;
    last
}

fn enter(members: &mut Bounded<Member>, key: u64, now: EpochMs) {
    let member = members.entry(key, |m| m.last);
    member.running = member.running.saturating_add(1);
    member.last = now;
}

impl Strategy for QuotaShare {
    fn order(&self, candidates: &[Candidate], ctx: &mut OrderContext<'_>) -> Vec<Ranked> {
        let now = ctx.now;
        let (mut eligible, rest) = split(candidates);
        let known = |i: usize, test: &dyn Fn(&Candidate) -> bool| candidates.get(i).is_some_and(test);
        let used_up = |c: &Candidate| c.measured.quota.as_ref().is_some_and(|quota| quota.remaining(now) <= 0.0);
        let saturated = behind(&mut eligible, |i| known(i, &used_up));
        let full = behind(&mut eligible, |i| known(i, &|c| c.measured.full));

        let mut members = self.members();
        // A weight of 0 has no share of its own to count in; it takes part like the smallest.
        let weight = |i: usize| candidates.get(i).map_or(1.0, |c| f64::from(c.weight.max(1)));
        let total: f64 = eligible.iter().map(|i| weight(*i)).sum();
        for (i, candidate) in eligible.iter().filter_map(|i| Some((*i, candidates.get(*i)?))) {
            let member = members.entry(candidate.key, |m| m.last);
            member.deficit = (member.deficit + weight(i) / total).min(MOST_TURNS);
            member.last = now;
        }
        let deficit = |i: usize| candidates.get(i).and_then(|c| members.get(c.key)).map_or(0.0, |m| m.deficit);
        let load = |i: usize| {
            let Some(c) = candidates.get(i) else { return u32::MAX };
            members.get(c.key).map_or(0, |m| m.running).max(c.measured.in_flight)
        };
        eligible.sort_by(|a, b| deficit(*b).total_cmp(&deficit(*a)));
        if let [first, second, ..] = eligible.as_mut_slice()
            && load(*second) < load(*first)
        {
            std::mem::swap(first, second);
        }
        let scores: Vec<f64> = (0..candidates.len()).map(deficit).collect();
        if let Some(winner) = eligible.first().and_then(|i| candidates.get(*i)) {
            let member = members.entry(winner.key, |m| m.last);
            member.deficit = (member.deficit - 1.0).max(-MOST_TURNS);
        }
        let note = |i: usize| {
            let text = if saturated.contains(&i) {
                "used up"
            } else if full.contains(&i) {
                "at maxConcurrent"
            } else {
                return None;
            };
            Some(text.to_owned())
        };
        let ranked: Vec<Ranked> = eligible
            .iter()
            .chain(&full)
            .chain(&saturated)
            .chain(&rest)
            .map(|i| Ranked { candidate: *i, score: scores.get(*i).copied(), note: note(*i) })
            .collect();
        if let Some(first) = ranked.first().and_then(|r| candidates.get(r.candidate)) {
            enter(&mut members, first.key, now);
        }
        ranked
    }

    fn observe(&self, event: &Event) {
        let mut members = self.members();
        match event.kind {
            EventKind::Entered => enter(&mut members, event.key, event.now),
            EventKind::Left => {
                let member = members.entry(event.key, |m| m.last);
                member.running = member.running.saturating_sub(1);
            }
            EventKind::Succeeded { .. } | EventKind::Failed { .. } => {}
        }
    }

    fn traits(&self) -> Traits {
        Traits { availability: true, load: true, quota: true, per_connection: true, protects_first: true, ..Traits::default() }
    }
}
