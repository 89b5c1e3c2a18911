//! What failures, successes, commands and snapshots do to the ledger, case by case.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/ledger.rs"]
mod support;

use std::collections::BTreeSet;

use omniroute::api::time::EpochMs;
use omniroute::classify::{Failover, LevelChange, QuotaReset, Reason, Scope, Strike, Terminal, Verdict, WaitSource};
use omniroute::resilience::claude_lane::{LaneContext, LaneWait, WallResponse};
use omniroute::resilience::{BreakerPhase, ConnectionPhase, Effect, Ledger, Selection, SkipReason};
use omniroute::snapshot::{Command, CommandKind, CommandVerb, QuotaFamily, RotationClass, Rule, RuleVerdict};
use support::*;

fn until(ledger: &Ledger, name: &str, now: EpochMs) -> Option<u64> {
    state(ledger, name, now).until.map(|t| t.since(NOW))
}

fn locked(ledger: &Ledger, name: &str, now: EpochMs) -> Vec<(String, u64)> {
    let locks = state(ledger, name, now).lockouts;
    locks.into_iter().map(|l| (l.model, l.until.expect("a running lock").since(NOW))).collect()
}

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
    let short = support::ledger(&snapshot(|_| {}));
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
fn per_model_quota_locks_the_model_and_leaves_the_connection_active() {
    let per_model = snapshot(|p| p.traits.per_model_quota = true);
    for (status, locks) in [(429, 1), (404, 1), (402, 1), (403, 1), (503, 1), (500, 0), (401, 0), (408, 0)] {
        let ledger = ledger(&per_model);
        fail(&ledger, "a", "m", status, &verdict(), NOW);
        assert_eq!(state(&ledger, "a", NOW).lockouts.len(), locks, "{status}");
        let cooled = matches!(status, 401 | 408);
        assert_eq!(ledger.check(&cell(&ledger, "a"), Some("other"), NOW).is_err(), cooled, "{status}");
        assert_eq!(state(&ledger, "a", NOW).last_status, Some(status), "recorded in any case");
    }
}

#[test]
fn a_declared_scope_is_acted_upon_as_it_stands() {
    let declared = |scope| Verdict { scope, scope_declared: true, wait_source: Some(WaitSource::Rule), ..verdict() };
    let per_model = snapshot(|p| p.traits.per_model_quota = true);
    let ledger = ledger(&per_model);
    fail(&ledger, "a", "m", 429, &declared(Scope::Connection), NOW);
    assert_eq!(until(&ledger, "a", NOW), Some(3_000));
    let plain = support::ledger(&snapshot(|_| {}));
    fail(&plain, "a", "m", 400, &declared(Scope::Model), NOW);
    assert_eq!((until(&plain, "a", NOW), locked(&plain, "a", NOW)), (None, vec![("m".to_owned(), 3_000)]));
    let wide = support::ledger(&snapshot(|_| {}));
    fail(&wide, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&wide, "a", "m", 429, &declared(Scope::Provider), NOW);
    assert_eq!((until(&wide, "a", NOW), until(&wide, "c", NOW)), (Some(3_000), Some(3_000)));
    assert_eq!(state(&wide, "b", NOW).state, ConnectionPhase::Banned);
}

#[test]
fn a_declared_scope_without_a_wait_rests_two_minutes() {
    let ledger = ledger(&snapshot(|_| {}));
    let verdict = Verdict { scope_declared: true, cooldown_ms: 0, wait_source: None, level: LevelChange::Unchanged, ..verdict() };
    fail(&ledger, "a", "m", 403, &verdict, NOW);
    assert_eq!(until(&ledger, "a", NOW), Some(120_000));
}

#[test]
fn a_shared_wallet_is_not_a_matter_of_one_model() {
    let both = snapshot(|p| {
        p.traits.per_model_quota = true;
        p.traits.shared_wallet = true;
    });
    let ledger = ledger(&both);
    fail(&ledger, "a", "m", 402, &Verdict { terminal: Some(Terminal::CreditsExhausted), ..verdict() }, NOW);
    assert_eq!(state(&ledger, "a", NOW).state, ConnectionPhase::CreditsExhausted);
    fail(&ledger, "b", "m", 402, &verdict(), NOW);
    assert_eq!((until(&ledger, "b", NOW), locked(&ledger, "b", NOW).len()), (Some(3_000), 0));
    fail(&ledger, "c", "m", 429, &verdict(), NOW);
    assert_eq!((until(&ledger, "c", NOW), locked(&ledger, "c", NOW).len()), (None, 1), "other limits stay the model's");
}

