//! The walk of one request: which connection is next after every kind of outcome, and how it ends.

use std::sync::Arc;

use crate::support::*;
use omniroute::api::time::EpochMs;
use omniroute::classify::{Failover, Reason, Scope, Verdict};
use omniroute::routing::{
    Exclusion, ExclusionReason, Failure, Family, Hop, KeyPolicy, Load, Needs, Origin, Request, Router, Seeded, Step, Walk,
};
use omniroute::snapshot::{AccountStrategy, ApiKey, Combo, ContextRules, CooldownWait, Dialect, Model, Snapshot, Strategy};

/// One provider `p` with connections, asked for directly as `p/m` or through the combo `c`.
fn accounts(names: &[&str], strategy: AccountStrategy) -> Snapshot {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["p/m"])]);
    s.providers[0].account_strategy = strategy;
    s.connections = names.iter().map(|n| connection(n, "p")).collect();
    s
}

#[test]
fn the_next_connection_then_the_next_target() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["openai/gpt", "claude/sonnet"])]);
    s.connections.push(connection("openai-2", "openai"));
    let mut bench = Bench::new(s).on("openai", &[status(500)]).on("openai-2", &[status(503)]);
    let outcome = bench.send("c");
    assert_eq!(outcome.calls, ["openai", "openai-2", "claude"]);
    assert_eq!(outcome.hops, [Hop::First, Hop::NextConnection, Hop::NextTarget]);
    assert_eq!(outcome.status(), 200);
    // The next request skips what rests.
    assert_eq!(bench.send("c").calls, ["claude"]);
}

#[test]
fn everything_rests_and_the_answer_says_until_when() {
    let mut bench =
        Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])])).on("a", &[stated(30)]).on("b", &[stated(20)]);
    let first = bench.send("c");
    assert_eq!(first.calls, ["a", "b"]);
    assert_eq!((first.status(), first.answer.as_ref().unwrap().retry_after_seconds), (429, Some(20)));
    let second = bench.send("c");
    assert!(second.calls.is_empty());
    assert_eq!((second.status(), second.code()), (429, "all_targets_cooling_down"));
    assert_eq!(second.answer.unwrap().retry_after_seconds, Some(20));
    // A direct model has its own name for that, and the wait of the one that was asked.
    let direct = bench.send("a/m");
    assert_eq!((direct.status(), direct.code(), direct.answer.as_ref().unwrap().retry_after_seconds), (429, "model_cooldown", Some(30)));
    assert!(!direct.answer.unwrap().no_retry);
}

#[test]
fn a_long_wait_is_not_for_the_sdks() {
    let outcome = Bench::new(accounts(&["p"], AccountStrategy::FillFirst)).on("p", &[stated(61)]).send("p/m");
    let answer = outcome.answer.unwrap();
    assert_eq!((answer.retry_after_seconds, answer.no_retry, answer.pass_upstream), (Some(61), true, true));
}

#[test]
fn a_second_model_of_the_same_account_is_the_last_resort() {
    let s = || snapshot(vec![combo("c", Strategy::Priority, &["p/one", "p/two", "other/m"])]);
    // A computed rest: passed over while something else is left, used when nothing is.
    let outcome = Bench::new(s()).on("p/one", &[status(503)]).on("other", &[status(503)]).send("c");
    assert_eq!((outcome.labels, outcome.answer), (vec!["p/one".into(), "other/m".into(), "p/two".into()], None));
    // A stated one is never pushed against.
    let outcome = Bench::new(s()).on("p/one", &[stated(30)]).on("other", &[status(503)]).send("c");
    assert_eq!(outcome.labels, ["p/one", "other/m"]);
}

