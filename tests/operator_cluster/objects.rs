//! Stored objects: what the API server takes, keeps apart, and still holds from earlier days.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::metrics::series;
use crate::support::{Cluster, FakePod, Running, condition, eventually, free_port, kubectl, text};
use crate::{LEASE, OBJECTS, QUICKSTART, all_ready};

#[tokio::test(flavor = "multi_thread")]
async fn the_examples_are_accepted_to_the_letter() {
    let Some(_cluster) = Cluster::open("op-examples").await else { return };
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/examples")).unwrap();
    let files: Vec<String> = files.map(|file| file.unwrap().path().display().to_string()).collect();
    assert_eq!(files.len(), 5);
    for file in files.iter().map(String::as_str).chain(["config/samples/quickstart.yaml"]) {
        let told = kubectl(&["apply", "--server-side", "--dry-run=server", "--validate=strict", "-n", "op-examples", "-f", file]);
        assert!(told.lines().all(|line| line.ends_with("serverside-applied (server dry run)")), "{file}: {told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spec_and_status_are_written_apart() {
    let Some(cluster) = Cluster::open("op-apart").await else { return };
    cluster.apply(QUICKSTART).await;
    let rule = json!({
        "apiVersion": "omniroute.dev/v1alpha1", "kind": "OperatorErrorRule", "metadata": {"name": "budget"},
        "spec": {"match": {"statuses": [402]}, "verdict": {"reason": "QuotaExhausted", "scope": "Connection", "cooldown": "45s"}},
    });
    cluster.apply(&rule.to_string()).await;
    for (kind, name) in OBJECTS.into_iter().chain([("OperatorErrorRule", "budget")]) {
        let before = cluster.get(kind, name).await.unwrap();
        assert_eq!(before["status"], json!({"observedGeneration": -1}), "{kind}: nobody has seen it");
        // A person who edits the status writes nothing.
        cluster.edit(kind, name, json!({"status": {"observedGeneration": 7, "conditions": []}})).await;
        let after = cluster.get(kind, name).await.unwrap();
        assert_eq!((&after["spec"], &after["status"]), (&before["spec"], &before["status"]), "{kind}");
        // A status that carries a spec changes no spec, and makes no new generation.
        let spec = match kind {
            "ResilienceSettings" => json!({"gateway": {"replicas": 9}}),
            "Provider" => json!({"displayName": "changed"}),
            "Combo" => json!({"description": "changed"}),
            _ => json!({"priority": 9}),
        };
        cluster.edit_status(kind, name, json!({"spec": spec, "status": {"observedGeneration": 1}})).await;
        let after = cluster.get(kind, name).await.unwrap();
        assert_eq!((&after["spec"], &after["metadata"]["generation"]), (&before["spec"], &before["metadata"]["generation"]), "{kind}");
        assert_eq!(after["status"], json!({"observedGeneration": 1}), "{kind}");
    }
}

/// Changes an object where it is stored, past every check of the API server: as a schema of earlier days would have let it in.
async fn store(cluster: &Cluster, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
    let key = BASE64.encode(format!("/registry/omniroute.dev/{plural}/{}/{name}", cluster.namespace));
    let found = etcd("range", &json!({"key": key})).await;
    let stored = BASE64.decode(text(&found, "/kvs/0/value")).unwrap();
    let mut object: Value = serde_json::from_slice(&stored).unwrap();
    change(&mut object);
    etcd("put", &json!({"key": key, "value": BASE64.encode(object.to_string())})).await;
}

async fn etcd(call: &str, body: &Value) -> Value {
    let mut stream = tokio::net::TcpStream::connect("127.0.0.1:2379").await.unwrap();
    let body = body.to_string();
    let head =
        format!("POST /v3/kv/{call} HTTP/1.0\r\nhost: etcd\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(" 200 "), "{answer}");
    serde_json::from_str(body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stored_object_that_cannot_be_read_is_named_and_stops_nobody() {
    let Some(cluster) = Cluster::open("op-broken").await else { return };
    cluster.apply(QUICKSTART).await;
    let more = |name: &str| {
        let spec = json!({"targets": [{"provider": "openai", "model": "gpt-5.2"}]});
        json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": "Combo", "metadata": {"name": name}, "spec": spec}).to_string()
    };
    cluster.apply(&more("old")).await;
    let operator = Running::start(cluster.client.clone(), cluster.config("one", LEASE));
    let _pod = FakePod::start(&cluster, "pod-1").await;
    all_ready(&cluster).await;
    cluster.until_ready("Combo", "old", "True", "Accepted").await;

    // A strategy that an earlier version knew, and a number where the schema has had a text since.
    store(&cluster, "combos", "old", |object| object["spec"]["strategy"] = json!("Roulette")).await;
    let broken = cluster.until_ready("Combo", "old", "False", "InvalidSpec").await;
    let ready = broken["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Ready").unwrap();
    assert!(text(ready, "/message").contains("Roulette"), "{ready}");
    assert_eq!(condition(&broken, "Stalled").0, "True");
    let told = || async { cluster.events("Combo").await.contains(&"InvalidSpec".to_owned()) };
    eventually("an event says so", Duration::from_secs(10), || async { told().await }).await;
    others_go_on(&cluster, "gpt-5-mini").await;
    operator.terminate().await;

    // Another replica lists it among the others, and one more whose status is nonsense.
    store(&cluster, "connections", "b", |object| object["status"] = json!({"observedGeneration": 1, "conditions": "none"})).await;
    let mut config = cluster.config("two", LEASE);
    config.management = free_port();
    let address = config.management;
    let operator = Running::start(cluster.client.clone(), config);
    eventually("the second leads", Duration::from_secs(10), || async { cluster.leader().await == "two" }).await;
    let counted = |kind: &str| format!("kind=\"{kind}\",reason=\"InvalidSpec\"");
    eventually("both are counted", Duration::from_secs(10), || async {
        let not_ready = series(address, "omniroute_operator_objects_not_ready").await;
        not_ready.get(&counted("Combo")) == Some(&1) && not_ready.get(&counted("Connection")) == Some(&1)
    })
    .await;
    others_go_on(&cluster, "gpt-5").await;
    assert_eq!(condition(&cluster.get("Combo", "old").await.unwrap(), "Ready"), ("False".into(), "InvalidSpec".into()));

    // The way out that the message names.
    cluster.apply(&more("old").replace("\"targets\"", "\"strategy\":\"Priority\",\"targets\"")).await;
    cluster.until_ready("Combo", "old", "True", "Accepted").await;
    operator.terminate().await;
}

/// A change of another object of the same kind takes effect.
async fn others_go_on(cluster: &Cluster, model: &str) {
    cluster.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": model}]}})).await;
    cluster
        .until("Combo", "assistant", "ready in its new generation", Duration::from_secs(10), |o| {
            o["status"]["observedGeneration"] == o["metadata"]["generation"] && condition(o, "Ready").0 == "True"
        })
        .await;
    let snapshot = cluster.snapshot().await.unwrap();
    let names: Vec<&str> = snapshot.combos.iter().map(|combo| combo.name.as_str()).collect();
    assert_eq!(names, ["assistant"], "what cannot be read is left out");
    cluster.until_ready("Connection", "a", "True", "Accepted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_orders_end_in_the_same_result() {
    let Some(home) = Cluster::open("op-order").await else { return };
    let mut teams = Vec::new();
    for i in 0..10 {
        teams.push(Cluster::open(&format!("op-order-{i}")).await.unwrap());
    }
    let mut config = home.config("one", LEASE);
    config.watch_namespaces = teams.iter().map(|team| team.namespace.clone()).collect();
    let operator = Running::start(home.client.clone(), config);
    let documents: Vec<&str> = QUICKSTART.split("---").collect();
    let mut orders = std::collections::BTreeSet::new();
    let results = futures::future::join_all(teams.iter().enumerate().map(|(i, team)| {
        // The steps of a factorial number system reach every order; these are ten that are far apart.
        let (mut left, mut number, mut order) = (documents.clone(), 71 * i + 5, Vec::new());
        while !left.is_empty() {
            let at = number % left.len();
            number /= left.len();
            order.push(left.remove(at));
        }
        orders.insert(order.clone());
        async move {
            for document in order {
                team.apply(document).await;
            }
            let _pod = FakePod::start(team, "pod-1").await;
            all_ready(team).await;
            for (kind, name) in OBJECTS {
                let known = |o: &Value| condition(o, "Available").0 == "True";
                team.until(kind, name, "available", Duration::from_secs(10), known).await;
            }
            result(team).await
        }
    }))
    .await;
    assert_eq!(orders.len(), 10, "ten orders");
    for (i, other) in results.iter().enumerate().skip(1) {
        assert_eq!(other, &results[0], "order {i}");
    }
    operator.terminate().await;
}

/// Every status and the configuration, without times and what is drawn by chance in each namespace.
async fn result(team: &Cluster) -> Value {
    let mut objects = Vec::new();
    for (kind, name) in OBJECTS {
        objects.push(json!({"name": name, "kind": kind, "status": team.get(kind, name).await.unwrap()["status"]}));
    }
    let snapshot = team.snapshot().await.unwrap();
    let fragments: Vec<&String> = snapshot.fragments.keys().collect();
    let (connections, combos, providers) = (&snapshot.connections, &snapshot.combos, &snapshot.providers);
    let mut all = json!([objects, fragments, connections, combos, providers]);
    forget(&mut all);
    all
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|key, _| !["lastTransitionTime", "snapshotHash", "credentialFingerprint"].contains(&key.as_str()));
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}
