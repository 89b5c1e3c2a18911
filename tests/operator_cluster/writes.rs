//! How the operator writes: server-side apply only, one pass for one change, and nothing that waits for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::Method;
use omniroute::operator::limit::ANSWER_LIMIT;
use serde_json::json;

use crate::faults::{Call, Door};
use crate::metrics::series;
use crate::support::{Cluster, FakePod, Running, condition, eventually, free_port, http_get};
use crate::{LEASE, QUICKSTART, all_ready};

const CHILD_KINDS: [&str; 10] = [
    "deployments",
    "services",
    "serviceaccounts",
    "roles",
    "rolebindings",
    "networkpolicies",
    "poddisruptionbudgets",
    "horizontalpodautoscalers",
    "secrets",
    "configmaps",
];

/// The plural of what a call is about, and its subresource.
fn target(call: &Call) -> (String, String) {
    let mut parts = call.path.split('/').skip_while(|part| *part != "namespaces").skip(2).map(str::to_owned);
    (parts.next().unwrap_or_default(), parts.nth(1).unwrap_or_default())
}

fn is_of_a_child(call: &Call) -> bool {
    CHILD_KINDS.contains(&target(call).0.as_str())
}

/// A write that is not a server-side apply by one of our managers with nothing but what is ours in it.
fn complaint(call: &Call) -> Option<String> {
    let asked: BTreeMap<&str, &str> = call.query.split('&').filter_map(|pair| pair.split_once('=')).collect();
    let status = call.path.ends_with("/status");
    let managers: &[&str] = match () {
        () if status => &["omniroute-operator%2Fstatus"],
        // Replicas are handed over to an autoscaler under a name of their own.
        () if target(call).0 == "deployments" => &["omniroute-operator", "omniroute-operator%2Fscale"],
        () => &["omniroute-operator"],
    };
    let content = &call.body;
    let right = call.method == Method::PATCH
        && call.content_type == "application/apply-patch+yaml"
        && asked.get("force") == Some(&"true")
        && asked.get("fieldManager").is_some_and(|manager| managers.contains(manager))
        && content.pointer("/metadata/managedFields").is_none()
        && content.get("status").is_some() == status
        && !(status && content.get("spec").is_some());
    (!right).then(|| format!("{} {}?{} {}", call.method, call.path, call.query, call.content_type))
}

