//! Random histories of a whole ledger.

use std::collections::BTreeMap;

use omniroute::api::time::EpochMs;
use omniroute::classify::{AuthClass, History, LevelChange, Reason, Scope, Strike, Terminal, Verdict, WaitSource};
use omniroute::resilience::lockout::MAX_LOCKS;
use omniroute::resilience::{BreakerPhase, Checkpoint, ConnectionPhase, ConnectionState, Ledger, Permit, Report, Selection, SkipReason};
use omniroute::snapshot::{Command, CommandKind, CommandVerb, QuotaFamily, Snapshot};

use crate::support::{NOW, Random, cell, connection, provider, server_error, strike, terminal, verdict};

const MODELS: [&str; 4] = ["alpha", "beta", "alpha-spark", "gamma"];
const STATUSES: [u16; 11] = [400, 401, 402, 403, 404, 408, 429, 429, 500, 502, 503];

/// Three providers that declare different things, eight connections.
fn world(random: &mut Random) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (name, class) in [("keys", AuthClass::ApiKey), ("subscriptions", AuthClass::OAuth), ("models", AuthClass::Local)] {
        let mut p = provider(name, class);
        p.traits.per_model_quota = name == "models";
        p.traits.egress_bucketed = name == "subscriptions";
        p.traits.shared_wallet = random.chance(30);
        if name == "models" {
            p.quota_families = vec![QuotaFamily { name: "alphas".to_owned(), models: vec!["alpha*".to_owned()] }];
        }
        for n in 0..if name == "keys" { 2 } else { 3 } {
            let mut c = connection(&format!("{name}-{n}"), &p);
            c.disable_cooling = name == "models" && n == 2;
            c.egress_group = Some(format!("group {}", n % 2));
            snapshot.connections.push(c);
        }
        snapshot.providers.push(p);
    }
    snapshot.settings.provider_cooldown.enabled = random.chance(30);
    snapshot.settings.model_lockout.enabled = random.chance(30);
    if random.chance(20) {
        snapshot.settings.rotation.on_429.threshold = 3;
    }
    snapshot
}

/// A verdict as a classifier could have made it from this history.
fn any_verdict(random: &mut Random, history: &History) -> Verdict {
    let level = history.backoff_level;
    let base = match random.below(12) {
        0 => return Verdict { scope: Scope::Request, ..verdict() },
        1 => return terminal(*random.pick(&[Terminal::Banned, Terminal::Expired, Terminal::CreditsExhausted])),
        2 => return strike(history.auth_strikes),
        3 => return Verdict { strike: Some(Strike::RequestRejected), scope: Scope::Model, cooldown_ms: 5_000, ..verdict() },
        4..=6 => server_error(),
        7 => Verdict { reason: Reason::QuotaExhausted, ..verdict() },
        _ => verdict(),
    };
    let scope = *random.pick(&[Scope::Connection, Scope::Connection, Scope::Model, Scope::Provider]);
    if random.chance(40) {
        let source = *random.pick(&[WaitSource::Header, WaitSource::RetryInfo, WaitSource::Body, WaitSource::Rule]);
        let cooldown_ms = *random.pick(&[0, 1_000, 30_000, 3_600_000, 200_000_000]);
        return Verdict {
            scope,
            scope_declared: random.chance(30),
            cooldown_ms,
            wait_source: (cooldown_ms > 0).then_some(source),
            level: LevelChange::Set(0),
            ..base
        };
    }
    Verdict { scope, cooldown_ms: 3_000 << level.min(8), level: LevelChange::Set(level + 1), ..base }
}

/// Reports without what is no timer: requests in flight, and the status of the last failure.
fn shown(report: &Report) -> (Report, BTreeMap<String, ConnectionState>) {
    let mut report = report.clone();
    for connection in &mut report.connections {
        connection.in_flight = 0;
    }
    let by_name = report.connections.iter().map(|c| (c.name.clone(), c.clone())).collect();
    (report, by_name)
}

/// What the last operation may have weakened.
#[derive(Default)]
struct Excused {
    /// A success on this connection (and its provider), or an operator or credential concerning everything.
    connection: Option<String>,
    everything: bool,
}

