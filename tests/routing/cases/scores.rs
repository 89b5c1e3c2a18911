//! Cases about the strategies that score: auto and the quota-aware ones.

use omniroute::api::time::EpochMs;
use omniroute::classify::Reason;
use omniroute::routing::strategies::auto::{Metrics, Scale, latency, sla};
use omniroute::routing::strategies::{Candidate, Event, EventKind, Measured, OrderContext, build};
use omniroute::routing::{Exclusion, ExclusionReason, KeyPolicy, Quota, QuotaWindow, Request, Seeded, Strategy, WindowKind};
use omniroute::snapshot::{ApiKey, Auto, AutoRouter, Combo, Settings, Strategy as Kind};

use super::Case;
use crate::support::*;

pub fn find(id: &str) -> Option<fn(&Case)> {
    Some(match id {
        "RC-080" => auto_last_good,
        "RC-081" => auto_affinity,
        "RC-083" | "RC-092" | "RC-093" => auto_latency,
        "RC-084" => auto_sla_router,
        "RC-085" | "RC-086" | "RC-087" | "RC-089" => auto_sla_scores,
        "RC-090" | "RC-091" => auto_open,
        "RC-094" => auto_unknown,
        "RC-095" | "RC-096" => auto_unhealthy,
        "RC-102" | "RC-104" => reset_aware,
        "RC-108" => reset_aware_key,
        "RC-110" => reset_window,
        "RC-112" | "RC-118" | "RC-119" | "RC-122" => quota_weighted,
        "RC-116" | "RC-117" => half_open,
        "RC-123" => quota_weighted_open,
        "RC-124" => released_once,
        "RC-127" | "RC-129" | "RC-130" | "RC-132" | "RC-133" => quota_share,
        _ => return None,
    })
}

fn auto(router: AutoRouter, targets: &[&str]) -> Combo {
    let mut c = combo("c", Kind::Auto, targets);
    c.options.auto =
        Some(Auto { router_strategy: router, sla_target_p95_ms: 1_500, sla_max_error_rate_percent: 5, sla_hard_constraints: false });
    c
}

fn auto_last_good(case: &Case) {
    let first = case.expect["first"].as_str().unwrap();
    let mut bench = Bench::new(snapshot(vec![auto(AutoRouter::Lkgp, &["openai/m", "claude/m", "gemini/m"])]));
    for name in ["openai", "gemini"] {
        bench = bench.on(name, &[status(500), ok()]);
    }
    assert_eq!(bench.send("c").calls.last().unwrap(), first);
    bench.now = bench.now.plus(60_000);
    for _ in 0..3 {
        assert_eq!(bench.send("c").calls, [first]);
    }
}

fn auto_affinity(case: &Case) {
    let mut s = snapshot(vec![auto(AutoRouter::Rules, &["p/m"])]);
    s.connections = vec![connection("A", "p"), connection("B", "p")];
    let mut bench = Bench::new(s);
    bench.world.pins.borrow_mut().insert(0, 1);
    // Above the share of exploration: everything else is equal, the session decides.
    for _ in 0..10 {
        assert_eq!(bench.send_with("c", &mut || u64::MAX).calls, [case.expect["connection"].as_str().unwrap()]);
    }
}

fn well(p95_ms: f64, errors: f64) -> Metrics {
    Metrics {
        average_ms: Some(p95_ms),
        p95_ms,
        deviation_ms: 50.0,
        errors: Some(errors),
        health: 1.0,
        cost: None,
        quota: 1.0,
        affinity: 0.5,
    }
}

