//! What the operator owns it keeps, what it does not own it leaves alone.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::cluster::Outcome;
use super::super::health::{condition_reason, condition_status};
use super::super::world::{CLIENT_KEY, PODS, SOON, SYSTEM, TEAM, World, quickstart};
use super::ensure;

/// A second namespace with a gateway of its own.
pub const OTHER: &str = "omniroute-e2e-other";
const CHILDREN: &str = "deployment,service,serviceaccount,role,rolebinding,poddisruptionbudget,networkpolicy";

pub fn drift(world: &World) -> Outcome {
    let cluster = &world.cluster;
    // A field of somebody else (an annotation, as injectors and people set them) stays; a field of ours comes back.
    cluster.kubectl(&["annotate", "-n", TEAM, "service/omniroute-gateway", "example.com/note=mine"])?;
    let service = cluster.get(TEAM, &["service", "omniroute-gateway"])?;
    let ports = service["spec"]["ports"].clone();
    cluster.patch(TEAM, "service/omniroute-gateway", &json!({"spec": {"selector": {"app.kubernetes.io/name": "nobody"}}}))?;
    let repaired = cluster
        .await_object(TEAM, "service", "omniroute-gateway", SOON, |object| object["spec"]["selector"] == service["spec"]["selector"])?;
    ensure(repaired["spec"]["ports"] == ports, || "the ports changed".to_owned())?;
    ensure(repaired["metadata"]["annotations"]["example.com/note"] == json!("mine"), || "a foreign annotation went".to_owned())?;

    // A deleted child comes back.
    cluster.kubectl(&["delete", "role", "-n", TEAM, "omniroute-gateway"])?;
    cluster.await_object(TEAM, "role", "omniroute-gateway", SOON, |object| object["rules"].is_array())?;

    // A configuration that somebody has overwritten with nonsense comes back too, and no request notices.
    let (mut client, _way) = world.client()?;
    let pods = world.gateway_pods()?;
    let config = cluster.get(TEAM, &["secret", "omniroute-gateway-config"])?;
    client.load(CLIENT_KEY, "assistant")?;
    client.more(10)?;
    cluster.patch(TEAM, "secret/omniroute-gateway-config", &json!({"data": {"snapshot.json.gz": "bm9uc2Vuc2U="}}))?;
    cluster.await_object(TEAM, "secret", "omniroute-gateway-config", SOON, |object| object["data"] == config["data"])?;
    client.more(20)?;
    client.stop()?;
    cluster.wait_for(TEAM, &["combo/assistant"], "condition=Ready", SOON)?;
    ensure(world.gateway_pods()? == pods, || "the gateway was replaced or restarted".to_owned())?;

    // Every child belongs to the settings, so that deleting them deletes it.
    let children = cluster.get(TEAM, &[CHILDREN, "-l", "app.kubernetes.io/managed-by=omniroute-operator"])?;
    let children = children["items"].as_array().cloned().unwrap_or_default();
    ensure(children.len() >= 6, || format!("only {} children", children.len()))?;
    for child in &children {
        let owner = &child["metadata"]["ownerReferences"][0];
        let owned = owner["kind"] == json!("ResilienceSettings") && owner["controller"] == json!(true);
        ensure(owned, || format!("{} {} has no owner", child["kind"], child["metadata"]["name"]))?;
    }
    Ok(())
}

