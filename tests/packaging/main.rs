//! The two ways to install (kustomize and Helm) say the same thing, ask for no more than they need, and fit the crate.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod children;
mod goldens;
mod network;
mod pods;
mod rights;
#[path = "../support/tools.rs"]
mod tools;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tools::{documents, file, find, find_built, output, root, run, text};

const CHART: &str = "charts/omniroute-operator";
const EVERYTHING: [&str; 9] = [
    "--set=monitoring.serviceMonitor.enabled=true",
    "--set=monitoring.podMonitor.enabled=true",
    "--set=monitoring.rules.enabled=true",
    "--set=monitoring.dashboards.enabled=true",
    "--api-versions=monitoring.coreos.com/v1",
    "--kube-version=1.34.0",
    "--namespace=omniroute-system",
    "--include-crds",
    "omniroute-operator",
];

/// The chart as objects.
fn chart(arguments: &[&str]) -> Option<Vec<Value>> {
    let helm = find_built("helm")?;
    let mut all = vec!["template"];
    all.extend(arguments);
    all.push(CHART);
    Some(documents(&output(&helm, &all)))
}

fn chart_default() -> Option<Vec<Value>> {
    chart(&["omniroute-operator", "--namespace=omniroute-system", "--kube-version=1.34.0"])
}

fn kustomize(folder: &str) -> Option<Vec<Value>> {
    let kubectl = find_built("kubectl")?;
    Some(documents(&output(&kubectl, &["kustomize", folder])))
}

fn identity(object: &Value) -> String {
    format!("{} {}/{}", text(object, "/kind"), text(object, "/metadata/namespace"), text(object, "/metadata/name"))
}

/// Objects by identity, without what may differ: Helm's own labels and annotations.
fn comparable(objects: Vec<Value>) -> BTreeMap<String, Value> {
    let strip = |object: &mut Value, pointer: &str| {
        if let Some(labels) = object.pointer_mut(pointer).and_then(Value::as_object_mut) {
            labels.remove("helm.sh/chart");
            labels.remove("app.kubernetes.io/managed-by");
        }
    };
    objects
        .into_iter()
        .map(|mut object| {
            strip(&mut object, "/metadata/labels");
            strip(&mut object, "/spec/template/metadata/labels");
            if let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
                annotations.remove("helm.sh/resource-policy");
                if annotations.is_empty()
                    && let Some(metadata) = object["metadata"].as_object_mut()
                {
                    metadata.remove("annotations");
                }
            }
            // Aggregated roles and CRDs belong to no component; their other labels are decoration.
            if ["CustomResourceDefinition", "ClusterRole"].contains(&text(&object, "/kind"))
                && let Some(labels) = object.pointer_mut("/metadata/labels").and_then(Value::as_object_mut)
            {
                labels.retain(|name, _| name.starts_with("rbac.authorization.k8s.io/"));
            }
            (identity(&object), object)
        })
        .collect()
}

#[test]
fn kustomize_and_chart_render_the_same_objects() {
    let Some(chart) = chart(&EVERYTHING) else { return };
    let plain: Option<Vec<_>> = ["config/default", "config/prometheus", "config/grafana"].iter().map(|folder| kustomize(folder)).collect();
    let Some(plain) = plain else { return };
    same(plain.into_iter().flatten().collect(), chart);
}

#[test]
fn one_namespace_only_is_the_same_both_ways() {
    let arguments = ["omniroute-operator", "--namespace=omniroute-system", "--kube-version=1.34.0", "--set=watchNamespaces={my-team}"];
    let (Some(chart), Some(plain)) = (chart(&arguments), kustomize("config/namespaced")) else { return };
    same(plain, chart);
}

/// What kustomize and the chart render is the same, but for the namespace, which Helm makes itself (`--create-namespace`).
fn same(plain: Vec<Value>, chart: Vec<Value>) {
    let mut plain = comparable(plain);
    let chart = comparable(chart);
    assert!(plain.remove("Namespace /omniroute-system").is_some());
    assert_eq!(plain.keys().collect::<Vec<_>>(), chart.keys().collect::<Vec<_>>());
    for (name, object) in &plain {
        assert_eq!(object, &chart[name], "{name}");
    }
}

#[test]
fn definitions_are_those_of_the_crate() {
    let Some(rendered) = kustomize("config/crd") else { return };
    let names: BTreeSet<_> = rendered.iter().map(|crd| text(crd, "/metadata/name")).collect();
    let expected = ["providers", "connections", "combos", "resiliencesettings", "operatorerrorrules"];
    assert_eq!(names, expected.map(|kind| format!("{kind}.omniroute.dev")).iter().map(String::as_str).collect());
}

#[test]
fn chart_keeps_definitions_unless_told_otherwise() {
    let of = |objects: Vec<Value>| -> Vec<Value> {
        objects.into_iter().filter(|object| text(object, "/kind") == "CustomResourceDefinition").collect()
    };
    let policy = "/metadata/annotations/helm.sh~1resource-policy";
    let Some(default) = chart_default().map(of) else { return };
    assert_eq!(default.len(), 5);
    assert!(default.iter().all(|crd| text(crd, policy) == "keep"));
    let dropped = chart(&["x", "--set=crds.keep=false"]).map(of).expect("helm");
    assert_eq!(dropped.len(), 5);
    assert!(dropped.iter().all(|crd| crd.pointer(policy).is_none()));
    assert!(chart(&["x", "--set=crds.enabled=false"]).map(of).expect("helm").is_empty());
}

