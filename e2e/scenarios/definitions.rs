//! The API server decides about manifests as `omniroute validate` does, and stores the definitions as they are written.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::cluster::Outcome;
use super::super::world::{TEAM, World};
use super::ensure;

fn documents(kind: &Path, verdict: &str) -> Outcome<Vec<(String, String)>> {
    let mut files: Vec<PathBuf> = fs::read_dir(kind.join(verdict))
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect())
        .map_err(|e| format!("reading {}: {e}", kind.join(verdict).display()))?;
    files.sort();
    let mut out = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|e| format!("reading {}: {e}", file.display()))?;
        out.extend(text.split("\n---\n").map(|document| (file.display().to_string(), document.to_owned())));
    }
    Ok(out)
}

fn kinds() -> Outcome<Vec<PathBuf>> {
    fs::read_dir("tests/crd")
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect())
        .map_err(|e| format!("reading tests/crd: {e}"))
}

/// The fixtures of `tests/crd`: what they accept is accepted, what they reject is rejected, and CEL rules say the same words.
pub fn fixtures(world: &World) -> Outcome {
    let dry_run = ["apply", "--server-side", "--dry-run=server", "-n", TEAM, "-f", "-"];
    for kind in kinds()? {
        for (file, document) in documents(&kind, "accept")? {
            world.cluster.kubectl_with(&dry_run, &document).map_err(|e| format!("{file} was not accepted: {e}"))?;
        }
        for (file, document) in documents(&kind, "reject")? {
            let Err(refusal) = world.cluster.kubectl_with(&dry_run, &document) else {
                return Err(format!("{file} was accepted:\n{document}"));
            };
            for message in rule_messages(&document) {
                ensure(refusal.contains(message), || format!("{file}: expected `{message}` in {refusal}"))?;
            }
        }
    }
    Ok(())
}

/// The expected messages of CEL rules; those of the structural checks have other words on the server.
fn rule_messages(document: &str) -> Vec<&str> {
    let expectations = document.lines().filter_map(|line| line.strip_prefix("# expect: ")?.split_once(": "));
    expectations
        .map(|(_, message)| message)
        .filter(|message| {
            message.starts_with('`') && !message.starts_with("`\"") && !message.contains("is required")
                || message.starts_with("must have exactly one")
        })
        .collect()
}

/// What the server stores of a definition is what the file says.
pub fn stored_as_written(world: &World) -> Outcome {
    for entry in fs::read_dir("crds").map_err(|e| format!("reading crds: {e}"))? {
        let path = entry.map_err(|e| format!("reading crds: {e}"))?.path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|e| format!("reading {}: {e}", path.display()))?;
        let written: Value = serde_saphyr::from_str(&text).map_err(|e| format!("reading {}: {e}", path.display()))?;
        let name = written["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let stored = world.cluster.get("", &["crd", &name])?;
        ensure(stored["spec"] == written["spec"], || format!("the stored spec of {name} differs from {}", path.display()))?;
        let structural = stored["status"]["conditions"].as_array().into_iter().flatten().all(|c| c["type"] != "NonStructuralSchema");
        ensure(structural, || format!("{name} has no structural schema"))?;
    }
    Ok(())
}

/// Connections can be asked for by the name of their Provider.
pub fn selectable(world: &World) -> Outcome {
    let found = world.cluster.get(TEAM, &["connections", "--field-selector", "spec.providerRef.name=openai"])?;
    let names: Vec<&str> = found["items"].as_array().into_iter().flatten().filter_map(|c| c["metadata"]["name"].as_str()).collect();
    ensure(names == ["openai-team-a", "openai-team-b"], || format!("connections of openai: {names:?}"))
}