#[test]
fn only_the_last_is_repeated_unless_the_combo_says_so() {
    let run = |per_target| {
        let mut c = combo("c", Strategy::Priority, &["a/m", "b/m"]);
        c.attempts.per_target = per_target;
        Bench::new(snapshot(vec![c])).on("a", &[status(500)]).on("b", &[status(500)]).send("c").calls
    };
    assert_eq!(run(0), ["a", "b", "b"], "one dispatch each while anything is left, otherwise two");
    assert_eq!(run(1), ["a", "b"]);
    assert_eq!(run(2), ["a", "a", "b", "b"]);
}

#[test]
fn nothing_is_repeated_against_a_stated_wait_or_a_wrong_request() {
    for reply in [stated(30), status(401), status(402), status(404), stop()] {
        let mut c = combo("c", Strategy::Priority, &["a/m"]);
        c.attempts.per_target = 3;
        assert_eq!(Bench::new(snapshot(vec![c])).on("a", std::slice::from_ref(&reply)).send("c").calls, ["a"], "{reply:?}");
    }
}

#[test]
fn dead_credentials_do_not_use_up_attempts() {
    let names: Vec<String> = (0..6).map(|i| format!("k{i}")).collect();
    let mut s = accounts(&names.iter().map(String::as_str).collect::<Vec<_>>(), AccountStrategy::FillFirst);
    s.combos[0].attempts.max = 2;
    let dead = |mut bench: Bench, reply: &Reply| {
        for name in &names[..5] {
            bench = bench.on(name, std::slice::from_ref(reply));
        }
        bench.send("c")
    };
    assert_eq!(dead(Bench::new(s.clone()), &status(401)).calls, ["k0", "k1", "k2", "k3", "k4", "k5"]);
    let outcome = dead(Bench::new(s), &status(500));
    assert_eq!((outcome.calls.len(), outcome.code()), (2, "max_attempts_exceeded"));
}

#[test]
fn our_credential_is_never_the_clients_problem() {
    for reply in [status(401), status(402), status(403)] {
        let mut bench = Bench::new(accounts(&["x", "y"], AccountStrategy::FillFirst));
        bench = bench.on("x", std::slice::from_ref(&reply)).on("y", std::slice::from_ref(&reply));
        let outcome = bench.send("p/m");
        assert_eq!((outcome.status(), outcome.code()), (503, "ALL_ACCOUNTS_INACTIVE"), "{reply:?}");
        let answer = outcome.answer.unwrap();
        assert!(!answer.pass_upstream && answer.origin == Origin::Gateway);
        // A 402 is final; the others come back by themselves.
        assert_eq!((answer.retry_after_seconds.is_none(), answer.no_retry), (reply.status == 402, reply.status == 402));
    }
}

#[test]
fn a_limit_of_the_model_never_goes_to_a_sibling() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["p/m", "p/other"])]);
    s.connections = vec![connection("x", "p"), connection("y", "p")];
    let outcome = Bench::new(s).on("p/m", &[status(400)]).send("c");
    assert_eq!((outcome.calls, outcome.labels), (vec!["x".into(), "x".into()], vec!["p/m".into(), "p/other".into()]));
}

#[test]
fn the_same_complaint_three_times_is_the_requests_fault() {
    let targets = ["a/m", "b/m", "c/m", "d/m", "e/m"];
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &targets)]));
    for name in ["a", "b", "c", "d", "e"] {
        bench = bench.on(name, &[status(400)]);
    }
    let outcome = bench.send("c");
    assert_eq!(outcome.calls, ["a", "b", "c"]);
    assert_eq!((outcome.status(), outcome.answer.unwrap().pass_upstream), (400, true));
}

#[test]
fn one_call_and_its_answer_as_it_is() {
    for reply in [status(401), status(429), status(500), stop()] {
        let mut bench = Bench::new(accounts(&["x", "y"], AccountStrategy::FillFirst)).on("x", std::slice::from_ref(&reply));
        let outcome = bench.run("c", Request { single_call: true, ..chat() });
        assert_eq!((outcome.calls, outcome.waits.len()), (vec!["x".to_owned()], 0));
        let answer = outcome.answer.unwrap();
        assert_eq!((answer.status, answer.pass_upstream), (reply.status, true));
    }
}

