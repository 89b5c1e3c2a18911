//! The API server goes away; the data plane does not notice.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::client::Client;
use super::super::cluster::{Outcome, until};
use super::super::health::condition_status;
use super::super::process::{Process, await_process, http_get};
use super::super::world::{CLIENT_KEY, PODS, SOON, SYSTEM, TEAM, World, quickstart};
use super::ensure;
use super::repair::OTHER;

/// How long the API server is away: a minute, five with `SOAK=1`.
fn duration() -> Duration {
    Duration::from_secs(if std::env::var_os("SOAK").is_some() { 300 } else { 60 })
}

fn pod_name(world: &World, namespace: &str, application: &str) -> Outcome<String> {
    let selector = format!("app.kubernetes.io/name={application}");
    let pods = world.cluster.get(namespace, &["pods", "-l", &selector])?;
    let mut pods = pods["items"].as_array().into_iter().flatten();
    let alive = pods.find(|pod| pod["metadata"]["deletionTimestamp"].is_null());
    let name = alive.and_then(|pod| pod["metadata"]["name"].as_str());
    name.map(str::to_owned).ok_or_else(|| format!("no pod of {application}"))
}

pub fn api_server_away(world: &World) -> Outcome {
    // Two gateways: one keeps serving, the other one's container and sandbox die meanwhile.
    world.namespace(OTHER)?;
    world.cluster.apply(OTHER, &quickstart(OTHER)?)?;
    world.cluster.wait_for(OTHER, &["combo/assistant"], "condition=Ready", PODS)?;
    let victim_pod = pod_name(world, OTHER, "omniroute-gateway")?;
    let victim = await_process("gateway", &victim_pod, None, SOON)?;
    let operator_pod = pod_name(world, SYSTEM, "omniroute-operator")?;
    let operator = await_process("operator", &operator_pod, None, SOON)?;
    let (mut client, _way) = world.client()?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(20)?;

    world.cluster.stop_component("kube-apiserver")?;
    let meanwhile = while_away(&mut client, &victim_pod, victim);
    world.cluster.start_component("kube-apiserver")?;
    world.cluster.await_api_server()?;
    meanwhile?;

    ensure(Process::of_pod("operator", &operator_pod) == Some(operator), || "the operator was restarted".to_owned())?;
    // It catches up: a change made now takes effect, and what happened meanwhile is seen.
    world.cluster.patch(TEAM, "combo/assistant", &json!({"spec": {"description": "after the outage"}}))?;
    world.cluster.await_object(TEAM, "combo", "assistant", CAUGHT_UP, |combo| {
        combo["status"]["observedGeneration"] == combo["metadata"]["generation"] && condition_status(combo, "Ready") == "True"
    })?;
    for namespace in [TEAM, OTHER] {
        world.cluster.await_object(namespace, "resiliencesettings", "default", CAUGHT_UP, |settings| {
            settings["status"]["gateway"]["ready"] == json!(1) && condition_status(settings, "Available") == "True"
        })?;
        world.cluster.wait_for(namespace, &["connections", "--all"], "condition=Available", CAUGHT_UP)?;
    }
    // A node whose lease ran out meanwhile counts as not ready for a moment when the API server is back, and its pods leave the Service.
    let client = std::cell::RefCell::new(client);
    until(CAUGHT_UP, "the Service with its pods back", || client.borrow_mut().served_by(CLIENT_KEY, "assistant").ok())
}

/// The time until everything is seen again: watches come back with growing pauses, of at most ten seconds each, and pods and nodes take theirs.
const CAUGHT_UP: Duration = Duration::from_secs(120);

/// Traffic flows all the time, and a gateway that dies comes back from the mounted copies.
fn while_away(client: &mut Client, pod: &str, victim: Process) -> Outcome {
    let away = Instant::now();
    let sandbox = victim.sandbox().ok_or("the gateway has no sandbox")?;
    victim.signal("KILL")?;
    sandbox.signal("KILL")?;
    while away.elapsed() < duration() {
        client.more(50)?;
    }
    let new = await_process("gateway", pod, Some(victim), PODS)?;
    until(PODS, "the restarted gateway", || {
        let address = new.address().ok()?;
        (http_get(&format!("{address}:9090"), "/readyz", CLIENT_KEY)?.0 == 200).then_some(())
    })?;
    let answer = http_get(&format!("{}:8080", new.address()?), "/v1/models", CLIENT_KEY);
    ensure(answer.as_ref().is_some_and(|(status, _)| *status == 200), || format!("the restarted gateway answered {answer:?}"))?;
    client.stop().map(drop)
}