#[tokio::test(flavor = "multi_thread")]
async fn children_and_statuses_are_written_by_server_side_apply_only() {
    let Some(cluster) = Cluster::open("op-apply").await else { return };
    cluster.apply(QUICKSTART).await;
    let (door, client) = Door::open(cluster.client.clone()).await;
    let operator = cluster.operator_through(client, "one", LEASE);
    let pod = FakePod::start(&cluster, "pod-1").await;
    pod.remember(|c| {
        c.rules.insert("r".into(), omniroute::resilience::RuleMemory { matches: 1, ..Default::default() });
    });
    all_ready(&cluster).await;
    // Every kind of child, one of them on its way out again.
    let gateway =
        json!({"replicas": null, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}, "podDisruptionBudget": {"minAvailable": 1}});
    cluster.edit("ResilienceSettings", "default", json!({"spec": {"gateway": gateway}})).await;
    let within = Duration::from_secs(10);
    cluster.until("HorizontalPodAutoscaler", "omniroute-gateway", "created", within, |_| true).await;
    cluster.until("PodDisruptionBudget", "omniroute-gateway", "created", within, |_| true).await;
    cluster.edit("ResilienceSettings", "default", json!({"spec": {"gateway": {"podDisruptionBudget": null}}})).await;
    eventually("the budget is gone", within, || async { cluster.get("PodDisruptionBudget", "omniroute-gateway").await.is_none() }).await;
    cluster.until("ConfigMap", "omniroute-gateway-checkpoint", "written", within, |o| o["binaryData"].is_object()).await;
    operator.terminate().await;

    let written = door.written();
    let (mut kinds, mut statuses) = (std::collections::BTreeSet::new(), 0);
    for call in &written {
        let (kind, subresource) = target(call);
        match kind.as_str() {
            // The Lease is taken by compare-and-swap, and Events are made.
            "leases" | "events" => continue,
            "poddisruptionbudgets" if call.method == Method::DELETE => continue,
            _ => {}
        }
        assert_eq!(complaint(call), None);
        statuses += usize::from(subresource == "status");
        kinds.extend(is_of_a_child(call).then_some(kind));
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), {
        let mut all = CHILD_KINDS.map(str::to_owned).to_vec();
        all.sort();
        all
    });
    assert!(statuses >= 5, "{statuses} statuses");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_change_is_settled_by_one_pass() {
    let Some(cluster) = Cluster::open("op-pass").await else { return };
    cluster.apply(QUICKSTART).await;
    let (door, client) = Door::open(cluster.client.clone()).await;
    let mut config = cluster.config("one", LEASE);
    config.management = free_port();
    let address = config.management;
    let operator = Running::start(client, config);
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.until("Connection", "a", "available", Duration::from_secs(5), |o| condition(o, "Available").0 == "True").await;
    let looks = |n| {
        let (pod, end) = (&pod, pod.asked() + n);
        eventually("looks at the pod", Duration::from_secs(20), move || async move { pod.asked() >= end })
    };
    looks(5).await;
    let passes = || async { series(address, "omniroute_operator_reconciles_total").await.values().sum::<u64>() };
    let relevant = || door.written().into_iter().filter(|call| target(call).0 != "leases").collect::<Vec<_>>();
    let (passed, written) = (passes().await, relevant().len());
    cluster.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    cluster
        .until("Combo", "assistant", "ready in its new generation", Duration::from_secs(10), |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"] && condition(o, "Ready").0 == "True"
        })
        .await;
    // Everything that the pass has written comes back as an event. One that overtakes the answer to its write leads to another look, of which a loaded
    // machine needs two; nothing goes on and on.
    looks(6).await;
    let again = passes().await - passed;
    assert!((1..=3).contains(&again), "{again} passes for one change");
    let writes: Vec<String> = relevant()[written..].iter().map(|call| call.path.rsplit("/op-pass/").next().unwrap().to_owned()).collect();
    let times = |path: &str| writes.iter().filter(|write| *write == path).count();
    assert_eq!(times("secrets/omniroute-gateway-config"), 1, "{writes:?}");
    let mut once = writes.clone();
    once.sort();
    once.dedup();
    assert_eq!(once, ["combos/assistant/status", "resiliencesettings/default/status", "secrets/omniroute-gateway-config"]);
    // A status may be said before and after the pods have taken it over.
    assert!(once.iter().all(|path| times(path) <= 2), "{writes:?}");
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_never_answers_holds_nothing_for_ever() {
    let Some(cluster) = Cluster::open("op-silent").await else { return };
    cluster.apply(QUICKSTART).await;
    let (door, client) = Door::open(cluster.client.clone()).await;
    let mut config = cluster.config("one", LEASE);
    config.management = free_port();
    let address = config.management;
    let operator = Running::start(client, config);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let leads = || async { series(address, "omniroute_operator_leader").await.values().sum::<u64>() };
    assert_eq!(leads().await, 1);

    door.silence(true);
    cluster.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    // It lives, answers its probe, and knows that it must not write any more.
    eventually("it leads no more", Duration::from_secs(20), || async { leads().await == 0 }).await;
    assert_eq!(http_get(address, "/livez", "").await.0, 200);

    door.silence(false);
    // What was asked meanwhile is never answered, the new watches included: they too are given up, and begun again.
    cluster
        .until("Combo", "assistant", "ready in its new generation", ANSWER_LIMIT + Duration::from_secs(20), |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"] && condition(o, "Ready").0 == "True"
        })
        .await;
    assert_eq!((cluster.leader().await, leads().await), ("one".to_owned(), 1));
    let given_up = door.given_up();
    let too_long: Vec<_> = given_up.iter().filter(|(_, after)| *after > ANSWER_LIMIT + Duration::from_secs(3)).collect();
    assert!(too_long.is_empty(), "{too_long:?}");
    let renewals: Vec<_> = given_up.iter().filter(|(what, _)| what.starts_with("PUT") && what.contains("/leases/")).collect();
    assert!(!renewals.is_empty() && renewals.iter().all(|(_, after)| *after < LEASE), "{given_up:?}");
    let watches = given_up.iter().filter(|(what, _)| what.contains("/combos?") && what.contains("watch=true"));
    assert!(watches.count() > 0, "{given_up:?}");
    operator.terminate().await;
}