/// Children that are there only when the settings ask for them.
pub fn optional_children(world: &World) -> Outcome {
    let cluster = &world.cluster;
    let set = |gateway: Value| cluster.patch(TEAM, "resiliencesettings/default", &json!({"spec": {"gateway": gateway}}));
    let gateway = "omniroute-gateway";
    set(json!({"replicas": 2, "podDisruptionBudget": {"minAvailable": 1}}))?;
    cluster.await_object(TEAM, "deployment", gateway, PODS, |object| object["status"]["readyReplicas"] == json!(2))?;
    cluster.await_object(TEAM, "poddisruptionbudget", gateway, SOON, |object| object["spec"]["minAvailable"] == json!(1))?;
    cluster.await_object(TEAM, "connection", "openai-team-a", SOON, |object| object["status"]["pods"]["reporting"] == json!(2))?;

    // The autoscaler takes over at the number that is there; from then on `replicas` is its own.
    set(json!({"replicas": null, "autoscaling": {"minReplicas": 2, "maxReplicas": 3, "targetCPUUtilization": 70}}))?;
    cluster.await_object(TEAM, "horizontalpodautoscaler", gateway, SOON, |object| object["spec"]["maxReplicas"] == json!(3))?;
    cluster.kubectl(&["scale", "-n", TEAM, "deployment/omniroute-gateway", "--replicas=3"])?;
    cluster.await_object(TEAM, "deployment", gateway, PODS, |object| object["status"]["readyReplicas"] == json!(3))?;
    cluster.patch(TEAM, "combo/assistant", &json!({"spec": {"description": "while an autoscaler has the replicas"}}))?;
    cluster.wait_for(TEAM, &["combo/assistant"], "condition=Programmed", SOON)?;
    let deployment = cluster.get(TEAM, &["deployment", gateway])?;
    ensure(deployment["spec"]["replicas"] == json!(3), || format!("replicas were taken back: {}", deployment["spec"]["replicas"]))?;

    set(json!({"autoscaling": null, "podDisruptionBudget": null, "networkPolicy": {"enabled": false}}))?;
    cluster.wait_for(TEAM, &["networkpolicy/omniroute-gateway"], "delete", SOON)?;
    cluster.wait_for(TEAM, &["horizontalpodautoscaler/omniroute-gateway"], "delete", SOON)?;
    cluster.wait_for(TEAM, &["poddisruptionbudget/omniroute-gateway"], "delete", SOON)?;
    set(Value::Null)?;
    cluster.await_object(TEAM, "networkpolicy", gateway, SOON, |object| object["spec"].is_object())?;
    cluster.await_object(TEAM, "deployment", gateway, PODS, |object| {
        object["spec"]["replicas"] == json!(1) && object["status"]["replicas"] == json!(1)
    })?;
    cluster
        .await_object(TEAM, "connection", "openai-team-a", SOON, |object| object["status"]["pods"] == json!({"reporting": 1, "total": 1}))
        .map(drop)
}

pub fn foreign_objects(world: &World) -> Outcome {
    let cluster = &world.cluster;
    world.namespace(OTHER)?;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "omniroute-gateway"}});
    cluster.apply(OTHER, &[account])?;
    let before = cluster.get(OTHER, &["serviceaccount", "omniroute-gateway"])?;
    cluster.apply(OTHER, &[settings("default")])?;
    let conflict =
        cluster.await_object(OTHER, "resiliencesettings", "default", SOON, |object| condition_reason(object, "Ready") == "NameConflict")?;
    ensure(condition_status(&conflict, "Ready") == "False", || conflict["status"].to_string())?;
    ensure(cluster.get(OTHER, &["serviceaccount", "omniroute-gateway"])? == before, || "somebody's object was touched".to_owned())?;

    // Out of the way, and the gateway comes; a second ResilienceSettings does not get one.
    cluster.kubectl(&["delete", "serviceaccount", "-n", OTHER, "omniroute-gateway"])?;
    cluster.await_object(OTHER, "resiliencesettings", "default", PODS, |object| condition_status(object, "Ready") == "True")?;
    cluster.apply(OTHER, &[settings("second")])?;
    cluster.await_object(OTHER, "resiliencesettings", "second", SOON, |object| condition_reason(object, "Ready") == "Conflict").map(drop)
}

fn settings(name: &str) -> Value {
    json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": "ResilienceSettings", "metadata": {"name": name}, "spec": {}})
}

