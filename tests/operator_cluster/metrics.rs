//! What the operator exports says the same as the statuses, and forgets what is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::json;

use crate::support::{Cluster, FakePod, Running, eventually, free_port, http_get, text};
use crate::{LEASE, QUICKSTART, all_ready};

/// The series of a metric that are not zero, by their labels.
pub async fn series(address: SocketAddr, metric: &str) -> BTreeMap<String, u64> {
    let (_, page) = http_get(address, "/metrics", "").await;
    let lines = page.lines().filter_map(|line| line.strip_prefix(metric)?.rsplit_once(' '));
    let of_this = lines.filter(|(labels, _)| labels.is_empty() || labels.starts_with('{'));
    let values = of_this.map(|(labels, value)| (labels.trim_matches(['{', '}']).to_owned(), value.parse().unwrap()));
    values.filter(|(_, value)| *value > 0).collect()
}

/// The same counted from the objects themselves.
async fn counted(cluster: &Cluster, label: &str, field: &str, only_not_ready: bool) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for kind in ["ResilienceSettings", "Provider", "Connection", "Combo", "OperatorErrorRule"] {
        for object in cluster.objects(kind).list(&kube::api::ListParams::default()).await.unwrap() {
            let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let Some(ready) = conditions.iter().find(|c| c["type"] == "Ready") else { continue };
            if !only_not_ready || ready["status"] != "True" {
                *all.entry(format!("kind=\"{kind}\",{label}=\"{}\"", text(ready, field))).or_default() += 1;
            }
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn gauges_equal_statuses_and_vanish_with_their_objects() {
    let Some(cluster) = Cluster::open("op-metrics").await else { return };
    cluster.apply(QUICKSTART).await;
    let mut config = cluster.config("one", LEASE);
    config.management = free_port();
    let address = config.management;
    let operator = Running::start(cluster.client.clone(), config);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let agree = || async {
        series(address, "omniroute_operator_objects").await == counted(&cluster, "ready", "/status", false).await
            && series(address, "omniroute_operator_objects_not_ready").await == counted(&cluster, "reason", "/reason", true).await
    };
    let within = Duration::from_secs(10);
    eventually("gauges equal statuses", within, || async { agree().await }).await;
    cluster.edit("Secret", "llm", json!({"data": {"b": null}})).await;
    cluster.until_ready("Connection", "b", "False", "SecretKeyNotFound").await;
    let missing = "kind=\"Connection\",reason=\"SecretKeyNotFound\"";
    eventually("the reason is counted", within, || async {
        series(address, "omniroute_operator_objects_not_ready").await.get(missing) == Some(&1) && agree().await
    })
    .await;
    cluster.delete("Connection", "b").await;
    eventually("its series are gone", within, || async {
        let not_ready = series(address, "omniroute_operator_objects_not_ready").await;
        !not_ready.contains_key(missing) && agree().await
    })
    .await;
    for (kind, name) in [("Connection", "a"), ("Combo", "assistant"), ("Provider", "openai"), ("ResilienceSettings", "default")] {
        cluster.delete(kind, name).await;
    }
    eventually("nothing is left to count", within, || async { series(address, "omniroute_operator_objects").await.is_empty() }).await;
    operator.terminate().await;
}
