//! Cases about names, keys, filters and the orders of strategies.

use std::sync::Arc;

use omniroute::routing::{AllWell, Exclusion, ExclusionReason, KeyPolicy, Needs, Request, Resolved, Seeded, too_deep};
use omniroute::snapshot::{ApiKey, Combo, Feature, Model, Price, Snapshot, Strategy};

use super::{Case, texts};
use crate::support::*;

pub fn find(id: &str) -> Option<fn(&Case)> {
    Some(match id {
        "RC-001" => nested_flatten,
        "RC-003" => too_deep_is_refused,
        "RC-005" => beyond_the_depth_only_models,
        "RC-006" => a_cycle_is_empty,
        "RC-012" => tiers_order_round_robin,
        "RC-018" => literal_name_beats_suffix,
        "RC-019" => unknown_name,
        "RC-021" => key_without_the_combo,
        "RC-022" => unrestricted_key,
        "RC-028" => capabilities,
        "RC-031" => window,
        "RC-037" | "RC-040" | "RC-044" => weighted,
        "RC-043" => weighted_keeps_a_nested_entry,
        "RC-050" | "RC-052" | "RC-053" => round_robin_batches,
        "RC-062" => p2c_takes_the_faster,
        "RC-065" | "RC-066" => least_used,
        "RC-067" | "RC-068" | "RC-069" => strict_random,
        "RC-071" | "RC-072" | "RC-073" => cost,
        "RC-074" | "RC-076" => context_optimized,
        "RC-077" | "RC-079" => lkgp,
        "RC-099" => cache_without_a_key,
        "RC-271" => pinned,
        "RC-275" => one_target_needs_no_pin,
        "RC-278" => terminal_pin,
        _ => return None,
    })
}

/// Targets of a plan, `provider/model`.
fn planned(snapshot: Snapshot, name: &str, request: &Request) -> Vec<String> {
    let router = router(snapshot);
    let plan = router.plan(&router.resolve(name), request, &AllWell, START, &mut Seeded(1));
    plan.targets.iter().map(|t| format!("{}/{}", t.provider, t.model)).collect()
}

fn from_map(case: &Case) -> Vec<Combo> {
    let combos = case.given["combos"].as_object().unwrap();
    combos
        .iter()
        .map(|(name, targets)| combo(name, Strategy::Priority, &texts(targets).iter().map(String::as_str).collect::<Vec<_>>()))
        .collect()
}

fn nested_flatten(case: &Case) {
    assert_eq!(planned(snapshot(from_map(case)), "root", &chat()), case.expected("targets"));
}

fn too_deep_is_refused(case: &Case) {
    let combos = snapshot(from_map(case)).combos;
    let limit = u32::try_from(case.given["maxComboDepth"].as_u64().unwrap()).unwrap();
    assert!(combos.iter().all(|c| c.options.max_depth == limit), "the default is the case's limit");
    let names: Vec<&str> = too_deep(&combos).into_iter().map(|i| combos[i].name.as_str()).collect();
    assert_eq!(names, ["c1"]);
}

fn beyond_the_depth_only_models(case: &Case) {
    let models = texts(&case.given["models"]);
    let mut deep = combo("deep", Strategy::Priority, &[&format!("p/{}", models[0]), "child", &format!("p/{}", models[1])]);
    deep.options.max_depth = 0;
    let s = snapshot(vec![deep, combo("child", Strategy::Priority, &["p/hidden"])]);
    let expected: Vec<String> = case.expected("targets").iter().map(|m| format!("p/{m}")).collect();
    assert_eq!(planned(s, "deep", &chat()), expected);
}

fn a_cycle_is_empty(case: &Case) {
    let s = snapshot(vec![combo("loop", Strategy::Priority, &["loop"])]);
    assert_eq!(planned(s, "loop", &chat()), case.expected("targets"));
}

