//! Cooldowns, levels, strikes, terminal states and opt-ins of one connection.

use omniroute::classify::{Failover, LevelChange, Reason, Scope, Terminal, Verdict, WaitSource};
use omniroute::resilience::{ConnectionPhase, Effect, Ledger, SkipReason};
use omniroute::snapshot::RotationClass;

use super::until;
use crate::support::{NOW, cell, fail, ledger, server_error, snapshot, state, stated, strike, succeed, terminal, verdict};

#[test]
fn a_cooldown_holds_back_until_its_end_and_vanishes_from_the_report() {
    let ledger = ledger(&snapshot(|_| {}));
    let effects = fail(&ledger, "a", "m", 429, &verdict(), NOW);
    assert!(matches!(&effects[..], [Effect::CooldownStarted { level: 1, extended: false, .. }]), "{effects:?}");
    let a = cell(&ledger, "a");
    let held = ledger.check(&a, Some("m"), NOW.plus(2_999)).expect_err("it rests");
    assert_eq!((held.reason, held.until, held.stated), (SkipReason::ConnectionCooldown, Some(NOW.plus(3_000)), false));
    assert!(held.is_transient());
    assert!(ledger.check(&a, Some("m"), NOW.plus(3_000)).is_ok());
    assert!(ledger.check(&cell(&ledger, "b"), Some("m"), NOW).is_ok());
    let before = ledger.version(NOW.plus(2_999));
    assert_eq!(state(&ledger, "a", NOW.plus(2_999)).state, ConnectionPhase::Cooling);
    assert!(ledger.version(NOW.plus(3_000)) > before, "the end of a timer is a change");
    let shown = state(&ledger, "a", NOW.plus(3_000));
    assert_eq!((shown.state, shown.until, shown.reason, shown.backoff_level), (ConnectionPhase::Active, None, None, 1));
}

#[test]
fn one_failure_a_second_without_hints_backs_off_as_the_table_says() {
    let ledger = ledger(&snapshot(|_| {}));
    let mut now = NOW;
    let mut waits = Vec::new();
    for _ in 0..8 {
        let history = ledger.history(&cell(&ledger, "a"), Some("m"), now);
        let wait = omniroute::resilience::cooldown::scaled_ms(history.backoff_level, &history.profile);
        let level = (history.backoff_level + 1).min(history.profile.max_backoff_steps);
        fail(&ledger, "a", "m", 429, &Verdict { cooldown_ms: wait, level: LevelChange::Set(level), ..verdict() }, now);
        waits.push(wait / 1_000);
        now = now.plus(wait + 500);
    }
    assert_eq!(waits, [3, 6, 12, 24, 48, 96, 96, 96]);
    succeed(&ledger, "a", "m", now);
    assert_eq!(ledger.history(&cell(&ledger, "a"), Some("m"), now).backoff_level, 0);
}

#[test]
fn the_level_drops_one_step_per_interval_of_the_last_cooldown() {
    let ledger = ledger(&snapshot(|_| {}));
    fail(&ledger, "a", "m", 429, &Verdict { cooldown_ms: 96_000, level: LevelChange::Set(5), ..verdict() }, NOW);
    for (after_end, level) in [(0, 5), (95_999, 5), (96_000, 4), (3 * 96_000, 2), (100 * 96_000, 0)] {
        assert_eq!(state(&ledger, "a", NOW.plus(96_000 + after_end)).backoff_level, level, "{after_end} ms after the end");
    }
    let short = crate::support::ledger(&snapshot(|_| {}));
    fail(&short, "a", "m", 429, &verdict(), NOW);
    assert_eq!(state(&short, "a", NOW.plus(3_000 + 59_999)).backoff_level, 1, "never faster than a step a minute");
    assert_eq!(state(&short, "a", NOW.plus(3_000 + 60_000)).backoff_level, 0);
}

