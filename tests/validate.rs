//! `omniroute validate` as people and programs call it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROVIDER: &str = "apiVersion: omniroute.dev/v1alpha1\nkind: Provider\nmetadata: {name: p}\nspec: {preset: openai}\n";
const DANGLING: &str = "apiVersion: omniroute.dev/v1alpha1\nkind: Connection\nmetadata: {name: c}\nspec:\n  providerRef: {name: elsewhere}\n  credentials: {none: {}}\n";
const BROKEN: &str = "apiVersion: omniroute.dev/v1alpha1\nkind: Combo\nmetadata: {name: c}\nspec:\n  strateg: Priority\n  targets: [{provider: p, model: m}]\n";

/// A folder of its own that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("omniroute-validate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in files {
            std::fs::write(dir.join(file), text).unwrap();
        }
        Self(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn validate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_omniroute")).arg("validate").args(args).output().unwrap()
}

fn path(folder: &Folder) -> &str {
    folder.0.to_str().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn good_manifests_are_good() {
    let folder = Folder::new("good", &[("p.yaml", PROVIDER)]);
    let output = validate(&["-f", path(&folder)]);
    assert_eq!((code(&output), stdout(&output).as_str()), (0, "1 input with 1 object (1 Provider): no errors, no warnings\n"));
}

#[test]
fn errors_are_told_like_a_compiler_does() {
    let folder = Folder::new("errors", &[("c.yaml", BROKEN), ("p.yaml", PROVIDER)]);
    let output = validate(&["-f", path(&folder)]);
    let text = stdout(&output);
    assert_eq!(code(&output), 1);
    let first = format!(
        "{}/c.yaml:5: error: Combo `c`: spec.strateg: there is no field `strateg` here; did you mean `strategy`? [UnknownField]\n",
        path(&folder)
    );
    assert!(text.starts_with(&first), "{text}");
    assert!(text.ends_with("2 inputs with 2 objects (1 Combo, 1 Provider): 1 error, no warnings\n"), "{text}");
}

#[test]
fn references_outside_the_input_are_warnings_unless_strict() {
    let folder = Folder::new("outside", &[("c.yaml", DANGLING)]);
    let loose = validate(&["-f", path(&folder)]);
    assert_eq!(code(&loose), 0, "{}", stdout(&loose));
    assert!(stdout(&loose).contains("c.yaml:5: warning: Connection `c`: spec.providerRef.name:"), "{}", stdout(&loose));
    let strict = validate(&["-f", path(&folder), "--strict"]);
    assert_eq!(code(&strict), 1);
    assert!(stdout(&strict).contains("c.yaml:5: error: "), "{}", stdout(&strict));
}

#[test]
fn a_key_that_a_given_secret_lacks_is_an_error() {
    let text = format!(
        "{PROVIDER}---\napiVersion: omniroute.dev/v1alpha1\nkind: Connection\nmetadata: {{name: c}}\nspec:\n  providerRef: {{name: p}}\n  credentials: {{apiKey: {{secretRef: {{name: s, key: b}}}}}}\n---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{a: canary}}\n"
    );
    let folder = Folder::new("key", &[("all.yaml", &text)]);
    let output = validate(&["-f", path(&folder)]);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    assert!(stdout(&output).contains("SecretKeyNotFound") && !stdout(&output).contains("canary"), "{}", stdout(&output));
}

#[test]
fn namespaces_are_checked_apart() {
    let in_namespace = |text: &str, namespace: &str| text.replace("metadata: {", &format!("metadata: {{namespace: {namespace}, "));
    let text = format!("{}---\n{}", in_namespace(PROVIDER, "a"), in_namespace(&DANGLING.replace("elsewhere", "p"), "b"));
    let folder = Folder::new("namespaces", &[("all.yaml", &text)]);
    let output = validate(&["-f", path(&folder), "--strict"]);
    assert_eq!(code(&output), 1, "{}", stdout(&output));
    assert!(stdout(&output).contains("ProviderNotFound"), "{}", stdout(&output));
}

#[test]
fn standard_input_is_an_input() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_omniroute"))
        .args(["validate", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(BROKEN.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), 1);
    assert!(stdout(&output).starts_with("-:5: error: "), "{}", stdout(&output));
}

#[test]
fn wrong_use_is_two() {
    assert_eq!(code(&validate(&[])), 2);
    assert_eq!(code(&validate(&["-f", "/does/not/exist.yaml"])), 2);
    assert_eq!(code(&validate(&["-f", "-", "-o", "xml"])), 2);
}

#[test]
fn json_is_one_object() {
    let folder = Folder::new("json", &[("c.yaml", BROKEN)]);
    let output = validate(&["-f", path(&folder), "-o", "json"]);
    assert_eq!(code(&output), 1);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["ok"], &report["errors"], &report["warnings"], &report["sources"]),
        (&false.into(), &1.into(), &0.into(), &1.into())
    );
    assert_eq!(report["objects"], serde_json::json!({"Combo": 1}));
    let problem = &report["problems"][0];
    assert_eq!(problem["level"], "error");
    assert_eq!(problem["reason"], "UnknownField");
    assert_eq!((&problem["kind"], &problem["name"], &problem["field"]), (&"Combo".into(), &"c".into(), &"spec.strateg".into()));
    assert_eq!((&problem["line"], &problem["document"]), (&5.into(), &1.into()));
    assert!(problem["source"].as_str().unwrap().ends_with("c.yaml"));
}

#[test]
fn sarif_has_what_code_hosts_need() {
    let folder = Folder::new("sarif", &[("c.yaml", BROKEN), ("d.yaml", DANGLING)]);
    let output = validate(&["-f", path(&folder), "-o", "sarif"]);
    assert_eq!(code(&output), 1);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["version"], "2.1.0");
    let run = &log["runs"][0];
    assert_eq!(run["tool"]["driver"]["name"], "omniroute");
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        let index = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[index]["id"], result["ruleId"]);
        let location = &result["locations"][0]["physicalLocation"];
        assert!(location["artifactLocation"]["uri"].as_str().unwrap().starts_with("file:///"));
        assert!(location["region"]["startLine"].as_u64().unwrap() >= 1);
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
    }
    assert_eq!((&results[0]["level"], &results[1]["level"]), (&"error".into(), &"warning".into()));
}

#[test]
fn every_example_is_one_good_input() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/examples");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let file = entry.unwrap().path();
        let output = validate(&["-f", file.to_str().unwrap(), "-o", "json"]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let errors: Vec<&Value> = report["problems"].as_array().unwrap().iter().filter(|p| p["level"] == "error").collect();
        assert!(errors.is_empty(), "{errors:#?}");
        assert_eq!(output.status.code(), Some(0), "{}", file.display());
        seen += 1;
    }
    assert_eq!(seen, 5);
}