/// Answers of each target, then the order.
fn taught(router: AutoRouter, answers: &[(&str, u64, u32)]) -> Vec<String> {
    let targets: Vec<String> = answers.iter().map(|(name, ..)| format!("{name}/m")).collect();
    let mut bench = Bench::new(snapshot(vec![auto(router, &targets.iter().map(String::as_str).collect::<Vec<_>>())]));
    let strategy = &build(&bench.router.snapshot().combos[0], &Settings::default());
    for (unit, (_, ms, failures)) in answers.iter().enumerate() {
        for attempt in 0..20 {
            let latency_ms = *ms;
            let kind = if attempt < *failures { EventKind::Failed { latency_ms } } else { EventKind::Succeeded { latency_ms } };
            strategy.observe(&Event { unit, key: key(unit), first: true, now: START, kind });
        }
    }
    bench.now = START;
    let request = chat();
    let order = strategy.order(&candidates(answers.len()), &mut OrderContext { request: &request, now: START, rng: &mut Seeded(1) });
    order.iter().map(|r| answers[r.candidate].0.to_owned()).collect()
}

fn key(unit: usize) -> u64 {
    u64::try_from(unit).unwrap() + 1
}

fn candidates(n: usize) -> Vec<Candidate> {
    let candidate = |unit| Candidate {
        unit,
        key: key(unit),
        weight: 1,
        available: true,
        window: None,
        price: None,
        connection: None,
        measured: Measured::default(),
    };
    (0..n).map(candidate).collect()
}

fn auto_latency(case: &Case) {
    let first = match case.id.as_str() {
        "RC-083" => taught(AutoRouter::Latency, &[("gpt-4o-mini", 900, 0), ("gemini-2.5-flash", 300, 0)]).remove(0),
        "RC-092" => taught(AutoRouter::Latency, &[("flaky", 200, 6), ("steady", 900, 0)]).remove(0),
        _ => {
            let bursty = Metrics { deviation_ms: 1_500.0, ..well(1_000.0, 0.0) };
            let steady = Metrics { deviation_ms: 50.0, ..well(1_000.0, 0.0) };
            let scale = Scale::of(&[bursty, steady]);
            if latency(&steady, &scale) > latency(&bursty, &scale) { "steady".to_owned() } else { "bursty".to_owned() }
        }
    };
    assert_eq!(first, case.expect["first"].as_str().unwrap());
}

fn auto_sla_router(case: &Case) {
    let order = taught(AutoRouter::SlaAware, &[("gpt-4o", 2_500, 0), ("gemini-2.5-flash", 400, 0), ("claude", 3_000, 2)]);
    assert_eq!(order[0], case.expect["first"].as_str().unwrap());
}

fn auto_sla_scores(case: &Case) {
    let all = |metrics: &[Metrics], p95, errors| -> Vec<(f64, f64)> {
        let scale = Scale::of(metrics);
        metrics.iter().map(|m| sla(m, &scale, p95, errors)).collect()
    };
    match case.id.as_str() {
        "RC-085" => {
            let scores = all(&[well(800.0, 0.2), well(1_400.0, 0.01), well(3_500.0, 0.01)], 2_000.0, 0.05);
            assert!(scores[1].0 > scores[0].0 && scores[1].0 > scores[2].0, "{scores:?}");
        }
        "RC-086" => {
            // Nobody meets the targets: with hard constraints the smallest miss goes first, and the trace says so.
            let mut c = auto(AutoRouter::SlaAware, &["a/m", "b/m"]);
            c.options.auto.as_mut().unwrap().sla_hard_constraints = true;
            c.options.auto.as_mut().unwrap().sla_target_p95_ms = 100;
            let strategy = build(&c, &Settings::default());
            for (unit, latency_ms) in [(0, 4_000), (1, 200)] {
                for _ in 0..10 {
                    strategy.observe(&Event { unit, key: key(unit), first: true, now: START, kind: EventKind::Succeeded { latency_ms } });
                }
            }
            let request = chat();
            let order = strategy.order(&candidates(2), &mut OrderContext { request: &request, now: START, rng: &mut Seeded(1) });
            assert_eq!(order[0].candidate, 1);
            assert!(order.iter().all(|r| r.note.as_ref().unwrap().contains("misses its targets")), "{order:?}");
        }
        "RC-087" => {
            let compliant = Metrics { health: 0.5, ..well(2_000.0, 0.01) };
            let scores = all(&[well(500.0, 0.06), compliant], 2_000.0, 0.05);
            assert!(scores[0].0 > scores[1].0, "{scores:?}");
        }
        _ => {
            let (score, missed) = all(&[well(2_000.0, 0.05)], 2_000.0, 0.05)[0];
            assert!(score > case.expect["score_gt"].as_f64().unwrap() && missed == 0.0, "{score}");
        }
    }
}

