//! One writer, whatever happens to it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::cluster::Outcome;
use super::super::process::{Process, await_process};
use super::super::world::{PODS, SOON, SYSTEM, TEAM, World};
use super::ensure;
use super::restarts::scale_operator;

/// The Lease's duration and what a hand-over may take beyond it.
const LEASE: Duration = Duration::from_secs(15);
const SLACK: Duration = Duration::from_secs(2);

/// The pod that holds the Lease.
fn holder(lease: &Value) -> String {
    // The identity begins with the pod's name.
    lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

fn lease(world: &World, limit: Duration, wanted: impl Fn(&str) -> bool) -> Outcome<String> {
    let lease = world.cluster.await_object(SYSTEM, "lease", "omniroute-operator", limit, |lease| wanted(&holder(lease)))?;
    Ok(holder(&lease))
}

fn leader(world: &World) -> Outcome<(String, Process)> {
    let identity = lease(world, PODS, |holder| !holder.is_empty())?;
    let pods = world.cluster.get(SYSTEM, &["pods", "-l", "app.kubernetes.io/name=omniroute-operator"])?;
    let names = pods["items"].as_array().into_iter().flatten().filter_map(|pod| pod["metadata"]["name"].as_str());
    let pod = names.into_iter().find(|name| identity.starts_with(name)).ok_or_else(|| format!("{identity} is no pod"))?;
    let process = await_process("operator", pod, None, SOON)?;
    Ok((identity, process))
}

/// Changes something that only a leader can answer, and waits for the answer.
fn prove_that_somebody_leads(world: &World, description: &str) -> Outcome {
    world.cluster.patch(TEAM, "combo/assistant", &json!({"spec": {"description": description}}))?;
    world
        .cluster
        .await_object(TEAM, "combo", "assistant", SOON, |combo| combo["status"]["observedGeneration"] == combo["metadata"]["generation"])
        .map(drop)
}

fn hand_over(world: &World, signal: &str, limit: Duration) -> Outcome<Process> {
    let (old, process) = leader(world)?;
    let since = Instant::now();
    process.signal(signal)?;
    let new = lease(world, limit + SOON, |holder| !holder.is_empty() && holder != old)?;
    let took = since.elapsed();
    ensure(took < limit, || format!("{signal}: {old} to {new} took {took:?}"))?;
    eprintln!("{signal}: hand-over in {took:?}");
    prove_that_somebody_leads(world, signal)?;
    Ok(process)
}

pub fn changes(world: &World) -> Outcome {
    scale_operator(world, 2)?;
    prove_that_somebody_leads(world, "two replicas")?;

    hand_over(world, "TERM", SLACK)?;
    world.await_deployment(SYSTEM, "omniroute-operator")?;

    hand_over(world, "KILL", LEASE + SLACK)?;
    world.await_deployment(SYSTEM, "omniroute-operator")?;

    // The old leader wakes up in the term of the new one, with work waiting for it. That it writes nothing is read from the audit log by the scenario
    // `there_was_never_more_than_one_writer`.
    let asleep = hand_over(world, "STOP", LEASE + SLACK)?;
    world.cluster.patch(TEAM, "combo/assistant", &json!({"spec": {"description": "while one sleeps"}}))?;
    asleep.signal("CONT")?;
    prove_that_somebody_leads(world, "after it woke up")?;
    world.await_deployment(SYSTEM, "omniroute-operator")?;
    scale_operator(world, 1)?;
    world.await_deployment(SYSTEM, "omniroute-operator")?;
    prove_that_somebody_leads(world, "one replica")
}