#[test]
fn an_egress_group_rests_together() {
    let mut shared = snapshot(|p| p.traits.egress_bucketed = true);
    for connection in &mut shared.connections {
        connection.egress_group = Some(if connection.name == "c" { "other" } else { "one" }.to_owned());
    }
    let ledger = ledger(&shared);
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    assert_eq!((until(&ledger, "a", NOW), until(&ledger, "b", NOW), until(&ledger, "c", NOW)), (Some(60_000), Some(60_000), None));
    // Never shortened, never over a terminal state, and only for limits.
    fail(&ledger, "b", "m", 429, &stated(1_000), NOW.plus(1));
    assert_eq!(until(&ledger, "a", NOW.plus(1)), Some(60_000));
    fail(&ledger, "c", "m", 503, &server_error(), NOW);
    assert_eq!(until(&ledger, "c", NOW), Some(3_000));
    let plain = support::ledger(&snapshot(|_| {}));
    fail(&plain, "a", "m", 429, &stated(60_000), NOW);
    assert_eq!(until(&plain, "b", NOW), None, "only providers that declare it");
}

#[test]
fn rejections_of_the_client_lock_the_exact_model_and_never_ban() {
    let ledger = ledger(&snapshot(|_| {}));
    let mut now = NOW;
    for n in 0..12 {
        let rejections = ledger.history(&cell(&ledger, "a"), Some("m"), now).request_rejections;
        assert_eq!(rejections, n);
        let wait = (5_000u64 << n).min(3_600_000);
        let verdict = Verdict { scope: Scope::Model, strike: Some(Strike::RequestRejected), cooldown_ms: wait, ..verdict() };
        fail(&ledger, "a", "m", 403, &verdict, now);
        let shown = state(&ledger, "a", now);
        assert_eq!((shown.state, shown.lockouts[0].reason.as_str()), (ConnectionPhase::Active, "RequestRejected"));
        now = now.plus(wait);
    }
    assert_eq!(ledger.history(&cell(&ledger, "a"), Some("other"), now).request_rejections, 0);
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
fn families_share_a_lock_and_exact_locks_do_not() {
    let family = |name: &str, glob: &str| QuotaFamily { name: name.to_owned(), models: vec![glob.to_owned()] };
    let families = snapshot(|p| {
        p.traits.per_model_quota = true;
        p.quota_families = vec![family("spark", "*spark*"), family("codex", "*")];
    });
    let ledger = ledger(&families);
    fail(&ledger, "a", "gpt-5", 429, &verdict(), NOW);
    let holds = |ledger: &Ledger, model| ledger.check(&cell(ledger, "a"), Some(model), NOW).is_err();
    assert!(holds(&ledger, "gpt-5") && holds(&ledger, "GPT-5-mini ") && !holds(&ledger, "codex-spark"));
    assert!(!state(&ledger, "a", NOW).lockouts[0].exact);
    for status in [404, 503] {
        let ledger = support::ledger(&families);
        fail(&ledger, "a", "gpt-5", status, &verdict(), NOW);
        assert!(holds(&ledger, "gpt-5") && !holds(&ledger, "gpt-5-mini"), "{status}");
        assert!(state(&ledger, "a", NOW).lockouts[0].exact);
    }
}

#[test]
fn locks_escalate_inside_their_own_window_and_are_halved_by_success() {
    let ledger = ledger(&snapshot(|p| p.traits.per_model_quota = true));
    let mut now = NOW;
    let mut lengths = Vec::new();
    for _ in 0..4 {
        fail(&ledger, "a", "m", 503, &verdict(), now);
        let end = state(&ledger, "a", now).lockouts[0].until.expect("running");
        lengths.push(end.since(now));
        now = end.plus(1_000);
    }
    assert_eq!(lengths, [3_000, 6_000, 12_000, 24_000]);
    succeed(&ledger, "a", "m", now);
    fail(&ledger, "a", "m", 503, &verdict(), now.plus(1));
    assert_eq!(state(&ledger, "a", now.plus(1)).lockouts[0].until, Some(now.plus(1 + 12_000)), "the count fell from 4 to 2");
    let quiet = now.plus(1_800_000 + 60_000);
    fail(&ledger, "a", "m", 503, &verdict(), quiet);
    assert_eq!(state(&ledger, "a", quiet).lockouts[0].until, Some(quiet.plus(3_000)), "after the window it starts again");
}

#[test]
fn a_quota_without_a_reset_rests_until_the_providers_own_midnight() {
    let ledger = ledger(&snapshot(|p| {
        p.traits.per_model_quota = true;
        p.traits.quota_reset = Some(QuotaReset { time_zone: "America/Los_Angeles".to_owned(), hour: 0 });
    }));
    // 2027-01-15T08:00:00Z is midnight there.
    fail(&ledger, "a", "m", 429, &Verdict { reason: Reason::QuotaExhausted, ..verdict() }, NOW.plus(3_600_000));
    assert_eq!(state(&ledger, "a", NOW).lockouts[0].until, Some(NOW.plus(86_400_000)));
    fail(&ledger, "a", "n", 429, &Verdict { reason: Reason::QuotaExhausted, quota_reset_ms: Some(131 * 3_600_000), ..verdict() }, NOW);
    assert_eq!(state(&ledger, "a", NOW).lockouts[0].until, Some(NOW.plus(131 * 3_600_000)), "a seen reset may be longer");
}

#[test]
fn the_general_switch_locks_its_statuses_with_its_own_base() {
    let mut on = snapshot(|_| {});
    on.settings.model_lockout.enabled = true;
    let ledger = ledger(&on);
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    assert_eq!(locked(&ledger, "a", NOW), [("m".to_owned(), 120_000)]);
    fail(&ledger, "a", "m", 408, &verdict(), NOW);
    assert_eq!(until(&ledger, "a", NOW), Some(3_000), "408 is not among its statuses");
}

#[test]
fn slow_failures_are_observed_before_they_lock() {
    let mut slow = snapshot(|p| p.traits.per_model_quota = true);
    slow.settings.model_lockout.slow_start.enabled = true;
    slow.settings.model_lockout.slow_start.providers = vec!["p".to_owned()];
    let ledger = ledger(&slow);
    let a = cell(&ledger, "a");
    let mut now = NOW;
    let mut lengths = Vec::new();
    for _ in 0..6 {
        let permit = ledger.begin(&a, now).expect("free");
        now = now.plus(121_000);
        ledger.failure(permit, Some("m"), 504, &verdict(), now, 0.0);
        lengths.push(state(&ledger, "a", now).lockouts.first().map_or(0, |l| l.until.expect("running").since(now) / 60_000));
    }
    assert_eq!(lengths, [0, 0, 5, 2, 0, 10], "the third locks for 5 min, the sixth for 10");
}

#[test]
fn locks_are_bounded_and_running_ones_are_never_dropped() {
    let ledger = ledger(&snapshot(|p| p.traits.per_model_quota = true));
    let max = omniroute::resilience::lockout::MAX_LOCKS;
    for n in 0..max + 5 {
        fail(&ledger, "a", &format!("m{n}"), 404, &stated(60_000), NOW);
    }
    let shown = state(&ledger, "a", NOW);
    assert_eq!((shown.lockouts.len(), shown.lockouts_omitted), (max, 5));
    assert!(ledger.check(&cell(&ledger, "a"), Some("m0"), NOW).is_err());
    fail(&ledger, "a", "new", 404, &stated(60_000), NOW.plus(60_000));
    assert!(ledger.check(&cell(&ledger, "a"), Some("new"), NOW.plus(60_000)).is_err(), "what is over makes room");
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
    let later = NOW.plus(30_000);
    fail(&ledger, "b", "m", 429, &verdict(), later);
    assert_eq!(provider_state(&ledger, "p", later).breaker.state, BreakerPhase::HalfOpen);
    assert!(ledger.begin(&cell(&ledger, "c"), later).is_ok());
}

#[test]
fn what_skips_the_breaker_never_counts() {
    let ledger = ledger(&snapshot(|p| p.breaker.failure_threshold = 1));
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    fail(&ledger, "a", "m", 503, &Verdict { skip_breaker: true, ..server_error() }, NOW);
    let probe = ledger.begin(&cell(&ledger, "a"), NOW).expect("free").as_own_probe();
    ledger.failure(probe, Some("m"), 503, &server_error(), NOW, 0.0);
    assert_eq!(provider_state(&ledger, "p", NOW).breaker.failures, 0);
}

#[test]
fn the_gateways_own_probes_only_record_unless_they_may_act() {
    let mut snapshot = snapshot(|_| {});
    let banned = terminal(Terminal::Banned);
    for (may, expected) in [(false, ConnectionPhase::Active), (true, ConnectionPhase::Banned)] {
        snapshot.settings.probe_can_disable = may;
        let ledger = ledger(&snapshot);
        let probe = ledger.begin(&cell(&ledger, "a"), NOW).expect("free").as_own_probe();
        ledger.failure(probe, None, 403, &banned, NOW, 0.0);
        assert_eq!((state(&ledger, "a", NOW).state, state(&ledger, "a", NOW).last_status), (expected, Some(403)));
    }
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
fn a_new_snapshot_keeps_unchanged_cells_and_a_new_credential_clears_what_the_old_one_caused() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    fail(&ledger, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&ledger, "c", "m", 401, &strike(0), NOW);
    let a = cell(&ledger, "a");
    snapshot.connections[0].priority = 7;
    assert!(ledger.configure(&snapshot, NOW).is_empty());
    assert!(std::sync::Arc::ptr_eq(&a, &cell(&ledger, "a")));
    for connection in &mut snapshot.connections {
        connection.credential_fingerprint.push_str(" (new)");
    }
    let effects = ledger.configure(&snapshot, NOW);
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert_eq!(until(&ledger, "a", NOW), Some(60_000), "a limit may well be the account's");
    assert_eq!(state(&ledger, "b", NOW).state, ConnectionPhase::Active);
    assert_eq!((state(&ledger, "c", NOW).strikes, until(&ledger, "c", NOW)), (0, None));
    snapshot.connections.remove(0);
    ledger.configure(&snapshot, NOW);
    assert!(ledger.connection("a").is_none());
}

#[test]
fn a_late_answer_to_the_old_credential_does_not_blame_the_new_one() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    let a = cell(&ledger, "a");
    let old: Vec<_> = (0..3).map(|_| ledger.begin(&a, NOW).expect("free")).collect();
    snapshot.connections[0].credential_fingerprint = "new".to_owned();
    ledger.configure(&snapshot, NOW);
    for (permit, verdict) in old.into_iter().zip([terminal(Terminal::Banned), strike(2), stated(60_000)]) {
        ledger.failure(permit, Some("m"), 401, &verdict, NOW.plus(1), 0.0);
    }
    let shown = state(&ledger, "a", NOW.plus(1));
    assert_eq!((shown.state, shown.strikes), (ConnectionPhase::Cooling, 0), "only the limit is the account's");
    let permit = ledger.begin(&a, NOW.plus(2)).expect("free");
    ledger.failure(permit, Some("m"), 403, &terminal(Terminal::Banned), NOW.plus(2), 0.0);
    assert_eq!(state(&ledger, "a", NOW.plus(2)).state, ConnectionPhase::Banned);
}