fn auto_open(_: &Case) {
    let mut bench = Bench::new(snapshot(vec![auto(AutoRouter::Latency, &["a/m", "b/m"])]));
    bench.world.rest(0, Exclusion::of(ExclusionReason::CircuitOpen));
    for _ in 0..20 {
        assert_eq!(bench.send("c").calls, ["b"], "out is last, and never dispatched");
    }
    bench.world.rest(1, Exclusion::of(ExclusionReason::CircuitOpen));
    let outcome = bench.send("c");
    assert!(outcome.calls.is_empty() && outcome.status() == 503, "no healthy candidate is an answer: {outcome:?}");
}

fn auto_unknown(_: &Case) {
    let unknown = Metrics { average_ms: None, errors: None, ..well(1_500.0, 0.0) };
    let scale = Scale::of(&[unknown]);
    // Half for what is not measured (.25 + .20 + .18 + .12), full for health, reliability, stability.
    let expected = 0.5 * 0.75 + 0.05 + 0.15 + 0.05;
    assert!((latency(&unknown, &scale) - expected).abs() < 1e-9);
}

fn auto_unhealthy(case: &Case) {
    // Two of three are being probed: nobody experiments, whatever the draw.
    let strategy = build(&auto(AutoRouter::Rules, &["a/m", "b/m", "c/m"]), &Settings::default());
    let mut given = candidates(3);
    let probed = if case.id == "RC-096" { 2 } else { 1 };
    given.iter_mut().take(probed).for_each(|c| c.measured.probing = true);
    let request = chat();
    let order = strategy.order(&given, &mut OrderContext { request: &request, now: START, rng: &mut || u64::MAX });
    assert_eq!(order[0].candidate, if probed == 2 { 2 } else { order[0].candidate });
    assert!(!given[order[0].candidate].measured.probing, "the healthy one goes first");
    if probed == 2 {
        let order = strategy.order(&given, &mut OrderContext { request: &request, now: START, rng: &mut || 0 });
        assert_eq!(order[0].candidate, 2, "a draw that would explore does not");
    }
}

/// Share used, and when it starts again.
fn window(kind: WindowKind, used: f64, resets_ms: Option<u64>) -> QuotaWindow {
    QuotaWindow { kind, remaining: 1.0 - used, resets: resets_ms.map(|ms| START.plus(ms)) }
}

fn quota_of(windows: Vec<QuotaWindow>) -> Option<Quota> {
    Some(Quota { windows, limit_reached: false, observed: START })
}

/// Accounts in the order of a strategy.
fn ordered(strategy: &dyn Strategy, quotas: &[Option<Quota>], rng: &mut Seeded) -> Vec<usize> {
    let mut given = candidates(quotas.len());
    for (candidate, quota) in given.iter_mut().zip(quotas) {
        candidate.measured.quota.clone_from(quota);
    }
    let request = chat();
    strategy.order(&given, &mut OrderContext { request: &request, now: START, rng }).iter().map(|r| r.candidate).collect()
}

const HOUR: u64 = 3_600_000;

