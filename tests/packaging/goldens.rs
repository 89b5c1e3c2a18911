//! What the chart renders for each of its values, kept as files: `tests/golden/helm/NAME.values.yaml` in, `NAME.yaml` out. A first line with a comment holds
//! more arguments (`--release=NAME` names the release). `UPDATE=1 cargo test --test packaging` writes them; read the difference.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::CHART;
use super::tools::{documents, file, find, find_built, output, root, run, text};

/// The folder of the chart's goldens.
pub const FOLDER: &str = "tests/golden/helm";
const VALUES: &str = ".values.yaml";

/// The Kubernetes versions that the product is for, as their schemas are numbered.
const KUBERNETES: [&str; 5] = ["1.33.0", "1.34.0", "1.35.0", "1.36.0", "1.37.0"];

/// Names of the goldens.
pub fn names() -> Vec<String> {
    let entries = std::fs::read_dir(root().join(FOLDER)).expect("goldens");
    let files = entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = files.filter_map(|file| file.strip_suffix(VALUES).map(str::to_owned)).collect();
    names.sort();
    names
}

/// The objects of one golden.
pub fn objects(name: &str) -> Vec<Value> {
    documents(&file(&format!("{FOLDER}/{name}.yaml")))
}

/// Every object that the chart may make, with the name of its golden.
pub fn every_object() -> Vec<(String, Value)> {
    names().into_iter().flat_map(|name| objects(&name).into_iter().map(move |object| (name.clone(), object))).collect()
}

/// What Helm renders, without what is a file of this checkout anyway: the contents of definitions and dashboards.
fn render(helm: &Path, name: &str) -> String {
    let values = format!("{FOLDER}/{name}{VALUES}");
    let text = file(&values);
    let extra = text.lines().next().and_then(|line| line.strip_prefix("# ")).unwrap_or_default();
    let (mut release, mut arguments) = ("omniroute-operator", vec!["--namespace=omniroute-system", "--kube-version=1.34.0", "-f", &values]);
    for argument in extra.split_whitespace() {
        match argument.strip_prefix("--release=") {
            Some(name) => release = name,
            None => arguments.push(argument),
        }
    }
    let rendered = output(helm, &[&["template", release, CHART][..], &arguments].concat());
    let mut kept = String::new();
    for document in rendered.split("---\n").filter(|document| !document.trim().is_empty()) {
        let cut = match document {
            _ if document.contains("\nkind: CustomResourceDefinition\n") => Some("\nspec:\n"),
            _ if document.contains("/dashboards.yaml\n") => Some("\ndata:\n"),
            _ => None,
        };
        let part = cut.and_then(|cut| document.split(cut).next()).unwrap_or(document);
        let _ = write!(kept, "---\n{}\n", part.trim_end());
    }
    kept
}

#[test]
fn the_chart_renders_what_it_did() {
    let Some(helm) = find_built("helm") else { return };
    let names = names();
    assert!(names.len() >= 25, "only {} goldens", names.len());
    let next = std::sync::atomic::AtomicUsize::new(0);
    let stale = std::sync::Mutex::new(Vec::new());
    // Helm mostly reads the chart from the disk: a few at a time.
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                    let (path, rendered) = (root().join(format!("{FOLDER}/{name}.yaml")), render(&helm, name));
                    if std::env::var_os("UPDATE").is_some() {
                        std::fs::write(&path, &rendered).expect("golden");
                    }
                    if std::fs::read_to_string(&path).unwrap_or_default() != rendered {
                        stale.lock().expect("list").push(name);
                    }
                }
            });
        }
    });
    let stale = stale.into_inner().expect("list");
    assert!(stale.is_empty(), "{stale:?} changed: UPDATE=1 cargo test --test packaging, and read the difference");
}

#[test]
fn every_golden_has_its_values_and_differs_from_the_default() {
    let files = std::fs::read_dir(root().join(FOLDER)).expect("goldens").map(|entry| entry.expect("entry").file_name());
    let rendered: BTreeSet<String> = files
        .filter_map(|file| file.to_string_lossy().strip_suffix(".yaml").map(str::to_owned))
        .filter(|name| !name.ends_with(".values"))
        .collect();
    let names = names();
    assert_eq!(rendered, names.iter().cloned().collect());
    let default = file(&format!("{FOLDER}/default.yaml"));
    for name in names.iter().filter(|name| !["default", "monitoring-without-its-kinds"].contains(&name.as_str())) {
        assert!(file(&format!("{FOLDER}/{name}.yaml")) != default, "{name} changes nothing");
    }
    assert_eq!(file(&format!("{FOLDER}/monitoring-without-its-kinds.yaml")), default);
}

#[test]
fn rendering_twice_gives_the_same_bytes_and_reads_no_cluster() {
    let Some(helm) = find_built("helm") else { return };
    let render = || output(&helm, &["template", "x", CHART]);
    assert_eq!(render(), render());
    for entry in std::fs::read_dir(root().join(CHART).join("templates")).expect("templates") {
        let path = entry.expect("entry").path();
        let template = std::fs::read_to_string(&path).expect("template");
        for function in ["lookup", "rand", "uuidv4", "genCA", "genSelfSignedCert", "now", "getHostByName"] {
            let calls = template.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
            let words = calls.flat_map(|call| call.split(|c: char| !c.is_ascii_alphanumeric()));
            assert!(words.into_iter().all(|word| !word.starts_with(function)), "{}: {function}", path.display());
        }
    }
}

