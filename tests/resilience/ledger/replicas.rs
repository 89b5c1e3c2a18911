//! Ledgers that tell each other what they know, as replicas with a shared store do.

use omniroute::api::time::EpochMs;
use omniroute::classify::{LevelChange, Scope, Terminal, Verdict};
use omniroute::resilience::{BreakerPhase, ConnectionPhase, Ledger, Selection};

use super::until;
use crate::support::{NOW, cell, fail, ledger, server_error, snapshot, state, stated, strike, succeed, terminal, verdict};

/// Each takes over what the other says, until neither learns anything new.
fn talk(one: &Ledger, two: &Ledger, now: EpochMs) {
    for _ in 0..3 {
        let (first, second) = (one.export(now).shared(), two.export(now).shared());
        if !(one.restore(&second, now) | two.restore(&first, now)) {
            return;
        }
    }
    panic!("they never come to an end: {:?} {:?}", one.export(now), two.export(now));
}

fn replicas() -> (Ledger, Ledger) {
    let snapshot = snapshot(|_| {});
    (ledger(&snapshot), ledger(&snapshot))
}

#[test]
fn what_one_learns_the_other_knows() {
    let (one, two) = replicas();
    fail(&one, "a", "m", 429, &stated(60_000), NOW);
    fail(&one, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&two, "c", "m", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW);
    talk(&one, &two, NOW.plus(5));
    for ledger in [&one, &two] {
        assert_eq!(until(ledger, "a", NOW.plus(5)), Some(60_000));
        assert_eq!(state(ledger, "b", NOW.plus(5)).state, ConnectionPhase::Banned);
        assert_eq!(state(ledger, "c", NOW.plus(5)).lockouts.len(), 1);
    }
    // The later end wins, whoever says it.
    fail(&two, "a", "m", 429, &stated(90_000), NOW.plus(10));
    talk(&one, &two, NOW.plus(20));
    assert_eq!(until(&one, "a", NOW.plus(20)), Some(90_010));
}

#[test]
fn what_an_operator_cleared_on_one_is_cleared_on_the_other_and_does_not_come_back() {
    let (one, two) = replicas();
    fail(&one, "a", "m", 429, &stated(60_000), NOW);
    fail(&one, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&one, "c", "m", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW);
    fail(&one, "c", "n", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW);
    talk(&one, &two, NOW);
    let old = two.export(NOW).shared();
    one.clear_cooldowns(&Selection::Connections(["a".to_owned()].into()), NOW.plus(5));
    one.reset(&Selection::Connections(["b".to_owned()].into()), NOW.plus(5));
    one.clear_lockout("c", "m", NOW.plus(5));
    talk(&one, &two, NOW.plus(10));
    for ledger in [&one, &two] {
        ledger.restore(&old, NOW.plus(11));
        assert_eq!(state(ledger, "a", NOW.plus(11)).state, ConnectionPhase::Active);
        assert_eq!(state(ledger, "b", NOW.plus(11)).state, ConnectionPhase::Active);
        let locked: Vec<_> = state(ledger, "c", NOW.plus(11)).lockouts.into_iter().map(|lock| lock.model).collect();
        assert_eq!(locked, ["n"]);
    }
    // What happens afterwards counts again.
    fail(&two, "a", "m", 429, &stated(60_000), NOW.plus(20));
    fail(&two, "b", "m", 403, &terminal(Terminal::Banned), NOW.plus(20));
    fail(&two, "c", "m", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW.plus(20));
    talk(&one, &two, NOW.plus(30));
    assert_eq!(until(&one, "a", NOW.plus(30)), Some(60_020));
    assert_eq!(state(&one, "b", NOW.plus(30)).state, ConnectionPhase::Banned);
    assert_eq!(state(&one, "c", NOW.plus(30)).lockouts.len(), 2);
}