fn tiers_order_round_robin(case: &Case) {
    let mut c = combo("c", Strategy::RoundRobin, &["openai/m", "claude/m"]);
    c.tier_order = texts(&case.given["order_from_tiers"]).iter().map(|t| format!("{t}/m")).collect();
    let mut bench = Bench::new(snapshot(vec![c]));
    let calls: Vec<String> = (0..case.when["requests"].as_u64().unwrap()).flat_map(|_| bench.send("c").calls).collect();
    assert_eq!(calls, case.expected("calls"));
}

fn literal_name_beats_suffix(case: &Case) {
    let combos = texts(&case.given["stored"])
        .into_iter()
        .enumerate()
        .map(|(i, n)| Combo { model_names: vec![n.clone()], ..combo(&format!("c{i}"), Strategy::Priority, &["p/m"]) });
    let router = router(snapshot(combos.collect()));
    let names = |resolved: &Resolved| match resolved {
        Resolved::Combo(i) => router.snapshot().combos[*i].model_names.clone(),
        _ => Vec::new(),
    };
    assert_eq!(names(&router.resolve(case.given["request_model"].as_str().unwrap())), [case.expect["combo"].as_str().unwrap()]);
    // Without a literal match the suffix goes, in any case of letters.
    assert_eq!(names(&router.resolve("claude[500k]")), ["Claude"]);
}

fn unknown_name(case: &Case) {
    let router = router(snapshot(vec![combo("coding", Strategy::Priority, &["p/m"])]));
    let answer = router.resolve_for(case.given["request_model"].as_str().unwrap(), &KeyPolicy::default()).unwrap_err();
    assert_eq!((answer.status, answer.code.as_str()), (404, "model_not_found"));
    let near = router.resolve_for("codign", &KeyPolicy::default()).unwrap_err();
    assert!(near.message.contains("did you mean `coding`"), "{}", near.message);
}

fn key(models: &[&str], snapshot: &Snapshot) -> Arc<KeyPolicy> {
    let key = ApiKey {
        name: "k".into(),
        sha256: String::new(),
        scopes: vec![],
        allowed_connections: None,
        allowed_models: Some(models.iter().map(|m| (*m).to_owned()).collect()),
    };
    Arc::new(KeyPolicy::new(&key, snapshot))
}

fn key_without_the_combo(case: &Case) {
    let targets = texts(&case.given["targets"]);
    let s = snapshot(vec![combo("combo-x", Strategy::Priority, &targets.iter().map(String::as_str).collect::<Vec<_>>())]);
    let allows = texts(&case.given["key_allows"]);
    let request = Request { key: key(&allows.iter().map(String::as_str).collect::<Vec<_>>(), &s), ..chat() };
    let allowed: Vec<String> = targets.iter().filter(|t| case.expect[t.as_str()] == true).cloned().collect();
    assert_eq!(planned(s.clone(), "combo-x", &request), allowed);
    // The combo by name: everything below it comes with it. Nothing of it: 403.
    assert_eq!(planned(s.clone(), "combo-x", &Request { key: key(&["combo-x"], &s), ..chat() }), targets);
    let refused = router(s.clone()).resolve_for("combo-x", &key(&["other/*"], &s)).unwrap_err();
    assert_eq!((refused.status, refused.code.as_str()), (403, "model_not_allowed"));
}

fn unrestricted_key(case: &Case) {
    assert_eq!(case.expect["allowed"], true);
    let s = snapshot(vec![combo("c", Strategy::Priority, &["a/m", "b/m"])]);
    assert_eq!(planned(s, "c", &Request { key: open_key(), ..chat() }).len(), 2);
}

fn with_models(mut s: Snapshot, models: Vec<(&str, Model)>) -> Snapshot {
    for (provider, m) in models {
        s.providers.iter_mut().find(|p| p.name == provider).unwrap().models.push(m);
    }
    s
}

