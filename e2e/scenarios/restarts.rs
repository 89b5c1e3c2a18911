//! State that outlives pods, and the commands that end it.

use std::io::Read;
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};

use super::super::cluster::Outcome;
use super::super::health::condition_reason;
use super::super::world::{CLIENT_KEY, PODS, SOON, SYSTEM, TEAM, World};
use super::ensure;

const A: &str = "openai-team-a";
const A_KEY: &str = "sk-replace-me-a";
const GATEWAY: &str = "app.kubernetes.io/name=omniroute-gateway";

/// Lets account a cool for two minutes and waits until the checkpoint knows it.
fn cool_for_two_minutes(world: &World) -> Outcome {
    world.fake("openai").rate_limit(A_KEY, 120)?;
    let (mut client, _way) = world.client()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "no failover".to_owned())?;
    world.await_state(A, "Cooling", SOON)?;
    let limit = SOON + Duration::from_secs(5); // one checkpoint per five seconds
    world
        .cluster
        .await_object(TEAM, "configmap", "omniroute-gateway-checkpoint", limit, |object| unpacked(&object["binaryData"]).contains(A))
        .map(drop)
}

/// The compressed values of a ConfigMap or a Secret as one text; others are left out.
pub fn unpacked(data: &Value) -> String {
    let values = data.as_object().into_iter().flatten();
    values
        .filter_map(|(_, value)| {
            let packed = base64::engine::general_purpose::STANDARD.decode(value.as_str()?).ok()?;
            let mut text = String::new();
            flate2::read::GzDecoder::new(packed.as_slice()).read_to_string(&mut text).ok()?;
            Some(text)
        })
        .collect()
}

/// Replaces every gateway pod, and proves that the cooling account is not asked again.
fn replace_pods_and_ask(world: &World) -> Outcome {
    let fake = world.fake("openai");
    let asked = fake.last_with(A_KEY)?;
    let before = world.gateway_pods()?;
    world.cluster.kubectl(&["delete", "pod", "-n", TEAM, "-l", GATEWAY])?;
    world.await_deployment(TEAM, "omniroute-gateway")?;
    let after = world.gateway_pods()?;
    ensure(before.iter().all(|pod| !after.contains(pod)), || "the pods were not replaced".to_owned())?;
    let (mut client, _way) = world.client()?;
    for _ in 0..5 {
        ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "the cooling account served".to_owned())?;
    }
    ensure(fake.last_with(A_KEY)? <= asked, || "the cooling account was asked again".to_owned())
}

pub fn cooldowns_survive(world: &World) -> Outcome {
    cool_for_two_minutes(world)?;
    replace_pods_and_ask(world)?;
    world.await_state(A, "Cooling", SOON)?;

    scale_operator(world, 0)?;
    let outcome = replace_pods_and_ask(world);
    scale_operator(world, 1)?;
    outcome?;
    world.await_state(A, "Cooling", SOON).map(drop)
}

/// Sets the number of operator pods and waits for them.
pub fn scale_operator(world: &World, replicas: u32) -> Outcome {
    let replicas_argument = format!("--replicas={replicas}");
    world.cluster.kubectl(&["scale", "-n", SYSTEM, "deployment/omniroute-operator", &replicas_argument])?;
    if replicas == 0 {
        let selector = ["pod", "-l", "app.kubernetes.io/name=omniroute-operator"];
        return world.cluster.wait_for(SYSTEM, &selector, "delete", PODS);
    }
    world.await_deployment(SYSTEM, "omniroute-operator")
}

pub fn annotations_clear(world: &World) -> Outcome {
    // Still cooling from the scenario before, or again.
    if world.cluster.get(TEAM, &["connection", A])?["status"]["state"] != json!("Cooling") {
        cool_for_two_minutes(world)?;
    }
    world.fake("openai").healthy()?;
    annotate(world, "omniroute.dev/clear-cooldown=first")?;
    let cleared = world.await_state(A, "Active", SOON)?;
    let (mut client, _way) = world.client()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == A, || "the cleared account does not serve".to_owned())?;
    if cleared["status"]["commands"]["clearCooldown"] != json!("first") {
        world
            .cluster
            .await_object(TEAM, "connection", A, SOON, |object| object["status"]["commands"]["clearCooldown"] == json!("first"))?;
    }

    // The same value acts once only.
    world.fake("openai").rate_limit(A_KEY, 20)?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "no failover".to_owned())?;
    world.await_state(A, "Cooling", SOON)?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "an old command acted again".to_owned())?;
    annotate(world, "omniroute.dev/clear-cooldown=second")?;
    world.await_state(A, "Active", SOON)?;

    // A dead account stays out until it is reset.
    world.fake("openai").answer(A_KEY, 401, &[], "Your OpenAI account has been deactivated")?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "no failover".to_owned())?;
    let dead = world.cluster.await_object(TEAM, "connection", A, SOON, |object| {
        ["Banned", "Expired"].contains(&object["status"]["state"].as_str().unwrap_or_default())
    })?;
    ensure(dead["status"]["until"].is_null(), || format!("a terminal state has no deadline: {}", dead["status"]))?;
    ensure(["Banned", "Expired"].contains(&condition_reason(&dead, "Available")), || format!("{}", dead["status"]))?;
    world.fake("openai").healthy()?;
    annotate(world, "omniroute.dev/reset=first")?;
    world.await_state(A, "Active", SOON)?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == A, || "the reset account does not serve".to_owned())
}

fn annotate(world: &World, annotation: &str) -> Outcome {
    world.cluster.kubectl(&["annotate", "-n", TEAM, "connection", A, annotation, "--overwrite"]).map(drop)
}
