//! Cases about attempts, waits and answers.

use omniroute::classify::{Failover, Reason, Scope, Terminal};
use omniroute::routing::{
    Diagnostics, Excluded, Exclusion, ExclusionReason, FailureKind, FailureRecord, Patience, Recovery, mixed_status, redact, summary,
};
use omniroute::snapshot::{CooldownWait, Snapshot, Strategy};

use super::Case;
use crate::support::*;

pub fn find(id: &str) -> Option<fn(&Case)> {
    Some(match id {
        "RC-010" => two_connections,
        "RC-014" | "RC-033" => nothing_executable,
        "RC-045" | "RC-047" => all_excluded_by_timers,
        "RC-048" => excluded_in_words,
        "RC-055" | "RC-057" | "RC-058" | "RC-070" | "RC-149" | "RC-158" | "RC-161" | "RC-165" | "RC-166" => failover,
        "RC-056" => retry_of_the_only_target,
        "RC-060" => all_inactive,
        "RC-153" => malformed,
        "RC-155" | "RC-156" => context_overflow,
        "RC-164" => combo_timeout,
        "RC-186" | "RC-188" | "RC-189" | "RC-190" | "RC-195" | "RC-196" | "RC-197" => exhaustion,
        "RC-200" | "RC-201" | "RC-204" | "RC-206" | "RC-207" | "RC-209" => protected,
        "RC-211" => protected_nested,
        "RC-212" => balance,
        "RC-215" | "RC-217" => mixed,
        "RC-220" => long_summary,
        "RC-221" => redacted,
        "RC-227" => no_wait_no_hint,
        "RC-228" | "RC-230" | "RC-231" | "RC-232" | "RC-233" | "RC-234" | "RC-236" | "RC-238" | "RC-239" | "RC-241" => waits,
        "RC-242" => zero_attempts,
        "RC-247" => emergency,
        "RC-272" => saturated_pin,
        "RC-320" => end_to_end,
        _ => return None,
    })
}

fn two_connections(case: &Case) {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["openai/gpt-4o-mini"])]);
    s.connections = vec![connection("A", "openai"), connection("B", "openai")];
    let mut bench = Bench::new(s).on("A", &[status(503)]);
    assert_eq!(bench.send("c").calls, case.expected("calls"));
}

fn nothing_executable(case: &Case) {
    let mut s = snapshot(vec![combo("c", Strategy::RoundRobin, &["p/m"])]);
    s.connections.clear();
    let outcome = Bench::new(s).send("c");
    assert_eq!((outcome.status(), outcome.code()), (404, "model_not_found"));
    let answer = outcome.answer.unwrap();
    assert_eq!(answer.terminal_reason, "no_executable_targets");
    if let Some(message) = case.expect["message"].as_str() {
        assert!(answer.message.contains(message), "{}", answer.message);
    }
    // Without any target the name means nothing.
    let empty = Bench::new(snapshot(vec![combo("c", Strategy::RoundRobin, &[])])).send("c");
    assert_eq!((empty.status(), empty.code()), (404, "model_not_found"));
}

fn timer(reason: ExclusionReason, cause: Reason, ms: Option<u64>) -> Exclusion {
    Exclusion { reason, until: ms.map(|ms| START.plus(ms)), cause: Some(cause), stated: true }
}

fn all_excluded_by_timers(case: &Case) {
    let names = ["lock/m", "circuit/m", "window/m", "gone/m"];
    let used = if case.id == "RC-047" { &names[..1] } else { &names[..] };
    for strategy in [Strategy::Weighted, Strategy::Priority, Strategy::RoundRobin, Strategy::P2C] {
        let mut bench = Bench::new(snapshot(vec![combo("c", strategy, used)]));
        let lock = if case.id == "RC-047" { None } else { Some(57_400) };
        bench.world.rest(bench.connection("lock"), timer(ExclusionReason::ModelLockout, Reason::ServerError, lock));
        if case.id == "RC-045" {
            bench.world.rest(bench.connection("circuit"), timer(ExclusionReason::CircuitOpen, Reason::ServerError, Some(12_000)));
            bench.world.rest(bench.connection("window"), timer(ExclusionReason::ProviderCooldown, Reason::ServerError, None));
            bench.world.rest(bench.connection("gone"), Exclusion::of(ExclusionReason::Terminal));
        }
        let outcome = bench.send("c");
        assert_eq!(u64::from(outcome.status()), case.expect["status"].as_u64().unwrap());
        let answer = outcome.answer.unwrap();
        let expected = case.expect["Retry-After"].as_str().map(|s| s.parse::<u64>().unwrap());
        assert_eq!(answer.retry_after_seconds, expected);
        assert_eq!(answer.code, "all_targets_cooling_down");
        if case.id == "RC-045" {
            assert_eq!(answer.recovery, Recovery::Wait);
            assert_eq!((answer.diagnostics.pool_size, answer.diagnostics.excluded.len()), (4, 4));
        }
    }
}