fn reset_aware(case: &Case) {
    let strategy = build(&combo("c", Kind::ResetAware, &["a/m", "b/m"]), &Settings::default());
    let quotas = if case.id == "RC-102" {
        // The first would lose most by its reset.
        [quota_of(vec![window(WindowKind::Weekly, 0.7, Some(2 * HOUR))]), quota_of(vec![window(WindowKind::Weekly, 0.0, Some(168 * HOUR))])]
    } else {
        [
            quota_of(vec![window(WindowKind::Session, 0.2, None), window(WindowKind::Weekly, 0.5, None)]),
            quota_of(vec![window(WindowKind::Session, 0.98, None)]),
        ]
    };
    assert_eq!(ordered(&*strategy, &quotas, &mut Seeded(1)), [0, 1], "{}", case.id);
    let turned: Vec<Option<Quota>> = quotas.iter().rev().cloned().collect();
    assert_eq!(ordered(&*strategy, &turned, &mut Seeded(1)), [1, 0], "{}", case.id);
}

fn reset_aware_key(_: &Case) {
    let mut s = snapshot(vec![combo("c", Kind::ResetAware, &["p/m"])]);
    s.connections = vec![connection("allowed", "p"), connection("other", "p")];
    let key = ApiKey {
        name: "k".into(),
        sha256: String::new(),
        scopes: vec![],
        allowed_connections: Some(vec!["allowed".into()]),
        allowed_models: None,
    };
    let request = Request { key: std::sync::Arc::new(KeyPolicy::new(&key, &s)), ..chat() };
    let mut bench = Bench::new(s);
    let learn = |bench: &Bench, connection, used: &'static str| {
        let header = |name: &str| match name {
            "anthropic-ratelimit-unified-7d-utilization" => Some(used),
            "anthropic-ratelimit-unified-7d-reset" => Some("3600"),
            _ => None,
        };
        bench.router.learn_quota(connection, header, START);
    };
    learn(&bench, 0, "0.0");
    learn(&bench, 1, "0.9");
    assert_eq!(bench.send("c").calls, ["other"], "learned from the answers: its week ends with much to lose");
    assert_eq!(bench.run("c", request).calls, ["allowed"]);
}

fn reset_window(case: &Case) {
    let strategy = build(&combo("c", Kind::ResetWindow, &["openai/m", "gemini/m"]), &Settings::default());
    let reached = Some(Quota { limit_reached: true, observed: START, windows: vec![window(WindowKind::Weekly, 1.0, Some(60_000))] });
    let order = ordered(&*strategy, &[reached, quota_of(vec![window(WindowKind::Weekly, 0.5, Some(HOUR))])], &mut Seeded(1));
    assert_eq!(["openai", "gemini"][order[0]], case.expect["first"].as_str().unwrap());
    // Within the band they take turns, beyond it the nearer reset goes first.
    let near =
        [quota_of(vec![window(WindowKind::Weekly, 0.5, Some(HOUR))]), quota_of(vec![window(WindowKind::Weekly, 0.5, Some(HOUR + 30_000))])];
    let firsts: Vec<usize> = (0..4).map(|_| ordered(&*strategy, &near, &mut Seeded(1))[0]).collect();
    assert_eq!(firsts.iter().filter(|f| **f == 0).count(), 2, "{firsts:?}");
}

