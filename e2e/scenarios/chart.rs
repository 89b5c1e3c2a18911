//! The chart: install, upgrade, uninstall with the real Helm.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::super::cluster::{Outcome, run, until};
use super::super::fake;
use super::super::world::{CLIENT_KEY, PODS, SYSTEM, World, quickstart};
use super::ensure;

const RELEASE: &str = "omniroute-operator";
const CHARTED: &str = "omniroute-e2e-chart";

fn helm(arguments: &[&str]) -> Outcome<String> {
    let mut command = Command::new("helm");
    command.args(arguments).args(["--namespace", SYSTEM]).current_dir(env!("CARGO_MANIFEST_DIR"));
    run(command, "").map_err(|error| format!("helm {}: {error}", arguments.join(" ")))
}

/// The API server takes every object that the chart can make of its values on top of the installed ones: no value changes a field that cannot be changed.
fn any_upgrade(world: &World) -> Outcome {
    let installed = ["Deployment", "Service", "ServiceAccount", "RoleBinding", "ClusterRoleBinding"];
    let mut objects = Vec::new();
    for entry in fs::read_dir(GOLDENS).map_err(|error| format!("reading {GOLDENS}: {error}"))? {
        let path = entry.map_err(|error| format!("reading {GOLDENS}: {error}"))?.path();
        if path.to_string_lossy().ends_with(".values.yaml") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("reading {}: {error}", path.display()))?;
        // Definitions and dashboards are cut short there; everything else is whole.
        for document in text.split("---\n").filter(|document| installed.iter().any(|kind| document.contains(&format!("\nkind: {kind}\n"))))
        {
            let object: Value = serde_saphyr::from_str(document).map_err(|error| format!("{}: {error}", path.display()))?;
            let here = object["metadata"]["namespace"].as_str().is_none_or(|namespace| namespace == SYSTEM);
            objects.extend(here.then_some(object));
        }
    }
    ensure(objects.len() > 100, || format!("only {} objects", objects.len()))?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    world.cluster.kubectl_with(&["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"], &list)?;
    // The check can fail.
    let bindings: Vec<&mut Value> = objects.iter_mut().filter(|object| object["kind"] == json!("RoleBinding")).collect();
    let Some(binding) = bindings.into_iter().next() else { return Err("no RoleBinding".to_owned()) };
    binding["roleRef"]["name"] = json!("another");
    let refused =
        world.cluster.kubectl_with(&["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-"], &binding.to_string());
    ensure(refused.is_err(), || "another role was accepted".to_owned())
}

const GOLDENS: &str = "tests/golden/helm";

pub fn life(world: &World) -> Outcome {
    let cluster = &world.cluster;
    // From the plain installation to none at all.
    cluster.kubectl(&["delete", "-k", "config/default", "--timeout=90s"])?;

    let chart = "charts/omniroute-operator";
    let out = helm(&["install", RELEASE, chart, "--create-namespace", "--wait", "--timeout=90s"])?;
    ensure(out.contains("every namespace"), || format!("NOTES: {out}"))?;
    world.namespace(CHARTED)?;
    fake::deploy(cluster, CHARTED, &["openai", "anthropic"])?;
    cluster.apply(CHARTED, &quickstart(CHARTED)?)?;
    cluster.wait_for(CHARTED, &["combo/assistant"], "condition=Ready", PODS)?;
    let way = world.way(CHARTED, "omniroute-gateway", 80)?;
    let mut client = super::super::client::Client::start(&way.url)?;
    for vendor in ["openai", "anthropic"] {
        world.await_deployment(CHARTED, &fake::service(vendor))?;
    }
    client.served_by(CLIENT_KEY, "assistant")?;

    let uids = |kind: &str| -> Outcome<serde_json::Value> {
        let list = cluster.get(CHARTED, &[kind])?;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|object| object["metadata"]["uid"].clone()).collect())
    };
    let pods = uids("pods")?;
    helm(&["upgrade", RELEASE, chart, "--set=replicas=2", "--set=podAnnotations.upgraded=yes", "--wait", "--timeout=90s"])?;
    let operator = cluster.get(SYSTEM, &["deployment", RELEASE])?;
    ensure(operator["status"]["readyReplicas"] == json!(2), || format!("{}", operator["status"]))?;
    ensure(uids("pods")? == pods, || "the upgrade of the operator replaced gateway pods".to_owned())?;
    helm(&["rollback", RELEASE, "1", "--wait", "--timeout=90s"])?;
    any_upgrade(world)?;

    helm(&["uninstall", RELEASE, "--wait", "--timeout=90s"])?;
    // The kinds and everybody's objects stay, and so does the traffic.
    let combos = cluster.get(CHARTED, &["combos"])?;
    ensure(combos["items"].as_array().is_some_and(|items| items.len() == 1), || "the combo is gone".to_owned())?;
    client.served_by(CLIENT_KEY, "assistant")?;
    let kinds = "deployments,services,roles,rolebindings,networkpolicies,poddisruptionbudgets";
    until(PODS, "the end of the release", || {
        let left = cluster.get(SYSTEM, &[kinds]).ok()?;
        left["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    })
}
