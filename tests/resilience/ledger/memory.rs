//! Snapshots, credentials, commands, checkpoints, counters.

use std::collections::BTreeSet;

use omniroute::api::time::EpochMs;
use omniroute::classify::{LevelChange, Scope, Terminal, Verdict};
use omniroute::resilience::claude_lane::{LaneContext, LaneWait, WallResponse};
use omniroute::resilience::{ConnectionPhase, Ledger, Selection};
use omniroute::snapshot::{Command, CommandKind, CommandVerb, Rule};

use super::until;
use crate::rules::rule;
use crate::support::{NOW, cell, fail, ledger, server_error, snapshot, state, stated, strike, terminal, verdict};

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

#[test]
fn a_request_of_the_configuration_before_a_rotation_does_not_blame_the_new_credential() {
    let mut snapshot = snapshot(|_| {});
    let ledger = ledger(&snapshot);
    let a = cell(&ledger, "a");
    let loaded = a.credential();
    snapshot.connections[0].credential_fingerprint = "new".to_owned();
    ledger.configure(&snapshot, NOW);
    // It begins after the rotation, on the configuration before it.
    let permit = ledger.begin(&a, NOW).expect("free").carries(loaded);
    ledger.failure(permit, Some("m"), 401, &terminal(Terminal::Banned), NOW, 0.0);
    assert_eq!(state(&ledger, "a", NOW).state, ConnectionPhase::Active);
    let permit = ledger.begin(&a, NOW).expect("free").carries(a.credential());
    ledger.failure(permit, Some("m"), 401, &terminal(Terminal::Banned), NOW, 0.0);
    assert_eq!(state(&ledger, "a", NOW).state, ConnectionPhase::Banned);
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
    for name in ["acts", "watches"] {
        snapshot.rules.push(Rule { statuses: vec![429], shadow: name == "watches", ..rule(name) });
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
