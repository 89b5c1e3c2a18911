//! The alerts: each has what a person on call needs, reads metrics that exist, and promtool proves that it stays silent, fires and ends. The dashboards too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod catalogue;
mod dashboards;
#[path = "../support/metrics.rs"]
mod metrics;
mod promql;
#[path = "../support/tools.rs"]
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

/// Recording rules and alerts.
fn rules() -> Vec<Value> {
    let groups = groups();
    let rules = groups["groups"].as_array().expect("groups").iter().filter_map(|group| group["rules"].as_array());
    rules.flatten().cloned().collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule.get("alert").is_some()).collect()
}

/// What somebody on call must hear of, and the alert that says so.
#[test]
fn every_kind_of_trouble_has_an_alert() {
    let alerts = alerts();
    for (trouble, name, series) in [
        ("no operator", "OmniRouteOperatorDown", "omniroute_operator_build_info"),
        ("nobody leads", "OmniRouteNoLeader", "omniroute_operator_leader"),
        ("reconciling fails", "OmniRouteReconcileErrors", "omniroute_operator_reconciles_total"),
        ("statuses cannot be written", "OmniRouteStatusWriteErrors", "omniroute_operator_status_writes_total"),
        ("children cannot be written", "OmniRouteChildWriteErrors", "omniroute_operator_child_writes_total"),
        ("watches fail", "OmniRouteWatchErrors", "omniroute_operator_watch_restarts_total"),
        ("a gateway is not ready", "OmniRouteGatewayNotReady", "omniroute_operator_objects_not_ready"),
        ("no gateway answers", "OmniRouteNoGatewayReports", "omniroute_operator_observed_pods"),
        ("a configuration is refused", "OmniRouteSnapshotRefused", "omniroute_snapshot_load_failures_total"),
        ("a configuration is old", "OmniRouteSnapshotsDiffer", "omniroute_snapshot_info"),
        ("a credential is missing", "OmniRouteCredentialMissing", "omniroute_operator_objects_not_ready"),
        ("tokens are refused", "OmniRouteTokensRefused", "omniroute_operator_oauth_refreshes_total"),
        ("tokens cannot be refreshed", "OmniRouteTokenRefreshErrors", "omniroute_operator_oauth_refreshes_total"),
        ("replicas share nothing", "OmniRouteStateStoreDown", "omniroute_state_store_up"),
        ("an account is dead", "OmniRouteConnectionTerminal", "omniroute_connection_terminal"),
        ("a combo cannot serve", "OmniRouteComboExhausted", "omniroute_requests_total"),
        ("a provider fails", "OmniRouteUpstreamFailures", "omniroute_attempts_total"),
    ] {
        let alert = alerts.iter().find(|alert| text(alert, "/alert") == name).unwrap_or_else(|| panic!("{trouble}: no {name}"));
        assert!(text(alert, "/expr").contains(series), "{trouble}: {name} does not read {series}");
    }
}

#[test]
fn rules_read_metrics_that_exist() {
    let catalogue = catalogue::Catalogue::new();
    for rule in rules() {
        let name = if rule.get("alert").is_some() { text(&rule, "/alert") } else { text(&rule, "/record") };
        let needs = catalogue.check(text(&rule, "/expr")).unwrap_or_else(|wrong| panic!("{name}: {wrong}"));
        // Labels in the texts are those that the expression leaves.
        for annotation in ["summary", "description"] {
            for label in text(&rule, &format!("/annotations/{annotation}")).split("$labels.").skip(1) {
                let label: String = label.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                assert!(needs.grouping.contains(&label), "{name}: {annotation} speaks of {label}, which the expression drops");
            }
        }
    }
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
        assert!(runbook.starts_with(&format!("# {name}\n")), "{path}: the title");
        let sections: Vec<&str> = runbook.split("\n## ").skip(1).collect();
        let titles: Vec<&str> = sections.iter().filter_map(|section| section.lines().next()).collect();
        assert_eq!(titles, ["Meaning", "Impact", "Diagnosis", "Mitigation"], "{path}");
        for section in sections {
            assert!(section.lines().skip(1).any(|line| line.len() > 20), "{path}: {section} says nothing");
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