#[test]
fn one_provider_speaks_for_itself_several_are_summed_up() {
    let one = Bench::new(accounts(&["x", "y"], AccountStrategy::FillFirst)).on("x", &[status(429)]).on("y", &[status(500)]).send("c");
    let answer = one.answer.unwrap();
    assert_eq!((answer.status, answer.pass_upstream, answer.origin), (500, true, Origin::Provider));
    let two = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])]))
        .on("a", &[status(429)])
        .on("b", &[status(500)])
        .send("c");
    let answer = two.answer.unwrap();
    assert_eq!((answer.status, answer.pass_upstream, answer.code.as_str()), (502, false, "all_models_failed"));
    assert!(answer.message.contains("a/m: rate_limit — upstream says 429 (HTTP 429)"), "{}", answer.message);
    assert_eq!(answer.diagnostics.attempt_order, ["a/m", "b/m"]);
}

#[test]
fn a_timeout_among_failures_is_a_504() {
    let late = Reply { timeout: true, ..status(504) };
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])])).on("a", &[late]).on("b", &[status(500)]);
    let outcome = bench.send("c");
    assert_eq!((outcome.status(), outcome.calls), (504, vec!["a".to_owned(), "b".to_owned()]));
}

fn waiting(targets: &[&str], wait: CooldownWait) -> Snapshot {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, targets)]);
    s.combos[0].cooldown_wait = true;
    (s.settings.combo_cooldown_wait, s.settings.wait_for_cooldown) = (wait, wait);
    s
}

#[test]
fn waits_after_attempts_as_well_and_then_serves() {
    for name in ["c", "a/m"] {
        let mut bench = Bench::new(waiting(&["a/m"], CooldownWait::default())).on("a", &[stated(7), ok()]);
        let outcome = bench.send(name);
        assert_eq!((outcome.calls.len(), &outcome.waits, outcome.status()), (2, &vec![7_050], 200), "{name}");
    }
}

#[test]
fn waits_are_bounded_by_number_length_and_deadline() {
    let wait = CooldownWait { max_attempts: 3, ..CooldownWait::default() };
    let outcome = Bench::new(waiting(&["a/m"], wait)).on("a", &[stated(7)]).send("c");
    assert_eq!((outcome.waits.len(), outcome.calls.len(), outcome.status()), (3, 4, 429), "three waits make four dispatches");
    let outcome = Bench::new(waiting(&["a/m"], wait)).on("a", &[stated(91)]).send("c");
    assert_eq!((outcome.waits.len(), outcome.answer.unwrap().retry_after_seconds), (0, Some(91)));
    let mut s = waiting(&["a/m"], wait);
    s.combos[0].total_timeout_ms = 5_000;
    let outcome = Bench::new(s).on("a", &[stated(7)]).send("c");
    assert_eq!((outcome.waits.len(), outcome.status()), (0, 429));
    // The combo's own switch.
    let mut s = waiting(&["a/m"], wait);
    s.combos[0].cooldown_wait = false;
    assert!(Bench::new(s).on("a", &[stated(7)]).send("c").waits.is_empty());
}

#[test]
fn an_exhausted_quota_is_not_waited_for() {
    let outcome = Bench::new(waiting(&["a/m"], CooldownWait::default())).on("a", &[quota()]).send("c");
    assert_eq!((outcome.waits.len(), outcome.status()), (0, 429));
    assert_eq!(outcome.answer.unwrap().terminal_reason, "quota_exhausted");
}

#[test]
fn what_came_back_in_the_meantime_is_used() {
    // `b` rests for a second when the request starts; `a` takes five seconds to fail.
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["b/m", "a/m"])]));
    bench = bench.on("a", &[Reply { takes_ms: 5_000, ..stated(30) }]);
    let b = bench.connection("b");
    bench.world.rest(b, Exclusion { until: Some(START.plus(1_000)), stated: true, ..Exclusion::of(ExclusionReason::ConnectionCooldown) });
    let outcome = bench.send("c");
    assert_eq!((outcome.calls, outcome.answer), (vec!["a".into(), "b".into()], None));
}