fn capabilities(case: &Case) {
    let all = [Feature::Tools, Feature::Vision, Feature::StructuredOutput];
    let names = ["no-tools", "no-vision", "no-json", "compatible"];
    let models = names.iter().enumerate().map(|(i, name)| {
        let features = all.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, f)| *f).collect();
        ("p", Model { features: Some(features), ..model(name) })
    });
    let targets: Vec<String> = names.iter().map(|n| format!("p/{n}")).collect();
    let s = snapshot(vec![combo("c", Strategy::Priority, &targets.iter().map(String::as_str).collect::<Vec<_>>())]);
    let needs = Needs { tools: true, vision: true, structured_output: true, ..Needs::default() };
    let outcome = Bench::new(with_models(s, models.collect())).run("c", Request { needs, ..chat() });
    assert_eq!(outcome.labels, case.expected("calls").iter().map(|c| format!("p/{c}")).collect::<Vec<_>>());
}

fn window(case: &Case) {
    let windows = case.given["windows"].as_object().unwrap();
    let models = windows.iter().map(|(n, w)| ("p", Model { context_window: w.as_u64(), ..model(n) })).collect();
    let s = with_models(snapshot(vec![combo("c", Strategy::Priority, &["p/tiny", "p/large"])]), models);
    let needs = Needs { input_tokens: case.given["prompt_chars"].as_u64().unwrap() / 4, ..Needs::default() };
    let outcome = Bench::new(s).run("c", Request { needs, ..chat() });
    assert_eq!(outcome.labels, case.expected("calls").iter().map(|c| format!("p/{c}")).collect::<Vec<_>>());
}

/// A combo of which the draws are given; answers the calls of some requests.
fn drawn(c: Combo, extra: Vec<Combo>, draws: &[f64], failing: &[&str], requests: usize) -> Vec<String> {
    let name = c.name.clone();
    let mut bench = Bench::new(snapshot(std::iter::once(c).chain(extra).collect()));
    for f in failing {
        bench = bench.on(f, &[status(500)]);
    }
    let mut calls = Vec::new();
    let mut draws = draws.iter().copied().cycle();
    let mut next = move || {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
        let bits = (draws.next().unwrap() * u64::MAX as f64) as u64;
        bits
    };
    for _ in 0..requests {
        calls.extend(bench.send_with(&name, &mut next).calls);
    }
    calls
}

fn weighted(case: &Case) {
    let calls = match case.id.as_str() {
        "RC-037" => drawn(combo("c", Strategy::Weighted, &["openai/m*1", "claude/m*9"]), vec![], &[0.95], &["claude"], 1),
        "RC-040" => {
            let mut c = combo("c", Strategy::Weighted, &["a/m*50", "b/m*50"]);
            c.options.sticky_weighted_limit = 2;
            drawn(c, vec![], &[0.1, 0.9], &[], 4)
        }
        _ => {
            let nested = combo("nested-priority", Strategy::Priority, &["a/m", "b/m"]);
            drawn(combo("x", Strategy::Weighted, &["nested-priority*9", "c/m*1"]), vec![nested], &[0.01], &["a"], 1)
        }
    };
    assert_eq!(calls, case.expected("calls"), "{}", case.id);
}

fn weighted_keeps_a_nested_entry(case: &Case) {
    let mut c = combo("c", Strategy::Weighted, &["minimax*1", "other/m*1"]);
    c.options.sticky_weighted_limit = 10;
    let nested = combo("minimax", Strategy::Priority, &["ollama/m3", "oc/m3"]);
    let mut bench = Bench::new(snapshot(vec![c, nested]));
    assert_eq!(bench.send_with("c", &mut || 0).labels, ["ollama/m3"], "the draw makes the entry sticky");
    let ollama = bench.connection("ollama");
    bench.world.rest(ollama, Exclusion::of(ExclusionReason::Terminal));
    // Drawn at the other end: only the batch explains the same entry.
    for _ in 0..2 {
        assert_eq!(bench.send_with("c", &mut || u64::MAX).labels, case.expected("calls"));
    }
}

