use super::*;
use crate::resilience::{ConnectionState, LockoutState};

fn text(metrics: &Metrics, report: &StateReport, now: i64) -> String {
    String::from_utf8(metrics.render(report, EpochMs(now)).unwrap()).unwrap()
}

#[test]
fn a_deadline_vanishes_when_it_passes() {
    let report = StateReport {
        connections: vec![ConnectionState {
            name: "a".to_owned(),
            provider: "p".to_owned(),
            state: ConnectionPhase::Cooling,
            reason: Some("RateLimitExceeded".to_owned()),
            until: Some(EpochMs(30_500)),
            lockouts: vec![LockoutState { model: "m".to_owned(), until: Some(EpochMs(40_000)), ..LockoutState::default() }],
            ..ConnectionState::default()
        }],
        ..StateReport::default()
    };
    let metrics = Metrics::new().unwrap();
    let line = "omniroute_connection_cooldown_until_timestamp_seconds{connection=\"a\",provider=\"p\",reason=\"RateLimitExceeded\"} 30.5";
    assert!(text(&metrics, &report, 30_499).contains(line));
    let later = text(&metrics, &report, 30_500);
    assert!(!later.contains("cooldown_until") && later.contains("model_lockout_until"), "{later}");
    assert!(!text(&metrics, &report, 40_000).contains("model_lockout_until"));
}

#[test]
fn names_that_clients_make_up_do_not_become_endless_series() {
    let locked = |n: usize| LockoutState { model: format!("m{n}"), until: Some(EpochMs(40_000)), ..LockoutState::default() };
    let connection = |count| ConnectionState {
        name: "a".to_owned(),
        provider: "p".to_owned(),
        lockouts: (0..count).map(locked).collect(),
        ..ConnectionState::default()
    };
    let metrics = Metrics::new().unwrap();
    let series = |count| {
        let report = StateReport { connections: vec![connection(count)], ..StateReport::default() };
        text(&metrics, &report, 0).lines().count()
    };
    assert_eq!(series(10_000), series(MAX_LOCKOUTS));
}

#[test]
fn series_of_removed_objects_are_forgotten() {
    let metrics = Metrics::new().unwrap();
    RequestCounters::new("gone").count(&metrics, EndpointLabel::ChatCompletions, Origin::Provider, 200);
    RequestCounters::new("").count(&metrics, EndpointLabel::Models, Origin::Gateway, 404);
    AttemptCounters::new("p", "old").failure(&metrics, Reason::AuthError);
    AttemptCounters::new("p", "kept").success(&metrics);
    metrics.prune(|_, name| name == "kept");
    let text = text(&metrics, &StateReport::default(), 0);
    assert!(!text.contains("gone") && !text.contains("\"old\""), "{text}");
    assert!(text.contains("omniroute_requests_total{code_class=\"4xx\",combo=\"\",endpoint=\"models\",origin=\"gateway\"} 1"));
    assert!(text.contains("omniroute_attempts_total{connection=\"kept\",outcome=\"success\",provider=\"p\"} 1"));
}

#[test]
fn strange_statuses_have_a_class() {
    let metrics = Metrics::new().unwrap();
    let counters = RequestCounters::new("c");
    for status in [0, 199, 700, 65_535] {
        counters.count(&metrics, EndpointLabel::Other, Origin::Policy, status);
    }
    let text = text(&metrics, &StateReport::default(), 0);
    assert!(text.contains("code_class=\"2xx\",combo=\"c\",endpoint=\"other\",origin=\"policy\"} 2"));
    assert!(text.contains("code_class=\"5xx\",combo=\"c\",endpoint=\"other\",origin=\"policy\"} 2"));
}