#[test]
fn a_success_on_one_clears_levels_and_strikes_on_both() {
    let (one, two) = replicas();
    let higher = Verdict { level: LevelChange::Set(3), ..verdict() };
    fail(&one, "a", "m", 429, &higher, NOW);
    fail(&one, "b", "m", 401, &strike(0), NOW);
    talk(&one, &two, NOW);
    let later = NOW.plus(301_000);
    succeed(&two, "a", "m", NOW.plus(4_000));
    succeed(&two, "b", "m", later);
    talk(&one, &two, later.plus(5));
    for ledger in [&one, &two] {
        assert_eq!(state(ledger, "a", later.plus(5)).backoff_level, 0);
        assert_eq!(state(ledger, "b", later.plus(5)).strikes, 0);
    }
}

#[test]
fn a_success_of_a_request_that_was_sent_before_says_nothing_about_what_another_saw_since() {
    let (one, two) = replicas();
    let a = cell(&one, "a");
    let early = one.begin(&a, NOW).expect("free");
    fail(&two, "a", "m", 429, &stated(60_000), NOW.plus(10));
    talk(&one, &two, NOW.plus(20));
    one.success(early, Some("m"), NOW.plus(30));
    talk(&one, &two, NOW.plus(40));
    assert_eq!((until(&one, "a", NOW.plus(40)), until(&two, "a", NOW.plus(40))), (Some(60_010), Some(60_010)));
}

#[test]
fn a_success_of_a_request_that_was_sent_before_ends_no_lock_that_another_began_since() {
    let (one, two) = replicas();
    let early = one.begin(&cell(&one, "a"), NOW).expect("free");
    fail(&two, "a", "m", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW.plus(10));
    talk(&one, &two, NOW.plus(20));
    one.success(early, Some("m"), NOW.plus(30));
    assert_eq!(state(&one, "a", NOW.plus(30)).lockouts.len(), 1);
}

#[test]
fn levels_decay_although_both_keep_talking() {
    let (one, two) = replicas();
    fail(&one, "a", "m", 429, &Verdict { level: LevelChange::Set(2), ..verdict() }, NOW);
    for second in 0..200 {
        talk(&one, &two, NOW.plus(second * 1_000 + 1));
    }
    let end = NOW.plus(200_000);
    assert_eq!((state(&one, "a", end).backoff_level, state(&two, "a", end).backoff_level), (0, 0));
    assert!(one.export(end).connections.is_empty(), "{:?}", one.export(end));
}

#[test]
fn an_open_breaker_is_shared_and_one_probe_closes_it_for_all() {
    let (one, two) = replicas();
    let failures = omniroute::snapshot::BreakerProfile::default().failure_threshold;
    for n in 0..failures {
        fail(&one, "a", &format!("m{n}"), 500, &server_error(), NOW);
    }
    let phase = |ledger: &Ledger, now| ledger.report(now).providers[0].breaker.state;
    talk(&one, &two, NOW.plus(5));
    assert_eq!((phase(&one, NOW.plus(5)), phase(&two, NOW.plus(5))), (BreakerPhase::Open, BreakerPhase::Open));
    let old = one.export(NOW.plus(5)).shared();
    let probing = NOW.plus(31_000);
    succeed(&two, "b", "m", probing);
    talk(&one, &two, probing.plus(5));
    one.restore(&old, probing.plus(6));
    assert_eq!((phase(&one, probing.plus(6)), phase(&two, probing.plus(6))), (BreakerPhase::Closed, BreakerPhase::Closed));
}

#[test]
fn a_request_that_was_sent_before_closes_no_breaker_that_another_opened_since() {
    let (one, two) = replicas();
    let early = one.begin(&cell(&one, "b"), NOW).expect("free");
    for n in 0..omniroute::snapshot::BreakerProfile::default().failure_threshold {
        fail(&two, "a", &format!("m{n}"), 500, &server_error(), NOW.plus(10));
    }
    talk(&one, &two, NOW.plus(20));
    one.success(early, Some("m"), NOW.plus(30));
    talk(&one, &two, NOW.plus(40));
    for ledger in [&one, &two] {
        assert_eq!(ledger.report(NOW.plus(40)).providers[0].breaker.state, BreakerPhase::Open);
    }
}
