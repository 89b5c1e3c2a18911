//! The live states of several pods as one (decisions 10.2): the latest deadline wins. Pure, commutative, associative, idempotent; lists are
//! not cut here, because cutting would make the result depend on the order.

use std::collections::BTreeMap;

use super::{BreakerState, ConnectionState, LockoutState, ProviderState, RuleState, WindowState};

/// Merges connections by name; the result is sorted by name.
#[must_use]
pub fn merge_connections(a: &[ConnectionState], b: &[ConnectionState]) -> Vec<ConnectionState> {
    by_name(a, b, |s| &s.name, connection)
}

/// Merges providers by name; the result is sorted by name.
#[must_use]
pub fn merge_providers(a: &[ProviderState], b: &[ProviderState]) -> Vec<ProviderState> {
    by_name(a, b, |s| &s.name, provider)
}

/// Merges rules by name; the result is sorted by name. Counters of pods that count on their own are not added up: the highest is a lower
/// bound that does not grow by asking twice.
#[must_use]
pub fn merge_rules(a: &[RuleState], b: &[RuleState]) -> Vec<RuleState> {
    by_name(
        a,
        b,
        |s| &s.name,
        |a, b| RuleState {
            name: a.name.clone(),
            matches: a.matches.max(b.matches),
            shadow_matches: a.shadow_matches.max(b.shadow_matches),
            last_match_time: a.last_match_time.max(b.last_match_time),
        },
    )
}

fn by_name<T: Clone>(a: &[T], b: &[T], name: impl Fn(&T) -> &String, merge: impl Fn(&T, &T) -> T) -> Vec<T> {
    let mut out: BTreeMap<String, T> = BTreeMap::new();
    for item in a.iter().chain(b) {
        let merged = out.get(name(item)).map_or_else(|| item.clone(), |held| merge(held, item));
        out.insert(name(item).clone(), merged);
    }
    out.into_values().collect()
}

fn connection(a: &ConnectionState, b: &ConnectionState) -> ConnectionState {
    // State, deadline and reason belong together: they come from the same pod.
    let rank = |s: &ConnectionState| (s.state, s.until, s.reason.clone(), s.wait_source.clone(), s.provider.clone());
    let held = if rank(a) >= rank(b) { a } else { b };
    ConnectionState {
        backoff_level: a.backoff_level.max(b.backoff_level),
        strikes: a.strikes.max(b.strikes),
        in_flight: a.in_flight.max(b.in_flight),
        last_status: a.last_status.max(b.last_status),
        lockouts: lockouts(&a.lockouts, &b.lockouts),
        lockouts_omitted: a.lockouts_omitted.max(b.lockouts_omitted),
        ..held.clone()
    }
}

fn lockouts(a: &[LockoutState], b: &[LockoutState]) -> Vec<LockoutState> {
    let mut out: BTreeMap<(String, bool), LockoutState> = BTreeMap::new();
    for lock in a.iter().chain(b) {
        let key = (lock.model.clone(), lock.exact);
        let rank = |l: &LockoutState| (l.until, l.reason.clone());
        if out.get(&key).is_none_or(|held| rank(lock) > rank(held)) {
            out.insert(key, lock.clone());
        }
    }
    let mut out: Vec<_> = out.into_values().collect();
    out.sort_by(|x, y| y.until.cmp(&x.until).then_with(|| (&x.model, x.exact).cmp(&(&y.model, y.exact))));
    out
}

fn provider(a: &ProviderState, b: &ProviderState) -> ProviderState {
    let rank = |s: &BreakerState| (s.state, s.until, s.failures, s.open_cycles);
    let breaker = if rank(&a.breaker) >= rank(&b.breaker) { &a.breaker } else { &b.breaker };
    let until = |s: &ProviderState| s.window.as_ref().map(|w| w.until);
    ProviderState { name: a.name.clone(), breaker: breaker.clone(), window: until(a).max(until(b)).map(|until| WindowState { until }) }
}
