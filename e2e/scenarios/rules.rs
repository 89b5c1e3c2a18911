//! Answers that the built-in catalog does not know.

use std::time::Duration;

use serde_json::json;

use super::super::cluster::Outcome;
use super::super::world::{CLIENT_KEY, SOON, TEAM, World};
use super::ensure;

pub fn teach(world: &World) -> Outcome {
    let cluster = &world.cluster;
    cluster.apply(
        TEAM,
        &[json!({
            "apiVersion": "omniroute.dev/v1alpha1", "kind": "OperatorErrorRule", "metadata": {"name": "budget"},
            "spec": {
                "providerRef": {"name": "openai"},
                "match": {"statuses": [403], "text": "the budget of this month"},
                "verdict": {"reason": "QuotaExhausted", "scope": "Connection", "cooldown": "45s"},
            },
        })],
    )?;
    cluster.wait_for(TEAM, &["operatorerrorrule/budget"], "condition=Ready", SOON)?;
    world.fake("openai").answer("sk-replace-me-a", 403, &[], "You have used up the budget of this month")?;
    let (mut client, _way) = world.client()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "no failover".to_owned())?;
    let cooling = world.await_state("openai-team-a", "Cooling", SOON)?;
    ensure(cooling["status"]["reason"] == json!("QuotaExhausted"), || cooling["status"].to_string())?;
    ensure(cooling["status"]["waitSource"] == json!("rule"), || cooling["status"].to_string())?;
    // Counters are written at most once a minute.
    cluster.await_object(TEAM, "operatorerrorrule", "budget", Duration::from_secs(75), |rule| {
        rule["status"]["matches"].as_i64().unwrap_or_default() >= 1
    })?;
    world.fake("openai").healthy()?;
    world.await_state("openai-team-a", "Active", Duration::from_secs(60))?;
    cluster.kubectl(&["delete", "-n", TEAM, "operatorerrorrule/budget"]).map(drop)
}
