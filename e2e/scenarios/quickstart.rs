//! The road once: manifests in, gateway serving, a cooldown seen with kubectl, changes without a restart.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::super::cluster::{Outcome, until};
use super::super::health::{condition_reason, condition_status, flux_complaints, kstatus};
use super::super::world::{CLIENT_KEY, SOON, TEAM, World};
use super::ensure;

const KINDS: &str = "providers,connections,combos,resiliencesettings,operatorerrorrules";

pub fn serves(world: &World) -> Outcome {
    let (mut client, _way) = world.client()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-a", || "not the first account".to_owned())?;
    let streamed = client.stream(CLIENT_KEY, "assistant")?;
    ensure(streamed["ok"] == json!(true) && streamed["text"] != json!(""), || format!("stream: {streamed}"))?;
    let refused = client.chat("sk-not-a-key", "assistant")?;
    ensure(refused["class"] == json!("AuthenticationError"), || format!("a wrong key got {refused}"))?;

    let objects = world.cluster.get(TEAM, &[KINDS])?;
    let objects = objects["items"].as_array().cloned().unwrap_or_default();
    ensure(objects.len() == 7, || format!("{} objects instead of the quickstart's 7", objects.len()))?;
    for object in &objects {
        let name = object["metadata"]["name"].to_string();
        for condition in ["Ready", "Programmed", "Available"] {
            ensure(condition_status(object, condition) == "True", || format!("{name}: {condition}: {}", object["status"]))?;
        }
        let complaints = flux_complaints(object);
        ensure(complaints.is_empty(), || format!("{name}: {complaints:?}: {}", object["status"]))?;
    }
    if world.cluster.own.is_some() {
        let verdicts = kstatus(&objects)?;
        ensure(verdicts.iter().all(|verdict| verdict == "Current"), || format!("kstatus says {verdicts:?}"))?;
    }
    Ok(())
}

pub fn cools(world: &World) -> Outcome {
    let (mut client, _way) = world.client()?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(20)?;
    let fake = world.fake("openai");
    let told = now();
    fake.rate_limit("sk-replace-me-a", 30)?;
    let cooling = world.await_state("openai-team-a", "Cooling", SOON)?;
    let status = &cooling["status"];
    ensure(status["reason"] == json!("RateLimitExceeded"), || format!("reason: {status}"))?;
    ensure(status["waitSource"] == json!("header"), || format!("waitSource: {status}"))?;
    ensure(status["lastErrorStatus"] == json!(429), || format!("lastErrorStatus: {status}"))?;
    let until_text = status["until"].as_str().unwrap_or_default();
    let deadline = seconds(until_text)?;
    // Half seconds are rounded up.
    ensure((told + 30..=now() + 31).contains(&deadline), || format!("until {until_text}, told at {told}"))?;
    ensure(condition_reason(&cooling, "Available") == "CoolingDown", || format!("Available: {status}"))?;
    ensure(condition_status(&cooling, "Ready") == "True", || "a cooldown must not touch Ready".to_owned())?;

    client.more(20)?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-b", || "traffic did not move".to_owned())?;
    let combo = world.cluster.get(TEAM, &["combo", "assistant"])?;
    ensure(condition_status(&combo, "Available") == "True", || format!("the combo can serve: {}", combo["status"]))?;
    let asked = fake.last_with("sk-replace-me-a")?;
    client.more(50)?;
    ensure(fake.last_with("sk-replace-me-a")? <= asked, || "a cooling account was asked again".to_owned())?;
    client.stop().map(drop)
}

pub fn columns(world: &World) -> Outcome {
    let table = world.cluster.kubectl(&["get", "connections", "-n", TEAM])?;
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let header = ["NAME", "READY", "AVAILABLE", "REASON", "UNTIL", "PROVIDER", "AGE"];
    ensure(rows.first().is_some_and(|row| row[..] == header), || format!("columns: {table}"))?;
    let cooling = rows.iter().find(|row| row.first() == Some(&"openai-team-a")).ok_or_else(|| table.clone())?;
    ensure(cooling[1..4] == ["True", "False", "CoolingDown"], || format!("row: {cooling:?}"))?;
    ensure(seconds(cooling[4]).is_ok_and(|until| until > now()), || format!("a deadline ahead: {cooling:?}"))?;
    ensure(cooling[5] == "openai", || format!("provider: {cooling:?}"))?;

    // The time runs out by itself, and the account serves again.
    world.fake("openai").healthy()?;
    world.await_state("openai-team-a", "Active", Duration::from_secs(40))?;
    let (mut client, _way) = world.client()?;
    ensure(client.served_by(CLIENT_KEY, "assistant")? == "openai-team-a", || "the account did not come back".to_owned())
}

pub fn changes(world: &World) -> Outcome {
    let before = world.gateway_pods()?;
    let (mut client, _way) = world.client()?;
    let targets = |providers: &[(&str, &str)]| -> Value {
        let targets: Vec<_> = providers.iter().map(|(provider, model)| json!({"provider": provider, "model": model})).collect();
        json!({"spec": {"targets": targets}})
    };
    world.cluster.patch(TEAM, "combo/assistant", &targets(&[("anthropic", "claude-sonnet-5")]))?;
    let client = std::cell::RefCell::new(&mut client);
    let served_by = |key: &str| client.borrow_mut().served_by(key, "assistant").unwrap_or_default();
    until(SOON, "the changed combo in the gateway", || (served_by(CLIENT_KEY) == "anthropic-main").then_some(()))?;

    let key = |value: &str| json!({"stringData": {"key": value}});
    world.cluster.patch(TEAM, "secret/client-web", &key("another-key"))?;
    until(SOON, "the new client key", || (served_by("another-key") == "anthropic-main").then_some(()))?;
    let refused = client.borrow_mut().chat(CLIENT_KEY, "assistant")?;
    ensure(refused["status"] == json!(401), || format!("the old key got {refused}"))?;

    world.cluster.patch(TEAM, "secret/client-web", &key(CLIENT_KEY))?;
    world.cluster.patch(TEAM, "combo/assistant", &targets(&[("openai", "gpt-5.2"), ("anthropic", "claude-sonnet-5")]))?;
    until(SOON, "the old combo and key again", || (served_by(CLIENT_KEY) == "openai-team-a").then_some(()))?;
    let after = world.gateway_pods()?;
    ensure(before == after, || format!("gateway pods changed: {before:?} -> {after:?}"))
}

/// Seconds since the epoch.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// A timestamp of a status in seconds since the epoch.
pub fn seconds(timestamp: &str) -> Outcome<i64> {
    let parsed: Result<jiff::Timestamp, _> = timestamp.parse();
    parsed.map(|time| time.as_second()).map_err(|error| format!("no timestamp ({error}): {timestamp:?}"))
}
