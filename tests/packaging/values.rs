//! `values.yaml`, its schema and the table in the chart's README say the same; `Chart.yaml` says what a catalogue needs.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::CHART;
use super::tools::{documents, file, find_built, root, run, text};

fn values() -> Value {
    serde_saphyr::from_str(&file(&format!("{CHART}/values.yaml"))).expect("YAML")
}

#[test]
fn every_value_is_in_the_schema_and_no_other() {
    let schema: Value = serde_json::from_str(&file(&format!("{CHART}/values.schema.json"))).expect("JSON");
    let mut difference = Vec::new();
    compare("", &values(), &schema, &mut difference);
    // Helm sets the first for subcharts; the others are parts of a pod's own types.
    difference.retain(|path| ![".global (schema only)", ".resources.claims (schema only)"].contains(&path.as_str()));
    difference.retain(|path| !path.starts_with(".affinity."));
    assert!(difference.is_empty(), "{difference:?}");
}

/// Where `values.yaml` and its schema name different keys. Free-form maps (labels, annotations) have no `properties` and end the walk.
fn compare(path: &str, values: &Value, schema: &Value, difference: &mut Vec<String>) {
    let (Some(values), Some(properties)) = (values.as_object(), schema["properties"].as_object()) else {
        return;
    };
    if schema["additionalProperties"] != json!(false) {
        difference.push(format!("{path} (open)"));
    }
    for (name, value) in values {
        match properties.get(name) {
            Some(inner) => compare(&format!("{path}.{name}"), value, inner, difference),
            None => difference.push(format!("{path}.{name} (values only)")),
        }
    }
    let unset = properties.keys().filter(|name| !values.contains_key(*name));
    difference.extend(unset.map(|name| format!("{path}.{name} (schema only)")));
}

/// Path and comment of every key of `values.yaml`, in its order.
fn commented() -> Vec<(String, String)> {
    let mut path: Vec<(usize, String)> = Vec::new();
    let (mut comment, mut all) = (String::new(), Vec::new());
    for line in file(&format!("{CHART}/values.yaml")).lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim());
        if let Some(words) = line.strip_prefix('#') {
            comment = format!("{comment} {}", words.trim()).trim().to_owned();
        } else if let Some((key, _)) = line.split_once(':').filter(|(key, _)| key.chars().all(char::is_alphanumeric)) {
            path.retain(|(outer, _)| *outer < indent);
            path.push((indent, key.to_owned()));
            all.push((path.iter().map(|(_, key)| key.as_str()).collect::<Vec<_>>().join("."), std::mem::take(&mut comment)));
        } else {
            comment.clear();
        }
    }
    all
}

/// The table of the README: one row for each key that has a comment and no commented key below it.
fn table() -> String {
    let (values, commented) = (values(), commented());
    let below = |outer: &str, inner: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
    let mut table = "| value | default | what it does |\n| --- | --- | --- |\n".to_owned();
    let mut undocumented = Vec::new();
    for (path, comment) in &commented {
        let documented_below = commented.iter().any(|(inner, words)| below(path, inner) && !words.is_empty());
        let documented_above = commented.iter().any(|(outer, words)| below(outer, path) && !words.is_empty());
        if documented_below {
            continue;
        }
        if comment.is_empty() {
            if !documented_above {
                undocumented.push(path);
            }
            continue;
        }
        let default = values.pointer(&format!("/{}", path.replace('.', "/"))).expect("a value");
        let _ = writeln!(table, "| `{path}` | `{default}` | {comment} |");
    }
    assert!(undocumented.is_empty(), "no comment in values.yaml: {undocumented:?}");
    table
}

#[test]
fn the_readme_lists_every_value() {
    let path = root().join(CHART).join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (head, rest) = readme.split_once("<!-- values -->\n").expect("a mark where the table begins");
    let (_, tail) = rest.split_once("<!-- end of values -->\n").expect("a mark where the table ends");
    let wanted = format!("{head}<!-- values -->\n{}<!-- end of values -->\n{tail}", table());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &wanted).expect("README.md");
    } else {
        assert!(readme == wanted, "the table is stale: UPDATE=1 cargo test --test packaging");
    }
}

#[test]
fn unknown_and_wrong_values_are_refused() {
    let Some(helm) = find_built("helm") else { return };
    for wrong in [
        "replcias=2",
        "image.tagg=x",
        "replicas=many",
        "logFormat=xml",
        "image.digest=latest",
        "watchNamespaces={Upper}",
        "monitoring.interval=soon",
        "terminationGracePeriodSeconds=5",
        "leaderElection.leaseDuration=never",
        "fullnameOverride=Upper",
        "extraEnv[0].nmae=x",
        "tolerations[0].effect=Sometimes",
        "topologySpreadConstraints[0].maxSkew=1",
        "affinity.pod=x",
        "networkPolicy.from[0].everybody=true",
        "serviceAccount.create=false",
    ] {
        let result = run(&helm, &["template", "x", CHART, &format!("--set={wrong}")], "");
        assert!(!result.status.success(), "{wrong} was accepted");
    }
}

#[test]
fn catalogues_find_what_they_need() {
    let chart: Value = serde_saphyr::from_str(&file(&format!("{CHART}/Chart.yaml"))).expect("YAML");
    assert_eq!(text(&chart, "/kubeVersion"), ">=1.33.0-0");
    assert!(text(&chart, "/icon").starts_with("data:image/svg+xml;base64,"));
    assert!(!text(&chart, "/maintainers/0/name").is_empty() && !text(&chart, "/description").is_empty());
    let annotation = |name: &str| documents(text(&chart, &format!("/annotations/artifacthub.io~1{name}"))).remove(0);
    let definitions: BTreeSet<String> = std::fs::read_dir(root().join("crds"))
        .expect("crds")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| text(&documents(&std::fs::read_to_string(path).expect("CRD"))[0], "/metadata/name").to_owned())
        .collect();
    let listed: BTreeSet<String> =
        annotation("crds").as_array().expect("a list").iter().map(|entry| text(entry, "/name").to_owned()).collect();
    assert_eq!(listed, definitions);
    let examples = annotation("crdsExamples");
    let kinds: BTreeSet<&str> = examples.as_array().expect("a list").iter().map(|example| text(example, "/kind")).collect();
    assert_eq!(kinds.len(), 5);
    for change in annotation("changes").as_array().expect("a list") {
        assert!(["added", "changed", "deprecated", "removed", "fixed", "security"].contains(&text(change, "/kind")));
        assert!(!text(change, "/description").is_empty());
    }
    let image = annotation("images");
    assert_eq!(text(&image, "/0/image"), concat!("localhost/omniroute:", env!("CARGO_PKG_VERSION")));
}

#[test]
fn notes_say_what_comes_next() {
    let Some(helm) = find_built("helm") else { return };
    let notes = |value: &str| {
        let result = run(&helm, &["install", "x", CHART, "--dry-run=client", "--namespace=ops", "--set", value], "");
        let output = String::from_utf8(result.stdout).expect("UTF-8");
        assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
        output.split_once("NOTES:").expect("NOTES").1.to_owned()
    };
    let default = notes("replicas=1");
    assert!(default.contains("kubectl -n ops rollout status deployment/x-omniroute-operator"), "{default}");
    assert!(default.contains("every namespace") && default.contains("config/samples/quickstart.yaml"), "{default}");
    assert!(!default.contains("crds.keep"), "{default}");
    assert!(notes("watchNamespaces={a,b}").contains("serves a, b."));
    assert!(notes("crds.keep=false").contains("every object of them in the whole cluster"));
}