/// Nothing but success, operators and changed credentials weakens a deadline or a terminal state.
fn only_grows(before: &ConnectionState, after: &ConnectionState, now: EpochMs) {
    let name = &before.name;
    if before.state >= ConnectionPhase::CreditsExhausted {
        assert_eq!(after.state, before.state, "{name}: a terminal state is final");
    }
    if let Some(until) = before.until.filter(|t| *t > now) {
        let terminal = after.state >= ConnectionPhase::CreditsExhausted;
        assert!(terminal || after.until >= Some(until), "{name}: the end moved back from {until:?} to {:?}", after.until);
    }
    for lock in before.lockouts.iter().filter(|l| l.until > Some(now)) {
        let held = after.lockouts.iter().find(|l| (&l.model, l.exact) == (&lock.model, lock.exact) && l.until >= lock.until);
        assert!(held.is_some(), "{name}: the lock of {} was weakened", lock.model);
    }
    assert!(after.strikes >= before.strikes, "{name}: strikes end by success only");
}

/// What requests see is what the report shows.
fn check_agrees(ledger: &Ledger, report: &Report, now: EpochMs) {
    for shown in &report.connections {
        let cell = cell(ledger, &shown.name);
        let provider = report.providers.iter().find(|p| p.name == shown.provider).expect("its provider");
        if provider.breaker.state == BreakerPhase::HalfOpen {
            continue; // depends on probes in flight
        }
        for model in MODELS {
            let held = ledger.check(&cell, Some(model), now);
            let provider_rests = provider.breaker.until.is_some() || provider.window.is_some();
            let rests = shown.state != ConnectionPhase::Active;
            // A lock shows its key: the model, or the family `alphas`.
            let key = |l: &str| l == model || (l == "alphas" && model.starts_with("alpha"));
            let locked = shown.lockouts.iter().any(|l| key(&l.model));
            assert_eq!(held.is_err(), provider_rests || rests || locked, "{model} on {shown:?} of {provider:?}: {held:?}");
            if let Err(exclusion) = held {
                assert!(exclusion.until.is_none_or(|t| t > now), "a deadline lies ahead");
                assert_eq!(exclusion.until.is_none(), exclusion.reason == SkipReason::Terminal, "{exclusion:?}");
            }
        }
    }
}

/// A fresh ledger that is given the checkpoint shows the same.
fn restores(ledger: &Ledger, snapshot: &Snapshot, report: &Report, now: EpochMs) {
    let json = serde_json::to_vec(&ledger.export(now)).expect("JSON");
    let checkpoint = Checkpoint::from_json(&json).expect("its own checkpoint");
    let fresh = Ledger::new();
    fresh.configure(snapshot, now);
    fresh.restore(&checkpoint, now);
    let strip = |report: &Report| {
        let mut report = shown(report).0;
        for connection in &mut report.connections {
            connection.last_status = None;
            connection.lockouts_omitted = 0;
            if connection.wait_source.as_deref() == Some("scaled") {
                connection.reason = None; // the window gate shows the last failure, which is no state
            }
        }
        report
    };
    assert_eq!(strip(&fresh.report(now)), strip(report));
}

