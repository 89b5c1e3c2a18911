//! Several namespaces, and several installations of the operator.

use std::time::Duration;

use serde_json::json;

use crate::faults::Door;
use crate::support::{Cluster, FakePod, Running, condition, eventually, text};
use crate::{LEASE, QUICKSTART, all_ready};

const CLAIM: &str = "omniroute.dev/claimed-by";

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_of_another_installation_is_left_alone() {
    let Some(team) = Cluster::open("op-claim").await else { return };
    let other = Cluster::open("op-claim-other").await.unwrap();
    team.apply(QUICKSTART).await;
    let first = team.operator("one", LEASE);
    let pod = FakePod::start(&team, "pod-1").await;
    all_ready(&team).await;
    let management = team.get("Secret", "omniroute-gateway-management").await.unwrap();
    assert_eq!(management["metadata"]["annotations"][CLAIM], "op-claim/omniroute-operator");

    // Both serve the namespace; the second has a Lease, a name and an image of its own.
    let mut config = other.config("two", LEASE);
    config.watch_namespaces = vec![team.namespace.clone(), other.namespace.clone()];
    config.settings.image = "localhost/none:2".to_owned();
    other.apply(QUICKSTART).await;
    let second = Running::start(team.client.clone(), config.clone());
    other.until("Deployment", "omniroute-gateway", "its own namespace is served", Duration::from_secs(10), |_| true).await;
    team.edit("Combo", "assistant", json!({"spec": {"targets": [{"provider": "openai", "model": "gpt-5-mini"}]}})).await;
    team.until("Combo", "assistant", "answered by the first", Duration::from_secs(10), |o| {
        o["status"]["observedGeneration"] == o["metadata"]["generation"] && condition(o, "Ready").0 == "True"
    })
    .await;
    let asked = pod.asked();
    eventually("looks at the pod", Duration::from_secs(10), || async { pod.asked() >= asked + 3 }).await;
    let before = team.versions().await;
    let asked = pod.asked();
    eventually("more looks at the pod", Duration::from_secs(20), || async { pod.asked() >= asked + 6 }).await;
    assert_eq!(team.versions().await, before, "the two do not fight");
    let deployment = team.get("Deployment", "omniroute-gateway").await.unwrap();
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], "localhost/none:1");

    // Nobody answers any more: the second says whose it is, and touches nothing else.
    first.terminate().await;
    let before = team.versions().await;
    team.edit("ResilienceSettings", "default", json!({"spec": {"gateway": {"replicas": 0, "networkPolicy": {"enabled": false}}}})).await;
    let within = Duration::from_secs(30);
    let claimed =
        team.until("ResilienceSettings", "default", "told", within, |o| condition(o, "Ready") == ("False".into(), "Conflict".into())).await;
    let message = claimed["status"]["conditions"].as_array().unwrap().iter().map(|c| text(c, "/message")).collect::<String>();
    assert!(message.contains("op-claim/omniroute-operator") && message.contains(CLAIM), "{message}");
    let mut after = team.versions().await;
    after.insert("ResilienceSettings/default".into(), before["ResilienceSettings/default"].clone());
    assert_eq!(after, before);

    // The way out that the message names.
    team.edit("Secret", "omniroute-gateway-management", json!({"metadata": {"annotations": {CLAIM: null}}})).await;
    let image = |o: &serde_json::Value| o["spec"]["template"]["spec"]["containers"][0]["image"] == "localhost/none:2";
    team.until("Deployment", "omniroute-gateway", "taken over", within, image).await;
    team.until_ready("ResilienceSettings", "default", "True", "Accepted").await;
    let taken = team.get("Secret", "omniroute-gateway-management").await.unwrap();
    assert_eq!(
        (&taken["metadata"]["annotations"][CLAIM], &taken["data"]),
        (&json!("op-claim-other/omniroute-operator"), &management["data"])
    );
    second.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_image_rolls_five_gateways_at_a_time() {
    let Some(home) = Cluster::open("op-roll").await else { return };
    let mut teams = Vec::new();
    for i in 0..7 {
        teams.push(Cluster::open(&format!("op-roll-{i}")).await.unwrap());
    }
    let settings = |replicas: i32| {
        format!(
            "apiVersion: omniroute.dev/v1alpha1\nkind: ResilienceSettings\nmetadata: {{name: default}}\nspec: {{gateway: {{replicas: {replicas}}}}}\n"
        )
    };
    for team in &teams {
        team.apply(&settings(0)).await;
    }
    let mut config = home.config("one", LEASE);
    config.watch_namespaces = teams.iter().map(|team| team.namespace.clone()).collect();
    let first = Running::start(home.client.clone(), config.clone());
    for team in &teams {
        let seen = |o: &serde_json::Value| o["status"]["observedGeneration"] == o["metadata"]["generation"];
        team.until("Deployment", "omniroute-gateway", "settled", Duration::from_secs(20), seen).await;
    }
    first.terminate().await;
    // The new operator brings another image, with which no pod gets ready.
    for team in &teams {
        team.apply(&settings(1)).await;
    }
    config.identity = "two".to_owned();
    config.settings.image = "localhost/none:2".to_owned();
    let second = Running::start(home.client.clone(), config);
    let rolled = || async {
        let mut rolled = Vec::new();
        for team in &teams {
            let deployment = team.get("Deployment", "omniroute-gateway").await.unwrap();
            if deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "localhost/none:2" {
                rolled.push(team);
            }
        }
        rolled
    };
    eventually("five roll", Duration::from_secs(20), || async { rolled().await.len() >= 5 }).await;
    // Those that wait are looked at again every five seconds: that nothing comes of it has no event.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let now = rolled().await;
    assert_eq!(now.len(), 5);
    // One is done (it wants no pod any more): the next one follows.
    now[0].apply(&settings(0)).await;
    eventually("the next one", Duration::from_secs(20), || async { rolled().await.len() == 6 }).await;
    second.terminate().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_installations_that_begin_at_once_the_second_reads_the_keys_of_the_first() {
    let Some(cluster) = Cluster::open("op-at-once").await else { return };
    cluster.apply(QUICKSTART).await;
    let (door, client) = Door::open(cluster.client.clone()).await;
    let keys = "/secrets/omniroute-gateway-management";
    door.hold_writes(Some(keys));
    // Its write waits here, and must not be given up meanwhile.
    let second = cluster.operator_through(client, "two", Duration::from_secs(30));
    // It has found no keys and minted some; before they arrive the other installation makes its own.
    door.until_a_write_waits().await;
    let first = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: omniroute-gateway-management, annotations: {{{CLAIM}: other/omniroute-operator}}}}\nstringData: {{token: first, fingerprint-salt: first}}\n"
    );
    cluster.apply(&first).await;
    let before = cluster.get("Secret", "omniroute-gateway-management").await.unwrap();
    door.hold_writes(None);
    eventually("its keys are refused", Duration::from_secs(10), || async { door.writes(keys) == [409] }).await;
    // Whose the namespace is it says about what the first has not answered.
    cluster.edit("ResilienceSettings", "default", json!({"spec": {"gateway": {"replicas": 1}}})).await;
    let within = Duration::from_secs(30);
    cluster.until("ResilienceSettings", "default", "left alone", within, |o| condition(o, "Ready").1 == "Conflict").await;
    assert_eq!(cluster.get("Secret", "omniroute-gateway-management").await.unwrap(), before, "the keys of the first");
    assert_eq!((door.writes(keys), cluster.get("Deployment", "omniroute-gateway").await), (vec![409], None));
    second.terminate().await;
}
