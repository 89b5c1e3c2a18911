//! The calls of composed requests as walks, and what a plan says about them.

use std::sync::Arc;

use crate::support::*;
use omniroute::routing::{Budget, Exclusion, ExclusionReason, Inner, Part, Plan, Request, Resolved, Seeded};
use omniroute::snapshot::{ApiKey, Combo, Fusion, Handoff, Strategy};

fn panel() -> Combo {
    let mut panel = combo("panel", Strategy::Fusion, &["a/m", "inner", "b/m"]);
    panel.options.fusion = Some(Fusion { judge: Some(("judge".to_owned(), "j".to_owned())), ..Fusion::default() });
    panel
}

/// The panel a/m, [c/m, d/m], b/m with the judge judge/j.
fn bench() -> Bench {
    let mut s =
        snapshot(vec![panel(), combo("inner", Strategy::Priority, &["c/m", "d/m"]), combo("other", Strategy::Priority, &["judge/x"])]);
    s.connections.push(connection("a-2", "a"));
    Bench::new(s)
}

fn part(bench: &Bench, part: Part) -> Resolved {
    let combo = bench.router.snapshot().combos.iter().position(|c| c.name == "panel").unwrap();
    Resolved::Part { combo, part }
}

fn judge(bench: &Bench) -> Part {
    Part::Model(bench.router.model("judge", "j").unwrap())
}

fn inner(failures: u32) -> Request {
    let budget = Arc::new(Budget::new(failures, START.plus(60_000)));
    Request { inner: Some(Inner { budget, patient: false }), ..chat() }
}

#[test]
fn a_call_goes_to_its_own_entry_and_no_other() {
    for (called, script, expected) in [
        (Part::Entry(0), vec![], vec!["a"]),
        (Part::Entry(0), vec!["a"], vec!["a", "a-2"]),
        (Part::Entry(1), vec!["c"], vec!["c", "d"]),
        (Part::Entry(1), vec!["c", "d"], vec!["c", "d"]),
        (Part::Entry(2), vec!["b"], vec!["b"]),
    ] {
        let mut bench = bench();
        for failing in &script {
            bench = bench.on(failing, &[status(500)]);
        }
        let resolved = part(&bench, called);
        let outcome = bench.follow(&resolved, "panel", inner(30), &mut Seeded(1));
        assert_eq!(outcome.calls, expected, "{resolved:?}");
        assert_eq!(outcome.answer.is_some(), script.len() == expected.len());
    }
    let mut bench = bench();
    let resolved = part(&bench, judge(&bench));
    let outcome = bench.follow(&resolved, "panel", inner(30), &mut Seeded(1));
    assert_eq!((outcome.labels, outcome.calls), (vec!["judge/j".to_owned()], vec!["judge".to_owned()]));
}

#[test]
fn calls_share_failures_and_each_may_dispatch_once() {
    let mut bench = bench().on("a", &[status(500)]).on("a-2", &[status(500)]).on("c", &[status(500)]).on("d", &[ok()]);
    let request = inner(2);
    let budget = request.inner.clone().unwrap().budget;
    let first = part(&bench, Part::Entry(0));
    assert_eq!(bench.follow(&first, "panel", request.clone(), &mut Seeded(1)).calls, ["a", "a-2"]);
    let second = part(&bench, Part::Entry(1));
    let outcome = bench.follow(&second, "panel", request.clone(), &mut Seeded(1));
    assert_eq!((outcome.calls.clone(), outcome.status()), (vec!["c".to_owned()], 503), "the others spent what comes after a failure");
    let last = part(&bench, judge(&bench));
    assert_eq!(bench.follow(&last, "panel", request, &mut Seeded(1)).status(), 200);
    assert_eq!(budget.dispatched(), 4);
}

#[test]
fn the_end_of_the_whole_request_is_the_end_of_each_call() {
    let mut slow = status(500);
    slow.takes_ms = 61_000;
    let mut bench = bench().on("a", &[slow]);
    let resolved = part(&bench, Part::Entry(0));
    let outcome = bench.follow(&resolved, "panel", inner(30), &mut Seeded(1));
    assert_eq!((outcome.calls.len(), outcome.status(), outcome.code()), (1, 504, "COMBO_TIMEOUT"));
}

