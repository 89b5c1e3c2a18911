//! Secrets that are unmistakable, everything logged, a vendor that repeats them in its errors: afterwards they are in no byte that anybody can see.

use std::fs;
use std::path::Path;

use base64::Engine;
use serde_json::{Value, json};

use super::super::client::Client;
use super::super::cluster::{Outcome, until};
use super::super::process::http_get;
use super::super::world::{PODS, SOON, SYSTEM, TEAM, World, quickstart};
use super::ensure;
use super::restarts::unpacked;

const NAMESPACE: &str = "omniroute-e2e-canary";
const A: &str = "canary-3f9a1c-first-account";
const ROTATED: &str = "canary-3f9a1c-first-account-rotated";
const CLIENT: &str = "canary-3f9a1c-client-key";
const STRANGER: &str = "canary-3f9a1c-nobodys-key";
/// The other keys of this namespace, and those that the scenarios before have used.
const OTHERS: [&str; 7] = [
    "canary-3f9a1c-second-account",
    "canary-3f9a1c-third-account",
    "sk-replace-me-a",
    "sk-replace-me-b",
    "sk-ant-replace-me",
    "sk-rotated-a",
    "client-key-replace-me",
];

pub fn nowhere_else(world: &World) -> Outcome {
    let cluster = &world.cluster;
    log_of_operator(world, "trace")?;
    world.namespace(NAMESPACE)?;
    cluster.apply(NAMESPACE, &canaries()?)?;
    cluster.wait_for(NAMESPACE, &["combo/assistant"], "condition=Ready", PODS)?;
    let found = provoke(world).and_then(|()| search(world));
    world.fake("openai").healthy()?;
    log_of_operator(world, "info")?;
    // The next scenario wants silence. A namespace with pods in it is looked at again only after half of their grace period.
    cluster.kubectl(&["delete", "resiliencesettings", "-n", NAMESPACE, "--all"])?;
    cluster.wait_for(NAMESPACE, &["pod", "-l", "app.kubernetes.io/name=omniroute-gateway"], "delete", PODS)?;
    cluster.kubectl(&["delete", "namespace", NAMESPACE, "--timeout=90s"])?;
    found
}

fn log_of_operator(world: &World, level: &str) -> Outcome {
    let variable = format!("OMNIROUTE_LOG={level}");
    world.cluster.kubectl(&["set", "env", "-n", SYSTEM, "deployment/omniroute-operator", &variable])?;
    world.await_deployment(SYSTEM, "omniroute-operator")
}

/// The quickstart with unmistakable secrets and a gateway that logs everything.
fn canaries() -> Outcome<Vec<Value>> {
    let mut objects = quickstart(TEAM)?;
    for object in &mut objects {
        match (object["kind"].as_str(), object["metadata"]["name"].as_str()) {
            (Some("Secret"), Some("llm-keys")) => {
                object["stringData"] = json!({"openai-team-a": A, "openai-team-b": OTHERS[0], "anthropic": OTHERS[1]});
            }
            (Some("Secret"), _) => object["stringData"] = json!({"key": CLIENT}),
            (Some("ResilienceSettings"), _) => {
                object["spec"] = json!({"gateway": {"podTemplate": {"extraEnv": [{"name": "OMNIROUTE_LOG", "value": "trace"}]}}});
            }
            _ => {}
        }
    }
    Ok(objects)
}

/// What could spill a secret: a vendor that repeats the key, a key of nobody, a rotation, a reference to a key that is not there.
fn provoke(world: &World) -> Outcome {
    let (cluster, fake) = (&world.cluster, world.fake("openai"));
    fake.answer(A, 401, &[("x-echo", A)], &format!("Incorrect API key provided: {A}. You can find yours in the dashboard."))?;
    let way = world.way(NAMESPACE, "omniroute-gateway", 80)?;
    let mut client = Client::start(&way.url)?;
    ensure(client.served_by(CLIENT, "assistant")? == "openai-team-b", || "no failover".to_owned())?;
    ensure(client.chat(STRANGER, "assistant")?["status"] == json!(401), || "a stranger got in".to_owned())?;
    client.stream(CLIENT, "assistant")?;
    cluster.await_object(NAMESPACE, "connection", "openai-team-a", SOON, |object| object["status"]["lastErrorStatus"] == json!(401))?;
    cluster.patch(NAMESPACE, "secret/llm-keys", &json!({"stringData": {"openai-team-a": ROTATED}, "data": {"anthropic": null}}))?;
    cluster.await_object(NAMESPACE, "connection", "anthropic-main", SOON, |object| {
        object["status"]["conditions"].to_string().contains("SecretKeyNotFound")
    })?;
    let client = std::cell::RefCell::new(client);
    until(SOON, "the rotated key", || (client.borrow_mut().served_by(CLIENT, "assistant").ok()? == "openai-team-a").then_some(()))
}

