//! The CustomResourceDefinitions: generated, strict, and each rule proved by manifests that it accepts and rejects.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use omniroute::api::schema::{Definition, definitions};
use omniroute::api::{Combo, Connection, OperatorErrorRule, Provider, ResilienceSettings};
use omniroute::manifest::{Level, Parsed, Source, parse};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Visits every node of a schema with its path (`spec.targets[].model`).
fn walk<'a>(schema: &'a Value, path: &str, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(path, schema);
    for (name, child) in schema["properties"].as_object().into_iter().flatten() {
        let child_path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        walk(child, &child_path, visit);
    }
    if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), visit);
    }
    if schema["additionalProperties"].is_object() {
        walk(&schema["additionalProperties"], &format!("{path}.*"), visit);
    }
}

#[test]
fn the_committed_files_are_what_the_code_generates() {
    let out = std::env::temp_dir().join(format!("omniroute-crds-{}", std::process::id()));
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_omniroute")).args(["crds", "--out"]).arg(&out).status().unwrap();
    assert!(status.success());
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&out).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let committed = std::fs::read_to_string(root().join("crds").join(&name)).unwrap_or_default();
        assert!(committed == std::fs::read_to_string(&path).unwrap(), "crds/{name} is not up to date: run `omniroute crds --out crds`");
        assert!(committed.len() < 256 * 1024, "crds/{name} is too large for `kubectl apply`");
        names.insert(name);
    }
    let committed: BTreeSet<String> = std::fs::read_dir(root().join("crds"))
        .unwrap()
        .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|n| n.ends_with(".yaml"))
        .collect();
    assert_eq!(names, committed);
    std::fs::remove_dir_all(out).unwrap();
}

#[test]
fn the_reference_page_is_up_to_date() {
    let page = omniroute::api::schema::reference::page(&definitions());
    let committed = std::fs::read_to_string(root().join("docs/reference/fields.md")).unwrap_or_default();
    assert!(page == committed, "docs/reference/fields.md is not up to date: run `omniroute crds --docs > docs/reference/fields.md`");
    assert!(page.lines().any(|l| l.starts_with("| `gateway.autoscaling.maxReplicas` | integer 1–1000 | required |")), "{page}");
}