#[test]
fn extra_passes_over_the_list() {
    let mut c = combo("c", Strategy::Priority, &["a/m", "b/m"]);
    (c.attempts.max_set_retries, c.attempts.set_retry_delay_ms) = (1, 4_000);
    let mut bench = Bench::new(snapshot(vec![c])).on("a", &[status(500), ok()]).on("b", &[status(500)]);
    let outcome = bench.send("c");
    assert_eq!((outcome.calls, outcome.waits, outcome.answer), (vec!["a".into(), "b".into(), "a".into()], vec![4_000], None));
}

#[test]
fn a_pause_before_the_next_target_only_where_it_is_asked_for() {
    let run = |reply: Reply, fallback| {
        let mut c = combo("c", Strategy::Priority, &["a/m", "b/m"]);
        c.attempts.fallback_delay_ms = fallback;
        Bench::new(snapshot(vec![c])).on("a", &[reply]).send("c").delays
    };
    assert_eq!(run(status(503), 500), [0, 500]);
    assert_eq!(run(status(503), 9_000), [0, 3_000], "not longer than the rest itself");
    assert_eq!(run(status(500), 500), [0, 0]);
    assert_eq!(run(status(503), 0), [0, 0]);
}

#[test]
fn deadlines_of_target_and_request() {
    let mut c = combo("c", Strategy::Priority, &["a/m"]);
    (c.target_timeout_ms, c.total_timeout_ms) = (90_000, 300_000);
    let deadline = |c: Combo| {
        let router = router(snapshot(vec![c]));
        let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
        match walk.next(&World::default(), START, &mut Seeded(1)) {
            Step::Dispatch(dispatch) => dispatch.deadline.since(START),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(deadline(c.clone()), 90_000);
    c.total_timeout_ms = 60_000;
    assert_eq!(deadline(c.clone()), 60_000);
    (c.target_timeout_ms, c.total_timeout_ms) = (0, 0);
    assert_eq!(deadline(c), 600_000);
}

#[test]
fn a_local_refusal_blames_nobody_and_counts_nothing() {
    let mut c = combo("c", Strategy::Priority, &["a/m", "b/m"]);
    c.attempts.max = 1;
    let router = router(snapshot(vec![c]));
    let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    let (world, mut rng) = (World::default(), Seeded(1));
    let full = Exclusion::of(ExclusionReason::ConcurrencyCap);
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Dispatch(d) if &*d.connection.name == "a"));
    walk.refused_locally(full, None);
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Dispatch(d) if &*d.connection.name == "b" && d.attempt == 1));
    walk.refused_locally(full, None);
    let Step::Stop(answer) = walk.next(&world, START, &mut rng) else { panic!("nothing is left") };
    assert_eq!((answer.status, answer.code.as_str(), answer.diagnostics.attempted), (503, "ALL_TARGETS_SKIPPED", 0));
    assert_eq!(answer.diagnostics.excluded.len(), 2);
}