fn command(kind: CommandKind, name: &str, command: CommandVerb, value: &str, at: EpochMs) -> Command {
    Command { kind, name: name.to_owned(), command, value: value.to_owned(), accepted_time: at }
}

#[test]
fn a_command_acts_once_per_value() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    fail(&ledger, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    snapshot.commands = vec![
        command(CommandKind::Connection, "a", CommandVerb::ClearCooldown, "1", NOW),
        command(CommandKind::Connection, "b", CommandVerb::ClearCooldown, "1", NOW),
    ];
    ledger.configure(&snapshot, NOW);
    assert_eq!((until(&ledger, "a", NOW), state(&ledger, "b", NOW).state), (None, ConnectionPhase::Banned));
    fail(&ledger, "a", "m", 429, &stated(60_000), NOW);
    ledger.configure(&snapshot, NOW);
    assert_eq!(until(&ledger, "a", NOW), Some(60_000), "the same value does nothing");
    assert_eq!(ledger.report(NOW).commands.get("Connection/a/clearCooldown").map(String::as_str), Some("1"));
    snapshot.commands.push(command(CommandKind::Provider, "p", CommandVerb::Reset, "x", NOW));
    ledger.configure(&snapshot, NOW);
    assert_eq!((until(&ledger, "a", NOW), state(&ledger, "b", NOW).state), (None, ConnectionPhase::Active));
}

