//! The API server goes away; the data plane does not notice.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::cluster::{Outcome, until};
use super::super::process::{Process, await_process};
use super::super::world::{CLIENT_KEY, PODS, SOON, SYSTEM, TEAM, World};
use super::ensure;

/// How long the API server is away: a minute, five with `SOAK=1`.
fn duration() -> Duration {
    Duration::from_secs(if std::env::var_os("SOAK").is_some() { 300 } else { 60 })
}

/// Status code of a GET, over a connection of its own.
fn status_of(address: &str, path: &str) -> Option<u16> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {CLIENT_KEY}\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.split_whitespace().nth(1)?.parse().ok()
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
    let gateway_pod = pod_name(world, TEAM, "omniroute-gateway")?;
    let operator_pod = pod_name(world, SYSTEM, "omniroute-operator")?;
    let operator = await_process("operator", &operator_pod, None, SOON)?;
    let (mut client, _way) = world.client()?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(20)?;

    world.cluster.stop_component("kube-apiserver")?;
    let away = Instant::now();
    let meanwhile = while_away(&mut client, &gateway_pod, away);
    world.cluster.start_component("kube-apiserver")?;
    world.cluster.await_api_server()?;
    meanwhile?;

    ensure(Process::of_pod("operator", &operator_pod) == Some(operator), || "the operator was restarted".to_owned())?;
    world.await_deployment(TEAM, "omniroute-gateway")?;
    // It catches up: a change made now takes effect.
    world.cluster.patch(TEAM, "combo/assistant", &json!({"spec": {"description": "after the outage"}}))?;
    world
        .cluster
        .await_object(TEAM, "combo", "assistant", PODS, |combo| combo["status"]["observedGeneration"] == combo["metadata"]["generation"])?;
    world.cluster.wait_for(TEAM, &["connections", "--all"], "condition=Available", PODS)?;
    let (mut client, _way) = world.client()?;
    client.served_by(CLIENT_KEY, "assistant").map(drop)
}

/// Traffic flows for most of the outage; then the gateway's container and its sandbox die, and a new one serves from the mounted copies.
fn while_away(client: &mut super::super::client::Client, gateway_pod: &str, away: Instant) -> Outcome {
    let quiet = duration().mul_f64(0.6);
    while away.elapsed() < quiet {
        client.more(50)?;
    }
    client.stop()?;

    let old = await_process("gateway", gateway_pod, None, SOON)?;
    let sandbox = old.sandbox().ok_or("the gateway has no sandbox")?;
    old.signal("KILL")?;
    sandbox.signal("KILL")?;
    let new = await_process("gateway", gateway_pod, Some(old), PODS)?;
    until(PODS, "the restarted gateway", || {
        let address = new.address().ok()?;
        (status_of(&format!("{address}:9090"), "/readyz")? == 200).then_some(())
    })?;
    let address = new.address()?;
    let status = status_of(&format!("{address}:8080"), "/v1/models");
    ensure(status == Some(200), || format!("the restarted gateway answered {status:?}"))?;
    until(duration(), "the end of the outage", || (away.elapsed() >= duration()).then_some(()))
}