#[test]
fn a_slot_that_comes_is_used_first_and_nothing_is_forgotten() {
    let mut c = combo("c", Strategy::Priority, &["a/m", "b/m", "c/m"]);
    c.attempts.max = 2;
    let router = router(snapshot(vec![c]));
    let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    let (world, mut rng) = (World::default(), Seeded(1));
    let broken = verdict(Reason::ServerError);
    let failure = Failure { verdict: &broken, status: 500, message: "no", quality: false, timeout: false, passable: true, latency_ms: 1 };
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Dispatch(d) if &*d.connection.name == "a"));
    walk.failed(&failure, START);
    let Step::Dispatch(refused) = walk.next(&world, START, &mut rng) else { panic!("`b` is open") };
    walk.refused_locally(Exclusion::of(ExclusionReason::ConcurrencyCap), None);
    let Step::Dispatch(other) = walk.next(&world, START, &mut rng) else { panic!("`c` is open") };
    walk.refused_locally(Exclusion::of(ExclusionReason::ConcurrencyCap), None);
    let Step::Stop(answer) = walk.next(&world, START, &mut rng) else { panic!("`a` failed, the others are full") };
    assert_eq!(answer.diagnostics.attempted, 1);
    assert!(walk.slot_free(&refused, START));
    assert!(!walk.slot_free(&refused, START), "it is taken up once");
    let Step::Dispatch(again) = walk.next(&world, START, &mut rng) else { panic!("`b` has a slot") };
    assert_eq!((&*again.connection.name, again.attempt, again.hop, again.combo), ("b", 2, Hop::NextTarget, Some(0)));
    walk.failed(&failure, START);
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Stop(_)));
    assert!(walk.slot_free(&other, START));
    let Step::Stop(answer) = walk.next(&world, START, &mut rng) else { panic!("two attempts are all") };
    assert_eq!((answer.terminal_reason, answer.diagnostics.attempted), ("max_attempts_exceeded", 2));
    assert_eq!(answer.diagnostics.attempt_order, ["a/m", "b/m"]);
}

#[test]
fn a_slot_behind_a_gate_that_closed_meanwhile_is_not_used() {
    let router = router(snapshot(vec![combo("c", Strategy::Priority, &["a/m"])]));
    let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    let (world, mut rng) = (World::default(), Seeded(1));
    let Step::Dispatch(refused) = walk.next(&world, START, &mut rng) else { panic!("it is open") };
    walk.refused_locally(Exclusion::of(ExclusionReason::ConcurrencyCap), None);
    assert!(matches!(walk.next(&world, START, &mut rng), Step::Stop(_)));
    world.rest(0, Exclusion::of(ExclusionReason::Terminal));
    assert!(walk.slot_free(&refused, START));
    let Step::Stop(answer) = walk.next(&world, START, &mut rng) else { panic!("it is out of use") };
    assert_eq!((answer.code.as_str(), answer.diagnostics.attempted), ("ALL_ACCOUNTS_INACTIVE", 0));
}

#[test]
fn a_repetition_at_the_end_of_the_list_belongs_to_its_combo() {
    let mut c = combo("c", Strategy::Priority, &["a/m"]);
    c.attempts.per_target = 0;
    let router = router(snapshot(vec![c]));
    let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    let (world, mut rng) = (World::default(), Seeded(1));
    let broken = verdict(Reason::ServerError);
    let failure = Failure { verdict: &broken, status: 500, message: "no", quality: false, timeout: false, passable: true, latency_ms: 1 };
    for attempt in 1..=2 {
        let Step::Dispatch(dispatch) = walk.next(&world, START, &mut rng) else { panic!("attempt {attempt}") };
        assert_eq!(dispatch.combo, Some(0), "attempt {attempt}: its checks and its gates are those of the combo");
        walk.failed(&failure, START);
    }
}

#[test]
fn a_look_at_who_is_eligible_moves_nothing_on() {
    let inner = combo("inner", Strategy::RoundRobin, &["x/m", "y/m"]);
    let mut s = snapshot(vec![combo("c", Strategy::RoundRobin, &["a/m", "inner", "z/m"]), inner]);
    s.connections.push(connection("a2", "a"));
    s.connections.sort_by(|a, b| a.name.cmp(&b.name));
    let mut bench = Bench::new(s);
    let z = bench.connection("z");
    bench.world.rest(z, Exclusion::of(ExclusionReason::Terminal));
    let names = |bench: &Bench, model: &str, request: Request| -> Vec<String> {
        let names = bench.router.eligible(&bench.router.resolve(model), &request, &bench.world, START);
        names.iter().map(ToString::to_string).collect()
    };
    for _ in 0..5 {
        assert_eq!(names(&bench, "c", chat()), ["a", "a2", "x", "y"]);
    }
    assert_eq!(names(&bench, "a/m", chat()), ["a", "a2"]);
    assert!(names(&bench, "c", Request { dialect: Dialect::Messages, ..chat() }).is_empty(), "they speak chat completions only");
    assert!(names(&bench, "nobody", chat()).is_empty());
    let calls: Vec<String> = (0..2).flat_map(|_| bench.send("c").calls).collect();
    assert_eq!(calls, ["a", "x"], "the turns begin with the first request");
}

