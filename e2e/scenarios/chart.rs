//! The chart: install, upgrade, uninstall with the real Helm.

use std::process::Command;

use serde_json::json;

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