#[test]
fn clearing_counts_what_it_did() {
    let ledger = ledger(&snapshot(|p| p.traits.per_model_quota = true));
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    fail(&ledger, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    let cleared = ledger.clear_cooldowns(&Selection::All, NOW);
    assert_eq!((cleared.cleared, cleared.unchanged, cleared.skipped_terminal, cleared.lockouts_cleared), (1, 1, 1, 1));
    fail(&ledger, "a", "m", 429, &verdict(), NOW);
    assert_eq!(ledger.clear_lockout("a", "m", NOW).len(), 1);
    assert!(ledger.clear_lockout("a", "m", NOW).is_empty() && ledger.clear_lockout("none", "m", NOW).is_empty());
    let none = ledger.clear_cooldowns(&Selection::Connections(BTreeSet::from(["gone".to_owned()])), NOW);
    assert_eq!((none.cleared, none.unchanged), (0, 0));
}

#[test]
fn a_checkpoint_brings_everything_back() {
    let mut snapshot = snapshot(|p| p.breaker.failure_threshold = 3);
    snapshot.settings.provider_cooldown.enabled = true;
    let before = ledger(&snapshot);
    fail(&before, "a", "m", 429, &Verdict { level: LevelChange::Set(4), ..stated(600_000) }, NOW);
    fail(&before, "a", "m", 404, &Verdict { scope: Scope::Model, ..stated(900_000) }, NOW);
    fail(&before, "b", "m", 401, &strike(0), NOW);
    fail(&before, "c", "m", 403, &terminal(Terminal::Banned), NOW);
    for _ in 0..3 {
        fail(&before, "b", "m", 503, &server_error(), NOW);
    }
    let later = NOW.plus(20_000);
    let json = serde_json::to_vec(&before.export(later)).expect("JSON");
    let checkpoint = omniroute::resilience::Checkpoint::from_json(&json).expect("a checkpoint");
    assert_eq!(checkpoint, before.export(later));
    let after = ledger(&snapshot);
    after.restore(&checkpoint, later);
    let (mut was, mut is) = (before.report(later), after.report(later));
    for shown in was.connections.iter_mut().chain(&mut is.connections) {
        shown.last_status = None; // display only
    }
    assert_eq!(is, was);
    assert_eq!(after.export(later), checkpoint, "and it can be exported again");
    assert!(after.check(&cell(&after, "a"), Some("m"), later).is_err());
    assert!(after.begin(&cell(&after, "a"), NOW.plus(30_000)).expect("half open").is_probe());
}

#[test]
fn a_restored_memory_never_weakens_what_is_known() {
    let snapshot = snapshot(|_| {});
    let old = ledger(&snapshot);
    fail(&old, "a", "m", 429, &stated(10_000), NOW);
    let new = ledger(&snapshot);
    fail(&new, "a", "m", 429, &stated(60_000), NOW);
    new.restore(&old.export(NOW), NOW);
    assert_eq!(until(&new, "a", NOW), Some(60_000));
    fail(&new, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&old, "b", "m", 402, &terminal(Terminal::CreditsExhausted), NOW.plus(5));
    new.restore(&old.export(NOW), NOW);
    assert_eq!(state(&new, "b", NOW).state, ConnectionPhase::Banned);
}

#[test]
fn memory_older_than_a_command_or_of_another_credential_is_ignored() {
    let mut snapshot = snapshot(|_| {});
    let old = ledger(&snapshot);
    fail(&old, "a", "m", 429, &stated(60_000), NOW);
    fail(&old, "a", "m", 404, &Verdict { scope: Scope::Model, ..stated(60_000) }, NOW);
    fail(&old, "b", "m", 403, &terminal(Terminal::Banned), NOW);
    fail(&old, "c", "m", 403, &terminal(Terminal::Banned), NOW);
    let checkpoint = old.export(NOW);
    snapshot.commands = vec![
        command(CommandKind::Connection, "a", CommandVerb::ClearCooldown, "1", NOW.plus(1_000)),
        command(CommandKind::Connection, "b", CommandVerb::Reset, "1", NOW.plus(1_000)),
    ];
    snapshot.connections[2].credential_fingerprint = "another".to_owned();
    let new = Ledger::new();
    new.configure(&snapshot, NOW.plus(2_000));
    new.restore(&checkpoint, NOW.plus(2_000));
    for name in ["a", "b", "c"] {
        let shown = state(&new, name, NOW.plus(2_000));
        assert_eq!((shown.state, shown.lockouts.len()), (ConnectionPhase::Active, 0), "{name}");
    }
    // What happened after the command was accepted is kept.
    fail(&old, "a", "m", 429, &stated(90_000), NOW.plus(70_000));
    new.restore(&old.export(NOW.plus(70_000)), NOW.plus(70_000));
    assert!(until(&new, "a", NOW.plus(70_000)).is_some());
}

#[test]
fn a_newer_checkpoint_is_refused_by_name() {
    let error = omniroute::resilience::Checkpoint::from_json(br#"{"version": 99}"#).expect_err("too new").to_string();
    assert!(error.contains("version 99"), "{error}");
    assert!(omniroute::resilience::Checkpoint::from_json(b"7").is_err());
}

#[test]
fn rules_are_counted() {
    let mut snapshot = snapshot(|_| {});
    let verdict_of_rule = RuleVerdict { reason: None, scope: Scope::Connection, cooldown_ms: None, at_least: false, restate_status: None };
    for name in ["acts", "watches"] {
        snapshot.rules.push(Rule {
            name: name.to_owned(),
            providers: None,
            statuses: vec![429],
            text: None,
            not_text: None,
            code: None,
            error_type: None,
            header: None,
            transport: None,
            shadow: name == "watches",
            catch_all: false,
            verdict: verdict_of_rule,
        });
    }
    let ledger = ledger(&snapshot);
    let before = ledger.version(NOW);
    fail(&ledger, "a", "m", 429, &Verdict { rule: Some("acts".into()), shadow_rules: vec!["watches".into()], ..verdict() }, NOW);
    ledger.rule_matched("acts", false, NOW.plus(5));
    ledger.rule_matched("gone", false, NOW);
    let rules = ledger.report(NOW).rules;
    let shown: Vec<_> = rules.iter().map(|r| (r.name.as_str(), r.matches, r.shadow_matches, r.last_match_time)).collect();
    assert_eq!(shown, [("acts", 2, 0, Some(NOW.plus(5))), ("watches", 0, 1, Some(NOW))]);
    assert!(ledger.version(NOW) > before);
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
fn the_lane_belongs_to_those_who_opted_in() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    assert!(cell(&ledger, "a").claude().is_none());
    snapshot.connections[0].claude.low_priority_mode = true;
    ledger.configure(&snapshot, NOW);
    let wall = [
        ("anthropic-ratelimit-unified-status", "rejected"),
        ("anthropic-ratelimit-unified-slow-offer", "treatment"),
        ("anthropic-ratelimit-unified-reset", "1800003600"),
    ];
    let a = cell(&ledger, "a");
    let context = LaneContext { now: NOW, jitter: 0.0, ceiling_ms: None };
    let response = WallResponse { status: 429, headers: &wall, sent_slow: false };
    let (mut lane, options) = a.claude().expect("opted in");
    lane.on_response(&options, &response, &mut LaneWait::default(), &context);
    drop(lane);
    ledger.configure(&snapshot, NOW);
    assert!(a.claude().is_some_and(|(lane, _)| lane.is_active(NOW)), "a new snapshot leaves it open");
    snapshot.connections[0].credential_fingerprint = "another account".to_owned();
    ledger.configure(&snapshot, NOW);
    assert!(a.claude().is_some_and(|(lane, _)| !lane.is_active(NOW)));
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