fn excluded_in_words(case: &Case) {
    let entry = |provider: &str, model: &str, reason, ms: Option<u64>| Excluded {
        target: format!("{provider}/{model}"),
        provider: provider.into(),
        model: model.into(),
        connection: None,
        reason,
        until: ms.map(|ms| START.plus(ms)),
        detail: None,
        exclusion: Exclusion::of(reason),
    };
    let excluded =
        vec![entry("openai", "a", ExclusionReason::ModelLockout, Some(57_400)), entry("claude", "b", ExclusionReason::CircuitOpen, None)];
    let diagnostics = Diagnostics { excluded, ..Diagnostics::default() };
    assert_eq!(diagnostics.excluded_header(START), case.expect["text"].as_str().unwrap());
}

fn failover(case: &Case) {
    let strategy = match case.id.as_str() {
        "RC-070" => Strategy::FillFirst,
        "RC-055" | "RC-057" | "RC-058" => Strategy::RoundRobin,
        _ => Strategy::Priority,
    };
    let mut bench = Bench::new(snapshot(vec![combo("c", strategy, &["a/m", "b/m", "c/m"])]));
    let quality = || Reply { quality: true, ..fails(200, verdict(Reason::ServerError)) };
    bench = match case.id.as_str() {
        "RC-055" => bench.on("a", &[status(400)]),
        "RC-057" | "RC-070" => bench.on("a", &[status(503)]),
        "RC-058" | "RC-165" => bench.on("a", &[status(500)]),
        "RC-149" => bench.on("a", &[quality()]).on("b", &[quality()]),
        "RC-158" => {
            bench.world.rest(0, Exclusion::of(ExclusionReason::Terminal));
            bench
        }
        "RC-161" => {
            bench.world.rest(0, Exclusion::of(ExclusionReason::CircuitOpen));
            bench
        }
        _ => bench,
    };
    let outcome = bench.send("c");
    assert_eq!(outcome.status(), 200, "{}", case.id);
    let expected = match case.id.as_str() {
        "RC-070" | "RC-058" => vec!["a".to_owned(), "b".to_owned()],
        "RC-161" => vec!["b".to_owned()],
        _ => case.expected("calls"),
    };
    assert_eq!(outcome.calls, expected, "{}", case.id);
}

fn retry_of_the_only_target(case: &Case) {
    for per_target in [0, 2] {
        let mut c = combo("c", Strategy::RoundRobin, &["a/m"]);
        c.attempts.per_target = per_target;
        let mut bench = Bench::new(snapshot(vec![c])).on("a", &[status(503), ok()]);
        let outcome = bench.send("c");
        assert_eq!(outcome.calls, case.expected("calls"));
        assert_eq!((outcome.status(), outcome.delays), (200, vec![0, 2_000]));
    }
}

fn all_inactive(case: &Case) {
    let nested = combo("nested", Strategy::Priority, &["a/m", "b/m"]);
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::RoundRobin, &["nested"]), nested]));
    bench.world.rest(0, Exclusion::of(ExclusionReason::Terminal));
    bench.world.rest(1, Exclusion::of(ExclusionReason::Terminal));
    for name in ["c", "a/m"] {
        let outcome = bench.send(name);
        assert_eq!(
            (u64::from(outcome.status()), outcome.code()),
            (case.expect["status"].as_u64().unwrap(), case.expect["code"].as_str().unwrap())
        );
        let answer = outcome.answer.unwrap();
        assert_eq!((answer.retry_after_seconds, answer.no_retry), (None, true));
    }
}

fn malformed(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])])).on("a", &[stop()]);
    let outcome = bench.send("c");
    assert_eq!((u64::from(outcome.status()), &outcome.calls), (case.expect["status"].as_u64().unwrap(), &case.expected("calls")));
    assert!(outcome.answer.unwrap().pass_upstream);
}

fn context_overflow(case: &Case) {
    let second = if case.id == "RC-155" { "b/m" } else { "b/other" };
    let mut v = verdict(Reason::ModelCapacity);
    (v.failover, v.scope, v.cooldown_ms, v.wait_source) = (Failover::OtherModel, Scope::Request, 0, None);
    v.decided_by = "codes.context-overflow".into();
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", second])])).on("a", &[fails(400, v)]);
    let outcome = bench.send("c");
    let stopped = case.expect["stop"] == true;
    assert_eq!(outcome.calls.len(), if stopped { 1 } else { 2 });
    assert_eq!(outcome.status(), if stopped { 400 } else { 200 });
}