#[test]
fn only_a_patient_call_waits_for_a_timer() {
    for patient in [false, true] {
        let mut s = snapshot(vec![panel(), combo("inner", Strategy::Priority, &["c/m"])]);
        s.settings.combo_cooldown_wait.enabled = true;
        s.combos.iter_mut().for_each(|c| c.cooldown_wait = true);
        let mut bench = Bench::new(s);
        let cooling = Exclusion {
            until: Some(START.plus(5_000)),
            cause: Some(omniroute::classify::Reason::ServerError),
            ..Exclusion::of(ExclusionReason::ConnectionCooldown)
        };
        bench.world.rest(bench.connection("a"), cooling);
        let mut request = inner(30);
        request.inner.as_mut().unwrap().patient = patient;
        let resolved = part(&bench, Part::Entry(0));
        let outcome = bench.follow(&resolved, "panel", request, &mut Seeded(1));
        assert_eq!((outcome.waits.len(), outcome.calls.len()), (usize::from(patient), usize::from(patient)));
    }
}

#[test]
fn a_key_for_the_combo_may_use_its_judge_and_a_key_for_a_target_may_not() {
    for (allowed, expected) in [("panel", 200), ("a/*", 403)] {
        let mut bench = bench();
        let key = ApiKey {
            name: "k".to_owned(),
            sha256: String::new(),
            scopes: vec![],
            allowed_connections: None,
            allowed_models: Some(vec![allowed.to_owned()]),
        };
        let policy = omniroute::routing::KeyPolicy::new(&key, bench.router.snapshot());
        let resolved = part(&bench, judge(&bench));
        let outcome = bench.follow(&resolved, "panel", Request { key: Arc::new(policy), ..inner(30) }, &mut Seeded(1));
        assert_eq!(outcome.status() == 200, expected == 200, "{allowed}: {outcome:?}");
        assert_eq!(outcome.calls.is_empty(), expected != 200);
    }
}

fn notes(plan: &Plan) -> Vec<(String, String)> {
    plan.targets.iter().map(|t| (t.target.clone(), t.note.clone().unwrap_or_default())).collect()
}

fn plan(combos: Vec<Combo>, name: &str) -> Vec<(String, String)> {
    let bench = Bench::new(snapshot(combos));
    notes(&bench.router.plan(&bench.router.resolve(name), &chat(), &bench.world, START, &mut Seeded(1)))
}

#[test]
fn a_plan_says_what_each_target_does() {
    let bench = bench();
    let shown = notes(&bench.router.plan(&bench.router.resolve("panel"), &chat(), &bench.world, START, &mut Seeded(1)));
    let targets: Vec<&str> = shown.iter().map(|(target, _)| target.as_str()).collect();
    assert_eq!(targets, ["a/m", "inner>c/m", "inner>d/m", "b/m", "judge/j"]);
    assert_eq!(shown[3].1, "voice 3 of 3, all asked at once; 2 answers are enough");
    assert!(shown[4].1.starts_with("judge: "), "{shown:?}");

    let mut steps = combo("steps", Strategy::Pipeline, &["a/m", "b/m"]);
    steps.targets[1].prompt = Some("shorten".to_owned());
    let shown = plan(vec![steps], "steps");
    assert_eq!(shown.iter().map(|(_, note)| note.as_str()).collect::<Vec<_>>(), ["step 1 of 2", "step 2 of 2, with a prompt of its own"]);

    let mut relay = combo("relay", Strategy::ContextRelay, &["a/m", "b/m"]);
    relay.options.handoff = Some(Handoff { threshold_percent: 85, model: None, providers: vec!["b".to_owned()], max_messages: 30 });
    let shown = plan(vec![relay], "relay");
    assert_eq!(
        shown.iter().map(|(_, note)| note.as_str()).collect::<Vec<_>>(),
        ["", "hands its sessions over when 85 % of a quota are used"]
    );
}
