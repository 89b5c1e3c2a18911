//! The Grafana dashboards: they work in any cluster, and read what exists.

use std::collections::BTreeSet;

use serde_json::Value;

use super::catalogue::{Catalogue, SCRAPED};
use super::tools::{file, find, root, run, text};

/// Every dashboard by file name.
fn dashboards() -> Vec<(String, Value)> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("config/grafana"))
        .expect("dashboards")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".json"))
        .collect();
    names.sort();
    names.into_iter().map(|name| (name.clone(), serde_json::from_str(&file(&format!("config/grafana/{name}"))).expect("JSON"))).collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

/// Panels that show something.
fn panels(dashboard: &Value) -> impl Iterator<Item = &Value> {
    list(dashboard, "panels").iter().filter(|panel| text(panel, "/type") != "row")
}

/// Title and expression of every query of a dashboard.
fn expressions(dashboard: &Value) -> Vec<(&str, &str)> {
    panels(dashboard).flat_map(|panel| list(panel, "targets").iter().map(|target| (text(panel, "/title"), text(target, "/expr")))).collect()
}

#[test]
fn dashboards_work_in_any_cluster() {
    let dashboards = dashboards();
    assert!(dashboards.len() >= 2);
    let mut uids = BTreeSet::new();
    for (name, dashboard) in &dashboards {
        assert!(dashboard["id"].is_null() && dashboard.get("__inputs").is_none(), "{name} was exported from one installation");
        assert!(uids.insert(text(dashboard, "/uid")) && text(dashboard, "/title").starts_with("OmniRoute / "), "{name}");
        assert!(dashboard["schemaVersion"].as_i64().is_some_and(|version| version >= 36), "{name}");
        let variables = list(&dashboard["templating"], "list");
        let types: Vec<(&str, &str)> = variables.iter().map(|variable| (text(variable, "/name"), text(variable, "/type"))).collect();
        assert!(types.contains(&("datasource", "datasource")) && types.contains(&("namespace", "query")), "{name}: {types:?}");
        for variable in variables {
            let current = variable["current"].as_object().expect("an object");
            assert!(current.is_empty(), "{name}: {} remembers a value", variable["name"]);
        }
        let whole = dashboard.to_string();
        for fixed in ["omniroute-system", "localhost", "http://", "https://", "namespace=\\\"", "\"uid\":\"prometheus\""] {
            assert!(!whole.contains(fixed), "{name}: {fixed}");
        }
    }
}

#[test]
fn panels_are_complete() {
    for (name, dashboard) in dashboards() {
        let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
        for panel in list(&dashboard, "panels") {
            let title = text(panel, "/title");
            assert!(ids.insert(panel["id"].as_i64().expect("id")) && !title.is_empty(), "{name}: {title}");
            let cell = |side: &str| panel["gridPos"][side].as_i64().expect("gridPos");
            assert!(cell("x") + cell("w") <= 24, "{name}: {title} is too wide");
            for (x, y) in (cell("x")..cell("x") + cell("w")).flat_map(|x| (cell("y")..cell("y") + cell("h")).map(move |y| (x, y))) {
                assert!(cells.insert((x, y)), "{name}: {title} lies on another panel");
            }
        }
        for panel in panels(&dashboard) {
            let title = text(panel, "/title");
            assert!(text(panel, "/description").ends_with('.'), "{name}: {title} has no description");
            assert!(!text(panel, "/fieldConfig/defaults/unit").is_empty(), "{name}: {title} has no unit");
            let mut letters = BTreeSet::new();
            assert!(!list(panel, "targets").is_empty(), "{name}: {title} asks nothing");
            for query in list(panel, "targets").iter().chain([panel]) {
                assert_eq!(text(query, "/datasource/uid"), "${datasource}", "{name}: {title}");
            }
            for target in list(panel, "targets") {
                assert!(letters.insert(text(target, "/refId")), "{name}: {title}");
            }
        }
    }
}

#[test]
fn dashboards_read_metrics_that_exist() {
    let catalogue = Catalogue::new();
    for (name, dashboard) in dashboards() {
        for (title, expression) in expressions(&dashboard) {
            let needs = catalogue.check(expression).unwrap_or_else(|wrong| panic!("{name}: {title}: {wrong}"));
            for (series, labels) in needs.series {
                assert!(labels.contains("namespace"), "{name}: {title} reads {series} of every namespace");
            }
        }
        for variable in list(&dashboard["templating"], "list").iter().filter(|variable| text(variable, "/type") == "query") {
            let query = text(variable, "/query/query");
            let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).expect("label_values(series, label)");
            let (series, label) = inner.rsplit_once(", ").expect("a label");
            let needs = catalogue.check(series).unwrap_or_else(|wrong| panic!("{name}: {query}: {wrong}"));
            let known = catalogue.labels(&needs.series[0].0).expect("known");
            assert!(known.contains(label) || SCRAPED.contains(&label), "{name}: {query}");
        }
    }
}

#[test]
fn promtool_reads_every_query() {
    let Some(promtool) = find("promtool") else { return };
    let mut rules = Vec::new();
    for (_, dashboard) in dashboards() {
        for (_, expression) in expressions(&dashboard) {
            let expression = expression.replace("$__rate_interval", "5m");
            rules.push(serde_json::json!({"record": format!("dashboard:query:{}", rules.len()), "expr": expression}));
        }
    }
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("dashboards.yaml");
    std::fs::write(&path, serde_json::json!({"groups": [{"name": "dashboards", "rules": rules}]}).to_string()).expect("rules");
    let result = run(&promtool, &["check", "rules", "--lint=none", &path.to_string_lossy()], "");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(rules.len() > 40);
}