fn combo_timeout(case: &Case) {
    let mut c = combo("c", Strategy::Priority, &["a/m", "b/m", "c/m"]);
    c.total_timeout_ms = case.given["comboTimeoutMs"].as_u64().unwrap();
    let slow = Reply { takes_ms: 5, ..status(500) };
    let outcome = Bench::new(snapshot(vec![c])).on("a", &[slow]).send("c");
    assert_eq!((u64::from(outcome.status()), outcome.code()), (504, case.expect["code"].as_str().unwrap()));
    assert_eq!(outcome.calls, case.expected("calls"));
    let message = outcome.answer.unwrap().message;
    assert!(message.contains("1ms") && message.contains("a/m (500)"), "{message}");
}

/// Two models of one account, then another vendor: is the second model passed over?
fn exhaustion(case: &Case) {
    let second_model_is_tried = |statuses: &[u64], scope, per_model_quota: bool| {
        for s in statuses {
            let mut snapshot = snapshot(vec![combo("c", Strategy::Priority, &["p/one", "p/two", "other/m"])]);
            for p in &mut snapshot.providers {
                p.traits.per_model_quota = per_model_quota;
            }
            let mut v = verdict(Reason::ServerError);
            v.scope = scope;
            let mut bench = Bench::new(snapshot).on("p/one", &[fails(u16::try_from(*s).unwrap(), v)]);
            // Only the marks of the request count here, not the ledger.
            bench.world.forget = true;
            let labels = bench.send("c").labels;
            if labels != ["p/one", "p/two"] {
                assert_eq!(labels, ["p/one", "other/m"], "{} {s}", case.id);
                return false;
            }
        }
        true
    };
    match case.id.as_str() {
        "RC-188" => assert!(!second_model_is_tried(&[502], Scope::Connection, false)),
        "RC-189" => assert!(!second_model_is_tried(&[503], Scope::Provider, false)),
        "RC-190" | "RC-195" => assert!(second_model_is_tried(&[502, 503], Scope::Request, false)),
        "RC-196" => assert!(second_model_is_tried(&[500], Scope::Connection, true)),
        "RC-197" => {
            for status in [408, 502, 503, 504, 524] {
                assert!(!second_model_is_tried(&[status], Scope::Connection, true));
            }
        }
        _ => {
            // Used-up credit: the connection is out, a sibling account of the provider serves.
            let mut s = snapshot(vec![combo("c", Strategy::Priority, &["p/one"])]);
            s.connections.push(connection("p-2", "p"));
            let mut v = verdict(Reason::CreditsExhausted);
            v.terminal = Some(Terminal::CreditsExhausted);
            assert_eq!(Bench::new(s).on("p", &[fails(429, v)]).send("c").calls, ["p", "p-2"]);
        }
    }
}

fn protected_snapshot(per_target: u32) -> Snapshot {
    let mut c = combo("c", Strategy::Priority, &["primary/m", "backup/m"]);
    c.targets[0].fallback_only_on_quota_exhaustion = true;
    c.attempts.per_target = per_target;
    snapshot(vec![c])
}

fn protected(case: &Case) {
    let primary = |bench: &Bench| bench.connection("primary");
    let quota_cutoff = Exclusion::of(ExclusionReason::QuotaCutoff);
    let outcome = match case.id.as_str() {
        "RC-200" => Bench::new(protected_snapshot(2)).on("primary", &[status(503), quota()]).send("c"),
        "RC-201" => Bench::new(protected_snapshot(2)).on("primary", &[quota(), quota()]).send("c"),
        "RC-204" => {
            let mut bench = Bench::new(protected_snapshot(1));
            bench.world.rest(primary(&bench), quota_cutoff);
            bench.send("c")
        }
        "RC-206" => {
            let quality = Reply { quality: true, ..fails(200, verdict(Reason::ServerError)) };
            Bench::new(protected_snapshot(1)).on("primary", &[quality]).send("c")
        }
        "RC-207" => Bench::new(protected_snapshot(1)).on("primary", &[status(502)]).send("c"),
        _ => {
            let mut bench = Bench::new(protected_snapshot(1));
            bench.world.rest(primary(&bench), Exclusion::of(ExclusionReason::ProviderCooldown));
            bench.send("c")
        }
    };
    if let Some(status) = case.expect["status"].as_u64() {
        assert_eq!(u64::from(outcome.status()), status, "{}", case.id);
        assert_eq!(outcome.answer.as_ref().unwrap().terminal_reason, "protected_priority_stop");
    }
    if !case.expect["calls"].is_null() {
        assert_eq!(outcome.calls, case.expected("calls"), "{}", case.id);
    }
    if let Some(code) = case.expect["code"].as_str() {
        assert_eq!(outcome.code(), code);
        assert!(!outcome.answer.as_ref().unwrap().pass_upstream, "sanitized");
    }
    if case.id == "RC-207" {
        assert!(outcome.answer.unwrap().pass_upstream, "headers and body of the upstream are kept");
    }
}