fn quota_weighted(case: &Case) {
    let kind = combo("c", Kind::QuotaWeighted, &["a/m", "b/m"]);
    let strategy = build(&kind, &Settings::default());
    let used = |share| quota_of(vec![window(WindowKind::Weekly, share, None)]);
    match case.id.as_str() {
        "RC-112" => {
            let mut quotas = vec![used(1.0); 7];
            quotas.extend([used(0.995), used(0.995), used(0.2)]);
            for seed in 0..20 {
                let order = ordered(&*build(&kind, &Settings::default()), &quotas, &mut Seeded(seed));
                assert_eq!(order[0], 9);
                // Those with something left are the case's three; the used-up ones only follow, so that no account is ever out without an end.
                let mut front = order[..usize::try_from(case.expect["length"].as_u64().unwrap()).unwrap()].to_vec();
                front.sort_unstable();
                assert_eq!(front, [7, 8, 9]);
            }
        }
        "RC-118" => {
            // Equal accounts, the second request while the first runs: the load halves the weight, over many draws they spread.
            let same: u32 = (0..1_000)
                .map(|seed| {
                    let strategy = build(&kind, &Settings::default());
                    let mut rng = Seeded(seed);
                    u32::from(
                        ordered(&*strategy, &[used(0.5), used(0.5)], &mut rng)[0]
                            == ordered(&*strategy, &[used(0.5), used(0.5)], &mut rng)[0],
                    )
                })
                .sum();
            assert!((270..400).contains(&same), "a third of the pairs, not a half: {same}");
        }
        "RC-119" => {
            let firsts: Vec<usize> =
                (0..200).map(|seed| ordered(&*build(&kind, &Settings::default()), &[None, used(0.5)], &mut Seeded(seed))[0]).collect();
            assert!(firsts.contains(&0) && firsts.contains(&1), "nothing known stays in");
            assert!((Quota::default().remaining(START) - 1.0).abs() < 1e-9);
        }
        _ => {
            let monthly = Quota { windows: vec![window(WindowKind::Monthly, 0.95, None)], ..Quota::default() };
            let percent = monthly.remaining(START) * 100.0;
            assert!((percent - case.expect["percent"].as_f64().unwrap()).abs() < 1e-6);
            drop(strategy);
        }
    }
}

fn half_open(case: &Case) {
    let weights = super::numbers(&case.given["weights"]);
    let total: f64 = weights.iter().sum();
    let r = case.given["r"].as_f64().unwrap() / total;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bits = ((r * 9_007_199_254_740_992.0).ceil() as u64) << 11;
    let targets: Vec<String> = weights.iter().enumerate().map(|(i, w)| format!("p{i}/m*{w}")).collect();
    let strategy = build(&combo("c", Kind::Weighted, &targets.iter().map(String::as_str).collect::<Vec<_>>()), &Settings::default());
    let mut given = candidates(weights.len());
    for (candidate, weight) in given.iter_mut().zip(&weights) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let weight = *weight as u32;
        candidate.weight = weight;
    }
    let request = chat();
    let order = strategy.order(&given, &mut OrderContext { request: &request, now: START, rng: &mut || bits });
    assert_eq!(order[0].candidate, usize::try_from(case.expect["index"].as_u64().unwrap()).unwrap());
}

fn quota_weighted_open(_: &Case) {
    let mut bench = Bench::new(snapshot(vec![combo("c", Kind::QuotaWeighted, &["a/m", "b/m"])]));
    for connection in 0..2 {
        let exclusion =
            Exclusion { until: Some(START.plus(9_000)), cause: Some(Reason::ServerError), ..Exclusion::of(ExclusionReason::CircuitOpen) };
        bench.world.rest(connection, exclusion);
    }
    let outcome = bench.send("c");
    assert!(outcome.calls.is_empty());
    assert_eq!((outcome.status(), outcome.answer.unwrap().retry_after_seconds), (503, Some(9)));
}

fn released_once(_: &Case) {
    let strategy = build(&combo("c", Kind::QuotaWeighted, &["a/m", "b/m"]), &Settings::default());
    let event = |kind| Event { unit: 0, key: key(0), first: true, now: EpochMs(START.0 + 1), kind };
    strategy.observe(&event(EventKind::Entered));
    strategy.observe(&event(EventKind::Left));
    strategy.observe(&event(EventKind::Left));
    // A second release takes nothing from anybody: the next entry counts as one.
    strategy.observe(&event(EventKind::Entered));
    let shares: u32 = (0..1_000)
        .map(|seed| {
            let mut rng = Seeded(seed);
            let order = ordered(&*strategy, &[None, None], &mut rng);
            strategy.observe(&Event { unit: order[0], key: key(order[0]), first: true, now: START, kind: EventKind::Left });
            u32::from(order[0] == 0)
        })
        .sum();
    assert!((270..400).contains(&shares), "one request in flight: half the weight of the other: {shares}");
}

