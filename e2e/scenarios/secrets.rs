//! Credentials that change, vanish and come back.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::cluster::{Outcome, until};
use super::super::health::{condition_reason, condition_status};
use super::super::world::{CLIENT_KEY, SOON, TEAM, World};
use super::ensure;

const A: &str = "openai-team-a";

pub fn rotate(world: &World) -> Outcome {
    let fake = world.fake("openai");
    let (mut client, _way) = world.client()?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(20)?;
    // The key dies, everybody notices but the clients.
    fake.answer("sk-replace-me-a", 401, &[], "This API key has been revoked")?;
    world.cluster.await_object(TEAM, "connection", A, SOON, |object| {
        ["Banned", "Expired"].contains(&object["status"]["state"].as_str().unwrap_or_default())
    })?;
    world.cluster.patch(TEAM, "secret/llm-keys", &json!({"stringData": {"openai-team-a": "sk-rotated-a"}}))?;
    let changed = Instant::now();
    fake.await_with("sk-rotated-a")?;
    let took = changed.elapsed();
    ensure(took < Duration::from_secs(2), || format!("the new key took {took:?}"))?;
    let back = world.await_state(A, "Active", SOON)?;
    ensure(back["status"]["strikes"].as_i64().unwrap_or(0) == 0, || format!("strikes stay: {}", back["status"]))?;
    // A request that began on the configuration before may still have carried the old key; from here on none does.
    client.more(5)?;
    let old = fake.last_with("sk-replace-me-a")?;
    client.more(40)?;
    client.stop()?;
    ensure(fake.last_with("sk-replace-me-a")? <= old, || "the old key was used again".to_owned())?;
    fake.healthy()
}

pub fn missing(world: &World) -> Outcome {
    let (mut client, _way) = world.client()?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(10)?;
    world.cluster.patch(TEAM, "secret/llm-keys", &json!({"data": {"openai-team-a": null}}))?;
    let without = world.cluster.await_object(TEAM, "connection", A, SOON, |object| condition_status(object, "Ready") == "False")?;
    let reason = condition_reason(&without, "Ready");
    ensure(reason == "SecretKeyNotFound", || format!("reason {reason}: {}", without["status"]))?;
    let other = world.cluster.get(TEAM, &["connection", "openai-team-b"])?;
    ensure(condition_status(&other, "Ready") == "True", || format!("another connection suffers: {}", other["status"]))?;
    client.more(20)?;
    client.stop()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "served without a credential".to_owned())?;

    world.cluster.patch(TEAM, "secret/llm-keys", &json!({"stringData": {"openai-team-a": "sk-replace-me-a"}}))?;
    world.cluster.await_object(TEAM, "connection", A, SOON, |object| condition_status(object, "Ready") == "True")?;
    let client = std::cell::RefCell::new(client);
    until(SOON, "the account with its key back", || {
        client.borrow_mut().served_by(CLIENT_KEY, "assistant").ok().filter(|connection| connection == A)
    })
}