fn protected_nested(_: &Case) {
    let mut c = combo("c", Strategy::Priority, &["child", "backup/m"]);
    c.targets[0].fallback_only_on_quota_exhaustion = true;
    let child = combo("child", Strategy::Priority, &["one/m", "two/m"]);
    let quality = Reply { quality: true, ..fails(200, verdict(Reason::ServerError)) };
    let mut bench = Bench::new(snapshot(vec![c.clone(), child.clone()])).on("one", &[quality]).on("two", &[quota()]);
    let outcome = bench.send("c");
    assert!(outcome.status() >= 400 && outcome.calls == ["one", "two"], "{outcome:?}");
    // Quota alone lets the parent go on.
    let mut bench = Bench::new(snapshot(vec![c, child])).on("one", &[quota()]).on("two", &[quota()]);
    assert_eq!(bench.send("c").calls, ["one", "two", "backup"]);
}

fn balance(case: &Case) {
    let mut v = verdict(Reason::CreditsExhausted);
    v.terminal = Some(Terminal::CreditsExhausted);
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::FillFirst, &["primary/m", "backup/m"])])).on("primary", &[fails(403, v)]);
    assert_eq!(bench.send("c").calls, case.expected("calls"));
}

fn failure(kind: FailureKind, status: u16) -> FailureRecord {
    FailureRecord {
        label: "p/m".into(),
        provider: "p".into(),
        connection: "c".into(),
        kind,
        status,
        reason: Reason::ServerError,
        message: String::new(),
        quota: false,
        passable: false,
        stop: false,
    }
}

fn mixed(case: &Case) {
    let entries = if case.id == "RC-215" { vec![failure(FailureKind::Quality, 502), failure(FailureKind::Auth, 401)] } else { vec![] };
    let otherwise = u16::try_from(case.given["fallback"].as_u64().unwrap_or(500)).unwrap();
    assert_eq!(u64::from(mixed_status(&entries, otherwise)), case.expect["status"].as_u64().unwrap());
    use FailureKind::{Model, Provider, RateLimit, Timeout};
    for (kinds, status) in [
        (vec![(Model, 400), (Model, 404)], 404),
        (vec![(RateLimit, 429), (RateLimit, 429)], 429),
        (vec![(RateLimit, 429), (Provider, 500)], 502),
        (vec![(RateLimit, 429), (Timeout, 408), (Provider, 500)], 504),
    ] {
        let entries: Vec<FailureRecord> = kinds.iter().map(|(k, s)| failure(*k, *s)).collect();
        assert_eq!(mixed_status(&entries, 503), status, "{kinds:?}");
    }
}

fn long_summary(case: &Case) {
    let entries = vec![failure(FailureKind::Provider, 500); 6];
    let text = summary(&entries);
    assert_eq!(text.matches("HTTP 500").count(), usize::try_from(case.expect["shown"].as_u64().unwrap()).unwrap());
    assert!(text.ends_with("(+1 more)"), "{text}");
    assert!(text.starts_with("p/m: provider — server_error (HTTP 500)"), "{text}");
}

fn redacted(_: &Case) {
    assert_eq!(redact("no account 0f8fad5b-d9cb-469f-a165-70867728950e here"), "no account conn:0f8fad5b here");
    assert_eq!(redact("key sk-proj-abcdefghij is wrong"), "key [redacted] is wrong");
    assert_eq!(redact("claude-sonnet-4-5-20250929 is busy"), "claude-sonnet-4-5-20250929 is busy");
    let long = redact(&"x".repeat(500));
    assert!(long.chars().count() <= 161 && long.ends_with('…'));
}

fn no_wait_no_hint(_: &Case) {
    // Both failures concern the request only: nothing rests, a retry may help at once.
    let once = |code| {
        let mut v = verdict(Reason::ServerError);
        (v.scope, v.cooldown_ms, v.wait_source) = (Scope::Request, 0, None);
        fails(code, v)
    };
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])])).on("a", &[once(500)]).on("b", &[once(502)]);
    let answer = bench.send("c").answer.unwrap();
    assert_eq!((answer.terminal_reason, answer.retry_after_seconds), ("all_models_failed", None));
}

