//! What Prometheus would read from the operator and a gateway.

use std::collections::BTreeSet;
use std::process::Command;

use super::super::cluster::{Outcome, run};
use super::super::world::{CLIENT_KEY, SOON, SYSTEM, TEAM, World};
use super::ensure;

/// Metrics of the alerts that have no series until something goes wrong that this suite does not provoke on purpose.
const ONLY_AFTER_TROUBLE: &[&str] = &["omniroute_operator_watch_restarts_total"];

/// Names of metrics in a text: the words that begin with `omniroute_`.
fn names(text: &str) -> BTreeSet<&str> {
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':');
    text.split(word).filter(|word| word.starts_with("omniroute_")).collect()
}

pub fn alerts_read_what_exists(world: &World) -> Outcome {
    // An account that rests and one that is dead, so that their series are there.
    let fake = world.fake("openai");
    fake.rate_limit("sk-replace-me-a", 20)?;
    let (mut client, _way) = world.client()?;
    client.served_by(CLIENT_KEY, "assistant")?;
    world.await_state("openai-team-a", "Cooling", SOON)?;
    let gateway = world.cluster.service_get(TEAM, "omniroute-gateway:management", "/metrics")?;
    let operator = world.cluster.service_get(SYSTEM, "omniroute-operator:management", "/metrics")?;
    fake.healthy()?;
    world.cluster.kubectl(&["annotate", "-n", TEAM, "connection/openai-team-a", "omniroute.dev/clear-cooldown=metrics", "--overwrite"])?;
    world.await_state("openai-team-a", "Active", SOON)?;

    let scraped: BTreeSet<&str> = names(&gateway).into_iter().chain(names(&operator)).collect();
    let rules = include_str!("../../config/prometheus/rules.yaml");
    let unknown: Vec<_> = names(rules)
        .into_iter()
        .filter(|name| !name.contains(':') && !scraped.contains(name) && !ONLY_AFTER_TROUBLE.contains(name))
        .collect();
    ensure(unknown.is_empty(), || format!("alerts read {unknown:?}, which nobody exports"))?;
    for (who, text) in [("gateway", &gateway), ("operator", &operator)] {
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]);
        run(promtool, text).map_err(|error| format!("promtool on the metrics of the {who}: {error}"))?;
    }
    Ok(())
}
