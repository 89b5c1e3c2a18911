//! The alerts: each has what a person on call needs, and promtool proves that it stays silent, fires and ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "support/tools.rs"]
mod tools;

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use tools::{documents, file, find, output, root, run, text};

/// The groups of the PrometheusRule.
fn groups() -> Value {
    let documents = documents(&file("config/prometheus/rules.yaml"));
    documents[0]["spec"].clone()
}

fn alerts() -> Vec<Value> {
    let groups = groups();
    let rules = groups["groups"].as_array().expect("groups").iter().filter_map(|group| group["rules"].as_array());
    rules.flatten().filter(|rule| rule.get("alert").is_some()).cloned().collect()
}

#[test]
fn every_alert_says_how_bad_it_is_and_what_to_do() {
    let alerts = alerts();
    assert!(alerts.len() > 10);
    for alert in &alerts {
        let name = text(alert, "/alert");
        assert!(name.starts_with("OmniRoute"), "{name}");
        assert!(["critical", "warning", "info"].contains(&text(alert, "/labels/severity")), "{name}: severity");
        for annotation in ["summary", "description"] {
            assert!(!text(alert, &format!("/annotations/{annotation}")).is_empty(), "{name}: {annotation}");
        }
        let path = text(alert, "/annotations/runbook_url");
        assert_eq!(path, format!("docs/runbooks/{name}.md"));
        let runbook = file(path);
        for section in ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"] {
            assert!(runbook.contains(section), "{path}: {section}");
        }
    }
}

#[test]
fn every_runbook_has_its_alert() {
    let alerts: BTreeSet<_> = alerts().iter().map(|alert| format!("{}.md", text(alert, "/alert"))).collect();
    let runbooks = std::fs::read_dir(root().join("docs/runbooks")).expect("runbooks");
    let runbooks: BTreeSet<_> = runbooks.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(alerts, runbooks);
}

#[test]
fn every_alert_is_tested() {
    let tests = documents(&file("tests/alerts/alerts.test.yaml"));
    let tested: BTreeSet<_> = tests[0]["tests"].as_array().expect("tests").iter().map(|test| text(test, "/name").to_owned()).collect();
    let alerts: BTreeSet<_> = alerts().iter().map(|alert| text(alert, "/alert").to_owned()).collect();
    assert_eq!(tested, alerts);
}

#[test]
fn promtool_agrees() {
    let Some(promtool) = find("promtool") else { return };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("alerts");
    std::fs::create_dir_all(&dir).expect("folder");
    // JSON is YAML.
    std::fs::write(dir.join("rules.yaml"), groups().to_string()).expect("rules");
    std::fs::write(dir.join("alerts.test.yaml"), file("tests/alerts/alerts.test.yaml")).expect("tests");
    let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
    output(&promtool, &["check", "rules", "--lint=all", &path("rules.yaml")]);
    let result = run(&promtool, &["test", "rules", &path("alerts.test.yaml")], "");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}