#[test]
fn monitoring_is_rendered_only_where_its_kinds_exist() {
    let Some(without) = chart(&["x", "--set=monitoring.rules.enabled=true,monitoring.podMonitor.enabled=true"]) else { return };
    assert!(without.iter().all(|object| !text(object, "/apiVersion").starts_with("monitoring")));
}

#[test]
fn watched_namespaces_narrow_the_rights_to_roles() {
    let Some(objects) = chart(&["x", "--namespace=ops", "--set=watchNamespaces={a,b}"]) else { return };
    let cluster_wide: Vec<_> = objects
        .iter()
        .filter(|object| text(object, "/kind").starts_with("ClusterRole"))
        .map(|object| text(object, "/metadata/name"))
        .collect();
    assert_eq!(cluster_wide, ["omniroute-view", "omniroute-edit", "omniroute-admin"].map(str::to_owned));
    let roles: BTreeSet<_> =
        objects.iter().filter(|object| text(object, "/kind") == "Role").map(|object| text(object, "/metadata/namespace")).collect();
    assert_eq!(roles, BTreeSet::from(["a", "b", "ops"]));
    let deployment = objects.iter().find(|object| text(object, "/kind") == "Deployment").expect("Deployment");
    let env = deployment.pointer("/spec/template/spec/containers/0/env").expect("env");
    assert!(env.as_array().expect("list").contains(&json!({"name": "OMNIROUTE_WATCH_NAMESPACES", "value": "a,b"})));
}

#[test]
fn two_releases_share_no_object() {
    let second = ["--set=crds.enabled=false", "--set=rbac.aggregate=false"];
    let Some(one) = chart(&["omniroute-operator", "--namespace=one", second[0], second[1]]) else { return };
    let two = chart(&["omniroute-operator", "--namespace=two", second[0], second[1]]).expect("helm");
    let names = |objects: &[Value]| objects.iter().map(identity).collect::<BTreeSet<_>>();
    assert!(names(&one).is_disjoint(&names(&two)));
}

#[test]
fn one_version_everywhere() {
    let version = env!("CARGO_PKG_VERSION");
    let chart: Value = serde_saphyr::from_str(&file(&format!("{CHART}/Chart.yaml"))).expect("YAML");
    assert_eq!(text(&chart, "/version"), version);
    assert_eq!(text(&chart, "/appVersion"), version);
    for path in ["config/default/kustomization.yaml", "config/prometheus/kustomization.yaml"] {
        assert!(file(path).contains(&format!("app.kubernetes.io/version: {version}\n")), "{path}");
    }
    let deployment = file("config/manager/deployment.yaml");
    assert_eq!(deployment.matches(&format!("localhost/omniroute:{version}")).count(), 2);
    assert!(file("CHANGELOG.md").contains(&format!("## {version}")));
}

#[test]
fn both_ways_to_build_the_image_agree() {
    let containerfile = file("Containerfile");
    let script = file("scripts/archive-image");
    assert!(containerfile.contains("FROM scratch"));
    assert!(containerfile.contains("USER 65532:65532") && script.contains("${4-65532:65532}"));
    assert!(containerfile.contains("ENTRYPOINT [\"/bin/omniroute\"]") && script.contains("\"Entrypoint\":[\"/bin/%s\"]"));
}

#[test]
fn image_archives_are_reproducible() {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let script = root().join("scripts/archive-image");
    let binary = root().join("Cargo.toml");
    let build = |name: &str| {
        let out = dir.join(name);
        output(&script, &["x:1", binary.to_str().expect("path"), out.to_str().expect("path")]);
        std::fs::read(out).expect("archive")
    };
    assert!(build("one.tar") == build("two.tar"), "the archives differ");
}

#[test]
fn the_bill_of_materials_names_what_is_in_the_image() {
    let Some(python) = find("python3") else { return };
    if !run(&python, &["-c", "import tomllib"], "").status.success() {
        eprintln!("skipped: scripts/sbom needs Python 3.11");
        return;
    }
    let bill = || output(&root().join("scripts/sbom"), &[]);
    let (text_of_it, lock) = (bill(), file("Cargo.lock"));
    assert_eq!(text_of_it, bill(), "the same bytes each time");
    let bill: Value = serde_json::from_str(&text_of_it).expect("JSON");
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.5")));
    assert_eq!(bill["metadata"]["component"]["version"], env!("CARGO_PKG_VERSION"));
    let parts = bill["components"].as_array().expect("components");
    for part in parts {
        let (name, version) = (text(part, "/name"), text(part, "/version"));
        let locked = format!("name = \"{name}\"\nversion = \"{version}\"\nsource = \"registry");
        assert!(lock.contains(&locked), "{part}");
        assert!(lock.contains(text(part, "/hashes/0/content")) && part["licenses"][0]["expression"].is_string(), "{part}");
        assert_eq!(text(part, "/purl"), format!("pkg:cargo/{name}@{version}"));
    }
    let names: BTreeSet<&str> = parts.iter().map(|part| text(part, "/name")).collect();
    for inside in ["tokio", "rustls", "kube", "mimalloc", "libsqlite3-sys"] {
        assert!(names.contains(inside), "{inside}");
    }
    for outside in ["proptest", "libtest-mimic", "serde_derive", "cc"] {
        assert!(!names.contains(outside), "{outside}");
    }
}
