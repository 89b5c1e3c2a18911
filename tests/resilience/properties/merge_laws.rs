//! Merging is commutative, associative and idempotent, and never loses the later deadline.

use omniroute::api::time::EpochMs;
use omniroute::classify::{LevelChange, Scope, Terminal, Verdict};
use omniroute::resilience::{Checkpoint, Ledger, Report, merge_connections, merge_providers, merge_rules};
use proptest::prelude::*;

use crate::support::{NOW, Random, cell, ledger, server_error, snapshot, stated, strike, terminal, verdict};

/// The ledger of a pod after some random traffic.
fn pod(seed: u64) -> Ledger {
    let mut random = Random(seed | 1);
    let mut snapshot = snapshot(|p| p.breaker.failure_threshold = 3);
    snapshot.settings.provider_cooldown.enabled = true;
    // A pod may still run the credential before.
    if random.chance(30) {
        snapshot.connections[0].credential_fingerprint = "before".to_owned();
    }
    let ledger = ledger(&snapshot);
    for _ in 0..random.below(12) {
        let now = NOW.plus(random.below(5_000));
        let name = *random.pick(&["a", "b", "c"]);
        let Ok(permit) = ledger.begin(&cell(&ledger, name), now) else { continue };
        let verdict = match random.below(6) {
            0 => stated(10_000 + random.below(50_000)),
            1 => Verdict { scope: Scope::Model, ..stated(20_000) },
            2 => strike(0),
            3 => terminal(*random.pick(&[Terminal::Banned, Terminal::Expired])),
            4 => server_error(),
            _ => Verdict { level: LevelChange::Set(random.below(6) as u32), ..verdict() },
        };
        ledger.failure(permit, Some(*random.pick(&["m", "n"])), 429, &verdict, now, 0.0);
    }
    ledger
}

fn at() -> EpochMs {
    NOW.plus(6_000)
}

fn merged(a: &Report, b: &Report) -> Report {
    Report {
        providers: merge_providers(&a.providers, &b.providers),
        connections: merge_connections(&a.connections, &b.connections),
        rules: merge_rules(&a.rules, &b.rules),
        commands: a.commands.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn checkpoints_form_a_semilattice(x: u64, y: u64, z: u64) {
        let [a, b, c] = [x, y, z].map(|seed| pod(seed).export(at()));
        prop_assert_eq!(a.merge(&a), a.clone());
        prop_assert_eq!(a.merge(&b), b.merge(&a));
        prop_assert_eq!(a.merge(&b).merge(&c), a.merge(&b.merge(&c)));
        let empty = Checkpoint { version: a.version, ..Checkpoint::default() };
        prop_assert_eq!(a.merge(&empty), a);
    }

    #[test]
    fn reports_form_a_semilattice(x: u64, y: u64, z: u64) {
        let [a, b, c] = [x, y, z].map(|seed| pod(seed).report(at()));
        prop_assert_eq!(merged(&a, &a), a.clone());
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
    }

    #[test]
    fn the_later_deadline_and_the_graver_state_win(x: u64, y: u64) {
        let [a, b] = [x, y].map(|seed| pod(seed).report(at()));
        for (connection, (one, other)) in merged(&a, &b).connections.iter().zip(a.connections.iter().zip(&b.connections)) {
            prop_assert_eq!(connection.state, one.state.max(other.state));
            for state in [one, other].into_iter().filter(|s| s.state == connection.state) {
                prop_assert!(connection.until >= state.until);
            }
            for lock in one.lockouts.iter().chain(&other.lockouts) {
                prop_assert!(connection.lockouts.iter().any(|l| l.model == lock.model && l.until >= lock.until));
            }
        }
    }

    #[test]
    fn a_pod_that_takes_over_the_memory_of_both_knows_at_least_as_much(x: u64, y: u64) {
        let (one, other) = (pod(x), pod(y));
        let both = one.export(at()).merge(&other.export(at()));
        let fresh = ledger(&snapshot(|p| p.breaker.failure_threshold = 3));
        fresh.restore(&both, at());
        for name in ["b", "c"] {
            for model in ["m", "n"] {
                let held = |l: &Ledger| l.check(&cell(l, name), Some(model), at()).err().filter(|e| e.until.is_none() || e.cause.is_some());
                for pod in [&one, &other] {
                    if let Some(was) = held(pod).filter(|e| e.reason != omniroute::resilience::SkipReason::ProviderCooldown) {
                        let is = fresh.check(&cell(&fresh, name), Some(model), at()).expect_err("it rests for one of them");
                        prop_assert!(is.until.is_none() || is.until >= was.until || is.cause.is_none());
                    }
                }
            }
        }
    }
}
