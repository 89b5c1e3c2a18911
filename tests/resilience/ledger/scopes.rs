//! Where a verdict lands: model, family, connection, egress group, provider; and how locks grow.

use omniroute::classify::{LevelChange, QuotaReset, Reason, Scope, Strike, Terminal, Verdict, WaitSource};
use omniroute::resilience::{ConnectionPhase, Ledger};
use omniroute::snapshot::QuotaFamily;

use super::{locked, until};
use crate::support::{NOW, cell, fail, ledger, server_error, snapshot, state, stated, succeed, terminal, verdict};

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
    let plain = crate::support::ledger(&snapshot(|_| {}));
    fail(&plain, "a", "m", 400, &declared(Scope::Model), NOW);
    assert_eq!((until(&plain, "a", NOW), locked(&plain, "a", NOW)), (None, vec![("m".to_owned(), 3_000)]));
    let wide = crate::support::ledger(&snapshot(|_| {}));
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
    let plain = crate::support::ledger(&snapshot(|_| {}));
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
        let ledger = crate::support::ledger(&families);
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