fn patience(max_wait_ms: u64, max_attempts: u32, budget_ms: u64, enabled: bool) -> Patience {
    Patience::new(&CooldownWait { enabled, max_wait_ms, max_attempts, budget_ms }, true)
}

fn waits(case: &Case) {
    let wait = case.expect["wait"] == true;
    match case.id.as_str() {
        "RC-228" => assert_eq!(patience(5_000, 5, 8_000, true).fits(3_000), wait),
        "RC-231" => assert_eq!(patience(5_000, 5, 8_000, true).fits(5_000), wait),
        "RC-232" => assert_eq!(patience(5_000, 5, 8_000, true).fits(5_001), wait),
        "RC-233" => {
            let mut p = patience(5_000, 2, 8_000, true);
            p.spend(10);
            assert!(p.fits(10));
            p.spend(10);
            assert_eq!(p.fits(10), wait);
        }
        "RC-234" => {
            let mut p = patience(5_000, 5, 5_999, true);
            p.spend(3_000);
            assert_eq!(p.fits(3_000), wait);
            assert!(p.fits(2_999));
        }
        "RC-241" => assert_eq!(patience(5_000, 5, 500, true).decide(500).is_some(), wait),
        "RC-239" => assert_eq!(patience(5_000, 5, 8_000, true).decide(0).is_some(), wait),
        "RC-230" | "RC-236" | "RC-238" => {
            let mut s = snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])]);
            s.combos[0].cooldown_wait = true;
            s.settings.combo_cooldown_wait = CooldownWait { enabled: case.id != "RC-238", ..CooldownWait::default() };
            let cause = if case.id == "RC-230" { Reason::AuthError } else { Reason::RateLimitExceeded };
            let mut bench = Bench::new(s);
            bench.world.rest(0, timer(ExclusionReason::ModelLockout, cause, Some(3_000)));
            bench.world.rest(1, timer(ExclusionReason::ModelLockout, cause, Some(2_000)));
            let outcome = bench.send("c");
            let expected: Vec<u64> = case.expect["waitMs"].as_u64().into_iter().collect();
            assert_eq!(outcome.waits, expected, "{}", case.id);
            assert_eq!(outcome.calls.len(), expected.len());
        }
        other => panic!("{other}"),
    }
}

fn zero_attempts(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])]));
    for connection in 0..2 {
        bench.world.rest(connection, timer(ExclusionReason::ModelLockout, Reason::RateLimitExceeded, Some(20_000)));
    }
    let outcome = bench.send("c");
    assert_eq!(u64::from(outcome.status()), case.expect["status"].as_u64().unwrap());
    let answer = outcome.answer.unwrap();
    assert_eq!(answer.family, omniroute::routing::Family::RateLimit);
    assert_eq!((answer.retry_after_seconds, answer.retry_at), (Some(20), Some(START.plus(20_000))));
}

fn emergency(_: &Case) {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["p/m", "spare/m"])]);
    let mut v = verdict(Reason::CreditsExhausted);
    v.terminal = Some(Terminal::CreditsExhausted);
    let off = Bench::new(s.clone()).on("p", &[fails(402, v.clone())]).send("p/m");
    assert_eq!((off.calls, off.answer.unwrap().status), (vec!["p".to_owned()], 503), "opt-in only");
    s.settings.emergency_fallback = Some("spare/m".to_owned());
    let on = Bench::new(s.clone()).on("p", &[fails(402, v.clone())]).send("p/m");
    assert_eq!((on.status(), on.labels), (200, vec!["p/m".to_owned(), "spare/m".to_owned()]));
    // Never inside a combo of its own accord, never with tools.
    let mut tools = chat();
    tools.needs.tools = true;
    assert_eq!(Bench::new(s).on("p", &[fails(402, v)]).run("p/m", tools).labels, ["p/m"]);
}

fn saturated_pin(_: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Random, &["A/m", "B/m"])]));
    bench.world.pins.borrow_mut().insert(0, 0);
    bench.world.rest(0, Exclusion::of(ExclusionReason::QuotaCutoff));
    for _ in 0..20 {
        assert_eq!(bench.send("c").calls, ["B"]);
    }
}

fn end_to_end(_: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["primary/m", "fallback/m"])])).on("primary", &[status(503)]);
    assert_eq!(bench.send("c").calls, ["primary", "fallback"]);
    assert_eq!(bench.send("c").calls, ["fallback"]);
}