#[test]
fn a_nested_combo_turns_only_when_it_is_reached() {
    let nested = combo("inner", Strategy::RoundRobin, &["x/m", "y/m"]);
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["first/m", "inner"]), nested]));
    for _ in 0..3 {
        assert_eq!(bench.send("c").calls, ["first"]);
    }
    let first = bench.connection("first");
    bench.world.rest(first, Exclusion::of(ExclusionReason::Terminal));
    let calls: Vec<String> = (0..4).flat_map(|_| bench.send("c").calls).collect();
    assert_eq!(calls, ["x", "y", "x", "y"]);
}

#[test]
fn strategy_state_survives_a_reload_of_other_things() {
    let c = combo("c", Strategy::RoundRobin, &["a/m", "b/m", "c/m"]);
    let mut bench = Bench::new(snapshot(vec![c.clone()]));
    assert_eq!(bench.send("c").calls, ["a"]);
    let other = snapshot(vec![c.clone(), combo("new", Strategy::Priority, &["z/m"])]);
    bench.router = Arc::new(Router::new(Arc::new(other), Some(&bench.router)));
    assert_eq!(bench.send("c").calls, ["b"]);
    let mut changed = c;
    changed.targets.reverse();
    bench.router = Arc::new(Router::new(Arc::new(snapshot(vec![changed])), Some(&bench.router)));
    assert_eq!(bench.send("c").calls, ["c"], "a changed combo starts anew");
}

#[test]
fn concurrent_requests_see_each_other() {
    // Neither request has ended: the load that the first reserved keeps the second off, whatever the draw.
    let router = router(snapshot(vec![combo("c", Strategy::P2C, &["a/m", "b/m"])]));
    let world = World::default();
    let start = |rng: &mut Seeded| {
        let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
        let Step::Dispatch(dispatch) = walk.next(&world, START, rng) else { panic!("a dispatch") };
        (walk, dispatch.connection.name.clone())
    };
    for seed in 0..50 {
        let mut rng = Seeded(seed);
        let (first, one) = start(&mut rng);
        let (second, two) = start(&mut rng);
        assert_ne!(one, two);
        drop((first, second));
        // Both ended: the next pair is free again. An answer that lasts counts on without its walk.
        let (mut third, three) = start(&mut rng);
        third.succeeded(1, START);
        let answer = third.entered().expect("the strategy counts it");
        drop(third);
        let (fourth, four) = start(&mut rng);
        assert_ne!(three, four);
        drop((answer, fourth));
    }
}

#[test]
fn account_strategies() {
    let run = |strategy, world: World, n: usize| {
        let mut s = accounts(&["a", "b", "c"], strategy);
        s.connections[0].priority = 9;
        let mut bench = Bench::new(s);
        bench.world = world;
        (0..n).flat_map(|_| bench.send("c").calls).collect::<Vec<_>>()
    };
    assert_eq!(run(AccountStrategy::FillFirst, World::default(), 2), ["b", "b"], "the lowest priority number first, then the name");
    assert_eq!(run(AccountStrategy::RoundRobin, World::default(), 10), ["b", "b", "b", "c", "c", "c", "a", "a", "a", "b"]);
    assert_eq!(run(AccountStrategy::LeastUsed, World::default(), 4), ["b", "c", "a", "b"]);
    let backed_off = World::default();
    backed_off.loads.borrow_mut().insert(1, Load { backoff_level: 2, ..Load::default() });
    assert_eq!(run(AccountStrategy::LeastUsed, backed_off, 2), ["c", "a"], "lowest backoff first");
    let failing = World::default();
    failing.loads.borrow_mut().insert(1, Load { last_status: Some(429), backoff_level: 3, ..Load::default() });
    let calls = run(AccountStrategy::P2C, failing, 60);
    assert!(!calls.contains(&"b".to_owned()) && calls.contains(&"a".to_owned()) && calls.contains(&"c".to_owned()), "{calls:?}");
}