#[test]
fn every_node_is_described_bounded_and_typed() {
    let mut faults = Vec::new();
    for definition in definitions() {
        walk(definition.schema(), "", &mut |path, node| {
            let mut fault = |what: &str| faults.push(format!("{} {path}: {what}", definition.kind));
            for keyword in [
                "$ref",
                "oneOf",
                "anyOf",
                "allOf",
                "not",
                "nullable",
                "title",
                "examples",
                "const",
                "x-duration",
                "x-values",
                "uniqueItems",
            ] {
                if node.get(keyword).is_some() {
                    fault(&format!("has `{keyword}`"));
                }
            }
            if path == "metadata" {
                return;
            }
            let opaque = node["x-kubernetes-preserve-unknown-fields"] == true;
            let int_or_string = node["x-kubernetes-int-or-string"] == true;
            let is_field = !path.ends_with("[]") && !path.ends_with(".*");
            let description = node["description"].as_str().unwrap_or_default();
            if is_field && (!description.ends_with('.') || description.contains("Auto-generated")) {
                fault(&format!("is not described by a sentence: `{description}`"));
            }
            match node["type"].as_str() {
                Some("string") if node["enum"].is_null() && node["maxLength"].is_null() => fault("has no maxLength"),
                Some("array") if node["maxItems"].is_null() || node["x-kubernetes-list-type"].is_null() => {
                    fault("has no maxItems or list type")
                }
                Some("integer") if node["minimum"].as_i64().is_none() || node["maximum"].as_i64().is_none() => fault("has no whole bounds"),
                Some("object") if node["additionalProperties"].is_object() && node["maxProperties"].is_null() => {
                    fault("has no maxProperties")
                }
                Some("object")
                    if node["properties"].is_null()
                        && node["additionalProperties"].is_null()
                        && !opaque
                        && path != "spec.credentials.none" =>
                {
                    fault("has no properties")
                }
                Some("number") => fault("is a float"),
                None if !int_or_string => fault("has no type"),
                _ => {}
            }
            if node["format"].as_str().is_some_and(|f| !["int32", "int64", "date-time"].contains(&f)) {
                fault("has a format that Kubernetes does not know");
            }
            if node["additionalProperties"] == false {
                fault("closes the object, which structural schemas must not");
            }
            for value in node["enum"].as_array().into_iter().flatten() {
                let text = value.as_str().unwrap_or_default();
                if !text.starts_with(char::is_uppercase) || !text.chars().all(char::is_alphanumeric) {
                    fault(&format!("has the enum value {value}, which is not PascalCase"));
                }
            }
            if path.starts_with("status.") && node.get("default").is_some() {
                fault("has a default inside status");
            }
            if path.ends_with("Ms") || path.ends_with("Seconds") && !path.ends_with("tolerationSeconds") {
                fault("has a unit in its name");
            }
        });
        assert_eq!(definition.schema()["properties"]["status"]["default"], serde_json::json!({"observedGeneration": -1}));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_field_shows_its_default_or_says_what_happens_without_it() {
    let mut faults = Vec::new();
    for definition in definitions() {
        walk(definition.schema(), "", &mut |path, node| {
            let required: Vec<&str> = node["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, child) in node["properties"].as_object().into_iter().flatten() {
                let scalar = ["string", "integer", "boolean"].contains(&child["type"].as_str().unwrap_or_default());
                let description = child["description"].as_str().unwrap_or_default();
                let said = ["efault", "Without it", "on by", "off by", "Environment"].iter().any(|w| description.contains(w));
                // Members of unions, rule matches and plain labels say it by their absence.
                let union = [
                    "spec.match",
                    "spec.credentials",
                    "spec.targets[]",
                    "spec.gateway.podDisruptionBudget",
                    "spec.gateway.podTemplate.extraEnv[]",
                ]
                .contains(&path)
                    || ["displayName", "description", "value", "organizationUUID", "priorityClassName"].contains(&name.as_str());
                if path.starts_with("spec")
                    && scalar
                    && !union
                    && !required.contains(&name.as_str())
                    && child.get("default").is_none()
                    && !said
                {
                    faults.push(format!("{} {path}.{name}: {description}", definition.kind));
                }
            }
        });
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn fields_with_an_environment_variable_have_no_schema_default() {
    let definition = definitions().into_iter().find(|d| d.kind == "ResilienceSettings").unwrap();
    let with_variable: BTreeSet<String> =
        omniroute::compile::SETTINGS.iter().filter(|row| row.env.is_some()).map(|row| format!("spec.{}", row.path)).collect();
    let mut seen = BTreeSet::new();
    walk(definition.schema(), "", &mut |path, node| {
        let description = node["description"].as_str().unwrap_or_default();
        if with_variable.contains(path) {
            assert!(node["default"].is_null(), "{path}: a default in the schema would beat the environment");
            assert!(description.contains("nvironment"), "{path} does not name its variable: {description}");
            seen.insert(path.to_owned());
        }
    });
    assert_eq!(seen, with_variable);
}

#[test]
fn names_do_not_collide() {
    // Built-in short names and those of widespread operators.
    let taken = "po no ns svc ds deploy rs sts cm ep ev hpa ing netpol pdb pv pvc quota rc sa sc csr cj crd pc limits vpa cert issuer gw hr gc prov conn combo rule set app ksvc ps prom";
    let mut seen = BTreeSet::new();
    for definition in definitions() {
        let names = &definition.crd["spec"]["names"];
        assert_eq!(names["categories"], serde_json::json!(["omniroute"]));
        for short in names["shortNames"].as_array().unwrap() {
            let short = short.as_str().unwrap().to_owned();
            assert!(!taken.split(' ').any(|t| t == short), "{short}");
            assert!(seen.insert(short));
        }
    }
    let connection = definitions().into_iter().find(|d| d.kind == "Connection").unwrap();
    assert_eq!(connection.crd["spec"]["versions"][0]["selectableFields"], serde_json::json!([{"jsonPath": ".spec.providerRef.name"}]));
}

#[test]
fn columns_are_those_of_the_interface() {
    let columns = |kind: &str| -> Vec<String> {
        let definition = definitions().into_iter().find(|d| d.kind == kind).unwrap();
        let columns = definition.crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap().clone();
        assert!(columns.iter().all(|c| c["name"] != "Until" || c["type"] == "string"), "a date column prints <invalid> for the future");
        columns.iter().map(|c| c["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(columns("Connection"), ["Ready", "Available", "Reason", "Until", "Provider", "Age"]);
    assert_eq!(columns("Provider"), ["Ready", "Breaker", "Active", "Cooling", "Age"]);
    assert_eq!(columns("Combo"), ["Ready", "Strategy", "Available", "Age"]);
    assert_eq!(columns("ResilienceSettings"), ["Ready", "Pods", "Snapshot", "Age"]);
    assert_eq!(columns("OperatorErrorRule"), ["Ready", "Mode", "Matches", "Age"]);
}

/// Documents of the fixtures of a kind: file, text.
fn fixtures(kind: &str, verdict: &str) -> Vec<(String, String)> {
    let dir = root().join("tests/crd").join(kind).join(verdict);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", dir.display());
    files.iter().flat_map(|f| documents(f)).collect()
}

fn documents(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap();
    text.split("\n---\n").map(|d| (file.display().to_string(), d.to_owned())).collect()
}

fn read(name: &str, text: &str) -> Parsed {
    parse(&[Source { name: name.to_owned(), text: text.to_owned() }])
}

#[test]
fn accepted_manifests_are_accepted_and_set_every_field() {
    for definition in definitions() {
        let mut set = BTreeSet::new();
        for (file, text) in fixtures(&definition.kind, "accept") {
            let parsed = read(&file, &text);
            assert!(parsed.problems.is_empty(), "{:#?}", parsed.problems);
            let value: Value = serde_saphyr::from_str(&text).unwrap();
            paths(&value, "", &mut set);
        }
        let mut missing = Vec::new();
        walk(definition.schema(), "", &mut |path, _| {
            if path.starts_with("spec.") && !set.contains(path) {
                missing.push(path.to_owned());
            }
        });
        assert!(missing.is_empty(), "no accepted {} sets {missing:?}", definition.kind);
    }
}

/// Generic paths of a value, as [`walk`] names them; the members of maps count as `.*` too.
fn paths(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    out.insert(path.to_owned());
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                paths(child, &if path.is_empty() { key.clone() } else { format!("{path}.{key}") }, out);
                paths(child, &format!("{path}.*"), out);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| paths(item, &format!("{path}[]"), out)),
        _ => {}
    }
}

#[test]
fn accepted_manifests_survive_a_round_trip() {
    for definition in definitions() {
        for (file, text) in fixtures(&definition.kind, "accept") {
            let parsed = read(&file, &text);
            let r = &parsed.resources;
            let typed: Value = [
                r.providers.first().map(|o| serde_json::to_value(&**o)),
                r.connections.first().map(|o| serde_json::to_value(&**o)),
                r.combos.first().map(|o| serde_json::to_value(&**o)),
                r.settings.first().map(|o| serde_json::to_value(&**o)),
                r.rules.first().map(|o| serde_json::to_value(&**o)),
            ]
            .into_iter()
            .flatten()
            .next()
            .unwrap()
            .unwrap();
            let written: Value = serde_saphyr::from_str(&text).unwrap();
            contains(&typed["spec"], &written["spec"], "spec");
        }
    }
}

/// Every field that was written is still there with its value.
fn contains(typed: &Value, written: &Value, path: &str) {
    match (typed, written) {
        (Value::Object(t), Value::Object(w)) => {
            w.iter().for_each(|(key, value)| contains(t.get(key).unwrap_or(&Value::Null), value, &format!("{path}.{key}")))
        }
        (Value::Array(t), Value::Array(w)) => {
            assert_eq!(t.len(), w.len(), "{path}");
            t.iter().zip(w).enumerate().for_each(|(i, (t, w))| contains(t, w, &format!("{path}[{i}]")));
        }
        _ => assert_eq!(typed, written, "{path}"),
    }
}

/// The fragments that a rejected document names: `# expect: FIELD: FRAGMENT`.
fn expected(text: &str) -> Vec<&str> {
    text.lines().filter_map(|l| l.strip_prefix("# expect: ")).collect()
}

#[test]
fn rejected_manifests_are_rejected_for_the_stated_reasons_only() {
    for definition in definitions() {
        for (file, text) in fixtures(&definition.kind, "reject") {
            let parsed = read(&file, &text);
            let got: Vec<String> = parsed.problems.iter().map(|p| format!("{}: {}", p.field, p.message)).collect();
            let wanted = expected(&text);
            assert!(!wanted.is_empty(), "{file}: a rejected document names what it expects");
            for fragment in &wanted {
                assert!(got.iter().any(|g| g.starts_with(fragment)), "{file}: expected `{fragment}`, got {got:#?}");
            }
            for problem in &got {
                assert!(wanted.iter().any(|w| problem.starts_with(w)), "{file}: nobody expected `{problem}`");
            }
            assert!(parsed.problems.iter().all(|p| p.level == Level::Error));
            assert!(!got.iter().any(|g| g.contains("canary")), "{file}: a value that may be a secret was repeated: {got:#?}");
        }
    }
}

#[test]
fn every_rule_has_a_rejected_manifest() {
    for definition in definitions() {
        let mut fired = BTreeSet::new();
        for (file, text) in fixtures(&definition.kind, "reject") {
            for problem in read(&file, &text).problems {
                fired.insert((generic(&problem.field), problem.message));
            }
        }
        let missing: Vec<(String, String)> = rules(&definition).into_iter().filter(|rule| !fired.contains(rule)).collect();
        assert!(missing.is_empty(), "{}: no rejected manifest for {missing:#?}", definition.kind);
    }
}

fn generic(path: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => {
                inside = true;
                out.push_str("[]");
            }
            ']' => inside = false,
            _ if inside => {}
            c => out.push(c),
        }
    }
    out
}

/// Every CEL rule as (path it reports, message).
fn rules(definition: &Definition) -> Vec<(String, String)> {
    let mut out = Vec::new();
    walk(definition.schema(), "", &mut |path, node| {
        for rule in node["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let field = rule["fieldPath"].as_str().unwrap_or_default();
            assert!(!rule["message"].as_str().unwrap_or_default().is_empty() && rule["reason"].is_string(), "{path}: {rule}");
            out.push((format!("{path}{field}"), rule["message"].as_str().unwrap_or_default().to_owned()));
        }
    });
    assert!(!out.is_empty());
    out
}

#[test]
fn schema_defaults_are_the_rust_defaults() {
    let parsed = read(
        "x",
        "apiVersion: omniroute.dev/v1alpha1\nkind: ResilienceSettings\nmetadata: {name: d}\nspec: {}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: d}\nspec: {preset: p}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Connection\nmetadata: {name: d}\nspec: {providerRef: {name: p}, credentials: {none: {}}}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: Combo\nmetadata: {name: d}\nspec: {targets: [{provider: p, model: m}]}\n---\n\
         apiVersion: omniroute.dev/v1alpha1\nkind: OperatorErrorRule\nmetadata: {name: d}\nspec: {match: {statuses: [429]}, verdict: {}}\n",
    );
    assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
    let r = parsed.resources;
    let settings: &ResilienceSettings = &r.settings[0];
    assert_eq!(settings.spec, Default::default());
    let mut provider: Provider = (*r.providers[0]).clone();
    provider.spec.preset = None;
    assert_eq!(provider.spec, Default::default());
    let mut connection: Connection = (*r.connections[0]).clone();
    connection.spec.provider_ref = Default::default();
    connection.spec.credentials = Default::default();
    assert_eq!(connection.spec, Default::default());
    let mut combo: Combo = (*r.combos[0]).clone();
    combo.spec.targets.clear();
    assert_eq!(combo.spec, Default::default());
    let mut rule: OperatorErrorRule = (*r.rules[0]).clone();
    rule.spec.matches = None;
    assert_eq!(rule.spec, Default::default());
}