#[test]
fn a_herd_raises_the_level_once_and_only_a_longer_end_replaces_a_shorter_one() {
    let ledger = ledger(&snapshot(|_| {}));
    let a = cell(&ledger, "a");
    let permits: Vec<_> = (0..20).map(|_| ledger.begin(&a, NOW).expect("free")).collect();
    assert_eq!(a.in_flight(), 20);
    for (n, permit) in permits.into_iter().enumerate() {
        let now = NOW.plus(n as u64);
        let history = permit.history(Some("m"), now);
        assert_eq!(history.backoff_level, 0, "each is judged as the first");
        ledger.failure(permit, Some("m"), 429, &verdict(), now, 0.0);
    }
    assert_eq!((a.in_flight(), state(&ledger, "a", NOW).backoff_level), (0, 1));
    let late = ledger.begin(&a, NOW).expect("free");
    ledger.failure(late, Some("m"), 429, &stated(3_600_000), NOW.plus(30), 0.0);
    assert_eq!(until(&ledger, "a", NOW.plus(30)), Some(3_600_030), "a later typed end extends a guess");
    let shorter = ledger.begin(&a, NOW).expect("free");
    let effects = ledger.failure(shorter, Some("m"), 429, &stated(1_000), NOW.plus(40), 0.0);
    assert!(matches!(&effects[..], [Effect::ErrorRecorded { .. }]), "{effects:?}");
    assert_eq!(until(&ledger, "a", NOW.plus(40)), Some(3_600_030));
}

#[test]
fn a_herd_that_outlives_the_cooldown_still_raises_the_level_once() {
    let ledger = ledger(&snapshot(|_| {}));
    let a = cell(&ledger, "a");
    let slow: Vec<_> = (0..3).map(|_| ledger.begin(&a, NOW).expect("free")).collect();
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    for permit in slow {
        let now = NOW.plus(10_000);
        assert_eq!(permit.history(Some("m"), now).backoff_level, 0);
        ledger.failure(permit, Some("m"), 429, &verdict(), now, 0.0);
    }
    assert_eq!(state(&ledger, "a", NOW.plus(10_000)).backoff_level, 1);
}

#[test]
fn jitter_moves_computed_waits_by_a_tenth_and_stated_ones_not_at_all() {
    for (verdict, jitter, expected) in [
        (verdict(), 1.0, 3_300),
        (verdict(), -1.0, 2_700),
        (verdict(), f64::NAN, 3_000),
        (stated(3_000), 1.0, 3_000),
        (Verdict { wait_source: Some(WaitSource::Rule), ..verdict() }, 1.0, 3_000),
        (Verdict { exact_wait: true, ..verdict() }, 1.0, 3_000),
    ] {
        let ledger = ledger(&snapshot(|_| {}));
        let permit = ledger.begin(&cell(&ledger, "a"), NOW).expect("free");
        ledger.failure(permit, Some("m"), 429, &verdict, NOW, jitter);
        assert_eq!(until(&ledger, "a", NOW), Some(expected), "{:?} {jitter}", verdict.wait_source);
    }
}

#[test]
fn the_third_strike_without_a_success_is_final_and_a_herd_is_one_strike() {
    let ledger = ledger(&snapshot(|_| {}));
    let a = cell(&ledger, "a");
    let herd: Vec<_> = (0..5).map(|_| ledger.begin(&a, NOW).expect("free")).collect();
    for permit in herd {
        assert_eq!(permit.history(None, NOW).auth_strikes, 0);
        ledger.failure(permit, Some("m"), 401, &strike(0), NOW, 0.0);
    }
    assert_eq!((state(&ledger, "a", NOW).strikes, state(&ledger, "a", NOW).state), (1, ConnectionPhase::Cooling));
    succeed(&ledger, "a", "m", NOW.plus(1));
    assert_eq!(state(&ledger, "a", NOW.plus(1)).strikes, 0);
    for n in 0..3 {
        let now = NOW.plus(10_000_000 * (n + 1));
        let strikes = ledger.history(&a, None, now).auth_strikes;
        assert_eq!(u64::from(strikes), n);
        fail(&ledger, "a", "m", 401, &strike(strikes), now);
    }
    let later = NOW.plus(90_000_000);
    let held = ledger.check(&a, None, later).expect_err("expired");
    assert_eq!((held.reason, held.terminal, held.until), (SkipReason::Terminal, Some(Terminal::Expired), None));
    assert_eq!(state(&ledger, "a", later).state, ConnectionPhase::Expired);
}

