//! The operator against a real API server, controller manager and garbage collector. Runs inside `e2e/cluster/with-cluster`, otherwise
//! every test is skipped. Gateway pods are played by this process, so that what they say can be scripted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../support/eventually.rs"]
mod eventually;
mod faults;
mod gateways;
mod metrics;
mod neighbours;
mod objects;
mod process;
mod rights;
mod runs;
mod scale;
mod support;
#[path = "../support/token_endpoint.rs"]
#[allow(dead_code)] // shared with the tests of `run`
mod token_endpoint;
mod tokens;
mod writes;

use std::time::{Duration, Instant};

use faults::Door;
use omniroute::api::time::EpochMs;
use omniroute::operator::checkpoint;
use omniroute::resilience::{ConnectionPhase, RuleMemory};
use serde_json::{Value, json};
use support::{Cluster, FakePod, Running, condition, eventually, free_port, text};

const LEASE: Duration = Duration::from_secs(6);

/// Two accounts, a combo, keys; no real pods, because this process plays them.
const QUICKSTART: &str = r#"
apiVersion: omniroute.dev/v1alpha1
kind: ResilienceSettings
metadata: {name: default}
spec: {gateway: {replicas: 0}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Provider
metadata: {name: openai}
spec: {preset: openai}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: a}
spec: {providerRef: {name: openai}, credentials: {apiKey: {secretRef: {name: llm, key: a}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Connection
metadata: {name: b}
spec: {providerRef: {name: openai}, credentials: {apiKey: {secretRef: {name: llm, key: b}}}}
---
apiVersion: omniroute.dev/v1alpha1
kind: Combo
metadata: {name: assistant}
spec: {targets: [{provider: openai, model: gpt-5.2}]}
---
apiVersion: v1
kind: Secret
metadata: {name: llm}
stringData: {a: sk-canary-a, b: sk-canary-b}
"#;

const OBJECTS: [(&str, &str); 5] =
    [("ResilienceSettings", "default"), ("Provider", "openai"), ("Connection", "a"), ("Connection", "b"), ("Combo", "assistant")];

const CHILDREN: [(&str, &str); 8] = [
    ("Deployment", "omniroute-gateway"),
    ("Service", "omniroute-gateway"),
    ("ServiceAccount", "omniroute-gateway"),
    ("Role", "omniroute-gateway"),
    ("RoleBinding", "omniroute-gateway"),
    ("NetworkPolicy", "omniroute-gateway"),
    ("Secret", "omniroute-gateway-config"),
    ("Secret", "omniroute-gateway-management"),
];

async fn all_ready(cluster: &Cluster) {
    for (kind, name) in OBJECTS {
        cluster.until_ready(kind, name, "True", "Accepted").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn manifests_become_a_gateway_and_nothing_is_written_at_rest() {
    let Some(cluster) = Cluster::open("op-rest").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let settings = cluster.until_ready("ResilienceSettings", "default", "False", "Progressing").await;
    for (kind, name) in CHILDREN {
        let child = cluster.until(kind, name, "created", Duration::from_secs(10), |_| true).await;
        let owner = &child["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&settings["metadata"]["uid"], &json!(true)), "{kind}");
    }
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let a = cluster.until("Connection", "a", "available", Duration::from_secs(5), |o| condition(o, "Available").0 == "True").await;
    assert_eq!(a["status"]["pods"], json!({"reporting": 1, "total": 1}));
    // The last echoes have come back when the pod was asked twice more.
    let asked = pod.asked();
    eventually("two more looks at the pod", Duration::from_secs(10), || async { pod.asked() >= asked + 3 }).await;
    let before = cluster.versions().await;
    let asked = pod.asked();
    eventually("looks at the pod go on", Duration::from_secs(20), || async { pod.asked() >= asked + 8 }).await;
    assert_eq!(cluster.versions().await, before, "nothing changed, nothing was written");
    // Nobody but the status manager has written to objects of users.
    let managers = a["metadata"]["managedFields"].as_array().unwrap().iter().map(|m| (text(m, "/manager"), text(m, "/subresource")));
    assert_eq!(managers.collect::<Vec<_>>(), [("person".into(), String::new()), ("omniroute-operator/status".into(), "status".into())]);
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cooldown_shows_within_seconds_and_ends_by_itself() {
    let Some(cluster) = Cluster::open("op-live").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.until("Connection", "a", "available", Duration::from_secs(5), |o| condition(o, "Available").0 == "True").await;
    let until = EpochMs(now_ms() + 5_000);
    pod.change(|state| {
        let a = state.connections.iter_mut().find(|c| c.name == "a").unwrap();
        a.state = ConnectionPhase::Cooling;
        a.reason = Some("RateLimitExceeded".into());
        a.wait_source = Some("header".into());
        a.until = Some(until);
        a.last_status = Some(429);
    });
    let cooling = cluster.until("Connection", "a", "cooling", Duration::from_secs(3), |o| o["status"]["state"] == "Cooling").await;
    assert_eq!(condition(&cooling, "Available"), ("False".into(), "CoolingDown".into()));
    assert_eq!(condition(&cooling, "Ready").0, "True");
    assert_eq!(cooling["status"]["until"], json!(until.rfc3339()));
    let provider = cluster
        .until("Provider", "openai", "one cooling", Duration::from_secs(3), |o| o["status"]["connections"]["cooling"] == json!(1))
        .await;
    assert_eq!(condition(&provider, "Available").0, "True");
    // The pod says nothing more: the deadline passes by itself.
    let left = Duration::from_millis(u64::try_from(until.0 - now_ms()).unwrap_or(0)) + Duration::from_secs(3);
    let active = cluster.until("Connection", "a", "active again", left, |o| o["status"]["state"] == "Active").await;
    assert_eq!((active["status"].get("until"), condition(&active, "Available").0.as_str()), (None, "True"));
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_reach_the_config_and_never_the_pod_template() {
    let Some(cluster) = Cluster::open("op-config").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let template = cluster.get("Deployment", "omniroute-gateway").await.unwrap()["spec"]["template"].clone();
    let begun = Instant::now();
    cluster.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    cluster.until_snapshot("the new target", Duration::from_secs(2), |s| format!("{:?}", s.combos).contains("gpt-5-mini")).await;
    println!("combo to config: {:?}", begun.elapsed());
    cluster
        .until("Combo", "assistant", "ready in its new generation", Duration::from_secs(5), |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"] && condition(o, "Ready").0 == "True"
        })
        .await;
    let before = cluster.snapshot().await.unwrap();
    let of = |s: &omniroute::snapshot::Snapshot| s.connections.iter().find(|c| c.name == "a").unwrap().clone();
    let begun = Instant::now();
    cluster.edit("Secret", "llm", json!({"stringData": {"a": "sk-canary-rotated"}})).await;
    let after = cluster
        .until_snapshot("the rotated key", Duration::from_secs(2), |s| of(s).credential.is_some_and(|c| c.expose() == "sk-canary-rotated"))
        .await;
    println!("secret to config: {:?}", begun.elapsed());
    assert_ne!(of(&before).credential_fingerprint, of(&after).credential_fingerprint);
    assert!(!of(&after).credential_fingerprint.contains("canary"));
    assert_eq!(cluster.get("Deployment", "omniroute-gateway").await.unwrap()["spec"]["template"], template);
    cluster.edit("Secret", "llm", json!({"data": {"b": null}})).await;
    let b = cluster.until_ready("Connection", "b", "False", "SecretKeyNotFound").await;
    assert_eq!(condition(&b, "Reconciling").0, "True");
    assert_eq!(condition(&cluster.get("Connection", "a").await.unwrap(), "Ready").0, "True", "others are unaffected");
    cluster.edit("Secret", "llm", json!({"stringData": {"b": "sk-canary-b"}})).await;
    cluster.until_ready("Connection", "b", "True", "Accepted").await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drift_is_repaired_and_foreign_fields_stay() {
    let Some(cluster) = Cluster::open("op-drift").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let within = Duration::from_secs(5);
    let role = cluster.get("Role", "omniroute-gateway").await.unwrap()["rules"].clone();
    cluster.edit("Role", "omniroute-gateway", json!({"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]})).await;
    cluster.until("Role", "omniroute-gateway", "repaired", within, |o| o["rules"] == role).await;
    let secret = cluster.get("Secret", "omniroute-gateway-config").await.unwrap()["data"].clone();
    cluster.edit("Secret", "omniroute-gateway-config", json!({"data": {"snapshot.json.gz": "AAAA"}})).await;
    cluster.until("Secret", "omniroute-gateway-config", "repaired", within, |o| o["data"] == secret).await;
    let uid = cluster.get("Service", "omniroute-gateway").await.unwrap()["metadata"]["uid"].clone();
    cluster.delete("Service", "omniroute-gateway").await;
    cluster.until("Service", "omniroute-gateway", "created again", within, |o| o["metadata"]["uid"] != uid).await;
    let foreign = json!({"metadata": {"annotations": {"example.com/note": "mine"}, "labels": {"app.kubernetes.io/managed-by": "me"}}});
    cluster.edit("Deployment", "omniroute-gateway", foreign).await;
    let repaired = cluster
        .until("Deployment", "omniroute-gateway", "label repaired", within, |o| {
            o["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "omniroute-operator"
        })
        .await;
    assert_eq!(repaired["metadata"]["annotations"]["example.com/note"], "mine");
    // An optional child comes and goes with its wish; `replicas` is handed over to the autoscaler.
    cluster
        .edit(
            "ResilienceSettings",
            "default",
            json!({"spec": {"gateway": {"replicas": null, "autoscaling": {"minReplicas": 1, "maxReplicas": 4}}}}),
        )
        .await;
    cluster.until("HorizontalPodAutoscaler", "omniroute-gateway", "created", within, |_| true).await;
    let handed = cluster
        .until("Deployment", "omniroute-gateway", "handed over", within, |o| {
            o["metadata"]["annotations"]["omniroute.dev/scaling"] == "Autoscaled"
        })
        .await;
    let owners =
        handed["metadata"]["managedFields"].as_array().unwrap().iter().filter(|m| m["fieldsV1"]["f:spec"].get("f:replicas").is_some());
    assert!(owners.map(|m| text(m, "/manager")).all(|m| m != "omniroute-operator"), "{handed:#}");
    cluster.edit("ResilienceSettings", "default", json!({"spec": {"gateway": {"replicas": 0, "autoscaling": null}}})).await;
    eventually("the autoscaler is gone", within, || async { cluster.get("HorizontalPodAutoscaler", "omniroute-gateway").await.is_none() })
        .await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_object_of_our_name_is_left_alone() {
    let Some(cluster) = Cluster::open("op-conflict").await else { return };
    let foreign = "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: omniroute-gateway, annotations: {mine: 'yes'}}\n";
    cluster.apply(foreign).await;
    let before = cluster.get("ServiceAccount", "omniroute-gateway").await.unwrap();
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let settings = cluster.until_ready("ResilienceSettings", "default", "False", "NameConflict").await;
    assert_eq!(condition(&settings, "Stalled").0, "True");
    assert_eq!(cluster.get("ServiceAccount", "omniroute-gateway").await.unwrap(), before, "untouched");
    assert_eq!(cluster.get("Deployment", "omniroute-gateway").await, None, "no pod starts with an account of somebody else");
    cluster.delete("ServiceAccount", "omniroute-gateway").await;
    cluster.edit("ResilienceSettings", "default", json!({"metadata": {"annotations": {"try": "again"}}})).await;
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_come_go_and_come_back() {
    let Some(cluster) = Cluster::open("op-owner").await else { return };
    let (_, rest) = QUICKSTART.split_once("---").unwrap();
    cluster.apply(rest).await;
    let operator = cluster.operator("one", LEASE);
    let lonely = cluster.until_ready("Combo", "assistant", "False", "NoGateway").await;
    assert_eq!(condition(&lonely, "Reconciling").0, "True");
    cluster.apply(QUICKSTART).await;
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.delete("ResilienceSettings", "default").await;
    cluster.until_ready("Combo", "assistant", "False", "NoGateway").await;
    cluster.apply(QUICKSTART).await;
    cluster.delete("Pod", &pod.name).await;
    let settings = cluster.get("ResilienceSettings", "default").await.unwrap();
    for (kind, name) in CHILDREN {
        let uid = settings["metadata"]["uid"].clone();
        let within = Duration::from_secs(30);
        cluster.until(kind, name, "owned by the new settings", within, |o| o["metadata"]["ownerReferences"][0]["uid"] == uid).await;
    }
    let _pod = FakePod::start(&cluster, "pod-2").await;
    all_ready(&cluster).await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_are_relayed_once_and_confirmed() {
    let Some(cluster) = Cluster::open("op-command").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.edit("Connection", "a", json!({"metadata": {"annotations": {"omniroute.dev/clear-cooldown": "now"}}})).await;
    let confirmed = |o: &Value| o["status"]["commands"]["clearCooldown"] == "now";
    cluster.until("Connection", "a", "confirmed", Duration::from_secs(8), confirmed).await;
    let commands = cluster.snapshot().await.unwrap().commands;
    assert_eq!(commands.len(), 1);
    operator.terminate().await;
    // Another operator knows when the command was accepted.
    let operator = cluster.operator("two", LEASE);
    cluster.edit("Connection", "b", json!({"metadata": {"annotations": {"omniroute.dev/reset": "1"}}})).await;
    let later = cluster.until_snapshot("the second command", Duration::from_secs(10), |s| s.commands.len() == 2).await;
    assert_eq!(later.commands[0], commands[0]);
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_checkpoint_follows_the_pods() {
    let Some(cluster) = Cluster::open("op-checkpoint").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    let matches = |n| RuleMemory { matches: n, ..RuleMemory::default() };
    pod.remember(|c| {
        c.rules.insert("r".into(), matches(1));
    });
    let packed = |o: &Value| o["binaryData"].get("checkpoint.json.gz").cloned();
    let within = Duration::from_secs(10);
    let first = cluster.until("ConfigMap", "omniroute-gateway-checkpoint", "written", within, |o| packed(o).is_some()).await;
    for n in 2..40 {
        pod.remember(|c| {
            c.rules.insert("r".into(), matches(n));
        });
        // Spread over less than the least time between two writes, which is the subject.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let second = cluster.until("ConfigMap", "omniroute-gateway-checkpoint", "written again", within, |o| packed(o) != packed(&first)).await;
    assert_eq!(second["metadata"]["ownerReferences"][0]["kind"], "ResilienceSettings");
    // What moves in an export without any content is no reason to write.
    pod.change(|_| {});
    let asked = pod.asked();
    eventually("more looks", Duration::from_secs(20), || async { pod.asked() >= asked + 7 }).await;
    let third = cluster.get("ConfigMap", "omniroute-gateway-checkpoint").await.unwrap();
    assert_eq!(third["metadata"]["resourceVersion"], second["metadata"]["resourceVersion"]);
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_ready_pod_that_falls_silent_is_not_replaced_at_once() {
    let Some(cluster) = Cluster::open("op-mute").await else { return };
    cluster.apply(QUICKSTART).await;
    let mut config = cluster.config("one", LEASE);
    config.management = free_port();
    let address = config.management;
    let operator = Running::start(cluster.client.clone(), config);
    let (speaks, mute) = (FakePod::start(&cluster, "pod-1").await, FakePod::start(&cluster, "pod-2").await);
    all_ready(&cluster).await;
    let knows = |pod: &FakePod, rule: &str| {
        pod.remember(|c| {
            c.rules.insert(rule.into(), RuleMemory { matches: 1, ..RuleMemory::default() });
        });
    };
    let rules = |o: &Value| {
        let stored = checkpoint::unpack(&serde_json::from_value(o.clone()).unwrap()).unwrap_or_default();
        stored.rules.keys().map(ToString::to_string).collect::<Vec<_>>()
    };
    let until = async |what: &str, wanted: &[&str]| {
        cluster.until("ConfigMap", "omniroute-gateway-checkpoint", what, Duration::from_secs(20), |o| rules(o) == wanted).await
    };
    knows(&mute, "b");
    let before = until("written", &["b"]).await;
    mute.mute(true);
    let silent = || async { metrics::series(address, "omniroute_operator_observed_pods").await.get("state=\"Silent\"") == Some(&1) };
    eventually("it is silent", Duration::from_secs(20), silent).await;
    knows(&speaks, "a");
    let asked = speaks.asked();
    eventually("looks at the other", Duration::from_secs(20), || async { speaks.asked() >= asked + 7 }).await;
    assert_eq!(cluster.get("ConfigMap", "omniroute-gateway-checkpoint").await.unwrap(), before);
    mute.mute(false);
    until("what both know", &["a", "b"]).await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_takes_less_than_two_seconds() {
    let Some(cluster) = Cluster::open("op-leader").await else { return };
    cluster.apply(QUICKSTART).await;
    let lease = Duration::from_secs(15);
    let first = cluster.operator("one", lease);
    eventually("the first leads", Duration::from_secs(10), || async { cluster.leader().await == "one" }).await;
    let second = cluster.operator("two", lease);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    assert_eq!(cluster.leader().await, "one");
    // The end comes while there is work: caches that end with the process must not be taken for a cluster that is empty.
    cluster.edit("Connection", "b", json!({"metadata": {"annotations": {"omniroute.dev/reset": "1"}}})).await;
    // The moment is the subject: in the middle of the debounce of that edit.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    let took = first.terminate().await;
    assert_eq!(cluster.snapshot().await.unwrap().connections.len(), 2);
    eventually("the second leads", Duration::from_secs(2), || async { cluster.leader().await == "two" }).await;
    println!("ended in {took:?}, handed over in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(2));
    let transitions = cluster.get("Lease", "omniroute-operator").await.unwrap()["spec"]["leaseTransitions"].clone();
    assert_eq!(transitions, json!(1));
    let elected = || async { cluster.events("Lease").await.iter().filter(|reason| *reason == "LeaderElected").count() };
    eventually("both say so", Duration::from_secs(5), || async { elected().await == 2 }).await;
    cluster.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    cluster.until_snapshot("written by the second", Duration::from_secs(5), |s| format!("{:?}", s.combos).contains("gpt-5-mini")).await;
    second.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_cache_costs_one_refused_write_and_not_a_hundred() {
    let Some(cluster) = Cluster::open("op-stale").await else { return };
    cluster.apply(QUICKSTART).await;
    let (door, client) = Door::open(cluster.client.clone()).await;
    let operator = cluster.operator_through(client, "one", LEASE);
    let pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.until("Connection", "a", "available", Duration::from_secs(5), |o| condition(o, "Available").0 == "True").await;
    let quiet = door.writes("/connections/a/status").len();
    // The watches fall silent, somebody writes to the object, and its state changes.
    door.hold_watches(true);
    cluster.edit("Connection", "a", json!({"metadata": {"annotations": {"example.com/note": "1"}}})).await;
    let cool = |state: ConnectionPhase| {
        pod.change(|report| {
            let a = report.connections.iter_mut().find(|c| c.name == "a").unwrap();
            a.until = (state == ConnectionPhase::Cooling).then(|| EpochMs(now_ms() + 600_000));
            a.state = state;
        });
    };
    cool(ConnectionPhase::Cooling);
    // The object is read once, and its generation is the known one: the status is written in spite of the silence.
    cluster.until("Connection", "a", "cooling", Duration::from_secs(10), |o| o["status"]["state"] == "Cooling").await;
    eventually("one refusal", Duration::from_secs(5), || async { door.writes("/connections/a/status")[quiet..] == [409, 200] }).await;
    // What somebody wants to be different now, and of which the operator knows nothing, gets no status.
    cluster.edit("Connection", "a", json!({"spec": {"priority": 7}})).await;
    cool(ConnectionPhase::Active);
    let refused = || door.writes("/connections/a/status")[quiet..].iter().filter(|code| **code == 409).count();
    eventually("it is refused", Duration::from_secs(10), || async { refused() == 2 }).await;
    let asked = pod.asked();
    eventually("looks go on", Duration::from_secs(20), || async { pod.asked() >= asked + 5 }).await;
    assert_eq!(refused(), 2, "held until the watch is back");
    door.hold_watches(false);
    cluster
        .until("Connection", "a", "ready in its new generation", Duration::from_secs(5), |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"] && o["status"]["state"] == "Active"
        })
        .await;
    operator.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stolen_lease_stops_the_writer() {
    let Some(cluster) = Cluster::open("op-stolen").await else { return };
    cluster.apply(QUICKSTART).await;
    let operator = cluster.operator("one", LEASE);
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    // Somebody else holds the lease from now on, and renews it as long as the test lasts.
    let spec = json!({"spec": {"holderIdentity": "thief", "leaseDurationSeconds": 600}});
    cluster.edit("Lease", "omniroute-operator", spec).await;
    // Once the replica has noticed, at its next renewal, it writes nothing any more. It tells nobody before that, and this is the longest time
    // it may take.
    tokio::time::sleep(LEASE).await;
    let before = cluster.versions().await;
    cluster
        .edit(
            "Combo",
            "assistant",
            json!({"metadata": {"annotations": {"x": "y"}}, "spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}}),
        )
        .await;
    // What does not happen has no event; a leader would have written within the second.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut after = cluster.versions().await;
    after.insert("Combo/assistant".into(), before["Combo/assistant"].clone());
    assert_eq!(after, before, "nothing was written");
    let combo = cluster.get("Combo", "assistant").await.unwrap();
    assert_ne!(combo["status"]["observedGeneration"], combo["metadata"]["generation"]);
    assert_eq!(cluster.leader().await, "thief");
    let lost = || async { cluster.events("Lease").await.contains(&"LeaderLost".to_owned()) };
    eventually("the loss is told", Duration::from_secs(5), || async { lost().await }).await;
    operator.terminate().await;
    assert_eq!(cluster.leader().await, "thief", "a lease of somebody else is not released");
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}