/// Mistakes of users: what they point at, and what the condition says at once and after the minute of grace.
pub fn mistakes(world: &World) -> Outcome {
    let cluster = &world.cluster;
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "omniroute.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let secret = json!({"apiKey": {"secretRef": {"name": "nothing", "key": "key"}}});
    cluster.apply(
        TEAM,
        &[
            object("Connection", "no-provider", json!({"providerRef": {"name": "opnai"}, "credentials": secret})),
            object("Connection", "no-secret", json!({"providerRef": {"name": "openai"}, "credentials": secret})),
            object("Combo", "no-target", json!({"targets": [{"provider": "opnai", "model": "gpt-5.2"}]})),
        ],
    )?;
    let since = Instant::now();
    let faults = [
        ("connection", "no-provider", "ProviderNotFound"),
        ("connection", "no-secret", "SecretNotFound"),
        ("combo", "no-target", "ProviderNotFound"),
    ];
    for (kind, name, reason) in faults {
        let found = cluster.await_object(TEAM, kind, name, SOON, |object| condition_reason(object, "Ready") == reason)?;
        ensure(condition_status(&found, "Reconciling") == "True", || format!("{name}: {}", found["status"]))?;
    }
    let near = cluster.get(TEAM, &["connection", "no-provider"])?;
    let message = near["status"]["conditions"].to_string();
    ensure(message.contains("openai"), || format!("no suggestion in {message}"))?;
    for (kind, name, reason) in faults {
        let stalled =
            cluster.await_object(TEAM, kind, name, Duration::from_secs(75), |object| condition_status(object, "Stalled") == "True")?;
        ensure(condition_reason(&stalled, "Ready") == reason, || format!("{name}: {}", stalled["status"]))?;
    }
    ensure(since.elapsed() > Duration::from_secs(55), || "stalled without a minute of grace".to_owned())?;
    // The other objects did not suffer, and deleting needs no operator.
    cluster.wait_for(TEAM, &["combo/assistant", "connection/openai-team-a"], "condition=Ready", SOON)?;
    let since = Instant::now();
    cluster.kubectl(&["delete", "-n", TEAM, "connection/no-provider", "connection/no-secret", "combo/no-target"])?;
    ensure(since.elapsed() < Duration::from_secs(5), || format!("deleting took {:?}", since.elapsed()))
}

/// The order in which objects arrive does not matter, and neither does applying them again from another tool.
pub fn any_order(world: &World) -> Outcome {
    let cluster = &world.cluster;
    let mut objects = quickstart(TEAM)?;
    objects.reverse();
    for object in &objects {
        cluster.apply(OTHER, std::slice::from_ref(object))?;
    }
    cluster.wait_for(OTHER, &["combo/assistant"], "condition=Ready", PODS)?;
    let kinds = "providers,connections,combos,secrets";
    let versions = |list: &Value| -> Vec<Value> {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items
            .iter()
            .filter(|object| !object["metadata"]["name"].as_str().unwrap_or_default().starts_with("omniroute-"))
            .map(|object| json!([object["metadata"]["name"], object["metadata"]["generation"], object["spec"]]))
            .collect()
    };
    let before = versions(&cluster.get(OTHER, &[kinds])?);
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
    for _ in 0..2 {
        let apply = ["apply", "-n", OTHER, "--server-side", "--force-conflicts", "--field-manager=argocd-controller", "-f", "-"];
        cluster.kubectl_with(&apply, &list)?;
    }
    ensure(versions(&cluster.get(OTHER, &[kinds])?) == before, || "applying again changed a spec".to_owned())?;

    // Without settings there is no gateway, and nothing is left of it.
    cluster.kubectl(&["delete", "resiliencesettings", "-n", OTHER, "--all"])?;
    cluster.await_object(OTHER, "combo", "assistant", SOON, |object| condition_reason(object, "Ready") == "NoGateway")?;
    cluster.wait_for(OTHER, &[CHILDREN, "-l", "app.kubernetes.io/managed-by=omniroute-operator"], "delete", PODS)?;
    let operator = cluster.get(SYSTEM, &["deployment", "omniroute-operator"])?;
    ensure(operator["status"]["readyReplicas"] == operator["spec"]["replicas"], || "the operator is not ready".to_owned())
}