#[test]
fn a_terminal_state_is_changed_by_no_failure() {
    let ledger = ledger(&snapshot(|_| {}));
    fail(&ledger, "a", "m", 403, &terminal(Terminal::Banned), NOW);
    for verdict in [terminal(Terminal::Expired), terminal(Terminal::CreditsExhausted), stated(9_000), strike(0)] {
        fail(&ledger, "a", "m", 403, &verdict, NOW.plus(1));
        let shown = state(&ledger, "a", NOW.plus(1));
        assert_eq!((shown.state, shown.until, shown.strikes), (ConnectionPhase::Banned, None, 0));
    }
    assert!(ledger.check(&cell(&ledger, "a"), None, NOW.plus(400 * 86_400_000)).is_err(), "no timer ends it");
}

#[test]
fn a_success_that_began_before_a_newer_failure_wipes_nothing() {
    let ledger = ledger(&snapshot(|_| {}));
    let a = cell(&ledger, "a");
    let old = ledger.begin(&a, NOW).expect("free");
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    assert!(ledger.success(old, Some("m"), NOW.plus(5)).is_empty());
    assert_eq!(until(&ledger, "a", NOW.plus(5)), Some(60_000));
    let effects = succeed(&ledger, "a", "m", NOW.plus(10));
    assert!(matches!(&effects[..], [Effect::CooldownEnded { .. }]), "{effects:?}");
    let shown = state(&ledger, "a", NOW.plus(10));
    assert_eq!((shown.state, shown.last_status), (ConnectionPhase::Active, None));
}

#[test]
fn disabled_cooling_covers_every_timer_but_not_terminal_states() {
    let mut free = snapshot(|p| p.traits.per_model_quota = true);
    free.connections[0].disable_cooling = true;
    free.settings.provider_cooldown.enabled = true;
    let ledger = ledger(&free);
    for status in [429, 408, 503] {
        fail(&ledger, "a", "m", status, &verdict(), NOW);
    }
    let shown = state(&ledger, "a", NOW);
    assert_eq!((shown.state, shown.lockouts.len(), shown.last_status, shown.backoff_level), (ConnectionPhase::Active, 0, Some(503), 1));
    fail(&ledger, "a", "m", 403, &terminal(Terminal::Banned), NOW);
    assert_eq!(state(&ledger, "a", NOW).state, ConnectionPhase::Banned);
}

#[test]
fn switching_cooling_off_ends_what_runs() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    snapshot.connections[0].disable_cooling = true;
    ledger.configure(&snapshot, NOW);
    assert_eq!(until(&ledger, "a", NOW), None);
}

#[test]
fn rotation_thresholds_gate_the_cooldown() {
    let mut rotating = snapshot(|_| {});
    rotating.settings.rotation.on_429 = RotationClass { enabled: true, threshold: 3, window_ms: 10_000 };
    rotating.settings.rotation.on_502 = RotationClass { enabled: false, threshold: 1, window_ms: 10_000 };
    let ledger = ledger(&rotating);
    for (after, rests) in [(0, false), (1_000, false), (2_000, true)] {
        fail(&ledger, "a", "m", 429, &verdict(), NOW.plus(after));
        assert_eq!(until(&ledger, "a", NOW.plus(after)).is_some(), rests, "{after}");
    }
    fail(&ledger, "b", "m", 429, &verdict(), NOW);
    fail(&ledger, "b", "m", 429, &verdict(), NOW.plus(10_001));
    fail(&ledger, "b", "m", 429, &verdict(), NOW.plus(10_002));
    assert_eq!(until(&ledger, "b", NOW.plus(10_002)), None, "the window slides");
    fail(&ledger, "c", "m", 502, &verdict(), NOW);
    assert_eq!(until(&ledger, "c", NOW), None);
    fail(&ledger, "c", "m", 401, &strike(0), NOW);
    assert_eq!(until(&ledger, "c", NOW), Some(300_000), "strikes are not gated");
}