fn share(weights: &[u32]) -> (std::sync::Arc<dyn Strategy>, Vec<Candidate>) {
    let mut kind = combo("c", Kind::QuotaWeighted, &["a/m", "b/m"]);
    kind.options.quota_share = true;
    let mut given = candidates(weights.len());
    given.iter_mut().zip(weights).for_each(|(candidate, weight)| candidate.weight = *weight);
    (build(&kind, &Settings::default()), given)
}

/// The order of one request, which ends at once.
fn turn(strategy: &dyn Strategy, given: &[Candidate]) -> Vec<usize> {
    let request = chat();
    let ranked = strategy.order(given, &mut OrderContext { request: &request, now: START, rng: &mut Seeded(1) });
    let order: Vec<usize> = ranked.iter().map(|r| r.candidate).collect();
    strategy.observe(&Event { unit: order[0], key: key(order[0]), first: true, now: START, kind: EventKind::Left });
    order
}

fn quota_share(case: &Case) {
    match case.id.as_str() {
        "RC-127" => {
            // What an account has left is known for the account, not for single models: half of it used demotes nobody.
            let (strategy, mut given) = share(&[1, 1]);
            given[0].measured.quota = quota_of(vec![window(WindowKind::Weekly, 0.5, None)]);
            assert_eq!(turn(&*strategy, &given), [0, 1]);
        }
        "RC-129" => {
            let (strategy, given) = share(&[1, 1]);
            let mut firsts = [turn(&*strategy, &given)[0], turn(&*strategy, &given)[0]];
            firsts.sort_unstable();
            assert_eq!(firsts, [0, 1]);
        }
        "RC-130" => {
            let (strategy, given) = share(&[200, 100]);
            let first = (0..30).filter(|_| turn(&*strategy, &given)[0] == 0).count();
            assert_eq!(first, 20, "two of three");
        }
        "RC-132" => {
            let (strategy, mut given) = share(&[1, 1]);
            (given[0].measured.full, given[0].measured.in_flight, given[1].measured.in_flight) = (true, 1, 3);
            assert_eq!(turn(&*strategy, &given), [1, 0]);
        }
        _ => {
            let (strategy, mut given) = share(&[1, 1]);
            given.iter_mut().for_each(|c| c.measured.full = true);
            assert_eq!(turn(&*strategy, &given).len(), usize::try_from(case.expect["targets"].as_u64().unwrap()).unwrap());
        }
    }
}

#[test]
fn shares_put_what_is_used_up_last_and_prefer_the_less_busy_of_two() {
    let (strategy, mut given) = share(&[1, 1, 1, 1]);
    given[0].measured.quota = quota_of(vec![window(WindowKind::Session, 1.0, None)]);
    given[1].measured.full = true;
    (given[2].measured.in_flight, given[3].measured.in_flight) = (2, 1);
    assert_eq!(turn(&*strategy, &given), [3, 2, 1, 0]);
    given.iter_mut().for_each(|c| c.measured.quota = quota_of(vec![window(WindowKind::Session, 1.0, None)]));
    assert_eq!(turn(&*strategy, &given).last(), Some(&1), "when all are used up, all take part");
}

#[test]
fn shares_hold_against_what_others_keep_busy() {
    // The first is always the busier one: the second gets every turn, and the first no more than two to make up for it.
    let (strategy, mut given) = share(&[1, 1]);
    given[0].measured.in_flight = 1;
    for _ in 0..20 {
        assert_eq!(turn(&*strategy, &given)[0], 1);
    }
    given[0].measured.in_flight = 0;
    let firsts: Vec<usize> = (0..8).map(|_| turn(&*strategy, &given)[0]).collect();
    assert_eq!(firsts[..4], [0; 4], "what it is owed, and what the other had too much");
    assert_eq!(firsts[4..].iter().filter(|first| **first == 0).count(), 2, "then by turns: {firsts:?}");
}
