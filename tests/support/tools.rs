//! Programs that some tests run: kubectl and helm (`e2e/cluster/with-cluster --tools`), promtool.

// Every test file uses its own part of this.
#![allow(dead_code)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the checkout.
pub fn file(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `helm` or `kubectl`: in PATH, or where `with-cluster` has built them. Without them a test fails, because a chart or a golden that changed
/// would go unnoticed; `OMNIROUTE_SKIP_HELM=1` skips it.
pub fn find_built(program: &str) -> Option<PathBuf> {
    if let Some(found) = in_path(program) {
        return Some(found);
    }
    let script = Command::new(root().join("e2e/cluster/with-cluster")).args(["--tools", "--built"]).stderr(Stdio::null()).output();
    let folder = script.ok().filter(|output| output.status.success()).and_then(|output| String::from_utf8(output.stdout).ok());
    if let Some(found) = folder.map(|folder| Path::new(folder.trim()).join(program)).filter(|file| file.is_file()) {
        return Some(found);
    }
    let skip = std::env::var_os("OMNIROUTE_SKIP_HELM").is_some_and(|value| value == "1");
    assert!(
        skip && std::env::var_os("OMNIROUTE_REQUIRE_TOOLS").is_none(),
        "{program} is not in PATH: `e2e/cluster/with-cluster --tools` builds it once (needs Go), and is asked where it lies from then on; \
         OMNIROUTE_SKIP_HELM=1 skips the tests that need it"
    );
    eprintln!("skipped: {program} is not in PATH, and OMNIROUTE_SKIP_HELM=1");
    None
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// Where a program lies in PATH. A missing one skips the test with a message, except where `scripts/test` runs for a continuous integration
/// (`OMNIROUTE_REQUIRE_TOOLS`): there it fails it.
pub fn find(program: &str) -> Option<PathBuf> {
    let found = in_path(program);
    if found.is_none() {
        assert!(std::env::var_os("OMNIROUTE_REQUIRE_TOOLS").is_none(), "{program} is not in PATH");
        eprintln!("skipped: {program} is not in PATH; scripts/test brings it");
    }
    found
}

/// Runs a program in the checkout, with text on its standard input.
pub fn run(program: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("standard input");
    child.wait_with_output().expect("output")
}

/// Standard output of a program that must succeed.
pub fn output(program: &Path, arguments: &[&str]) -> String {
    let output = run(program, arguments, "");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {errors}", program.display());
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The documents of a YAML text.
pub fn documents(yaml: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    all.into_iter().filter(|document| !document.is_null()).collect()
}

/// Text at a JSON pointer, empty when it is not there.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
