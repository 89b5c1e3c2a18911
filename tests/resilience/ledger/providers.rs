//! Breaker and window gate as requests meet them.

use omniroute::classify::{LevelChange, Verdict};
use omniroute::resilience::{BreakerPhase, Effect, SkipReason};

use super::until;
use crate::support::{NOW, cell, fail, ledger, provider_state, server_error, snapshot, succeed, verdict};

#[test]
fn the_breaker_opens_for_all_connections_and_lets_one_probe_through() {
    let ledger = ledger(&snapshot(|_| {}));
    let mut effects = Vec::new();
    for n in 0..12u64 {
        let name = ["a", "b", "c"][usize::try_from(n % 3).expect("small")];
        effects.extend(fail(&ledger, name, "m", 503, &Verdict { cooldown_ms: 0, wait_source: None, ..server_error() }, NOW));
    }
    assert_eq!(effects.iter().filter(|e| matches!(e, Effect::BreakerDegraded { failures: 7, .. })).count(), 1);
    assert_eq!(effects.iter().filter(|e| matches!(e, Effect::BreakerOpened { failures: 12, .. })).count(), 1);
    let a = cell(&ledger, "a");
    let held = ledger.check(&a, None, NOW.plus(29_999)).expect_err("open");
    assert_eq!((held.reason, held.until), (SkipReason::CircuitOpen, Some(NOW.plus(30_000))));
    let later = NOW.plus(30_000);
    assert!(ledger.check(&a, None, later).is_ok(), "asking takes no probe");
    let probe = ledger.begin(&a, later).expect("the probe");
    assert!(probe.is_probe());
    assert_eq!(ledger.begin(&cell(&ledger, "b"), later).expect_err("one at a time").until, Some(later.plus(30_000)));
    drop(probe); // the client left
    let probe = ledger.begin(&a, later).expect("given back");
    let effects = ledger.success(probe, None, later);
    assert!(matches!(&effects[..], [Effect::BreakerClosed { .. }, ..]), "{effects:?}");
    assert_eq!(provider_state(&ledger, "p", later).breaker.state, BreakerPhase::Closed);
}

#[test]
fn results_of_requests_that_began_before_the_opening_do_not_move_an_open_breaker() {
    let ledger = ledger(&snapshot(|p| p.breaker.failure_threshold = 2));
    let a = cell(&ledger, "a");
    let (old, older) = (ledger.begin(&a, NOW).expect("free"), ledger.begin(&a, NOW).expect("free"));
    for _ in 0..2 {
        fail(&ledger, "b", "m", 503, &server_error(), NOW);
    }
    ledger.success(old, None, NOW.plus(1));
    assert_eq!(provider_state(&ledger, "p", NOW.plus(1)).breaker.state, BreakerPhase::Open);
    let later = NOW.plus(30_000);
    let probe = ledger.begin(&a, later).expect("half open");
    ledger.failure(older, None, 503, &server_error(), later, 0.0);
    assert_eq!(provider_state(&ledger, "p", later).breaker.state, BreakerPhase::HalfOpen, "a late failure is not the probe's");
    ledger.failure(probe, None, 503, &server_error(), later, 0.0);
    let shown = provider_state(&ledger, "p", later).breaker;
    assert_eq!((shown.state, shown.open_cycles), (BreakerPhase::Open, 1));
}

#[test]
fn a_probe_that_is_answered_by_a_limit_is_given_back() {
    let ledger = ledger(&snapshot(|p| p.breaker.failure_threshold = 1));
    fail(&ledger, "a", "m", 503, &server_error(), NOW);
    let provider = ledger.provider("p").expect("there");
    assert!(!provider.is_probing(NOW.plus(1)), "open, not half open");
    let later = NOW.plus(30_000);
    fail(&ledger, "b", "m", 429, &verdict(), later);
    assert_eq!(provider_state(&ledger, "p", later).breaker.state, BreakerPhase::HalfOpen);
    assert!(provider.is_probing(later));
    assert!(ledger.begin(&cell(&ledger, "c"), later).is_ok());
}

#[test]
fn what_skips_the_breaker_never_counts() {
    let ledger = ledger(&snapshot(|p| p.breaker.failure_threshold = 1));
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    fail(&ledger, "a", "m", 503, &Verdict { skip_breaker: true, ..server_error() }, NOW);
    assert_eq!(provider_state(&ledger, "p", NOW).breaker.failures, 0);
}

#[test]
fn the_window_gate_rests_the_provider_and_each_failing_connection() {
    let mut gated = snapshot(|p| p.breaker.failure_threshold = 1_000);
    gated.settings.provider_cooldown.enabled = true;
    let ledger = ledger(&gated);
    let failure = Verdict { cooldown_ms: 0, wait_source: None, level: LevelChange::Unchanged, ..server_error() };
    fail(&ledger, "a", "m", 503, &failure, NOW);
    assert_eq!(until(&ledger, "a", NOW), Some(5_000));
    for _ in 0..14 {
        fail(&ledger, "b", "m", 503, &failure, NOW);
    }
    let held = ledger.check(&cell(&ledger, "c"), None, NOW).expect_err("the provider rests");
    assert_eq!((held.reason, held.until), (SkipReason::ProviderCooldown, Some(NOW.plus(600_000))));
    let effects = succeed(&ledger, "c", "m", NOW.plus(1));
    assert!(matches!(&effects[..], [Effect::ProviderCooldownEnded { .. }]), "{effects:?}");
    assert!(ledger.check(&cell(&ledger, "c"), None, NOW.plus(1)).is_ok());
    gated.settings.provider_cooldown.enabled = false;
    ledger.configure(&gated, NOW.plus(1));
    assert_eq!(until(&ledger, "a", NOW.plus(1)), None, "switched off, nothing of it rests");
}

#[test]
fn threads_race_for_one_probe_and_leave_no_request_behind() {
    let ledger = ledger(&snapshot(|p| p.breaker.failure_threshold = 1));
    fail(&ledger, "a", "m", 503, &server_error(), NOW);
    let a = cell(&ledger, "a");
    for round in 1..50 {
        let now = NOW.plus(30_000 + round);
        let permits: Vec<_> = std::thread::scope(|scope| {
            let racing: Vec<_> = (0..8).map(|_| scope.spawn(|| ledger.begin(&a, now))).collect();
            racing.into_iter().filter_map(|thread| thread.join().expect("no panic").ok()).collect()
        });
        assert_eq!((permits.len(), a.in_flight()), (1, 1), "round {round}");
    }
    assert_eq!(a.in_flight(), 0);
}