fn round_robin_batches(case: &Case) {
    let mut c = combo("c", Strategy::RoundRobin, &["a/m", "b/m", "c/m"]);
    let limit = case.given["stickyRoundRobinLimit"].as_u64().or_else(|| case.given["limit"].as_u64()).unwrap();
    c.options.sticky_round_robin_limit = Some(u32::try_from(limit).unwrap());
    let mut bench = Bench::new(snapshot(vec![c]));
    let calls: Vec<String> = match case.id.as_str() {
        "RC-052" => {
            bench = bench.on("a", &[status(503)]);
            (0..case.when["requests"].as_u64().unwrap()).flat_map(|_| bench.send("c").calls).collect()
        }
        "RC-053" => {
            assert_eq!(bench.send("c").calls, ["a"]);
            let a = bench.connection("a");
            bench.world.rest(a, Exclusion::of(ExclusionReason::Terminal));
            let calls = bench.send("c").calls;
            assert_eq!(bench.send("c").calls, ["b"], "b is the batch now");
            calls
        }
        _ => (0..case.when["requests"].as_u64().unwrap()).flat_map(|_| bench.send("c").calls).collect(),
    };
    assert_eq!(calls, case.expected("calls"), "{}", case.id);
}

fn p2c_takes_the_faster(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::P2C, &["a/m", "b/m", "c/m"])]));
    let slow = |ms| Reply { takes_ms: ms, ..ok() };
    bench = bench.on("a", &[slow(2_000)]).on("b", &[slow(20)]).on("c", &[slow(20)]);
    // Teach it: the pair (a, b) is drawn once each way while nothing is known.
    let first = bench.send_with("c", &mut || 0).calls;
    assert_eq!(first, ["a"], "nothing known: the first drawn");
    let mut second = [u64::MAX / 2, 0].into_iter().cycle();
    bench.send_with("c", &mut || second.next().unwrap());
    assert_eq!(bench.send_with("c", &mut || 0).calls, case.expected("calls"));
}

fn least_used(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::LeastUsed, &["a/m", "b/m", "c/m"])]));
    let calls: Vec<String> = (0..3).flat_map(|_| bench.send("c").calls).collect();
    match case.id.as_str() {
        "RC-065" => assert_eq!(calls[2..], case.expected("calls")[..]),
        _ => assert_eq!(calls[..2], case.expected("calls")[..]),
    }
}

fn strict_random(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::StrictRandom, &["a/m", "b/m", "c/m"])]));
    match case.id.as_str() {
        "RC-067" => {
            for _ in 0..20 {
                let mut calls: Vec<String> = (0..3).flat_map(|_| bench.send("c").calls).collect();
                calls.sort();
                assert_eq!(calls, ["a", "b", "c"]);
            }
        }
        "RC-068" => {
            let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::StrictRandom, &["openai/m", "claude/sonnet"])]));
            bench.send("c");
            let openai = bench.connection("openai");
            bench.world.rest(openai, Exclusion::of(ExclusionReason::Terminal));
            for _ in 0..3 {
                assert_eq!(bench.send("c").labels, case.expected("calls"));
            }
        }
        _ => {
            let mut bench = bench.on("a", &[status(500)]).on("b", &[status(500)]);
            let outcome = bench.send("c");
            let mut distinct = outcome.calls.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), outcome.calls.len());
            assert_eq!(outcome.status(), 200);
        }
    }
}

fn micro(price: f64) -> u64 {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let micro = (price * 1_000_000.0) as u64;
    micro
}

fn priced(prices: &[(&str, f64)]) -> Snapshot {
    let targets: Vec<String> = prices.iter().map(|(n, _)| format!("{n}/m")).collect();
    let s = snapshot(vec![combo("c", Strategy::CostOptimized, &targets.iter().map(String::as_str).collect::<Vec<_>>())]);
    let price = |p: f64| Some(Price { input: micro(p), output: 0, cached_input: None });
    with_models(s, prices.iter().map(|(n, p)| (*n, Model { price: price(*p), ..model("m") })).collect())
}

