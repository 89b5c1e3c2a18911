//! What Prometheus would read from the operator and a gateway.

use std::collections::BTreeSet;
use std::process::Command;

use super::super::cluster::{Outcome, run};
use super::super::world::{CLIENT_KEY, SOON, SYSTEM, TEAM, World};
use super::ensure;
use super::quickstart::seconds;

/// Metrics of the alerts that have no series here: two while nothing is wrong, one where replicas share no store (`tests/gateway/shared_store.rs` reads it).
const WITHOUT_SERIES: &[&str] =
    &["omniroute_operator_watch_restarts_total", "omniroute_operator_objects_not_ready", "omniroute_state_store_up"];

/// Names of metrics in a text: the words that begin with `omniroute_`.
fn names(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    text.split(word).filter(|word| word.starts_with("omniroute_")).collect()
}

/// The gauge of a cooldown says what the status says, which is cut to whole seconds and never too early.
fn same_deadline(metrics: &str, until: &str) -> Outcome {
    let series = "omniroute_connection_cooldown_until_timestamp_seconds{connection=\"openai-team-a\"";
    let line = metrics.lines().find(|line| line.starts_with(series)).ok_or("no series of the cooldown")?;
    let gauge: f64 = line.rsplit(' ').next().and_then(|value| value.parse().ok()).ok_or_else(|| format!("no number in {line}"))?;
    let status = seconds(until)?;
    ensure((0.0..1.0).contains(&(status as f64 - gauge)), || format!("the status says {until}, the gauge {gauge}"))
}

pub fn alerts_read_what_exists(world: &World) -> Outcome {
    // An account that rests and one that is dead, so that their series are there.
    let (mut client, _way) = world.client()?;
    let fake = world.fake("openai");
    fake.rate_limit("sk-replace-me-a", 20)?;
    client.served_by(CLIENT_KEY, "assistant")?;
    let cooling = world.await_state("openai-team-a", "Cooling", SOON)?;
    let gateway = world.cluster.service_get(TEAM, "omniroute-gateway:management", "/metrics")?;
    same_deadline(&gateway, cooling["status"]["until"].as_str().unwrap_or_default())?;
    fake.answer("sk-replace-me-b", 401, &[], "Your OpenAI account has been deactivated")?;
    client.served_by(CLIENT_KEY, "assistant")?;
    let gateway = gateway + &world.cluster.service_get(TEAM, "omniroute-gateway:management", "/metrics")?;
    let operator = world.cluster.service_get(SYSTEM, "omniroute-operator:management", "/metrics")?;
    fake.healthy()?;
    for (connection, command) in [("openai-team-a", "clear-cooldown"), ("openai-team-b", "reset")] {
        let command = format!("omniroute.dev/{command}=metrics");
        world.cluster.kubectl(&["annotate", "-n", TEAM, "connection", connection, &command, "--overwrite"])?;
        world.await_state(connection, "Active", SOON)?;
    }

    let scraped: BTreeSet<&str> = names(&gateway).into_iter().chain(names(&operator)).collect();
    let rules = include_str!("../../config/prometheus/rules.yaml");
    let unknown: Vec<_> =
        names(rules).into_iter().filter(|name| !name.contains(':') && !scraped.contains(name) && !WITHOUT_SERIES.contains(name)).collect();
    ensure(unknown.is_empty(), || format!("alerts read {unknown:?}, which nobody exports"))?;
    let gateway = world.cluster.service_get(TEAM, "omniroute-gateway:management", "/metrics")?;
    for (who, text) in [("gateway", &gateway), ("operator", &operator)] {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]);
        run(promtool, text).map_err(|error| format!("promtool on the metrics of the {who}: {error}"))?;
    }
    Ok(())
}