#[test]
fn a_dispatch_that_was_refused_is_no_use_of_its_account() {
    let router = router(accounts(&["a", "b"], AccountStrategy::LeastUsed));
    let next = |sent: bool| {
        let mut walk = Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
        let Step::Dispatch(dispatch) = walk.next(&World::default(), START, &mut Seeded(1)) else { panic!("all are open") };
        if sent {
            router.dispatched(&dispatch, START);
        } else {
            walk.refused_locally(Exclusion::of(ExclusionReason::ConcurrencyCap), None);
        }
        dispatch.connection.name.to_string()
    };
    assert_eq!([next(true), next(false), next(false), next(true), next(true)], ["a", "b", "b", "b", "a"]);
}

#[test]
fn the_latency_term_prefers_the_faster_account() {
    let run = |weight| {
        let mut s = accounts(&["slow", "fast"], AccountStrategy::P2C);
        s.settings.p2c_latency_weight = weight;
        let mut bench = Bench::new(s).on("slow", &[Reply { takes_ms: 2_000, ..ok() }]).on("fast", &[Reply { takes_ms: 100, ..ok() }]);
        let calls: Vec<String> = (0..60).flat_map(|_| bench.send("c").calls).collect();
        calls[20..].iter().filter(|c| *c == "slow").count()
    };
    // The rest of the score (uses in a row, recency) still sends the slow one something now and then.
    let (without, with) = (run(0), run(20));
    assert!(without >= 10 && with * 2 < without, "{without} and {with} of 40");
}

#[test]
fn a_pin_moves_the_account_to_the_front_and_a_resting_one_is_ignored() {
    let mut bench = Bench::new(accounts(&["a", "b", "c"], AccountStrategy::FillFirst));
    bench.world.pins.borrow_mut().insert(0, 2);
    assert_eq!(bench.send("c").calls, ["c"]);
    bench.world.rest(2, Exclusion::of(ExclusionReason::Terminal));
    assert_eq!(bench.send("c").calls, ["a"]);
    let mut s = accounts(&["a", "b", "c"], AccountStrategy::FillFirst);
    s.combos[0].options.disable_session_stickiness = true;
    let mut bench = Bench::new(s);
    bench.world.pins.borrow_mut().insert(0, 2);
    assert_eq!(bench.send("c").calls, ["a"]);
}

#[test]
fn what_the_key_and_a_lease_allow() {
    let s = accounts(&["a", "b"], AccountStrategy::FillFirst);
    let policy = |allowed: &[&str]| {
        let key = ApiKey {
            name: "k".into(),
            sha256: String::new(),
            scopes: vec![],
            allowed_connections: Some(allowed.iter().map(|a| (*a).to_owned()).collect()),
            allowed_models: None,
        };
        Arc::new(KeyPolicy::new(&key, &s))
    };
    assert_eq!(Bench::new(s.clone()).run("c", Request { key: policy(&["b"]), ..chat() }).calls, ["b"]);
    let refused = Bench::new(s.clone()).run("c", Request { key: policy(&[]), ..chat() }).answer.unwrap();
    assert_eq!((refused.status, refused.code.as_str(), refused.origin), (503, "no_eligible_connections", Origin::Policy));
    assert_eq!(Bench::new(s.clone()).run("c", Request { only_connection: Some(1), ..chat() }).calls, ["b"]);
    let bound = Bench::new(s.clone()).on("b", &[status(500)]).run("c", Request { only_connection: Some(1), ..chat() });
    assert_eq!(bound.calls, ["b"], "bound there and nowhere else");
}