/// Looks for every secret in everything that people, tools and other programs can read.
fn search(world: &World) -> Outcome {
    let management = world.cluster.get(NAMESPACE, &["secret", "omniroute-gateway-management"])?;
    let minted: Vec<String> = management["data"].as_object().into_iter().flatten().filter_map(|(_, value)| decoded(value)).collect();
    ensure(minted.len() > 1, || "no management token".to_owned())?;
    let secrets: Vec<&str> = [A, ROTATED, CLIENT, STRANGER].into_iter().chain(OTHERS).chain(minted.iter().map(String::as_str)).collect();
    let token = management["data"]["token"].as_str().and_then(|token| decoded(&json!(token))).ok_or("no token")?;

    let bytes = everything(world, &token)?;
    let size: usize = bytes.iter().map(|(_, text)| text.len()).sum();
    ensure(bytes.iter().any(|(place, text)| place.contains("/gateway/") && text.contains("TRACE")), || {
        "the gateway logged no trace".to_owned()
    })?;
    ensure(size > 1 << 20, || format!("only {size} bytes were looked at"))?;
    eprintln!("looked for {} secrets in {} places, {size} bytes", secrets.len(), bytes.len());
    let mut leaks = Vec::new();
    for secret in secrets {
        let packed = base64::engine::general_purpose::STANDARD.encode(secret);
        for (place, text) in &bytes {
            if let Some(at) = text.find(secret).or_else(|| text.find(packed.trim_end_matches('='))) {
                let around: String = text[..at].chars().rev().take(160).collect::<Vec<_>>().into_iter().rev().collect();
                leaks.push(format!("{}… in {place} after: {around}", &secret[..12]));
            }
        }
    }
    ensure(leaks.is_empty(), || leaks.join("\n"))?;

    // The search can find something: the one place where credentials belong holds the present one, and client keys as digests only.
    let config = unpacked(&world.cluster.get(NAMESPACE, &["secret", "omniroute-gateway-config"])?["data"]);
    ensure(config.contains(ROTATED), || "the configuration does not hold the credential".to_owned())?;
    ensure(!config.contains(CLIENT) && !config.contains(A_WITH_QUOTES), || {
        "the configuration holds a client key or an old credential".to_owned()
    })
}

/// The first account's key as a whole JSON string; it is the beginning of the rotated one.
const A_WITH_QUOTES: &str = "\"canary-3f9a1c-first-account\"";

fn decoded(value: &Value) -> Option<String> {
    let bytes = base64::engine::general_purpose::STANDARD.decode(value.as_str()?).ok()?;
    String::from_utf8(bytes).ok()
}

/// Place and text of everything that is not a Secret: logs of all pods but the fake vendors', every object, metrics, management answers, the audit log.
fn everything(world: &World, token: &str) -> Outcome<Vec<(String, String)>> {
    let cluster = &world.cluster;
    let mut all = Vec::new();
    logs(&cluster.own()?.join("data/pod-logs"), &mut all);
    let audit = cluster.own()?.join("log/audit.jsonl");
    all.push(("the audit log".to_owned(), fs::read_to_string(&audit).map_err(|error| format!("{}: {error}", audit.display()))?));
    for kinds in
        ["providers,connections,combos,resiliencesettings,operatorerrorrules", "events", "pods,deployments,replicasets,services,roles"]
    {
        all.push((kinds.to_owned(), cluster.kubectl(&["get", kinds, "-A", "-o", "json", "--show-managed-fields"])?));
    }
    let maps = cluster.get("", &["configmaps", "-A"])?;
    for map in maps["items"].as_array().into_iter().flatten() {
        all.push((format!("ConfigMap {}", map["metadata"]["name"]), format!("{map}{}", unpacked(&map["binaryData"]))));
    }
    all.push(("metrics of the operator".to_owned(), cluster.service_get(SYSTEM, "omniroute-operator:management", "/metrics")?));
    let way = world.way(NAMESPACE, "omniroute-gateway", 9090)?;
    let address = way.url.trim_start_matches("http://");
    for path in ["/metrics", "/state", "/checkpoint", "/api/resilience"] {
        let (status, text) = http_get(address, path, token).ok_or_else(|| format!("{path} did not answer"))?;
        ensure(status == 200, || format!("{path} answered {status}"))?;
        all.push((path.to_owned(), text));
    }
    Ok(all)
}

/// Every log file below a folder; those of the fake vendors hold what vendors see.
fn logs(folder: &Path, all: &mut Vec<(String, String)>) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        if path.is_dir() && !path.to_string_lossy().contains("_fake-") {
            logs(&path, all);
        } else if let Ok(bytes) = fs::read(&path) {
            all.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
}