#[test]
fn every_object_has_the_standard_labels() {
    for (golden, object) in every_object() {
        for label in ["name", "instance", "version", "part-of", "managed-by"] {
            let pointer = format!("/metadata/labels/app.kubernetes.io~1{label}");
            assert!(!text(&object, &pointer).is_empty(), "{golden}: {} {} has no {label}", object["kind"], object["metadata"]["name"]);
        }
        assert_eq!(text(&object, "/metadata/labels/app.kubernetes.io~1version"), env!("CARGO_PKG_VERSION"));
    }
}

/// What runs once and stays behind has immutable fields, and upgrades stumble over it.
#[test]
fn nothing_runs_once_and_nothing_is_a_hook() {
    let objects = every_object();
    assert!(objects.len() > 300, "{}", objects.len());
    for (golden, object) in objects {
        assert!(!["Job", "CronJob", "Pod"].contains(&text(&object, "/kind")), "{golden}: {object}");
        let annotations = object.pointer("/metadata/annotations").and_then(Value::as_object);
        let hook = annotations
            .into_iter()
            .flatten()
            .find(|(name, _)| name.starts_with("helm.sh/hook") || name.starts_with("argocd.argoproj.io/hook"));
        assert!(hook.is_none(), "{golden}: {hook:?}");
    }
}

#[test]
fn selectors_find_the_pods_of_their_release_and_never_change() {
    for golden in names() {
        let objects = objects(&golden);
        let pod = objects.iter().find(|object| text(object, "/kind") == "Deployment").expect("Deployment");
        let selector = &pod["spec"]["selector"]["matchLabels"];
        // A selector cannot be changed in an upgrade, so nothing that differs between versions may be in it.
        let expected: BTreeSet<&str> = BTreeSet::from(["app.kubernetes.io/name", "app.kubernetes.io/instance"]);
        assert_eq!(selector.as_object().expect("labels").keys().map(String::as_str).collect::<BTreeSet<_>>(), expected);
        let labels = pod.pointer("/spec/template/metadata/labels").expect("labels");
        for (label, value) in selector.as_object().expect("labels") {
            assert_eq!(&labels[label], value, "{golden}");
        }
        for object in &objects {
            let pointer = match text(object, "/kind") {
                "Service" => "/spec/selector",
                "PodDisruptionBudget" => "/spec/selector/matchLabels",
                "NetworkPolicy" => "/spec/podSelector/matchLabels",
                _ => continue,
            };
            assert_eq!(object.pointer(pointer), Some(selector), "{golden}: {}", object["kind"]);
        }
    }
}

/// Objects of kinds whose schema is not Kubernetes' own, and definitions that the goldens cut.
const NOT_OURS: &str = "ServiceMonitor,PodMonitor,PrometheusRule,CustomResourceDefinition";

#[test]
fn every_supported_kubernetes_knows_every_field() {
    let Some(kubeconform) = find("kubeconform") else { return };
    let schemas = std::env::var("OMNIROUTE_SCHEMAS").unwrap_or_else(|_| root().join("target/tools/schemas").to_string_lossy().into_owned());
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("objects");
    std::fs::create_dir_all(&dir).expect("folder");
    // Every different object once.
    let mut all: BTreeSet<String> = every_object().into_iter().map(|(_, object)| object.to_string()).collect();
    all.extend(super::children::every_object().into_iter().map(|(_, object)| object.to_string()));
    let objects = dir.join("objects.yaml");
    std::fs::write(&objects, all.iter().map(|object| format!("---\n{object}\n")).collect::<String>()).expect("objects");
    let objects = objects.to_string_lossy();
    for version in KUBERNETES {
        let check = |arguments: &[&str]| {
            let common = ["-strict", "-summary", "-kubernetes-version", version, "-schema-location", &schemas];
            run(&kubeconform, &[&common[..], arguments].concat(), "")
        };
        let result = check(&["-skip", NOT_OURS, &objects]);
        assert!(result.status.success(), "Kubernetes {version}: {}", String::from_utf8_lossy(&result.stdout));
        let definitions = check(&["crds"]);
        let summary = String::from_utf8_lossy(&definitions.stdout).into_owned();
        assert!(definitions.status.success() && summary.contains("Valid: 5, Invalid: 0"), "Kubernetes {version}: {summary}");
    }
    // The check can fail.
    let wrong = dir.join("wrong.yaml");
    std::fs::write(&wrong, all.iter().next().expect("an object").replacen("\"metadata\"", "\"metdata\"", 1)).expect("object");
    let arguments = ["-strict", "-kubernetes-version", KUBERNETES[0], "-schema-location", &schemas, &wrong.to_string_lossy()];
    assert!(!run(&kubeconform, &arguments, "").status.success(), "a misspelled field was accepted");
}