#[test]
fn what_the_configuration_rules_out_is_told_as_such() {
    let answer = |s: Snapshot, request: Request| Bench::new(s).run("c", request).answer.unwrap();
    let base = || snapshot(vec![combo("c", Strategy::Weighted, &["a/m", "b/m"])]);
    let dialect = answer(base(), Request { dialect: Dialect::Messages, ..chat() });
    assert_eq!((dialect.status, dialect.code.as_str(), dialect.family), (400, "dialect_not_spoken", Family::InvalidRequest));
    let known = |window| {
        let mut s = base();
        for p in &mut s.providers {
            p.models.push(Model { context_window: Some(window), features: Some(vec![]), ..model("m") });
        }
        s
    };
    let tools = answer(known(100), Request { needs: Needs { tools: true, ..Needs::default() }, ..chat() });
    assert_eq!((tools.status, tools.code.as_str()), (400, "capability_mismatch"));
    assert!(tools.message.contains("tools"), "{}", tools.message);
    let long = answer(known(100), Request { needs: Needs { input_tokens: 1_000, ..Needs::default() }, ..chat() });
    assert_eq!((long.status, long.code.as_str()), (400, "context_length_exceeded"));
    let mut s = known(100);
    s.combos[0].context = ContextRules { min_window: Some(64_000), ..ContextRules::default() };
    let rules = answer(s, chat());
    assert_eq!((rules.status, rules.code.as_str()), (404, "context_requirements_exhausted"));
    assert!(rules.message.contains("64000") && rules.diagnostics.excluded.len() == 2, "{rules:?}");
    assert!(rules.no_retry);
}

#[test]
fn targets_of_unknown_window_stay_when_nothing_else_would() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["unknown/m", "large/m"])]);
    s.combos[0].context = ContextRules { min_window: Some(1_000), drop_unknown: true, ..ContextRules::default() };
    assert_eq!(Bench::new(s.clone()).send("c").calls, ["unknown"]);
    s.providers.iter_mut().find(|p| p.name == "large").unwrap().models.push(Model { context_window: Some(5_000), ..model("m") });
    assert_eq!(Bench::new(s).send("c").calls, ["large"]);
}

#[test]
fn a_broken_off_request_leaves_nothing_behind() {
    let router = router(snapshot(vec![combo("c", Strategy::Priority, &["inner"]), combo("inner", Strategy::P2C, &["a/m", "b/m"])]));
    let world = World::default();
    let start = || Walk::new(&router, &router.resolve("c"), "c", chat()).unwrap();
    // Dropped before the first step, in the middle of a dispatch, and after a failure; always on the same entry.
    for steps in 0..3 {
        let mut walk = start();
        for _ in 0..steps {
            if let Step::Dispatch(_) = walk.next(&world, START, &mut || 0) {
                let v: Verdict = Verdict { failover: Failover::OtherConnection, scope: Scope::Request, ..verdict(Reason::ServerError) };
                let failure =
                    Failure { verdict: &v, status: 500, message: "", quality: false, timeout: true, passable: false, latency_ms: 1 };
                walk.failed(&failure, EpochMs(START.0 + 1));
            }
        }
    }
    // A reservation that was left behind would push every later request to the other entry.
    let mut walks = Vec::new();
    let mut used = [0, 0];
    for seed in 0..40 {
        let mut walk = start();
        let Step::Dispatch(dispatch) = walk.next(&world, START, &mut Seeded(seed)) else { panic!("a dispatch") };
        used[usize::from(&*dispatch.connection.name == "b")] += 1;
        walks.push(walk);
    }
    assert!(used[0] >= 10 && used[1] >= 10, "{used:?}");
}
