//! Properties of routing: orders are permutations, weights hold, the same seed gives the same decisions, every walk ends within its bounds.

use std::collections::HashMap;

use crate::support::*;
use omniroute::routing::strategies::{Candidate, Measured, OrderContext, build};
use omniroute::routing::{Exclusion, ExclusionReason, Seeded};
use omniroute::snapshot::{AccountStrategy, Combo, CooldownWait, Price, Settings, Strategy};
use proptest::prelude::*;

const PICKS: u32 = 100_000;

fn candidates(n: usize, availability: u64) -> Vec<Candidate> {
    (0..n)
        .map(|unit| Candidate {
            unit,
            key: u64::try_from(unit).unwrap() * 977 + 13,
            weight: u32::try_from(unit % 3).unwrap(),
            available: availability >> unit & 1 == 1,
            window: (unit % 2 == 0).then_some(1_000 * (u64::try_from(unit).unwrap() + 1)),
            price: (unit % 4 != 0).then_some(Price { input: 100 - u64::try_from(unit).unwrap(), output: 5, cached_input: None }),
            connection: None,
            measured: Measured::default(),
        })
        .collect()
}

fn of(strategy: Strategy, n: usize) -> Combo {
    combo("c", strategy, &(0..n).map(|i| format!("p{i}/m")).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn an_order_is_a_permutation_with_the_available_first(n in 0usize..12, seed: u64, masks in prop::collection::vec(any::<u64>(), 1..8)) {
        for kind in &Strategy::ALL {
            let strategy = build(&of(*kind, n), &Settings::default());
            let mut rng = Seeded(seed);
            let request = chat();
            for mask in &masks {
                let given = candidates(n, *mask);
                let order = strategy.order(&given, &mut OrderContext { request: &request, now: START, rng: &mut rng });
                let mut places: Vec<usize> = order.iter().map(|r| r.candidate).collect();
                if strategy.traits().availability {
                    let firsts = given.iter().filter(|c| c.available).count();
                    prop_assert!(places[..firsts].iter().all(|i| given[*i].available), "{kind:?}: {places:?}");
                }
                places.sort_unstable();
                prop_assert_eq!(places, (0..n).collect::<Vec<_>>(), "{:?}", kind);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_orders(n in 1usize..10, seed: u64) {
        for kind in &Strategy::ALL {
            let run = || {
                let strategy = build(&of(*kind, n), &Settings::default());
                let (mut rng, request) = (Seeded(seed), chat());
                (0..20).map(|_| strategy.order(&candidates(n, u64::MAX), &mut OrderContext { request: &request, now: START, rng: &mut rng })).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(), run(), "{:?}", kind);
        }
    }
}

/// Shares of the first place over many picks.
fn shares(combo: &Combo, seed: u64) -> HashMap<usize, f64> {
    let strategy = build(combo, &Settings::default());
    let given: Vec<Candidate> = combo
        .targets
        .iter()
        .enumerate()
        .map(|(i, t)| Candidate { weight: t.weight, available: true, ..candidates(i + 1, u64::MAX).pop().unwrap() })
        .collect();
    let (mut rng, request) = (Seeded(seed), chat());
    let mut counts: HashMap<usize, u32> = HashMap::new();
    for _ in 0..PICKS {
        let order = strategy.order(&given, &mut OrderContext { request: &request, now: START, rng: &mut rng });
        *counts.entry(order[0].candidate).or_default() += 1;
    }
    counts.into_iter().map(|(i, n)| (i, f64::from(n) / f64::from(PICKS))).collect()
}

#[test]
fn weights_hold_within_two_percent() {
    for seed in [1, 2, 3] {
        let weighted = shares(&combo("c", Strategy::Weighted, &["a/m*70", "b/m*25", "c/m*5", "d/m*0"]), seed);
        for (unit, share) in [(0, 0.70), (1, 0.25), (2, 0.05)] {
            assert!((weighted[&unit] - share).abs() < 0.02 * share.max(0.1), "{seed}: {weighted:?}");
        }
        assert!(!weighted.contains_key(&3), "a zero weight is never drawn while another has one");
        for (strategy, targets) in
            [(Strategy::Weighted, ["a/m*0", "b/m*0", "c/m*0", "d/m*0"]), (Strategy::Random, ["a/m", "b/m", "c/m", "d/m"])]
        {
            let uniform = shares(&combo("c", strategy, &targets), seed);
            assert!((0..4).all(|i| (uniform[&i] - 0.25).abs() < 0.005), "{strategy:?} {seed}: {uniform:?}");
        }
    }
}

#[test]
fn weighted_accounts_hold_within_two_percent() {
    let mut s = snapshot(vec![combo("c", Strategy::Priority, &["p/m"])]);
    s.providers[0].account_strategy = AccountStrategy::Weighted;
    s.connections =
        [("x", 3), ("y", 1), ("z", 0)].iter().map(|(n, w)| omniroute::snapshot::Connection { weight: *w, ..connection(n, "p") }).collect();
    let mut bench = Bench::new(s);
    let mut counts: HashMap<String, u32> = HashMap::new();
    for _ in 0..PICKS {
        *counts.entry(bench.send("c").calls.remove(0)).or_default() += 1;
    }
    assert!((f64::from(counts["x"]) / f64::from(PICKS) - 0.75).abs() < 0.01, "{counts:?}");
    assert!(!counts.contains_key("z"));
}

/// A reply by number.
fn reply(code: u8) -> Reply {
    match code % 12 {
        0 | 1 => ok(),
        2 => status(500),
        3 => status(503),
        4 => status(429),
        5 => stated(5),
        6 => quota(),
        7 => status(401),
        8 => status(402),
        9 => status(400),
        10 => Reply { timeout: true, takes_ms: 1_000, ..status(504) },
        _ => Reply { quality: true, ..fails(200, verdict(omniroute::classify::Reason::ServerError)) },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_walk_ends_within_its_bounds(
        scripts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..4), 6),
        kinds in prop::collection::vec(0usize..Strategy::ALL.len(), 3),
        (max, per_target, set_retries) in (1u32..12, 0u32..4, 0u32..3),
        (wait, protect) in (any::<bool>(), any::<bool>()),
        rests in prop::collection::vec(any::<u8>(), 6),
        seed: u64,
    ) {
        let mut root = combo("root", Strategy::ALL[kinds[0]], &["a/m", "inner*2", "b/m", "a/n"]);
        root.targets[0].fallback_only_on_quota_exhaustion = protect;
        (root.attempts.max, root.attempts.per_target, root.attempts.max_set_retries) = (max, per_target, set_retries);
        root.cooldown_wait = wait;
        let inner = combo("inner", Strategy::ALL[kinds[1]], &["c/m", "deepest", "root"]);
        let deepest = combo("deepest", Strategy::ALL[kinds[2]], &["a/m", "d/m"]);
        let mut s = snapshot(vec![root, inner, deepest]);
        s.connections.extend(["a-2", "a-3"].map(|n| connection(n, "a")));
        s.settings.combo_cooldown_wait = CooldownWait { enabled: wait, ..CooldownWait::default() };
        let mut bench = Bench::new(s);
        bench.rng = Seeded(seed);
        for (name, script) in ["a", "a-2", "a-3", "b", "c", "d"].iter().zip(&scripts) {
            bench = bench.on(name, &script.iter().map(|c| reply(*c)).collect::<Vec<_>>());
        }
        for (connection, rest) in rests.iter().enumerate() {
            if rest % 5 == 0 {
                bench.world.rest(connection, Exclusion { reason: ExclusionReason::ConnectionCooldown, until: Some(START.plus(u64::from(*rest) * 500)), cause: Some(omniroute::classify::Reason::RateLimitExceeded), stated: true });
            }
        }
        let before = bench.now;
        let outcome = bench.send("root");
        // Dead credentials do not use up attempts: at most one each.
        let connections = bench.router.snapshot().connections.len();
        prop_assert!(outcome.calls.len() <= usize::try_from(max).unwrap() + connections, "{:?}", outcome);
        prop_assert!(outcome.waits.len() <= 5 + usize::try_from(set_retries).unwrap());
        prop_assert!(outcome.ended.since(before) <= 600_000 + 5_000, "{:?}", outcome);
        prop_assert_eq!(outcome.delays.len(), outcome.calls.len());
        if let Some(answer) = &outcome.answer {
            prop_assert!((400..600).contains(&answer.status), "{:?}", answer);
            prop_assert!(!matches!(answer.status, 401 | 402) , "our credential is never the client's problem: {:?}", answer);
            prop_assert!(answer.retry_after_seconds.is_none_or(|s| s >= 1));
            prop_assert_eq!(answer.retry_after_seconds.is_some(), answer.retry_at.is_some());
            prop_assert!(!answer.terminal_reason.is_empty() && !answer.code.is_empty());
            prop_assert_eq!(answer.diagnostics.attempt_order.len(), outcome.calls.len());
        }
    }

    /// Past a protected target only when all its failures were quota.
    #[test]
    fn a_protected_target_is_left_only_for_quota(script in prop::collection::vec(any::<u8>(), 1..4), per_target in 1u32..4) {
        let mut c = combo("c", Strategy::Priority, &["primary/m", "backup/m"]);
        c.targets[0].fallback_only_on_quota_exhaustion = true;
        c.attempts.per_target = per_target;
        let replies: Vec<Reply> = script.iter().map(|c| reply(*c)).collect();
        let outcome = Bench::new(snapshot(vec![c])).on("primary", &replies).send("c");
        if outcome.calls.contains(&"backup".to_owned()) {
            let tried = outcome.calls.iter().filter(|c| *c == "primary").count();
            for i in 0..tried {
                let seen = &replies[i.min(replies.len() - 1)];
                let reason = seen.verdict.as_ref().unwrap().reason;
                prop_assert!(!seen.quality && !seen.timeout && matches!(reason, omniroute::classify::Reason::QuotaExhausted | omniroute::classify::Reason::CreditsExhausted), "{:?}", seen);
            }
        }
    }
}