/// One history; answers what it reached.
fn history(seed: u64, steps: usize) -> [usize; 5] {
    let mut random = Random(seed);
    let mut snapshot = world(&mut random);
    let ledger = Ledger::new();
    ledger.configure(&snapshot, NOW);
    let names: Vec<String> = snapshot.connections.iter().map(|c| c.name.clone()).collect();
    let mut now = NOW;
    let mut permits: Vec<(Permit, &str)> = Vec::new();
    let (mut last, mut last_version) = (shown(&ledger.report(now)), ledger.version(now));
    let mut reached = [0; 5];
    for step in 0..steps {
        now = now.plus(*random.pick(&[0, 0, 0, 1, 100, 1_000, 5_000, 30_000, 400_000]));
        let mut excused = Excused::default();
        match random.below(100) {
            0..=39 => {
                let name = random.pick(&names);
                let model = *random.pick(&MODELS);
                let allowed = ledger.check(&cell(&ledger, name), Some(model), now).is_ok() || random.chance(10);
                if allowed
                    && permits.len() < 40
                    && let Ok(permit) = ledger.begin(&cell(&ledger, name), now)
                {
                    permits.push((permit, model));
                }
            }
            40..=79 if !permits.is_empty() => {
                let (permit, model) = permits.swap_remove(random.below(permits.len() as u64) as usize);
                let verdict = any_verdict(&mut random, &permit.history(Some(model), now));
                let status = *random.pick(&STATUSES);
                let of = permit.connection().provider().name().to_string();
                ledger.failure(permit, Some(model), status, &verdict, now, random.below(2_001) as f64 / 1_000.0 - 1.0);
                for (before, after) in last.0.providers.iter().zip(ledger.report(now).providers) {
                    let added = after.breaker.failures.saturating_sub(before.breaker.failures);
                    let counts = before.name == of && verdict.counts_for_breaker && !verdict.skip_breaker;
                    assert!(added <= u32::from(counts), "a failure is counted at most once, and only where it counts");
                }
            }
            80..=91 if !permits.is_empty() => {
                let (permit, model) = permits.swap_remove(random.below(permits.len() as u64) as usize);
                excused.connection = Some(permit.connection().name().to_string());
                ledger.success(permit, Some(model), now);
            }
            92..=94 if !permits.is_empty() => drop(permits.swap_remove(random.below(permits.len() as u64) as usize)),
            95 => {
                let name = random.pick(&names).clone();
                excused.everything = true;
                let selection = if random.chance(50) { Selection::Connections([name].into()) } else { Selection::All };
                ledger.clear_cooldowns(&selection, now);
            }
            96 => {
                excused.everything = true;
                ledger.reset(&Selection::Provider("keys".to_owned()), now);
            }
            97 => {
                excused.everything = true;
                let n = random.below(names.len() as u64) as usize;
                snapshot.connections[n].credential_fingerprint = format!("changed at {step}");
                ledger.configure(&snapshot, now);
            }
            98 => {
                excused.everything = true;
                snapshot.commands = vec![Command {
                    kind: CommandKind::Connection,
                    name: random.pick(&names).clone(),
                    command: *random.pick(&[CommandVerb::Reset, CommandVerb::ClearCooldown]),
                    value: step.to_string(),
                    accepted_time: now,
                }];
                ledger.configure(&snapshot, now);
            }
            _ => {
                ledger.configure(&snapshot, now);
            }
        }
        let version = ledger.version(now);
        let report = ledger.report(now);
        let after = shown(&report);
        for (name, before) in &last.1 {
            let connection = &after.1[name];
            assert!(connection.lockouts.len() <= MAX_LOCKS);
            if !excused.everything && excused.connection.as_ref() != Some(name) {
                only_grows(before, connection, now);
            }
            if name == "models-2" {
                assert!(connection.until.is_none() && connection.lockouts.is_empty(), "nothing cools where cooling is off");
            }
        }
        if version == last_version {
            assert_eq!(after.0, last.0, "seed {seed} step {step}: a change without a version");
        }
        assert!(version >= last_version);
        if step % 8 == 0 {
            check_agrees(&ledger, &report, now);
        }
        if step % 100 == 0 {
            restores(&ledger, &snapshot, &report, now);
        }
        reached[0] += usize::from(report.providers.iter().any(|p| p.breaker.state == BreakerPhase::Open));
        reached[1] += usize::from(report.providers.iter().any(|p| p.breaker.state == BreakerPhase::HalfOpen));
        reached[2] += usize::from(report.connections.iter().any(|c| c.state == ConnectionPhase::Cooling));
        reached[3] += usize::from(report.connections.iter().any(|c| !c.lockouts.is_empty()));
        reached[4] += usize::from(report.connections.iter().any(|c| c.state == ConnectionPhase::Expired));
        (last, last_version) = (after, version);
    }
    // Lost probes, and whatever else still runs, wedge nothing: in the end time alone frees all that is not terminal.
    std::mem::forget(permits);
    let end = now.plus(31 * 86_400_000);
    for name in &names {
        let cell = cell(&ledger, name);
        match ledger.check(&cell, Some("alpha"), end) {
            Ok(()) => drop(ledger.begin(&cell, end).expect("free at last")),
            Err(exclusion) => assert_eq!(exclusion.reason, SkipReason::Terminal, "{name}"),
        }
    }
    reached
}

#[test]
fn no_history_breaks_the_invariants() {
    let mut total = [0; 5];
    for seed in 1..=40 {
        for (sum, reached) in total.iter_mut().zip(history(seed, 3_000)) {
            *sum += reached;
        }
    }
    assert!(total.iter().all(|n| *n > 1_000), "the histories reach every state: {total:?}");
}

#[test]
fn every_run_of_concurrent_failures_raises_the_level_once() {
    let mut random = Random(7);
    for _ in 0..2_000 {
        let snapshot = crate::support::snapshot(|_| {});
        let ledger = crate::support::ledger(&snapshot);
        let a = cell(&ledger, "a");
        let mut now = NOW;
        for run in 0..4u32 {
            let n = 1 + random.below(8);
            let permits: Vec<_> = (0..n).map(|_| ledger.begin(&a, now).expect("free")).collect();
            for permit in permits {
                now = now.plus(random.below(5_000));
                let level = permit.history(None, now).backoff_level;
                assert_eq!(level, run);
                ledger.failure(permit, None, 429, &Verdict { level: LevelChange::Set(level + 1), ..verdict() }, now, 0.0);
            }
            assert_eq!(ledger.history(&a, None, now).backoff_level, run + 1);
            now = now.plus(8_000);
        }
    }
}