#[test]
fn traffic_that_changes_nothing_leaves_the_version_alone() {
    let ledger = ledger(&snapshot(|p| p.traits.per_model_quota = true));
    fail(&ledger, "a", "m", 503, &verdict(), NOW);
    let later = NOW.plus(4_000);
    succeed(&ledger, "a", "other", later);
    let version = ledger.version(later);
    for _ in 0..3 {
        succeed(&ledger, "a", "other", later);
        succeed(&ledger, "b", "m", later);
    }
    assert_eq!(ledger.version(later), version);
}

#[test]
fn the_status_that_counts_is_the_restated_one() {
    let ledger = ledger(&snapshot(|p| p.traits.per_model_quota = true));
    fail(&ledger, "a", "m", 200, &Verdict { restated_status: Some(429), ..verdict() }, NOW);
    let shown = state(&ledger, "a", NOW);
    assert_eq!((shown.state, shown.lockouts.len(), shown.last_status), (ConnectionPhase::Active, 1, Some(429)));
}

#[test]
fn opt_ins_complete_a_verdict_and_without_them_it_stands() {
    let plain = Verdict { failover: Failover::Stop, scope: Scope::Request, cooldown_ms: 0, wait_source: None, ..verdict() };
    let stall = Verdict { cooldown_ms: 0, wait_source: None, decided_by: "transport.stream-not-ready".into(), ..server_error() };
    let mut snapshot = snapshot(|_| {});
    let complete = |ledger: &Ledger, verdict: &Verdict, status| {
        let mut verdict = verdict.clone();
        ledger.complete(&mut verdict, status, &ledger.history(&cell(ledger, "a"), None, NOW));
        verdict
    };
    let off = ledger(&snapshot);
    assert_eq!(complete(&off, &plain, 400), plain);
    assert_eq!(complete(&off, &stall, 0), stall);
    snapshot.settings.rotation.on_400.enabled = true;
    snapshot.settings.stream_stall_cooldown = true;
    let on = ledger(&snapshot);
    let rotated = complete(&on, &plain, 400);
    assert_eq!((rotated.failover, rotated.reason, rotated.cooldown_ms), (Failover::OtherConnection, Reason::RateLimitExceeded, 120_000));
    assert_eq!(complete(&on, &plain, 422), plain, "only 400");
    let other_model = Verdict { failover: Failover::OtherModel, ..plain.clone() };
    assert_eq!(complete(&on, &other_model, 400), other_model, "only what nothing else explains");
    assert_eq!((complete(&on, &stall, 0).cooldown_ms, complete(&on, &stall, 0).level), (3_000, LevelChange::Set(1)));
    fail(&on, "a", "m", 400, &rotated, NOW);
    assert_eq!(until(&on, "a", NOW), Some(120_000));
    snapshot.settings.rotation.rate_limit_reset_ms = 7_000;
    assert_eq!(complete(&ledger(&snapshot), &plain, 400).cooldown_ms, 7_000);
}

#[test]
fn the_requests_own_fault_leaves_no_trace() {
    let ledger = ledger(&snapshot(|_| {}));
    let verdict = Verdict { scope: Scope::Request, ..verdict() };
    assert!(fail(&ledger, "a", "m", 400, &verdict, NOW).is_empty());
    let shown = state(&ledger, "a", NOW);
    assert_eq!((shown.state, shown.last_status, shown.backoff_level), (ConnectionPhase::Active, None, 0));
}