fn cost(case: &Case) {
    match case.id.as_str() {
        "RC-071" => {
            let outcome = Bench::new(priced(&[("mini", 5.0), ("4o", 1.0), ("nano", 0.1)])).send("c");
            assert_eq!(outcome.calls, [case.expect["first"].as_str().unwrap()]);
        }
        "RC-072" => {
            let mut bench = Bench::new(priced(&[("sonnet", 5.0), ("nano", 0.1)])).on("nano", &[status(500)]);
            assert_eq!(bench.send("c").calls, case.expected("calls"));
        }
        _ => assert_eq!(Bench::new(priced(&[("gpt-4o", 1.0), ("gpt-4o-mini", 1.0)])).send("c").calls, case.expected("calls")),
    }
}

fn context_optimized(case: &Case) {
    let windows = case.given["windows"].as_object().unwrap();
    let targets: Vec<String> = windows.keys().map(|n| format!("{n}/m")).collect();
    let s = snapshot(vec![combo("c", Strategy::ContextOptimized, &targets.iter().map(String::as_str).collect::<Vec<_>>())]);
    let models = windows.iter().map(|(n, w)| (n.as_str(), Model { context_window: w.as_u64(), ..model("m") })).collect();
    assert_eq!(Bench::new(with_models(s, models)).send("c").calls, [case.expect["first"].as_str().unwrap()]);
}

fn lkgp(case: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Lkgp, &["openai/m", "anthropic/m"])])).on("openai", &[status(500), ok()]);
    assert_eq!(bench.send("c").calls, ["openai", "anthropic"]);
    bench.now = bench.now.plus(60_000);
    let served = bench.send("c").calls;
    let known = case.expect["first"].as_str().unwrap_or("anthropic");
    assert_eq!(served, [known], "what served last goes first, although it is declared second");
    if case.id == "RC-079" {
        let anthropic = bench.connection("anthropic");
        bench.world.rest(anthropic, Exclusion::of(ExclusionReason::Terminal));
        bench.send("c");
        bench.world.resting.borrow_mut().clear();
        assert_eq!(bench.send("c").calls, [case.expect["stored_provider"].as_str().unwrap()]);
    }
}

fn cache_without_a_key(_: &Case) {
    let s = || snapshot(vec![combo("c", Strategy::CacheOptimized, &["a/m", "b/m", "c/m"])]);
    assert_eq!(planned(s(), "c", &chat()), ["a/m", "b/m", "c/m"], "no key keeps the order");
    let keyed = |key: &str| planned(s(), "c", &Request { cache_key: Some(key.to_owned()), ..chat() });
    assert_eq!(keyed("one"), keyed("one"));
    assert!((0..20).any(|i| keyed(&i.to_string()) != ["a/m", "b/m", "c/m"]));
}

/// Random order, so that only a pin explains the first.
fn pinned_bench(targets: &[&str]) -> Bench {
    Bench::new(snapshot(vec![combo("c", Strategy::Random, targets)]))
}

fn pinned(_: &Case) {
    let mut bench = pinned_bench(&["A/m", "B/m", "C/m"]);
    let b = bench.connection("B");
    bench.world.pins.borrow_mut().insert(b, b);
    for _ in 0..20 {
        assert_eq!(bench.send("c").calls, ["B"]);
    }
    // Priority keeps its declared order.
    let mut bench = Bench::new(snapshot(vec![combo("c", Strategy::Priority, &["A/m", "B/m"])]));
    bench.world.pins.borrow_mut().insert(b, b);
    assert_eq!(bench.send("c").calls, ["A"]);
}

fn one_target_needs_no_pin(_: &Case) {
    let mut bench = pinned_bench(&["A/m"]);
    bench.world.pins.borrow_mut().insert(0, 5);
    assert_eq!(bench.send("c").calls, ["A"]);
}

fn terminal_pin(_: &Case) {
    let mut bench = pinned_bench(&["A/m", "B/m"]);
    bench.world.pins.borrow_mut().insert(0, 0);
    bench.world.rest(0, Exclusion::of(ExclusionReason::Terminal));
    for _ in 0..20 {
        assert_eq!(bench.send("c").calls, ["B"]);
    }
}
