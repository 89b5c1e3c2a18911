//! Pages under `docs/reference` are made from the code: `UPDATE=1 cargo test --test reference` writes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/metrics.rs"]
mod metrics;
#[path = "reference/sources.rs"]
mod sources;

use std::fmt::Write as _;

#[test]
fn reference_pages_are_current() {
    for (name, page) in [
        ("conditions.md", omniroute::api::schema::reference::conditions_page()),
        ("environment.md", omniroute::compile::reference::environment_page()),
        ("metrics.md", metrics_page()),
        ("presets.md", omniroute::compile::reference::presets_page()),
        ("verdicts.md", omniroute::classify::reference::verdicts_page()),
    ] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &page).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), page, "{name} is stale: run UPDATE=1 cargo test --test reference");
    }
}

/// Reasons that come as text from findings and from failed calls are among those of the page. (The end-to-end suite checks every status that it sees.)
#[test]
fn every_reason_is_on_the_page() {
    use kube::core::Status;
    use omniroute::api::conditions::ReadyReason;
    use omniroute::operator::error::{Error, Retry};

    let known: Vec<&str> = ReadyReason::ALL.iter().map(|(reason, _)| reason.as_str()).collect();
    let mut findings = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/compile")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let compiled: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            // Warnings leave Ready true.
            let wrong = compiled["findings"].as_array().into_iter().flatten().filter(|finding| finding["severity"] != "Warning");
            for finding in wrong {
                let reason = finding["reason"].as_str().unwrap();
                assert!(known.contains(&reason), "{}: {reason}", path.display());
                findings += 1;
            }
        }
    }
    assert!(findings > 10, "only {findings} findings");

    let api = |code: u16, reason: &str| Error::api("applying", kube::Error::Api(Status::failure("no", reason).with_code(code).boxed()));
    let encode = serde_json::from_str::<u8>("no").unwrap_err();
    let failures = [
        api(400, "BadRequest"),
        api(401, "Unauthorized"),
        api(403, "Forbidden"),
        api(405, "MethodNotAllowed"),
        api(422, "Invalid"),
        api(429, "TooManyRequests"),
        api(500, "InternalError"),
        api(503, "ServiceUnavailable"),
        Error::NameConflict { kind: "Role".into(), name: "x".into(), settings: "y".into() },
        Error::Predecessor { kind: "Role".into(), name: "x".into(), settings: "y".into() },
        Error::Encode { what: "x".into(), source: encode },
        Error::Random { what: "a token", message: "no".into() },
    ];
    for failure in failures {
        assert!(failure.retry() != Retry::Soon, "{failure} is told to nobody");
        assert!(known.contains(&failure.reason()), "{failure}: {}", failure.reason());
    }
}

fn metrics_page() -> String {
    let mut page = "# Metrics\n\n<!-- Made from the code; run `UPDATE=1 cargo test --test reference` after a change. -->\n\n\
        Gateways and the operator export these on `/metrics` of the management port (9090), beside the labels that a scrape adds (`namespace`, `pod`, `job`, `instance`). \
        A label is a word of this product or the name of one of your resources; the series of a resource end with it. The one exception is the `model` of a lockout: at providers \
        with an open list of models it is the name that a client asked for, of at most 32 models per connection. \
        `config/prometheus` and `config/grafana` hold alerts and dashboards made of them.\n"
        .to_owned();
    for (title, metrics) in [("Gateway", metrics::of_gateway()), ("Operator", metrics::of_operator())] {
        let _ = write!(page, "\n## {title}\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
        for metric in metrics {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let _ = writeln!(page, "| `{}` | {} | {} | {} |", metric.name, metric.kind, labels.join(", "), metric.help);
        }
    }
    page
}

#[test]
fn metrics_are_named_as_prometheus_wants() {
    for metric in metrics::of_gateway().into_iter().chain(metrics::of_operator()) {
        let name = &metric.name;
        assert!(name.starts_with("omniroute_"), "{name}");
        assert_eq!(metric.kind == "counter", name.ends_with("_total"), "{name} is a {}", metric.kind);
        assert!(!metric.help.is_empty() && metric.help.ends_with('.'), "{name}: {:?}", metric.help);
        for label in &metric.labels {
            assert!(
                !["namespace", "pod", "job", "instance", "le", "quantile"].contains(&label.as_str()),
                "{name}: {label} is set by a scrape"
            );
        }
    }
}
